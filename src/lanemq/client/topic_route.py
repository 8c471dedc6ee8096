"""What a client knows about a topic's route: the queues and brokers in it, and how long it is believed.

Invariant: every producer derives the same list of publish queues in the same order, because `pick_queue` indexes into
it. A list that is sorted differently, or that skips a queue, sends a key to two queues. The derivation is therefore
RocketMQ's (MQClientInstance.topicRouteData2TopicPublishInfo), and pure. A list that is in use stays in use, whatever a
later route says (`core/sending/layout`).
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lanemq.client.topics import MASTER
from lanemq.core.sending.layout import parse_layout
from lanemq.model.errors import ConnectFailed, OrderError, RemoteProtocolError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import Address, parse_address
from lanemq.wire.route_bodies import PERM_READ, PERM_WRITE, BrokerData, QueueData, TopicRouteData

DEFAULT_TOPIC_QUEUES = 4
"""Queues of a topic that a send creates (RocketMQ's DefaultMQProducer)."""

BROKER_PORT = 10911
"""RocketMQ's broker port, used if an address has none."""

REFRESH_MILLIS = 30_000
"""How long a route is used before it is asked for again (RocketMQ's ClientConfig.pollNameServerInterval)."""

RETRY_MILLIS = 3_000
"""How long a known route is used after a failed refresh, and a provisional one at all."""
UNREACHABLE_MILLIS = 1_000
"""How long a route is used at most while a broker in it cannot be reached, or has no master."""

MISSING_QUESTIONS, MISSING_MILLIS = 10, 1_000
"""After a message to a topic that does not exist was refused, the next one asks again, because the topic may have been
created since; but only so many times in so many milliseconds: a loop whose messages all fail must not flood the name
servers."""


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """One broker name: a master and its replicas."""

    name: str
    addresses: Mapping[int, Address]
    lane: bool
    """Whether this is a LaneMQ broker: it drops repeats by their stamp, and its leases carry epochs."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where the queues of one topic are."""

    topic: str
    publish: tuple[MessageQueue, ...]
    """Queues over which keys are spread, in the order that the hash selector indexes. Some may be away."""
    subscribe: tuple[MessageQueue, ...]
    """Queues that can be read, sorted."""
    brokers: Mapping[str, BrokerRoute]
    ordered: bool = False
    """The topic has an order configuration: every message needs a key."""
    provisional: bool = False
    """The topic does not exist yet; the broker creates it with the first message."""
    writable: tuple[MessageQueue, ...] = ()
    """Queues that take messages now; for messages without a key."""
    moved: str = ""
    """Why keys would move to other queues, as text; messages with a key are refused. Empty as long as none would."""

    def master(self, broker: str) -> Address:
        """The address of the broker's master; raises `ConnectFailed` while it has none."""
        address = self.master_of(broker)
        if address is None:
            raise ConnectFailed(f"broker {broker!r} of topic {self.topic!r} has no master at the moment")
        return address

    def reader(self, broker: str) -> Address:
        """Where to read the broker's messages: at its master or, while it has none, at a replica.

        A replica has what it copied, a beginning of the master's log. It takes no messages, locks or offsets.
        """
        known = self.brokers.get(broker)
        if known is None or not known.addresses:
            return self.master(broker)
        return known.addresses[min(known.addresses)]

    def master_of(self, broker: str) -> Address | None:
        """The address of the broker's master; None while it has none."""
        known = self.brokers.get(broker)
        return known.addresses.get(MASTER) if known is not None else None

    @property
    def broker_names(self) -> frozenset[str]:
        """The brokers that have queues of the topic, also those that are away."""
        return frozenset(queue.broker for queue in (*self.subscribe, *self.publish))

    @property
    def away(self) -> frozenset[str]:
        """The brokers that have queues of the topic, and no master at the moment."""
        return frozenset(name for name in self.broker_names if not _has_master(self.brokers, name))

    @property
    def is_of_lane_broker(self) -> bool:
        """Whether the topic is on a LaneMQ broker, which is its own name server, and so always in the route."""
        return any(broker.lane for broker in self.brokers.values())

    @property
    def indexes_keys(self) -> bool:
        """Whether the brokers index the keys of messages. Apache brokers index only what a sender adds as `keys`."""
        return all(self.is_lanemq(name) for name in self.broker_names)

    def is_lanemq(self, broker: str) -> bool:
        """Whether this is a LaneMQ broker."""
        known = self.brokers.get(broker)
        return known is not None and known.lane


def keys_would_move(route: TopicRoute) -> OrderError:
    """The error for a message with a key, after the queues of its topic changed."""
    return OrderError(
        f"topic {route.topic!r} has other queues than when this producer began: {route.moved}. Keys would move past "
        f"messages in their old queues. See lanemq topic order {route.topic}; when consumers have read the old "
        f"messages, start a new producer, or allow it with on_queue_change='continue'"
    )


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """The route of a topic from a name server's reply."""
    brokers = {each.broker_name: _broker_route(each) for each in data.broker_datas}
    queue_datas = sorted(data.queue_datas, key=lambda each: each.broker_name)
    writable = tuple(_write_queues(topic, queue_datas, brokers))
    layout = data.order_topic_conf
    return TopicRoute(
        topic,
        _queues_of_layout(topic, layout) if layout else writable,
        tuple(_read_queues(topic, queue_datas)),
        brokers,
        ordered=bool(layout),
        writable=writable,
    )


def provisional_route(topic: str, default: TopicRouteData) -> TopicRoute:
    """The route of a topic that its first message will create, from the route of RocketMQ's TBW102.

    Not for ordered sends: the topic appears only on the broker that got the message, the list of queues shrinks, and
    keys move.
    """
    brokers = {each.broker_name: _broker_route(each) for each in default.broker_datas}
    publish = tuple(
        MessageQueue(topic, each.broker_name, number)
        for each in sorted(default.queue_datas, key=lambda each: each.broker_name)
        if each.perm & PERM_WRITE and _has_master(brokers, each.broker_name)
        for number in range(min(DEFAULT_TOPIC_QUEUES, each.read_queue_nums))
    )
    return TopicRoute(topic, publish, (), brokers, provisional=True, writable=publish)


def _broker_route(data: BrokerData) -> BrokerRoute:
    addresses = {number: parse_address(text, BROKER_PORT) for number, text in data.broker_addrs.items()}
    return BrokerRoute(data.broker_name, addresses, lane=data.lane_features > 0)


def _write_queues(topic: str, datas: Iterable[QueueData], brokers: Mapping[str, BrokerRoute]) -> Iterator[MessageQueue]:
    for data in datas:
        if data.perm & PERM_WRITE and _has_master(brokers, data.broker_name):
            for number in range(data.write_queue_nums):
                yield MessageQueue(topic, data.broker_name, number)


def _has_master(brokers: Mapping[str, BrokerRoute], name: str) -> bool:
    return name in brokers and MASTER in brokers[name].addresses


def _read_queues(topic: str, datas: Iterable[QueueData]) -> Iterator[MessageQueue]:
    for data in datas:
        if data.perm & PERM_READ:
            for number in range(data.read_queue_nums):
                yield MessageQueue(topic, data.broker_name, number)


def _queues_of_layout(topic: str, layout: str) -> tuple[MessageQueue, ...]:
    """The queues of `broker-a:4;broker-b:4`, whether or not the brokers are up."""
    queues = parse_layout(topic, layout)
    if queues is None:
        raise RemoteProtocolError(
            f"topic {topic!r} has an order configuration that cannot be read: {layout!r}; "
            f"it should look like broker-a:4;broker-b:4"
        )
    return queues


class RouteCache:
    """The routes known so far, and when each has to be asked for again."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._contradicted: set[str] = set()
        self._due: dict[str, int] = {}
        self._answered_at: dict[str, int] = {}
        """When a name server answered, unless the last question had no answer."""
        self._missing: dict[str, tuple[Millis, int]] = {}
        """Since when, and how often, messages were refused because a topic does not exist."""

    def fresh(self, topic: str, *, now: Millis) -> TopicRoute | None:
        """The route, or None if it is unknown or too old."""
        return self._routes.get(topic) if now < self._due.get(topic, 0) else None

    def known(self, topic: str) -> TopicRoute | None:
        """The last known route, however old."""
        return self._routes.get(topic)

    def usable(self, topic: str) -> TopicRoute | None:
        """The last known route of a topic that exists, unless a broker contradicted it."""
        route = self._routes.get(topic)
        return None if route is None or route.provisional or topic in self._contradicted else route

    def put(self, route: TopicRoute, *, now: Millis) -> bool:
        """Keeps a route; true if it differs from the known one."""
        self._contradicted.discard(route.topic)
        changed = self._routes.get(route.topic) != route
        self._routes[route.topic] = route
        # A broker without a master gets one within a second or two where the cluster has replicas.
        used = UNREACHABLE_MILLIS if route.away else RETRY_MILLIS if route.provisional else REFRESH_MILLIS
        self._due[route.topic] = now + used
        self._answered_at[route.topic] = now
        return changed

    def unanswered(self, topic: str, *, now: Millis) -> None:
        """No name server answered: the known route stays in use for `RETRY_MILLIS`."""
        self._contradicted.discard(topic)
        self._due[topic] = now + RETRY_MILLIS
        self._answered_at.pop(topic, None)

    def unreachable(self, topic: str) -> None:
        """A broker of the route cannot be reached: the route is not fresh any more `UNREACHABLE_MILLIS` after it came.

        Not at once: the name servers may know the old address for a while, and must not be asked without a pause.
        """
        if topic in self._answered_at:
            self._due[topic] = min(self._due.get(topic, 0), self._answered_at[topic] + UNREACHABLE_MILLIS)

    def stale(self, topic: str) -> None:
        """A broker contradicted the route: it is not fresh any more."""
        self._due.pop(topic, None)
        if topic in self._routes:
            self._contradicted.add(topic)

    def expire(self, topic: str) -> None:
        """The route is not fresh any more; it may still be right."""
        self._due.pop(topic, None)

    def is_missing(self, topic: str, *, now: Millis) -> bool:
        """Whether the topic did not exist a moment ago, and was asked for often enough."""
        return topic not in self._routes and now < self._due.get(topic, 0)

    def missing(self, topic: str, *, now: Millis) -> None:
        """A message or a question is refused, because the topic does not exist. The next one asks again."""
        since, count = self._missing.get(topic, (now, 0))
        if now - since >= MISSING_MILLIS:
            since, count = now, 0
        self._missing[topic] = since, count + 1
        self._due[topic] = since if count + 1 < MISSING_QUESTIONS else since + MISSING_MILLIS

    def gone(self, topic: str) -> None:
        """Nothing is known of the topic any more."""
        self._routes.pop(topic, None)
        self._contradicted.discard(topic)
        self._due.pop(topic, None)
        self._answered_at.pop(topic, None)

    def topics(self) -> tuple[str, ...]:
        return tuple(self._routes)
