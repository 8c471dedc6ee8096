"""Event time: when events happened, and how far a shard has come in it (its watermark).

The watermark of a queue is the highest event time that was read from it, less the lateness that is allowed. A key is in
one queue, so with `shards="queue"` the watermark of its queue counts for its timers. Where keys are in several queues,
with `shards=<number>`, it is the minimum over the queues.

An idle queue brings no events, so its own time does not move. It does not hold back the minimum, and its keys continue
with the minimum of the others. If all queues are idle, event time continues with the wall clock.

Invariants:
- A watermark never goes back, and what a unit of work takes from other queues is recorded before it runs.
- With `shards="queue"` the watermark of a queue that is not idle depends on its messages only, so which events and
  timers a key is given, and in which order, does not depend on where batches end.
- A queue is idle only if this run has seen it read to its end for all of `idle_after`. A pipeline that was down for a
  night first reads what came in.
- An event moves the watermark at most to its store time: one wrong clock far in the future does not make everything
  after it late.
"""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, Literal, NamedTuple, TypeAlias

from lanemq.clock import wall_ms
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Seconds, to_millis, to_seconds
from lanemq.pipelines.stages.transitions.messages import Event

TimeOf: TypeAlias = Callable[[Event], "datetime | int | str"]
"""A function of the event that returns its time: a datetime with a time zone, ISO 8601 text with one, or milliseconds
since 1970."""

_MAX: Final = 253_402_300_800_000
"""The year 10000, in milliseconds since 1970."""


@dataclass(frozen=True, slots=True)
class EventTime:
    """How a stage knows when events happened."""

    of: str | TimeOf | None = None
    """The field of the value that has the time, or a function of the event. None: the time at which the broker stored
    the event, which never goes back within a queue. A time is a datetime or ISO 8601 text with a time zone, or
    milliseconds since 1970."""
    lateness: Seconds = 0.0
    """Seconds by which an event may be behind others of its queue without being late. Too low: events are late. Too
    high: timers in event time are called late."""
    idle_after: Seconds | None = 60.0
    """Seconds for which a queue must have been read to its end before it counts as idle. Too short: after a pause of
    its producers, events are late. Too long: timers of its keys are called late. None: never, so a silent queue
    holds its timers."""
    on_late: Literal["deliver", "dead_letter"] = "deliver"
    """What happens to an event that is behind the watermark: the step gets it with `context.is_late`, or it becomes a
    dead letter."""

    def __post_init__(self) -> None:
        if self.of is not None and not callable(self.of) and not isinstance(self.of, str):
            raise InvalidOption(f"EventTime(of={self.of!r}): use the name of a field, or a function of the event")
        if to_seconds(self.lateness) < 0:
            raise InvalidOption(f"EventTime(lateness={self.lateness}): use 0 seconds or more")
        if self.idle_after is not None and to_seconds(self.idle_after) <= 0:
            raise InvalidOption(f"EventTime(idle_after={self.idle_after}): use more than 0 seconds, or None for never")
        if self.on_late not in ("deliver", "dead_letter"):
            raise InvalidOption(f"EventTime(on_late={self.on_late!r}): use 'deliver' or 'dead_letter'")

    @property
    def lateness_ms(self) -> int:
        """`lateness` in milliseconds."""
        return to_millis(self.lateness)

    def reader(self) -> Callable[[Event], int]:
        """The function that reads an event's time in milliseconds since 1970. It raises if there is none."""
        of = self.of
        if of is None:
            return _stored
        if callable(of):
            return lambda event: _millis("event_time", of(event))

        def field(event: Event) -> int:
            value = event.value
            return _millis(of, value[of] if isinstance(value, Mapping) else getattr(value, of))

        return field


def _stored(event: Event) -> int:
    return event.stored_ms


def _millis(name: str, found: Any) -> int:
    if isinstance(found, str):
        found = datetime.fromisoformat(found)
    if isinstance(found, datetime):
        if found.tzinfo is None:
            raise ValueError(f"{name} is {found}, a time without a time zone")
        found = int(wall_ms(found))
    if type(found) is not int or not 0 <= found < _MAX:
        raise TypeError(f"{name} is {found!r:.100}, not a datetime, ISO 8601 text or milliseconds since 1970")
    return found


def moved(watermark: int, event_time: int, stored: int, lateness: int) -> int:
    """The watermark of a queue after an event."""
    return max(watermark, min(event_time, stored) - lateness)


class QueueTime(NamedTuple):
    """How far event time has come in one queue."""

    newest: int
    """The highest event time that was read, milliseconds."""
    read_at: int
    """Wall time of the unit of work that read it, milliseconds."""


def common_watermark(
    times: Mapping[str, QueueTime], queues: Collection[str], idle: Collection[str], lateness: int, wall: int
) -> int:
    """How far event time has come in all queues; 0 if a queue that is not idle has brought no event yet.

    `queues`: all that are known, `idle`: those of them that are idle.
    """
    active = [queue for queue in queues if queue not in idle]
    if active:
        return min(times[queue].newest for queue in active) - lateness if times.keys() >= {*active} else 0
    return max((each.newest + max(0, wall - each.read_at) for each in times.values()), default=0) - lateness


class IdleQueues:
    """The queues that were read to their ends for a while, by what the driver observes in this run."""

    def __init__(self, idle_after: int) -> None:
        self._idle_after = idle_after
        self._since: dict[str, tuple[int, int]] = {}
        """By queue that is read to its end: its position, and since when that was observed."""
        self.queues: frozenset[str] = frozenset()
        """All queues of the last observation."""
        self.idle: frozenset[str] = frozenset()

    def observe(self, positions: Mapping[str, int | None], now: int) -> None:
        """Takes the position of every queue that is read to its end, and None for others. `now` never goes back."""
        before, self._since = self._since, {}
        for queue, position in positions.items():
            if position is not None:
                known = before.get(queue)
                self._since[queue] = known if known is not None and known[0] == position else (position, now)
        self.queues = frozenset(positions)
        self.idle = frozenset(q for q, (_, since) in self._since.items() if now - since >= self._idle_after)
