"""One broker per data folder: two brokers that append to the same log would destroy it.

The folder is locked with `flock`: the operating system drops the lock when the process ends, however it ends, so a
stale lock file never needs cleaning up. Both the folder itself and the file `lock` in it are locked: the file can be
deleted while a broker runs, and file systems on a network may refuse to lock a folder.
"""

import contextlib
import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path

from lanemq.model.errors import LogInUse

LOCK = "lock"

_TAKEN = (errno.EWOULDBLOCK, errno.EACCES)


class DataLock:
    """Holds a data folder until closed. The file `lock` contains the holder's process id, for error messages.

    With `reading`, readers share the folder and keep brokers out. They change nothing, so a folder on a read-only file
    system can be locked as well.
    """

    def __init__(self, folder: Path, *, reading: bool = False) -> None:
        self._folder = folder
        self._fds: list[int] = []
        try:
            self._take(os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC), reading)
            file = self._lock_file(reading)
            if file is not None:
                self._take(file, reading)
                if not reading:
                    os.ftruncate(file, 0)
                    with contextlib.suppress(OSError):  # on a full disk, messages call the process unknown
                        os.pwrite(file, f"{os.getpid()}\n".encode(), 0)
        except BaseException:
            self.close()
            raise

    def _lock_file(self, reading: bool) -> int | None:
        path = self._folder / LOCK
        if not reading:
            return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            return os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return None

    def _take(self, fd: int, reading: bool) -> None:
        self._fds.append(fd)
        try:
            fcntl.flock(fd, (fcntl.LOCK_SH if reading else fcntl.LOCK_EX) | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno not in _TAKEN and len(self._fds) == 1:
                return  # this file system cannot lock folders: the file is left
            raise LogInUse(
                f"data folder {self._folder} is used by another broker (process {_process_in(self._folder)}): "
                f"stop that one, or start this one with another data folder"
            ) from error

    @property
    def closed(self) -> bool:
        return not self._fds

    def lost(self) -> bool:
        """Whether the path leads to another folder, or to none: it was removed or renamed, or its disk is unmounted."""
        return not self.closed and not any(map(_is_same, self._fds, (self._folder, self._folder / LOCK)))

    def close(self) -> None:
        """Release the folder. Repeating it does nothing."""
        while self._fds:
            os.close(self._fds.pop())


@contextlib.contextmanager
def locked_folder(folder: Path) -> Iterator[None]:
    """Keep brokers, backups and restores out of a folder, without a file in it. The lock follows the folder if it is
    renamed."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            if error.errno in _TAKEN:  # other errors: this file system cannot lock folders
                raise LogInUse(
                    f"folder {folder} is used by a broker, or by another backup or restore: wait for its end, or "
                    f"choose another folder"
                ) from error
        yield
    finally:
        os.close(fd)


def holder(folder: Path) -> str | None:
    """The process id of the broker that uses a folder, `unknown` if its lock file is gone; None if there is none."""
    try:
        DataLock(folder, reading=True).close()
    except LogInUse:
        return _process_in(folder)
    except OSError:
        return None
    return None


def _is_same(fd: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(fd), path.stat())
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError:
        return True  # it cannot be asked, which says nothing


def _process_in(folder: Path) -> str:
    try:
        return (folder / LOCK).read_bytes()[:32].decode("ascii", "replace").strip() or "unknown"
    except OSError:
        return "unknown"
