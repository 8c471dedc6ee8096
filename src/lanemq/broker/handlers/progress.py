"""What operators and tools ask about groups: how far each is, and who its members are."""

from msgspec import UNSET, Raw, UnsetType

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import Handler, answer
from lanemq.broker.long_answers import LongAnswers, Steps
from lanemq.core.brokering.traffic import MINUTE
from lanemq.core.finished_ranges import count_finished
from lanemq.model.errors import BrokerRefused, GroupNotFound
from lanemq.model.queue import MessageQueue
from lanemq.net.serving.peer import Peer
from lanemq.wire.admin_headers import ConsumeStatsHeader, TopicHeader
from lanemq.wire.bodies import SubscriptionData, encode_json
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ConsumerListHeader
from lanemq.wire.route_bodies import GroupList
from lanemq.wire.stats_bodies import (
    ClientConnection,
    ConsumeOffset,
    ConsumerConnection,
    ConsumeStats,
    encode_queue_entry,
)

MAX_ANSWER_BYTES = 15 * 1024 * 1024
"""Largest table in an answer. RocketMQ's clients close a connection with a frame of more than 16 MiB."""
OFFSETS_AT_ONCE = 256


class ProgressHandler:
    """Requests 43, 203, 208 and 300."""

    def __init__(self, context: GroupContext, answers: LongAnswers) -> None:
        self._context = context
        self._answers = answers

    def table(self) -> dict[int, Handler]:
        return {
            RequestCode.GET_CONSUME_STATS: self._group,
            RequestCode.GET_CONSUMER_CONNECTION_LIST: self._connections,
            RequestCode.QUERY_TOPIC_CONSUME_BY_WHO: self._groups_of_topic,
            RequestCode.GET_ALL_CONSUMER_OFFSET: self._all_offsets,
        }

    def _group(self, peer: Peer, request: Command) -> None:
        header = ConsumeStatsHeader.from_ext(request.ext)
        self._answers.begin(peer, request, self._group_steps(header.consumer_group, header.topic))

    def _group_steps(self, group: str, only: str | None) -> Steps:
        entries: list[bytes] = []
        rate, size = 0.0, 0
        for name in self._topics_of(group, only):
            for queue in self._context.queues.of_topic(name):
                entries.append(encode_queue_entry(queue, self._progress(group, queue)))
                size += len(entries[-1])
                if size > MAX_ANSWER_BYTES:
                    raise BrokerRefused(
                        ResponseCode.SYSTEM_ERROR,
                        f"group {group} has more than {len(entries)} queues, too many for one answer: name a topic",
                    )
                yield
            got, _ = self._context.traffic.got_of(group, name)
            rate += got.last(MINUTE, now=self._context.clock.now()).per_second
            yield
        return ConsumeStats(consume_tps=rate).encode_with(entries)

    def _progress(self, group: str, queue: MessageQueue) -> ConsumeOffset:
        low, high = self._context.queue_log.bounds(queue)
        progress = self._context.progress.at(group, queue)
        done = progress.offset
        return ConsumeOffset(
            broker_offset=high,
            consumer_offset=low if done is None else done,
            pull_offset=low if done is None else done,
            last_timestamp=0 if done is None else self._context.queue_log.stored_before(queue, done),
            lane_finished=count_finished(progress.finished),
        )

    def _topics_of(self, group: str, topic: str | None) -> list[str]:
        if topic:
            return [topic]
        view = self._context.members.snapshot(group)
        named = {item.topic for item in view.subscriptions} if view is not None else set()
        return sorted(named.union(self._context.progress.topics(group)) | self._context.locks.owned_topics(group))

    def _connections(self, peer: Peer, request: Command) -> None:
        group = ConsumerListHeader.from_ext(request.ext).consumer_group
        view = self._context.members.snapshot(group)
        if view is None:
            raise GroupNotFound(ResponseCode.CONSUMER_NOT_ONLINE, f"the consumer group [{group}] is not online")
        connections = [
            ClientConnection(
                client_id=self._context.members.client_of(number) or "",
                client_addr=str(connected.remote),
                language=self._context.clients[number].language,
                version=self._context.clients[number].version,
            )
            for number in self._context.members.connections(group)
            if (connected := self._context.notices.peer(number)) is not None
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
        """How many members have fewer tags than others; unset if all have the same."""
        return self._context.members.narrower(group, topic) or UNSET

    def _groups_of_topic(self, peer: Peer, request: Command) -> None:
        self._answers.begin(peer, request, self._reader_steps(TopicHeader.from_ext(request.ext).topic))

    def _reader_steps(self, topic: str) -> Steps:
        members, progress, readers = self._context.members, self._context.progress, set[str]()
        locks = self._context.locks
        for group in {*members.groups(), *progress.groups(), *locks.groups()}:
            if (
                members.subscription(group, topic) is not None
                or progress.has_topic(group, topic)
                or topic in locks.owned_topics(group)
            ):
                readers.add(group)
            yield
        return GroupList(group_list=sorted(readers)).encode()

    def _all_offsets(self, peer: Peer, request: Command) -> None:
        self._answers.begin(peer, request, self._offset_steps())

    def _offset_steps(self) -> Steps:
        table: dict[str, Raw] = {}
        size = 0
        for group in self._context.progress.groups():
            by_topic: dict[str, dict[int, int]] = {}
            for number, progress in enumerate(self._context.progress.of_group(group)):
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
