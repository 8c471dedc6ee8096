"""One member per Spark application and group.

Every load of a streaming query is planned by a Python process of its own, and each would be a member of the group: two
loads of one topic would get half of its queues each, and a join of them would silently miss most of its rows.

The processes of one application have the JVM as their parent. Each holds the lock of a file that is named after the JVM
and the group. The system drops the lock when the process ends, however it ends, so a query that starts again after a
crash does not wait for a timeout.
"""

import fcntl
import os
import tempfile
import threading
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import UsageError
from lanemq.model.units import Millis

WAIT: Final = Millis(10_000)
"""How long a load waits for another one that is ending, such as that of the query which was stopped before."""


class OneLoad:
    """The right of one load to be the member of its group in a Spark application."""

    def __init__(self, driver: int, group: str, wait: Millis = WAIT, clock: Clock | None = None) -> None:
        """`driver`: the process id of the JVM. `UsageError` if another load of it has the group after `wait`."""
        name = sha256(group.encode()).hexdigest()[:16]
        self._path = _folder() / f"{driver}-{name}"
        self._file = -1
        clock = clock or SystemClock()
        until = clock.now() + wait
        while not self._take():
            if clock.now() >= until:
                raise UsageError(
                    f"group {group!r}: this Spark application has another load of this group. Each load is a member, "
                    f"so each would get only some of the queues. Load the topic once and use the data frame twice, or "
                    f"give every load a group of its own"
                )
            threading.Event().wait(0.05)

    def close(self) -> None:
        """Give the group up. May be called again."""
        if self._file >= 0:
            with suppress(OSError):
                self._path.unlink()
            os.close(self._file)
            self._file = -1

    def _take(self) -> bool:
        file = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # The former holder may have removed the file between open and lock; then others lock another one.
            if os.fstat(file).st_ino == self._path.stat().st_ino:
                self._file = file
                return True
        except OSError:
            pass
        os.close(file)
        return False


def _folder() -> Path:
    folder = Path(tempfile.gettempdir()) / f"lanemq-spark-{os.getuid()}"
    folder.mkdir(mode=0o700, exist_ok=True)
    return folder
