"""A mirror without sockets: the rules around a source and a target in memory, killed at any request.

A killed session leaves one request on its way: it is lost, stored before the next session reads the target, or stored
later. A target with stamps recognises what arrives twice; one without does not, and there the fence makes sure that
nothing arrives later.
"""

from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, cast

from lanemq.client.copies import origin_of, producer_id
from lanemq.client.message import Message
from lanemq.core.brokering.dedup import Duplicate, Fresh, ProducerTable
from lanemq.mirror.arrivals import FIRST_EPOCH, Arrivals, first_needed
from lanemq.mirror.queue_mapping import QueueMapping
from lanemq.mirror.shipping import Copy, add_watermarks, copies_by_queue, requests
from lanemq.model.queue import MessageQueue
from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset

TOPIC, MIRROR = "orders", "sim"


def queues(broker: str, count: int) -> list[MessageQueue]:
    return [MessageQueue(TOPIC, broker, number) for number in range(count)]


def message(queue: MessageQueue, offset: int, key: str | None, text: str = "") -> Message:
    record = SimpleNamespace(sys_flag=0, position=0, store_timestamp=0, born_timestamp=1)
    properties = text or f"UNIQ_KEY\x01{queue.queue_id}-{offset}\x02"
    return cast(
        Message,
        SimpleNamespace(
            queue=queue,
            queue_offset=offset,
            key=key,
            properties_text=properties,
            record=record,
            stored_body=b"body",
        ),
    )


@dataclass
class Request:
    """A request on its way."""

    queue: MessageQueue
    source: MessageQueue
    stamp: Stamp
    texts: list[str]


@dataclass
class Target:
    """Queues in memory; with `stamps`, repeats are dropped as a LaneMQ broker does."""

    queues: list[MessageQueue]
    stamps: bool
    stored: dict[MessageQueue, list[str]] = field(default_factory=dict)
    producers: ProducerTable = field(default_factory=ProducerTable)

    def __post_init__(self) -> None:
        self.stored = {queue: [] for queue in self.queues}

    def store(self, request: Request) -> None:
        texts, offset = request.texts, QueueOffset(len(self.stored[request.queue]))
        if self.stamps:
            at = request.queue.topic, request.queue.queue_id
            verdict = self.producers.judge(*at, request.stamp, len(texts))
            if isinstance(verdict, Duplicate):
                return
            assert isinstance(verdict, Fresh), verdict
            stamp = request.stamp._replace(sequence=request.stamp.sequence + verdict.skip)
            texts = texts[verdict.skip :]
            self.producers.record(*at, stamp, len(texts), offset, stored_at=Millis(0))
        self.stored[request.queue] += texts

    def offsets(self) -> dict[MessageQueue, dict[MessageQueue, list[int]]]:
        """Of every target queue: the offsets of each source queue, in the order stored."""
        found: dict[MessageQueue, dict[MessageQueue, list[int]]] = {}
        for queue, texts in self.stored.items():
            for text in texts:
                origin = origin_of(text, TOPIC)
                assert origin is not None
                found.setdefault(queue, {}).setdefault(origin.queue, []).append(origin.offset)
        return found


class Session:
    """One session. `read_target=False` leaves out what makes it safe."""

    def __init__(
        self,
        source: dict[MessageQueue, list[Message]],
        mapping: QueueMapping,
        target: Target,
        *,
        read_target: bool = True,
    ) -> None:
        self._source = source
        self._mapping = mapping
        self._target = target
        self._arrivals: dict[MessageQueue, Arrivals] = {}
        for queue in target.queues:
            epoch = FIRST_EPOCH if not target.stored[queue] else 1_000
            self._arrivals[queue] = Arrivals(MIRROR, TOPIC, mapping.counts, epoch)
            for text in target.stored[queue] if read_target else ():
                self._arrivals[queue].see(text)
            self._arrivals[queue].begin((each, 0) for each in source)
        self._next = first_needed(source, self._arrivals.values())

    def requests(self, pages: list[tuple[int, int]]) -> Any:
        """Yields each request before it counts as stored. A page is (which source queue, how many messages)."""
        for number, size in pages:
            source = list(self._source)[number % len(self._source)]
            page = self._source[source][self._next[source] : self._next[source] + size]
            if not page:
                continue
            for queue, copies in copies_by_queue(page, self._mapping, self._arrivals, MIRROR).items():
                for copy in requests(copies):
                    yield self._request(queue, source, copy)
                    self._arrivals[queue].stored(source, copy[-1].offset, len(copy))
            self._next[source] += len(page)
            for arrivals in self._arrivals.values():
                arrivals.passed(source, self._next[source])

    def drain(self) -> None:
        pages = [(number, 50) for number in range(len(self._source)) for _ in range(1 + len(self._longest()) // 50)]
        for request in self.requests(pages):
            self._target.store(request)

    def _longest(self) -> list[Message]:
        return max(self._source.values(), key=len)

    def _request(self, queue: MessageQueue, source: MessageQueue, copies: list[Copy]) -> Request:
        at = self._arrivals[queue].reached(source)
        add_watermarks(copies, source, self._arrivals[queue])
        stamp = Stamp(producer_id(MIRROR, source), at.epoch, at.sequence)
        texts = [
            f"{copy.message.properties}LANE_STAMP\x01{stamp._replace(sequence=stamp.sequence + number)}\x02"
            for number, copy in enumerate(copies)
        ]
        return Request(queue, source, stamp, texts)
