"""The order of a topic on a cluster: what each name server and broker has of it, and what repairs it.

An ordered topic has a layout (`core/sending/layout`) at every name server, and an order flag at every broker. Either
may be missing: a name server was away when the topic was created, or the topic was made without order. No sockets here;
the functions yield requests as those of `client.topics` do.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from lanemq.client.topics import (
    MASTER,
    Steps,
    checked,
    layout_request,
    put_layout,
    read_masters,
    read_replicas,
    read_route,
    route_request,
    setting_in,
)
from lanemq.core.sending.layout import layout_text, parse_layout
from lanemq.model.errors import BrokerRefused, InvalidOption, TransportError, UsageError
from lanemq.net.address import Address
from lanemq.wire.admin_headers import CreateTopicHeader, TopicHeader
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import PERM_WRITE, TopicConfigBody


@dataclass(frozen=True, slots=True)
class NameServerOrder:
    """What one name server has of a topic's order."""

    server: str
    reached: bool
    layout: str = ""
    """Empty if it has none."""
    in_routes: bool = False
    """Whether it puts layouts into routes, where RocketMQ's own producers look for them (`orderMessageEnable`)."""


@dataclass(frozen=True, slots=True)
class BrokerOrder:
    """What one broker has of a topic's order."""

    broker: str
    up: bool
    queues: int = 0
    """Queues that take messages; 0 while it is away."""
    flag: bool | None = None
    """The order flag; None if the broker is away, or too old to be asked."""
    replicas_without: tuple[str, ...] = ()
    """Addresses of its replicas that answer and do not have the topic. A replica copies topics from its master every
    10 s; one that becomes the master before that refuses every message of the topic."""


@dataclass(frozen=True, slots=True)
class OrderReport:
    """The order of a topic, as all name servers and brokers have it."""

    topic: str
    servers: tuple[NameServerOrder, ...]
    brokers: tuple[BrokerOrder, ...]
    on_lane_broker: bool = False
    """Whether it is on a LaneMQ broker, which keeps the layout itself: nothing can be missing or different."""

    @property
    def layouts(self) -> tuple[str, ...]:
        """The different layouts that name servers have. One is as it should be, none means that it is not ordered."""
        return tuple(sorted({each.layout for each in self.servers if each.layout}))

    @property
    def away(self) -> tuple[str, ...]:
        """Brokers that have no master now. How many queues they have is not known."""
        return tuple(each.broker for each in self.brokers if not each.up)

    @property
    def in_use(self) -> str:
        """The queues over which producers choose now, as a layout: the one that is set, or what the brokers have."""
        if self.layouts:
            return " or ".join(self.layouts)
        return layout_text({each.broker: each.queues for each in self.brokers if each.queues})

    @property
    def in_all_routes(self) -> bool:
        """Whether RocketMQ's own producers get the layout too, whichever name server they ask."""
        return all(each.in_routes for each in self.servers)

    @property
    def replicas_without(self) -> tuple[str, ...]:
        """Replicas that answer and do not have the topic yet."""
        return tuple(replica for each in self.brokers for replica in each.replicas_without)

    @property
    def problems(self) -> tuple[str, ...]:
        """What a person should know, one sentence each."""
        return (*self._problems_of_servers(), *self._problems_of_brokers())

    def _problems_of_servers(self) -> Iterable[str]:
        yield from (f"name server {each.server} was not reached" for each in self.servers if not each.reached)
        if not self.layouts:
            yield "no name server has a layout: keys move when a broker is away"
            return
        if len(self.layouts) > 1:
            yield "name servers have different layouts: producers send a key to different queues"
        for each in self.servers:
            if each.reached and not each.layout:
                yield f"name server {each.server} has no layout"
        for layout in self.layouts:
            if parse_layout(self.topic, layout) is None:
                yield f"the layout {layout!r} cannot be read; it should look like broker-a:4;broker-b:4"
            elif layout != layout_text(counts_of(layout)):
                yield f"the layout {layout} is not sorted by name: RocketMQ's producers sort, unless they are given it"

    def _problems_of_brokers(self) -> Iterable[str]:
        laid_out = counts_of(self.layouts[0]) if len(self.layouts) == 1 else {}
        for each in self.brokers:
            wanted = laid_out.get(each.broker)
            if not each.up:
                yield f"broker {each.broker} is away: messages of its keys wait for it"
            elif each.flag is False and laid_out:
                yield f"broker {each.broker} has the topic without its order flag"
            for replica in each.replicas_without:
                yield f"replica {replica} of {each.broker} does not have the topic yet: it copies topics every 10 s"
            if each.up and laid_out and each.queues != (wanted or 0):
                yield f"broker {each.broker} has {each.queues} queues, and the layout gives it {wanted or 'none'}"


@dataclass(frozen=True, slots=True)
class OrderRepair:
    """What `repair` would do."""

    layout: str
    servers: tuple[str, ...]
    """Name servers that get the layout."""
    flags: tuple[str, ...]
    """Brokers that get the order flag."""

    @property
    def is_needed(self) -> bool:
        return bool(self.servers or self.flags)


def read_order(topic: str, servers: Sequence[Address]) -> Steps[OrderReport]:
    """Asks every name server and every broker."""
    seen = []
    for server in servers:
        seen.append((yield from _order_at(topic, server)))
    cluster = yield None, Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0)
    masters, replicas = read_masters(cluster), read_replicas(cluster)
    route = read_route((yield None, route_request(topic)))
    queues = {each.broker_name: each for each in route.queue_datas} if route is not None else {}
    up = (
        {each.broker_name for each in route.broker_datas if MASTER in each.broker_addrs} if route is not None else set()
    )
    names = {*queues, *(broker for each in seen for broker in counts_of(each.layout))}
    brokers = []
    for name in sorted(names):
        if name not in up or name not in masters:
            brokers.append(BrokerOrder(name, up=False))
            continue
        data = queues[name]
        flag = yield from _flag_at(topic, masters[name][0])
        without = yield from _replicas_without(topic, replicas.get(name, ()))
        brokers.append(BrokerOrder(name, True, data.write_queue_nums if data.perm & PERM_WRITE else 0, flag, without))
    return OrderReport(topic, tuple(seen), tuple(brokers), any(is_lanemq for _, is_lanemq in masters.values()))


def _order_at(topic: str, server: Address) -> Steps[NameServerOrder]:
    try:
        layout = setting_in((yield server, layout_request(topic)))
        reply = yield server, Command(RequestCode.GET_NAMESRV_CONFIG, 0)
    except TransportError:
        return NameServerOrder(str(server), reached=False)
    if reply.code != ResponseCode.SUCCESS:  # a LaneMQ broker, which has no such settings
        reply = yield server, route_request(topic)
        route = read_route(reply)
        return NameServerOrder(str(server), True, layout, in_routes=route is not None and bool(route.order_topic_conf))
    lines = (line.partition("=") for line in reply.body.decode("utf-8", "replace").splitlines())
    settings = {name.strip(): value.strip() for name, _, value in lines}
    return NameServerOrder(str(server), True, layout, in_routes=settings.get("orderMessageEnable") == "true")


def _replicas_without(topic: str, replicas: Iterable[Address]) -> Steps[tuple[str, ...]]:
    without = []
    for replica in replicas:
        request = Command(RequestCode.GET_TOPIC_CONFIG, 0, ext=TopicHeader(topic=topic).to_ext())
        try:
            reply = yield replica, request
        except TransportError:
            continue
        if reply.code == ResponseCode.TOPIC_NOT_EXIST:
            without.append(str(replica))
    return tuple(without)


def _flag_at(topic: str, master: Address) -> Steps[bool | None]:
    config = yield from _config_at(topic, master)
    return config.order if config is not None else None


def _config_at(topic: str, master: Address) -> Steps[TopicConfigBody | None]:
    header = TopicHeader(topic=topic)
    try:
        reply = checked((yield master, Command(RequestCode.GET_TOPIC_CONFIG, 0, ext=header.to_ext())))
    except (TransportError, BrokerRefused):  # RocketMQ 4 does not know the request
        return None
    return TopicConfigBody.decode(reply.body)


def counts_of(layout: str) -> Mapping[str, int]:
    """The number of queues by broker; empty if the layout cannot be read."""
    counts: dict[str, int] = {}
    for queue in parse_layout("", layout) or ():
        counts[queue.broker] = counts.get(queue.broker, 0) + 1
    return counts


def plan_repair(order: OrderReport, layout: str | None = None) -> OrderRepair:
    """What repairs the order: the layout at every name server, the order flag at every broker.

    `layout` is needed if name servers have different ones. Without any, it becomes what the brokers have now. If one of
    them is away, that is refused (`UsageError`): its queues would be left out, and its keys would move.
    """
    if layout is not None and parse_layout(order.topic, layout) is None:
        raise InvalidOption(f"the layout {layout!r} cannot be read: write broker-a:4;broker-b:4")
    if layout is None and len(order.layouts) > 1:
        raise UsageError(
            f"the name servers have different layouts of topic {order.topic!r} ({', '.join(order.layouts)}): choose one"
        )
    if layout is None and not order.layouts and order.away:
        raise UsageError(
            f"topic {order.topic!r} has no layout yet, and broker {', '.join(order.away)} is away: a layout of the "
            f"others would move its keys to them. Wait until it is back, or name the whole layout"
        )
    if layout is None:
        layout = order.in_use
    if not layout:
        raise UsageError(f"topic {order.topic!r} has no queue that takes messages: start its brokers first")
    return OrderRepair(
        layout,
        tuple(each.server for each in order.servers if each.layout != layout),
        tuple(each.broker for each in order.brokers if each.flag is False),
    )


def repair(topic: str, plan: OrderRepair, servers: Sequence[Address]) -> Steps[tuple[Address, ...]]:
    """Carries out a plan; returns the name servers that were not reached."""
    masters = read_masters((yield None, Command(RequestCode.GET_BROKER_CLUSTER_INFO, 0)))
    for name in plan.flags:
        if name not in masters:
            continue
        config = yield from _config_at(topic, masters[name][0])
        if config is None:
            continue
        header = CreateTopicHeader(
            topic=topic,
            read_queue_nums=config.read_queue_nums,
            write_queue_nums=config.write_queue_nums,
            perm=config.perm,
            topic_sys_flag=config.topic_sys_flag,
            order=True,
        )
        checked((yield masters[name][0], Command(RequestCode.UPDATE_AND_CREATE_TOPIC, 0, ext=header.to_ext())))
    if not plan.servers:
        return ()
    wanted = [server for server in servers if str(server) in plan.servers]
    return (yield from put_layout(topic, plan.layout, wanted))
