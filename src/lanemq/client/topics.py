"""Requests about topics: asking for a route, creating a topic, making sure that it exists.

No sockets: a function yields requests and gets their replies, so that blocking and asyncio clients share it. A request
without an address goes to any name server.

Invariant: a topic that `ensure` finds is what the program declared, or the program learns the difference. An ordered
topic that turns out to be unordered would take keyed messages, and consumers would handle them in any order.
"""

from collections.abc import Awaitable, Callable, Generator
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.names import check_topic
from lanemq.net.address import Address, parse_address
from lanemq.wire.admin_headers import CreateTopicHeader, KvHeader
from lanemq.wire.codes import RequestCode, ResponseCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.lane_fields import GLOBAL_ORDER
from lanemq.wire.route_bodies import PERM_WRITE, ClusterInfo, TopicRouteData

T = TypeVar("T")

ORDER_NAMESPACE = "ORDER_TOPIC_CONFIG"
"""The namespace in which RocketMQ's name servers keep the order configuration of topics (NamesrvUtil)."""

MASTER = 0
"""The id of the broker that takes writes and locks (RocketMQ's MixAll.MASTER_ID)."""

DEFAULT_QUEUES = 8

Order: TypeAlias = bool | Literal["global"]
"""By key (True), as a whole ("global"), or not at all (False)."""

Steps: TypeAlias = Generator[tuple[Address | None, Command], Command, T]
"""Requests to send one after the other; each needs its reply."""


@dataclass(frozen=True, slots=True)
class NewTopic:
    """A topic that a program declares, to be created if it does not exist."""

    name: str
    queues: int | None = None
    """The number of queues per broker. None: 8, or 1 for a globally ordered topic, and any number if it exists."""
    ordered: Order = True

    def __post_init__(self) -> None:
        check_topic(self.name)
        if self.count < 1:
            raise InvalidOption(f"queues is {self.count}, a topic needs at least 1")
        if self.ordered == "global" and self.count > 1:
            raise InvalidOption(
                f"queues is {self.count}, a globally ordered topic has 1: leave it out, or use ordered=True"
            )

    @property
    def count(self) -> int:
        """The number of queues per broker to ask for. A globally ordered topic has one: queues are not ordered among
        each other."""
        if self.queues is not None:
            return self.queues
        return 1 if self.ordered == "global" else DEFAULT_QUEUES


def run(steps: Steps[T], ask: Callable[[Command, Address | None], Command]) -> T:
    """Sends the requests one after the other; the result of the steps."""
    try:
        address, command = next(steps)
        while True:
            address, command = steps.send(ask(command, address))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_async(steps: Steps[T], ask: Callable[[Command, Address | None], Awaitable[Command]]) -> T:
    """As `run`, on an event loop."""
    try:
        address, command = next(steps)
        while True:
            address, command = steps.send(await ask(command, address))
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def ensure(topic: NewTopic) -> Steps[bool]:
    """Creates the topic if it does not exist; true if so. Raises `UsageError` if it exists with other settings."""
    found = read_route((yield None, route_request(topic.name)))
    if found is None:
        masters = read_masters((yield None, Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0)))
        # The order first: a program that sees the topic between two requests must not find it unordered.
        yield from _declare_order(topic, masters)
        yield from _create_on(topic, masters)
        return True
    _compare(topic, found)
    return False


def create(topic: NewTopic) -> Steps[None]:
    """Creates the topic on every broker, or changes it."""
    masters = read_masters((yield None, Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0)))
    yield from _create_on(topic, masters)
    yield from _declare_order(topic, masters)


def _create_on(topic: NewTopic, masters: dict[str, tuple[Address, bool]]) -> Steps[None]:
    if topic.ordered == "global" and len(masters) > 1:
        raise UsageError(f"topic {topic.name!r} cannot be globally ordered on {len(masters)} brokers: order it by key")
    count = topic.count
    header = CreateTopicHeader(
        topic=topic.name, read_queue_nums=count, write_queue_nums=count, order=bool(topic.ordered)
    )
    for address, is_lane in masters.values():
        ext = header.to_ext()
        if is_lane and topic.ordered == "global":
            ext["attributes"] = GLOBAL_ORDER
        checked((yield address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, 0, ext=ext)))


def _declare_order(topic: NewTopic, masters: dict[str, tuple[Address, bool]]) -> Steps[None]:
    if topic.ordered:
        conf = ";".join(f"{broker}:{topic.count}" for broker in masters)
        kv = KvHeader(namespace=ORDER_NAMESPACE, key=topic.name, value=conf)
        checked((yield None, Command(RequestCode.PUT_KV_CONFIG, 0, ext=kv.to_ext())))


def _compare(wanted: NewTopic, found: TopicRouteData) -> None:
    counts = {each.write_queue_nums for each in found.queue_datas if each.perm & PERM_WRITE}
    is_ordered = bool(found.order_topic_conf)
    same_count = wanted.queues is None or counts <= {wanted.queues}
    if is_ordered == bool(wanted.ordered) and same_count:
        return
    has = f"{'/'.join(map(str, sorted(counts))) or 0} queues and is {'ordered' if is_ordered else 'not ordered'}"
    wants = f"{wanted.count} queues, {'ordered' if wanted.ordered else 'not ordered'}"
    raise UsageError(
        f"topic {wanted.name!r} has {has}, but this program declares it with {wants}: declare what exists, "
        f"or use another name"
    )


# single requests


def route_request(topic: str) -> Command:
    """The request for one topic's route."""
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, 0, ext=ext)


def read_route(reply: Command) -> TopicRouteData | None:
    """The route in a reply; None if the name server does not know the topic. Raises for any other refusal."""
    if reply.code == ResponseCode.SUCCESS:
        return TopicRouteData.decode(reply.body)
    if reply.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    raise error_for(reply.code, reply.remark)


def read_masters(reply: Command) -> dict[str, tuple[Address, bool]]:
    """Every broker name with its master's address, and whether it is a LaneMQ broker."""
    found: dict[str, tuple[Address, bool]] = {}
    for name, data in sorted(ClusterInfo.decode(checked(reply).body).broker_addr_table.items()):
        if MASTER in data.broker_addrs:
            found[name] = (parse_address(data.broker_addrs[MASTER]), data.lane_features > 0)
    return found


def checked(reply: Command) -> Command:
    """The reply, or the error that its code stands for."""
    if reply.code != ResponseCode.SUCCESS:
        raise error_for(reply.code, reply.remark)
    return reply
