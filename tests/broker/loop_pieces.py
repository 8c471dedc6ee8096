"""How long the event loop of a broker in this process works without a pause.

A piece is one callback of the loop: until it ends, no other client is served. Times are processor times of the loop's
thread, so that other work on the machine does not count.
"""

import asyncio
import contextlib
import gc
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

LONG_SECONDS = 0.002


@dataclass
class Pieces:
    """The pieces since the start of a block, in seconds."""

    times: list[float] = field(default_factory=list)
    longest: float = 0.0
    what: str = ""
    """The callback of the longest one."""
    collecting: float = 0.0
    """The longest collection of garbage, which belongs to the callback that it meets."""

    def add(self, seconds: float, handle: asyncio.Handle) -> None:
        self.times.append(seconds)
        if seconds > self.longest:
            self.longest = seconds
            self.what = repr(handle) if seconds > LONG_SECONDS else ""

    @property
    def long(self) -> int:
        return sum(each > LONG_SECONDS for each in self.times)


@contextlib.contextmanager
def loop_pieces() -> Iterator[Pieces]:
    """Time every callback of the event loops of asyncio in this process."""
    run, pieces, began = asyncio.events.Handle._run, Pieces(), [0.0]

    def timed(handle: asyncio.Handle) -> None:
        begin = time.thread_time()
        try:
            run(handle)
        finally:
            pieces.add(time.thread_time() - begin, handle)

    def collected(phase: str, _: object) -> None:
        if phase == "start":
            began[0] = time.thread_time()
        else:
            pieces.collecting = max(pieces.collecting, time.thread_time() - began[0])

    asyncio.events.Handle._run = timed  # type: ignore[method-assign]
    gc.callbacks.append(collected)
    try:
        yield pieces
    finally:
        gc.callbacks.remove(collected)
        asyncio.events.Handle._run = run  # type: ignore[method-assign]
