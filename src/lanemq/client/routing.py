"""Where a topic's queues are, derived from what a name server says.

The rule guarded here: every producer derives the same list of publish queues in the same order, because
`pick_queue` indexes into it. A list that is sorted differently, or that skips a queue others see, sends a key
to two queues. So the derivation is RocketMQ's (MQClientInstance.topicRouteData2TopicPublishInfo), and pure.
Asking name servers is `route_lookup`'s matter.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

from lanemq.model.errors import ConnectFailed, RemoteProtocolError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import Address, parse_address
from lanemq.wire.route_bodies import PERM_READ, PERM_WRITE, BrokerData, QueueData, TopicRouteData

MASTER = 0
"""The broker id that takes writes and locks (RocketMQ's MixAll.MASTER_ID)."""

DEFAULT_TOPIC_QUEUES = 4
"""How many queues a topic gets that a send creates (RocketMQ's DefaultMQProducer)."""

BROKER_PORT = 10911
"""RocketMQ's broker port, where an address names none."""

REFRESH_MILLIS = 30_000
"""How long a route is trusted (RocketMQ's ClientConfig.pollNameServerInterval)."""

RETRY_MILLIS = 3_000
"""How long a known route is used on after a refresh failed, before the next attempt."""


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """One broker name: a master and perhaps copies of it."""

    name: str
    addresses: Mapping[int, Address]
    lane: bool
    """It is a LaneMQ broker: it drops repeats by stamp, and its leases carry epochs."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Everything a client needs to know about where one topic lives."""

    topic: str
    publish: tuple[MessageQueue, ...]
    """Queues that take messages, in the order that the hash selector indexes."""
    subscribe: tuple[MessageQueue, ...]
    """Queues that can be read, sorted."""
    brokers: Mapping[str, BrokerRoute]
    ordered: bool = False
    """The topic has an order configuration: every message needs a key."""
    provisional: bool = False
    """The topic does not exist yet; the broker creates it with the first message."""

    def master(self, broker: str) -> Address:
        """Where the broker's master listens, or `ConnectFailed` while it has none."""
        known = self.brokers.get(broker)
        address = known.addresses.get(MASTER) if known is not None else None
        if address is None:
            raise ConnectFailed(f"broker {broker!r} of topic {self.topic!r} has no master at the moment")
        return address

    def is_lane(self, broker: str) -> bool:
        known = self.brokers.get(broker)
        return known is not None and known.lane


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """What the name server's answer means for one topic."""
    brokers = {each.broker_name: _broker_route(each) for each in data.broker_datas}
    queue_datas = sorted(data.queue_datas, key=lambda each: each.broker_name)
    if data.order_topic_conf:
        publish = _queues_of_order_conf(topic, data.order_topic_conf)
    else:
        publish = tuple(_write_queues(topic, queue_datas, brokers))
    return TopicRoute(
        topic,
        publish,
        tuple(_read_queues(topic, queue_datas)),
        brokers,
        ordered=bool(data.order_topic_conf),
    )


def provisional_route(topic: str, default: TopicRouteData) -> TopicRoute:
    """The route of a topic that its first message will create, from the route of RocketMQ's TBW102.

    Not for ordered sends: the topic appears only where a message landed, the list of queues then shrinks,
    and keys move.
    """
    brokers = {each.broker_name: _broker_route(each) for each in default.broker_datas}
    publish = tuple(
        MessageQueue(topic, each.broker_name, number)
        for each in sorted(default.queue_datas, key=lambda each: each.broker_name)
        if each.perm & PERM_WRITE and _has_master(brokers, each.broker_name)
        for number in range(min(DEFAULT_TOPIC_QUEUES, each.read_queue_nums))
    )
    return TopicRoute(topic, publish, (), brokers, provisional=True)


class RouteBook:
    """The routes known so far, and which of them need asking again."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._due: dict[str, int] = {}

    def fresh(self, topic: str, *, now: Millis) -> TopicRoute | None:
        """The route if it may be used without asking."""
        return self._routes.get(topic) if now < self._due.get(topic, 0) else None

    def known(self, topic: str) -> TopicRoute | None:
        """The last route heard of, however old."""
        return self._routes.get(topic)

    def put(self, route: TopicRoute, *, now: Millis) -> bool:
        """Remembers an answer; true if it differs from what was known."""
        changed = self._routes.get(route.topic) != route
        self._routes[route.topic] = route
        self._due[route.topic] = now + (RETRY_MILLIS if route.provisional else REFRESH_MILLIS)
        return changed

    def unanswered(self, topic: str, *, now: Millis) -> None:
        """No name server answered: what is known stays in use for a moment."""
        self._due[topic] = now + RETRY_MILLIS

    def stale(self, topic: str) -> None:
        """A broker contradicted the route; the next use asks again."""
        self._due.pop(topic, None)

    def gone(self, topic: str) -> None:
        """The name server says that there is no such topic."""
        self._routes.pop(topic, None)
        self._due.pop(topic, None)

    def topics(self) -> tuple[str, ...]:
        return tuple(self._routes)


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


def _queues_of_order_conf(topic: str, conf: str) -> tuple[MessageQueue, ...]:
    """`brokerA:4;brokerB:4`, in text order, whether or not the brokers are up: keys must not move."""
    queues: list[MessageQueue] = []
    for part in conf.split(";"):
        broker, _, count = part.strip().rpartition(":")
        if not broker or not count.isdigit():
            raise RemoteProtocolError(
                f"topic {topic!r} has an order configuration that cannot be read: {conf!r}; "
                f"it should look like broker-a:4;broker-b:4"
            )
        queues.extend(MessageQueue(topic, broker, number) for number in range(int(count)))
    return tuple(queues)
