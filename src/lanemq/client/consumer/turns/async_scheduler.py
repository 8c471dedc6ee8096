"""The scheduler for workers that are tasks of the event loop. All calls come from the loop."""

import asyncio

from lanemq.client.consumer.turns.in_progress import MessageRun, Worker
from lanemq.client.consumer.turns.scheduler import Scheduler, pause_of, watching
from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.consuming.runs import LaneRun, Order
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.units import Seconds, to_millis


class AsyncScheduler(Scheduler):
    """A `Scheduler` whose waiting workers do not block the loop."""

    def __init__(self, lanes: LaneScheduler[Message], order: Order, clock: Clock) -> None:
        super().__init__(lanes, order, clock)
        self._sleepers: list[asyncio.Future[None]] = []

    async def take_runs_async(self, worker: Worker) -> bool:
        """`take_runs` without blocking the loop."""
        with self._effects:
            self._in_progress.end(worker, self._clock.now())
        while not self._closed:
            with self._effects:
                now = self._clock.now()
                filled = self._fill(worker, now)
            if filled:
                return True
            await self._rest(pause_of(self._lanes.wait(), None, now))
        return False

    async def take_run_async(self, timeout: Seconds | None = None) -> MessageRun | None:
        """`take_run` without blocking the loop."""
        slept = False
        deadline = None if timeout is None else self._clock.now() + to_millis(timeout)
        while not self._closed:
            now = self._clock.now()
            with self._mutex:
                found = self._in_progress.take_run(now)
                if isinstance(found, LaneRun):
                    if slept:
                        self._wake(1)
                    return found
            if deadline is not None and now >= deadline:
                return None
            slept = True
            await self._sleep(pause_of(found, deadline, now))
        return None

    async def _rest(self, pause: float | None) -> None:
        """Sleeps, and watches the busy workers if no other worker does."""
        if not self._must_watch():
            await self._sleep(pause)
            return
        self._watched = True
        try:
            await self._sleep(watching(pause))
        except asyncio.CancelledError:
            self._wake(1)  # another worker must watch
            raise
        finally:
            self._watched = False

    async def _sleep(self, pause: float | None) -> None:
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        try:
            # Not `wait_for`: before Python 3.12 it loses a cancellation that arrives together with the result.
            async with asyncio.timeout(pause):
                await sleeper
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if sleeper not in self._sleepers:  # woken already: another worker must look
                self._wake(1)
            raise
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def _wake(self, most: int) -> None:
        for _ in range(min(most, len(self._sleepers))):
            sleeper = self._sleepers.pop(0)
            if not sleeper.done():
                sleeper.set_result(None)

    def _wake_all(self) -> None:
        self._wake(len(self._sleepers))
