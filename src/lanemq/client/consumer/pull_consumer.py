"""Reads chosen queues from chosen offsets, without a group's rebalancing.

    with PullConsumer("localhost:9876", group="export") as consumer:
        consumer.assign(consumer.queues("orders"))
        consumer.seek_to_first()
        for message in consumer.poll(timeout=1.0):
            ...
        consumer.commit()

A pull consumer is not a member of its group and needs no leases: two that are assigned the same queue both read it.
It has no threads; everything happens inside the calls.
"""

import contextlib
from collections.abc import Iterable
from datetime import datetime
from typing import Unpack

from lanemq.client.codec import Codec, codec_named
from lanemq.client.consumer.tag_filter import tag_filter
from lanemq.client.message import Message, MessageSource, read_messages
from lanemq.client.routing import BlockingRoutes
from lanemq.client.security import SecuritySettings, security_of
from lanemq.client.topics import checked
from lanemq.clock import Clock, SystemClock, wall_ms
from lanemq.forking import tell_child
from lanemq.model.checks import check_each, check_queue, check_whole, seconds
from lanemq.model.errors import OffsetNotFound, TransportError, UsageError
from lanemq.model.names import check_group, check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, QueueOffset, Seconds, to_millis
from lanemq.net.address import Address, Servers, parse_addresses
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.wire.codes import RequestCode, ResponseCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.headers import (
    Header,
    OffsetResponse,
    PullHeader,
    PullResponse,
    QueryOffsetHeader,
    QueueHeader,
    SearchOffsetHeader,
    UpdateOffsetHeader,
)
from lanemq.wire.lane_fields import LANE_CLIENT
from lanemq.wire.record import PULL_LITE, PULL_SUBSCRIPTION, PULL_SUSPEND

_MOVES_ON = (ResponseCode.SUCCESS, ResponseCode.PULL_RETRY_IMMEDIATELY, ResponseCode.PULL_OFFSET_MOVED)
"""Answers that say where the next pull begins."""


class PullConsumer:
    """Reads its assigned queues in turn. Use it from one thread."""

    def __init__(
        self,
        servers: Servers,
        *,
        group: str,
        tags: str = "*",
        codec: str | Codec = "json",
        batch: int = 1_000,
        request_timeout: Seconds = 3.0,
        clock: Clock | None = None,
        **protection: Unpack[SecuritySettings],
    ) -> None:
        self._group = check_group(group)
        self._tags = tag_filter(tags)
        self._codec = codec_named(codec)
        check_whole("batch", batch, 1)
        self._batch = batch
        self._timeout = seconds("request_timeout", request_timeout)
        self._clock = clock or SystemClock()
        self._security = security_of(**protection)
        self._routes = BlockingRoutes(parse_addresses(servers), self._clock, security=self._security, layouts=False)
        self._connections: dict[Address, BlockingConnection] = {}
        tell_child(self)
        # Where the next poll reads each assigned queue; `commit` reports this.
        self._positions: dict[MessageQueue, QueueOffset] = {}
        self._order: list[MessageQueue] = []

    def queues(self, topic: str) -> list[MessageQueue]:
        """All queues of a topic, sorted."""
        return list(self._routes.get(check_topic(topic)).subscribe)

    def assign(self, queues: Iterable[MessageQueue]) -> None:
        """Reads these queues from now on, each from the group's offset, or else from its first message."""
        self._order = check_each("queues", queues, MessageQueue, "queues, such as `PullConsumer.queues(topic)` returns")
        self._positions = {
            queue: self._positions[queue] if queue in self._positions else self._start_of(queue)
            for queue in self._order
        }

    def seek(self, queue: MessageQueue, offset: int) -> None:
        """Reads the queue from `offset` on."""
        check_queue(queue)
        check_whole("offset", offset)
        self._known(queue)
        self._positions[queue] = QueueOffset(offset)

    def seek_to_first(self) -> None:
        """Reads all assigned queues from their first message on."""
        for queue in self._order:
            self._positions[queue] = self._offset(queue, RequestCode.GET_MIN_OFFSET, _of(queue))

    def seek_to_last(self) -> None:
        """Reads only what is stored from now on."""
        for queue in self._order:
            self._positions[queue] = self._offset(queue, RequestCode.GET_MAX_OFFSET, _of(queue))

    def seek_to_time(self, when: datetime | float) -> None:
        """Reads all assigned queues from the first message stored at that time, a `datetime` or seconds since 1970."""
        timestamp_ms = wall_ms(when)
        for queue in self._order:
            header = SearchOffsetHeader(topic=queue.topic, queue_id=queue.queue_id, timestamp=timestamp_ms)
            self._positions[queue] = self._offset(queue, RequestCode.SEARCH_OFFSET_BY_TIMESTAMP, header)

    def position(self, queue: MessageQueue) -> QueueOffset:
        """The offset that the next poll reads."""
        check_queue(queue)
        return self._known(queue)

    def poll(self, timeout: Seconds = 1.0) -> list[Message]:
        """Messages of one queue, in order; the queues take turns. Empty if none came within `timeout` seconds."""
        deadline = self._clock.now() + to_millis(seconds("timeout", timeout))
        while self._order:
            for queue in tuple(self._order):
                messages = self._pull(queue, hold_ms=0)
                if messages:
                    self._order.remove(queue)
                    self._order.append(queue)
                    return messages
            left = deadline - self._clock.now()
            if left <= 0:
                break
            # All queues are empty: wait at the first one, only shortly if there are others.
            messages = self._pull(self._order[0], hold_ms=left if len(self._order) == 1 else min(left, 50))
            if messages:
                return messages
        return []

    def read(self, queue: MessageQueue, limit: int) -> list[Message]:
        """About `limit` messages of one assigned queue, in order, without waiting for new ones.

        Fewer only at the end of the queue: a broker may return few messages at a time.
        """
        check_queue(queue)
        check_whole("limit", limit)
        self._known(queue)
        messages: list[Message] = []
        while len(messages) < limit:
            before = self._positions[queue]
            messages += self._pull(queue, hold_ms=0)
            if self._positions[queue] == before:
                break
        return messages

    def commit(self) -> None:
        """Commits the positions of all assigned queues as the group's offsets; returns when the brokers have them."""
        for queue in self._order:
            header = UpdateOffsetHeader.of(self._group, queue, self._positions[queue])
            self._ask(queue, Command(RequestCode.UPDATE_CONSUMER_OFFSET, 0, ext=header.to_ext()), at_master=True)

    def committed(self, queue: MessageQueue) -> QueueOffset | None:
        """The group's offset of the queue; None if it has none."""
        check_queue(queue)
        ext = QueryOffsetHeader.of(self._group, queue).to_ext() | {LANE_CLIENT: self._group}
        try:
            reply = self._ask(queue, Command(RequestCode.QUERY_CONSUMER_OFFSET, 0, ext=ext))
        except OffsetNotFound:
            return None
        return QueueOffset(OffsetResponse.from_ext(reply.ext).offset)

    def forked(self) -> None:
        """In a child process: leaves the connections to the parent; new ones are opened on demand."""
        for connection in self._connections.values():
            connection.drop()
        self._connections = {}

    def close(self) -> None:
        for connection in self._connections.values():
            connection.close()
        self._connections.clear()
        self._routes.close()

    def __enter__(self) -> "PullConsumer":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _start_of(self, queue: MessageQueue) -> QueueOffset:
        known = self.committed(queue)
        return known if known is not None else self._offset(queue, RequestCode.GET_MIN_OFFSET, _of(queue))

    def _pull(self, queue: MessageQueue, hold_ms: int) -> list[Message]:
        header = PullHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            queue_offset=self._positions[queue],
            max_msg_nums=self._batch,
            sys_flag=PULL_SUBSCRIPTION | PULL_LITE | (PULL_SUSPEND if hold_ms else 0),
            commit_offset=0,
            suspend_timeout_millis=hold_ms,
            subscription=self._tags.text,
            expression_type="TAG",
        )
        reply = self._request(queue, Command(RequestCode.PULL_MESSAGE, 0, ext=header.to_ext()), hold_ms / 1000)
        if reply.code == ResponseCode.PULL_NOT_FOUND:
            return []
        if reply.code not in _MOVES_ON:
            raise error_for(reply.code, reply.remark)
        self._positions[queue] = QueueOffset(PullResponse.from_ext(reply.ext).next_begin_offset)
        messages = read_messages(MessageSource(queue, self._codec, Epoch(0), group=self._group), reply.body)
        return [message for message in messages if self._tags.accepts(message.tag)]

    def _known(self, queue: MessageQueue) -> QueueOffset:
        if queue not in self._positions:
            raise UsageError(f"{queue} is not assigned: call assign first")
        return self._positions[queue]

    def _offset(self, queue: MessageQueue, code: RequestCode, header: Header) -> QueueOffset:
        reply = self._ask(queue, Command(code, 0, ext=header.to_ext()))
        return QueueOffset(OffsetResponse.from_ext(reply.ext).offset)

    def _ask(self, queue: MessageQueue, command: Command, *, at_master: bool = False) -> Command:
        return checked(self._request(queue, command, 0.0, at_master=at_master))

    def _request(self, queue: MessageQueue, command: Command, extra: float, *, at_master: bool = False) -> Command:
        """Uses the open connection; if that fails, a new one, because brokers close idle connections.

        Reads continue at a replica while the broker has no master. Offsets are committed at the master only: a replica
        replaces its own by those that it copies from its master.
        """
        route = self._routes.get(queue.topic)
        address = route.master(queue.broker) if at_master else route.reader(queue.broker)
        kept = self._connections.pop(address, None)
        if kept is not None:
            with contextlib.suppress(TransportError):
                reply = kept.request(command, self._timeout + extra)
                self._connections[address] = kept
                return reply
        try:
            fresh = BlockingConnection(address, security=self._security)
        except TransportError:
            self._routes.unreachable(queue.topic)  # the broker may be at another address now
            raise
        try:
            reply = fresh.request(command, self._timeout + extra)
        except BaseException:
            fresh.close()
            raise
        self._connections[address] = fresh
        return reply


def _of(queue: MessageQueue) -> QueueHeader:
    return QueueHeader(topic=queue.topic, queue_id=queue.queue_id)
