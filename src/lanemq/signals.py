"""What a program does on SIGINT and SIGTERM, for as long as one of its parts runs, and when its parent is killed.

A parent that is killed cannot stop its child processes. They hold the read end of a pipe whose write end only the
parent has: the end of the file means that the parent is gone, on every POSIX system, and they end as on SIGTERM.
"""

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import Any

PARENT_PIPE = "LANEMQ_PARENT_PIPE"
"""Environment variable by which a child process gets the number of its end of the pipe."""


@contextlib.contextmanager
def handled(received: Callable[[int, FrameType | None], None]) -> Iterator[None]:
    """Calls `received` on SIGINT and SIGTERM until the block ends, and then restores the handlers from before.

    In another thread than the main one nothing changes: Python sets handlers only there.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {number: signal.signal(number, received) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            if handler is not None:  # None: installed by C code, which Python cannot set again
                signal.signal(number, handler)


class ChildProcesses:
    """Starts child processes that end when this process is gone; each of them calls `end_with_parent`."""

    def __init__(self) -> None:
        self._read_end, self._write_end = os.pipe()

    def start(
        self, words: list[str], environment: dict[str, str] | None = None, **options: Any
    ) -> subprocess.Popen[bytes]:
        """Starts one. It gets a session of its own, so that the terminal sends Ctrl-C to this process alone."""
        known = os.environ if environment is None else environment
        return subprocess.Popen(
            words,
            env={**known, PARENT_PIPE: str(self._read_end)},
            pass_fds=(self._read_end,),
            start_new_session=True,
            **options,
        )

    def close(self) -> None:
        """Ends the children that still run."""
        os.close(self._write_end)
        os.close(self._read_end)


def end_with_parent() -> None:
    """Sends this process a SIGTERM when the process that started it is gone, if `ChildProcesses` started it.

    Processes that this one starts get neither the pipe nor the variable.
    """
    number = os.environ.pop(PARENT_PIPE, "")
    if not number.isdecimal():
        return
    with contextlib.suppress(OSError):  # the variable is from elsewhere, and there is no such pipe
        os.set_inheritable(int(number), False)
        threading.Thread(target=_wait_for_end, args=(int(number),), name="lanemq-parent", daemon=True).start()


def _wait_for_end(pipe: int) -> None:
    os.read(pipe, 1)
    os.kill(os.getpid(), signal.SIGTERM)
