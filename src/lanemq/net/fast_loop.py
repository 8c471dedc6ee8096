"""The event loop of brokers and of consumers that have a loop of their own."""

import _thread
import asyncio
import sys
from collections.abc import Callable
from importlib import import_module
from types import BuiltinFunctionType
from typing import Any

LoopFactory = Callable[[], asyncio.AbstractEventLoop] | None
"""For `asyncio.Runner`; None: asyncio's own loop is used."""


def fast_loop() -> LoopFactory:
    """Makes a faster event loop where uvloop is installed (extra `fast`). A loop of the program is never replaced.

    Not where gevent or eventlet have replaced threads by greenlets: uvloop waits in C, and would stop all of them.
    """
    if _has_greenlets():
        return _loop_of_greenlet
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


def plain_loop() -> LoopFactory:
    """Makes the event loop of `asyncio.run`, one for each greenlet where there are greenlets."""
    return _loop_of_greenlet if _has_greenlets() else None


def _has_greenlets() -> bool:
    return not isinstance(_thread.start_new_thread, BuiltinFunctionType)


def _loop_of_greenlet() -> asyncio.AbstractEventLoop:
    """asyncio's own loop, where each greenlet may run one."""
    greenlet = import_module("greenlet")  # there is one where gevent or eventlet are
    if not isinstance(greenlet.gettrace(), _LoopPerGreenlet):
        greenlet.settrace(_LoopPerGreenlet(greenlet.gettrace()))
    return asyncio.new_event_loop()


class _LoopPerGreenlet:
    """Changes the running loop whenever greenlets change.

    Greenlets are one thread to asyncio, which has one running loop in a thread. Without this, a second loop is refused,
    and one that continues after another greenlet has run does not know that it runs.
    """

    def __init__(self, other: Callable[[str, Any], object] | None) -> None:
        self._other = other
        """A tracer that was there before."""
        self._away: dict[Any, tuple[asyncio.AbstractEventLoop, Any]] = {}
        """Greenlet that does not run → its loop, with the hooks for asynchronous generators that the loop has set."""

    def __call__(self, event: str, change: Any) -> None:
        if event in ("switch", "throw"):
            origin, target = change
            running = asyncio._get_running_loop()  # noqa: SLF001 - for whoever runs event loops
            if running is not None or target in self._away:
                if running is not None:
                    self._away[origin] = running, sys.get_asyncgen_hooks()
                loop, hooks = self._away.pop(target, (None, (None, None)))
                asyncio._set_running_loop(loop)  # noqa: SLF001
                sys.set_asyncgen_hooks(*hooks)
        if self._other is not None:
            self._other(event, change)
