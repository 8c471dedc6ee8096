"""Signals: a consumer finishes, commits and unlocks before its process ends.

`stop_on_signals` is for a consumer on the main thread's event loop (`App.run`), `TERMINATION` for consumers in
the background. In both cases a second signal stops at once.

A forked child inherits handlers, and the socket by which signals reach the parent's event loop: a signal for the child
would stop the parent's consumer and not the child. So a child begins with the default handlers. Until they are set,
signals wait: the thread that forks blocks them.
"""

import asyncio
import contextlib
import os
import signal
import threading
from collections.abc import Callable, Collection, Iterator
from types import FrameType

from lanemq.background_log import ClientLog
from lanemq.forking import tell_child

log = ClientLog(__name__)

SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextlib.contextmanager
def stop_on_signals(stop: Callable[..., None]) -> Iterator[None]:
    """Calls `stop` on the first SIGINT or SIGTERM and `stop(now=True)` on the next; restores the handlers at the end.

    Only the main thread can handle signals; on another thread this does nothing.
    """
    loop = asyncio.get_running_loop()
    seen = 0

    def received(number: int) -> None:
        nonlocal seen
        seen += 1
        name = signal.Signals(number).name
        if seen == 1:
            log.info("%s: finishing running handlers, then stopping; send it again to stop at once", name)
            stop()
        else:
            log.warning("%s again: stopping at once", name)
            stop(now=True)

    added = _LoopSignals()
    try:
        for number in SIGNALS:
            loop.add_signal_handler(number, received, number)
            added.numbers.append(number)
    except (RuntimeError, ValueError, NotImplementedError) as error:
        log.debug("signals are not handled here: %s", error)
    try:
        yield
    finally:
        for number in added.numbers:
            loop.remove_signal_handler(number)
        added.numbers.clear()


class _LoopSignals:
    """The signals that an event loop handles for a consumer."""

    def __init__(self) -> None:
        self.numbers: list[signal.Signals] = []
        tell_child(self)

    def forked(self) -> None:
        if self.numbers:
            signal.set_wakeup_fd(-1)
        for number in self.numbers:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
        self.numbers.clear()


class Termination:
    """Delays SIGTERM until all consumers of the process have finished.

    The handler is installed only on the main thread, and only if SIGTERM has its default handler: a program with its
    own handler decides when to close. Ctrl-C raises as usual, and the `with` block closes the consumer.
    """

    def __init__(self) -> None:
        self._finishers: dict[object, Callable[[], None]] = {}
        self._received_once = False
        self._send_again = False
        tell_child(self)

    def forked(self) -> None:
        """The consumers are the parent's: the child ends by SIGTERM as it would without them."""
        if self._finishers:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._finishers.clear()

    def listen(self, finish: Callable[[], None], *, again: bool) -> object | None:
        """Calls `finish` on SIGTERM; returns None if this process handles the signal itself.

        `finish` interrupts the main thread at any point, so it must not take a lock: it hands the work to an event
        loop. With `again` the signal is sent again when all have finished, for a program that would not end otherwise.
        """
        if not self._finishers and not self._install():
            return None
        token = object()
        self._finishers[token] = finish
        self._send_again = self._send_again or again
        return token

    def forget(self, token: object | None) -> None:
        """Removes a listener that has finished or no longer needs the signal."""
        if self._finishers.pop(token, None) is None or self._finishers:
            return
        if self._received_once and self._send_again:
            os.kill(os.getpid(), signal.SIGTERM)
        elif not self._received_once:
            with contextlib.suppress(ValueError):  # not the main thread: `_received` restores the default instead
                signal.signal(signal.SIGTERM, signal.SIG_DFL)

    def _install(self) -> bool:
        if threading.current_thread() is not threading.main_thread():
            return False
        if signal.getsignal(signal.SIGTERM) not in (signal.SIG_DFL, self._received):
            return False
        self._received_once = self._send_again = False
        signal.signal(signal.SIGTERM, self._received)
        return True

    def _received(self, number: int, frame: FrameType | None) -> None:
        signal.signal(number, signal.SIG_DFL)
        if not self._finishers:
            os.kill(os.getpid(), number)
            return
        self._received_once = True
        for finish in tuple(self._finishers.values()):
            finish()


TERMINATION = Termination()


class _Forking(threading.local):
    """The signals that a thread had blocked before it forked."""

    blocked: Collection[int] = ()

    def before(self) -> None:
        self.blocked = signal.pthread_sigmask(signal.SIG_BLOCK, SIGNALS)

    def after(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, self.blocked)


_forking = _Forking()
if hasattr(os, "register_at_fork"):
    # In the child, hooks run in the order of their registration: `lanemq.forking` has set the handlers before `after`.
    os.register_at_fork(before=_forking.before, after_in_parent=_forking.after, after_in_child=_forking.after)
