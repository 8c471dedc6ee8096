"""Reads the queues of a topic without a group: plain pulls that commit nothing."""

from collections.abc import Iterator
from typing import Self

from lanemq.client.codec import BytesCodec
from lanemq.client.message import Message, MessageSource, read_messages
from lanemq.client.routing import BlockingRoutes
from lanemq.client.security import security_of
from lanemq.client.topic_route import TopicRoute
from lanemq.model.names import TOOLS_GROUP, check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.net.address import Address, parse_addresses
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.wire.admin_headers import QueryMessageHeader
from lanemq.wire.codes import RequestCode, ResponseCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.headers import (
    Header,
    OffsetResponse,
    PullHeader,
    PullResponse,
    QueueHeader,
    SearchOffsetHeader,
)
from lanemq.wire.record import PULL_SUBSCRIPTION, RecordView, record_starts

READER_GROUP = "lanemq-cli"
"""The group name in pulls, which must have one. No member joins it, and it has no offsets. An Apache broker would
create the group, or refuse the pull, so it gets the name of RocketMQ's tools."""

PAGE = 256
MAX_FOUND = 64
"""The most messages that RocketMQ's brokers return for one search (MessageStoreConfig.maxMsgsNumBatch)."""

END_OF_TIME = 2**62
_NO_MESSAGES = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class TopicReader:
    """Reads one topic, by offset range or by key."""

    def __init__(self, servers: str, topic: str) -> None:
        self._security = security_of()
        self._routes = BlockingRoutes(parse_addresses(servers), security=self._security)
        self._connections: dict[Address, BlockingConnection] = {}
        try:
            self.route: TopicRoute = self._routes.get(check_topic(topic))
        except BaseException:
            self._routes.close()
            raise

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        return self.route.subscribe

    @property
    def indexes_keys(self) -> bool:
        """Whether `find` finds all keys. An Apache broker indexes only the search keys that a sender adds."""
        return self.route.indexes_keys

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The first offset that is kept, and the next one to be written."""
        header = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
        return (
            self._offset(queue, RequestCode.GET_MIN_OFFSET, header),
            self._offset(queue, RequestCode.GET_MAX_OFFSET, header),
        )

    def offset_at(self, queue: MessageQueue, timestamp: int) -> int:
        """The offset of the first message stored at or after `timestamp`, in ms since 1970."""
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp)
        return self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    def read(self, queue: MessageQueue, start: int, end: int) -> Iterator[Message]:
        """Messages from `start` up to, but not including, `end`; messages deleted by retention are skipped."""
        source = MessageSource(queue, BytesCodec(), Epoch(0))
        while start < end:
            messages, following = self._pull(source, start, min(PAGE, end - start))
            yield from (message for message in messages if message.queue_offset < end)
            if following <= start:
                return
            start = following

    def first(self, queue: MessageQueue, start: int, end: int) -> Message | None:
        """The first message from `start` on, before `end`. Reads only this one."""
        source = MessageSource(queue, BytesCodec(), Epoch(0))
        while start < end:
            messages, following = self._pull(source, start, 1)
            if messages or following <= start:
                return messages[0] if messages and messages[0].queue_offset < end else None
            start = following
        return None

    def find(self, key: str, limit: int = MAX_FOUND) -> list[Message]:
        """The newest messages of a key in the brokers' index, oldest first.

        LaneMQ brokers index the sharding key of a message; Apache brokers only its search keys (KEYS).
        """
        header = QueryMessageHeader(
            topic=self.route.topic, key=key, max_num=limit, begin_timestamp=0, end_timestamp=END_OF_TIME
        )
        candidates: list[Message] = []
        for broker in sorted({queue.broker for queue in self.queues}):
            reply = self._request(broker, RequestCode.QUERY_MESSAGE, header)
            if reply.code == ResponseCode.QUERY_NOT_FOUND:
                continue
            _check(reply)
            candidates += (self._found(broker, reply.body, start) for start in record_starts(reply.body))
        return sorted((each for each in candidates if each.key == key), key=lambda each: each.queue_offset)

    def close(self) -> None:
        self._routes.close()
        for connection in self._connections.values():
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pull(self, source: MessageSource, offset: int, limit: int) -> tuple[list[Message], int]:
        header = PullHeader(
            consumer_group=READER_GROUP if self.route.is_lanemq(source.queue.broker) else TOOLS_GROUP,
            topic=source.queue.topic,
            queue_id=source.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=limit,
            sys_flag=PULL_SUBSCRIPTION,
            subscription="*",
        )
        reply = self._request(source.queue.broker, RequestCode.PULL_MESSAGE, header)
        if reply.code not in _NO_MESSAGES:
            _check(reply)
        messages = read_messages(source, reply.body) if reply.code == ResponseCode.SUCCESS else []
        return messages, PullResponse.from_ext(reply.ext).next_begin_offset

    def _found(self, broker: str, body: bytes, start: int) -> Message:
        queue = MessageQueue(self.route.topic, broker, RecordView(body, start).queue_id)
        return Message(MessageSource(queue, BytesCodec(), Epoch(0)), body, start)

    def _offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> int:
        reply = self._request(queue.broker, code, header)
        _check(reply)
        return max(0, OffsetResponse.from_ext(reply.ext).offset)

    def _request(self, broker: str, code: RequestCode, header: Header) -> Command:
        address = self.route.reader(broker)
        if address not in self._connections:
            self._connections[address] = BlockingConnection(address, security=self._security)
        return self._connections[address].request(Command(code, 0, ext=header.to_ext()))


def _check(reply: Command) -> None:
    if reply.code != ResponseCode.SUCCESS:
        raise error_for(reply.code, reply.remark)
