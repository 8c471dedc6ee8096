"""A running consumer: its parts, and the order in which they start and stop.

One event loop, one task group. On it run the loops that rebalance, send heartbeats, renew leases, report offsets and
park lanes, and one pull loop per queue; workers call the handlers. Starting: routes, heartbeat, first rebalance.
Stopping: give up every queue (drain, commit, unlock), unregister, close. One deadline covers the stop; a queue whose
handler runs longer keeps its lease until that ends by itself.
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from typing import Any, NamedTuple

from lanemq.client.consumer.assigned_queue import AssignedQueue, Assignment
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.hand_over import HandOver
from lanemq.client.consumer.heartbeat import Heartbeat
from lanemq.client.consumer.history import group_in_history, recorded
from lanemq.client.consumer.inspection import BrokerRequests
from lanemq.client.consumer.leases import LeaseKeeper
from lanemq.client.consumer.metrics import ConsumerCounts
from lanemq.client.consumer.offsets import OffsetKeeper
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.overdue import OverdueRuns
from lanemq.client.consumer.parking import LaneParker
from lanemq.client.consumer.pull import Puller
from lanemq.client.consumer.rebalance import Rebalancer, RebalanceTrigger
from lanemq.client.consumer.scheduler import Scheduler
from lanemq.client.consumer.send_back import DeadLetters
from lanemq.client.consumer.subscription import ActiveSubscription, Subscription, retry_subscription
from lanemq.client.consumer.workers import RunReporter, TaskWorkers, ThreadWorkers
from lanemq.client.identity import new_client_id
from lanemq.client.routing import AsyncRoutes
from lanemq.core.consuming.offset_table import OffsetTable
from lanemq.model.errors import Closed, InvalidOption, LaneError
from lanemq.model.units import QueueOffset
from lanemq.net.connection import Connection, ConnectionPool


class BrokerLink(NamedTuple):
    """How a consumer reaches its brokers."""

    pool: ConnectionPool
    routes: AsyncRoutes
    calls: ConsumerCalls
    heartbeat: Heartbeat


def connect(engine: "ConsumerEngine") -> BrokerLink:
    """A link over sockets; simulations use another one."""
    options = engine.options
    pool = ConnectionPool(BrokerRequests(engine).received, engine.connection_lost, security=options.security)
    routes = AsyncRoutes(options.addresses, pool, options.clock)
    calls = ConsumerCalls(options, engine.client_id, pool, routes)
    tags = {topic: active.subscription.filter for topic, active in engine.subscriptions.items()}
    return BrokerLink(pool, routes, calls, Heartbeat(options, calls, pool, routes, tags))


class ConsumerEngine:
    """One member of one group. Made and run on its event loop, once.

    `shared` is one scheduler for all topics, for consumers whose user takes the messages (iterators).
    """

    def __init__(
        self,
        options: ConsumerOptions,
        subscriptions: Sequence[Subscription],
        shared: Scheduler | None = None,
        connect: "Callable[[ConsumerEngine], BrokerLink]" = connect,
    ) -> None:
        self.options = options
        self.client_id = options.client_id or new_client_id()
        self.started = asyncio.Event()
        """Set after the first rebalance round."""
        self.failure: Exception | None = None
        """The error that ended the consumer before it was stopped."""
        self._begun = False
        self._stopping = asyncio.Event()
        self._stopping_now = asyncio.Event()
        self._broken: BaseException | None = None
        self._tasks = asyncio.TaskGroup()
        self._workers: list[ThreadWorkers | TaskWorkers] = []

        self.counts = ConsumerCounts()
        self.subscriptions = {
            each.topic: ActiveSubscription(each, options.clock, shared) for each in self._with_retries(subscriptions)
        }
        self._pool, self._routes, calls, self.heartbeat = connect(self)
        self.dead_letters = DeadLetters(options, calls)
        self.reporter = RunReporter(options.group, self.dead_letters, options.history)

        # What happens to a queue, in this order: rebalance, lease, pull, offsets and parked lanes, hand-over.
        table = OffsetTable()
        self._trigger = RebalanceTrigger(options.rebalance_soon)
        self.assignment = Assignment(options, self.client_id, table, self._trigger.soon)
        parker = LaneParker(options, calls, self.assignment)
        self.leases = LeaseKeeper(options, calls, self.assignment, parker.renewed)
        self.offsets = OffsetKeeper(options, calls, self.assignment, table)
        self._puller = Puller(options, calls, self.heartbeat, self.assignment, self.offsets, parker, self._tasks)
        self._hand_over = HandOver(options, self.assignment, self.leases, self.offsets, parker.flush)
        self.rebalancer = Rebalancer(
            options,
            calls,
            self._routes,
            self.heartbeat,
            self.subscriptions,
            self.assignment,
            self.leases,
            self.offsets,
            parker,
            self._puller,
            self._hand_over,
            self._trigger,
            self._tasks,
        )
        self._parker = parker
        for active in self.subscriptions.values():
            active.scheduler.on_parked = parker.wake

    def _with_retries(self, subscriptions: Sequence[Subscription]) -> list[Subscription]:
        """The user's subscriptions and that of the retry topic, with their turns recorded if a history is asked for."""
        if not subscriptions:
            raise InvalidOption("nothing is subscribed: register at least one handler or topic")
        topics = [each.topic for each in subscriptions]
        if len(set(topics)) != len(topics):
            raise InvalidOption(f"a topic may have one handler in a group, two are given: {sorted(topics)}")
        found, options = list(subscriptions), self.options
        if not options.broadcasting:
            found.append(retry_subscription(options.group, found, asyncio.get_running_loop()))
        if options.history.on:
            group = group_in_history(options, self.client_id)
            found = [recorded(each, group, options.history, options.clock) for each in found]
        return found

    async def run(self) -> None:
        """Works until stopped. Raises if a handler ended its worker instead of returning or failing."""
        if self._begun:
            raise Closed("this consumer was started before: make a new one")
        self._begun = True
        try:
            async with self._tasks:
                rebalancing, *loops = self._start()
                await self._stopping.wait()
                rebalancing.cancel()  # first, or it would take again what is given up
                await self._leave()
                for loop in loops:
                    loop.cancel()
        except Exception as error:
            self.failure = error  # before the schedulers close: threads that wake up there read it
            raise
        finally:
            self._close_schedulers()
            self._pool.close()
        if self._broken is not None:
            raise LaneError(f"a handler ended its worker, the consumer stopped: {self._broken!r}") from self._broken

    def stop(self) -> None:
        """Lets running handlers finish, hands all queues over and ends."""
        self._stopping.set()

    def stop_now(self) -> None:
        """Ends without waiting for handlers; their messages are delivered again."""
        self._stopping.set()
        self._stopping_now.set()

    def _start(self) -> list[asyncio.Task[None]]:
        for active in self.subscriptions.values():
            self._start_workers(active)
        loops = [
            self.rebalancer.run(self.started.set),
            self.heartbeat.run(),
            self.leases.run(),
            self.offsets.run(),
            self._parker.run(),
            OverdueRuns(self.options, self.subscriptions, self.dead_letters).run(),
        ]
        return [self._tasks.create_task(loop) for loop in loops]

    def _start_workers(self, active: ActiveSubscription) -> None:
        """Starts the workers of a subscription; there are none if its user takes the messages."""
        clock = self.options.clock
        if active.subscription.async_handler is not None:
            task_workers = TaskWorkers(active, self.reporter, clock, self.counts)
            task_workers.start(self._tasks)
            self._workers.append(task_workers)
        elif active.subscription.handler is not None:
            thread_workers = ThreadWorkers(active, self.reporter, clock, self.counts, self._worker_broke)
            thread_workers.start()
            self._workers.append(thread_workers)

    def _worker_broke(self, error: BaseException) -> None:
        self._broken = error
        self.stop()

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

    def connection_lost(self, connection: Connection) -> None:
        """Pauses the queues of the broker until their leases are renewed, and registers again."""
        if self._stopping.is_set():
            return
        for broker in self._brokers_at(connection):
            self.leases.suspend(broker)
            self.offsets.report_again(broker)
        self._trigger.soon()

    def _brokers_at(self, connection: Connection) -> set[str]:
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

    def _close_schedulers(self) -> None:
        for active in self.subscriptions.values():
            active.scheduler.close()
