"""The lanes of a shard while a unit of work runs: events are applied, timers called, states expire.

Invariants:
- An event changes its key and adds its rows together, or does neither. The state is encoded right after the step; if
  the step changed it and then failed, the lane is decoded again from its bytes.
- Time is what the shard's messages say (their store times), so a repeated unit forgets the same keys.
- A number is forgotten later than its state or not at all: without it a key that comes back would wait for numbers that
  were applied long ago.
"""

import logging
from collections import Counter
from typing import Any, Final

import msgspec

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.stages.transitions.messages import Event
from lanemq.pipelines.stages.transitions.rules import (
    BehindWatermark,
    Early,
    Late,
    Rules,
    UnfitState,
)
from lanemq.pipelines.stages.transitions.shard import (
    KeyLane,
    RawLane,
    Shard,
    all_plain,
    key_of,
    read_raw,
    reads_back_as,
)
from lanemq.pipelines.stages.transitions.timers import (
    NO_TIMERS,
    PendingTimer,
    StepContext,
    Timer,
    TimerIndex,
    due_of,
    takes_context,
)

_log = logging.getLogger(__name__)

_SWEEPS: Final = 16
"""How often all keys are examined within the time after which one is forgotten."""

_NONE: Final = b"\xc0"
"""The encoded state None."""


class LaneTable:
    """Lanes by name, and what their events have produced so far."""

    def __init__(
        self, lanes: dict[str, bytes], rules: Rules, timers: TimerIndex, wall: int = 0, watermark: int = 0
    ) -> None:
        self.lanes = lanes
        self.timers = timers
        self.wall = wall
        """Wall time of the unit of work, milliseconds."""
        self.watermark = watermark
        """Event time has come this far, milliseconds."""
        self.loaded: dict[str, KeyLane] = {}
        """Every lane that this unit touched."""
        self.outputs: list[tuple[Any, ...]] = []
        self.applied = 0
        self.grown = 0
        """Bytes by which the lanes have grown."""
        self.counts: Counter[str] = Counter()
        self.late: list[tuple[str, str, int, int]] = []
        """Topic, broker, queue and offset of redriven dead letters that were applied."""
        self._rules = rules
        self._span = rules.limits.expire_after_ms
        self._on_timer_takes_context = rules.on_timer is not None and takes_context(rules.on_timer)
        self._checked: set[type] = {type(None)}

    def apply(self, name: str, lane: KeyLane, event: Event, event_time: int = 0, watermark: int = 0) -> None:
        """Applies the next event of a lane. Raises what the user's code raises; the caller then calls `restore`.

        `event_time`, `watermark`: of the event, if the step takes a context.
        """
        rules, number = self._rules, None
        if rules.number is not None and not event.late:
            number = self._number_if_next(lane, event)
            if number is None:
                self.counts["repeats"] += 1
                return
        if self._span is not None and self._has_expired(lane, event.stored_ms):
            self._expire(name, lane)
        if number is not None:
            lane.advance_to(number, rules.first_number)
        if rules.timed:
            made = self._step_with_context(lane, event, event_time, watermark)
        else:
            state, rows = rules.step(lane.state, event)  # type: ignore[call-arg]
            made = [rules.shape(row) for row in rows] if rows else []
            lane.state = state
        if event.stored_ms > lane.seen:
            lane.seen = event.stored_ms
        self.save(name, lane)
        if made:
            self.outputs += made
        self.applied += 1

    def _step_with_context(self, lane: KeyLane, event: Event, event_time: int, watermark: int) -> list[tuple[Any, ...]]:
        rules = self._rules
        context = StepContext(self.wall, event_time, watermark, lane.timers, allowed=rules.on_timer is not None)
        if context.is_late and not event.late and rules.event_time.on_late == "dead_letter":
            raise BehindWatermark(f"its time is {context.event_time}, and event time has come to {context.watermark}")
        state, rows = rules.step(lane.state, event, context)  # type: ignore[call-arg]
        made = [rules.shape(row) for row in rows] if rows else []
        lane.state, lane.timers = state, context.kept(has_state=state is not None)
        return made

    def call_timer(self, name: str, lane: KeyLane, timer: PendingTimer, attempt: int) -> None:
        """Calls `on_timer` for a timer of a lane that is due. Raises what the user's code raises, like `apply`."""
        rules = self._rules
        handler: Any = rules.on_timer
        if handler is None:
            raise InvalidOption(f"timer {timer.name!r} is due, and the stage has no on_timer: give it again")
        event_time = timer.due if timer.clock == "event" else self.watermark or lane.seen
        context = StepContext(
            self.wall, event_time, max(self.watermark, event_time), lane.without_timer(timer), fired=timer
        )
        due = Timer(key_of(name), timer.name, timer.due, timer.clock, attempt)
        state, rows = handler(lane.state, due, context) if self._on_timer_takes_context else handler(lane.state, due)
        made = [rules.shape(row) for row in rows] if rows else []
        lane.state, lane.timers = state, context.kept(has_state=state is not None)
        self.save(name, lane)
        self.outputs += made
        self.counts["timers"] += 1

    def _number_if_next(self, lane: KeyLane, event: Event) -> int | None:
        """The event's number; None if it is a repeat. Raises `Early` or `Late` if it is not the lane's next event."""
        assert self._rules.number is not None
        number = self._rules.number(event)
        if lane.number is not None and number <= lane.number:
            if lane.has_missed(number):
                raise Late(number, lane.number, doubtful=lane.is_doubtful(number))
            return None
        expected = self._rules.first_number if lane.number is None else lane.number + 1
        if expected is not None and number > expected:
            if self._rules.on_gap != "report":
                raise Early(number, expected)
            self.counts["gaps"] += number - expected
        return number

    def save(self, name: str, lane: KeyLane) -> None:
        """Encodes the lane; removes it if there is nothing to remember."""
        if lane.timers or name in self.timers:
            self.timers.set(name, due_of(lane.timers) if lane.waiting is None else NO_TIMERS)
        if lane.state is None and lane.number is None and lane.waiting is None and not lane.timers:
            self.grown -= len(self.lanes.pop(name, b""))
            return
        packed = self._rules.codec.encode(lane)
        self.grown += len(packed) - len(self.lanes.get(name, b""))
        self.lanes[name] = packed
        if type(lane.state) not in self._checked:
            self._check_state(name, lane.state, packed)

    def restore(self, name: str) -> KeyLane:
        """Decodes the lane from its bytes."""
        packed = self.lanes.get(name)
        lane = self.loaded[name] = KeyLane() if packed is None else self._rules.codec.decode(packed)
        return lane

    def see(self, name: str, lane: KeyLane, stored: int) -> None:
        """Records a message of the key that is settled without being applied.

        It keeps a state from expiring, but does not revive an expired one: that is forgotten now, or stays expired if
        messages wait in the lane.
        """
        if self._has_expired(lane, stored):
            if lane.waiting is not None:
                return
            self._expire(name, lane)
        lane.see(stored)

    def check_states(self) -> None:
        """Checks every state that this unit leaves: two states of one type may differ in what they contain."""
        if not self._rules.codec.typed and all_plain(lane.state for lane in self.loaded.values()):
            return
        for name, lane in self.loaded.items():
            if lane.state is not None and name in self.lanes:
                self._check_state(name, lane.state, self.lanes[name])

    def _has_expired(self, lane: KeyLane, stored: int) -> bool:
        """Whether a state had expired when a message came, whether or not it was swept since.

        What a step is given must not depend on where batches end.
        """
        return (
            self._span is not None and lane.state is not None and stored - lane.seen >= self._span and not lane.timers
        )

    def _expire(self, name: str, lane: KeyLane) -> None:
        """Forgets the state and saves the lane at once, so that a failing message does not bring the state back."""
        lane.state = None
        self.save(name, lane)
        self.counts["expired"] += 1

    def _check_state(self, name: str, state: object, packed: bytes) -> None:
        """Refuses a state that the next batch would read differently."""
        try:
            again = self._rules.codec.read_back(packed)
        except msgspec.MsgspecError as error:
            raise UnfitState(
                f"key {name!r}: the step returned a state ({state!r:.100}) that cannot be read back as its "
                f"state_type: {error}"
            ) from error
        if not reads_back_as(state, again):
            raise UnfitState(
                f"key {name!r}: the step returned a state of type {type(state).__name__} ({state!r:.100}) that is read "
                f"back as {again!r:.100}: use dicts, lists, texts, numbers and booleans, or give state_type=..."
            )
        self._checked.add(type(state))


class Expiry:
    """Forgets the keys of a shard that were silent for too long, at the end of a unit of work."""

    def __init__(self, shard: Shard, table: LaneTable, rules: Rules) -> None:
        self._shard, self._table, self._rules = shard, table, rules
        self._span, self._numbers = rules.limits.expire_after_ms, rules.limits.forget_numbers_after_ms

    def sweep(self) -> list[str]:
        """Returns the keys that were changed. Skips lanes in which messages wait: these are still to be applied."""
        meta = self._shard.meta
        spans = [span for span in (self._span, self._numbers) if span is not None]
        if not spans or meta.newest - meta.swept < max(min(spans) // _SWEEPS, 1):
            return []
        meta.swept = meta.newest
        return [
            name
            for name, packed in list(self._shard.lanes.items())
            if name not in meta.waiting and self._examine(name, packed)
        ]

    def _examine(self, name: str, packed: bytes) -> bool:
        """Whether the key was changed."""
        lane = read_raw(packed)
        if lane.timers:
            return False
        silent = self._shard.meta.newest - lane.seen
        if bytes(lane.state) == _NONE:
            return self._forget(name, lane, silent)
        if self._span is None or silent < self._span:
            return False
        self._table.counts["expired"] += 1
        if not self._forget(name, lane, silent):
            self._table.save(name, KeyLane(None, lane.number, lane.seen, None, lane.missed, lane.queue, lane.doubtful))
        return True

    def _forget(self, name: str, lane: RawLane, silent: int) -> bool:
        """Removes a key without state unless its number is still needed."""
        numbered = self._rules.number is not None and lane.number is not None
        if numbered and (self._numbers is None or silent < self._numbers):
            return False
        self._table.counts["forgotten_numbers"] += numbered
        self._table.save(name, KeyLane())
        return True
