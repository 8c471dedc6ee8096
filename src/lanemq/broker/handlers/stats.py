"""Figures for operators and tools: queues, lag, connections, the broker itself."""

from lanemq.broker.dispatch import Handler, answer
from lanemq.broker.parts import Parts
from lanemq.core.brokering.topic_table import TopicConfig
from lanemq.model.errors import GroupNotFound
from lanemq.model.queue import MessageQueue
from lanemq.net.server import Peer
from lanemq.wire.admin_headers import ConsumeStatsHeader, TopicHeader
from lanemq.wire.bodies import SubscriptionData
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import VERSION, Command
from lanemq.wire.headers import ConsumerListHeader
from lanemq.wire.route_bodies import GroupList, KVTable
from lanemq.wire.stats_bodies import (
    ClientConnection,
    ConsumeOffset,
    ConsumerConnection,
    ConsumerOffsetTable,
    ConsumeStats,
    TopicOffset,
    TopicStatsTable,
)


class StatsHandler:
    """Requests 26, 28, 43, 202, 203, 208, 300."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self._topic,
            RequestCode.GET_CONSUME_STATS: self._group,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
        }

    def _topic(self, peer: Peer, request: Command) -> None:
        topic = self._parts.topic_keeper.existing(TopicHeader.from_ext(request.ext).topic)
        table = {}
        for queue in self._queues(topic):
            low, high = self._parts.store.bounds(queue.topic, queue.queue_id)
            last = self._parts.store.times.latest(queue.topic, queue.queue_id)
            table[queue] = TopicOffset(min_offset=low, max_offset=high, last_update_timestamp=last or 0)
        answer(peer, request, {}, TopicStatsTable(offset_table=table).encode())

    def _group(self, peer: Peer, request: Command) -> None:
        header = ConsumeStatsHeader.from_ext(request.ext)
        table: dict[MessageQueue, ConsumeOffset] = {}
        for name in self._topics_of(header.consumer_group, header.topic):
            topic = self._parts.topics.get(name)
            for queue in self._queues(topic) if topic is not None else ():
                table[queue] = self._progress(header.consumer_group, queue)
        answer(peer, request, {}, ConsumeStats(offset_table=table).encode())

    def _progress(self, group: str, queue: MessageQueue) -> ConsumeOffset:
        low, high = self._parts.store.bounds(queue.topic, queue.queue_id)
        done = self._parts.offsets.committed(group, queue.topic, queue.queue_id)
        return ConsumeOffset(
            broker_offset=high,
            consumer_offset=low if done is None else done,
            pull_offset=low if done is None else done,
            last_timestamp=self._parts.store.times.latest(queue.topic, queue.queue_id) or 0,
        )

    def _topics_of(self, group: str, topic: str | None) -> list[str]:
        if topic:
            return [topic]
        view = self._parts.members.snapshot(group)
        named = {item.topic for item in view.subscriptions} if view is not None else set()
        return sorted(named | {name for name, _ in self._parts.offsets.of_group(group)})

    def _queues(self, topic: TopicConfig) -> list[MessageQueue]:
        count = max(topic.read_queues, topic.write_queues)
        return [MessageQueue(topic.name, self._parts.options.name, number) for number in range(count)]

    def _connections(self, peer: Peer, request: Command) -> None:
        group = ConsumerListHeader.from_ext(request.ext).consumer_group
        view = self._parts.members.snapshot(group)
        if view is None:
            raise GroupNotFound(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group [{group}] is not online")
        connections = [
            ClientConnection(
                client_id=self._parts.members.client_of(number) or "",
                client_addr=str(connected.remote),
                version=VERSION,
            )
            for number in self._parts.members.connections(group)
            if (connected := self._parts.notices.peer(number)) is not None
        ]
        table = {
            item.topic: SubscriptionData(
                topic=item.topic,
                sub_string=item.expression,
                expression_type=item.expression_type,
                sub_version=item.version,
                tags_set=sorted(item.tags),
                code_set=sorted(item.tag_codes),
            )
            for item in view.subscriptions
        }
        body = ConsumerConnection(
            connection_set=connections,
            subscription_table=table,
            consume_type=view.consume_type,
            message_model=view.message_model,
            consume_from_where=view.from_where,
        )
        answer(peer, request, {}, body.encode())

    def _groups_of_topic(self, peer: Peer, request: Command) -> None:
        topic = TopicHeader.from_ext(request.ext).topic
        online = {
            group
            for group in self._parts.members.groups()
            if self._parts.members.subscription(group, topic) is not None
        }
        groups = sorted(online | set(self._parts.offsets.groups_of(topic)))
        answer(peer, request, {}, GroupList(group_list=groups).encode())

    def _runtime(self, peer: Peer, request: Command) -> None:
        store, group_commit, counters = self._parts.store, self._parts.group_commit, self._parts.counters
        table = {
            "brokerVersionDesc": "LaneMQ",
            "brokerVersion": str(VERSION),
            "brokerActive": "true",
            "putTps": "0.0 0.0 0.0",
            "getTransferredTps": "0.0 0.0 0.0",
            "getTransferedTps": "0.0 0.0 0.0",
            "sendThreadPoolQueueSize": "0",
            "pullThreadPoolQueueSize": "0",
            "sendThreadPoolQueueHeadWaitTimeMills": "0",
            "pullThreadPoolQueueHeadWaitTimeMills": "0",
            "pageCacheLockTimeMills": "0",
            "earliestMessageTimeStamp": "0",
            "commitLogDiskRatio": "0.0",
            "commitLogMinOffset": str(store.log_start),
            "commitLogMaxOffset": str(store.log_end),
            "lanePendingBytes": str(group_commit.pending_bytes),
            "laneMessages": str(group_commit.appended),
            "laneReadOnly": str(group_commit.failure or "false"),
            "laneDurable": str(self._parts.options.durable).lower(),
            "laneStalePulls": str(counters.stale_pulls),
            "laneStaleCommits": str(counters.stale_commits),
            "laneRefusedCommits": str(counters.refused_commits),
            "laneRefusedParks": str(counters.refused_parks),
        }
        answer(peer, request, {}, KVTable(table=table).encode())

    def _config(self, peer: Peer, request: Command) -> None:
        options = self._parts.options
        lines = [f"brokerName={options.name}", f"brokerClusterName={options.cluster}", "brokerId=0"]
        answer(peer, request, {"version": "{}"}, "\n".join(lines).encode())

    def _all_offsets(self, peer: Peer, request: Command) -> None:
        table: dict[str, dict[int, int]] = {}
        for group in self._parts.offsets.groups():
            for (topic, queue_id), offset in self._parts.offsets.of_group(group).items():
                table.setdefault(f"{topic}@{group}", {})[queue_id] = offset
        answer(peer, request, {}, ConsumerOffsetTable(offset_table=table).encode())
