"""Event time: when events happened, and how far a shard has come in it (its watermark).

The watermark of a queue is the highest event time that was read from it, less the lateness that is allowed. A key is in
one queue, so with `shards="queue"` the watermark of its queue counts for its timers. Where keys are in several queues,
with `shards=<number>`, it is the minimum over the queues.

Invariants:
- A watermark never goes back.
- With `shards="queue"` it depends on the messages only, so which events and timers a key is given, and in which order,
  does not depend on where batches end.
- An event moves the watermark at most to its store time: one wrong clock far in the future does not make everything
  after it late.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, TypeAlias

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

    def __post_init__(self) -> None:
        if self.of is not None and not callable(self.of) and not isinstance(self.of, str):
            raise InvalidOption(f"EventTime(of={self.of!r}): use the name of a field, or a function of the event")
        if to_seconds(self.lateness) < 0:
            raise InvalidOption(f"EventTime(lateness={self.lateness}): use 0 seconds or more")

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
