"""Which queues this member works on: asks who else there is, and takes and gives accordingly.

Runs at the start, every 20 s, and whenever a broker announces a change. Each member computes the same division for
itself (`core/consuming/allocation`); the broker's lease settles what two members see differently for a moment.
A queue is pulled only after its lease was granted and its offset read *after* that (A47, A57), whatever it was before
(A58); a queue that cannot be had, located or given yet is tried again soon and delays no other (A48).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from lanemq.client.consumer.assigned_queue import Holding, Holdings, Start
from lanemq.client.consumer.calls import ConsumerCalls, Granted
from lanemq.client.consumer.hand_over import HandOver
from lanemq.client.consumer.heartbeat import Heartbeat
from lanemq.client.consumer.leases import LockKeeper
from lanemq.client.consumer.offsets import OffsetKeeper
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.parking import Parker
from lanemq.client.consumer.subscription import Station
from lanemq.client.routing import AsyncRoutes, TopicRoute
from lanemq.core.consuming.queue_lease import QueueLease
from lanemq.core.consuming.rebalance import Stage, queue_changes
from lanemq.core.consuming.runs import Order
from lanemq.model.errors import LaneError, TopicNotFound
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import to_millis
from lanemq.net.rate_limited_log import RateLimitedLog

log = logging.getLogger(__name__)

Hold = Callable[[MessageQueue, QueueLease | None, Start, bool], None]
"""Makes a holding (queue, lease, start, whether the broker is a LaneMQ one) and starts its pull loop."""


class Rebalancer:
    """Moves queues in and out of `holdings`."""

    def __init__(
        self,
        options: ConsumerOptions,
        calls: ConsumerCalls,
        routes: AsyncRoutes,
        heartbeat: Heartbeat,
        keeper: LockKeeper,
        offsets: OffsetKeeper,
        hand_over: HandOver,
        holdings: Holdings,
    ) -> None:
        self.stations: dict[str, Station] = {}
        """By topic, the group's retry topic included."""
        self.hold: Hold
        self.resume: Callable[[Holding], None]
        """Starts the pull loop of a queue that stays after all."""
        self.parker: Parker
        self.tasks: asyncio.TaskGroup
        self._options = options
        self._calls = calls
        self._routes = routes
        self._heartbeat = heartbeat
        self._keeper = keeper
        self._offsets = offsets
        self._hand_over = hand_over
        self._holdings = holdings
        self._asked = asyncio.Event()
        self._rate_limited = RateLimitedLog(log, options.clock)
        # By topic: the division that was logged last, so that an unchanged one is not logged again (A54).
        self._told: dict[str, tuple[int, int, list[MessageQueue]]] = {}

    def ask(self) -> None:
        """Something changed: a round follows at once."""
        self._asked.set()

    def ask_soon(self) -> None:
        """A queue was lost or a broker is away: a round follows in a moment, not in a tight circle."""
        asyncio.get_running_loop().call_later(self._options.rebalance_soon, self.ask)

    async def run(self, first_done: Callable[[], None]) -> None:
        """Never ends; `first_done` is called once, when everything was looked at for the first time."""
        settled = await self.round()
        first_done()
        while True:
            options = self._options
            await self._wait(options.rebalance_every if settled else options.rebalance_soon)
            settled = await self.round()

    async def round(self) -> bool:
        """One look at every topic; whether everything is as it should be."""
        self._asked.clear()
        settled = [await self._try_topic(topic) for topic in tuple(self.stations)]
        return all(settled)

    async def _try_topic(self, topic: str) -> bool:
        try:
            return await self._topic(topic)
        except TopicNotFound as error:
            self._warn(topic, f"waiting for topic {topic}: {error}")
        except LaneError as error:
            self._warn(topic, f"queues of topic {topic} stay as they are: {error}")
        except Exception:
            log.exception("rebalancing topic %s failed; queues stay as they are", topic)
        return topic.startswith(RETRY_PREFIX)

    def _warn(self, topic: str, text: str) -> None:
        """Of a group's retry topic nobody needs to know: it appears with the group's first heartbeat or later, and
        what keeps it away keeps the subscribed topics away too."""
        if topic.startswith(RETRY_PREFIX):
            log.debug("%s", text)
        else:
            self._rate_limited.warn(topic, text)

    async def _topic(self, topic: str) -> bool:
        route = await self._routes.get(topic)
        await self._heartbeat.everywhere()
        members = await self._members(route)
        wanted = self._wanted(route, members)
        held = {holding.queue: holding for holding in self._holdings.of_topic(topic)}
        division = queue_changes(held, wanted)
        for queue in division.release:
            self._let_go(held[queue])
        for queue in division.keep:
            self._keep(held[queue])
        taken = await self._acquire(route, division.acquire) if division.acquire else 0
        self._tell(route, len(members), wanted, taken)
        return taken == len(division.acquire) and not division.release

    def _wanted(self, route: TopicRoute, members: list[str]) -> list[MessageQueue]:
        """My share; all of it in broadcasting."""
        if self._options.broadcasting or not route.subscribe:
            return list(route.subscribe)
        return self._options.allocate(route.subscribe, members, self._calls.client_id)

    async def _members(self, route: TopicRoute) -> list[str]:
        """From the first broker that answers; all of them hear every heartbeat. Nobody asks in broadcasting."""
        if self._options.broadcasting or not route.subscribe:
            return [self._calls.client_id]
        failure: LaneError | None = None
        for broker in sorted(route.brokers):
            try:
                return await self._calls.members(route.topic, broker)
            except LaneError as error:
                failure = error
        raise failure or TopicNotFound(17, f"topic {route.topic!r} has no broker")

    def _tell(self, route: TopicRoute, members: int, wanted: list[MessageQueue], taken: int) -> None:
        """One line per change: another division, or queues of it that could be had only now."""
        division = members, len(route.subscribe), wanted
        if self._told.get(route.topic) == division and not taken:
            return
        self._told[route.topic] = division
        log.info(
            "topic %s, group %s, allocation %s: %d members, %d of %d queues belong here, %d taken now",
            route.topic,
            self._options.group,
            self._options.strategy,
            members,
            len(wanted),
            len(route.subscribe),
            taken,
        )

    def _let_go(self, holding: Holding) -> None:
        """Beside this loop: a slow handler of one queue must not delay the others."""
        if holding.hand_over is None or holding.hand_over.done():
            holding.hand_over = self.tasks.create_task(self._give_up(holding))

    async def _give_up(self, holding: Holding) -> None:
        if await self._hand_over.give_up(holding, to_millis(self._options.hand_over_timeout)):
            self.ask()

    def _keep(self, holding: Holding) -> None:
        """A queue that stays; if it was about to leave, it is put to work again."""
        if holding.life.stage is Stage.COMMITTING:
            self._let_go(holding)  # too late to call off: it leaves, and the next round takes it anew
            return
        if holding.puller is None and (holding.hand_over is None or holding.hand_over.done()):
            self._hand_over.call_off(holding)
            self.resume(holding)

    async def _acquire(self, route: TopicRoute, queues: Sequence[MessageQueue]) -> int:
        """Takes what can be had, from all brokers at once; how many queues that were."""
        brokers: dict[str, list[MessageQueue]] = {}
        for queue in queues:
            brokers.setdefault(queue.broker, []).append(queue)
        return sum(await asyncio.gather(*(self._from(route, broker, part) for broker, part in brokers.items())))

    async def _from(self, route: TopicRoute, broker: str, queues: list[MessageQueue]) -> int:
        """Takes queues of one broker, as many as it gives."""
        lane = self._options.speaks_lane(route.is_lane(broker))
        leases: dict[MessageQueue, tuple[QueueLease | None, Granted | None]] = dict.fromkeys(queues, (None, None))
        station, times = self.stations[route.topic], self._options.times(lane)
        if station.plan.ordered and not self._options.broadcasting:
            try:
                by_key = station.plan.order is Order.KEY
                leases = dict(await self._keeper.acquire(broker, queues, times, lane=lane, finished=by_key))
            except LaneError as error:
                self._warn(route.topic, f"queues of {route.topic} at {broker} cannot be taken yet: {error}")
                return 0
        return sum(await asyncio.gather(*(self._begin(queue, *given, lane) for queue, given in leases.items())))

    async def _begin(self, queue: MessageQueue, lease: QueueLease | None, granted: Granted | None, lane: bool) -> bool:
        """Puts a queue to work at its start. Where that cannot be read the lease goes back: a guess could skip
        messages, and a lease that nobody uses would keep the queue from every other member."""
        try:
            if granted is not None and granted.offset is not None:
                start = Start(granted.offset, granted.finished)
            else:
                start = Start(await self._offsets.start_of(queue))
            if granted is not None and granted.parked:
                start = await self._with_parked(queue, start, granted.parked)
        except LaneError as error:
            self._warn(queue.topic, f"{queue} cannot be taken yet, where to start is not known: {error}")
            if lease is not None:
                await self._keeper.give_back(queue, lease.epoch)
            return False
        self.hold(queue, lease, start, lane)
        return True

    async def _with_parked(self, queue: MessageQueue, start: Start, serial: int) -> Start:
        """Lanes that the broker keeps stay shut here, and what is pulled of them again is not run."""
        if self.stations[queue.topic].plan.order is not Order.KEY:
            self._warn(queue.topic, f"{queue} has parked lanes; without order by key their newer messages run")
            return start
        kept = await self.parker.kept(queue, asked=True)
        return Start(start.offset, start.finished, kept, serial)

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        except TimeoutError:
            pass
