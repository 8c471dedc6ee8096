"""Blocking requests of administration to name servers and brokers."""

from collections.abc import Iterator, Mapping
from typing import Self, TypeAlias, TypeVar, Unpack

from lanemq.client.codec import codec_named
from lanemq.client.coordination import EVERY_GROUP, coordinators, named_coordinators
from lanemq.client.message import Message, MessageSource
from lanemq.client.routing import BlockingRoutes
from lanemq.client.security import SecuritySettings, security_of
from lanemq.client.topic_route import TopicRoute
from lanemq.client.topics import Steps, checked, read_masters, read_replicas, run
from lanemq.clock import Clock, SystemClock
from lanemq.forking import tell_child
from lanemq.model.checks import seconds
from lanemq.model.errors import TransportError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, Seconds
from lanemq.net.address import Address, Servers, parse_address, parse_addresses
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.net.security import OPEN, Security
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import Header, NotLeaderHeader
from lanemq.wire.lane_bodies import LeaderAnswer
from lanemq.wire.record import RecordView, record_starts
from lanemq.wire.route_bodies import SubscriptionGroupTable

T = TypeVar("T")

Masters: TypeAlias = Mapping[str, tuple[Address, bool]]
"""By broker name, the address of its master, and whether it is a LaneMQ broker."""

MAX_HOPS = 3
"""From one coordinator to another: more often they do not agree."""
COORDINATOR_MS = 5_000
"""How long the answer to who coordinates which group is used."""


class AdminClient:
    """What blocking administration shares. It connects with the first request; `close` ends its connections."""

    def __init__(
        self,
        servers: Servers,
        *,
        timeout: Seconds = 5.0,
        clock: Clock | None = None,
        coordinator: str | None = None,
        **protection: Unpack[SecuritySettings],
    ) -> None:
        """`coordinator`: its address, or several joined by `;`, in place of the one that the name servers have."""
        named = named_coordinators(coordinator)
        self._calls = AdminCalls(
            servers, timeout=timeout, clock=clock, security=security_of(**protection), coordinators=named
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._calls.close()


class AdminCalls:
    """Connections to name servers and brokers. Not thread-safe."""

    def __init__(
        self,
        servers: Servers,
        *,
        timeout: Seconds = 5.0,
        clock: Clock | None = None,
        security: Security = OPEN,
        coordinators: tuple[Address, ...] = (),
    ) -> None:
        self.clock = clock or SystemClock()
        self.security = security
        self.routes = BlockingRoutes(parse_addresses(servers), self.clock, security=security)
        self.skipped: frozenset[str] = frozenset()
        """Brokers that do not answer at the moment. Neither `masters` nor descriptions of topics include them."""
        self._timeout = seconds("timeout", timeout)
        self._links: dict[Address, BlockingConnection] = {}
        self._named = coordinators
        self._coordinators: tuple[Millis, dict[str, Address]] | None = None
        """When it was asked who coordinates which group, and the answer."""
        self._leader: tuple[Millis, LeaderAnswer | None] | None = None
        tell_child(self)

    def forked(self) -> None:
        """In a child process: leaves the connections to the parent; new ones are opened on demand."""
        for link in self._links.values():
            link.drop()
        self._links = {}

    def close(self) -> None:
        self.routes.close()
        for link in self._links.values():
            link.close()
        self._links.clear()

    def masters(self) -> dict[str, tuple[Address, bool]]:
        """Every broker name with its master's address, and whether it is a LaneMQ broker."""
        masters = read_masters(self.routes.ask(_command(RequestCode.GET_BROKER_CLUSTER_INFO, None)))
        return {name: each for name, each in masters.items() if name not in self.skipped}

    def coordinator(self) -> Address | None:
        """The coordinator of an Apache cluster; None if it has none."""
        return self._all_coordinators().get(EVERY_GROUP)

    def coordinator_of(self, group: str) -> Address | None:
        """The coordinator of a group; None if its brokers coordinate it."""
        return self._all_coordinators().get(group)

    def leader(self, coordinator: Address) -> LeaderAnswer | None:
        """What the coordinator says of its term and its state; None if it does not. Asked again after five seconds."""
        now = self.clock.now()
        if self._leader is None or now - self._leader[0] > COORDINATOR_MS:
            reply = self.request(coordinator, Command(RequestCode.LANE_LEADER, 0))
            self._leader = now, LeaderAnswer.decode(reply.body) if reply.code == ResponseCode.SUCCESS else None
        return self._leader[1]

    def keeper(self, group: str, broker: str, masters: Masters | None = None) -> tuple[Address | None, bool]:
        """Who keeps a group's leases, offsets and lanes in the queues of a broker, and whether it is of LaneMQ.

        `masters` are those that the caller has asked for already.
        """
        if (coordinator := self.coordinator_of(group)) is not None:
            return coordinator, True
        return (self.masters() if masters is None else masters).get(broker, (None, False))

    def _all_coordinators(self) -> dict[str, Address]:
        """By group, with the coordinator of the cluster under `EVERY_GROUP`. Asked again after five seconds."""
        now = self.clock.now()
        if self._coordinators is None or now - self._coordinators[0] > COORDINATOR_MS:
            found = self._groups_of_named() if self._named else self._entries()
            self._coordinators = now, found
        return self._coordinators[1]

    def _entries(self) -> dict[str, Address]:
        return {group: leader.address for group, leader in self.run(coordinators(self.routes.servers)).items()}

    def _groups_of_named(self) -> dict[str, Address]:
        """What the coordinator that leads says that it coordinates, in place of the name servers."""
        command = Command(RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG, 0)
        for number, named in enumerate(self._named, 1):
            try:
                leader, reply = self._followed(named, command)
            except TransportError:
                if number == len(self._named):
                    raise
                continue
            groups = SubscriptionGroupTable.decode(checked(reply).body).subscription_group_table
            return dict.fromkeys((EVERY_GROUP, *groups), leader)
        return {}

    def _followed(self, address: Address, command: Command) -> tuple[Address, Command]:
        """The answer to a request, and who gave it: a coordinator that does not lead says who does."""
        for _ in range(MAX_HOPS):
            reply = self._asked(address, command)
            if reply.code != ResponseCode.NOT_LEADER:
                return address, reply
            self._coordinators = None
            if not (leader := NotLeaderHeader.from_ext(reply.ext).lane_leader):
                break
            address = parse_address(leader)
        return address, reply

    def replicas(self) -> dict[str, tuple[Address, ...]]:
        """The addresses of each broker's replicas, without its master."""
        return read_replicas(self.routes.ask(_command(RequestCode.GET_BROKER_CLUSTER_INFO, None)))

    def masters_of(self, topic: str) -> Iterator[tuple[str, Address]]:
        """The brokers of a topic with their masters' addresses, from a fresh route."""
        route = self.fresh_route(topic)
        for name in sorted(route.broker_names):
            yield name, route.master(name)

    def fresh_route(self, topic: str) -> TopicRoute:
        """The topic's route as it is now."""
        self.routes.forget(topic)
        return self.routes.get(topic)

    def ask_name_server(self, code: RequestCode, header: Header | None = None) -> Command:
        return checked(self.routes.ask(_command(code, header)))

    def ask(
        self,
        address: Address,
        code: RequestCode,
        header: Header | None = None,
        *,
        lane: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Command:
        """Returns the broker's answer; raises if the broker refuses. Only LaneMQ brokers read the `lane` fields."""
        ext = {**_command(code, header).ext, **(lane or {})}
        return checked(self.request(address, Command(code, 0, ext=ext, body=body)))

    def run(self, steps: Steps[T]) -> T:
        """Sends requests about a topic (`client.topics`) one after the other."""
        return run(steps, lambda command, to: self.routes.ask(command) if to is None else self.request(to, command))

    def request(self, address: Address, command: Command) -> Command:
        """Returns the answer whatever its code."""
        return self._followed(address, command)[1]

    def _asked(self, address: Address, command: Command) -> Command:
        """Sends a request. If a kept connection turns out to be closed, opens a new one."""
        kept = self._links.pop(address, None)
        if kept is not None:
            try:
                reply = kept.request(command, self._timeout)
            except TransportError:
                kept.close()
            else:
                self._links[address] = kept
                return reply
        link = BlockingConnection(address, security=self.security)
        reply = link.request(command, self._timeout)
        self._links[address] = link
        return reply


def _command(code: RequestCode, header: Header | None) -> Command:
    return Command(code, 0, ext=header.to_ext() if header is not None else {})


def found_messages(body: bytes, broker: str) -> list[Message]:
    """The messages of an answer that may hold messages of several queues of one broker."""
    messages: list[Message] = []
    for start in record_starts(body):
        record = RecordView(body, start)
        queue = MessageQueue(record.topic, broker, record.queue_id)
        messages.append(Message(MessageSource(queue, codec_named("json"), Epoch(0)), body, start))
    return messages
