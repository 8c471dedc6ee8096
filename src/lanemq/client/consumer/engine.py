"""A consumer at work: all its loops, wired together, and the order in which they start and stop.

One event loop, one task group. Loops wait, ask a machine of `core`, do what it says; workers run the handlers.
Starting: routes, heartbeat, first rebalance. Stopping: give every queue up (drain, commit, unlock), say goodbye,
close. One deadline covers the stop; a handler that outlasts it keeps its lease until that ends by itself.
"""

import asyncio
import logging
from collections.abc import Coroutine, Sequence
from typing import Any

from lanemq.client.codec import codec_named
from lanemq.client.consumer.assigned_queue import Holding, Holdings, Start
from lanemq.client.consumer.broker_requests import BrokerRequests
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.hand_over import HandOver
from lanemq.client.consumer.heartbeat import Heartbeat
from lanemq.client.consumer.history import group_in_history, recorded_plan
from lanemq.client.consumer.leases import LockKeeper
from lanemq.client.consumer.metrics import ConsumerCounts
from lanemq.client.consumer.offsets import OffsetKeeper
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.overdue import OverdueRuns
from lanemq.client.consumer.park_calls import ParkCalls
from lanemq.client.consumer.parking import Parker
from lanemq.client.consumer.pull import Puller
from lanemq.client.consumer.rebalance import Rebalancer
from lanemq.client.consumer.retry_subscription import retry_plan
from lanemq.client.consumer.scheduler import Scheduler
from lanemq.client.consumer.send_back import DeadLetters
from lanemq.client.consumer.subscription import Station, StationPlan
from lanemq.client.consumer.workers import RunReporter, TaskWorkers, ThreadWorkers
from lanemq.client.identity import new_client_id
from lanemq.client.message import Source
from lanemq.client.routing import AsyncRoutes
from lanemq.core.consuming.queue_lease import QueueLease
from lanemq.core.consuming.rebalance import Event
from lanemq.history import Lease
from lanemq.model.errors import Closed, InvalidOption, LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.net.connection import Connection, ConnectionPool

log = logging.getLogger(__name__)

NANOS = 1_000_000
"""In a millisecond."""


class ConsumerEngine:
    """One member of one group. `run` once, from its event loop; `stop` from anywhere on that loop."""

    pool: ConnectionPool
    routes: AsyncRoutes
    calls: ConsumerCalls
    heartbeat: Heartbeat
    keeper: LockKeeper
    offsets: OffsetKeeper
    rebalancer: Rebalancer
    stations: dict[str, Station]

    def __init__(self, options: ConsumerOptions, plans: Sequence[StationPlan], shared: Scheduler | None = None) -> None:
        """`shared`: one board for all topics, for somebody who takes turns by hand."""
        if not plans:
            raise InvalidOption("nothing is subscribed: register at least one handler or topic")
        topics = [plan.topic for plan in plans]
        if len(set(topics)) != len(topics):
            raise InvalidOption(f"a topic may have one handler in a group, two are given: {sorted(topics)}")
        self.options = options
        self.client_id = options.client_id or new_client_id()
        self.holdings = Holdings()
        self.counts = ConsumerCounts()
        self.started = asyncio.Event()
        self._plans = list(plans)
        self._shared = shared
        self._begun = False
        self._stopping = asyncio.Event()
        self._now = asyncio.Event()
        self._broken: BaseException | None = None
        self.failure: Exception | None = None
        """What ended it, if nobody asked it to end."""

    async def run(self) -> None:
        """Works until stopped; raises if a handler ended its worker instead of returning or failing."""
        if self._begun:
            raise Closed("this consumer was started before: make a new one")
        self._begun = True
        self._wire()
        try:
            async with asyncio.TaskGroup() as tasks:
                self._tasks = self.rebalancer.tasks = tasks
                rebalancing, *loops = self._start(tasks)
                await self._stopping.wait()
                rebalancing.cancel()  # first: it would take again what is given up
                await self._shut_down()
                for loop in loops:
                    loop.cancel()
        except Exception as error:
            self.failure = error  # before the boards close: whoever wakes there asks why
            raise
        finally:
            for station in self.stations.values():
                station.scheduler.close()
            self.pool.close()
        if self._broken is not None:
            raise LaneError(f"a handler ended its worker, the consumer stopped: {self._broken!r}") from self._broken

    def stop(self) -> None:
        """Finish what runs, hand everything over, end."""
        self._stopping.set()

    def stop_now(self) -> None:
        """End without waiting for handlers; what they were doing is delivered again."""
        self._stopping.set()
        self._now.set()

    # wiring

    def _connect(self) -> None:
        """The way to the brokers; a simulation brings its own."""
        options = self.options
        self.pool = ConnectionPool(BrokerRequests(self).received, self._connection_lost, security=options.security)
        self.routes = AsyncRoutes(options.addresses, self.pool, options.clock)
        self.calls = ConsumerCalls(options, self.client_id, self.pool, self.routes)
        self.heartbeat = Heartbeat(options, self.calls, self.pool, self.routes)

    def _wire(self) -> None:
        options, clock = self.options, self.options.clock
        self._connect()
        self.hand_over = HandOver(
            options, self.client_id, self.holdings, lambda: self.keeper, lambda: self.offsets, self._lost
        )
        lose = self.hand_over.lose
        self.keeper = LockKeeper(options, self.calls, self.holdings, self._gate, lose)
        self.offsets = OffsetKeeper(options, self.calls, self.holdings, lose)
        self.puller = Puller(options, self.calls, self.heartbeat, self.offsets, lose)
        self.rebalancer = Rebalancer(
            options,
            self.calls,
            self.routes,
            self.heartbeat,
            self.keeper,
            self.offsets,
            self.hand_over,
            self.holdings,
        )
        self.rebalancer.hold, self.rebalancer.resume = self._hold, self._start_pulling
        self.parker = Parker(options, ParkCalls(options.group, self.calls), self.holdings)
        self.rebalancer.parker = self.puller.parker = self.parker
        self.keeper.parked, self.hand_over.flush = self.parker.look, self.parker.flush
        self.dead_letters = DeadLetters(options, self.calls)
        self.reporter = RunReporter(options.group, self.dead_letters, options.history)
        self._codec = codec_named(options.codec)
        if not options.broadcasting:
            self._plans.append(retry_plan(options.group, self._plans, asyncio.get_running_loop()))
        if options.history.on:
            name = group_in_history(options, self.client_id)
            self._plans = [recorded_plan(plan, name, options.history, clock) for plan in self._plans]
        self.stations = {plan.topic: Station(plan, clock, self._shared) for plan in self._plans}
        self.rebalancer.stations = self.stations
        for station in self.stations.values():
            station.scheduler.on_parked = self.parker.call
        self.heartbeat.subscriptions = {topic: each.plan.filter for topic, each in self.stations.items()}

    def _start(self, tasks: asyncio.TaskGroup) -> list[asyncio.Task[None]]:
        self._workers: list[ThreadWorkers | TaskWorkers] = []
        for station in self.stations.values():
            self._man(station, tasks)
        overdue = OverdueRuns(self.options, self.stations, self.dead_letters)
        loops = [
            self.rebalancer.run(self.started.set),
            self.heartbeat.run(),
            self.keeper.run(),
            self.offsets.run(),
            self.parker.run(),
            overdue.run(),
        ]
        return [tasks.create_task(loop) for loop in loops]

    def _man(self, station: Station, tasks: asyncio.TaskGroup) -> None:
        """Workers for a station; one without a handler is served by somebody who takes turns by hand."""
        clock = self.options.clock
        if station.plan.async_handler is not None:
            task_workers = TaskWorkers(station, self.reporter, clock, self.counts)
            task_workers.start(tasks)
            self._workers.append(task_workers)
        elif station.plan.handler is not None:
            thread_workers = ThreadWorkers(station, self.reporter, clock, self.counts, self._worker_broke)
            thread_workers.start()
            self._workers.append(thread_workers)

    # what the loops ask for

    def _hold(self, queue: MessageQueue, lease: QueueLease | None, start: Start, lane: bool) -> None:
        """A queue was granted and its start is known: put it to work."""
        station = self.stations[queue.topic]
        source = Source(queue, self._codec, lease.epoch if lease is not None else Epoch(0))
        holding = Holding(queue, station, source, lease, self.options.times(lane))
        holding.lane = lane
        holding.keeps_parked = lane and holding.epoch > 0
        holding.parked_serial = start.parked_serial
        now = self.options.clock.now()
        if lease is not None:
            holding.life.happened(Event.GRANTED, now=now)
        holding.life.happened(Event.LOCATED, now=now)
        self.holdings.add(holding)
        self.offsets.begin(holding, start)
        station.scheduler.add(queue, start.offset, holding.usable_until, start.finished, start.kept)
        self._record_grant(holding)
        log.info("%s is ours from offset %d on, epoch %d", queue, start.offset, holding.epoch)
        self._start_pulling(holding)

    def _start_pulling(self, holding: Holding) -> None:
        holding.puller = self._tasks.create_task(self.puller.run(holding))

    def move(self, holding: Holding, offset: QueueOffset) -> None:
        """A person reset the group's offset: go on there."""
        holding.moving = offset
        if holding.puller is not None:
            holding.puller.cancel()
        self._start_pulling(holding)

    def rebalance(self) -> None:
        """Look now who else there is."""
        self.rebalancer.ask()

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Does something beside the loops; it ends with them."""
        if not self._stopping.is_set():
            self._tasks.create_task(work)

    def _gate(self, holding: Holding, until: Millis) -> None:
        # Written down before it is true: a worker may start a turn the moment the gate opens. A gate that closes
        # because the connection is lost is no renewal; the lease itself runs on.
        if self.options.history.on and until > self.options.clock.now():
            self.options.history.lease_renewed(self._lease(holding), until=until * NANOS, asked=_asked(holding))
        holding.station.scheduler.set_usable_until(holding.queue, until)
        holding.wake.set()

    def _record_grant(self, holding: Holding) -> None:
        if self.options.history.on and holding.lease is not None:
            until = holding.usable_until * NANOS
            self.options.history.lease_granted(self._lease(holding), until=until, asked=_asked(holding))

    def _lease(self, holding: Holding) -> Lease:
        queue = holding.queue
        return Lease(self.options.group, queue.topic, queue.queue_id, self.client_id, holding.epoch)

    def _lost(self) -> None:
        self.rebalancer.ask_soon()

    def _connection_lost(self, connection: Connection) -> None:
        """Nobody knows what the broker thinks of us: leases rest until renewed, and we introduce ourselves again."""
        if self._stopping.is_set():
            return
        for broker in self._brokers_at(connection):
            self.keeper.suspend(broker)
            self.offsets.tell_again(broker)
        self.rebalancer.ask_soon()

    def _brokers_at(self, connection: Connection) -> set[str]:
        routes = [self.routes.known(topic) for topic in self.stations]
        return {
            broker.name
            for route in routes
            if route is not None
            for broker in route.brokers.values()
            if connection.address in broker.addresses.values()
        }

    def _worker_broke(self, error: BaseException) -> None:
        self._broken = error
        self.stop()

    # the end

    async def _shut_down(self) -> None:
        leaving = asyncio.create_task(self._leave_all())
        hurry = asyncio.create_task(self._in_a_hurry())
        await asyncio.wait({leaving, hurry}, return_when=asyncio.FIRST_COMPLETED)
        leaving.cancel()
        hurry.cancel()
        patience = 0.0 if self._now.is_set() else 1.0
        for workers in self._workers:
            await workers.stop(patience)
        for station in self.stations.values():
            station.scheduler.close()
        for holding in self.holdings:
            self._abandon(holding)
        if not self._now.is_set():
            await self.heartbeat.leave()

    async def _in_a_hurry(self) -> None:
        await self._now.wait()

    async def _leave_all(self) -> None:
        await asyncio.gather(*(self._leave(holding) for holding in self.holdings), return_exceptions=True)

    async def _leave(self, holding: Holding) -> None:
        if holding.hand_over is not None:
            await asyncio.wait([holding.hand_over])
        await self.hand_over.give_up_at_last(holding)

    def _abandon(self, holding: Holding) -> None:
        holding.released = True
        if holding.puller is not None:
            holding.puller.cancel()
        holding.station.scheduler.drop(holding.queue)  # workers see it before their next message


def _asked(holding: Holding) -> int:
    """When the newest lease was asked for, in nanoseconds: a line written late is then known to be late."""
    return 0 if holding.lease is None else holding.lease.asked_at * NANOS
