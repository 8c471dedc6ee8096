"""The end of a program: producers that were not closed, and a `close` inside a signal handler.

A program that ends without `close` would lose what its producers have accepted. So the exit closes them, and waits for
their brokers for a while. What is left then is reported in the log.

A signal handler runs in the main thread, in the middle of whatever that thread does. If that is a call of a producer
or consumer, a future's or the log's, it may hold a lock, and a `close` that waits for other threads would wait for
itself. Such a `close` continues in a thread of its own, which the exit waits for.

A handler that raises ends such a call in the middle. The producer notices that and gives up: what it had accepted
fails, with a warning, instead of being lost unnoticed.
"""

import threading
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Protocol

from lanemq.background_log import ClientLog, write_the_rest
from lanemq.forking import call_at_end

log = ClientLog(__name__)

EXIT_SECONDS = 10.0
"""How long the exit of a program waits for messages that were accepted. Longer, and a program that cannot reach its
broker seems to hang at its end."""

_LOCKING = (
    "lanemq.client.producer",
    "lanemq.client.consumer.consumer",
    "lanemq.client.consumer.engine",
    "lanemq.client.consumer.inspection",
    "lanemq.client.routing",
    "lanemq.net.calling.blocking",
    "concurrent.futures",
    "logging",
)
"""Modules in which the main thread may hold a lock that another thread of a producer or consumer needs."""


class Ending(Protocol):
    """A producer that has to be closed, or reported, before the program ends."""

    def end_with_program(self, seconds: float) -> None: ...


_open: "weakref.WeakSet[Ending]" = weakref.WeakSet()
_closers: set[threading.Thread] = set()


def watch(producer: Ending) -> None:
    """Ends the producer with the program, if it is still open then."""
    _open.add(producer)
    call_at_end(end_all, priority=10)


def end_all() -> None:
    """Closes everything that is open. Called once, at the end of the program."""
    for producer in list(_open):
        try:
            producer.end_with_program(EXIT_SECONDS)
        except Exception:
            log.exception("a producer could not be closed at the end of the program")
    for closer in tuple(_closers):
        closer.join(EXIT_SECONDS)
    write_the_rest()


call_at_end(end_all, priority=10)


def interrupts_a_call(frame: FrameType | None) -> bool:
    """Whether the caller is a signal handler that runs inside a call which may hold a lock; `frame` is the caller's."""
    if threading.current_thread() is not threading.main_thread():
        return False
    while frame is not None:
        if str(frame.f_globals.get("__name__", "")).startswith(_LOCKING):
            return True
        frame = frame.f_back
    return False


def close_here_or_aside(close: Callable[[], None], frame: FrameType | None) -> None:
    """Closes, in a thread of its own if the caller is a signal handler inside a call; `frame` is the caller's."""
    if interrupts_a_call(frame):
        close_aside(close)
    else:
        close()


def close_aside(close: Callable[[], None]) -> None:
    """Closes in a thread of its own; returns at once."""

    def run() -> None:
        try:
            close()
        finally:
            _closers.discard(closer)

    closer = threading.Thread(target=run, name="lanemq-close", daemon=True)
    _closers.add(closer)
    closer.start()
