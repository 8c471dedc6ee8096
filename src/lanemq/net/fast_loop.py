"""The event loop of brokers and of consumers that have a loop of their own."""

import _thread
import asyncio
from collections.abc import Callable
from types import BuiltinFunctionType


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes a faster event loop where uvloop is installed (extra `fast`); None: asyncio's own is used.

    Pass it to `asyncio.Runner`. A loop of the user's program is never replaced. Where gevent or eventlet have replaced
    threads by greenlets, asyncio's own is used, too: uvloop waits in C, and would stop all greenlets of the program.
    """
    if not isinstance(_thread.start_new_thread, BuiltinFunctionType):
        return None
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
