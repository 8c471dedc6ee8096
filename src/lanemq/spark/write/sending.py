"""Sends the rows of one task: by key, in the order of the rows, and recognisable if the task is repeated.

Each message carries a producer stamp: the producer is the query and the task's partition, the epoch is the batch, and
the sequence counts the rows that the task sent to the queue. A repeated task sends the same stamps, and a LaneMQ broker
drops the messages that it already has. This needs the same rows in the same order, which holds for a source partition
without a group, and after a shuffle only with `sortWithinPartitions`. `check_repeats` verifies it (see `repeats`). An
Apache broker stores repeated messages; readers can recognise them by their stamps.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import md5
from typing import NamedTuple

from lanemq.client.identity import new_client_id
from lanemq.client.producer.batches import MESSAGE_OVERHEAD, Extras, PendingMessage, RequestBuilder, properties_text
from lanemq.client.routing import BlockingRoutes
from lanemq.client.security import security_of
from lanemq.client.topic_route import TopicRoute
from lanemq.client.topics import checked
from lanemq.clock import Clock, SystemClock
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.errors import InvalidOption, MissingKey, TransportError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import Address, parse_addresses
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.net.security import Security
from lanemq.spark.retrying import Retrying
from lanemq.spark.write.repeats import RepeatCheck
from lanemq.wire.command import Command
from lanemq.wire.properties import LANE_STAMP, PropertyName

PRODUCER_GROUP = "lanemq-spark-sink"
BATCH_MESSAGES = 1_000
BATCH_BYTES = 1024 * 1024
SEND_SECONDS = 10.0

SET_HERE = frozenset(
    {
        PropertyName.KEY, PropertyName.KEYS, PropertyName.TAGS, PropertyName.UNIQUE_ID, PropertyName.WAIT, LANE_STAMP,
        PropertyName.REGION, PropertyName.TRACE_ON, PropertyName.CLUSTER, PropertyName.MIN_OFFSET,
        PropertyName.MAX_OFFSET,
    }
)  # fmt: skip
"""Left out of a row's `properties`, because columns or the broker set them. So a row that was read can be written."""

DELAY_PROPERTIES = frozenset({PropertyName.DELAY, PropertyName.REAL_TOPIC, PropertyName.REAL_QUEUE})
"""Left by a broker in a message that was delivered after a delay; a copy of it must not be delayed again."""


class OutgoingRow(NamedTuple):
    """One row to send."""

    topic: str
    value: bytes
    key: str | None = None
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] | None = None


class _QueueBatch:
    """The rows that wait to be sent to one queue, and the sequence number of the first."""

    def __init__(self) -> None:
        self.sequence = 0
        self.messages: list[PendingMessage] = []
        self.size = 0


class TaskSender:
    """Sends the rows of one task. Not thread-safe."""

    def __init__(
        self,
        servers: str,
        producer: str,
        epoch: int,
        wait: Millis,
        clock: Clock | None = None,
        *,
        security: Security | None = None,
        check_repeats: bool = False,
    ) -> None:
        """`security`: None takes it from the environment. `check_repeats`: a repeat with other rows is an error."""
        self._security = security_of() if security is None else security
        self._clock = clock or SystemClock()
        self._producer = producer
        self._epoch = epoch
        self._requests = RequestBuilder(PRODUCER_GROUP, new_client_id(), producer)
        self._routes = BlockingRoutes(parse_addresses(servers), self._clock, security=self._security)
        self._retrying = Retrying(wait, self._clock)
        self._repeats = RepeatCheck(producer, epoch, self._retrying, self._security) if check_repeats else None
        self._links: dict[Address, BlockingConnection] = {}
        self._known: dict[str, TopicRoute] = {}
        self._batches: dict[MessageQueue, _QueueBatch] = {}
        self._keyless = 0
        self.sent = 0

    def send(self, row: OutgoingRow) -> None:
        """Adds a row. It is sent when its batch is full, and stored after `flush`."""
        queue = self._queue_of(row)
        batch = self._batches.setdefault(queue, _QueueBatch())
        message_id = self._message_id(queue, batch.sequence + len(batch.messages))
        text = properties_text(row.key, message_id, _extras(row))
        batch.messages.append(PendingMessage(row.value, text, message_id, row.key))
        batch.size += len(row.value) + len(text) + MESSAGE_OVERHEAD
        if len(batch.messages) >= BATCH_MESSAGES or batch.size >= BATCH_BYTES:
            self._send(queue, batch)

    def flush(self) -> None:
        """Returns when every row is stored, or raises the error of the first that is not."""
        for queue, batch in self._batches.items():
            if batch.messages:
                self._send(queue, batch)

    def close(self) -> None:
        self._routes.close()
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _queue_of(self, row: OutgoingRow) -> MessageQueue:
        route = self._known.get(row.topic)
        if route is None:
            # Requested once: if the route changed within a batch, a key would go to two queues.
            route = self._retrying.call(lambda: self._routes.get(row.topic), f"topic {row.topic}")
            self._known[row.topic] = route
        if row.key is not None:
            return pick_queue(row.key, route.publish)
        if route.ordered:
            raise MissingKey(row.topic)
        self._keyless += 1
        queues = route.writable or route.publish
        return queues[self._keyless % len(queues)]

    def _message_id(self, queue: MessageQueue, sequence: int) -> str:
        """The same id for the same row, so that readers can recognise repeats on any broker."""
        name = f"{self._producer}.{self._epoch}.{queue}.{sequence}"
        return md5(name.encode(), usedforsecurity=False).hexdigest().upper()

    def _send(self, queue: MessageQueue, batch: _QueueBatch) -> None:
        messages, sequence = batch.messages, batch.sequence
        answer = self._request(queue, messages, sequence)
        if self._repeats is not None:
            address = self._routes.get(queue.topic).master(queue.broker)
            again = partial(self._request, queue, messages[:1], sequence)
            self._repeats.compare(queue, address, messages, sequence, answer, again)
        batch.sequence += len(messages)
        self.sent += len(messages)
        batch.messages, batch.size = [], 0

    def _request(self, queue: MessageQueue, messages: Sequence[PendingMessage], sequence: int) -> Mapping[str, str]:
        command = self._requests.send(
            queue, messages, epoch=self._epoch, sequence=sequence, born=self._clock.wall(), creates=False
        )
        return self._retrying.call(lambda: self._ask(queue, command), queue).ext

    def _ask(self, queue: MessageQueue, command: Command) -> Command:
        address = self._routes.get(queue.topic).master(queue.broker)
        link = self._links.pop(address, None) or BlockingConnection(address, security=self._security)
        try:
            reply = link.request(command, SEND_SECONDS)
        except TransportError:
            self._routes.stale(queue.topic)
            raise
        self._links[address] = link
        return checked(reply)


def _extras(row: OutgoingRow) -> Extras:
    given = row.properties or {}
    left_out = SET_HERE | DELAY_PROPERTIES if PropertyName.REAL_TOPIC in given else SET_HERE
    properties = {name: value for name, value in given.items() if name not in left_out}
    empty = next((name for name, value in properties.items() if value is None), None)
    if empty is not None:
        raise InvalidOption(f"properties: {empty} has no value; leave it out")
    return Extras(row.tags, row.keys or (), properties or None)
