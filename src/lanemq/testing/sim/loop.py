"""An event loop on virtual time: its clock jumps to the next timer when nothing is left to run.

All processes share one loop. The order of everything on it follows from the order of the calls alone: timers for the
same time run in the order in which they were set, and sets of tasks are iterated in the order of their creation.
"""

import asyncio
import heapq
from collections import deque
from collections.abc import Callable, Coroutine
from contextvars import Context
from typing import Any, NoReturn, TypeVarTuple, Unpack

from lanemq.testing.sim.host import HERE, Host

Ts = TypeVarTuple("Ts")

Connect = Callable[[Host, Callable[[], asyncio.BaseProtocol], str, int], Coroutine[Any, Any, Any]]


class NumberedTask(asyncio.Task[Any]):
    """A task whose hash is a serial number, so that asyncio's sets of tasks have the same order in every run."""

    number = 0

    def __hash__(self) -> int:
        return self.number


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop on virtual time. `on_error` is called with unhandled errors."""

    def __init__(self, on_error: Callable[[Host | None, dict[str, Any]], None]) -> None:
        super().__init__()
        self.connect: Connect = _no_network
        self.steps = 0
        self._moment = 0.0
        self._waiting: deque[tuple[Host | None, asyncio.Handle]] = deque()
        self._timers: list[tuple[float, int, Host | None, asyncio.TimerHandle]] = []
        self._numbers = 0
        self._running: Host | None = None
        self.set_task_factory(_numbered)
        self.set_exception_handler(lambda _, context: on_error(self._running, context))

    def time(self) -> float:
        return self._moment

    def call_soon(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        handle = asyncio.Handle(callback, args, self, context)
        self._waiting.append((HERE.get() if context is None else context.get(HERE), handle))
        return handle

    def call_soon_threadsafe(
        self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        return self.call_soon(callback, *args, context=context)

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        return self.call_at(self._moment + delay, callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        timer = asyncio.TimerHandle(when, callback, args, self, context)
        host = HERE.get() if context is None else context.get(HERE)
        heapq.heappush(self._timers, (when, self.next_number(), host, timer))
        return timer

    def next_number(self) -> int:
        self._numbers += 1
        return self._numbers

    def thaw(self, host: Host) -> None:
        """Ends a freeze. What came due during it runs now, in that order."""
        host.frozen = False
        self._waiting.extend(host.deferred)
        host.deferred.clear()

    def end(self, host: Host) -> None:
        """Kills a process: nothing in it has an effect from now on, and its tasks are cancelled."""
        host.dead = True
        self.thaw(host)
        for task in tuple(host.tasks):
            task.cancel()

    async def create_connection(self, protocol_factory: Any, host: Any = None, port: Any = None, **_: Any) -> Any:
        caller = HERE.get()
        assert caller is not None, "only a simulated process can connect"
        return await self.connect(caller, protocol_factory, host, port)

    # what asyncio's own loop calls

    def _run_once(self) -> None:
        timers, waiting = self._timers, self._waiting
        while timers and timers[0][3].cancelled():
            heapq.heappop(timers)
        if not waiting:
            if not timers:
                raise RuntimeError("every task waits and no timer is set")
            self._moment = max(self._moment, timers[0][0])
        while timers and timers[0][0] <= self._moment:
            _, _, host, timer = heapq.heappop(timers)
            waiting.append((host, timer))
        for _ in range(len(waiting)):
            host, handle = entry = waiting.popleft()
            if handle.cancelled():
                continue
            if host is not None and host.frozen:
                host.deferred.append(entry)
                continue
            self.steps += 1
            self._running = host
            handle._run()  # noqa: SLF001 - the only way to run a handle; asyncio's own loops do the same

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """A cancelled timer stays in the heap until its time."""

    def _process_events(self, event_list: Any) -> None:
        """There are no sockets."""

    def _write_to_self(self) -> None:
        """There are no other threads."""


def _numbered(loop: Any, work: Any, context: Context | None = None) -> NumberedTask:
    # Its hash is needed while it is created, so the number is first set on the class.
    NumberedTask.number = loop.next_number()
    task = NumberedTask(work, loop=loop, context=context)
    task.number = NumberedTask.number
    host = HERE.get() if context is None else context.get(HERE)
    if host is not None:
        host.tasks[task] = None
        task.add_done_callback(lambda done: host.tasks.pop(done, None))
    return task


def _no_network(*_: object) -> NoReturn:
    raise OSError("this loop has no network")
