"""The state of one shard: its lanes (state, number and waiting messages of a key), its queues and its producers.

One unit of work at a time changes a shard. What it changed is its `Change`; applied to the shard as it was before, it
gives the shard as it is after. State files contain nothing else.

Invariant: a lane's bytes are its last good state. They are written after every event that succeeded, so a step that
changed its state and then failed has changed nothing: the lane is decoded again from its bytes.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import StrEnum
from itertools import chain
from typing import Any, Final, NamedTuple

import msgspec

from lanemq.pipelines.stages.transitions.messages import WaitingMessage

START: Final = -1
"""The version of a shard that no unit has touched."""

PARKED_AT: Final = -1
GAP_AT: Final = -2
"""Used in `Meta.waiting` in place of a time: only an operator, or the missing message, lets these lanes continue."""


class Meta(msgspec.Struct):
    """Everything about a shard but its lanes; small, and written whole with every change."""

    offsets: dict[str, int] = msgspec.field(default_factory=dict)
    """The next offset of every queue that was seen; everything below it was applied."""
    times: dict[str, int] = msgspec.field(default_factory=dict)
    """The highest store time of every queue. A lower offset with a later time belongs to a re-created topic."""
    stamps: list[tuple[str, str, int, int]] = msgspec.field(default_factory=list)
    """Queue, producer, epoch and last sequence of each remembered producer."""
    newest: int = 0
    """The highest store time seen: the shard's clock, the same in every replay."""
    swept: int = 0
    """The shard's clock at the last sweep for expired keys."""
    waiting: dict[str, int] = msgspec.field(default_factory=dict)
    """Lanes that are held or parked, with the wall time of their next retry, or PARKED_AT or GAP_AT."""
    chain: int = 0
    """Changes since the last snapshot."""
    chained_keys: int = 0
    """Keys in those changes. When they outnumber the lanes, a snapshot is quicker to read."""
    queues: list[str] = msgspec.field(default_factory=list)
    """Queues that keys of this shard were found in, if a key must stay in one; lanes refer to them by index."""

    def retry_at(self) -> int | None:
        """Wall time of the next retry; None if no lane is held."""
        return min((at for at in self.waiting.values() if at >= 0), default=None)


class Change(msgspec.Struct):
    """What one unit of work changed in a shard."""

    meta: Meta
    lanes: dict[str, bytes]
    gone: list[str]


class Version(NamedTuple):
    """A shard after a unit: the unit's number and a digest of its change, because two attempts of a unit may differ."""

    number: int = START
    digest: str = ""


class Shard:
    """One shard at one version."""

    __slots__ = ("lanes", "meta", "size", "version")

    def __init__(self) -> None:
        self.version = Version()
        self.meta = Meta()
        self.lanes: dict[str, bytes] = {}
        self.size: int | None = None
        """Bytes of all lanes; None if not counted since the shard was read."""

    def count_bytes(self, grown: int) -> int:
        """Bytes of all lanes after a unit of work that added `grown`; counted in full only once."""
        self.size = sum(map(len, self.lanes.values())) if self.size is None else self.size + grown
        return self.size

    def clear(self) -> None:
        """Resets the shard to what it was before the first unit."""
        self.version, self.meta, self.lanes, self.size = Version(), Meta(), {}, None

    def apply(self, change: Change, version: Version) -> None:
        """Moves to the next version by a change read from its file."""
        self.lanes.update(change.lanes)
        for name in change.gone:
            self.lanes.pop(name, None)
        self.meta = change.meta
        self.version = version
        self.size = None


def keyless(queue: str) -> str:
    """The lane of a queue's messages without a key. No key of a message can have this name."""
    return f"\x00{queue}"


def key_of(lane_name: str) -> str | None:
    """The key of a lane; None for messages without a key."""
    return None if lane_name.startswith("\x00") else lane_name


# one lane

MAX_MISSED_RANGES: Final = 32
"""Ranges of missing numbers that a key remembers; they are part of its state."""


class WaitReason(StrEnum):
    """Why a lane does not continue."""

    HELD = "held"
    """After a failure; retried when its wait is over."""
    PARKED = "parked"
    """After its last retry; an operator decides."""
    GAP = "gap"
    """A number of the key is missing; the lane continues when it comes."""


class WaitingMessages(msgspec.Struct, array_like=True):
    """The messages of a lane that is held or parked."""

    why: WaitReason
    reason: str
    since: int
    """Wall time of the unit of work in which the lane was held, milliseconds."""
    failures: int
    """Failures of the first message since its first attempt or its last redrive."""
    retry_at: int
    """Wall time of the next retry, milliseconds; only for `HELD`."""
    messages: list[WaitingMessage]
    """In order of arrival; the first one is the one that failed, unless a number is missing."""
    numbers: list[int | None]
    """The number of each message; None if unknown (no `sequence=`, or it cannot be decoded)."""


class KeyLane(msgspec.Struct, array_like=True):
    """One key."""

    state: Any = None
    """What the step returned."""
    number: int | None = None
    """The highest number that was applied."""
    seen: int = 0
    """Store time of the newest message, milliseconds."""
    waiting: WaitingMessages | None = None
    missed: tuple[tuple[int, int], ...] = ()
    """Ranges of numbers that the key continued without, as (first, last). Other numbers up to `number` were applied or
    became dead letters."""
    queue: int | None = None
    """The key's queue, as an index into the shard's `queues`; None where it does not matter."""
    doubtful: int | None = None
    """Up to this number `missed` may include numbers that were settled, because ranges were joined there."""

    def see(self, stored: int) -> None:
        """Records that a message of the key came."""
        if stored > self.seen:
            self.seen = stored

    def is_past(self, number: int) -> bool:
        """Whether the key has reached this number or a higher one."""
        return self.number is not None and number <= self.number

    def advance_to(self, number: int, first_number: int | None) -> None:
        """Makes this the key's number; those between it and the last one become missed."""
        expected = first_number if self.number is None else self.number + 1
        if expected is not None and number > expected:
            self._remember([*self.missed, (expected, number - 1)])
        self.number = number

    def settle_missed(self, number: int) -> None:
        """Removes a number that came after all from the missed ones."""
        left: list[tuple[int, int]] = []
        for first, last in self.missed:
            parts = [(first, last)] if not first <= number <= last else [(first, number - 1), (number + 1, last)]
            left += [part for part in parts if part[0] <= part[1]]
        self._remember(left)

    def has_missed(self, number: int) -> bool:
        """Whether the key continued without this number."""
        return any(first <= number <= last for first, last in self.missed)

    def is_doubtful(self, number: int) -> bool:
        """Whether a missed number may in fact have been settled."""
        return self.doubtful is not None and number <= self.doubtful

    def _remember(self, missed: list[tuple[int, int]]) -> None:
        """Sets `missed`. If there are too many ranges, joins the oldest two, including the numbers between them.

        A repeat may then be reported as late, which `doubtful` records, but a late event is never dropped as a repeat.
        """
        while len(missed) > MAX_MISSED_RANGES:
            missed[:2] = [(missed[0][0], missed[1][1])]
            self.doubtful = max(missed[0][1], missed[0][1] if self.doubtful is None else self.doubtful)
        self.missed = tuple(missed)


class RawLane(msgspec.Struct, array_like=True):
    """A lane whose state is not decoded, for expiry."""

    state: msgspec.Raw
    number: int | None
    seen: int
    waiting: WaitingMessages | None = None
    missed: tuple[tuple[int, int], ...] = ()
    queue: int | None = None
    doubtful: int | None = None


class LaneCodec:
    """Encodes and decodes lanes, with the state as plain values or as `state_type`."""

    def __init__(self, state_type: Any = None) -> None:
        encoder = msgspec.msgpack.Encoder()
        self.encode: Callable[[KeyLane], bytes] = encoder.encode
        self._lane: Callable[[bytes], KeyLane] = msgspec.msgpack.Decoder(KeyLane).decode
        self._raw: Callable[[bytes], RawLane] = msgspec.msgpack.Decoder(RawLane).decode
        self._state = None if state_type is None else msgspec.msgpack.Decoder(state_type | None).decode
        self.decode: Callable[[bytes], KeyLane] = self._lane if self._state is None else self._typed
        self.typed = self._state is not None

    def _typed(self, packed: bytes) -> KeyLane:
        assert self._state is not None
        raw = self._raw(packed)
        return KeyLane(self._state(raw.state), raw.number, raw.seen, raw.waiting, raw.missed, raw.queue, raw.doubtful)


_LEAVES: Final = frozenset({str, int, float, bool, bytes, type(None)})
_PLAIN: Final = _LEAVES | {dict, list}


def all_plain(states: Iterable[object]) -> bool:
    """Whether states consist only of types that msgpack reads back unchanged. Checks all states together, by level."""
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


def reads_back_as(state: object, again: object) -> bool:
    """Whether a state that was written and read has the same types at every level."""
    if type(state) is not type(again):
        return False
    if isinstance(state, dict) and isinstance(again, dict):
        kept = state.keys() == again.keys() and list(map(type, state)) == list(map(type, again))
        return kept and all(reads_back_as(state[key], again[key]) for key in state)
    if isinstance(state, list) and isinstance(again, list):
        return all(map(reads_back_as, state, again))
    return True


read_raw: Callable[[bytes], RawLane] = msgspec.msgpack.Decoder(RawLane).decode
read_plain: Callable[[bytes], KeyLane] = msgspec.msgpack.Decoder(KeyLane).decode
