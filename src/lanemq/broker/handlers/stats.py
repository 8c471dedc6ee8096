"""Figures for operators and tools: queues, lag, connections, the broker itself."""

import logging

from msgspec import UNSET, Raw, UnsetType

from lanemq.broker.context import BrokerContext
from lanemq.broker.dispatch import Handler, answer
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.broker.monitor.figures import Figures
from lanemq.broker.runtime_info import runtime_info
from lanemq.core.brokering.topic_table import TopicConfig
from lanemq.core.brokering.traffic import DAY, HOUR, MINUTE, Tally
from lanemq.core.finished_ranges import count_finished
from lanemq.model.errors import BrokerBusy, BrokerRefused, GroupNotFound
from lanemq.model.queue import MessageQueue
from lanemq.net.peer import Peer
from lanemq.wire.admin_headers import BrokerStatsHeader, ConsumeStatsHeader, TopicHeader
from lanemq.wire.bodies import SubscriptionData, encode_json
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ConsumerListHeader
from lanemq.wire.route_bodies import GroupList, KVTable
from lanemq.wire.stats_bodies import (
    BrokerStatsData,
    BrokerStatsItem,
    ClientConnection,
    ConsumeOffset,
    ConsumerConnection,
    ConsumeStats,
    TopicOffset,
    TopicStatsTable,
    encode_queue_entry,
)

log = logging.getLogger(__name__)

MAX_READING = 8
"""Requests for runtime info at the same time; further ones are answered "busy"."""


MAX_ANSWER_BYTES = 15 * 1024 * 1024
"""Largest table in an answer. RocketMQ's clients close a connection with a frame of more than 16 MiB."""
OFFSETS_AT_ONCE = 256


class StatsHandler:
    """Requests 26, 28, 43, 202, 203, 208, 300, 315."""

    def __init__(self, parts: BrokerContext, figures: Figures, answers: LongAnswers) -> None:
        self._parts = parts
        self._answers = answers
        self._figures = figures
        self._reading = 0
        """Requests for runtime info whose figures are being read."""

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_TOPIC_STATS_INFO: self._topic,
            RequestCode.GET_CONSUME_STATS: self._group,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            RequestCode.GET_BROKER_RUNTIME_INFO: self._runtime,
            RequestCode.VIEW_BROKER_STATS_DATA: self._figure,
            RequestCode.GET_BROKER_CONFIG: self._config,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
        }

    def _topic(self, peer: Peer, request: Command) -> None:
        topic = self._parts.topic_keeper.existing(TopicHeader.from_ext(request.ext).topic)
        self._answers.begin(peer, request, self._topic_steps(topic))

    def _topic_steps(self, topic: TopicConfig) -> Steps:
        entries = []
        queue_log = self._parts.queue_log
        for queue in queue_log.queues(topic.name):
            low, high = queue_log.bounds(queue)
            last = queue_log.stored_before(queue, high)
            offset = TopicOffset(min_offset=low, max_offset=high, last_update_timestamp=last)
            entries.append(encode_queue_entry(queue, offset))
            yield
        put, _ = self._parts.traffic.put_of(topic.name)
        rate = put.last(MINUTE, now=self._parts.clock.now()).per_second
        return TopicStatsTable(topic_put_tps=rate, lane_created=topic.created_ms).encode_with(entries)

    def _group(self, peer: Peer, request: Command) -> None:
        header = ConsumeStatsHeader.from_ext(request.ext)
        self._answers.begin(peer, request, self._group_steps(header.consumer_group, header.topic))

    def _group_steps(self, group: str, only: str | None) -> Steps:
        entries: list[bytes] = []
        rate, size = 0.0, 0
        for name in self._topics_of(group, only):
            for queue in self._parts.queue_log.queues(name):
                entries.append(encode_queue_entry(queue, self._progress(group, queue)))
                size += len(entries[-1])
                if size > MAX_ANSWER_BYTES:
                    raise BrokerRefused(
                        ResponseCode.SYSTEM_ERROR,
                        f"group {group} has more than {len(entries)} queues, too many for one answer: name a topic",
                    )
                yield
            got, _ = self._parts.traffic.got_of(group, name)
            rate += got.last(MINUTE, now=self._parts.clock.now()).per_second
            yield
        return ConsumeStats(consume_tps=rate).encode_with(entries)

    def _progress(self, group: str, queue: MessageQueue) -> ConsumeOffset:
        low, high = self._parts.queue_log.bounds(queue)
        progress = self._parts.progress.at(group, queue)
        done = progress.offset
        return ConsumeOffset(
            broker_offset=high,
            consumer_offset=low if done is None else done,
            pull_offset=low if done is None else done,
            last_timestamp=0 if done is None else self._parts.queue_log.stored_before(queue, done),
            lane_finished=count_finished(progress.finished),
        )

    def _topics_of(self, group: str, topic: str | None) -> list[str]:
        if topic:
            return [topic]
        view = self._parts.members.snapshot(group)
        named = {item.topic for item in view.subscriptions} if view is not None else set()
        return sorted(named.union(self._parts.progress.topics(group)) | self._parts.locks.owned_topics(group))

    def _connections(self, peer: Peer, request: Command) -> None:
        group = ConsumerListHeader.from_ext(request.ext).consumer_group
        view = self._parts.members.snapshot(group)
        if view is None:
            raise GroupNotFound(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group [{group}] is not online")
        connections = [
            ClientConnection(
                client_id=self._parts.members.client_of(number) or "",
                client_addr=str(connected.remote),
                language=self._parts.clients[number].language,
                version=self._parts.clients[number].version,
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
                lane_narrower=self._narrower(group, item.topic),
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

    def _narrower(self, group: str, topic: str) -> int | UnsetType:
        """How many members have fewer tags than others, if there are such."""
        return self._parts.members.narrower(group, topic) or UNSET

    def _groups_of_topic(self, peer: Peer, request: Command) -> None:
        self._answers.begin(peer, request, self._reader_steps(TopicHeader.from_ext(request.ext).topic))

    def _reader_steps(self, topic: str) -> Steps:
        members, progress, readers = self._parts.members, self._parts.progress, set[str]()
        locks = self._parts.locks
        for group in {*members.groups(), *progress.groups(), *locks.groups()}:
            if (
                members.subscription(group, topic) is not None
                or progress.has_topic(group, topic)
                or topic in locks.owned_topics(group)
            ):
                readers.add(group)
            yield
        return GroupList(group_list=sorted(readers)).encode()

    def _runtime(self, peer: Peer, request: Command) -> None:
        if self._reading >= MAX_READING:
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "the figures are being read for others; try again")
        self._answers.begin(peer, request, self._runtime_steps())

    def _runtime_steps(self) -> Steps:
        self._reading += 1
        try:
            samples = yield from self._figures.steps()
            table = yield from runtime_info(self._parts, self._figures.started, samples)
            return KVTable(table=table).encode()
        finally:
            self._reading -= 1

    def _figure(self, peer: Peer, request: Command) -> None:
        header = BrokerStatsHeader.from_ext(request.ext)
        tally, now = self._tally(header.stats_name, header.stats_key), self._parts.clock.now()
        if tally is None:
            name, key = header.stats_name, header.stats_key
            raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"The stats <{name}> <{key}> not exist")
        minute, hour, day = (
            BrokerStatsItem(sum=last.total, tps=last.per_second, avgpt=last.average)
            for last in (tally.last(window, now=now) for window in (MINUTE, HOUR, DAY))
        )
        answer(peer, request, {}, BrokerStatsData(stats_minute=minute, stats_hour=hour, stats_day=day).encode())

    def _tally(self, name: str, key: str) -> Tally | None:
        """The figure of this name; None if it, its topic or its cluster does not exist."""
        traffic, (topic, _, group) = self._parts.traffic, key.partition("@")
        if key == self._parts.options.cluster:
            return {"BROKER_PUT_NUMS": traffic.put, "BROKER_GET_NUMS": traffic.got}.get(name)
        if self._parts.topics.get(topic) is None:
            return None
        figures = {
            "TOPIC_PUT_NUMS": traffic.put_of(topic)[0],
            "TOPIC_PUT_SIZE": traffic.put_of(topic)[1],
            "GROUP_GET_NUMS": traffic.got_of(group, topic)[0],
            "GROUP_GET_SIZE": traffic.got_of(group, topic)[1],
            "SNDBCK_PUT_NUMS": traffic.sent_back_of(group, topic),
        }
        return figures.get(name)

    def _config(self, peer: Peer, request: Command) -> None:
        options = self._parts.options
        lines = [f"brokerName={options.name}", f"brokerClusterName={options.cluster}", "brokerId=0"]
        shown = options.shown(self._parts.in_force)
        lines += [f"lane.{name}={text}" for name, (text, _) in shown.items()]
        lines.append(f"laneSet={','.join(name for name, (_, origin) in shown.items() if origin)}")
        lines += [f"laneFrom.{name}={origin}" for name, (_, origin) in shown.items() if origin]
        answer(peer, request, {"version": "{}"}, "\n".join(lines).encode())

    def _all_offsets(self, peer: Peer, request: Command) -> None:
        self._answers.begin(peer, request, self._offset_steps())

    def _offset_steps(self) -> Steps:
        table: dict[str, Raw] = {}
        size = 0
        for group in self._parts.progress.groups():
            by_topic: dict[str, dict[int, int]] = {}
            for number, progress in enumerate(self._parts.progress.of_group(group)):
                queue, offset = progress.queue, progress.offset or 0
                by_topic.setdefault(queue.topic, {})[queue.queue_id] = offset
                if number % OFFSETS_AT_ONCE == 0:
                    yield
            for topic, offsets in by_topic.items():
                table[f"{topic}@{group}"] = encoded = Raw(encode_json(offsets))
                size += len(encoded) + len(topic) + len(group)
                yield
            if size > MAX_ANSWER_BYTES:
                raise BrokerRefused(
                    ResponseCode.SYSTEM_ERROR, "too many offsets for one answer: ask for those of each group"
                )
        return encode_json({"offsetTable": table})
