"""SIGTERM for consumers in the background: it is put off until they have finished, committed and unlocked.

One listener per process for all of them. It comes into being only on the main thread, and only where SIGTERM
still means what it means by default: a program with a handler of its own decides itself when to close. A second
signal ends the process at once. Ctrl-C stays Python's: it raises, and the `with` block closes the consumer.
"""

import contextlib
import os
import signal
import threading
from collections.abc import Callable
from types import FrameType


class Termination:
    """Who wants to finish before the process ends."""

    def __init__(self) -> None:
        self._asked: dict[object, Callable[[], None]] = {}
        self._came = False
        self._again = False

    def listen(self, finish: Callable[[], None], *, again: bool) -> object | None:
        """Calls `finish` when the signal comes; None if it is not for us to listen.

        `finish` interrupts the main thread anywhere, so it must not take a lock: hand the work to an event loop.
        `again`: the signal is sent again when all have finished, for a program that does not end by itself.
        """
        if not self._asked and not self._install():
            return None
        token = object()
        self._asked[token] = finish
        self._again = self._again or again
        return token

    def forget(self, token: object | None) -> None:
        """This one has finished, or does not want to know any more."""
        if self._asked.pop(token, None) is None or self._asked:
            return
        if self._came and self._again:
            os.kill(os.getpid(), signal.SIGTERM)
        elif not self._came:
            with contextlib.suppress(ValueError):  # not the main thread: `_received` makes up for it
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _install(self) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, self._received):
            return False
        self._came = self._again = False
        signal.signal(signal.SIGTERM, self._received)
        return True

    def _received(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if not self._asked:
            os.kill(os.getpid(), number)
            return
        self._came = True
        for finish in tuple(self._asked.values()):
            finish()


TERMINATION = Termination()
