"""Retention: which of the oldest segments are deleted.

Invariant: no record is deleted because of its age before a broker has run for that long since it was stored. Ages are
measured on the monotonic clock and saved from time to time, and a restart continues with the saved ages. So no wall
clock deletes anything, whether it jumps or is wrong at the start. Time in which no broker runs does not count: how long
it was only the wall clock could tell, and no consumer could read then.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog, Segment
from lanemq.log.options import StoreOptions

LONG_STOP_MS = 30 * 24 * 3_600_000
"""A broker that seems to have been stopped for longer than this has probably started with a wrong clock."""
CLOCK_SLACK_MS = 1_000


def clock_problem(last_run: int, wall: int) -> str | None:
    """What is wrong with the wall clock, judged by when a broker last ran on the folder; None if it may be right."""
    if not last_run:
        return None
    hours = abs(wall - last_run) // 3_600_000
    if wall - last_run > LONG_STOP_MS:
        return (
            f"by this machine's clock, no broker has run on this folder for {hours // 24} days: if that is not so, "
            f"stop the broker, set the clock and start again. Retention deletes nothing because of it, but delayed "
            f"messages from before are due at once, and new messages get the wrong time"
        )
    if last_run > wall + CLOCK_SLACK_MS:
        return (
            f"this machine's clock is behind the last run of a broker on this folder, by {hours} hours or more: set "
            f"it. Until then, new messages get the time of the newest one"
        )
    return None


class SegmentFacts(NamedTuple):
    """A finished segment: its size, and for how long a broker has run since it was finished, at most."""

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

    def begin(self, *, now: int, ages: Mapping[int, int]) -> None:
        """Note the segments found at the start, with the ages that were saved, by their start. One without an age was
        finished after they were saved, or by a version that saved none: it begins with 0."""
        segments = self._log.segments
        self._finished_at = {each.start: now - max(0, ages.get(each.start, 0)) for each in segments[:-1]}
        self._noted = segments

    def ages(self, now: int) -> dict[int, int]:
        """The ages of the finished segments, by their start, for `begin` of the next start."""
        self.note_if_grown(now)
        return {start: now - finished for start, finished in self._finished_at.items()}

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
