"""Retention: which of the oldest segments are deleted."""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog
from lanemq.log.options import StoreOptions
from lanemq.log.record_bytes import store_time_at
from lanemq.wire.record import HEAD_BYTES


class SegmentFacts(NamedTuple):
    """A finished segment. `newest` is an upper bound of its last store time; None if it cannot be read."""

    size: int
    newest: int | None


def finished_segments(log: CommitLog) -> list[SegmentFacts]:
    """The facts about every segment but the one being written, oldest first."""
    facts = []
    for segment, following in pairwise(log.segments):
        head = log.read(following.start, HEAD_BYTES)
        facts.append(SegmentFacts(segment.size, store_time_at(head) if len(head) == HEAD_BYTES else None))
    return facts


def expired_segments(oldest_first: Sequence[SegmentFacts], options: StoreOptions, now_wall: int) -> int:
    """Count the oldest finished segments to delete.

    A segment of unknown age is kept, with everything after it, until the size limit requires its deletion.
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
