"""Delay levels, and the routes of failed messages.

Invariants: a delayed message is not delivered before it is due; and attempts are counted by one comparison in one
place. RocketMQ moved that comparison between versions and once compared differently on both sides, which made a limit
of retries endless.

A delayed message is stored in queue `level - 1` of `SCHEDULE_TOPIC_XXXX`. All messages of a level wait equally long, so
each queue is in order of due times, and one cursor per level is enough.

Delays are elapsed time, measured on the monotonic clock: a jump of the wall clock makes no message early or late. The
wall clock is asked once, at the start of the broker, about messages that are older than the start (`DueTimes`).
"""

from bisect import bisect_right
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lanemq.model.units import Millis, QueueOffset

SECOND, MINUTE, HOUR = 1_000, 60_000, 3_600_000
DELAYS_MS: tuple[Millis, ...] = tuple(
    Millis(span)
    for span in (
        *(seconds * SECOND for seconds in (1, 5, 10, 30)),
        *(minutes * MINUTE for minutes in (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 20, 30)),
        *(hours * HOUR for hours in (1, 2)),
    )
)
"""RocketMQ: `MessageStoreConfig.messageDelayLevel`. Level n is DELAYS_MS[n - 1]; level 0 means no delay."""

MAX_LEVEL = len(DELAYS_MS)
FIRST_RETRY_LEVEL = 3
"""RocketMQ: `SendMessageProcessor`, the first retry waits 10 s."""
MAX_RETRIES = 16
"""RocketMQ: `SubscriptionGroupConfig.retryMaxTimes`."""
MAX_STEP_MS = 100
"""Largest step, in milliseconds, to which due times are rounded up: a message is late by no more than this."""


@dataclass(frozen=True, slots=True)
class RouteToRetry:
    """To the group's retry topic after the delay of `level`, with this count of attempts."""

    level: int
    reconsume_times: int


@dataclass(frozen=True, slots=True)
class RouteToDeadLetter:
    """To the group's dead-letter topic, without delay: a delay level in its properties must be removed."""

    reconsume_times: int


Route: TypeAlias = RouteToRetry | RouteToDeadLetter


def capped(level: int) -> int:
    """Limit a level to those that exist, as RocketMQ does."""
    return max(0, min(level, MAX_LEVEL))


def delay_of(level: int) -> Millis:
    return DELAYS_MS[capped(level) - 1] if level > 0 else Millis(0)


def level_for_retry(reconsume_times: int, requested: int) -> int:
    """The requested level, or one that grows with every attempt."""
    return capped(requested if requested > 0 else FIRST_RETRY_LEVEL + reconsume_times)


def route_send_back(reconsume_times: int, requested: int, max_retries: int | None) -> Route:
    """Route a message that its consumer sent back (CONSUMER_SEND_MSG_BACK).

    `reconsume_times` is the stored count, without this attempt. A negative `requested` level asks for the dead letters
    immediately. `max_retries` None means the default.
    """
    limit = MAX_RETRIES if max_retries is None else max_retries
    if requested < 0 or reconsume_times >= limit:
        return RouteToDeadLetter(reconsume_times + 1)
    return RouteToRetry(level_for_retry(reconsume_times, requested), reconsume_times + 1)


def level_for_pass(passed: int, queues: int) -> int:
    """The delay level of a message that a member without its topic passes on; `passed`: how often it was before.

    In the first round through the queues of the retry topic it waits 1 s in each, then longer in every round: if the
    members with its topic are away, it waits for them and costs little.
    """
    return capped(1 + passed // queues)


def route_retry_send(reconsume_times: int, max_retries: int | None, *, requested: int, group_holds_lock: bool) -> Route:
    """Route a message that a client itself sends to its retry topic, with the attempts that it counted.

    An ordered group does that only when its attempts are used up. Clients before 5.1.3 then send a count equal to the
    limit and not above it, so the group's locks decide (RocketMQ 5.1.3, `SendMessageProcessor.handleRetryAndDLQ`).
    """
    limit = MAX_RETRIES if max_retries is None else max_retries
    if group_holds_lock or reconsume_times > limit:
        return RouteToDeadLetter(reconsume_times)
    return RouteToRetry(level_for_retry(reconsume_times, requested), reconsume_times)


class DueTimes:
    """When the delayed messages are due, on the monotonic clock. Made at the start of the broker.

    Messages that are stored after the start are due their delay after they were stored. How long older ones have waited
    is known from the wall clock only, which may have been wrong before the start or may be wrong now: they are due by
    their store timestamp, but not later than their delay after the start.

    The times of a level are kept in steps of a thousandth of its delay, 100 ms at most, so that memory is bounded. They
    are rounded up: a message may be late by one step, never early.
    """

    def __init__(self, ends: Mapping[int, QueueOffset], *, now: Millis, wall: Millis) -> None:
        """`ends`: level → the end of its queue at the start. A level without messages may be left out."""
        self._old_ends = dict(ends)
        self._start = now
        self._start_wall = wall
        self._ends: dict[int, list[QueueOffset]] = {}
        """Level → ascending: the messages below an end were stored by the time at the same place in `_times`."""
        self._times: dict[int, list[Millis]] = {}

    def stored(self, level: int, end: QueueOffset, *, now: Millis) -> None:
        """Note that the queue of a level has grown up to `end`."""
        step = max(1, min(delay_of(level) // 1_000, MAX_STEP_MS))
        rounded = Millis(-(-now // step) * step)
        ends, times = self._ends.setdefault(level, []), self._times.setdefault(level, [])
        if times and times[-1] == rounded:
            ends[-1] = end
        else:
            ends.append(end)
            times.append(rounded)

    def end(self, level: int) -> QueueOffset:
        """The offset after the last message of a level that was noted; `due_at` knows the messages below."""
        ends = self._ends.get(level)
        return ends[-1] if ends else self._old_ends.get(level, QueueOffset(0))

    def due_at(self, level: int, offset: QueueOffset, store_timestamp: Millis) -> Millis:
        """The monotonic time at which a stored message is due."""
        delay = delay_of(level)
        if offset < self._old_ends.get(level, 0):
            remaining = store_timestamp + delay - self._start_wall
            return Millis(self._start + max(0, min(remaining, delay)))
        return Millis(self._times[level][bisect_right(self._ends[level], offset)] + delay)

    def forget(self, level: int, offset: QueueOffset) -> None:
        """Forget the times of the messages below an offset, which were delivered."""
        ends = self._ends.get(level)
        if ends and ends[0] <= offset:
            passed = min(bisect_right(ends, offset), len(ends) - 1)  # `end` needs the last one
            del ends[:passed], self._times[level][:passed]


class DelayQueueCursors:
    """The next offset to deliver of each level. Cursors only move forward.

    They are saved after the delivery is on disk: a crash in between repeats a message and loses none.
    """

    def __init__(self) -> None:
        self._next: dict[int, QueueOffset] = {}
        self._dirty: set[int] = set()

    def next_offset(self, level: int) -> QueueOffset:
        return self._next.get(_existing(level), QueueOffset(0))

    def advance(self, level: int, offset: QueueOffset) -> None:
        """Move forward to an offset; a cursor past it stays where it is."""
        if offset > self.next_offset(level):
            self._next[level] = offset
            self._dirty.add(level)

    def dirty(self) -> Mapping[int, QueueOffset]:
        """The cursors that are not `saved` yet: level → next offset."""
        return {level: self._next[level] for level in sorted(self._dirty)}

    def saved(self, cursors: Mapping[int, QueueOffset]) -> None:
        """Mark cursors as saved. Those that moved while they were written stay dirty."""
        self._dirty.difference_update(level for level, offset in cursors.items() if self._next[level] == offset)

    def restore(self, cursors: Iterable[tuple[int, QueueOffset]]) -> None:
        self._next.update((_existing(level), offset) for level, offset in cursors)


def _existing(level: int) -> int:
    if not 1 <= level <= MAX_LEVEL:
        raise ValueError(f"delay level {level} does not exist: use 1 to {MAX_LEVEL}")
    return level
