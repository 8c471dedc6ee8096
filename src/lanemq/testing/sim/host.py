"""A simulated process: what runs in it, whether it gets time, and its clock.

Everything on the loop has its process in its context; tasks, timers and callbacks inherit it. So a process can be
frozen (nothing of it runs until later) or killed.
"""

import asyncio
from collections.abc import Callable, Coroutine
from contextvars import Context, ContextVar, copy_context
from typing import Any

from lanemq.model.units import Millis

HERE: ContextVar["Host | None"] = ContextVar("simulated process", default=None)
FIRST_WALL_MS = 1_700_000_000_000


class MachineClock:
    """The clocks of one machine. `rate` is the speed of both; the wall clock may also jump."""

    def __init__(self, loop: asyncio.AbstractEventLoop, rate: float, began_ms: int) -> None:
        self.rate = rate
        self.jumped_ms = 0
        self._began_ms = began_ms
        self._loop = loop

    def now(self) -> Millis:
        return Millis(self._began_ms + int(self._loop.time() * 1000 * self.rate))

    def wall(self) -> Millis:
        return Millis(FIRST_WALL_MS + self.jumped_ms + int(self._loop.time() * 1000 * self.rate))

    def true_ns(self, shown_ns: int) -> int:
        """The time on the simulation's clock at which this machine's monotonic clock shows `shown_ns`."""
        return int((shown_ns - self._began_ms * 1_000_000) / self.rate)


class Host:
    """One run of a process. A restarted process is a new one with the same name, on the same machine."""

    def __init__(self, name: str, clock: MachineClock, loop: asyncio.AbstractEventLoop) -> None:
        self.name = name
        self.clock = clock
        self.frozen = False
        self.dead = False
        """Killed: what still unwinds in it has no effect outside."""
        self.deferred: list[tuple[Host | None, asyncio.Handle]] = []
        self.tasks: dict[asyncio.Task[Any], None] = {}
        self._loop = loop
        self.context: Context = copy_context()
        self.context.run(HERE.set, self)

    def run(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        """Starts something inside this process."""
        return self._loop.create_task(work, context=self.context)

    def call(self, callback: Callable[..., object], *given: Any) -> None:
        self._loop.call_soon(callback, *given, context=self.context)

    def __str__(self) -> str:
        return self.name
