"""One broker per data folder: two brokers that append to the same log would destroy it.

The folder is locked with `flock`: the operating system drops the lock when the process ends, however it ends, so a
stale lock file never needs cleaning up.
"""

import fcntl
import os
from pathlib import Path

from lanemq.model.errors import LogInUse


class DataLock:
    """Holds `<folder>/lock` until closed. The file contains the holder's process id, for error messages."""

    def __init__(self, folder: Path) -> None:
        self._fd = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            holder = os.pread(self._fd, 32, 0).decode("ascii", "replace").strip() or "unknown"
            os.close(self._fd)
            raise LogInUse(
                f"data folder {folder} is used by another broker (process {holder}): "
                f"stop that one, or start this one with another data folder"
            ) from error
        os.ftruncate(self._fd, 0)
        os.pwrite(self._fd, f"{os.getpid()}\n".encode(), 0)

    @property
    def closed(self) -> bool:
        return self._fd < 0

    def close(self) -> None:
        """Release the folder. Repeating it does nothing."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1
