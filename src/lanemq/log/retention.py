"""Retention: which of the oldest segments are deleted.

Invariant: no record is deleted because of its age before that much time has really passed. Ages are measured on the
monotonic clock, so a wall clock that jumps ahead deletes nothing, and one that jumps back keeps nothing too long. Only
the age that a segment has at the start of the broker comes from the wall clock: from then on it grows with the time
that passes.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog, Segment
from lanemq.log.options import StoreOptions
from lanemq.log.record_bytes import store_time_at
from lanemq.wire.record import HEAD_BYTES


class SegmentFacts(NamedTuple):
    """A finished segment: its size, and the time since its last record was stored, at least."""

    size: int
    age: int


class Retention:
    """Knows the ages of the segments of one log. On the loop only."""

    def __init__(self, log: CommitLog, options: StoreOptions) -> None:
        self._log = log
        self._options = options
        self._noted: Sequence[Segment] = ()
        self._finished_at: dict[int, int] = {}
        """Start of a finished segment → the monotonic time of its last record, or a later one."""

    def begin(self, *, now: int, wall: int) -> None:
        """Note the segments found at the start. Their age is never negative, whatever the wall clock says."""
        segments = self._log.segments
        for segment, following in pairwise(segments):
            # The first record of the next segment is not older than the last one of this segment.
            head = self._log.read(following.start, HEAD_BYTES)
            age = max(0, wall - store_time_at(head)) if len(head) == HEAD_BYTES else 0
            self._finished_at[segment.start] = now - age
        self._noted = segments

    def note_if_grown(self, now: int) -> None:
        """Note that every segment but the last one is finished by now. Called often: ages count from here."""
        segments = self._log.segments
        if segments is not self._noted:
            self._finished_at = {each.start: self._finished_at.get(each.start, now) for each in segments[:-1]}
            self._noted = segments

    def expired(self, now: int, share: float = 1.0) -> int:
        """Count the oldest segments to delete, or those that have reached a `share` of their age."""
        self.note_if_grown(now)
        finished = [SegmentFacts(segment.size, now - self._finished_at[segment.start]) for segment in self._noted[:-1]]
        return expired_segments(finished, int(self._options.retention_ms * share), self._options.retention_bytes)


def expired_segments(oldest_first: Sequence[SegmentFacts], max_age: int, max_bytes: int | None) -> int:
    """Count the oldest finished segments that are too old, or too many."""
    count = 0
    total = sum(facts.size for facts in oldest_first)
    for facts in oldest_first:
        too_many = max_bytes is not None and total > max_bytes
        if not (facts.age > max_age or too_many):
            break
        count += 1
        total -= facts.size
    return count
