"""The driver's requests to brokers: which queues exist, which offsets they hold, which offset belongs to a time.

Every request waits for an absent broker, up to the option `brokerWait`. This includes requests whose answer is
incomplete because a broker is absent: a name server forgets a broker that is down and its topics with it, although they
still exist.
"""

import logging
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TypeVar

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.calls import AdminCalls
from lanemq.client.routing import BlockingRoutes
from lanemq.clock import Clock, wall_ms
from lanemq.model.errors import ConnectFailed, GroupConflict, InvalidOption, LaneError, TopicNotFound
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.address import Address, parse_addresses
from lanemq.spark.offsets import (
    Bounds,
    Created,
    LimitKind,
    NewestMessage,
    Positions,
    RangeLimit,
    Stored,
    resolve_offset,
)
from lanemq.spark.options import ReadOptions
from lanemq.spark.retrying import Retrying
from lanemq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

T = TypeVar("T")
BoundsByQueue = dict[MessageQueue, Bounds]


class Brokers:
    """The brokers of one query's topics. Not thread-safe."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock
        self._expected: dict[str, set[str]] = {}
        """By topic: the brokers that hold, or held, queues of it."""
        self.created: Created = {}
        """When the topics were created, as the brokers last reported."""
        self.stored: Stored = {}
        """The newest message of each queue, as the brokers last reported."""
        hint = f"check it with: lanemq topic list --server '{options.servers}'; the option brokerWait limits the wait"
        self._retrying = Retrying(options.wait, clock, hint=hint)
        security = options.security
        self._admin = Admin(options.servers, clock=clock, tls=security.tls, credentials=security.credentials)
        self._routes = BlockingRoutes(parse_addresses(options.servers), clock, security=security, layouts=False)

    def close(self) -> None:
        self._admin.close()
        self._routes.close()

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def topics(self) -> tuple[str, ...]:
        """The topics that the query reads now; with `topicPattern`, new topics are added while it runs."""
        if self._options.topic_pattern is None:
            return self._options.topics
        names = self._ask(self._admin.topics, "the list of topics")
        return tuple(name for name in names if self._options.reads(name))

    def expect(self, queues: Iterable[MessageQueue]) -> None:
        """Adds queues from a checkpoint: if their broker is not registered, it is only absent."""
        for queue in queues:
            self._expected.setdefault(queue.topic, set()).add(queue.broker)

    def bounds(self) -> BoundsByQueue:
        """The bounds of every queue of every topic. Topics that do not exist are left out."""
        found: BoundsByQueue = {}
        for topic in self.topics():
            try:
                found |= self._bounds_of(topic)
            except TopicNotFound:
                continue
        return found

    def existing_bounds(self) -> BoundsByQueue:
        """The same, but a topic that does not exist is an error; used when a query starts."""
        topics = self.topics()
        if not topics:
            raise TopicNotFound(
                ResponseCode.TOPIC_NOT_EXIST,
                f"no topic matches topicPattern {self._options.topic_pattern!r}: create one, or correct the pattern",
            )
        found: BoundsByQueue = {}
        for topic in topics:
            found |= self._bounds_of(topic)
        return found

    def master(self, queue: MessageQueue) -> Address:
        """The address of the broker from which a queue is read."""
        return self._ask(lambda: self._routes.get(queue.topic).master(queue.broker), queue)

    def report(self, positions: Positions) -> None:
        """Stores the group's offsets, to show the query's lag; `GroupConflict` if consumers use the group.

        Other failures are logged: the checkpoint has the offsets, and the next batch stores them again.
        """
        for queue, offset in positions.items() if self._options.group is not None else ():
            try:
                self._admin.report(self._options.pull_group, queue, offset)
            except GroupConflict:
                raise
            except LaneError as error:
                log.warning("offset %s of %s is not stored at the broker: %s", offset, queue, error)

    def positions(self, limit: RangeLimit, bounds: Mapping[MessageQueue, Bounds]) -> Positions:
        """The offset of a limit in every queue. JSON that leaves out a queue means all of that queue.

        Raises `InvalidOption` if the JSON names a queue that does not exist, because after a typing error the query
        would read the whole queue; and for an offset past the end, which would look like a topic created again.
        """
        option = "starting" if limit is self._options.start else "ending"
        option += "Offsets" if limit.kind is LimitKind.OFFSETS else "OffsetsByTimestamp"
        unknown = limit.unknown_queues(bounds)
        if unknown:
            there = ", ".join(sorted({f"{each.topic} {each.broker}/{each.queue_id}" for each in bounds})[:20])
            raise InvalidOption(f"{option}: this query has no queue {', '.join(unknown)}; it has {there}")
        beyond = limit.past_the_end(bounds)
        if beyond:
            raise InvalidOption(
                f"{option}: {'; '.join(beyond)}. Give an offset of the queue, or -1 for its end; if the offset used "
                f"to exist, the topic was deleted and created again"
            )
        return {queue: self._position(limit, queue, held) for queue, held in bounds.items()}

    def _bounds_of(self, topic: str) -> BoundsByQueue:
        found = self._ask(lambda: self._complete(topic), f"topic {topic}")
        self.expect(found)
        return found

    def _complete(self, topic: str) -> BoundsByQueue:
        """The bounds of all queues of the topic; `ConnectFailed` if a broker that holds some of them is absent."""
        expected = self._expected.get(topic, set())
        try:
            described = self._admin.describe_topic(topic)
        except TopicNotFound:
            self._check_registered(topic, expected)
            raise
        self._check_registered(topic, expected - {each.queue.broker for each in described.queues})
        self.created |= {f"{topic}/{broker}": created for broker, created in described.created_ms.items()}
        for each in described.queues:
            self.stored.pop(each.queue, None)
            if each.last_stored_at is not None and each.messages:
                self.stored[each.queue] = NewestMessage(QueueOffset(each.end - 1), wall_ms(each.last_stored_at))
        return {each.queue: Bounds(each.first, each.end) for each in described.queues}

    def _check_registered(self, topic: str, missed: set[str]) -> None:
        """Raises `ConnectFailed` if one of these brokers is not registered: then its queues may still exist."""
        if not missed:
            return
        options = self._options
        with closing(AdminCalls(options.servers, clock=self._clock, security=options.security)) as calls:
            absent = sorted(missed - calls.masters().keys())
        if absent:
            raise ConnectFailed(
                f"broker {', '.join(absent)} of topic {topic} is not registered at {options.servers}: it is down, "
                f"starting, or was removed for good (then start with a new checkpoint)"
            )

    def _position(self, limit: RangeLimit, queue: MessageQueue, held: Bounds) -> QueueOffset:
        match limit.kind:
            case LimitKind.EARLIEST:
                return held.first
            case LimitKind.LATEST:
                return held.end
            case LimitKind.COMMITTED:
                return self._committed(queue, held)
            case LimitKind.TIME:
                return self._at_time(queue, Millis(limit.millis), held)
        given = limit.given_for(queue)
        if given is None:
            return held.first if limit is self._options.start else held.end
        if limit.kind is LimitKind.TIMES:
            return self._at_time(queue, Millis(given), held)
        return resolve_offset(given, held)

    def _committed(self, queue: MessageQueue, held: Bounds) -> QueueOffset:
        offset = self._ask(lambda: self._admin.committed(self._options.pull_group, queue), queue)
        return held.first if offset is None else offset

    def _at_time(self, queue: MessageQueue, millis: Millis, held: Bounds) -> QueueOffset:
        offset = self._ask(lambda: self._admin.offset_at(queue, millis / 1000), queue)
        return max(held.first, min(offset, held.end))

    def _ask(self, request: Callable[[], T], what: object) -> T:
        return self._retrying.call(request, what)
