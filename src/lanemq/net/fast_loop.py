"""The event loop of brokers and of consumers that have a loop of their own."""

import asyncio
from collections.abc import Callable


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Makes a faster event loop where uvloop is installed (extra `fast`); None: asyncio's own is used.

    Pass it to `asyncio.Runner`. A loop of the user's program is never replaced.
    """
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
