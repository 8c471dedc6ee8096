"""Decides which queues this member works on, takes new ones and gives others up.

A round runs at the start, every 20 s, and when a broker announces a change. Each member computes the same allocation
(`core/consuming/allocation`); where two members disagree for a moment, the broker's lease decides. A queue is pulled
only after its lease was granted and its offset read *after* that, because the former owner may commit until then. The
offset counts even if it is lower than what this member knew: messages are repeated rather than skipped. A queue that
cannot be taken, located or given up yet is tried again soon and does not delay others. The next round also comes soon
while a broker of a topic has no master, as in a fail-over.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import NamedTuple

from lanemq.background_log import ClientLog
from lanemq.client.codec import codec_named
from lanemq.client.consumer.calls import Granted
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.queues.assigned_queue import NANOS, AssignedQueue, Assignment, StartPosition
from lanemq.client.consumer.queues.hand_over import HandOver
from lanemq.client.consumer.queues.leases import LeaseKeeper
from lanemq.client.consumer.queues.link import BrokerLink
from lanemq.client.consumer.queues.progress import QueueReporter
from lanemq.client.consumer.queues.pull import Puller
from lanemq.client.consumer.turns.subscription import ActiveSubscription
from lanemq.client.message import MessageSource
from lanemq.client.topic_route import TopicRoute
from lanemq.core.consuming.queue_lease import QueueLease
from lanemq.core.consuming.rebalance import QueueEvent, QueueStage, queue_changes
from lanemq.core.consuming.runs import Order
from lanemq.model.errors import BrokerRefused, GroupConflict, LaneError, LogReplaced, TopicNotFound, TransportError
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, to_millis
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.codes import ResponseCode

log = ClientLog(__name__)

ROUND_EVERY = 20.0
"""Seconds between two rounds (RocketMQ's RebalanceService). Brokers announce changes at once; a round at this interval
finds those whose announcement was lost."""
STOPPED_MS = 10_000
"""Between two looks at a queue whose log is not the one that the group has read."""
ROUND_SOON = 0.5
"""Seconds until the next round when a queue could not be taken or given up (RocketMQ's RebalanceImpl), or when its
broker has no master."""


class RebalanceTrigger:
    """Asks for a rebalance round."""

    def __init__(self) -> None:
        self._asked = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None

    def now(self) -> None:
        """Asks for a round at once: the group has changed."""
        self._asked.set()

    def soon(self) -> None:
        """Asks for a round after a short delay: a queue was lost or a broker is away."""
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(ROUND_SOON, self._fire)

    def _fire(self) -> None:
        self._timer = None
        self.now()

    async def wait(self, seconds: float) -> None:
        """Returns when a round is asked for, at the latest after `seconds`."""
        try:
            async with asyncio.timeout(seconds):
                await self._asked.wait()
        except TimeoutError:
            pass

    def clear(self) -> None:
        self._asked.clear()


class QueueKeepers(NamedTuple):
    """The parts that work on an assigned queue, from its lease to its hand-over."""

    leases: LeaseKeeper
    progress: QueueReporter
    puller: Puller
    hand_over: HandOver


class Rebalancer:
    """Moves queues into and out of the assignment."""

    def __init__(
        self,
        options: ConsumerOptions,
        link: BrokerLink,
        subscriptions: dict[str, ActiveSubscription],
        assignment: Assignment,
        keepers: QueueKeepers,
        trigger: RebalanceTrigger,
        tasks: asyncio.TaskGroup,
    ) -> None:
        self._options = options
        _, self._routes, self._calls, self._heartbeat = link
        self._coordination = self._calls.coordination
        self._subscriptions = subscriptions
        self._assignment = assignment
        self._leases, self._progress, self._puller, self._hand_over = keepers
        self._trigger = trigger
        self._tasks = tasks
        self._codec = codec_named(options.codec)
        self._rate_limited = RateLimitedLog(log, options.clock)
        # By topic: the allocation that was logged last, so that an unchanged one is not logged again.
        self._stopped_until: dict[MessageQueue, Millis] = {}
        """Queues whose log is not the one that the group has read, and when they are looked at again."""
        self._logged: dict[str, tuple[int, int, list[MessageQueue]]] = {}

    async def run(self, first_done: Callable[[], None]) -> None:
        """Runs rounds until cancelled; calls `first_done` after the first one."""
        settled = await self.round()
        first_done()
        while True:
            await self._trigger.wait(ROUND_EVERY if settled else ROUND_SOON)
            settled = await self.round()

    async def round(self) -> bool:
        """Looks at every topic; true if nothing is left to do."""
        self._trigger.clear()
        settled = [await self._try_topic(topic) for topic in tuple(self._subscriptions)]
        return all(settled)

    async def _try_topic(self, topic: str) -> bool:
        try:
            return await self._topic(topic)
        except GroupConflict:
            raise
        except TopicNotFound as error:
            self._warn(topic, f"waiting for topic {topic}: {error}")
        except LaneError as error:
            if isinstance(error, TransportError):
                self._routes.unreachable(topic)
            self._failed(topic, f"queues of topic {topic} stay as they are", error)
        except Exception:
            log.exception("rebalancing topic %s failed; queues stay as they are", topic)
        return topic.startswith(RETRY_PREFIX)

    def _warn(self, topic: str, text: str) -> None:
        """Logs a warning, for a retry topic only at debug level.

        A retry topic appears with the group's first heartbeat or later, and a broker that is away keeps the subscribed
        topics away too.
        """
        if topic.startswith(RETRY_PREFIX):
            log.debug("%s", text)
        else:
            self._rate_limited.warn(topic, text)

    def _failed(self, topic: str, text: str, error: LaneError) -> None:
        """The same for a request that failed."""
        if topic.startswith(RETRY_PREFIX):
            log.debug("%s: %s", text, error)
        else:
            self._rate_limited.failed(topic, text, error)

    async def _topic(self, topic: str) -> bool:
        if not self._subscriptions[topic].wanted:
            return self._give_topic_up(topic)
        route = await self._routes.get(topic)
        await self._calls.find_coordinator(route)
        for name in self._coordination.all_of(route.brokers):
            if self._options.speaks_lane(self._coordination.is_lanemq(route, name)):
                self._leases.stay_member(topic, name, self._options.times(lane=True))
        await self._heartbeat.send_to_all()
        members = await self._members(route)
        share = self._share(route, members)
        have = {assigned.queue: assigned for assigned in self._assignment.of_topic(topic)}
        changes = queue_changes(have, share)
        for queue in changes.release:
            self._release(have[queue])
        for queue in changes.keep:
            if have[queue].read_log.is_other:
                self._release(have[queue])
            else:
                self._keep(have[queue])
        taken = await self._acquire(route, changes.acquire) if changes.acquire else 0
        self._log_change(route, len(members), share, taken)
        if self._options.broadcasting:
            # No broker was asked for members, so this shows whether the brokers are where the route says.
            await asyncio.gather(*(self._heartbeat.send_to(route.master(broker)) for broker in route.brokers))
        # No broker announces a new master, and leases there are renewed only when the route has it.
        return taken == len(changes.acquire) and not changes.release and not route.away

    def _give_topic_up(self, topic: str) -> bool:
        """Hands over the queues of a topic that is not subscribed any more; true if none is left."""
        left = list(self._assignment.of_topic(topic))
        for assigned in left:
            self._release(assigned)
        if not left:
            self._subscriptions.pop(topic).scheduler.close()
            self._logged.pop(topic, None)
        return not left

    async def _members(self, route: TopicRoute) -> list[str]:
        """The members that share the topic, from the first broker that answers; all brokers get every heartbeat.

        In broadcasting only this member matters.
        """
        if self._options.broadcasting or not route.subscribe:
            return [self._calls.client_id]
        failure: LaneError | None = None
        for broker in self._coordination.all_of(route.brokers):
            try:
                members = await self._known_members(route.topic, broker)
                if self._calls.client_id not in members:  # it was silent for too long, or the broker restarted
                    await self._heartbeat.send_again_to(self._calls.address(route.topic, broker))
                    members = await self._calls.members(route.topic, broker)
                    self._warn_of_wider_filter(route, broker, members)
                if len(members) > 1 and not self._options.speaks_lane(self._coordination.is_lanemq(route, broker)):
                    await self._warn_of_other_topics(route.topic, broker)
                return members
            except LaneError as error:
                failure = error
        raise failure or TopicNotFound(ResponseCode.TOPIC_NOT_EXIST, f"topic {route.topic!r} has no broker: start one")

    def _warn_of_wider_filter(self, route: TopicRoute, broker: str, members: list[str]) -> None:
        """Warns if a LaneMQ broker leaves this member out, which has just joined: another one has a wider filter."""
        topic, tags = route.topic, self._subscriptions[route.topic].subscription.filter
        if self._coordination.is_lanemq(route, broker) and self._calls.client_id not in members and tags.tags:
            self._warn(
                topic,
                f"no queue of {topic} for this member now: it reads tags {tags.text!r}, and other members of group "
                f"{self._options.group} read more, or did until they were lost. It gets queues again when they have "
                f"left, or two minutes after they were lost",
            )

    async def _known_members(self, topic: str, broker: str) -> list[str]:
        """The members that a broker knows; none if it knows no member of the group, which brokers answer as an error.

        A broker that restarted after this member's heartbeat knows none until the next one.
        """
        try:
            return await self._calls.members(topic, broker)
        except BrokerRefused as error:
            if error.code != ResponseCode.SYSTEM_ERROR:
                raise
            return []

    async def _warn_of_other_topics(self, topic: str, broker: str) -> None:
        """Warns if another member subscribes to other topics: an Apache broker does not say which member has which.

        Every topic is then shared among all members, also those that do not consume it.
        """
        topics = await self._calls.group_topics(topic, broker)
        different = {each for each in topics ^ self._subscriptions.keys() if not each.startswith(RETRY_PREFIX)}
        if different:
            self._warn(
                self._options.group,
                f"members of group {self._options.group} subscribe to different topics (not all of them to "
                f"{', '.join(sorted(different))}): some of their queues are not consumed at this broker, which shares "
                f"every topic among all members. Subscribe all members to the same topics, or use a group for each",
            )

    def _share(self, route: TopicRoute, members: list[str]) -> list[MessageQueue]:
        """This member's queues; all of them in broadcasting."""
        if self._options.broadcasting or not route.subscribe:
            return list(route.subscribe)
        return self._options.allocate(route.subscribe, members, self._calls.client_id)

    def _log_change(self, route: TopicRoute, members: int, share: list[MessageQueue], taken: int) -> None:
        """Logs a new allocation, or queues that could be taken only now."""
        allocation = members, len(route.subscribe), share
        if self._logged.get(route.topic) == allocation and not taken:
            return
        self._logged[route.topic] = allocation
        log.info(
            "topic %s, group %s: %d of %d queues are for this member, %d taken now (members: %d, allocation: %s)",
            route.topic,
            self._options.group,
            len(share),
            len(route.subscribe),
            taken,
            members,
            self._options.strategy,
        )

    # queues that leave or stay

    def _release(self, assigned: AssignedQueue) -> None:
        """Hands a queue over in a task of its own: a slow handler must not delay other queues."""
        if assigned.hand_over is None or assigned.hand_over.done():
            assigned.hand_over = self._tasks.create_task(self._give_up(assigned))

    async def _give_up(self, assigned: AssignedQueue) -> None:
        if await self._hand_over.give_up(assigned, to_millis(self._options.hand_over_timeout)):
            self._trigger.now()

    def _keep(self, assigned: AssignedQueue) -> None:
        """Keeps a queue; one that was about to leave continues."""
        if assigned.lifecycle.stage is QueueStage.COMMITTING:
            self._release(assigned)  # too late to call off: it leaves, and the next round takes it again
            return
        if assigned.puller is None and (assigned.hand_over is None or assigned.hand_over.done()):
            self._hand_over.call_off(assigned)
            self._puller.start(assigned)

    # new queues

    async def _acquire(self, route: TopicRoute, queues: Sequence[MessageQueue]) -> int:
        """Takes queues from all brokers at once and returns how many it got, or will not ask for now."""
        parts: dict[str, list[MessageQueue]] = {}
        now = self._options.clock.now()
        wanted = [queue for queue in queues if self._stopped_until.get(queue, now) <= now]
        for queue in wanted:
            parts.setdefault(self._coordination.of(queue.broker), []).append(queue)
        taken = await asyncio.gather(*(self._acquire_from(route, name, part) for name, part in parts.items()))
        return len(queues) - len(wanted) + sum(taken)

    async def _acquire_from(self, route: TopicRoute, broker: str, queues: list[MessageQueue]) -> int:
        lane = self._options.speaks_lane(self._coordination.is_lanemq(route, broker))
        leases: dict[MessageQueue, tuple[QueueLease | None, Granted | None]] = dict.fromkeys(queues, (None, None))
        subscription, times = self._subscriptions[route.topic].subscription, self._options.times(lane)
        if subscription.ordered and not self._options.broadcasting:
            try:
                by_key = subscription.order is Order.KEY
                leases = dict(await self._leases.acquire(broker, queues, times, lane=lane, finished=by_key))
            except LaneError as error:
                self._failed(route.topic, f"queues of {route.topic} at {broker} cannot be taken yet", error)
                return 0
        return sum(await asyncio.gather(*(self._begin(route, queue, *start) for queue, start in leases.items())))

    async def _begin(
        self, route: TopicRoute, queue: MessageQueue, lease: QueueLease | None, granted: Granted | None
    ) -> bool:
        """Starts a queue at its offset. If the offset cannot be read, gives the lease back.

        A guess could skip messages, and an unused lease would keep the queue from all other members.
        """
        asked = self._options.history.now()
        try:
            order = self._subscriptions[queue.topic].subscription.order
            start = await self._progress.start_of(queue, granted, order)
        except LaneError as error:
            if isinstance(error, LogReplaced):
                self._stop_queue(queue, error)
            else:
                self._failed(queue.topic, f"{queue} cannot be taken yet, where to start is not known", error)
            if lease is not None:
                await self._leases.unlock(queue, lease.epoch)
            return False
        if lease is not None and not lease.epoch:
            self._progress.record_found(queue, start.progress.offset, asked)
        self._assign(route, queue, lease, start)
        return True

    def _stop_queue(self, queue: MessageQueue, error: LogReplaced) -> None:
        """Leaves a queue alone for a while: a grant costs the coordinator a write, and only an operator can help."""
        log.error("%s", error)
        self._stopped_until[queue] = Millis(self._options.clock.now() + STOPPED_MS)
        asyncio.get_running_loop().call_later(STOPPED_MS / 1000, self._trigger.now)

    def _assign(self, route: TopicRoute, queue: MessageQueue, lease: QueueLease | None, start: StartPosition) -> None:
        active, options = self._subscriptions[queue.topic], self._options
        coordinator = self._coordination.of(queue.broker)
        times = options.times(options.speaks_lane(self._coordination.is_lanemq(route, coordinator)))
        is_lanemq = options.speaks_lane(route.is_lanemq(queue.broker))
        epoch = lease.epoch if lease is not None else Epoch(0)
        in_order = active.subscription.ordered
        source = MessageSource(queue, self._codec, epoch, group=options.group, in_order=in_order)
        assigned = AssignedQueue(queue, active, source, lease, times, is_lanemq=is_lanemq, coordinator=coordinator)
        now = options.clock.now()
        if lease is not None:
            assigned.lifecycle.happened(QueueEvent.GRANTED, now=now)
        assigned.lifecycle.happened(QueueEvent.LOCATED, now=now)
        self._assignment.add(assigned)
        assigned.start_at(start)
        if options.history.on and lease is not None:
            until = assigned.usable_until * NANOS
            lease_in_history = self._assignment.lease_in_history(assigned)
            options.history.lease_granted(lease_in_history, until=until, asked=assigned.asked_ns)
        offset = start.progress.offset
        self._progress.record_filter(assigned, offset)
        log.info("%s is assigned from offset %d on, epoch %d", queue, offset, assigned.epoch)
        self._puller.start(assigned)
