"""The requests of a group member over blocking sockets: heartbeats, members, leases, offsets.

Connections stay open, because a LaneMQ broker releases the leases of a member whose connection closes.

What a query leaves to other members is stored as the offset of a second group, whose name is `%LEFT%` and the group's
name. Every broker keeps it over restarts, and the next run of the query can read it without its checkpoint.
"""

from collections.abc import Collection, Sequence
from typing import NamedTuple

from lanemq.client.consumer.tag_filter import TagFilter
from lanemq.client.identity import new_client_id
from lanemq.client.routing import BlockingRoutes
from lanemq.client.topic_route import TopicRoute
from lanemq.client.topics import checked
from lanemq.clock import Clock
from lanemq.model.errors import LaneError, OffsetNotFound, TopicNotFound
from lanemq.model.names import MAX_GROUP_CHARS
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.net.address import Address, parse_addresses
from lanemq.net.blocking import BlockingConnection
from lanemq.net.security import OPEN, Security
from lanemq.wire.bodies import (
    ConsumerData,
    ConsumerIdList,
    HeartbeatData,
    LockRequest,
    LockResponse,
    QueueBody,
    SubscriptionData,
)
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import (
    ConsumerListHeader,
    HeartbeatHeader,
    LockAnswerHeader,
    LockHeader,
    OffsetResponse,
    QueryOffsetHeader,
    UnregisterHeader,
    UpdateOffsetHeader,
)
from lanemq.wire.lane_fields import LANE_CLIENT, LANE_EPOCH
from lanemq.wire.route_bodies import ClusterInfo

ASK_SECONDS = 3.0
LEFT_PREFIX = "%LEFT%"


class GrantedLease(NamedTuple):
    """The lease of one queue; `offset` is None if the broker does not return it with the lease."""

    epoch: Epoch
    offset: QueueOffset | None


class LockAnswer(NamedTuple):
    """The answer to a lock request; `member` is False if the broker needs a heartbeat of this client."""

    granted: dict[MessageQueue, GrantedLease]
    member: bool


class MemberCalls:
    """One member of one group. Not thread-safe."""

    def __init__(self, servers: str, group: str, tags: TagFilter, clock: Clock, *, security: Security = OPEN) -> None:
        self.client_id = new_client_id()
        self._group = group
        # Long names are cut. Groups that then share a name may repeat more messages, but lose none.
        self._left_group = LEFT_PREFIX + group[len(LEFT_PREFIX) - MAX_GROUP_CHARS :]
        self._tags = tags
        self._version = clock.wall()
        self._security = security
        self._routes = BlockingRoutes(parse_addresses(servers), clock, security=security, layouts=False)
        self._links: dict[Address, BlockingConnection] = {}

    def close(self) -> None:
        self._routes.close()
        for link in self._links.values():
            link.close()
        self._links.clear()

    def route(self, topic: str) -> TopicRoute:
        return self._routes.get(topic)

    def is_deleted(self, topic: str, brokers: Collection[str]) -> bool:
        """Whether a topic of these brokers was deleted, according to a new request; False if in doubt.

        A name server forgets the topics of an absent broker, so all brokers must be registered for a True.
        """
        self._routes.stale(topic)
        try:
            self._routes.get(topic)
        except TopicNotFound:
            return not brokers or set(brokers) <= self._registered()
        except LaneError:
            return False
        return False

    def connected(self, address: Address) -> bool:
        """Whether this member has an open connection to the broker."""
        return address in self._links

    def heartbeat(self, address: Address, topics: Sequence[str], expiry: Millis | None) -> None:
        """Joins the group. `expiry`: how long a LaneMQ broker waits for the next lock request or keep-alive."""
        subscriptions = [
            SubscriptionData(
                topic=topic,
                sub_string=self._tags.text,
                tags_set=sorted(self._tags.tags),
                code_set=self._tags.codes,
                sub_version=self._version,
                lane_ordered=True,
            )
            for topic in topics
        ]
        consumer = ConsumerData(
            group_name=self._group,
            consume_from_where="CONSUME_FROM_FIRST_OFFSET",
            subscription_data_set=subscriptions,
        )
        body = HeartbeatData(client_id=self.client_id, consumer_data_set=[consumer]).encode()
        ext = HeartbeatHeader(lane_expiry_millis=expiry).to_ext()
        self._ask(address, Command(RequestCode.HEART_BEAT, 0, ext=ext, body=body))

    def members(self, address: Address, topic: str) -> list[str]:
        """The members that share a topic; an Apache broker answers with all members of the group."""
        header = ConsumerListHeader(consumer_group=self._group, lane_topic=topic)
        reply = self._ask(address, Command(RequestCode.GET_CONSUMER_LIST_BY_GROUP, 0, ext=header.to_ext()))
        return sorted(set(ConsumerIdList.decode(reply.body).consumer_id_list))

    def lock(
        self, address: Address, queues: Sequence[MessageQueue], lease: Millis | None, keep_alive: Millis | None = None
    ) -> LockAnswer:
        """The queues that the broker has granted. `keep_alive`: how long a lease is used without renewal."""
        ext = LockHeader(lane_lease_millis=lease, lane_keep_alive_millis=keep_alive).to_ext()
        reply = self._ask(address, Command(RequestCode.LOCK_BATCH_MQ, 0, ext=ext, body=self._lock_body(queues)))
        answer = LockResponse.decode(reply.body)
        leases = {each.queue: GrantedLease(Epoch(each.epoch), _offset(each.offset)) for each in answer.lane_leases}
        granted = {each.queue: leases.get(each.queue, GrantedLease(Epoch(0), None)) for each in answer.lock_ok_mq_set}
        return LockAnswer(granted, not LockAnswerHeader.from_ext(reply.ext).lane_not_member)

    def keep_alive(self, address: Address) -> bool:
        """Shows a LaneMQ broker that this member is alive; false if the broker needs a heartbeat."""
        ext = LockHeader(lane_keep_alive=0).to_ext()
        reply = self._ask(address, Command(RequestCode.LOCK_BATCH_MQ, 0, ext=ext, body=self._lock_body(())))
        return not LockAnswerHeader.from_ext(reply.ext).lane_not_member

    def unlock(self, address: Address, queue: MessageQueue, epoch: Epoch) -> None:
        ext = {LANE_EPOCH: str(epoch)} if epoch else {}
        self._ask(address, Command(RequestCode.UNLOCK_BATCH_MQ, 0, ext=ext, body=self._lock_body([queue])))

    def committed(self, address: Address, queue: MessageQueue) -> QueueOffset:
        """The group's offset; 0 if it has none."""
        return self._stored(address, queue, self._group)

    def left_until(self, address: Address, queue: MessageQueue) -> QueueOffset:
        """The end of what a query of this group left to other members; 0 if it left nothing."""
        return self._stored(address, queue, self._left_group)

    def note_left(self, address: Address, queue: MessageQueue, until: QueueOffset) -> None:
        header = UpdateOffsetHeader.of(self._left_group, queue, until)
        self._ask(address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, 0, ext=header.to_ext()))

    def commit(self, address: Address, queue: MessageQueue, offset: QueueOffset, epoch: Epoch) -> None:
        """Stores the group's offset; raises `LeaseLost` if another member owns the queue."""
        header = UpdateOffsetHeader.of(self._group, queue, offset, self.client_id, epoch)
        self._ask(address, Command(RequestCode.UPDATE_CONSUMER_OFFSET, 0, ext=header.to_ext()))

    def unregister(self) -> None:
        header = UnregisterHeader(client_id=self.client_id, consumer_group=self._group)
        for address in list(self._links):
            self._ask(address, Command(RequestCode.UNREGISTER_CLIENT, 0, ext=header.to_ext()))

    def _registered(self) -> set[str]:
        try:
            reply = self._routes.ask(Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0))
        except LaneError:
            return set()
        found = ClusterInfo.decode(reply.body).broker_addr_table if reply.code == ResponseCode.SUCCESS else {}
        return set(found)

    def _stored(self, address: Address, queue: MessageQueue, group: str) -> QueueOffset:
        ext = QueryOffsetHeader.of(group, queue).to_ext() | {LANE_CLIENT: self.client_id}
        command = Command(RequestCode.QUERY_CONSUMER_OFFSET, 0, ext=ext)
        try:
            return QueueOffset(max(0, OffsetResponse.from_ext(self._ask(address, command).ext).offset))
        except OffsetNotFound:
            return QueueOffset(0)

    def _lock_body(self, queues: Sequence[MessageQueue]) -> bytes:
        bodies = [QueueBody.of(queue) for queue in queues]
        return LockRequest(client_id=self.client_id, consumer_group=self._group, mq_set=bodies).encode()

    def _ask(self, address: Address, command: Command) -> Command:
        link = self._links.get(address) or BlockingConnection(address, security=self._security)
        self._links[address] = link
        try:
            reply = link.request(command, ASK_SECONDS)
        except LaneError:
            link.close()
            self._links.pop(address, None)
            raise
        return checked(reply)


def _offset(number: int) -> QueueOffset:
    """A LaneMQ broker returns -1 if the group has no offset."""
    return QueueOffset(max(0, number))
