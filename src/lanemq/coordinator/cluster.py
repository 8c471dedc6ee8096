"""The requests of a coordinator to its cluster, as calls that take and return values."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from enum import Enum
from typing import Any

import msgspec

from lanemq.client.coordination import COORDINATOR_NAMESPACE, entries_in
from lanemq.client.topic_route import TopicRoute, topic_route
from lanemq.client.topics import MASTER, Steps, checked, delete_setting, look_up, put_setting, run_async
from lanemq.core.brokering.cluster.retention import HOUR_MS, RESERVED_HOURS, BrokerRetention
from lanemq.model.errors import ConnectFailed, GroupNotFound, LaneError, RemoteProtocolError, TransportError
from lanemq.model.names import TOOLS_GROUP, pull_group
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address, parse_address
from lanemq.net.calling.connection import Connection, ConnectionPool
from lanemq.wire.admin_headers import ConsumeStatsHeader, KvHeader
from lanemq.wire.bodies import LockRequest, LockResponse, QueueBody
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import (
    ConsumerListHeader,
    OffsetResponse,
    PullHeader,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateOffsetHeader,
)
from lanemq.wire.record import PULL_SUBSCRIPTION, records_in
from lanemq.wire.route_bodies import ClusterInfo, KVTable
from lanemq.wire.stats_bodies import ConsumerConnection, ConsumeStats

REQUEST_SECONDS = 3.0
"""As all clients of RocketMQ."""
CONSUME_ENABLE = "consumeEnable"
RESERVED_TIME = "fileReservedTime="

_NO_MESSAGE = (
    ResponseCode.PULL_NOT_FOUND,
    ResponseCode.PULL_RETRY_IMMEDIATELY,
    ResponseCode.PULL_OFFSET_MOVED,
)

GroupSettings = dict[str, Any]
"""A group's settings at a broker, with everything that the broker's version knows."""


class Presence(Enum):
    """What is known of a coordinator by asking at its address."""

    ANSWERS = "answers"
    GONE = "gone"
    """Its machine says that nothing listens there."""
    SILENT = "silent"
    """It may be frozen, or out of reach from here."""


class ClusterLink:
    """Connections to the name servers and brokers of one Apache cluster."""

    def __init__(
        self, servers: Sequence[Address], pool: ConnectionPool, may_ask: Callable[[], None] = lambda: None
    ) -> None:
        """`may_ask` is called before each request; it raises if this process may not change the cluster any more."""
        self.servers = tuple(servers)
        self._may_ask = may_ask
        self._pool = pool
        self._answered = 0
        """The place of the name server that answered last, which is asked first: a frozen one costs 3 s each time."""

    # name servers

    async def info(self) -> ClusterInfo:
        """The brokers of the cluster as the first name server that answers has them."""
        reply = await self._ask_names(Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0))
        return ClusterInfo.decode(checked(reply).body)

    async def route(self, topic: str) -> TopicRoute | None:
        """The topic's route with its layout; None if it does not exist."""
        data = await run_async(look_up(topic, self.servers), self._in_turn)
        return None if data is None else topic_route(topic, data)

    async def settings(self, server: Address) -> dict[str, str]:
        """The coordinators that one name server has."""
        header = KvHeader(namespace=COORDINATOR_NAMESPACE)
        reply = await self._ask(server, Command(RequestCode.GET_KVLIST_BY_NAMESPACE, 0, ext=header.to_ext()))
        return {} if reply.code == ResponseCode.QUERY_NOT_FOUND else entries_in(checked(reply))

    async def put(self, key: str, value: str, servers: Iterable[Address]) -> Sequence[Address]:
        """Sets an entry at name servers; returns those that were not reached."""
        return await self._run(put_setting(COORDINATOR_NAMESPACE, key, value, servers))

    async def delete(self, key: str) -> Sequence[Address]:
        """Deletes an entry at all name servers; returns those that were not reached."""
        return await self._run(delete_setting(COORDINATOR_NAMESPACE, key, self.servers))

    async def presence(self, coordinator: Address) -> Presence:
        """Whether a coordinator runs at an address."""
        try:
            await self._ask(coordinator, Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 0))
        except TransportError as error:
            return Presence.GONE if isinstance(error.__cause__, ConnectionRefusedError) else Presence.SILENT
        return Presence.ANSWERS

    # groups at a broker

    async def group_settings(self, broker: Address) -> dict[str, GroupSettings]:
        """The settings of all groups that a broker has, by name."""
        reply = checked(await self._ask(broker, Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 0)))
        try:
            table: dict[str, GroupSettings] = msgspec.json.decode(reply.body)["subscriptionGroupTable"]
        except (msgspec.DecodeError, KeyError, TypeError) as error:
            raise RemoteProtocolError(f"{broker} lists its groups in a form that cannot be read: {error}") from error
        return table

    async def set_consumption(self, broker: Address, settings: GroupSettings, *, enabled: bool) -> None:
        """Lets members of a group pull from a broker, or not; every other setting of the group stays."""
        body = msgspec.json.encode({**settings, CONSUME_ENABLE: enabled})
        await self._change_group(broker, body)

    async def create_pull_group(self, broker: Address, group: str) -> None:
        """Creates the group under whose name coordinated members pull, for brokers that create no groups themselves."""
        await self._change_group(broker, msgspec.json.encode({"groupName": pull_group(group)}))

    async def _change_group(self, broker: Address, body: bytes) -> None:
        command = Command(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, 0, body=body)
        checked(await self._ask(broker, command))

    async def lock(
        self, broker: Address, group: str, client_id: str, queues: Sequence[MessageQueue]
    ) -> frozenset[MessageQueue]:
        """Locks queues at a broker, or renews the locks; returns those that it granted."""
        body = LockRequest(client_id=client_id, consumer_group=group, mq_set=[QueueBody.of(each) for each in queues])
        reply = await self._ask(broker, Command(RequestCode.LOCK_BATCH_MQ, 0, body=body.encode()))
        return frozenset(each.queue for each in LockResponse.decode(checked(reply).body).lock_ok_mq_set)

    async def unlock(self, broker: Address, group: str, client_id: str, queues: Sequence[MessageQueue]) -> None:
        body = LockRequest(client_id=client_id, consumer_group=group, mq_set=[QueueBody.of(each) for each in queues])
        checked(await self._ask(broker, Command(RequestCode.UNLOCK_BATCH_MQ, 0, body=body.encode())))

    async def online(self, broker: Address, group: str) -> list[str]:
        """The addresses of the group's members that are connected to a broker."""
        ext = ConsumerListHeader(consumer_group=group).to_ext()
        try:
            reply = checked(await self._ask(broker, Command(RequestCode.GET_CONSUMER_CONNECTION_LIST, 0, ext=ext)))
        except GroupNotFound:
            return []
        return sorted(each.client_addr for each in ConsumerConnection.decode(reply.body).connection_set)

    async def offsets(self, broker: Address, group: str) -> dict[MessageQueue, QueueOffset]:
        """What a group has committed in the queues of a broker."""
        offsets = await self.offsets_or_zero(broker, group)
        # 0 may also stand for "never committed", and such a queue starts where its next owner says.
        unsure = {
            queue
            for queue, offset in offsets.items()
            if offset <= 0 and not await self.has_committed(broker, group, queue)
        }
        return {queue: offset for queue, offset in offsets.items() if queue not in unsure}

    async def offsets_or_zero(self, broker: Address, group: str) -> dict[MessageQueue, QueueOffset]:
        """What a group has committed in the queues of a broker; 0 also where it has committed nothing."""
        ext = ConsumeStatsHeader(consumer_group=group).to_ext()
        reply = checked(await self._ask(broker, Command(RequestCode.GET_CONSUME_STATS, 0, ext=ext)))
        table = ConsumeStats.decode(reply.body).offset_table
        return {queue: QueueOffset(at.consumer_offset) for queue, at in table.items()}

    async def has_committed(self, broker: Address, group: str, queue: MessageQueue) -> bool:
        header = QueryOffsetHeader(
            consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, set_zero_if_not_found=False
        )
        reply = await self._ask(broker, Command(RequestCode.QUERY_CONSUMER_OFFSET, 0, ext=header.to_ext()))
        return reply.code != ResponseCode.QUERY_NOT_FOUND

    async def commit(self, broker: Address, group: str, queue: MessageQueue, offset: int) -> None:
        checked(await self._ask(broker, _commit(group, queue, offset)))

    async def connection(self, broker: Address) -> Connection:
        """The connection to a broker: as long as it is the same, so is the broker's process."""
        return await self._pool.get(broker)

    async def commit_all(self, broker: Address, group: str, offsets: Mapping[MessageQueue, int]) -> None:
        """Commit without answers, as RocketMQ's members do: what is lost is seen at the next look."""
        connection = await self._pool.get(broker)
        self._may_ask()
        for queue, offset in offsets.items():
            connection.post_oneway(_commit(group, queue, offset))

    # messages

    async def message(self, broker: Address, queue: MessageQueue, offset: int) -> bytes:
        """The message at an offset, as stored; empty if there is none."""
        return (await self.messages(broker, queue, (offset,))).get(offset, b"")

    async def messages(self, broker: Address, queue: MessageQueue, offsets: Sequence[int]) -> dict[int, bytes]:
        """Messages that are near each other, as stored, by ascending offset; those that are not there are left out."""
        found: dict[int, bytes] = {}
        for offset in offsets:
            if offset > max(found, default=-1):  # the first pull brings all, unless they are large
                found |= await self._pull(broker, queue, offset, offsets[-1] - offset + 1)
        return {offset: found[offset] for offset in offsets if offset in found}

    async def _pull(self, broker: Address, queue: MessageQueue, offset: int, count: int) -> dict[int, bytes]:
        header = PullHeader(
            consumer_group=TOOLS_GROUP,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=QueueOffset(offset),
            max_msg_nums=count,
            sys_flag=PULL_SUBSCRIPTION,
            subscription="*",
            expression_type="TAG",
        )
        reply = await self._ask(broker, Command(RequestCode.PULL_MESSAGE, 0, ext=header.to_ext()))
        if reply.code in _NO_MESSAGE:
            return {}
        return records_in(checked(reply).body)

    async def first_offset(self, broker: Address, queue: MessageQueue) -> int:
        header = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
        reply = await self._ask(broker, Command(RequestCode.GET_MIN_OFFSET, 0, ext=header.to_ext()))
        return OffsetResponse.from_ext(checked(reply).ext).offset

    async def offset_at(self, broker: Address, queue: MessageQueue, time: int) -> int:
        """The offset of the first message that was stored at this time or later."""
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=time)
        reply = await self._ask(broker, Command(RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, 0, ext=header.to_ext()))
        return OffsetResponse.from_ext(checked(reply).ext).offset

    async def retention(self, broker: Address) -> BrokerRetention:
        """How long a broker keeps messages, and how full its disk is."""
        text = checked(await self._ask(broker, Command(RequestCode.GET_BROKER_CONFIG, 0))).body.decode(errors="replace")
        hours = next((line.partition("=")[2] for line in text.splitlines() if line.startswith(RESERVED_TIME)), "")
        reserved = int(hours) if hours.strip().isdigit() else RESERVED_HOURS
        reply = checked(await self._ask(broker, Command(RequestCode.GET_BROKER_RUNTIME_INFO, 0)))
        return BrokerRetention(reserved * HOUR_MS, _disk_ratio(KVTable.decode(reply.body).table))

    # requests

    async def _run(self, steps: Steps[tuple[Address, ...]]) -> tuple[Address, ...]:
        return await run_async(steps, self._in_turn)

    async def _in_turn(self, command: Command, to: Address | None) -> Command:
        return await (self._ask_names(command) if to is None else self._ask(to, command))

    async def _ask_names(self, command: Command) -> Command:
        failure: LaneError = ConnectFailed("no name server is given")
        for at in range(self._answered, self._answered + len(self.servers)):
            try:
                reply = await self._ask(self.servers[at % len(self.servers)], command)
            except TransportError as error:
                failure = error
            else:
                self._answered = at % len(self.servers)
                return reply
        raise ConnectFailed(f"no name server answered (tried {', '.join(map(str, self.servers))}): {failure}")

    async def _ask(self, address: Address, command: Command) -> Command:
        self._may_ask()
        return await self._pool.request(address, command, REQUEST_SECONDS)


def _commit(group: str, queue: MessageQueue, offset: int) -> Command:
    header = UpdateOffsetHeader(consumer_group=group, topic=queue.topic, queue_id=queue.queue_id, commit_offset=offset)
    return Command(RequestCode.UPDATE_CONSUMER_OFFSET, 0, ext=header.to_ext())


def _disk_ratio(info: Mapping[str, str]) -> float:
    try:
        return float(info.get("commitLogDiskRatio", "0"))
    except ValueError:
        return 0.0


def masters_in(info: ClusterInfo) -> dict[str, Address]:
    """The address of each broker's master."""
    table = info.broker_addr_table.items()
    return {name: parse_address(data.broker_addrs[MASTER]) for name, data in table if MASTER in data.broker_addrs}


def replicas_in(info: ClusterInfo) -> dict[str, list[Address]]:
    """The addresses of each broker's replicas, without its master."""
    return {
        name: [parse_address(at) for number, at in data.broker_addrs.items() if number != MASTER]
        for name, data in info.broker_addr_table.items()
    }


def cluster_name(info: ClusterInfo) -> str:
    """The names of the clusters that the name servers know, sorted."""
    return ",".join(sorted(info.cluster_addr_table))


def settings_of(table: Mapping[str, GroupSettings], group: str) -> GroupSettings:
    """A group's settings at a broker; RocketMQ's defaults if the broker does not have it."""
    return table.get(group) or {"groupName": group}
