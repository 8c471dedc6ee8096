"""Workers: take turns, run them, report them, take the next.

Threads run plain functions, a few tasks run coroutine functions. Nothing is created per message: a worker gets a
few runs of messages, each of one lane, and one visit to the board ends them and begins the next.
"""

import asyncio
import logging
import threading
from collections.abc import Callable, Coroutine
from typing import Any

from lanemq.client.consumer.async_scheduler import AsyncScheduler
from lanemq.client.consumer.in_progress import MessageFinished, MessageRun
from lanemq.client.consumer.metrics import ConsumerCounts, WorkerCounts
from lanemq.client.consumer.send_back import DeadLetters
from lanemq.client.consumer.subscription import ActiveSubscription
from lanemq.client.consumer.turn_run import TurnEnd, log_end, reason_of, run_worker, run_worker_async, stopped_at
from lanemq.client.consumer.visits import Worker
from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.consuming.retry_policy import SEND_BACK_RETRY, SendBack
from lanemq.core.consuming.runs import STOPPED, Plain, Suspend, Why
from lanemq.history import History, Place

log = logging.getLogger(__name__)


class RunReporter:
    """What follows a turn: the report, and messages that go to the broker. Works on the event loop."""

    def __init__(self, group: str, dead_letters: DeadLetters, history: History) -> None:
        self._group = group
        self._dead_letters = dead_letters
        self._history = history

    async def settle(self, active: ActiveSubscription, run: MessageRun, end: TurnEnd) -> MessageFinished:
        """Reports a turn's end and does what the scheduler asks for in return."""
        if end.stop.bury is not None:
            return await self._bury(active, run, end)
        finished = active.scheduler.finish(run, end.stop.outcome, end.done, reason_of(end))
        return await self.follow(active, run, end, finished)

    async def follow(
        self, active: ActiveSubscription, run: MessageRun, end: TurnEnd, finished: MessageFinished
    ) -> MessageFinished:
        """Hands messages over if asked to; their lane waits meanwhile, and goes on only when they are stored."""
        if finished.why is not Why.GIVE:
            return finished
        ok = [await self._give(active, message, end) for message in finished.send_back]
        return active.scheduler.sent_back(run, ok)

    async def _give(self, active: ActiveSubscription, message: Message, end: TurnEnd) -> bool:
        if isinstance(policy := active.subscription.policy, SendBack):
            return await self._sent_back(message, end.stop.delay_level, policy.retries)
        return await self._buried(message, repr(end.stop.error))

    async def _sent_back(self, message: Message, level: int, most: int) -> bool:
        if not await self._dead_letters.send_back(message, level, most):
            return False
        if self._history.on:
            self._history.skipped(self._place(message), message.key or "", "sent back, and comes again from elsewhere")
        return True

    async def _bury(self, active: ActiveSubscription, run: MessageRun, end: TurnEnd) -> MessageFinished:
        if await self._buried(stopped_at(run, end), end.stop.bury or ""):
            return active.scheduler.finish(run, STOPPED, end.done + 1)
        return active.scheduler.finish(run, Suspend(SEND_BACK_RETRY), end.done)

    async def _buried(self, message: Message, why: str) -> bool:
        if not await self._dead_letters.bury(message, why):
            return False
        if self._history.on:
            place, attempts = self._place(message), message.attempt
            self._history.dead_lettered(place, message.key or "", message.message_id, attempts)
        return True

    def _place(self, message: Message) -> Place:
        return Place(self._group, message.queue.topic, message.queue.queue_id, message.queue_offset)


class ThreadWorkers:
    """The threads of one subscription."""

    def __init__(
        self,
        active: ActiveSubscription,
        reporter: RunReporter,
        clock: Clock,
        counts: ConsumerCounts,
        broken: Callable[[BaseException], None],
    ) -> None:
        self._active = active
        self._aftermath = reporter
        self._clock = clock
        self._broken = broken
        self._loop = asyncio.get_running_loop()
        self._counts = counts
        self._threads = [
            threading.Thread(target=self._work, name=f"lanemq-{active.subscription.topic}-{n}", daemon=True)
            for n in range(active.subscription.workers)
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    async def stop(self, timeout_s: float) -> None:
        """Sends the workers home; one that hangs in user code is left behind, it cannot be stopped."""
        self._active.scheduler.close()
        await asyncio.to_thread(self._join, timeout_s)

    def _join(self, timeout_s: float) -> None:
        """One patience for all of them together."""
        until = self._clock.now() + int(timeout_s * 1000)
        for thread in self._threads:
            thread.join(max(0, until - self._clock.now()) / 1000)

    def _work(self) -> None:
        scheduler, worker, counts = self._active.scheduler, Worker(), self._counts.new()
        try:
            while scheduler.take_runs(worker):
                self._run(worker, counts)
        except BaseException as error:
            scheduler.leave(worker)
            log.exception("a worker of topic %s broke down", self._active.subscription.topic)
            self._loop.call_soon_threadsafe(self._broken, error)

    def _run(self, worker: Worker, counts: WorkerCounts) -> None:
        """All turns of a visit; what goes well is reported with the next visit, anything else at once."""
        plan, began = self._active.subscription, self._clock.now()
        assert plan.handler is not None
        while True:
            ran = run_worker(worker, plan.handler, plan.batch_size, self._clock)
            now = self._clock.now()
            counts.went_well(plan.topic, ran.runs, ran.messages, now - began)
            run = worker.run
            if ran.end is None or run is None:
                return
            finished = self._report(run, ran.end)
            worker.run, began = None, self._clock.now()
            _count(counts, run, ran.end, began - (run.began or now))
            log_end(run, ran.end, finished)

    def _report(self, run: MessageRun, end: TurnEnd) -> MessageFinished:
        if end.stop.bury is not None:
            return self._on_loop(self._aftermath.settle(self._active, run, end))
        finished = self._active.scheduler.finish(run, end.stop.outcome, end.done, reason_of(end))
        if finished.why is not Why.GIVE:
            return finished
        return self._on_loop(self._aftermath.follow(self._active, run, end, finished))

    def _on_loop(self, work: Coroutine[Any, Any, MessageFinished]) -> MessageFinished:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class TaskWorkers:
    """The tasks of one subscription whose handler is a coroutine function."""

    def __init__(self, active: ActiveSubscription, reporter: RunReporter, clock: Clock, counts: ConsumerCounts) -> None:
        self._active = active
        self._aftermath = reporter
        self._clock = clock
        self._counts = counts
        self._tasks: list[asyncio.Task[None]] = []

    def start(self, tasks: asyncio.TaskGroup) -> None:
        self._tasks = [tasks.create_task(self._work()) for _ in range(self._active.subscription.workers)]

    async def stop(self, timeout_s: float) -> None:
        self._active.scheduler.close()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()

    async def _work(self) -> None:
        scheduler, counts = self._active.scheduler, self._counts.new()
        assert isinstance(scheduler, AsyncScheduler)
        worker = Worker()
        try:
            while await scheduler.take_runs_async(worker):
                await self._run(worker, counts)
        finally:
            scheduler.leave(worker)

    async def _run(self, worker: Worker, counts: WorkerCounts) -> None:
        plan, began = self._active.subscription, self._clock.now()
        assert plan.async_handler is not None
        while True:
            ran = await run_worker_async(worker, plan.async_handler, plan.batch_size, self._clock)
            now = self._clock.now()
            counts.went_well(plan.topic, ran.runs, ran.messages, now - began)
            run = worker.run
            if ran.end is None or run is None:
                return
            finished = await self._aftermath.settle(self._active, run, ran.end)
            worker.run, began = None, self._clock.now()
            _count(counts, run, ran.end, began - (run.began or now))
            log_end(run, ran.end, finished)


def _count(counts: WorkerCounts, run: MessageRun, end: TurnEnd, took_ms: int) -> None:
    """A turn that did not simply go well."""
    outcome = end.stop.outcome
    failed = 1 if isinstance(outcome, Suspend) or outcome in (Plain.FAILED, Plain.HOPELESS, Plain.ROLL_BACK) else 0
    ok = end.done + (outcome is Plain.COMMIT)
    counts.run(run.queue.topic, ok=ok, failed=failed, took_ms=took_ms)
