"""The requests of a consumer to its brokers, as calls that take and return values.

What LaneMQ brokers get in addition (lease length, epoch, client id) travels in extra fields that other brokers ignore.
"""

import asyncio
from collections.abc import Iterable, Sequence
from functools import partial
from typing import NamedTuple

from lanemq.client.consumer.coordination import COORDINATOR, Coordination
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.pull_stream import Following, Pulled, PullStream, one_pull
from lanemq.client.coordination import Leader, coordinator_request, leader_in, named_coordinators
from lanemq.client.routing import AsyncRoutes
from lanemq.client.topic_route import REFRESH_MILLIS, TopicRoute
from lanemq.client.topics import checked
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.offset_windows import windows
from lanemq.model.errors import (
    ConnectFailed,
    InvalidOption,
    LaneError,
    NotAllowed,
    NotLeader,
    OffsetNotFound,
    TransportError,
)
from lanemq.model.log_marks import LogMark, SeenLog
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.net.address import Address, parse_address
from lanemq.net.calling.connection import ConnectionPool
from lanemq.wire.bodies import ConsumerIdList, LaneLease, LaneProgress, LockRequest, LockResponse, QueueBody
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import (
    ConsumerListHeader,
    Header,
    HeartbeatHeader,
    LockAnswerHeader,
    LockHeader,
    NotLeaderHeader,
    OffsetResponse,
    PullHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UnregisterHeader,
    UpdateOffsetHeader,
)
from lanemq.wire.lane_bodies import LaneBody, SeenBody
from lanemq.wire.lane_fields import LANE_CLIENT, LANE_EPOCH, LANE_IGNORED
from lanemq.wire.log_marks import mark_in
from lanemq.wire.record import PULL_SUBSCRIPTION, records_in
from lanemq.wire.route_bodies import SubscriptionGroupConfig
from lanemq.wire.stats_bodies import ConsumerConnection


class Granted(NamedTuple):
    """One queue that the broker granted."""

    epoch: Epoch
    offset: QueueOffset | None
    """The group's committed offset, read under the lease; None if the broker did not send it."""
    finished: FinishedRanges = NOTHING_FINISHED
    """What former owners finished above the offset; sent only on request."""
    parked: int = 0
    """Version of the queue's parked lanes, which changes when an operator changes them; 0: there are none."""
    serial: int = 0
    """Names the grant in keep-alives; 0: the broker does not wait for them."""
    moved: QueueOffset | None = None
    """The offset of a reset that the group's members have not obeyed yet; only a coordinator says so here."""


class Locked(NamedTuple):
    """The answer to a lock request."""

    granted: dict[MessageQueue, Granted]
    member: bool = True
    """False: the broker does not have this client as a member of the group, which needs a heartbeat."""


class KeptAlive(NamedTuple):
    """The answer to a keep-alive."""

    leases: bool
    """Whether the leases of the serial are kept alive; false: the broker has cut some of them, or there are none."""
    member: bool = True
    """As in `Locked`."""


REQUEST_TIMEOUT = 3.0
"""Seconds that a request waits for its answer (RocketMQ's ClientConfig.mqClientApiTimeout)."""
LOCK_TIMEOUT = 3.0
"""Seconds that a lease request or keep-alive waits: as long as a lease is used. With RocketMQ's 1 s, a broker that
answers more slowly, because of its disk or an overloaded machine, would grant leases of which no member learns."""


NAME_SERVER_TIMEOUT = 1.0
"""Seconds that a name server is waited for which is asked for the coordinator. Long: a frozen one delays what all know.
"""
DOUBT_SECONDS = 1.0
"""Without an answer of the coordinator for so long, a member looks whether another one leads."""


class ConsumerCalls:
    """Requests to the master of a queue's broker."""

    def __init__(self, options: ConsumerOptions, client_id: str, pool: ConnectionPool, routes: AsyncRoutes) -> None:
        self.client_id = client_id
        self.coordination = Coordination(options.group)
        self._options = options
        self._asked_at = Millis(0)
        """When the name servers were asked for a coordinator."""
        self._named = named_coordinators(options.coordinator)
        self._group = options.group
        self._speaks_lane = options.speaks_lane
        self._pool = pool
        self._routes = routes

    async def find_coordinator(self, route: TopicRoute) -> None:
        """Finds out who coordinates the group, before it takes queues; again every half minute.

        Raises `NotAllowed` if the group is coordinated and no name server knows by whom: the brokers would refuse its
        pulls, and its offsets there are old. A LaneMQ broker coordinates its own groups and is not asked.
        """
        now, coordination = self._options.clock.now(), self.coordination
        if route.is_of_lane_broker or not route.brokers or self._options.broadcasting:
            return
        if coordination.known and now - self._asked_at < REFRESH_MILLIS:
            return
        leader = await self._leader()
        if leader is None and not coordination.known:
            await self._refuse_disabled(route)
        if leader is not None and self._options.compat == "rocketmq":
            raise InvalidOption(f"group {self._group} is coordinated, which compat='rocketmq' excludes: use 'auto'")
        coordination.found(leader)
        self._asked_at = now

    async def find_leader(self) -> bool:
        """Asks again who coordinates the group, while that is doubted; whether it is another one now.

        What waits for an answer of the former one fails at once: it may be frozen.
        """
        before = self.coordination.address
        if not self.coordination.found(await self._leader()):
            return False
        if before is not None and before != self.coordination.address:
            self._pool.close_silent(before, 0)
        return True

    async def _leader(self) -> Leader | None:
        """Who coordinates the group; None if no name server says so."""
        if self._named:
            # Each time the next one: one that does not lead says who does.
            self._named = self._named[1:] + self._named[:1]
            return Leader(self._named[-1], self.coordination.term)
        request = coordinator_request(self._group)
        asked = (self._pool.request(server, request, NAME_SERVER_TIMEOUT) for server in self._routes.servers)
        answers = await asyncio.gather(*asked, return_exceptions=True)
        replies, failure = list[Command](), None
        for each in answers:
            if isinstance(each, Command):
                replies.append(each)
            elif isinstance(each, LaneError):
                failure = each
            else:
                raise each
        if failure is not None and not replies:
            raise failure
        return leader_in(replies)

    async def _refuse_disabled(self, route: TopicRoute) -> None:
        """Raises if a broker has the group disabled. Brokers before RocketMQ 5 do not say so, and refuse the pulls."""
        command = Command(RequestCode.GET_SUBSCRIPTIONGROUP_CONFIG, 0, ext={"group": self._group})
        for name in sorted(route.brokers):
            if (address := route.master_of(name)) is None:
                continue
            reply = await self._pool.request(address, command, REQUEST_TIMEOUT)
            if reply.code == ResponseCode.SUCCESS and not SubscriptionGroupConfig.decode(reply.body).consume_enable:
                raise NotAllowed(
                    ResponseCode.NO_PERMISSION,
                    f"group {self._group} is disabled at broker {name}, and no name server knows a coordinator for it: "
                    f"start lanemq coordinator with the folder that it had. If the group never had one, enable it",
                )

    def address(self, topic: str, name: str) -> Address:
        """The address of the coordinator, or of the master of the broker that coordinates its queues itself."""
        if name == COORDINATOR and self.coordination.address is not None:
            return self.coordination.address
        return self.master(topic, name)

    def _of(self, queue: MessageQueue) -> Address:
        """Who coordinates a queue."""
        return self.address(queue.topic, self.coordination.of(queue.broker))

    def master(self, topic: str, broker: str) -> Address:
        """The address of the broker's master, where messages are."""
        route = self._routes.known(topic)
        if route is None:
            raise ConnectFailed(f"the address of broker {broker!r} of topic {topic!r} is not known yet")
        return route.master(broker)

    def is_lanemq(self, topic: str, name: str) -> bool:
        """Whether LaneMQ's protocol additions are used with a broker or coordinator."""
        return self._speaks_lane(self.coordination.is_lanemq(self._routes.known(topic), name))

    async def members(self, topic: str, broker: str) -> list[str]:
        """The client ids of the members that share a topic; an error if the broker knows none.

        An Apache broker does not know which members subscribe to the topic, and answers with all members of the group.
        """
        header = ConsumerListHeader(
            consumer_group=self._group, lane_topic=topic if self.is_lanemq(topic, broker) else None
        )
        reply = await self._ask(topic, broker, RequestCode.GET_CONSUMER_LIST_BY_GROUP, header)
        return sorted(set(ConsumerIdList.decode(reply.body).consumer_id_list))

    async def group_topics(self, topic: str, broker: str) -> frozenset[str]:
        """The topics of the group as the broker knows them; an Apache broker keeps those of the last heartbeat."""
        header = ConsumerListHeader(consumer_group=self._group)
        reply = await self._ask(topic, broker, RequestCode.GET_CONSUMER_CONNECTION_LIST, header)
        return frozenset(ConsumerConnection.decode(reply.body).subscription_table)

    async def lock(
        self,
        coordinator: str,
        queues: Sequence[MessageQueue],
        *,
        lease: Millis | None,
        keep_alive_timeout: Millis | None = None,
        finished: bool | None = None,
    ) -> Locked:
        """Locks the queues and returns those that are granted. The options are sent to LaneMQ brokers only.

        With `finished=None` the member works from the offset on, and the broker forgets what is finished above it.
        """
        header = LockHeader(lane_lease_millis=lease)
        if lease is not None:
            header = LockHeader(
                lane_lease_millis=lease,
                lane_finished=finished,
                lane_keep_alive_millis=keep_alive_timeout,
                lane_resets=True if self.coordination.address is not None else None,
                lane_term=self.coordination.term or None,
            )
        ext = header.to_ext()
        body = self._lock_request(queues).encode()
        command = Command(RequestCode.LOCK_BATCH_MQ, 0, ext=ext, body=body)
        reply = await self._request(self.address(queues[0].topic, coordinator), command, LOCK_TIMEOUT)
        answer = LockResponse.decode(reply.body)
        leases = {each.queue: each for each in answer.lane_leases}
        fields = self._fields(coordinator, reply)
        self.coordination.highest_epoch = max(
            [self.coordination.highest_epoch, *(each.epoch for each in answer.lane_leases)]
        )
        serial = fields.lane_keep_alive or 0
        granted = {each.queue: _granted(leases.get(each.queue), serial) for each in answer.lock_ok_mq_set}
        return Locked(granted, not fields.lane_not_member)

    async def keep_alive(self, topic: str, broker: str, serial: int) -> KeptAlive:
        """Keeps this member alive, with all leases that were granted under the serial; 0: it has no leases."""
        ext = LockHeader(lane_keep_alive=serial, lane_term=self.coordination.term or None).to_ext()
        command = Command(RequestCode.LOCK_BATCH_MQ, 0, ext=ext, body=self._lock_request(()).encode())
        reply = await self._request(self.address(topic, broker), command, LOCK_TIMEOUT)
        fields = self._fields(broker, reply)
        return KeptAlive(fields.lane_keep_alive == serial, not fields.lane_not_member)

    def _fields(self, coordinator: str, reply: Command) -> LockAnswerHeader:
        """The fields of an answer; raises `NotLeader` if it is of a coordinator that was replaced."""
        fields = LockAnswerHeader.from_ext(reply.ext)
        if coordinator == COORDINATOR and not self.coordination.answered(fields.lane_term):
            raise NotLeader(f"an answer of term {fields.lane_term} is late: term {self.coordination.term} has begun")
        return fields

    def close_silent(self, topic: str, broker: str, silence: Millis) -> bool:
        """Closes the connection to a broker if nothing has arrived on it for so long; the next request dials again."""
        return self._pool.close_silent(self.address(topic, broker), silence / 1000)

    async def unlock(self, queue: MessageQueue, epoch: Epoch) -> None:
        """Gives a queue back. Names the lease, so that a late unlock does not end a newer one."""
        ext = {LANE_EPOCH: str(epoch)} if epoch else {}
        command = Command(RequestCode.UNLOCK_BATCH_MQ, 0, ext=ext, body=self._lock_request([queue]).encode())
        await self._request(self._of(queue), command, LOCK_TIMEOUT)

    async def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """The group's committed offset; None if it has none. Anything else raises."""
        ext = QueryOffsetHeader.of(self._group, queue).to_ext() | {LANE_CLIENT: self.client_id}
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, 0, ext=ext)
        try:
            reply = await self._request(self._of(queue), command, REQUEST_TIMEOUT)
            return QueueOffset(OffsetResponse.from_ext(reply.ext).offset)
        except OffsetNotFound:
            return None

    async def first_offset(self, queue: MessageQueue) -> QueueOffset:
        return await self._offset(queue, RequestCode.GET_MIN_OFFSET, _queue_header(queue))

    async def last_offset(self, queue: MessageQueue) -> QueueOffset:
        """The offset of the next message that will be stored."""
        return await self._offset(queue, RequestCode.GET_MAX_OFFSET, _queue_header(queue))

    async def offset_at(self, queue: MessageQueue, timestamp_ms: int) -> QueueOffset:
        """The offset of the first message stored at this time or later."""
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
        return await self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    async def commit(
        self,
        queue: MessageQueue,
        offset: QueueOffset,
        epoch: Epoch,
        finished: FinishedRanges = NOTHING_FINISHED,
        seen: SeenLog | None = None,
    ) -> bool:
        """Reports progress and waits for the answer; raises `LeaseLost` if another member owns the queue.

        False if the broker ignored it because an operator has reset the group; the next pull returns the new offset.
        Finished ranges go only to brokers that grant epochs: no other broker stores them. `seen` is for a coordinator.
        """
        header = UpdateOffsetHeader.of(self._group, queue, offset, self.client_id, epoch)
        progress = LaneProgress(lane_finished=finished.encode(offset), lane_seen=seen)
        body = progress.encode() if epoch and (finished.bounds or seen is not None) else b""
        command = Command(RequestCode.UPDATE_CONSUMER_OFFSET, 0, ext=header.to_ext(), body=body)
        reply = await self._request(self._of(queue), command, REQUEST_TIMEOUT)
        return LANE_IGNORED not in reply.ext

    async def pull(self, header: PullHeader, broker: str, following: Following = one_pull) -> Pulled:
        """Pulls messages, one pull after the other as `following` says; returns the last answer (`pull_stream`)."""
        address = self.master(header.topic, broker)
        is_master = partial(self._is_master, header.topic, broker, address)
        return await PullStream(self._pool, address, header, following, is_master).run()

    async def heartbeat(self, address: Address, body: bytes, expiry: Millis | None) -> None:
        """Joins the group. `expiry`: how long a LaneMQ broker waits for the next keep-alive."""
        coordination = self.coordination
        ext = HeartbeatHeader(
            lane_expiry_millis=expiry,
            lane_term=coordination.term or None,
            lane_highest_epoch=coordination.highest_epoch or None,
        ).to_ext()
        await self._request(address, Command(RequestCode.HEART_BEAT, 0, ext=ext, body=body), REQUEST_TIMEOUT)

    async def unregister(self, address: Address) -> None:
        header = UnregisterHeader(client_id=self.client_id, consumer_group=self._group)
        command = Command(RequestCode.UNREGISTER_CLIENT, 0, ext=header.to_ext())
        await self._request(address, command, REQUEST_TIMEOUT)

    async def records(self, queue: MessageQueue, offsets: Sequence[int]) -> dict[int, bytes]:
        """The messages at ascending offsets, as stored; those that its broker has deleted are left out.

        Messages that are near each other come with one pull; pulls for those that are not are sent together.
        """
        parts = await asyncio.gather(*(self._window(queue, each) for each in windows(offsets)))
        return {offset: record for part in parts for offset, record in part.items()}

    async def _window(self, queue: MessageQueue, offsets: Sequence[int]) -> dict[int, bytes]:
        found: dict[int, bytes] = {}
        for offset in offsets:
            if offset > max(found, default=-1):  # the first pull brings all, unless they are large
                found |= await self._read(queue, QueueOffset(offset), offsets[-1] - offset + 1)
        return {offset: found[offset] for offset in offsets if offset in found}

    async def _read(self, queue: MessageQueue, offset: QueueOffset, count: int) -> dict[int, bytes]:
        header = PullHeader(
            consumer_group=self.coordination.pull_group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=offset,
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION,
            subscription="*",
            expression_type="TAG",
        )
        pulled = await self.pull(header, queue.broker)
        return records_in(pulled.body) if pulled.code == ResponseCode.SUCCESS else {}

    async def mark(self, queue: MessageQueue, offset: QueueOffset) -> LogMark | None:
        """The mark of the message at an offset; None if there is none."""
        return mark_in((await self.records(queue, (offset,))).get(offset, b""))

    async def seen(self, queue: MessageQueue) -> SeenLog:
        """What the group's members have seen of a queue's log, as the coordinator knows it."""
        topic, broker, queue_id = queue
        body = LaneBody(group=self._group, topic=topic, broker=broker, queue_id=queue_id).encode()
        reply = await self.ask_coordinator(queue, Command(RequestCode.LANE_SEEN, 0, body=body))
        return SeenBody.decode(reply.body).seen

    async def ask_coordinator(self, queue: MessageQueue, command: Command) -> Command:
        """Sends a request about a queue's lanes to who keeps them."""
        return await self._request(self._of(queue), command, REQUEST_TIMEOUT)

    async def ask(self, address: Address, command: Command, timeout: float | None = None) -> Command:
        """Sends any other request; raises if the answer is not a success."""
        return await self._request(address, command, timeout or REQUEST_TIMEOUT)

    async def post(self, address: Address, command: Command, timeout: float) -> Command:
        """Sends a request and returns the answer, whatever its code."""
        return await self._pool.request(address, command, timeout)

    async def _offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> QueueOffset:
        command = Command(code, 0, ext=header.to_ext())
        reply = await self._request(self.master(queue.topic, queue.broker), command, REQUEST_TIMEOUT)
        return QueueOffset(OffsetResponse.from_ext(reply.ext).offset)

    async def _ask(self, topic: str, broker: str, code: RequestCode, header: Header) -> Command:
        return await self._request(self.address(topic, broker), Command(code, 0, ext=header.to_ext()), REQUEST_TIMEOUT)

    async def _request(self, address: Address, command: Command, timeout: float) -> Command:
        if address == self.coordination.address:
            return checked(await self._ask_leader(address, command, timeout))
        return checked(await self._pool.request(address, command, timeout))

    async def _ask_leader(self, address: Address, command: Command, timeout: float) -> Command:
        """The answer of the coordinator; without one, or if it does not lead, another one is looked for."""
        coordination = self.coordination
        doubt = asyncio.get_running_loop().call_later(DOUBT_SECONDS, coordination.doubt)
        try:
            reply = await self._pool.request(address, command, timeout)
        except TransportError:
            coordination.doubt()
            raise
        finally:
            doubt.cancel()
        if reply.code == ResponseCode.NOT_LEADER:
            header = NotLeaderHeader.from_ext(reply.ext)
            if header.lane_leader:
                coordination.found(Leader(parse_address(header.lane_leader), header.lane_term or 0))
            coordination.doubt()
        elif address == coordination.address:
            coordination.doubted.clear()
        return reply

    def _is_master(self, topic: str, broker: str, address: Address) -> bool:
        """Whether the master of the broker is still at this address."""
        route = self._routes.known(topic)
        return route is not None and route.master_of(broker) == address

    def _lock_request(self, queues: Iterable[MessageQueue]) -> LockRequest:
        bodies = [QueueBody.of(queue) for queue in queues]
        return LockRequest(client_id=self.client_id, consumer_group=self._group, mq_set=bodies)


def _granted(lease: LaneLease | None, serial: int) -> Granted:
    if lease is None:
        return Granted(Epoch(0), None)
    if lease.offset < 0:
        return Granted(Epoch(lease.epoch), None, parked=lease.parked, serial=serial)
    finished = FinishedRanges.decode(lease.finished, lease.offset)
    moved = QueueOffset(lease.offset) if lease.moved else None
    return Granted(Epoch(lease.epoch), QueueOffset(lease.offset), finished, lease.parked, serial, moved)


def _queue_header(queue: MessageQueue) -> QueueHeader:
    return QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
