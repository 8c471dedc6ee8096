"""A shard's state on disk: one change file per unit that touched it, and a snapshot now and then.

    state/<shard>/<number>.on-<base>.change    what unit <number> changed in version <base>
    state/<shard>/<number>.snapshot            everything, as unit <number> left it

The rules guarded here: a version is read along the names, from its own file back to a snapshot or to the start, so a
file of a unit that is being repeated is never part of what the unit starts from; every file names the digest of the
one it builds on, so attempts of a unit that differ are never mixed; a file that is cut, damaged or of another query
is refused. Written under another name, synced, then renamed: a file is whole or not there.
"""

import hashlib
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final
from urllib.parse import quote

import msgspec
import zstandard

from lanemq.model.errors import StateLost
from lanemq.pipelines.transitions.durable import write_durably
from lanemq.pipelines.transitions.shard import START, Change, Shard, Version

_HEAD: Final = struct.Struct("<8s16s")
_MAGIC: Final = b"LANEST1\n"


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
        path = self._change(number, base.number)
        digest = self._write(path, _Content(self.query, self.shard, base, change))
        # An attempt from another base was never finished, or this one could not have started elsewhere.
        for other in self.folder.glob(f"{number}.on-*.change"):
            if other != path:
                other.unlink(missing_ok=True)
        return Version(number, digest)

    def write_snapshot(self, shard: Shard) -> None:
        whole = Change(shard.meta, shard.lanes, [])
        self._write(self._snapshot(shard.version.number), _Content(self.query, self.shard, shard.version, whole))

    def load(self, version: Version) -> Shard:
        """The shard at a version, from files alone."""
        shard = Shard()
        if not self.catch_up(shard, version):
            raise StateLost(
                f"state of shard {self.shard} in {self.folder} is not what unit {version.number} left there: it was "
                f"written over by another run. Restore the checkpoint's folder, or start anew with an empty one"
            )
        return shard

    def catch_up(self, shard: Shard, version: Version) -> bool:
        """Reads what a shard in memory misses. False: it descends from another attempt and must not be used."""
        for path in self._way(shard.version.number, version.number):
            if path.suffix == ".snapshot":
                shard.clear()
                content, _ = self._read(path)
                shard.apply(content.change, content.base)
                continue
            content, digest = self._read(path)
            if content.base != shard.version:
                return False
            shard.apply(content.change, Version(_number(path), digest))
        return shard.version == version

    def remove_before(self, snapshot: int) -> None:
        """Files that only versions below a snapshot need, and what crashes left of their writing."""
        for path in self.folder.iterdir():
            number = _number(path)
            if number < snapshot or (number == snapshot and path.suffix == ".change"):
                path.unlink(missing_ok=True)

    def _way(self, have: int, want: int) -> list[Path]:
        """The files from what is in memory to a version, oldest first."""
        bases, snapshots = self._listed()
        way: list[Path] = []
        at = want
        while at != have:
            # A snapshot is the shortest way from nothing, changes are from what is in memory.
            if at in bases and (at not in snapshots or have != START):
                way.append(self._change(at, bases[at]))
                at = bases[at]
            elif at in snapshots:
                way.append(self._snapshot(at))
                break
            elif at == START:
                break
            else:
                raise StateLost(
                    f"state of shard {self.shard} behind unit {want} is incomplete: nothing about unit {at} in "
                    f"{self.folder}. Restore the checkpoint's folder as it was, or start anew with an empty one"
                )
        return way[::-1]

    def _listed(self) -> tuple[dict[int, int], set[int]]:
        bases: dict[int, int] = {}
        snapshots: set[int] = set()
        for path in self.folder.glob("[0-9]*") if self.folder.is_dir() else ():
            number, _, rest = path.name.partition(".")
            if rest == "snapshot":
                snapshots.add(int(number))
            elif rest.startswith("on-") and rest.endswith(".change"):
                bases[int(number)] = int(rest[3:-7])
        return bases, snapshots

    def _change(self, number: int, base: int) -> Path:
        return self.folder / f"{number}.on-{base}.change"

    def _snapshot(self, number: int) -> Path:
        return self.folder / f"{number}.snapshot"

    def _write(self, path: Path, content: _Content) -> str:
        body = zstandard.ZstdCompressor(level=1).compress(_encode(content))
        digest = _digest(body)
        write_durably(path, _HEAD.pack(_MAGIC, digest) + body)
        return digest.hex()

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


def _number(path: Path) -> int:
    return int(path.name.removeprefix(".").partition(".")[0])
