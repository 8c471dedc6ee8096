"""Sending the rows of one task: keyed, in the order of the rows, and recognisable when a task is repeated.

Each message carries a stamp: the producer is the query and the task's partition, the epoch is the batch, the sequence
is the row's place among those the task sent to the queue. A repeated task therefore sends the same stamps, and a
LaneMQ broker drops what it has. That needs the same rows in the same order: true for rows of a source partition
without a group, and behind a shuffle only after `sortWithinPartitions`. Where nothing else makes sure of it,
`compares` does (see `repeats`). An Apache broker stores repeats; their stamps tell them apart.
"""

from collections.abc import Mapping, Sequence
from functools import partial
from hashlib import md5
from typing import NamedTuple

from lanemq.client.identity import new_client_id
from lanemq.client.producer.requests import PARCEL_OVERHEAD, Extras, Parcel, RequestBuilder, properties_text
from lanemq.client.routing import BlockingRoutes, TopicRoute
from lanemq.client.security import security_of
from lanemq.clock import Clock, SystemClock
from lanemq.core.sending.sharding import pick_queue
from lanemq.model.errors import InvalidOption, MissingKey, TransportError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import Address, parse_addresses
from lanemq.net.blocking import BlockingConnection
from lanemq.net.security import Security
from lanemq.spark.read.waiting import Patience
from lanemq.spark.write.repeats import Repeats
from lanemq.wire.codes import ResponseCode, error_for
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
"""Left out of a row's `properties`, since columns or the broker set them: so what was read can be written as it is."""

DELAY_IS_OVER = frozenset({PropertyName.DELAY, PropertyName.REAL_TOPIC, PropertyName.REAL_QUEUE})
"""What a broker leaves in a message that it has delivered after its delay; the copy of one is not delayed again."""


class Outgoing(NamedTuple):
    """One row."""

    topic: str
    value: bytes
    key: str | None = None
    tags: str | None = None
    keys: str | None = None
    properties: Mapping[str, str] | None = None


class _Lane:
    """What waits for one queue."""

    def __init__(self) -> None:
        self.sequence = 0
        self.parcels: list[Parcel] = []
        self.size = 0


class TaskSender:
    """The sends of one task. For one thread."""

    def __init__(
        self,
        servers: str,
        producer: str,
        epoch: int,
        wait: Millis,
        clock: Clock | None = None,
        *,
        security: Security | None = None,
        compares: bool = False,
    ) -> None:
        """`security`: None looks into the environment. `compares`: a repeat with other rows is an error."""
        self._security = security_of() if security is None else security
        self._clock = clock or SystemClock()
        self._producer = producer
        self._epoch = epoch
        self._requests = RequestBuilder(PRODUCER_GROUP, new_client_id(), producer)
        self._routes = BlockingRoutes(parse_addresses(servers), self._clock, security=self._security)
        self._patience = Patience(wait, self._clock)
        self._repeats = Repeats(producer, epoch, self._patience, self._security) if compares else None
        self._links: dict[Address, BlockingConnection] = {}
        self._known: dict[str, TopicRoute] = {}
        self._lanes: dict[MessageQueue, _Lane] = {}
        self._keyless = 0
        self.sent = 0

    def send(self, row: Outgoing) -> None:
        """Takes a row; it is on its way when its batch is full, and stored after `flush`."""
        queue = self._queue_of(row)
        lane = self._lanes.setdefault(queue, _Lane())
        message_id = self._message_id(queue, lane.sequence + len(lane.parcels))
        text = properties_text(row.key, message_id, _extras(row))
        lane.parcels.append(Parcel(row.value, text, message_id, row.key))
        lane.size += len(row.value) + len(text) + PARCEL_OVERHEAD
        if len(lane.parcels) >= BATCH_MESSAGES or lane.size >= BATCH_BYTES:
            self._send(queue, lane)

    def flush(self) -> None:
        """Returns when every row is stored, or raises why one is not."""
        for queue, lane in self._lanes.items():
            if lane.parcels:
                self._send(queue, lane)

    def close(self) -> None:
        self._routes.close()
        for link in self._links.values():
            link.close()
        self._links.clear()

    def _queue_of(self, row: Outgoing) -> MessageQueue:
        route = self._known.get(row.topic)
        if route is None:
            # Asked once: a route that changed within a batch would send a key to two queues.
            route = self._patience.run(lambda: self._routes.get(row.topic), f"topic {row.topic}")
            self._known[row.topic] = route
        if row.key is not None:
            return pick_queue(row.key, route.publish)
        if route.ordered:
            raise MissingKey(row.topic)
        self._keyless += 1
        return route.publish[self._keyless % len(route.publish)]

    def _message_id(self, queue: MessageQueue, sequence: int) -> str:
        """The same for the same row, so that readers of any broker can tell a repetition."""
        name = f"{self._producer}.{self._epoch}.{queue}.{sequence}"
        return md5(name.encode(), usedforsecurity=False).hexdigest().upper()

    def _send(self, queue: MessageQueue, lane: _Lane) -> None:
        parcels, sequence = lane.parcels, lane.sequence
        answer = self._request(queue, parcels, sequence)
        if self._repeats is not None:
            address = self._routes.get(queue.topic).master(queue.broker)
            again = partial(self._request, queue, parcels[:1], sequence)
            self._repeats.compare(queue, address, parcels, sequence, answer, again)
        lane.sequence += len(parcels)
        self.sent += len(parcels)
        lane.parcels, lane.size = [], 0

    def _request(self, queue: MessageQueue, parcels: Sequence[Parcel], sequence: int) -> Mapping[str, str]:
        command = self._requests.send(
            queue, parcels, epoch=self._epoch, sequence=sequence, born=self._clock.wall(), creates=False
        )
        return self._patience.run(lambda: self._ask(queue, command), str(queue)).ext

    def _ask(self, queue: MessageQueue, command: Command) -> Command:
        address = self._routes.get(queue.topic).master(queue.broker)
        link = self._links.pop(address, None) or BlockingConnection(address, security=self._security)
        try:
            reply = link.request(command, SEND_SECONDS)
        except TransportError:
            self._routes.stale(queue.topic)
            raise
        self._links[address] = link
        if reply.code != ResponseCode.SUCCESS:
            raise error_for(reply.code, reply.remark)
        return reply


def _extras(row: Outgoing) -> Extras:
    given = row.properties or {}
    left_out = SET_HERE | DELAY_IS_OVER if PropertyName.REAL_TOPIC in given else SET_HERE
    properties = {name: value for name, value in given.items() if name not in left_out}
    empty = next((name for name, value in properties.items() if value is None), None)
    if empty is not None:
        raise InvalidOption(f"properties: {empty} has no value; leave it out instead")
    return Extras(row.tags, row.keys or (), properties or None)
