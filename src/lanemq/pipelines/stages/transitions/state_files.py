"""A shard's state on disk and in memory: a change file per unit that touched it, snapshots, and a cache.

    state/<shard>/<version>.on-<base>.change    what a unit changed in version <base>
    state/<shard>/<version>.snapshot            everything, as the unit left it

A version is the unit's number and the digest of its change. Files are written under another name, synced, then renamed,
so a file is complete or absent.

Invariants:
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
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import zstandard

from lanemq.model.errors import StateLost
from lanemq.pipelines.atomic_files import write_durably
from lanemq.pipelines.batch import NUMBERS_PER_BATCH
from lanemq.pipelines.stages.transitions.shard import START, Change, Shard, Version

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

    stage_folder: Path
    query: str
    shard: str

    @property
    def folder(self) -> Path:
        """Where they are."""
        return self.stage_folder / "state" / quote(self.shard, safe="")

    def write_change(self, number: int, base: Version, change: Change) -> Version:
        """Writes what a unit changed. Returns the version it leads to."""
        body, digest = _packed(_Content(self.query, self.shard, base, change))
        version = Version(number, digest)
        write_durably(self._change(version, base), body)
        return version

    def write_snapshot(self, shard: Shard) -> None:
        """Writes the whole shard."""
        whole = Change(shard.meta, shard.lanes, [])
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

    def _path_to(self, have: Version, want: Version) -> list[tuple[int, Path]]:
        """The files that lead from one version to another, oldest first, each with its unit."""
        bases, snapshots = self._listed()
        found: list[tuple[int, Path]] = []
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

    def _change(self, version: Version, base: Version) -> Path:
        return self.folder / f"{_name(version)}.on-{_name(base)}.change"

    def _snapshot(self, version: Version) -> Path:
        return self.folder / f"{_name(version)}.snapshot"

    def _read(self, path: Path) -> tuple[_Content, str]:
        try:
            content, digest = _unpack(path, path.read_bytes())
        except FileNotFoundError:
            raise StateLost(
                f"{path} is missing: another program changed the checkpoint's folder. Restore it as it was"
            ) from None
        if (content.query, content.shard) != (self.query, self.shard):
            raise StateLost(
                f"{path} belongs to shard {content.shard} of query {content.query}, not to {self.shard} of "
                f"{self.query}: give every pipeline a checkpoint of its own"
            )
        return content, digest


def _unpack(path: Path, packed: bytes) -> tuple[_Content, str]:
    damaged = StateLost(f"{path} is damaged: restore the checkpoint's folder from a copy")
    if len(packed) < _HEAD.size:
        raise damaged
    magic, digest = _HEAD.unpack_from(packed)
    body = packed[_HEAD.size :]
    if magic != _MAGIC or _digest(body) != digest:
        raise damaged
    try:
        return _decode(zstandard.ZstdDecompressor().decompress(body)), digest.hex()
    except (zstandard.ZstdError, msgspec.MsgspecError) as error:
        raise damaged from error


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

    def drop_stale(self, stage_folder: Path, query: str, number: int, versions: Mapping[str, Version]) -> None:
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
        while len(self._shards) > 1 and self._exceeds(max_keys, max_bytes):
            del self._shards[next(iter(self._shards))]

    def _exceeds(self, max_keys: int, max_bytes: int) -> bool:
        kept = self._shards.values()
        return sum(len(each.lanes) for each in kept) > max_keys or sum(each.size or 0 for each in kept) > max_bytes

    def __len__(self) -> int:
        return len(self._shards)


def _key(files: ShardFiles) -> tuple[str, str, str]:
    return str(files.stage_folder), files.query, files.shard


CACHE = ShardCache()
"""The cache of this process. Spark's workers live on between tasks."""
