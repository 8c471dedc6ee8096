"""Workers: take runs, call the handler for their messages, report how they ended, take the next.

Threads call plain functions; tasks of the event loop call coroutine functions. Nothing is created per message: a worker
takes a few runs at once, and one call of the scheduler ends them and begins the next.

Each call of the handler is one turn. It runs in a copy of the worker's context (`contextvars`), which is that of the
app's start: what a turn sets in a `ContextVar` ends with it.

Before each call of the handler the worker checks the run's permit, which shows a lost lease, a hand-over and a used-up
time slice at once. A run of 32 messages is therefore as safe as 32 runs of one.

What becomes of a failure: the handler returns a `Stop` for its batch. It ends the run (`RunEnd`: the stop, and how many
messages were done before it), and the worker reports its `outcome` to the scheduler. The scheduler's answer
(`Finished`) says why and until when the lane waits, or which messages the worker must send back to the broker first.

Invariant: a worker that ends ends its turn. Handlers return a `Stop` for whatever user code raises; if anything else
ends a worker (an error of this package, an exception that another thread sets, a task that is cancelled), its message
fails by the policy, an error is logged, and the worker is replaced.
"""

import asyncio
import contextlib
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Coroutine, Generator, Mapping
from contextvars import ContextVar, copy_context
from types import coroutine
from typing import Any, NamedTuple

from lanemq._fast import compiled
from lanemq.background_log import ClientLog, OwnThread
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.turns.async_scheduler import AsyncScheduler
from lanemq.client.consumer.turns.counting import ConsumerCounts, TurnClock, TurnTimes, WorkerCounts
from lanemq.client.consumer.turns.forked import CALLING, end_child
from lanemq.client.consumer.turns.handler import (
    AsyncBatchHandler,
    Batch,
    BatchHandler,
    HandlerVerdict,
    MessageFailed,
    NoHandler,
    Stop,
    describe,
    describe_with_place,
)
from lanemq.client.consumer.turns.scheduler import MessageFinished, MessageRun, MessageWorker
from lanemq.client.consumer.turns.send_back import DeadLetterSender
from lanemq.client.consumer.turns.subscription import ActiveSubscription
from lanemq.client.message import Message
from lanemq.clock import Clock, nanoseconds_of
from lanemq.core.consuming.retry_policy import SEND_BACK_RETRY, SendBack
from lanemq.core.consuming.runs import FAILED, STOPPED, Suspend, Why
from lanemq.history import History, Place
from lanemq.model.errors import LaneError, Undecodable
from lanemq.model.units import Millis, to_millis
from lanemq.model.where_raised import trace_in_user_code

log = ClientLog(__name__)

OVERDUE_AFTER = 15 * 60.0
"""Seconds after which a message of a concurrent handler counts as hanging (RocketMQ's consumeTimeout)."""
OVERDUE_DELAY_LEVEL = 3
"""Delay level of a message that took too long (RocketMQ's ProcessQueue.cleanExpiredMsg)."""

REPLACE_AFTER = 0.1
"""Seconds before a worker that ended unexpectedly is replaced, so that a repeated error does not use up the machine."""

SERVING: ContextVar[object] = ContextVar("SERVING", default=None)
"""The consumer whose worker this is. Tasks, and threads of `asyncio.to_thread`, inherit it from the handler."""


class Workers(ABC):
    """The workers of one subscription: threads or tasks."""

    def __init__(
        self,
        active: ActiveSubscription,
        reporter: "RunReporter",
        clock: Clock,
        counts: ConsumerCounts,
        consumer: object = None,
    ) -> None:
        self._active = active
        self._reporter = reporter
        self._clock = clock
        self._counts = counts
        self._consumer = consumer
        self._loop = asyncio.get_running_loop()
        # The workers themselves, once they are started: one of the two, by the kind of the handler.
        self._threads: list[threading.Thread] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @abstractmethod
    async def stop(self, timeout_s: float) -> None:
        """Ends the workers; waits at most `timeout_s` seconds for those that call a handler."""

    def _stopped_run(self, worker: MessageWorker, result: "WorkerResult", counts: WorkerCounts) -> MessageRun | None:
        """Counts the runs that succeeded; returns the one after them, if it did not."""
        counts.succeeded(result.runs, result.messages)
        return None if result.end is None else worker.run

    def _reported(
        self, worker: MessageWorker, run: MessageRun, end: "RunEnd", finished: MessageFinished, counts: WorkerCounts
    ) -> None:
        """Counts and logs a run that did not fully succeed, once it is reported."""
        worker.run = None
        counts.stopped(run.queue.topic, end.stop.outcome, end.done)
        log_end(run, end, finished)


class ThreadWorkers(Workers):
    """The worker threads of one subscription."""

    def start(self) -> None:
        topic, count = self._active.subscription.topic, self._active.subscription.workers
        self._threads += [OwnThread(self._work, f"lanemq-{topic}-{number}") for number in range(count)]
        for thread in self._threads:
            thread.start()

    async def stop(self, timeout_s: float) -> None:
        """As `Workers.stop`. A thread that hangs in user code cannot be stopped and is left behind."""
        self._active.scheduler.close()
        await asyncio.to_thread(self._join, timeout_s)

    def _join(self, timeout_s: float) -> None:
        """Waits for all threads together, not for each of them."""
        until = self._clock.now() + to_millis(timeout_s)
        for thread in self._threads:
            thread.join(max(0, until - self._clock.now()) / 1000)

    def _work(self) -> None:
        """Serves until the scheduler is closed; what ends a worker before that ends its turn, and a new one begins."""
        SERVING.set(self._consumer)
        counts = self._counts.new(self._active.subscription.topic)
        while not self._active.scheduler.closed:
            worker = MessageWorker()
            CALLING.set(worker)
            try:
                while self._active.scheduler.take_runs(worker):
                    self._run(worker, counts)
            except BaseException as error:  # noqa: BLE001 - logged, and the message fails by its policy
                if worker.in_child:
                    end_child(error)
                self._broke(worker, error)

    def _broke(self, worker: MessageWorker, error: BaseException) -> None:
        scheduler, run = self._active.scheduler, worker.run
        if not scheduler.closed:
            _log_broken(self._active, error)
            with contextlib.suppress(BaseException):  # `leave` ends the run if this could not
                if run is not None and run not in worker.ended:
                    self._report(run, RunEnd(Stop(FAILED, error=error), run.done))
        with contextlib.suppress(BaseException):
            scheduler.leave(worker)
        scheduler.wait_until_closed(REPLACE_AFTER)

    def _run(self, worker: MessageWorker, counts: WorkerCounts) -> None:
        """Runs what the worker took. Successful runs are reported with the next take, all others at once."""
        subscription = self._active.subscription
        assert subscription.handler is not None
        while True:
            result = run_worker(worker, subscription.handler, subscription.batch_size, self._clock, counts.times)
            if worker.in_child:
                end_child(error_of(result.end))
            run, end = self._stopped_run(worker, result, counts), result.end
            if run is None or end is None:
                return
            self._reported(worker, run, end, self._report(run, end), counts)

    def _report(self, run: MessageRun, end: "RunEnd") -> MessageFinished:
        if end.stop.dead_letter is not None:
            return self._on_loop(self._reporter.report(self._active, run, end))
        finished = self._active.scheduler.finish(run, end.stop.outcome, end.done, reason_of(end), end.stop.concerned)
        if finished.why is not Why.SEND_BACK:
            return finished
        return self._on_loop(self._reporter.follow(self._active, run, end, finished))

    def _on_loop(self, work: Coroutine[Any, Any, MessageFinished]) -> MessageFinished:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()


class TaskWorkers(Workers):
    """The worker tasks of one subscription whose handler is a coroutine function."""

    def start(self, tasks: asyncio.TaskGroup) -> None:
        for _ in range(self._active.subscription.workers):
            self._add(tasks, 0)

    async def stop(self, timeout_s: float) -> None:
        self._active.scheduler.close()
        if self._tasks:
            _, late = await asyncio.wait(self._tasks, timeout=timeout_s)
            for task in late:
                task.cancel()

    def _add(self, tasks: asyncio.TaskGroup, pause: float) -> None:
        worker = MessageWorker()
        work = self._work(worker, pause)
        try:
            task = tasks.create_task(work)
        except RuntimeError:
            work.close()
            raise
        self._tasks.add(task)
        task.add_done_callback(lambda task: self._ended(tasks, task, worker))

    async def _work(self, worker: MessageWorker, pause: float) -> None:
        scheduler, counts = self._active.scheduler, self._counts.new(self._active.subscription.topic)
        assert isinstance(scheduler, AsyncScheduler)
        SERVING.set(self._consumer)
        CALLING.set(worker)
        try:
            if pause:
                await asyncio.sleep(pause)
            while await scheduler.take_runs_async(worker):
                await self._run(worker, counts)
        except (Exception, GeneratorExit) as error:  # noqa: BLE001 - logged; it must not end the consumer
            if worker.in_child:
                end_child(error)
            worker.error = error

    def _ended(self, tasks: asyncio.TaskGroup, task: asyncio.Task[None], worker: MessageWorker) -> None:
        """Called when a worker's task has ended; if the consumer is not stopping, the worker is replaced."""
        self._tasks.discard(task)
        scheduler, run = self._active.scheduler, worker.run
        if not scheduler.closed:
            with contextlib.suppress(RuntimeError):  # the consumer is being cancelled
                self._add(tasks, REPLACE_AFTER)
                error = worker.error or asyncio.CancelledError("the worker's task was cancelled")
                _log_broken(self._active, error)
                if run is not None and run.sending_back is None:
                    end = RunEnd(Stop(FAILED, error=error), run.done)
                    finished = scheduler.finish(run, FAILED, run.done, reason_of(end))
                    worker.run = None
                    tasks.create_task(self._follow(run, end, finished))
        scheduler.leave(worker)

    async def _follow(self, run: MessageRun, end: "RunEnd", finished: MessageFinished) -> None:
        await self._reporter.follow(self._active, run, end, finished)

    async def _run(self, worker: MessageWorker, counts: WorkerCounts) -> None:
        subscription = self._active.subscription
        assert subscription.async_handler is not None
        while True:
            result = await run_worker_async(
                worker, subscription.async_handler, subscription.batch_size, self._clock, counts.times
            )
            if worker.in_child:
                end_child(error_of(result.end))
            run, end = self._stopped_run(worker, result, counts), result.end
            if run is None or end is None:
                return
            self._reported(worker, run, end, await self._reporter.report(self._active, run, end), counts)


# calling the handler


class RunEnd(NamedTuple):
    """How a run that did not fully succeed ended: `done` messages succeeded before the stop."""

    stop: Stop
    done: int


class WorkerResult(NamedTuple):
    """How far a worker got: `runs` runs with `messages` messages succeeded, then one ended as `end` says, if any."""

    runs: int
    messages: int
    end: RunEnd | None


_PERMIT_WITHDRAWN = Stop(STOPPED)


def run_worker(
    worker: MessageWorker, handler: BatchHandler, batch_size: int, clock: Clock, times: TurnTimes
) -> WorkerResult:
    """Runs what waits, until nothing does or a run does not fully succeed; that run is then `worker.run`."""
    runs, messages, stop, done = run_waiting(
        worker, handler, batch_size, nanoseconds_of(clock), _PERMIT_WITHDRAWN, times
    )
    return WorkerResult(runs, messages, None if stop is None else RunEnd(stop, done))


@compiled
def run_waiting(
    worker: MessageWorker,
    handler: BatchHandler,
    batch_size: int,
    now: Callable[[], int],
    withdrawn: Stop,
    times: TurnTimes,
) -> tuple[int, int, Stop | None, int]:
    """The numbers of runs and messages that succeeded, then what stopped the next run, and after how many messages.

    `now` is in nanoseconds. A turn lasts until the next one begins, so that the clock is read once for each.
    """
    runs = messages = 0
    clock = TurnClock(now, times)
    waiting, ended = worker.waiting, worker.ended
    try:
        while waiting:
            try:
                run = worker.run = waiting.popleft()
            except IndexError:  # the scheduler took it back just now
                break
            end = _run_batches(run, handler, batch_size, clock, withdrawn)
            if end is not None:
                return runs, messages, end.stop, end.done
            ended.append(run)
            runs += 1
            messages += len(run.messages)
        worker.run = None
        return runs, messages, None, 0
    finally:
        clock.stop()


def _run_batches(
    run: MessageRun, handler: BatchHandler, batch_size: int, clock: TurnClock, withdrawn: Stop
) -> RunEnd | None:
    """Calls the handler batch by batch, if the permit still allows it; None if the whole run succeeded."""
    messages = run.messages
    messages[0].retried_here = run.attempt - 1
    permit, slice_end = run.permit, run.slice_end
    for done in range(0, len(messages), batch_size):
        time = clock.next_turn()
        if permit.withdrawn or time >= permit.usable_until or time > slice_end:  # `LaneRun.may_continue`
            clock.no_turn()
            return RunEnd(withdrawn, done)
        if not done:
            run.began = time
        stop = copy_context().run(handler, messages[done : done + batch_size], run)
        if stop is not None:
            return RunEnd(stop, done + stop.succeeded)
        run.done = done + batch_size
    return None


async def run_worker_async(
    worker: MessageWorker, handler: AsyncBatchHandler, batch_size: int, clock: Clock, times: TurnTimes
) -> WorkerResult:
    """`run_worker` on the event loop."""
    runs = messages = 0
    turn_clock = TurnClock(nanoseconds_of(clock), times)
    try:
        while worker.waiting:
            run = worker.run = worker.waiting.popleft()
            end = await _run_batches_async(run, handler, batch_size, turn_clock)
            if end is not None:
                return WorkerResult(runs, messages, end)
            worker.ended.append(run)
            runs += 1
            messages += len(run.messages)
        worker.run = None
        return WorkerResult(runs, messages, None)
    finally:
        turn_clock.stop()


async def _run_batches_async(
    run: MessageRun, handler: AsyncBatchHandler, batch_size: int, clock: TurnClock
) -> RunEnd | None:
    messages = run.messages
    messages[0].retried_here = run.attempt - 1
    for done in range(0, len(messages), batch_size):
        time = clock.next_turn()
        if not run.may_continue(now=time):
            clock.no_turn()
            return RunEnd(_PERMIT_WITHDRAWN, done)
        if not done:
            run.began = time
        stop = await _in_own_context(handler, messages[done : done + batch_size], run)
        if stop is not None:
            return RunEnd(stop, done + stop.succeeded)
        run.done = done + batch_size
    return None


@coroutine
def _in_own_context(handler: AsyncBatchHandler, batch: Batch, run: MessageRun) -> Generator[Any, Any, Stop | None]:
    """Awaits the handler in the worker's task, each step of it in the turn's own context.

    A task for each turn would do the same at several times the cost.
    """
    call, steps = copy_context().run, handler(batch, run).__await__()
    try:
        awaited = call(next, steps)
        while True:
            try:
                result = yield awaited
            except BaseException as error:  # noqa: BLE001 - it is for the handler: a cancellation, for example
                awaited = call(steps.throw, error)
            else:
                awaited = call(steps.send, result)
    except StopIteration as end:
        stop: Stop | None = end.value
        return stop


# reporting a run that did not fully succeed


class RunReporter:
    """Reports the end of a run to the scheduler, and hands messages to the broker. Works on the event loop."""

    def __init__(self, group: str, dead_letters: DeadLetterSender, history: History) -> None:
        self._group = group
        self._dead_letters = dead_letters
        self._history = history

    async def report(self, active: ActiveSubscription, run: MessageRun, end: RunEnd) -> MessageFinished:
        """Reports a run's end and does what the scheduler asks for in return."""
        if end.stop.dead_letter is not None:
            return await self._dead_letter(active, run, end)
        finished = active.scheduler.finish(run, end.stop.outcome, end.done, reason_of(end), end.stop.concerned)
        return await self.follow(active, run, end, finished)

    async def follow(
        self, active: ActiveSubscription, run: MessageRun, end: RunEnd, finished: MessageFinished
    ) -> MessageFinished:
        """Hands messages to the broker if the scheduler asks for it; their lane waits until the broker has them."""
        if finished.why is not Why.SEND_BACK:
            return finished
        ok = [await self._send_back(active, message, end) for message in finished.send_back]
        return active.scheduler.sent_back(run, ok)

    async def _send_back(self, active: ActiveSubscription, message: Message, end: RunEnd) -> bool:
        if isinstance(policy := active.subscription.policy, SendBack):
            if isinstance(end.stop.error, NoHandler):
                return self._skipped(message, await self._dead_letters.pass_on(message, policy.retries))
            sent = await self._dead_letters.send_back(message, end.stop.delay_level, policy.retries)
            return self._skipped(message, sent)
        return await self._dead_lettered(message, reason_of(end))

    def _skipped(self, message: Message, sent_back: bool) -> bool:
        if sent_back and self._history.on:
            self._history.skipped(self._place(message), message.key or "", "sent back, and comes again from elsewhere")
        return sent_back

    async def _dead_letter(self, active: ActiveSubscription, run: MessageRun, end: RunEnd) -> MessageFinished:
        if await self._dead_lettered(stopped_at(run, end), end.stop.dead_letter or ""):
            return active.scheduler.finish(run, STOPPED, end.done + 1)
        finished = active.scheduler.finish(run, Suspend(SEND_BACK_RETRY), end.done, concerned=end.stop.concerned)
        return await self.follow(active, run, end, finished)

    async def _dead_lettered(self, message: Message, why: str) -> bool:
        if not await self._dead_letters.dead_letter(message, why):
            return False
        if self._history.on:
            place, attempts = self._place(message), message.attempt
            self._history.dead_lettered(place, message.key or "", message.message_id, attempts)
        return True

    def _place(self, message: Message) -> Place:
        queue = message.queue
        return Place(self._group, queue.topic, queue.queue_id, message.queue_offset, queue.broker)


def error_of(end: RunEnd | None) -> BaseException | None:
    return None if end is None else end.stop.error


def reason_of(end: RunEnd) -> str:
    """Why the run failed, and where; a parked lane keeps it for its operator."""
    return "" if end.stop.error is None else describe_with_place(end.stop.error)


def stopped_at(run: MessageRun, end: RunEnd) -> Message:
    """The message at which the run stopped."""
    return run.messages[min(end.done, len(run.messages) - 1)]


def log_end(run: MessageRun, end: RunEnd, finished: MessageFinished) -> None:
    """Logs a run that failed; logs nothing about one that succeeded."""
    if finished.why is Why.ILLEGAL:
        log.warning("%s: COMMIT and ROLLBACK have no meaning with automatic commit, taken as SUCCESS", run.queue)
    elif end.stop.error is not None:
        _log_failure(run, end, finished)


def _log_failure(run: MessageRun, end: RunEnd, finished: MessageFinished) -> None:
    """Logs one line per failure: where, and what follows.

    The first attempt adds the traceback, except for a body that cannot be decoded, where the line says it all. A
    verdict is not a failure: it is logged as information, unless it parks the lane.
    """
    message, error = stopped_at(run, end), end.stop.error
    assert error is not None
    text = describe(error)
    failed = "body cannot be decoded" if isinstance(error, Undecodable) else "handler failed"
    place = f"topic={message.topic} queue={run.queue} offset={message.queue_offset} key={message.key!r}"
    verdict = isinstance(error, HandlerVerdict) and not isinstance(error, MessageFailed)
    traced = run.attempt == 1 and not verdict and not isinstance(error, Undecodable)
    trace = error.with_traceback(trace_in_user_code(error)) if traced else None
    if isinstance(error, NoHandler) and finished.why is Why.SENT_BACK:
        log.info("passed on to another member: %s: %s", place, text)
    elif verdict and finished.why is not Why.PARKED:
        log.info("handler decided, attempt %d: %s: %s", run.attempt, place, text)
    elif finished.why is Why.PARKED:
        log.error("%s, lane parked until it is redriven: %s: %s", failed, place, text, exc_info=trace)
    elif finished.why is Why.HELD:
        log.warning("%s, attempt %d, trying again: %s: %s", failed, run.attempt, place, text, exc_info=trace)
    elif finished.why is Why.DIVIDED:
        log.warning("%s, trying its batch one message at a time: %s: %s", failed, place, text, exc_info=trace)
    elif finished.why is Why.SENT_BACK:
        log.warning("%s, message handed to the broker: %s: %s", failed, place, text, exc_info=trace)


def _log_broken(active: ActiveSubscription, error: BaseException) -> None:
    with contextlib.suppress(Exception):  # a log handler of the user may be what ended the worker
        topic = active.subscription.topic
        log.error("a worker of topic %s ended unexpectedly and is replaced: %s", topic, describe(error), exc_info=error)


# concurrent handlers that hang


class OverdueRuns:
    """Sends messages back whose concurrent handler has not returned for 15 minutes.

    Without order, one handler that hangs must not hold the group's offset indefinitely (RocketMQ's consumeTimeout). In
    ordered mode nothing may pass a message that is being handled: there a handler that hangs is only visible.

    Invariant: a run ends once. If the handler returns while its messages are being sent, the worker's report counts.
    """

    def __init__(
        self, options: ConsumerOptions, subscriptions: Mapping[str, ActiveSubscription], dead_letters: DeadLetterSender
    ) -> None:
        self._options = options
        self._subscriptions = subscriptions
        self._dead_letters = dead_letters

    async def run(self) -> None:
        """Checks every 15 minutes, until cancelled."""
        while True:
            await asyncio.sleep(OVERDUE_AFTER)
            try:
                await self.check()
            except LaneError as error:
                log.warning("checking for handlers that hang failed, trying again: %s", error)

    async def check(self) -> None:
        before = Millis(self._options.clock.now() - to_millis(OVERDUE_AFTER))
        for active in self._subscriptions.values():
            if isinstance(policy := active.subscription.policy, SendBack):
                await self._check(active, before, policy.retries)

    async def _check(self, active: ActiveSubscription, before: Millis, retries: int) -> None:
        # Sending takes seconds if a broker is slow: check again, for each run, that it is still overdue.
        for run in _overdue(active, before):
            if run in _overdue(active, before) and await self._sent_back(run, retries):
                with active.scheduler as lanes:
                    taken_over = lanes.take_over(run, now=self._options.clock.now())
                if taken_over:
                    log.warning("a handler of %s hangs; its messages were sent back", run.queue)
                else:
                    log.warning("a handler of %s returned late; its messages were already sent back", run.queue)

    async def _sent_back(self, run: MessageRun, retries: int) -> bool:
        left = run.messages[run.done :]
        sent = [await self._dead_letters.send_back(message, OVERDUE_DELAY_LEVEL, retries) for message in left]
        return all(sent)


def _overdue(active: ActiveSubscription, before: Millis) -> list[MessageRun]:
    with active.scheduler as lanes:
        return lanes.overdue(before)
