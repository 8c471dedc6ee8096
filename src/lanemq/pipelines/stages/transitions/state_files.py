"""A shard's state on disk: one change file per unit that touched it, and a snapshot now and then.

    state/<shard>/<version>.on-<base>.change    what a unit changed in version <base>
    state/<shard>/<version>.snapshot            everything, as the unit left it

A version is the unit's number and the digest of its change. The rules guarded here: a version is read along the names,
from its own file back to a snapshot or to the start, so a file of a unit that is being repeated is never part of what
the unit starts from; attempts of a unit that differ have files of their own, so one that ends late replaces nothing
that counts; a file that is cut, damaged or of another query is refused, and one whose name is not of this form is
left alone. Written under another name, synced, then renamed: a file is whole or not there.
"""

import hashlib
import re
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import zstandard

from lanemq.model.errors import StateLost
from lanemq.pipelines.atomic_files import write_durably
from lanemq.pipelines.stages.transitions.shard import START, Change, Shard, Version

_HEAD: Final = struct.Struct("<8s16s")
_MAGIC: Final = b"LANEST1\n"

_VERSION: Final = r"(-?[0-9]+)-([0-9a-f]*)"
_CHANGE: Final = re.compile(rf"{_VERSION}\.on-{_VERSION}\.change")
_SNAPSHOT: Final = re.compile(rf"{_VERSION}\.snapshot")
_OURS: Final = re.compile(rf"\.?{_VERSION}(?:\.on-{_VERSION}\.change|\.snapshot)(?:\..*)?")
"""Whole files, and with a dot before and more behind: what a crash left of their writing."""


class _Content(msgspec.Struct):
    """What a file says about itself, and the change."""

    query: str
    shard: str
    base: Version
    """What it builds on; of a snapshot, the version that it is."""
    change: Change


_encode = msgspec.msgpack.Encoder().encode
_decode = msgspec.msgpack.Decoder(_Content).decode


@dataclass(frozen=True, slots=True)
class ShardFiles:
    """The files of one shard."""

    place: Path
    query: str
    shard: str

    @property
    def folder(self) -> Path:
        return self.place / "state" / quote(self.shard, safe="")

    def write_change(self, number: int, base: Version, change: Change) -> Version:
        """The version that the change leads to."""
        body, digest = _packed(_Content(self.query, self.shard, base, change))
        version = Version(number, digest)
        write_durably(self._change(version, base), body)
        return version

    def write_snapshot(self, shard: Shard) -> None:
        whole = Change(shard.meta, shard.lanes, [])
        body, _ = _packed(_Content(self.query, self.shard, shard.version, whole))
        write_durably(self._snapshot(shard.version), body)

    def load(self, version: Version) -> Shard:
        """The shard at a version, from files alone."""
        shard = Shard()
        if not self.catch_up(shard, version):
            raise StateLost(
                f"state of shard {self.shard} in {self.folder} is not what unit {version.number} left there: its "
                f"files were changed by somebody else. Restore the checkpoint's folder, or start anew with an empty one"
            )
        return shard

    def catch_up(self, shard: Shard, version: Version) -> bool:
        """Reads what a shard in memory misses. False: it descends from another attempt and must not be used."""
        for number, path in self._way(shard.version, version):
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
        """Files that only versions below a snapshot need, and what crashes left of their writing."""
        for path in self.folder.iterdir():
            found = _OURS.fullmatch(path.name)
            if found is None:
                continue
            number = int(found[1])
            if number < snapshot or (number == snapshot and path.suffix == ".change"):
                path.unlink(missing_ok=True)

    def _way(self, have: Version, want: Version) -> list[tuple[int, Path]]:
        """The files from what is in memory to a version, oldest first, each with its unit."""
        bases, snapshots = self._listed()
        way: list[tuple[int, Path]] = []
        at = want
        while at != have:
            # A snapshot is the shortest way from nothing, changes are from what is in memory.
            if at in bases and (at not in snapshots or have.number != START):
                way.append((at.number, self._change(at, bases[at])))
                at = bases[at]
            elif at in snapshots:
                way.append((at.number, self._snapshot(at)))
                break
            elif at.number == START:
                break
            else:
                raise StateLost(
                    f"state of shard {self.shard} behind unit {want.number} is incomplete: nothing about unit "
                    f"{at.number} in {self.folder}. Restore the checkpoint's folder as it was, or start anew with an "
                    f"empty one"
                )
        return way[::-1]

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
            raise StateLost(f"{path} is missing: the checkpoint's folder was changed by somebody else") from None
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
    """The file's bytes, and its digest."""
    body = zstandard.ZstdCompressor(level=1).compress(_encode(content))
    digest = _digest(body)
    return _HEAD.pack(_MAGIC, digest) + body, digest.hex()


def _name(version: Version) -> str:
    return f"{version.number}-{version.digest}"
