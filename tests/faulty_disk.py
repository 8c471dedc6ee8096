"""A disk that fails on demand: the n-th write or sync, no space after n bytes, short writes.

It replaces `lanemq.log.filesystem.RealDisk`. Files are real, so what the log leaves after a fault can be opened again
with a healthy disk.
"""

import errno
import os
from collections import Counter
from pathlib import Path

from lanemq.log.filesystem import RealDisk


class FaultyDisk(RealDisk):
    """A disk without faults until a field is set, at any time. None turns a fault off."""

    def __init__(self) -> None:
        self.calls: Counter[str] = Counter()
        self.events: list[str] = []
        """The calls in order: create, write, fdatasync, fsync_dir."""
        self.failing_write: int | None = None
        """The number of the write, from now on, that fails with EIO: 1 is the next one."""
        self.failing_sync: int | None = None
        """The number of the fdatasync, from now on, that fails with EIO. Later ones succeed, as on a real disk."""
        self.space: int | None = None
        """Bytes that can still be written; then a short write, then ENOSPC."""
        self.max_write: int | None = None
        """Bytes that one call writes at most."""
        self.truncate_fails = False

    def create(self, path: Path) -> int:
        self.events.append("create")
        return super().create(path)

    def fsync_dir(self, path: Path) -> None:
        self.events.append("fsync_dir")
        super().fsync_dir(path)

    def write_at(self, fd: int, data: memoryview, offset: int) -> int:
        self.calls["write"] += 1
        self.events.append("write")
        self._fail_or_count("failing_write")
        if self.max_write is not None:
            data = data[: self.max_write]
        if self.space is not None:
            if self.space == 0:
                raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
            data = data[: self.space]
            self.space -= len(data)
        return super().write_at(fd, data, offset)

    def fdatasync(self, fd: int) -> None:
        self.calls["fdatasync"] += 1
        self.events.append("fdatasync")
        self._fail_or_count("failing_sync")
        super().fdatasync(fd)

    def truncate(self, fd: int, size: int) -> None:
        self.calls["truncate"] += 1
        if self.truncate_fails:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        super().truncate(fd, size)

    def _fail_or_count(self, fault: str) -> None:
        left = getattr(self, fault)
        if left is None:
            return
        setattr(self, fault, left - 1 if left > 1 else None)
        if left == 1:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
