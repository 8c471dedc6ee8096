"""Reading queues from outside any group: plain pulls that commit nothing."""

from collections.abc import Iterator
from typing import Self

from lanemq.client.codec import BytesCodec
from lanemq.client.message import Message, Source, read_messages
from lanemq.client.route_lookup import BlockingRoutes
from lanemq.client.routes import TopicRoute
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.net.address import Address, parse_addresses
from lanemq.net.blocking import BlockingConnection
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
from lanemq.wire.sysflag import PULL_SUBSCRIPTION

READER_GROUP = "lanemq-cli"
"""Pulls must name a group. Nobody joins this one, and it has no offsets."""

PAGE = 256
_NOTHING_THERE = (ResponseCode.PULL_NOT_FOUND, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)


class Reader:
    """One topic, read from anywhere to anywhere."""

    def __init__(self, servers: str, topic: str) -> None:
        self._routes = BlockingRoutes(parse_addresses(servers))
        self._connections: dict[Address, BlockingConnection] = {}
        try:
            self.route: TopicRoute = self._routes.get(topic)
        except BaseException:
            self._routes.close()
            raise

    @property
    def queues(self) -> tuple[MessageQueue, ...]:
        return self.route.subscribe

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        """The oldest offset kept, and the next one to be written."""
        header = QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
        return (
            self._offset(queue, RequestCode.GET_MIN_OFFSET, header),
            self._offset(queue, RequestCode.GET_MAX_OFFSET, header),
        )

    def offset_at(self, queue: MessageQueue, timestamp: int) -> int:
        """The first message stored at that wall time or later."""
        header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp)
        return self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    def read(self, queue: MessageQueue, start: int, end: int) -> Iterator[Message]:
        """Messages from `start` up to, not with, `end`; what retention deleted meanwhile is passed over."""
        source = Source(queue, BytesCodec(), Epoch(0))
        while start < end:
            messages, following = self._pull(source, start, min(PAGE, end - start))
            yield from (message for message in messages if message.queue_offset < end)
            if following <= start:
                return
            start = following

    def close(self) -> None:
        self._routes.close()
        for connection in self._connections.values():
            connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _pull(self, source: Source, offset: int, most: int) -> tuple[list[Message], int]:
        header = PullHeader(
            consumer_group=READER_GROUP,
            topic=source.queue.topic,
            queue_id=source.queue.queue_id,
            queue_offset=offset,
            max_msg_nums=most,
            sys_flag=PULL_SUBSCRIPTION,
            subscription="*",
        )
        reply = self._request(source.queue, RequestCode.PULL_MESSAGE, header)
        if reply.code == ResponseCode.SUCCESS:
            return read_messages(source, reply.body), PullResponse.from_ext(reply.ext).next_begin_offset
        if reply.code in _NOTHING_THERE:
            return [], PullResponse.from_ext(reply.ext).next_begin_offset
        raise error_for(reply.code, reply.remark)

    def _offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> int:
        reply = self._request(queue, code, header)
        if reply.code != ResponseCode.SUCCESS:
            raise error_for(reply.code, reply.remark)
        return OffsetResponse.from_ext(reply.ext).offset

    def _request(self, queue: MessageQueue, code: RequestCode, header: Header) -> Command:
        address = self.route.master(queue.broker)
        if address not in self._connections:
            self._connections[address] = BlockingConnection(address)
        return self._connections[address].request(Command(code, 0, ext=header.to_ext()))
