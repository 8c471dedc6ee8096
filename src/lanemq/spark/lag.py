"""The lag of a streaming query, in messages and in seconds, from the progress that Spark reports. Without PySpark.

The lag in messages is the difference of two offsets in the progress. Ten messages may be a second or a week, so the age
of the oldest unread message is read too, with one small pull per queue that is behind. If the broker does not answer,
the age is unknown; the query is not affected.
"""

import ast
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from lanemq.client.routing import BlockingRoutes
from lanemq.client.security import security_of
from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.address import Address, parse_addresses
from lanemq.net.security import Security
from lanemq.spark.offsets import Positions, from_json
from lanemq.spark.options import DEFAULT_GROUP
from lanemq.spark.read.range_reader import QueueRange, RangeReader
from lanemq.spark.retrying import Retrying
from lanemq.wire.record import RecordView, record_starts

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class QueueLag:
    """The lag of a query in one queue."""

    queue: MessageQueue
    offset: int
    """The next offset to read."""
    end: int
    seconds: float | None = None
    """Age of the message at `offset`; None if there is no lag, or if the age is unknown."""

    @property
    def messages(self) -> int:
        return max(0, self.end - self.offset)

    def document(self) -> dict[str, object]:
        return {
            "topic": self.queue.topic,
            "broker": self.queue.broker,
            "queue": self.queue.queue_id,
            "offset": self.offset,
            "end": self.end,
            "lag": self.messages,
            "lag_seconds": self.seconds,
        }


def lag_of(progress: Mapping[str, Any]) -> tuple[QueueLag, ...]:
    """The lag in `query.lastProgress`, over all its `lanemq` sources, sorted by queue.

    Empty if it is not known: after the first batch of a restarted query, if the run before had planned this batch.
    """
    return tuple(sorted(_of_sources(progress), key=lambda each: each.queue))


def lag_between(offsets: Mapping[MessageQueue, int], ends: Mapping[MessageQueue, int]) -> tuple[QueueLag, ...]:
    """The lag between positions and the ends of their queues."""
    return tuple(QueueLag(queue, offsets[queue], ends.get(queue, offsets[queue])) for queue in sorted(offsets))


def oldest_age(queues: Iterable[QueueLag]) -> float | None:
    """The age of the oldest unread message in seconds; None if there is none, or if no age is known."""
    return max((each.seconds for each in queues if each.seconds is not None), default=None)


def offsets_advanced(progress: Mapping[str, Any]) -> int:
    """How many offsets a batch advanced; for the first batch, which has no start, the rows that Spark counted."""
    total = 0
    for source in progress["sources"]:
        start, end = _positions(source["startOffset"]), _positions(source["endOffset"])
        if not start:
            return int(progress.get("numInputRows", 0))
        total += sum(max(0, offset - start.get(queue, QueueOffset(0))) for queue, offset in end.items())
    return total


class LagAges:
    """Reads from brokers how old the next message of a queue is, with a small pull each and without waiting.

    Not thread-safe.
    """

    def __init__(self, servers: str, clock: Clock | None = None, *, security: Security | None = None) -> None:
        """`security`: None takes TLS and credentials from the environment."""
        self._clock = clock or SystemClock()
        self._security = security_of() if security is None else security
        self._routes = BlockingRoutes(parse_addresses(servers), self._clock, security=self._security, layouts=False)
        self._readers: dict[Address, RangeReader] = {}

    def close(self) -> None:
        for reader in self._readers.values():
            reader.close()
        self._routes.close()

    def with_ages(self, queues: Sequence[QueueLag]) -> tuple[QueueLag, ...]:
        """The same queues with `seconds` filled in, where there is a lag and the broker answers."""
        return tuple(replace(each, seconds=self._age(each)) if each.messages else each for each in queues)

    def _age(self, lag: QueueLag) -> float | None:
        record = self._read(lag.queue, lag.offset)
        return None if record is None else max(0, self._clock.wall() - record.store_timestamp) / 1000

    def _read(self, queue: MessageQueue, offset: int) -> RecordView | None:
        """The message at an offset; None if it is not there, or if the broker does not answer."""
        try:
            address = self._routes.get(queue.topic).master(queue.broker)
            first, after = QueueOffset(offset), QueueOffset(offset + 1)
            wanted = QueueRange(queue, first, after, address, DEFAULT_GROUP)
            body = next(self._reader(address).chunks(wanted, 1), b"")
        except LaneError as error:
            log.debug("%s: offset %d cannot be read: %s", queue, offset, error)
            return None
        starts = record_starts(body)
        return RecordView(body, starts[0]) if starts else None

    def _reader(self, address: Address) -> RangeReader:
        if address not in self._readers:
            self._readers[address] = RangeReader(
                Retrying(Millis(0), self._clock), fail_on_data_loss=False, security=self._security
            )
        return self._readers[address]


def _of_sources(progress: Mapping[str, Any]) -> Iterator[QueueLag]:
    for source in progress["sources"]:
        try:
            offsets, ends = _positions(source["endOffset"]), _positions(source["latestOffset"])
        except (LaneError, ValueError):
            continue  # another kind of source
        if ends:  # none if the batch was planned by an earlier run: Spark repeats it without asking for the ends
            yield from lag_between({queue: at for queue, at in offsets.items() if queue.broker}, ends)


def _parsed(text: str) -> object:
    """JSON; PySpark before 4.2 writes Python's own form of it instead, such as `None`."""
    try:
        return json.loads(text)
    except ValueError:
        try:
            return ast.literal_eval(text)
        except SyntaxError as error:
            raise ValueError(text) from error


def _positions(offset: object) -> Positions:
    """Offsets in a progress: JSON in a string, and `null` before the first batch."""
    found = _parsed(offset) if isinstance(offset, str) else offset
    return from_json(found) if isinstance(found, Mapping) else {}
