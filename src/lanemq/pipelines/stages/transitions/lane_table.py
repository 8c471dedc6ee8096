"""The lanes of a shard while a unit of work runs: decoded when first touched, their bytes always the last good state.

The rule guarded here: an event changes its key and adds its rows together, or does neither. The state is encoded
right behind the step; a step that changed it and then failed is undone by reading the bytes again.
"""

import logging
from collections import Counter
from typing import Any

import msgspec

from lanemq.pipelines.stages.transitions.error_text import words_of
from lanemq.pipelines.stages.transitions.event import Event
from lanemq.pipelines.stages.transitions.lane import Lane, all_plain, comes_back
from lanemq.pipelines.stages.transitions.rules import Early, LastWordsFailed, Late, Rules, UnfitState
from lanemq.pipelines.stages.transitions.shard import key_of

_log = logging.getLogger(__name__)


class LaneTable:
    """Lanes by name, and what their events have made so far."""

    def __init__(self, lanes: dict[str, bytes], rules: Rules) -> None:
        self.lanes = lanes
        self.hot: dict[str, Lane] = {}
        """Every lane that this unit touched."""
        self.outputs: list[tuple[Any, ...]] = []
        self.applied = 0
        self.grown = 0
        """Bytes that the lanes have become larger."""
        self.counts: Counter[str] = Counter()
        self.late: list[tuple[str, int, int]] = []
        """Topic, queue and offset of redriven letters that were applied."""
        self._rules = rules
        self._span = rules.limits.expire_after_ms
        self._proven: set[type] = {type(None)}
        self._unsaid: set[str] = set()
        """Keys whose `on_expire` failed."""

    def apply(self, name: str, lane: Lane, event: Event) -> None:
        """One event whose turn it is. Raises what the user's code raises; then `restore` before anything else."""
        rules, number = self._rules, None
        if rules.number is not None and not event.late:
            number = self._turn(lane, event)
            if number is None:
                self.counts["repeats"] += 1
                return
        if self._span is not None and self._is_over(lane, event.stored):
            self._expire(name, lane)
        if number is not None:
            lane.reach(number, rules.first_number)
        state, rows = rules.step(lane.state, event)
        made = [rules.shape(row) for row in rows] if rows else ()
        lane.state = state
        if event.stored > lane.seen:
            lane.seen = event.stored
        self.save(name, lane)
        if made:
            self.outputs += made
        self.applied += 1

    def save(self, name: str, lane: Lane) -> None:
        """The lane's bytes become what it is now; a lane with nothing to remember is forgotten."""
        if lane.state is None and lane.number is None and lane.waiting is None:
            self.grown -= len(self.lanes.pop(name, b""))
            return
        packed = self._rules.codec.encode(lane)
        self.grown += len(packed) - len(self.lanes.get(name, b""))
        self.lanes[name] = packed
        if type(lane.state) not in self._proven:
            self._prove(name, lane.state, packed)

    def restore(self, name: str) -> Lane:
        """The lane as its bytes say."""
        packed = self.lanes.get(name)
        lane = self.hot[name] = Lane() if packed is None else self._rules.codec.decode(packed)
        return lane

    def see(self, name: str, lane: Lane, stored: int) -> None:
        """A message of the key is settled without being applied. It keeps a state alive, and brings none back to life:
        one whose time was over goes now, or stays as it is if its last words fail or if messages wait for it.
        """
        if self._is_over(lane, stored):
            if lane.waiting is not None:
                return
            try:
                self._expire(name, lane)
            except LastWordsFailed:
                lane.state = self._rules.codec.decode(self.lanes[name]).state
                return
        lane.see(stored)

    def say_last(self, name: str, state: object) -> Exception | None:
        """Adds what the user says about a state that goes; or gives what went wrong, and then the state has to stay."""
        if self._rules.on_expire is None:
            return None
        try:
            rows = [self._rules.shape(row) for row in self._rules.on_expire(state, key_of(name)) or ()]
        except Exception as error:  # noqa: BLE001 - the user's code
            if not self._unsaid:
                _log.warning("on_expire of key %r failed, its state stays: %s", name, words_of(error))
            self._unsaid.add(name)
            self.counts["expire_failed"] = len(self._unsaid)
            return error
        self.outputs += rows
        return None

    def _is_over(self, lane: Lane, stored: int) -> bool:
        """Whether a state's time was over before a message came, whether or not anybody has looked since: what a step
        is given must not depend on where batches end.
        """
        return self._span is not None and lane.state is not None and stored - lane.seen >= self._span

    def _expire(self, name: str, lane: Lane) -> None:
        """Saved at once: whatever becomes of the message, the state is gone and its last words are said."""
        failed = self.say_last(name, lane.state)
        if failed is not None:
            raise LastWordsFailed(
                f"the key's state is over and on_expire failed for it: {type(failed).__name__}: {words_of(failed)}"
            ) from failed
        lane.state = None
        self.save(name, lane)
        self.counts["expired"] += 1

    def prove_all(self) -> None:
        """Every state that this unit leaves: of two states of one type, the second may hold what does not come back."""
        if not self._rules.codec.typed and all_plain(lane.state for lane in self.hot.values()):
            return
        for name, lane in self.hot.items():
            if lane.state is not None and name in self.lanes:
                self._prove(name, lane.state, self.lanes[name])

    def _prove(self, name: str, state: object, packed: bytes) -> None:
        """A state must be the same in the next batch as in this one, or a step works by chance."""
        try:
            again = self._rules.codec.decode(packed).state
        except msgspec.MsgspecError as error:
            raise UnfitState(
                f"key {name!r}: the step gave a state ({state!r:.100}) that cannot be read again as its state_type: "
                f"{error}"
            ) from error
        if not comes_back(state, again):
            raise UnfitState(
                f"key {name!r}: the step gave a state of type {type(state).__name__} ({state!r:.100}) that is read "
                f"again as {again!r:.100}: use dicts, lists, texts, numbers and booleans, or say state_type=..."
            )
        self._proven.add(type(state))

    def _turn(self, lane: Lane, event: Event) -> int | None:
        """The user's number, if it says that it is this event's turn; None: it was seen."""
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
