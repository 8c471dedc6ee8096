"""The state of one shard: its lanes, queues and producers in memory, its files, and the cache of a worker.

One unit of work at a time changes a shard. What it changed is its `Change`; applied to the shard as it was before, it
gives the shard as it is after. Files contain nothing else:

    state/<shard>/<version>.on-<base>.change    what a unit changed in version <base>
    state/<shard>/<version>.snapshot            everything, as the unit left it

A version is the unit's number and the digest of its change. Files are written under another name, synced, then renamed,
so a file is complete or absent.

Invariants:
- A lane's bytes are its last good state. They are written after every event that succeeded, so a step that changed its
  state and then failed has changed nothing: the lane is decoded again from its bytes.
- A version is read by following file names, from its own file back to a snapshot or to the start. So a unit that is
  repeated never starts from its own change.
- Attempts of a unit that differ have different files, so one that ends late replaces nothing.
- A file that is truncated, damaged or of another query is refused. A file with another kind of name is left alone.
- A shard is in the cache only as a finished unit of work left it. It is taken out while a unit changes it, and put back
  with the unit's number. A cached shard that the wanted version does not descend from is read again.
"""

import hashlib
import re
import struct
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import chain
from typing import Any, Final, NamedTuple
from urllib.parse import quote

import msgspec
import zstandard

from lanemq.files import StorePath, write_durably
from lanemq.model.errors import InvalidOption, StateLost
from lanemq.pipelines.batches import NUMBERS_PER_BATCH
from lanemq.pipelines.stages.transitions.messages import WaitingMessage
from lanemq.pipelines.stages.transitions.state_schema import UpgradeState
from lanemq.pipelines.stages.transitions.timers import NO_TIMERS, Due, PendingTimer, TimerIndex

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

    watermark: int = 0
    """Event time has come this far, in milliseconds since 1970."""

    def retry_at(self) -> int | None:
        """Wall time of the next retry; None if no lane is held."""
        return min((at for at in self.waiting.values() if at >= 0), default=None)


class Change(msgspec.Struct):
    """What one unit of work changed in a shard."""

    meta: Meta
    lanes: dict[str, bytes]
    gone: list[str]
    timers: dict[str, Due] = {}
    """Of these lanes, those with timers: when the first ones are due."""


class Version(NamedTuple):
    """A shard after a unit: the unit's number and a digest of its change, because two attempts of a unit may differ."""

    number: int = START
    digest: str = ""


class Shard:
    """One shard at one version."""

    __slots__ = ("lanes", "meta", "size", "timers", "version")

    def __init__(self) -> None:
        self.version = Version()
        self.meta = Meta()
        self.lanes: dict[str, bytes] = {}
        self.timers = TimerIndex()
        self.size: int | None = None
        """Bytes of all lanes; None if not counted since the shard was read."""

    def count_bytes(self, grown: int) -> int:
        """Bytes of all lanes after a unit of work that added `grown`; counted in full only once."""
        self.size = sum(map(len, self.lanes.values())) if self.size is None else self.size + grown
        return self.size

    def clear(self) -> None:
        """Resets the shard to what it was before the first unit."""
        self.version, self.meta, self.lanes, self.timers, self.size = Version(), Meta(), {}, TimerIndex(), None

    def apply(self, change: Change, version: Version) -> None:
        """Moves to the next version by a change read from its file."""
        self.lanes.update(change.lanes)
        for name in change.gone:
            self.lanes.pop(name, None)
        if len(self.timers) or change.timers:
            for name in chain(change.lanes, change.gone):
                self.timers.set(name, change.timers.get(name, NO_TIMERS))
        self.meta = change.meta
        self.version = version
        self.size = None


def keyless(queue: str) -> str:
    """The lane of a queue's messages without a key. No key of a message can have this name."""
    return f"\x00{queue}"


def key_of(lane_name: str) -> str | None:
    """The key of a lane; None for messages without a key."""
    return None if lane_name.startswith("\x00") else lane_name


# One lane.

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
    timers: tuple[PendingTimer, ...] = ()
    """The key's timers, the earliest first."""

    def without_timer(self, timer: PendingTimer) -> tuple[PendingTimer, ...]:
        """The key's timers but for one."""
        return tuple(each for each in self.timers if each != timer)

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
    timers: tuple[PendingTimer, ...] = ()


class LaneCodec:
    """Encodes and decodes lanes, with the state as plain values or as `state_type`."""

    def __init__(self, state_type: Any = None, upgrade: UpgradeState | None = None) -> None:
        """`upgrade`: converts a stored state that `state_type` cannot read."""
        self._upgrade = upgrade
        encoder = msgspec.msgpack.Encoder()
        self.encode: Callable[[KeyLane], bytes] = encoder.encode
        self._lane: Callable[[bytes], KeyLane] = msgspec.msgpack.Decoder(KeyLane).decode
        self._raw: Callable[[bytes], RawLane] = msgspec.msgpack.Decoder(RawLane).decode
        self._state = None if state_type is None else msgspec.msgpack.Decoder(state_type | None).decode
        self.decode: Callable[[bytes], KeyLane] = self._lane if self._state is None else self._typed
        self.typed = self._state is not None

    def read_back(self, packed: bytes) -> Any:
        """The state of a lane that was just written. Raises msgspec's error if the type cannot read it."""
        return self._lane(packed).state if self._state is None else self._state(self._raw(packed).state)

    def _typed(self, packed: bytes) -> KeyLane:
        assert self._state is not None
        raw = self._raw(packed)
        try:
            state = self._state(raw.state)
        except msgspec.ValidationError as error:
            state = self._upgraded(raw.state, error)
        return KeyLane(
            state,
            raw.number,
            raw.seen,
            raw.waiting,
            raw.missed,
            raw.queue,
            raw.doubtful,
            raw.timers,
        )

    def _upgraded(self, stored: msgspec.Raw, error: msgspec.ValidationError) -> Any:
        """The state that `upgrade` makes of a stored one. A failure here is one of the stage, not of a key."""
        assert self._state is not None
        if self._upgrade is not None:
            try:
                return self._state(msgspec.msgpack.encode(self._upgrade(msgspec.msgpack.decode(stored))))
            except Exception as failed:
                raise InvalidOption(
                    f"upgrade_state failed for the stored state {msgspec.msgpack.decode(stored)!r:.200}: "
                    f"{type(failed).__name__}: {failed}"
                ) from failed
        raise InvalidOption(
            f"the stored state {msgspec.msgpack.decode(stored)!r:.200} cannot be read as state_type: {error}. Give new "
            f"fields a default, or convert old states with upgrade_state="
        ) from error


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


# The files of a shard.

_HEAD: Final = struct.Struct("<8s16s")
_MAGIC: Final = b"LANEST1\n"

_VERSION: Final = r"(-?[0-9]+)-([0-9a-f]*)"
_CHANGE: Final = re.compile(rf"{_VERSION}\.on-{_VERSION}\.change")
_SNAPSHOT: Final = re.compile(rf"{_VERSION}\.snapshot")
_OURS: Final = re.compile(rf"\.?{_VERSION}(?:\.on-{_VERSION}\.change|\.snapshot)(?:\..*)?")
"""Complete files and, with a dot before and a suffix after, what a crash left of writing them."""

KEPT_BATCHES: Final = 16
"""How long a cached shard is kept while other workers change it. Fewer: a worker that gets the shard again reads all of
it. More: workers that do not get it again keep its memory."""


class _Content(msgspec.Struct):
    """The content of a file."""

    query: str
    shard: str
    base: Version
    """The version it builds on; of a snapshot, its own version."""
    change: Change


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Content).decode


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The files of one shard."""

    stage_folder: StorePath
    query: str
    shard: str

    @property
    def folder(self) -> StorePath:
        """Where they are."""
        return self.stage_folder / "state" / quote(self.shard, safe="")

    def save(self, shard: Shard, number: int, change: Change, snapshot_every: int) -> bool:
        """Writes what a unit changed, and moves the shard to the version that this leads to.

        Also writes a snapshot if the changes since the last one are many, or slower to read. Returns whether it did.
        """
        meta = shard.meta
        # Changes with more keys than the shard has take longer to read than a snapshot; a few of them are cheap anyway.
        snapshot = meta.chain >= snapshot_every or (meta.chain > 4 and meta.chained_keys > 2 * len(shard.lanes))
        if snapshot:
            meta.chain = meta.chained_keys = 0
        shard.version = self.write_change(number, shard.version, change)
        if snapshot:
            self.write_snapshot(shard)
        return snapshot

    def write_change(self, number: int, base: Version, change: Change) -> Version:
        """Writes what a unit changed. Returns the version it leads to."""
        body, digest = _packed(_Content(self.query, self.shard, base, change))
        version = Version(number, digest)
        write_durably(self._change(version, base), body)
        return version

    def write_snapshot(self, shard: Shard) -> None:
        """Writes the whole shard."""
        whole = Change(shard.meta, shard.lanes, [], shard.timers.keys)
        body, _ = _packed(_Content(self.query, self.shard, shard.version, whole))
        write_durably(self._snapshot(shard.version), body)

    def load(self, version: Version) -> Shard:
        """Reads the shard at a version."""
        shard = Shard()
        if not self.catch_up(shard, version):
            raise StateLost(
                f"state of shard {self.shard} in {self.folder} is not what unit {version.number} left there: "
                f"another program changed its files. Restore the checkpoint's folder, or start with an empty one"
            )
        return shard

    def catch_up(self, shard: Shard, version: Version) -> bool:
        """Reads what a shard in memory lacks. False if it descends from another attempt and must not be used."""
        for number, path in self._path_to(shard.version, version):
            if path.suffix == ".snapshot":
                shard.clear()
                content, _ = self._read(path)
                shard.apply(content.change, content.base)
                continue
            content, digest = self._read(path)
            if content.base != shard.version:
                return False
            shard.apply(content.change, Version(number, digest))
        return shard.version == version

    def remove_before(self, snapshot: int) -> None:
        """Removes files that only versions before a snapshot need, and what crashes left of writing them."""
        for path in self.folder.iterdir():
            found = _OURS.fullmatch(path.name)
            if found is None:
                continue
            number = int(found[1])
            if number < snapshot or (number == snapshot and path.suffix == ".change"):
                path.unlink(missing_ok=True)

    def _path_to(self, have: Version, want: Version) -> list[tuple[int, StorePath]]:
        """The files that lead from one version to another, oldest first, each with its unit."""
        bases, snapshots = self._listed()
        found: list[tuple[int, StorePath]] = []
        at = want
        while at != have:
            # From nothing a snapshot is the shortest way; from a shard in memory changes are.
            if at in bases and (at not in snapshots or have.number != START):
                found.append((at.number, self._change(at, bases[at])))
                at = bases[at]
            elif at in snapshots:
                found.append((at.number, self._snapshot(at)))
                break
            elif at.number == START:
                break
            else:
                raise StateLost(
                    f"state of shard {self.shard} after unit {want.number} is incomplete: {self.folder} has nothing "
                    f"about unit {at.number}. Restore the checkpoint's folder as it was, or start with an empty one"
                )
        return found[::-1]

    def _listed(self) -> tuple[dict[Version, Version], set[Version]]:
        bases: dict[Version, Version] = {}
        snapshots: set[Version] = set()
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if found := _SNAPSHOT.fullmatch(path.name):
                snapshots.add(Version(int(found[1]), found[2]))
            elif found := _CHANGE.fullmatch(path.name):
                bases[Version(int(found[1]), found[2])] = Version(int(found[3]), found[4])
        return bases, snapshots

    def _change(self, version: Version, base: Version) -> StorePath:
        return self.folder / f"{_name(version)}.on-{_name(base)}.change"

    def _snapshot(self, version: Version) -> StorePath:
        return self.folder / f"{_name(version)}.snapshot"

    def _read(self, path: StorePath) -> tuple[_Content, str]:
        try:
            content, digest = _unpack(path, path.read_bytes())
        except FileNotFoundError:
            raise StateLost(
                f"{path} is missing: another program changed the checkpoint's folder. Restore it as it was"
            ) from None
        except IsADirectoryError as error:
            raise _damaged(path) from error
        if (content.query, content.shard) != (self.query, self.shard):
            raise StateLost(
                f"{path} belongs to shard {content.shard} of query {content.query}, not to {self.shard} of "
                f"{self.query}: give every pipeline a checkpoint of its own"
            )
        return content, digest


def _damaged(path: StorePath) -> StateLost:
    return StateLost(f"{path} is damaged: restore the checkpoint's folder from a copy")


def _unpack(path: StorePath, packed: bytes) -> tuple[_Content, str]:
    if len(packed) < _HEAD.size:
        raise _damaged(path)
    magic, digest = _HEAD.unpack_from(packed)
    body = packed[_HEAD.size :]
    if magic != _MAGIC or _digest(body) != digest:
        raise _damaged(path)
    try:
        return _decode(zstandard.ZstdDecompressor().decompress(body)), digest.hex()
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise _damaged(path) from error


def _digest(body: bytes) -> bytes:
    return hashlib.blake2b(body, digest_size=16).digest()


def _packed(content: _Content) -> tuple[bytes, str]:
    """The bytes of a file, and their digest."""
    body = zstandard.ZstdCompressor(level=1).compress(_encode(content))
    digest = _digest(body)
    return _HEAD.pack(_MAGIC, digest) + body, digest.hex()


def _name(version: Version) -> str:
    return f"{version.number}-{version.digest}"


class ShardCache:
    """Shards that a worker process keeps in memory between batches, the one unused for longest first.

    Spark gives a shard's task to any worker, so several workers may have a copy, each as it was when it last worked on
    the shard. A worker that gets the shard again reads only what it missed.
    """

    def __init__(self) -> None:
        self._shards: dict[tuple[str, str, str], Shard] = {}

    def take(self, files: ShardFiles, version: Version) -> Shard:
        """Removes the shard from the cache and returns it at exactly this version."""
        cached = self._shards.pop(_key(files), None)
        if cached is None or not files.catch_up(cached, version):
            return files.load(version)
        return cached

    def drop_stale(self, stage_folder: StorePath, query: str, number: int, versions: Mapping[str, Version]) -> None:
        """Drops shards that other workers have changed and that were not used here for a while.

        `number` is the unit that begins.
        """
        since = number // NUMBERS_PER_BATCH - KEPT_BATCHES
        for key, shard in list(self._shards.items()):
            is_other = shard.version != versions.get(key[2], shard.version)
            if key[:2] == (str(stage_folder), query) and is_other and shard.version.number // NUMBERS_PER_BATCH < since:
                del self._shards[key]

    def put(self, files: ShardFiles, shard: Shard, max_keys: int, max_bytes: int) -> None:
        """Keeps the shard, and as many of the others as fit beside it."""
        self._shards[_key(files)] = shard
        while len(self._shards) > 1 and exceed(self._shards.values(), max_keys, max_bytes):
            del self._shards[next(iter(self._shards))]

    def __len__(self) -> int:
        return len(self._shards)


def exceed(shards: Collection[Shard], max_keys: int, max_bytes: int) -> bool:
    """Whether shards have more keys, or more bytes of state, than this."""
    return sum(len(each.lanes) for each in shards) > max_keys or sum(each.size or 0 for each in shards) > max_bytes


def _key(files: ShardFiles) -> tuple[str, str, str]:
    return str(files.stage_folder), files.query, files.shard


CACHE = ShardCache()
"""The cache of this process. Spark's workers live on between tasks."""
