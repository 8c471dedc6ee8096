"""The scheduler for workers that are tasks of the event loop. All calls come from the loop."""

import asyncio

from lanemq.client.consumer.turns.scheduler import MessageRun, MessageWorker, Scheduler, watching
from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.units import Seconds


class AsyncScheduler(Scheduler):
    """A `Scheduler` whose waiting workers do not block the loop."""

    def __init__(self, lanes: LaneScheduler[Message], clock: Clock) -> None:
        super().__init__(lanes, clock)
        self._sleepers: list[asyncio.Future[None]] = []

    async def take_runs_async(self, worker: MessageWorker) -> bool:
        """`take_runs` without blocking the loop."""
        with self as lanes:
            lanes.worker_returned(worker, now=self._clock.now(), returned_ns=self._nanos())
        while not self._closed:
            with self:
                filled = self._fill(worker)
            if filled:
                return True
            await self._sleep(self._pause(None), watch=self._must_watch())
        return False

    async def take_run_async(self, timeout: Seconds | None = None) -> MessageRun | None:
        """`take_run` without blocking the loop."""
        slept, deadline = False, self._deadline(timeout)
        while not self._closed:
            with self:
                run = self._single_run(wake_another=slept)
            if run is not None or (deadline is not None and self._clock.now() >= deadline):
                return run
            slept = True
            await self._sleep(self._pause(deadline), watch=False)
        return None

    async def _sleep(self, pause: float | None, *, watch: bool) -> None:
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        self._watched |= watch
        another_must_look = False
        try:
            # Not `wait_for`: before Python 3.12 it loses a cancellation that arrives together with the result.
            async with asyncio.timeout(watching(pause) if watch else pause):
                await sleeper
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            another_must_look = watch or sleeper not in self._sleepers  # woken already
            raise
        finally:
            if watch:
                self._watched = False
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)
            if another_must_look:
                self._wake(1)

    def _wake(self, most: int) -> None:
        for _ in range(min(most, len(self._sleepers))):
            sleeper = self._sleepers.pop(0)
            if not sleeper.done():
                sleeper.set_result(None)

    def _wake_all(self) -> None:
        self._wake(len(self._sleepers))
