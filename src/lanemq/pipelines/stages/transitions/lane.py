"""One key's state in a shard, and its bytes.

The rule guarded here: a lane's bytes are its last good state. They are written after every event that succeeded, so
a step that changed the state it was given and then failed has changed nothing: the lane is read again from its bytes.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import Any, Final

import msgspec

from lanemq.pipelines.stages.transitions.event import Message

MOST_MISSED: Final = 32
"""Stretches of missing numbers that a key remembers: they are part of its state."""


class Why(StrEnum):
    """Why a lane stands still."""

    HELD = "held"
    """After a failure; tried again when its time comes."""
    PARKED = "parked"
    """After its retries; a person decides."""
    GAP = "gap"
    """A number of the key is missing; goes on by itself when it comes."""


class Waiting(msgspec.Struct, array_like=True):
    """What stands in a stopped lane."""

    why: Why
    reason: str
    since: int
    """Wall time of the unit of work in which it stopped, milliseconds."""
    failures: int
    """Of the first message, since it began or was last redriven."""
    retry_at: int
    """Wall time, milliseconds; only for `HELD`."""
    messages: list[Message]
    """In the order of their arrival; the first one is what failed, unless a number is missing."""
    numbers: list[int | None]
    """The user's sequence of each message; None where it is not known (no sequence, or cannot be decoded)."""


class Lane(msgspec.Struct, array_like=True):
    """One key. `state` is the user's."""

    state: Any = None
    number: int | None = None
    """The highest of the user's sequence that was applied."""
    seen: int = 0
    """Store time of the newest message, milliseconds."""
    waiting: Waiting | None = None
    missed: tuple[tuple[int, int], ...] = ()
    """Numbers that the key went on without, as first and last of each stretch; what is not here was settled."""
    home: int | None = None
    """The key's queue, by its place in the shard's `homes`; None where it does not matter."""
    doubtful: int | None = None
    """Up to this number `missed` also has numbers that were settled: stretches were joined there."""

    def see(self, stored: int) -> None:
        """A message of the key came, whatever becomes of it."""
        if stored > self.seen:
            self.seen = stored

    def is_past(self, number: int) -> bool:
        """Whether the key has gone on to this number or beyond. 0 and negative numbers are numbers as well."""
        return self.number is not None and number <= self.number

    def reach(self, number: int, first_number: int | None) -> None:
        """Goes on with a number; those between it and the last one are missed from now on."""
        expected = first_number if self.number is None else self.number + 1
        if expected is not None and number > expected:
            self._remember([*self.missed, (expected, number - 1)])
        self.number = number

    def settle_missed(self, number: int) -> None:
        """The number has come after all."""
        left: list[tuple[int, int]] = []
        for first, last in self.missed:
            parts = [(first, last)] if not first <= number <= last else [(first, number - 1), (number + 1, last)]
            left += [part for part in parts if part[0] <= part[1]]
        self._remember(left)

    def has_missed(self, number: int) -> bool:
        return any(first <= number <= last for first, last in self.missed)

    def is_doubtful(self, number: int) -> bool:
        """Whether a number that was missed may as well have been settled."""
        return self.doubtful is not None and number <= self.doubtful

    def _remember(self, missed: list[tuple[int, int]]) -> None:
        """Too many stretches: the oldest two become one with what is between them. A repeat may then be told as late,
        which `doubtful` says, but nothing that is late as a repeat.
        """
        while len(missed) > MOST_MISSED:
            missed[:2] = [(missed[0][0], missed[1][1])]
            self.doubtful = max(missed[0][1], missed[0][1] if self.doubtful is None else self.doubtful)
        self.missed = tuple(missed)


class RawLane(msgspec.Struct, array_like=True):
    """A lane without reading the user's state: for sweeping and listing."""

    state: msgspec.Raw
    number: int | None
    seen: int
    waiting: Waiting | None = None
    missed: tuple[tuple[int, int], ...] = ()
    home: int | None = None
    doubtful: int | None = None


class LaneCodec:
    """Lanes to bytes and back, with the user's state as plain values or as `state_type`."""

    def __init__(self, state_type: Any = None) -> None:
        encoder = msgspec.msgpack.Encoder()
        self.encode: Callable[[Lane], bytes] = encoder.encode
        self._lane: Callable[[bytes], Lane] = msgspec.msgpack.Decoder(Lane).decode
        self._raw: Callable[[bytes], RawLane] = msgspec.msgpack.Decoder(RawLane).decode
        self._state = None if state_type is None else msgspec.msgpack.Decoder(state_type | None).decode
        self.decode: Callable[[bytes], Lane] = self._lane if self._state is None else self._typed
        self.typed = self._state is not None

    def _typed(self, packed: bytes) -> Lane:
        assert self._state is not None
        raw = self._raw(packed)
        return Lane(self._state(raw.state), raw.number, raw.seen, raw.waiting, raw.missed, raw.home, raw.doubtful)


_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})
_PLAIN: Final = _LEAVES | {dict, list}


def all_plain(states: Iterable[object]) -> bool:
    """Whether states are made of nothing but what is read again as it was; all of them together, level by level."""
    values = list(states)
    while values:
        kinds = set(map(type, values))
        if kinds <= _LEAVES or not kinds <= _PLAIN:
            return kinds <= _LEAVES
        dicts = [value for value in values if type(value) is dict]
        lists = [value for value in values if type(value) is list]
        if not _LEAVES.issuperset(map(type, chain.from_iterable(dicts))):
            return False
        if _LEAVES.issuperset(map(type, _inside(dicts, lists))):
            return True
        values = [value for value in _inside(dicts, lists) if type(value) not in _LEAVES]
    return True


def _inside(dicts: list[dict[Any, Any]], lists: list[list[Any]]) -> Iterator[object]:
    return chain(chain.from_iterable(map(dict.values, dicts)), chain.from_iterable(lists))


def comes_back(state: object, again: object) -> bool:
    """Whether a state that was written and read is of the same kinds, all the way down."""
    if type(state) is not type(again):
        return False
    if isinstance(state, dict) and isinstance(again, dict):
        kept = state.keys() == again.keys() and list(map(type, state)) == list(map(type, again))
        return kept and all(comes_back(state[key], again[key]) for key in state)
    if isinstance(state, list) and isinstance(again, list):
        return all(map(comes_back, state, again))
    return True


read_raw: Callable[[bytes], RawLane] = msgspec.msgpack.Decoder(RawLane).decode
read_plain: Callable[[bytes], Lane] = msgspec.msgpack.Decoder(Lane).decode
