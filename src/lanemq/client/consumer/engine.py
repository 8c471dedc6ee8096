"""A running consumer: its parts, and the order in which they start and stop.

One event loop, one task group. On it run the loops that rebalance, send heartbeats, renew leases, report offsets and
park lanes, and one pull loop per queue; workers call the handlers. Starting: routes, heartbeat, first rebalance.
Stopping: give up every queue (drain, commit, unlock), unregister, close. One deadline covers the stop; a queue whose
handler runs longer keeps its lease until that ends by itself.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Coroutine, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from lanemq.background_log import ClientLog, OwnThread
from lanemq.client.consumer.coordination import COORDINATOR
from lanemq.client.consumer.inspection import answer_broker
from lanemq.client.consumer.monitor import ConsumerHealth, open_monitor
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, Assignment
from lanemq.client.consumer.queues.hand_over import HandOver
from lanemq.client.consumer.queues.leader_search import LeaderSearch
from lanemq.client.consumer.queues.leases import LeaseKeeper
from lanemq.client.consumer.queues.link import Connect, connect
from lanemq.client.consumer.queues.progress import QueueReporter
from lanemq.client.consumer.queues.pull import Puller
from lanemq.client.consumer.queues.rebalance import QueueKeepers, Rebalancer, RebalanceTrigger
from lanemq.client.consumer.signals import TERMINATION
from lanemq.client.consumer.turns.counting import ConsumerCounts
from lanemq.client.consumer.turns.history import group_in_history, recorded
from lanemq.client.consumer.turns.send_back import DeadLetterSender
from lanemq.client.consumer.turns.subscription import (
    ActiveSubscription,
    MakeScheduler,
    Subscription,
    make_scheduler,
    retry_subscription,
)
from lanemq.client.consumer.turns.workers import (
    SERVING,
    OverdueRuns,
    RunReporter,
    TaskWorkers,
    ThreadWorkers,
    Workers,
)
from lanemq.client.identity import new_client_id
from lanemq.forking import UNDERWAY, tell_child, tell_now
from lanemq.model.errors import Closed, GroupConflict, InvalidOption, LaneError, UsageError
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.net.calling.connection import Connection
from lanemq.net.fast_loop import fast_loop
from lanemq.wire.command import Command

log = ClientLog(__name__)


class ConsumerEngine:
    """One member of one group. Made and run on its event loop, once.

    `make` makes the scheduler of a topic. Consumers whose user takes the messages give their own: iterators the same
    one for all topics.
    """

    def __init__(
        self,
        options: ConsumerOptions,
        subscriptions: Sequence[Subscription],
        make: MakeScheduler = make_scheduler,
        connect: Connect = connect,
    ) -> None:
        self.options = options
        self.client_id = (options.client_id or new_client_id()) + options.history.suffix
        self.started = asyncio.Event()
        """Set after the first rebalance round."""
        self.failure: Exception | None = None
        """The error that ended the consumer before it was stopped."""
        self.monitor_address: Address | None = None
        """Where the monitor listens; None without one."""
        self.in_child = False
        tell_child(self)
        self._begun = False
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        self._loop, self._thread = asyncio.get_running_loop(), threading.get_ident()
        self._tasks = asyncio.TaskGroup()
        self._workers: list[Workers] = []

        self.counts = ConsumerCounts()
        self._make = make
        self._by_topic = {each.topic: each for each in self._with_retries(subscriptions)}
        """What brokers are told that this member subscribes to."""
        self.subscriptions = {
            topic: ActiveSubscription(each, make(each, options.clock)) for topic, each in self._by_topic.items()
        }
        link = connect(options, self.client_id, self._by_topic, self._request_received, self._connection_lost)
        self._pool, self._routes, calls, self.heartbeat = link
        self._calls, self._coordination = calls, calls.coordination
        self.dead_letters = DeadLetterSender(options, calls)
        self.reporter = RunReporter(options.group, self.dead_letters, options.history)

        # What happens to a queue, in this order: rebalance, lease, pull, reports of its progress, hand-over.
        self._trigger = RebalanceTrigger()
        self.assignment = Assignment(options, self.client_id, self._trigger.soon)
        self.progress = QueueReporter(options, calls, self.assignment, lambda assigned: self.leases.is_leased(assigned))
        self.leases = LeaseKeeper(
            options, calls, self.assignment, self.progress.renewed, self.heartbeat.send_again_to, self.move
        )
        self._puller = Puller(
            options, calls, self.heartbeat, self.assignment, self.progress, self._tasks, self._unreachable
        )
        self._hand_over = HandOver(options, self.assignment, self.leases, self.progress)
        keepers = QueueKeepers(self.leases, self.progress, self._puller, self._hand_over)
        self.rebalancer = Rebalancer(
            options, link, self.subscriptions, self.assignment, keepers, self._trigger, self._tasks
        )
        for active in self.subscriptions.values():
            active.scheduler.call_on_parked(self.progress.wake)

    def _with_retries(self, subscriptions: Sequence[Subscription]) -> list[Subscription]:
        """The user's subscriptions and that of the retry topic, with their turns recorded if a history is asked for."""
        if not subscriptions:
            raise InvalidOption("nothing is subscribed: register at least one handler or topic")
        topics = [each.topic for each in subscriptions]
        if len(set(topics)) != len(topics):
            raise InvalidOption(f"a topic may have one handler in a group, two are given: {sorted(topics)}")
        with_retries, options = list(subscriptions), self.options
        if not options.broadcasting:
            with_retries.append(retry_subscription(options.group, with_retries, asyncio.get_running_loop()))
        if options.history.on:
            group = group_in_history(options, self.client_id)
            with_retries = [recorded(each, group, options.history, options.clock) for each in with_retries]
        return with_retries

    async def run(self) -> None:
        """Works until stopped. Raises `GroupConflict` if another member of the group consumes in another way."""
        if self._begun:
            raise Closed.started_before("consumer")
        self._begun = True
        monitor = None
        try:
            if self.options.monitor is not None:
                monitor = open_monitor(self.options.monitor, ConsumerHealth(self, self._ready_problems))
                self.monitor_address = monitor.address
            async with self._tasks:
                try:
                    rebalancing, *loops = self._start()
                    await self._stopping.wait()
                    rebalancing.cancel()  # first, or it would take again what is given up
                    await self._leave()
                    for loop in loops:
                        loop.cancel()
                except asyncio.CancelledError:
                    self._end_task_workers()
                    raise
        except Exception as error:
            # Set before the schedulers close: threads that wake up there read it.
            self.failure = conflict_in(error) or error
            if self.failure is error:
                raise
            raise self.failure from None
        finally:
            self._close_schedulers()
            self._pool.close()
            if monitor is not None:
                monitor.close()

    def _ready_problems(self) -> list[str]:
        if self.failure is not None:
            return [f"ended by an error: {self.failure}"]
        if self._stopping.is_set():
            return ["stopping"]
        return [] if self.started.is_set() else ["starting: the first rebalance round is not over"]

    def forked(self) -> None:
        """In a child process: the parent continues consuming, and nothing here may disturb it."""
        self.in_child = True

    def check_process(self) -> None:
        """Raises `UsageError` in a child of the process that started the consumer."""
        if UNDERWAY:
            tell_now()
        if self.in_child:
            raise started_in_parent()

    def stop(self, *, now: bool = False) -> None:
        """Lets running handlers finish, hands all queues over and ends; returns at once. Any thread may call it.

        With `now` it does not wait for handlers; their messages are delivered again.
        """
        if self.in_child:
            return
        if threading.get_ident() == self._thread:
            self._stop(now)
            return
        with contextlib.suppress(RuntimeError):  # the loop has ended
            self._loop.call_soon_threadsafe(self._stop, now)

    def _stop(self, now: bool) -> None:
        self._stopping.set()
        if now:
            self._stopping_now.set()

    def _start(self) -> list[asyncio.Task[None]]:
        for active in self.subscriptions.values():
            self._start_workers(active)
        loops = [
            self.rebalancer.run(self.started.set),
            self.heartbeat.run(),
            self.leases.run(),
            LeaderSearch(self._calls, self.leases, self.heartbeat.send_again_to, self._leader_changed).run(),
            *self.progress.loops(),
            OverdueRuns(self.options, self.subscriptions, self.dead_letters).run(),
        ]
        return [self._tasks.create_task(loop) for loop in loops]

    def _start_workers(self, active: ActiveSubscription) -> None:
        """Starts the workers of a subscription; there are none if its user takes the messages."""
        clock = self.options.clock
        if active.subscription.async_handler is not None:
            task_workers = TaskWorkers(active, self.reporter, clock, self.counts, self)
            task_workers.start(self._tasks)
            self._workers.append(task_workers)
        elif active.subscription.handler is not None:
            thread_workers = ThreadWorkers(active, self.reporter, clock, self.counts, self)
            thread_workers.start()
            self._workers.append(thread_workers)

    def change_topics(self, added: Sequence[Subscription], removed: Iterable[str]) -> None:
        """Consumes other topics from now on. Called on the event loop, and only if the user takes the messages.

        A queue of a removed topic is handed over when its runs have ended, however long that takes.
        """
        for topic in removed:
            self._by_topic.pop(topic, None)
            self.subscriptions[topic].wanted = False
        for each in added:
            self._by_topic[each.topic] = each
            active = self.subscriptions.get(each.topic)
            if active is None:
                active = self.subscriptions[each.topic] = ActiveSubscription(each, self._make(each, self.options.clock))
                active.scheduler.call_on_parked(self.progress.wake)
            active.wanted = True
        self.heartbeat.changed()
        self._trigger.now()

    def withdraw(self) -> None:
        """Asks for no queue any more: while a stop waits for some, each of the others goes to another member at once.

        Called on the event loop, before `stop`. An Apache broker would forget the topics for the whole group.
        """
        if self.heartbeat.only_lanemq():
            self._by_topic.clear()
            self.heartbeat.changed()
            self.spawn(self.heartbeat.send_to_all())

    # requests of brokers, and lost connections

    def rebalance(self) -> None:
        """Starts a rebalance round now."""
        self._trigger.now()

    def move(self, assigned: AssignedQueue, offset: QueueOffset) -> None:
        """Continues a queue at another offset: an operator reset the group."""
        self._puller.restart_at(assigned, offset)

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that ends with the consumer."""
        if not self._stopping.is_set():
            self._tasks.create_task(work)

    def _request_received(self, connection: Connection, request: Command) -> None:
        answer_broker(self, connection, request)

    def _connection_lost(self, connection: Connection) -> None:
        """Pauses the queues of the broker until their leases are renewed, and registers again."""
        if self._stopping.is_set():
            return
        for broker in self._brokers_at(connection):
            self.leases.suspend(broker)
            self.progress.report_again(broker)
            if broker == COORDINATOR:
                self._coordination.doubt()
        for topic in self.subscriptions:
            self._routes.unreachable(topic)
        self._trigger.soon()

    def _leader_changed(self) -> None:
        """Reports all offsets again: the former coordinator may have lost the last ones, and may be frozen, so that its
        connection was not lost."""
        self.progress.report_again(COORDINATOR)
        self._trigger.now()

    def _unreachable(self, topic: str) -> None:
        """Looks soon where the brokers of a topic are: the name servers may know a new master late."""
        self._routes.unreachable(topic)
        self._trigger.soon()

    def _brokers_at(self, connection: Connection) -> set[str]:
        """The names of the brokers, or of the coordinator, behind a connection."""
        if connection.address == self._coordination.address:
            return {COORDINATOR}
        routes = [self._routes.known(topic) for topic in self.subscriptions]
        return {
            broker.name
            for route in routes
            if route is not None
            for broker in route.brokers.values()
            if connection.address in broker.addresses.values()
        }

    # stopping

    async def _leave(self) -> None:
        giving_up = asyncio.create_task(self._give_up_all())
        hurry = asyncio.create_task(self._stop_now_asked())
        await asyncio.wait({giving_up, hurry}, return_when=asyncio.FIRST_COMPLETED)
        giving_up.cancel()
        hurry.cancel()
        timeout = 0.0 if self._stopping_now.is_set() else 1.0
        for workers in self._workers:
            await workers.stop(timeout)
        self._close_schedulers()
        for assigned in self.assignment:
            self.assignment.remove(assigned)  # workers see it before their next message
        if not self._stopping_now.is_set():
            await self.heartbeat.leave()

    async def _stop_now_asked(self) -> None:
        await self._stopping_now.wait()

    async def _give_up_all(self) -> None:
        await asyncio.gather(*(self._give_up(assigned) for assigned in self.assignment), return_exceptions=True)

    async def _give_up(self, assigned: AssignedQueue) -> None:
        if assigned.hand_over is not None:
            await asyncio.wait([assigned.hand_over])
        await self._hand_over.give_up_finally(assigned)

    def _end_task_workers(self) -> None:
        """Lets the worker tasks end although a handler may have answered their cancellation with another exception."""
        for active in self.subscriptions.values():
            if active.subscription.async_handler is not None:
                active.scheduler.close()

    def _close_schedulers(self) -> None:
        for active in self.subscriptions.values():
            active.scheduler.close()


def conflict_in(error: BaseException) -> GroupConflict | None:
    """The refusal of this member by a broker, if that is among the errors that ended its tasks."""
    if isinstance(error, BaseExceptionGroup):
        return next(filter(None, map(conflict_in, error.exceptions)), None)
    return error if isinstance(error, GroupConflict) else None


async def until_started(engine: ConsumerEngine, running: asyncio.Task[None]) -> None:
    """Waits for the first rebalance round, or until `running`, the task of `engine.run`, has failed.

    If the wait is cancelled, so is the consumer: its program has no way to end it then.
    """
    started = asyncio.create_task(engine.started.wait())
    try:
        await asyncio.wait({running, started}, return_when=asyncio.FIRST_COMPLETED)
    except BaseException:
        await end_task(running)
        raise
    finally:
        started.cancel()


async def end_task(running: asyncio.Task[None]) -> None:
    """Cancels a task and waits for its end, whatever that is."""
    running.cancel()
    await asyncio.wait([running])
    if not running.cancelled():
        running.exception()  # marks it as seen


def started_in_parent() -> UsageError:
    """The error for calls in a child process to a consumer that its parent started."""
    return UsageError("this consumer was started before a fork and continues in the parent: make one in the child")


def ended_by(error: BaseException) -> LaneError:
    """The error for calls to a consumer that ended without being stopped."""
    failure = LaneError(f"this consumer ended by an error and consumes nothing any more: {error!r}; make a new one")
    failure.__cause__ = error
    return failure


Prepare: TypeAlias = Callable[[], AbstractAsyncContextManager[Sequence[Subscription]]]
"""Makes the subscriptions of a consumer, and keeps open what they need."""


def without_resources(subscriptions: Sequence[Subscription]) -> Prepare:
    """Prepares subscriptions that need nothing kept open."""
    return lambda: contextlib.nullcontext(subscriptions)


class EngineThread:
    """Runs a consumer's event loop on a thread of its own, for programs without a loop. Starts and stops once."""

    def __init__(self, options: ConsumerOptions, prepare: Prepare, make: MakeScheduler = make_scheduler) -> None:
        """`prepare` is entered on the thread's event loop, around everything else."""
        self._options = options
        self._prepare = prepare
        self._make = make
        self._ready = threading.Event()
        self._thread: threading.Thread | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._engine: ConsumerEngine | None = None
        self.in_child = False
        self._error: BaseException | None = None
        self._term: object | None = None
        self._finishing = False

    @property
    def engine(self) -> ConsumerEngine:
        if self._engine is None:
            raise Closed("this consumer is not running: start it first")
        self.check()
        return self._engine

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        if self._loop is None:
            raise Closed("this consumer is not running: start it first")
        return self._loop

    @property
    def running(self) -> bool:
        return self._thread is not None and self._thread.is_alive()

    def check(self) -> None:
        """Raises the error that ended the consumer, if it was not stopped."""
        self.check_process()
        error = self._error or (self._engine.failure if self._engine is not None else None)
        if error is not None:
            raise ended_by(error)

    def start(self, *, finish_on_sigterm: bool = False) -> None:
        """Returns after the first rebalance round, or raises the error that prevented it.

        A second start is refused: a member that ran twice would compete with itself. With `finish_on_sigterm`
        the signal hands all queues over before the process ends (`signals.Termination`).
        """
        if self._thread is not None:
            raise started_in_parent() if self.in_child else Closed.started_before("consumer")
        tell_child(self)
        self._thread = OwnThread(self._run, f"lanemq-{self._options.group}")
        if finish_on_sigterm:
            self._term = TERMINATION.listen(self._finish, again=True)
        self._thread.start()
        try:
            self._ready.wait()
        except BaseException:  # Ctrl-C: nobody would stop it
            self._finish()
            raise
        if self._error is not None:
            self._thread.join()
            raise self._error

    def forked(self) -> None:
        """In a child process: the parent continues consuming, and nothing here may disturb it."""
        self.in_child = True

    def check_process(self) -> None:
        """Raises `UsageError` in a child of the process that started the consumer."""
        if UNDERWAY:
            tell_now()
        if self.in_child:
            raise started_in_parent()

    def stop(self, *, now: bool = False) -> None:
        """Hands all queues over and waits for the end; raises the error that ended the consumer.

        Called by a handler, it only asks for the stop: to wait would be to wait for the handler itself. The next call
        from elsewhere waits.
        """
        thread, engine = self._thread, self._engine
        if thread is None or engine is None or self.in_child:
            return
        engine.stop(now=now)
        if SERVING.get() in (engine, self) or threading.current_thread() is thread:
            return
        thread.join()
        self._engine = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _finish(self) -> None:
        """Stops the consumer from a signal handler."""
        self._finishing = True
        if self._engine is not None:
            self._engine.stop()

    def _run(self) -> None:
        try:
            with asyncio.Runner(loop_factory=fast_loop()) as runner:
                runner.run(self._main())
        except BaseException as error:  # raised again in the thread that starts or stops the consumer
            self._error = error
            if self._ready.is_set():  # the program may not look for days, so the log must show it
                log.critical("the consumer of group %s ended by an error", self._options.group, exc_info=error)
        finally:
            self._ready.set()
            TERMINATION.forget(self._term)

    async def _main(self) -> None:
        self._loop = asyncio.get_running_loop()
        # Handlers wait for calls in these threads, which do not inherit `SERVING`: a stop there must not wait for them.
        self._loop.set_default_executor(ThreadPoolExecutor(initializer=SERVING.set, initargs=(self,)))
        async with self._prepare() as subscriptions:
            self._engine = engine = ConsumerEngine(self._options, subscriptions, self._make)
            if self._finishing:  # the signal came before the engine existed
                engine.stop()
            running = asyncio.create_task(engine.run())
            await until_started(engine, running)
            if not running.done():
                self._ready.set()
            await running
