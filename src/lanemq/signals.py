"""What a program does on SIGINT and SIGTERM, for as long as one of its parts runs."""

import contextlib
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType


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
