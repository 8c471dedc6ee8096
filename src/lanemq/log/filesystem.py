"""The disk port: every byte that the log reads or writes passes through it.

Tests replace it by a failing disk (`tests/faulty_disk.py`). Calls raise plain `OSError`; `commit_log` decides
what an error means. Writes go to explicit offsets and never through a memory map, which would report write errors too
late.
"""

import errno
import os
from pathlib import Path
from typing import Protocol

NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
NO_DESCRIPTORS = (errno.EMFILE, errno.ENFILE)
"""Errors after which nothing is lost, and the next attempt may succeed."""

_FLAGS = os.O_RDWR | os.O_CLOEXEC


class Disk(Protocol):
    """The operations that the log needs from an operating system."""

    def create(self, path: Path) -> int:
        """A descriptor of a new file; fails if the file exists."""
        ...

    def open(self, path: Path) -> int: ...

    def close(self, fd: int) -> None: ...

    def write_at(self, fd: int, data: memoryview, offset: int) -> int:
        """Write bytes and return how many were written: possibly fewer than given."""
        ...

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        """Up to `size` bytes; fewer only at the end of the file."""
        ...

    def fdatasync(self, fd: int) -> None: ...

    def fsync_dir(self, path: Path) -> None:
        """Make created, renamed and removed names of a folder survive a power cut."""
        ...

    def truncate(self, fd: int, size: int) -> None: ...

    def size(self, fd: int) -> int: ...

    def is_removed(self, fd: int) -> bool:
        """Whether an open file has no name any more: what is written to it is gone when it is closed."""
        ...

    def drop_cache(self, fd: int) -> None:
        """Drop cached pages, so that the next read shows what the device really holds."""
        ...

    def names(self, path: Path) -> list[str]: ...

    def make_dir(self, path: Path) -> None: ...

    def unlink(self, path: Path) -> None: ...

    def rename(self, old: Path, new: Path) -> None: ...

    def free_space(self, path: Path) -> tuple[int, int]:
        """Bytes that may still be written to the file system of a folder, and its size."""
        ...


class RealDisk:
    """The files of the operating system."""

    def create(self, path: Path) -> int:
        return os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o640)

    def open(self, path: Path) -> int:
        return os.open(path, _FLAGS)

    def close(self, fd: int) -> None:
        os.close(fd)

    def write_at(self, fd: int, data: memoryview, offset: int) -> int:
        return os.pwrite(fd, data, offset)

    def read_at(self, fd: int, size: int, offset: int) -> bytes:
        data = os.pread(fd, size, offset)
        while len(data) < size and (more := os.pread(fd, size - len(data), offset + len(data))):
            data += more
        return data

    def fdatasync(self, fd: int) -> None:
        os.fdatasync(fd)

    def fsync_dir(self, path: Path) -> None:
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        finally:
            os.close(fd)

    def truncate(self, fd: int, size: int) -> None:
        os.ftruncate(fd, size)

    def size(self, fd: int) -> int:
        return os.fstat(fd).st_size

    def is_removed(self, fd: int) -> bool:
        return os.fstat(fd).st_nlink == 0

    def drop_cache(self, fd: int) -> None:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def names(self, path: Path) -> list[str]:
        return sorted(entry.name for entry in path.iterdir())

    def make_dir(self, path: Path) -> None:
        path.mkdir(mode=0o750, parents=True, exist_ok=True)

    def unlink(self, path: Path) -> None:
        path.unlink(missing_ok=True)

    def rename(self, old: Path, new: Path) -> None:
        old.rename(new)

    def free_space(self, path: Path) -> tuple[int, int]:
        volume = os.statvfs(path)
        return volume.f_bavail * volume.f_frsize, volume.f_blocks * volume.f_frsize


def write_fully(disk: Disk, fd: int, data: bytes | bytearray, offset: int) -> None:
    """Write all of the data, continuing short writes, or raise."""
    rest = memoryview(data)
    while rest:
        written = disk.write_at(fd, rest, offset)
        if written <= 0:
            raise OSError(errno.EIO, "the disk accepted no bytes")
        offset += written
        rest = rest[written:]
