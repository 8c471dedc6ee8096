"""What the driver asks brokers: which queues there are, what they hold, where a place in time is.

Every question waits for a broker that is away, up to the option `brokerWait`. So does one whose answer leaves out what
an absent broker holds: a name server forgets a broker that is down, and with it its topics, which are not gone.
"""

from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from typing import TypeVar

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.calls import AdminCalls
from lanemq.client.routing import BlockingRoutes
from lanemq.clock import Clock
from lanemq.model.errors import ConnectFailed, InvalidOption, TopicNotFound
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.address import Address, parse_addresses
from lanemq.spark.offsets import Positions
from lanemq.spark.options import ReadOptions
from lanemq.spark.places import Bounds, Kind, Place, named_offset
from lanemq.spark.read.waiting import Patience

T = TypeVar("T")
QueueBounds = dict[MessageQueue, Bounds]


class Brokers:
    """The brokers as one query sees them. For one thread."""

    def __init__(self, options: ReadOptions, clock: Clock | None = None) -> None:
        self._options = options
        self._clock = clock
        self._expected: dict[str, set[str]] = {}
        """By topic: the brokers that have, or had, queues of it."""
        look = f"look at it with: lanemq topic list --server '{options.servers}'; brokerWait says how long to wait"
        self._patience = Patience(options.wait, clock, hint=look)
        security = options.security
        self._admin = Admin(options.servers, clock=clock, tls=security.tls, credentials=security.credentials)
        self._routes = BlockingRoutes(parse_addresses(options.servers), clock, security=security)

    def close(self) -> None:
        self._admin.close()
        self._routes.close()

    def __enter__(self) -> "Brokers":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def topics(self) -> tuple[str, ...]:
        """The topics of the query as of now; with a pattern, new ones appear while it runs."""
        if self._options.topic_pattern is None:
            return self._options.topics
        names = self._ask(self._admin.topics, "the list of topics")
        return tuple(name for name in names if self._options.reads(name))

    def expect(self, queues: Iterable[MessageQueue]) -> None:
        """A checkpoint knows these: if their broker is not to be seen, it is away."""
        for queue in queues:
            self._expected.setdefault(queue.topic, set()).add(queue.broker)

    def bounds(self) -> QueueBounds:
        """Every queue of every topic with what it holds. Topics that are gone are left out."""
        found: QueueBounds = {}
        for topic in self.topics():
            try:
                found |= self._bounds_of(topic)
            except TopicNotFound:
                continue
        return found

    def existing_bounds(self) -> QueueBounds:
        """The same, but a topic that does not exist is an error: at the start of a query it is a mistake."""
        topics = self.topics()
        if not topics:
            raise TopicNotFound(17, f"no topic matches topicPattern {self._options.topic_pattern!r}")
        found: QueueBounds = {}
        for topic in topics:
            found |= self._bounds_of(topic)
        return found

    def master(self, queue: MessageQueue) -> Address:
        """Where a queue is read."""
        return self._ask(lambda: self._routes.get(queue.topic).master(queue.broker), str(queue))

    def positions(self, place: Place, bounds: Mapping[MessageQueue, Bounds]) -> Positions:
        """A place in every queue; a queue that JSON does not name begins at its first message, or ends at its last.

        `InvalidOption` if JSON names a queue that is not there: a misspelt name would read all that it should not.
        The same for an offset behind the end, which would pass for a topic that was created again.
        """
        option = "starting" if place is self._options.start else "ending"
        option += "Offsets" if place.kind is Kind.OFFSETS else "OffsetsByTimestamp"
        unmatched = place.unmatched(bounds)
        if unmatched:
            there = ", ".join(sorted({f"{each.topic} {each.broker}/{each.queue_id}" for each in bounds})[:20])
            raise InvalidOption(f"{option}: this query has no queue {', '.join(unmatched)}; it has {there}")
        beyond = place.beyond(bounds)
        if beyond:
            raise InvalidOption(
                f"{option}: {'; '.join(beyond)}. Give an offset of the queue, or -1 for its end; if the offset was "
                f"right once, the topic was deleted and created again"
            )
        return {queue: self._position(place, queue, held) for queue, held in bounds.items()}

    def _bounds_of(self, topic: str) -> QueueBounds:
        found = self._ask(lambda: self._complete(topic), f"topic {topic}")
        self.expect(found)
        return found

    def _complete(self, topic: str) -> QueueBounds:
        """What the topic's queues hold; `ConnectFailed` if a broker with some of them is away."""
        expected = self._expected.get(topic, set())
        try:
            described = self._admin.describe_topic(topic)
        except TopicNotFound:
            self._check_registered(topic, expected)
            raise
        self._check_registered(topic, expected - {each.queue.broker for each in described.queues})
        return {each.queue: Bounds(each.first, each.end) for each in described.queues}

    def _check_registered(self, topic: str, missed: set[str]) -> None:
        """A broker that is there and does not hold the topic any more is a loss; an absent one proves nothing."""
        if not missed:
            return
        options = self._options
        with closing(AdminCalls(options.servers, clock=self._clock, security=options.security)) as calls:
            away = sorted(missed - calls.masters().keys())
        if away:
            raise ConnectFailed(
                f"broker {', '.join(away)} of topic {topic} is not registered at {options.servers}: it is down, "
                f"starting, or was taken out of service for good (then begin with a new checkpoint)"
            )

    def _position(self, place: Place, queue: MessageQueue, held: Bounds) -> QueueOffset:
        unnamed = held.first if place is self._options.start else held.end
        match place.kind:
            case Kind.EARLIEST:
                return held.first
            case Kind.LATEST:
                return held.end
            case Kind.COMMITTED:
                return self._committed(queue, held)
            case Kind.TIME:
                return self._at_time(queue, Millis(place.millis), held)
        named = place.named(queue)
        if named is None:
            return unnamed
        if place.kind is Kind.TIMES:
            return self._at_time(queue, Millis(named), held)
        return named_offset(named, held)

    def _committed(self, queue: MessageQueue, held: Bounds) -> QueueOffset:
        offset = self._ask(lambda: self._admin.committed(self._options.pull_group, queue), str(queue))
        return held.first if offset is None else offset

    def _at_time(self, queue: MessageQueue, millis: Millis, held: Bounds) -> QueueOffset:
        offset = self._ask(lambda: self._admin.offset_at(queue, millis / 1000), str(queue))
        return max(held.first, min(offset, held.end))

    def _ask(self, question: Callable[[], T], what: str) -> T:
        return self._patience.run(question, what)
