"""Timers of keys: what a step may ask for, what is stored in the key's lane, and which keys are due.

A timer belongs to a key and has a name. It is due by one of two clocks:

- `event`: the event time of the key's queue (`event_time.py`). A replay of the same messages gives the same answers.
- `processing`: the wall time of the unit of work. It is recorded before the unit runs, and does not move while it runs.

Invariants:
- What a call asks for counts only if the call succeeds: its timers are stored with its state.
- A key with timers that are due is found without reading the lanes of other keys (`TimerIndex`). A lane that is held or
  parked is not in the index: its timers wait until it continues.
- A timer that the handler of a timer sets is due later, so a unit of work ends.
"""

import inspect
from collections.abc import Callable, Iterable, Mapping
from datetime import datetime
from heapq import heapify, heappop, heappush
from typing import Any, Final, Literal, TypeAlias

import msgspec

from lanemq.clock import wall_ms, wall_time
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Seconds, to_millis

TimerClock: TypeAlias = Literal["event", "processing"]
CLOCKS: Final = ("event", "processing")

MAX_TIMERS_PER_KEY: Final = 1_000
"""Timers that one key may have at once. They are part of its lane, which is written whole."""

_END_OF_TIME: Final = 253_402_300_800_000
_UNUSED: Final = 64
"""Entries that the index may keep for timers that are gone before it is built again."""


class PendingTimer(msgspec.Struct, array_like=True, frozen=True, order=True, gc=False):
    """A timer as it is stored in its key's lane."""

    due: int
    """Milliseconds since 1970, by its clock."""
    name: str
    clock: TimerClock


class Timer(msgspec.Struct, frozen=True, gc=False):
    """A timer that is due, as `on_timer` sees it."""

    key: str | None
    """Never None: a message without a key is a dead letter."""
    name: str
    due_ms: int
    """When it was due, in milliseconds since 1970. It may be called later, never earlier."""
    clock: TimerClock
    attempt: int
    """1, and one more after each time `on_timer` failed on it."""

    @property
    def due_at(self) -> datetime:
        """When it was due."""
        return wall_time(self.due_ms)


class StepContext:
    """What a call of a step or of `on_timer` knows beside its state and its event, and the timers of its key.

    Made for one call. What it is asked for counts if the call returns, and is dropped if it raises.
    """

    __slots__ = ("_allowed", "_fired", "_set", "_timers", "event_time_ms", "now_ms", "watermark_ms")

    def __init__(
        self,
        now: int,
        event_time: int,
        watermark: int,
        timers: Iterable[PendingTimer] = (),
        *,
        allowed: bool = True,
        fired: PendingTimer | None = None,
    ) -> None:
        """`allowed`: whether the stage has `on_timer`. `fired`: the timer that this call concerns."""
        self.now_ms = now
        """`now` in milliseconds since 1970."""
        self.event_time_ms = event_time
        """`event_time` in milliseconds since 1970."""
        self.watermark_ms = watermark
        """`watermark` in milliseconds since 1970; 0 if it is unknown."""
        self._timers = {timer.name: timer for timer in timers}
        self._set: set[str] = set()
        self._allowed = allowed
        self._fired = fired

    @property
    def now(self) -> datetime:
        """Processing time: the wall time of the batch or retry pass, the same for all its events and if it is repeated.

        Use it instead of the machine's clock, which gives other answers in a repeated batch.
        """
        return wall_time(self.now_ms)

    @property
    def event_time(self) -> datetime:
        """The event's time as `EventTime` reads it; for a timer in event time, when it was due."""
        return wall_time(self.event_time_ms)

    @property
    def watermark(self) -> datetime | None:
        """Event time has reached this point for the key; None while it is unknown."""
        return wall_time(self.watermark_ms) if self.watermark_ms > 0 else None

    @property
    def is_late(self) -> bool:
        """Whether the event's time lies before the watermark, so that timers due after it may have been called."""
        return self.event_time_ms < self.watermark_ms

    @property
    def timers(self) -> Mapping[str, datetime]:
        """The timers of the key by name, with the time at which each is due."""
        return {name: wall_time(timer.due) for name, timer in self._timers.items()}

    def set_timer(
        self, name: str, *, at: datetime | None = None, after: Seconds | None = None, clock: TimerClock = "event"
    ) -> None:
        """Sets a timer of the key; one with the same name is replaced.

        Args:
            name: The name, by which `on_timer` recognises the timer and `cancel_timer` finds it.
            at: When it is due.
            after: Seconds from `event_time`, or from `now` with `clock="processing"`, instead of `at`.
            clock: "event": due when event time reaches it. "processing": due when the wall clock does.
        """
        if not self._allowed:
            raise InvalidOption(f"set_timer({name!r}): the stage has no on_timer, which is called when it is due")
        if not isinstance(name, str) or not name:
            raise InvalidOption(f"set_timer({name!r}): a timer has a name, which is a text")
        if clock not in CLOCKS:
            raise InvalidOption(f"set_timer({name!r}, clock={clock!r}): use 'event' or 'processing'")
        self._keep(PendingTimer(self._due(name, at, after, clock), name, clock))

    def cancel_timer(self, name: str) -> bool:
        """Removes a timer of the key. Returns whether there was one."""
        self._set.discard(name)
        return self._timers.pop(name, None) is not None

    def _due(self, name: str, at: datetime | None, after: Seconds | None, clock: TimerClock) -> int:
        if (at is None) == (after is None):
            raise InvalidOption(f"set_timer({name!r}): give at= or after=, and not both")
        if at is not None and at.tzinfo is None:
            raise InvalidOption(f"set_timer({name!r}, at={at}): the time has no time zone; use UTC, for example")
        begin = self.now_ms if clock == "processing" else self.event_time_ms
        due = wall_ms(at) if at is not None else begin + to_millis(after)  # type: ignore[arg-type]
        if not 0 <= due < _END_OF_TIME:
            raise InvalidOption(f"set_timer({name!r}): it would be due before 1970 or after the year 9999")
        if clock == "processing":
            return max(due, self.now_ms + 1)  # processing time does not move until the next unit of work
        fired = self._fired
        if fired is not None and fired.clock == "event" and due <= fired.due:
            raise InvalidOption(
                f"set_timer({name!r}) in on_timer: it would be due at {wall_time(due)}, not later than the timer "
                f"{fired.name!r} that is being handled, and on_timer would be called without end"
            )
        return due

    def _keep(self, timer: PendingTimer) -> None:
        self._timers[timer.name] = timer
        self._set.add(timer.name)
        if len(self._timers) > MAX_TIMERS_PER_KEY:
            raise InvalidOption(f"set_timer({timer.name!r}): a key may have {MAX_TIMERS_PER_KEY} timers at once")

    def kept(self, *, has_state: bool) -> tuple[PendingTimer, ...]:
        """The timers after the call, the earliest first. A key that ended keeps only those that this call set."""
        timers = self._timers.values()
        return tuple(sorted(timers if has_state else (each for each in timers if each.name in self._set)))


def first_due(timers: Iterable[PendingTimer], watermark: int, wall: int) -> PendingTimer | None:
    """The timer to call next: the earliest of those that are due by their clocks."""
    return min(
        (each for each in timers if each.due <= (watermark if each.clock == "event" else wall)),
        default=None,
    )


def takes_context(function: Callable[..., Any]) -> bool:
    """Whether a step or `on_timer` is to be given a `StepContext` as its third argument.

    It is if the third parameter has no default or is called `context`. Others have a default to bind a value.
    """
    try:
        found = list(inspect.signature(function).parameters.values())
    except (TypeError, ValueError):  # some functions in C have no signature
        return False
    positional = [each for each in found if each.kind in (each.POSITIONAL_ONLY, each.POSITIONAL_OR_KEYWORD)]
    return len(positional) > 2 and (positional[2].default is positional[2].empty or positional[2].name == "context")


Due: TypeAlias = tuple[int | None, int | None]
"""When the first timer of a key is due in event time and in processing time; None if there is none."""
NO_TIMERS: Final[Due] = (None, None)


def due_of(timers: Iterable[PendingTimer]) -> Due:
    """When the first timers of a lane are due."""
    first: dict[str, int] = {}
    for each in timers:
        first[each.clock] = min(each.due, first.get(each.clock, each.due))
    return first.get("event"), first.get("processing")


class TimerIndex:
    """The keys of a shard that have timers, by the time at which their first one is due.

    Two heaps whose entries may be out of date; the table of keys says which ones count.
    """

    def __init__(self) -> None:
        self.keys: dict[str, Due] = {}
        self._heaps: tuple[list[tuple[int, str]], list[tuple[int, str]]] = ([], [])

    def __len__(self) -> int:
        return len(self.keys)

    def __contains__(self, name: str) -> bool:
        return name in self.keys

    def set(self, name: str, due: Due) -> None:
        """Records when the key's first timers are due; removes the key if it has none."""
        before = self.keys.get(name)
        if due == NO_TIMERS:
            self.keys.pop(name, None)
            return
        self.keys[name] = due
        for clock, heap in enumerate(self._heaps):
            at = due[clock]
            if at is not None and (before is None or before[clock] != at):
                heappush(heap, (at, name))
                if len(heap) > 2 * len(self.keys) + _UNUSED:
                    heap[:] = [(found[clock], each) for each, found in self.keys.items() if found[clock] is not None]  # type: ignore[misc]
                    heapify(heap)

    def first(self, clock: TimerClock) -> tuple[int, str] | None:
        """When the first timer by this clock is due, and its key; None if there is none."""
        at = CLOCKS.index(clock)
        heap = self._heaps[at]
        while heap:
            due, name = heap[0]
            if self.keys.get(name, NO_TIMERS)[at] == due:
                return heap[0]
            heappop(heap)
        return None

    def next_due(self, clock: TimerClock) -> int | None:
        """When the first timer by this clock is due; None if there is none."""
        found = self.first(clock)
        return None if found is None else found[0]

    def due_key(self, watermark: int, wall: int) -> str | None:
        """A key with a timer that is due; event time comes first."""
        for clock, reached in (("event", watermark), ("processing", wall)):
            found = self.first(clock)  # type: ignore[arg-type]
            if found is not None and found[0] <= reached:
                return found[1]
        return None
