"""Space that is kept for `state.db` on a disk that other programs may fill.

Locks, resets, offsets and the settings of groups are rows of `state.db`. SQLite needs space for each of them: for its
write-ahead log, which grows to about 4 MiB and is then used again, and sometimes for the database itself. On a disk
without a free byte all of them would be refused, so a group could not even change the owner of a queue to read what is
stored. So a file beside the database takes some space, and is deleted when a row meets the full disk.

The file is made when the broker starts, and again when the disk has room. While the broker serves, `take` and `release`
run on the row thread, one after the other. A start on a full disk uses the reserve too: it writes a checkpoint.
"""

import contextlib
import logging
import os
from pathlib import Path

log = logging.getLogger(__name__)

MAX_RESERVE_BYTES = 8 * 1024 * 1024
"""Twice as much as the write-ahead log needs."""
SHARE_OF_WATERMARK = 4
"""The reserve is at most this part of the low-space watermark, so that small disks can be used."""
FILE = "reserve"


def reserve_bytes(watermark: int) -> int:
    """The size of the reserve for a low-space watermark; 0 without one."""
    return min(MAX_RESERVE_BYTES, watermark // SHARE_OF_WATERMARK)


class SpaceReserve:
    """The reserve of one data folder."""

    def __init__(self, folder: Path, *, possible: bool = hasattr(os, "posix_fallocate")) -> None:
        self._path = folder / FILE
        self.possible = possible
        """Whether space can be reserved on this system."""
        self.held = self._path.exists()
        """Whether there is something to release."""

    def take(self, size: int) -> None:
        """Take the space, if it is not taken. If the disk has no room, a later call tries again."""
        if self.held or not size or not self.possible:
            return
        try:
            fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
            try:
                os.posix_fallocate(fd, 0, size)
            finally:
                os.close(fd)
        except OSError as error:
            log.debug("no space is reserved in %s: %s", self._path, error)
            self._remove()
        else:
            self.held = True

    def release_if_full(self) -> None:
        """Give the space back if the disk has less left than that. At a start: once the folder is locked, because the
        reserve of a running broker is not ours, and before anything is written."""
        with contextlib.suppress(OSError):  # there is no folder yet, or no reserve
            volume, size = os.statvfs(self._path.parent), self._path.stat().st_size
            if volume.f_bavail * volume.f_frsize < size:
                self.release()

    def release(self) -> bool:
        """Give the space back, because a row needs it; whether there was any."""
        if not self.held:
            return False
        self.held = False
        log.error("the disk is full: %s is deleted, so that locks, offsets and settings can still be saved", self._path)
        return self._remove()

    def _remove(self) -> bool:
        with contextlib.suppress(OSError):
            self._path.unlink()
            return True
        return False
