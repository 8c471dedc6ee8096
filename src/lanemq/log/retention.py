"""Which segments may go. A pure decision: facts in, a count out."""

from collections.abc import Sequence
from typing import NamedTuple

from lanemq.log.options import StoreOptions


class SegmentFacts(NamedTuple):
    """A finished segment. `newest` is when its last record was stored at the latest; None if nobody can tell."""

    size: int
    newest: int | None


def expired_segments(oldest_first: Sequence[SegmentFacts], options: StoreOptions, now_wall: int) -> int:
    """How many of the oldest finished segments to delete. The one being written is never among them.

    Doubt keeps: a segment of unknown age stays until the size limit asks for it, and so do those behind it.
    """
    count = 0
    total = sum(facts.size for facts in oldest_first)
    for facts in oldest_first:
        too_old = facts.newest is not None and now_wall - facts.newest > options.retention_ms
        too_many = options.retention_bytes is not None and total > options.retention_bytes
        if not (too_old or too_many):
            break
        count += 1
        total -= facts.size
    return count
