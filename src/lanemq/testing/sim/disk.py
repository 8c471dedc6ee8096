"""A simulated disk and database. After a power cut they hold what was synced, and a random part of the rest.

Real files in a folder in memory stand for the operating system's cache, which the log reads while the machine runs. In
addition, `SimDisk` keeps what the device holds: the bytes of each file at its last `fdatasync`, the writes since then,
and the names at the last sync of their folder.

A failed `fdatasync` leaves the cache as it is and drops what was to be written, as Linux does: a later sync succeeds
although pages never reached the device.

SQLite keeps every commit when its process dies. After a power cut it keeps what was committed with `Sync.FULL` and
everything before, and the first few of the later commits. So a copy is taken at every commit.
"""

import asyncio
import errno
import os
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from random import Random

from lanemq.log.filesystem import RealDisk
from lanemq.log.state.database import State
from lanemq.log.state.group_rows import Sync
from lanemq.testing.sim.trace import Trace

SECTORS = (128, 512, 4096)
"""Bytes that a device writes at once; it may write sectors in any order."""


class _Inode:
    """One file on the device. `dirty` has the writes, and as None the truncations, that have not reached it."""

    def __init__(self) -> None:
        self.device = bytearray()
        self.dirty: list[tuple[int, bytes | None]] = []


def _applied(device: bytearray, change: tuple[int, bytes | None]) -> None:
    at, data = change
    if data is None:
        del device[at:]
        device.extend(bytes(at - len(device)))
        return
    device.extend(bytes(max(0, at - len(device))))
    device[at : at + len(data)] = data


class SimDisk(RealDisk):
    """The disk of one machine; it outlives processes."""

    def __init__(self, random: Random, trace: Trace) -> None:
        self.failing: dict[str, int] = {}
        """The errno of the next `write`, `sync` or `commit`."""
        self.cut_after = 0
        """Number of the change, from now on, at which the power is cut instead; 0 for none."""
        self.cut_bytes = 0
        """If not 0, only syncs of at least so many bytes count: more of a large write can be torn."""
        self.on_power_cut: Callable[[], None] = lambda: None
        self.changes = 0
        self._off = False
        self._random = random
        self._trace = trace
        self._names: dict[Path, _Inode] = {}
        self._known: dict[Path, _Inode] = {}
        self._unsynced_names: dict[Path, list[tuple[Path, _Inode | None]]] = {}
        self._open: dict[int, _Inode] = {}

    # what the log calls

    def create(self, path: Path) -> int:
        self.change("create")
        fd = super().create(path)
        self._open[fd] = inode = _Inode()
        self._rename(path, inode)
        return fd

    def open(self, path: Path) -> int:
        fd = super().open(path)
        self._open[fd] = self._names[path]
        return fd

    def close(self, fd: int) -> None:
        self._open.pop(fd, None)
        super().close(fd)

    def write_at(self, fd: int, data: memoryview, offset: int) -> int:
        dirty = self._open[fd].dirty
        if not self._off and self.cut_after == 1 and not self.cut_bytes:
            dirty.append((offset, bytes(data)))  # the power is cut during this write: any of it may reach the device
        self.change("write")
        if len(data) > 1 and self._random.random() < 0.02:
            data = data[: self._random.randrange(1, len(data))]
        dirty.append((offset, bytes(data)))
        return super().write_at(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        inode = self._open[fd]
        try:
            self.change("sync", sum(len(data) for _, data in inode.dirty if data))
        except OSError:
            inode.dirty.clear()
            raise
        for change in inode.dirty:
            _applied(inode.device, change)
        inode.dirty.clear()

    def fsync_dir(self, path: Path) -> None:
        self.change("sync folder")
        for name, inode in self._unsynced_names.pop(path, ()):
            _renamed(self._known, name, inode)

    def truncate(self, fd: int, size: int) -> None:
        self.change("truncate")
        self._open[fd].dirty.append((size, None))
        super().truncate(fd, size)

    def drop_cache(self, fd: int) -> None:
        """What never reached the device reads as zeros; a file keeps its length."""
        inode = self._open[fd]
        content = bytearray(inode.device)
        for change in inode.dirty:
            _applied(content, change)
        os.pwrite(fd, content.ljust(self.size(fd), b"\0"), 0)

    def unlink(self, path: Path) -> None:
        if path in self._names:
            self.change("unlink")
            super().unlink(path)
            self._rename(path, None)

    def rename(self, old: Path, new: Path) -> None:
        self.change("rename")
        super().rename(old, new)
        inode = self._names[old]
        self._rename(old, None)
        self._rename(new, inode)

    # what the simulation calls

    def lose_power(self) -> int:
        """Drops the cache; returns the number of unsynced bytes that are lost."""
        lost = 0
        self.cut_after = 0
        self._off = False
        self.failing.clear()
        for changes in self._unsynced_names.values():
            for name, inode in changes[: self._random.randint(0, len(changes))]:
                _renamed(self._known, name, inode)
        self._unsynced_names.clear()
        for path, inode in self._names.items():
            path.unlink(missing_ok=True)
            lost += self._settle(inode)
        self._names = dict(self._known)
        for path, inode in self._names.items():
            path.write_bytes(inode.device)
        return lost

    def _settle(self, inode: _Inode) -> int:
        """Applies some of the unsynced writes, the last perhaps in part; or any sectors of all of them."""
        dirty, inode.dirty = inode.dirty, []
        if not dirty:
            return 0
        if self._random.random() < 0.5:
            return self._scatter(inode, dirty)
        reached = self._random.randint(0, len(dirty) - (self._random.random() < 0.7))
        for change in dirty[:reached]:
            _applied(inode.device, change)
        lost = sum(len(data) for _, data in dirty[reached:] if data is not None)
        if reached < len(dirty) and (torn := dirty[reached][1]) and self._random.random() < 0.9:
            _applied(inode.device, (dirty[reached][0], self._torn(torn)))
        return lost

    def _scatter(self, inode: _Inode, dirty: list[tuple[int, bytes | None]]) -> int:
        """Applies a random choice of sectors: a device writes them in any order."""
        there: list[bool] = []
        longest = max(len(data or b"") for _, data in dirty)
        sector = self._random.choice([each for each in SECTORS if 2 * each <= longest] or SECTORS)
        lost, chance = 0, self._random.choice((0.5, 0.8))
        for at, data in dirty:
            if data is None:
                _applied(inode.device, (at, None))
                continue
            inode.device.extend(bytes(max(0, at + len(data) - len(inode.device))))
            for begin in range(at - at % sector, at + len(data), sector):
                part = data[max(begin, at) - at : begin + sector - at]
                there.append(self._random.random() < chance)
                if there[-1]:
                    _applied(inode.device, (max(begin, at), part))
                else:
                    lost += len(part)
        holes = any(not earlier and later for earlier, later in pairwise(there))
        self._trace.count("disk: a hole in what was not synced", holes)
        return lost

    def _torn(self, data: bytes) -> bytes:
        """What is left of an interrupted write: its beginning, its length with zeros at the end, or a flipped bit."""
        how, kept = self._random.random(), self._random.randrange(len(data))
        if how < 0.15:
            return data[:kept]
        if how < 0.3:
            return data[:kept] + bytes(len(data) - kept)
        self._trace.count("disk: a bit flipped in a torn write")
        whole = bytearray(data)
        whole[self._random.randrange(len(data))] ^= 1 << self._random.randrange(8)
        return bytes(whole)

    def _rename(self, path: Path, inode: _Inode | None) -> None:
        _renamed(self._names, path, inode)
        self._unsynced_names.setdefault(path.parent, []).append((path, inode))

    def change(self, what: str, size: int = 0) -> None:
        """Called before every change of the disk; raises if it fails or the power is cut."""
        self.changes += 1
        if self.cut_after and size >= self.cut_bytes:
            self.cut_after -= 1
            if self.cut_after == 0:
                self._off = True
                self._trace.note("disk", f"loses power instead of a {what}")
                self.on_power_cut()
        if self._off:
            raise asyncio.CancelledError("the power was cut")
        error = self.failing.pop(what, 0)
        if error:
            self._trace.note("disk", f"{what} fails: {errno.errorcode[error]}")
            self._trace.count(f"disk: {what} failed")
            raise OSError(error, os.strerror(error))


def _renamed(names: dict[Path, _Inode], path: Path, inode: _Inode | None) -> None:
    if inode is None:
        names.pop(path, None)
    else:
        names[path] = inode


class StateImage:
    """What the device holds of the database; it outlives processes."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._synced: bytes | None = None
        self._later: list[bytes] = []

    @property
    def newest(self) -> bytes | None:
        return self._later[-1] if self._later else self._synced

    def committed(self, content: bytes, sync: Sync) -> None:
        if sync is Sync.FULL:
            self._synced = content
            self._later.clear()
        else:
            self._later.append(content)

    def lose_power(self) -> int:
        """Drops some of the newest commits; returns how many."""
        kept = self._random.randint(0, len(self._later))
        lost = len(self._later) - kept
        if kept:
            self._synced = self._later[kept - 1]
        self._later.clear()
        return lost


class SimState(State):
    """The shipped tables and statements on a database in memory."""

    def __init__(self, path: Path, image: StateImage, disk: SimDisk) -> None:
        self._image = image
        self._disk = disk
        path.touch()  # the log checks whether the file exists
        super().__init__(Path(":memory:"))

    def _prepare(self) -> None:
        if self._image.newest is not None:
            self._db.deserialize(self._image.newest)
        super()._prepare()

    @contextmanager
    def transaction(self, sync: Sync) -> Iterator[sqlite3.Connection]:
        with super().transaction(sync) as db:
            yield db
            try:
                self._disk.change("commit")
            except OSError as error:
                raise sqlite3.OperationalError(f"disk I/O error: {error}") from error
        self._image.committed(self._db.serialize(), sync)
