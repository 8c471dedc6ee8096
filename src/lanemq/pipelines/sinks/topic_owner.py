"""The owner of a topic that is a sink: the checkpoint that sent the pipeline's last messages.

A topic has no ledger, but its messages carry the stamps of their producer. So the name of a sink's producer says which
pipeline and which checkpoint it belongs to, and the last messages of the queues say who wrote to the topic. The newest
message of the pipeline counts, because queues that got no message since keep those of a former owner.

Limits: if other programs sent the last LOOK_BACK messages of all queues, or retention deleted the pipeline's messages,
the topic has no owner.
"""

import logging
from collections.abc import Iterator
from contextlib import closing
from hashlib import md5
from typing import Final, NamedTuple

from lanemq.client.admin.admin import Admin
from lanemq.client.routing import BlockingRoutes
from lanemq.clock import SystemClock
from lanemq.model.errors import NotAllowed
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.address import parse_addresses
from lanemq.net.security import Security
from lanemq.pipelines.sinks.exact_sink import owner_mark
from lanemq.spark.options import DEFAULT_GROUP
from lanemq.spark.read.range_reader import QueueRange, RangeReader
from lanemq.spark.retrying import Retrying
from lanemq.wire.properties import find_stamp
from lanemq.wire.record import RecordView, record_starts

log = logging.getLogger(__name__)

LOOK_BACK: Final = 100
"""Messages at the end of each queue among which those of the pipeline are looked for."""


class SinkProducer(NamedTuple):
    """The producer that sends the rows of one shard, by its name."""

    sink: str
    """The pipeline and the sink's own name."""
    owner: int
    shard: str

    @classmethod
    def of(cls, pipeline: str, sink: str, query: str, shard: str) -> "SinkProducer":
        return cls(_digest(pipeline, sink), owner_mark(query), _digest(shard))

    @classmethod
    def read(cls, name: str) -> "SinkProducer | None":
        """None if the producer is not a sink's."""
        parts = name.split("-")
        if len(parts) != 4 or parts[0] != "sink":
            return None
        try:
            return cls(parts[1], int(parts[2], 16), parts[3])
        except ValueError:
            return None

    def __str__(self) -> str:
        return f"sink-{self.sink}-{self.owner:016x}-{self.shard}"


def find_owner(servers: str, topic: str, producer: SinkProducer, wait: Millis, security: Security) -> int | None:
    """The mark of the checkpoint that sent the newest messages of this sink; None if no message shows it."""
    newest: tuple[int, bool, int] | None = None
    try:
        for record in _last_records(servers, topic, wait, security):
            stamp = find_stamp(record.properties_text)
            sender = SinkProducer.read(stamp.producer) if stamp is not None else None
            if sender is not None and sender.sink == producer.sink:
                # Of two in the same millisecond, the one that opens the sink counts.
                found = (record.store_timestamp, sender.owner == producer.owner, sender.owner)
                newest = found if newest is None else max(newest, found)
    except NotAllowed as error:
        log.warning(
            "topic %s: the user may not read it, so nobody can tell whether another checkpoint of this pipeline wrote "
            "to it; grant the right to read: %s",
            topic,
            error,
        )
    return None if newest is None else newest[2]


def _last_records(servers: str, topic: str, wait: Millis, security: Security) -> Iterator[RecordView]:
    clock = SystemClock()
    retrying = Retrying(wait, clock)
    with (
        Admin(servers, tls=security.tls, credentials=security.credentials) as admin,
        closing(BlockingRoutes(parse_addresses(servers), clock, security=security, layouts=False)) as routes,
        closing(RangeReader(retrying, fail_on_data_loss=False, security=security)) as reader,
    ):
        queues = retrying.call(lambda: admin.describe_topic(topic), f"topic {topic}").queues
        route = retrying.call(lambda: routes.get(topic), f"topic {topic}")
        for held in queues:
            first = QueueOffset(max(held.first, held.end - LOOK_BACK))
            wanted = QueueRange(
                held.queue, first, QueueOffset(held.end), route.master(held.queue.broker), DEFAULT_GROUP
            )
            for body in reader.chunks(wanted, 1):
                yield from (RecordView(body, start) for start in record_starts(body))


def _digest(*parts: str) -> str:
    return md5("\0".join(parts).encode(), usedforsecurity=False).hexdigest()[:16]
