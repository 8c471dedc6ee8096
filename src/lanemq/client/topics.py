"""Requests about topics: asking for a route and a layout, creating a topic, making sure that it exists.

No sockets: a function yields requests and gets their replies, so that blocking and asyncio clients share it. A request
without an address goes to any name server. A request that gets no reply raises its `TransportError` at the `yield`.

Invariant: a topic that `ensure` finds is what the program declared, or the program learns the difference. An ordered
topic that turns out to be unordered would take keyed messages, and consumers would handle them in any order.

An ordered topic has a layout (`core/sending/layout`) at every name server. A LaneMQ broker puts it into the route.
Apache name servers do so only with `orderMessageEnable=true`, and forget brokers that are away, so it is asked for by
itself (docs/decisions/0020).
"""

from collections.abc import Awaitable, Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias, TypeVar

from msgspec.structs import replace

from lanemq.core.sending.layout import layout_text, parse_layout
from lanemq.model.checks import check_whole
from lanemq.model.errors import InvalidOption, TransportError, UsageError
from lanemq.model.names import check_topic
from lanemq.model.queue import MessageQueue
from lanemq.net.address import Address, parse_address
from lanemq.wire.admin_headers import CreateTopicHeader, DeleteTopicHeader, KvHeader
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
        check_whole("queues", self.count, 1)
        if self.ordered not in (True, False, "global"):
            raise InvalidOption(f"ordered={self.ordered!r} must be True (by key), 'global' or False")
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
            try:
                reply = ask(command, address)
            except TransportError as error:
                address, command = steps.throw(error)
            else:
                address, command = steps.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


async def run_async(steps: Steps[T], ask: Callable[[Command, Address | None], Awaitable[Command]]) -> T:
    """As `run`, on an event loop."""
    try:
        address, command = next(steps)
        while True:
            try:
                reply = await ask(command, address)
            except TransportError as error:
                address, command = steps.throw(error)
            else:
                address, command = steps.send(reply)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]


def look_up(topic: str, servers: Sequence[Address], known: Iterable[MessageQueue] = ()) -> Steps[TopicRouteData | None]:
    """The route of a topic with its layout; None if the topic does not exist.

    `known` are queues that this client already uses for keys. If all brokers of a topic are away, name servers say that
    it does not exist; the route then has no queues, and messages wait for the brokers.
    """
    route = read_route((yield None, route_request(topic)))
    if route is not None and (route.order_topic_conf or any(each.lane_features for each in route.broker_datas)):
        return route
    brokers = {queue.broker for queue in known}
    # A name server that was away when the layout was set does not know it; one that knows it is enough.
    layout = yield from read_layout(topic, () if brokers else servers)
    if route is not None:
        return replace(route, order_topic_conf=layout)
    brokers |= {queue.broker for queue in parse_layout(topic, layout) or ()}
    if not brokers:
        return None
    reply = checked((yield None, Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0)))
    datas = [each for name, each in ClusterInfo.decode(reply.body).broker_addr_table.items() if name in brokers]
    if sum(MASTER in each.broker_addrs for each in datas) == len(brokers):
        return None  # all brokers are up, and none has the topic
    return TopicRouteData(broker_datas=datas, order_topic_conf=layout)


def plain_route(topic: str) -> Steps[TopicRouteData | None]:
    """The route of a topic as any name server gives it; None if that does not know the topic."""
    return read_route((yield None, route_request(topic)))


def read_layout(topic: str, servers: Iterable[Address] = ()) -> Steps[str]:
    """The topic's layout from any name server, or if that has none, from the first of `servers` that has one."""
    return (yield from read_setting(ORDER_NAMESPACE, topic, servers))


def read_setting(namespace: str, key: str, servers: Iterable[Address] = ()) -> Steps[str]:
    """A value that name servers keep: from any of them, or if that has none, from one of `servers` that has it."""
    request = Command(RequestCode.GET_KV_CONFIG, 0, ext=KvHeader(namespace=namespace, key=key).to_ext())
    value = setting_in((yield None, request))
    for server in servers:
        if value:
            break
        try:
            value = setting_in((yield server, request))
        except TransportError:
            continue
    return value


def ensure(topic: NewTopic, servers: Sequence[Address]) -> Steps[bool]:
    """Creates the topic if it does not exist; true if so. Raises `UsageError` if it exists with other settings."""
    route = yield from look_up(topic.name, servers)
    if route is None:
        masters = yield from _masters_for(topic)
        # The order first: a program that sees the topic between two requests must not find it unordered.
        if topic.ordered:
            yield from put_layout(topic.name, _layout_of(topic, masters), servers)
        yield from _create_on(topic, masters)
        return True
    _compare(topic, route)
    return False


def create(topic: NewTopic, servers: Sequence[Address]) -> Steps[tuple[Address, ...]]:
    """Creates the topic on every broker, or changes it; returns the name servers that its layout did not reach."""
    masters = yield from _masters_for(topic)
    layout = _layout_of(topic, masters) if topic.ordered else ""
    if any(is_lanemq for _, is_lanemq in masters.values()):
        # One request changes topic and layout, and is refused if keys would move. What the topic has can be set again.
        yield from _create_on(topic, masters)
        return (yield from put_layout(topic.name, layout, servers)) if layout else ()
    layout = _unchanged(topic.name, (yield from read_layout(topic.name, servers)), layout)
    # The layout first: a producer that finds the topic on some brokers only would choose over their queues.
    missed = (yield from put_layout(topic.name, layout, servers)) if layout else ()
    yield from _create_on(topic, masters)
    return missed


def put_layout(topic: str, layout: str, servers: Iterable[Address]) -> Steps[tuple[Address, ...]]:
    """Sets the topic's layout at all name servers; returns those that were not reached. One must be."""
    return (yield from put_setting(ORDER_NAMESPACE, topic, layout, servers))


def put_setting(namespace: str, key: str, value: str, servers: Iterable[Address]) -> Steps[tuple[Address, ...]]:
    """Sets a value at all name servers; returns those that were not reached. One must be."""
    header = KvHeader(namespace=namespace, key=key, value=value)
    return (yield from _tell_all(servers, Command(RequestCode.PUT_KV_CONFIG, 0, ext=header.to_ext())))


def delete_setting(namespace: str, key: str, servers: Iterable[Address]) -> Steps[tuple[Address, ...]]:
    """Deletes a value at all name servers; returns those that were not reached. One must be."""
    header = KvHeader(namespace=namespace, key=key)
    return (yield from _tell_all(servers, Command(RequestCode.DELETE_KV_CONFIG, 0, ext=header.to_ext())))


def forget(topic: str, servers: Sequence[Address]) -> Steps[tuple[Address, ...]]:
    """Makes all name servers forget a deleted topic and its layout; returns those that were not reached."""
    route = Command(RequestCode.DELETE_TOPIC_IN_NAMESRV, 0, ext=DeleteTopicHeader(topic=topic).to_ext())
    yield from _tell_all(servers, route)
    return (yield from delete_setting(ORDER_NAMESPACE, topic, servers))


def _tell_all(servers: Iterable[Address], command: Command) -> Steps[tuple[Address, ...]]:
    """Sends one request to all name servers; returns those that were not reached. Raises if none was."""
    missed: list[Address] = []
    failure: TransportError | None = None
    reached = False
    for server in servers:
        try:
            checked((yield server, command))
            reached = True
        except TransportError as error:
            missed.append(server)
            failure = error
    if failure is not None and not reached:
        raise failure
    return tuple(missed)


Masters: TypeAlias = dict[str, tuple[Address, bool]]
"""The address of each broker's master, and whether it is a LaneMQ broker."""


def _masters_for(topic: NewTopic) -> Steps[Masters]:
    cluster = yield None, Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0)
    masters = read_masters(cluster)
    if topic.ordered and (away := sorted(read_replicas(cluster).keys() - masters.keys())):
        raise UsageError(
            f"topic {topic.name!r} is ordered, and broker {', '.join(away)} has no master now: the topic's layout "
            f"would lack its queues. Try again when it is back; nothing was changed"
        )
    if topic.ordered == "global" and len(masters) > 1:
        raise UsageError(f"topic {topic.name!r} cannot be globally ordered on {len(masters)} brokers: order it by key")
    return masters


def _layout_of(topic: NewTopic, masters: Iterable[str]) -> str:
    return layout_text(dict.fromkeys(masters, topic.count))


def _unchanged(topic: str, before: str, wanted: str) -> str:
    """The layout that the topic has, if it has one. Another one would move keys, so it is refused."""
    if before and sorted(before.split(";")) != sorted(wanted.split(";")):
        raise UsageError(
            f"topic {topic!r} has the layout {before}, and {wanted or 'none'} would move keys to other queues; "
            f"nothing was changed. Use another name, or see: lanemq topic order {topic}"
        )
    return before or wanted


def _create_on(topic: NewTopic, masters: Masters) -> Steps[None]:
    count = topic.count
    header = CreateTopicHeader(
        topic=topic.name, read_queue_nums=count, write_queue_nums=count, order=bool(topic.ordered)
    )
    for address, is_lanemq in masters.values():
        ext = header.to_ext()
        if is_lanemq and topic.ordered == "global":
            ext["attributes"] = GLOBAL_ORDER
        checked((yield address, Command(RequestCode.UPDATE_AND_CREATE_TOPIC, 0, ext=ext)))


def _compare(wanted: NewTopic, route: TopicRouteData) -> None:
    counts = {each.write_queue_nums for each in route.queue_datas if each.perm & PERM_WRITE}
    is_ordered = bool(route.order_topic_conf)
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


def layout_request(topic: str) -> Command:
    """The request for one topic's layout."""
    return Command(RequestCode.GET_KV_CONFIG, 0, ext=KvHeader(namespace=ORDER_NAMESPACE, key=topic).to_ext())


def setting_in(reply: Command) -> str:
    """The value in a reply; empty if the name server has none. Raises for any other refusal."""
    if reply.code == ResponseCode.SUCCESS:
        return reply.ext.get("value", "")
    if reply.code in (ResponseCode.QUERY_NOT_FOUND, ResponseCode.REQUEST_CODE_NOT_SUPPORTED):
        return ""
    raise error_for(reply.code, reply.remark)


def read_masters(reply: Command) -> Masters:
    """Every broker name with its master's address, and whether it is a LaneMQ broker."""
    masters: Masters = {}
    for name, data in sorted(ClusterInfo.decode(checked(reply).body).broker_addr_table.items()):
        if MASTER in data.broker_addrs:
            masters[name] = (parse_address(data.broker_addrs[MASTER]), data.lane_features > 0)
    return masters


def read_replicas(reply: Command) -> dict[str, tuple[Address, ...]]:
    """The addresses of each broker's replicas, without its master."""
    table = ClusterInfo.decode(checked(reply).body).broker_addr_table
    return {
        name: tuple(parse_address(at) for number, at in sorted(data.broker_addrs.items()) if number != MASTER)
        for name, data in table.items()
    }


def checked(reply: Command) -> Command:
    """The reply, or the error that its code stands for."""
    if reply.code != ResponseCode.SUCCESS:
        raise error_for(reply.code, reply.remark)
    return reply
