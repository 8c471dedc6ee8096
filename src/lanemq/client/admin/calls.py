"""Blocking requests of administration to name servers and brokers."""

from collections.abc import Iterator, Mapping
from typing import Self, TypeVar, Unpack

from lanemq.client.codec import codec_named
from lanemq.client.coordination import coordinator_of, coordinator_of_cluster
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
from lanemq.net.address import Address, Servers, parse_addresses
from lanemq.net.blocking import BlockingConnection
from lanemq.net.security import OPEN, Security
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import Header
from lanemq.wire.record import RecordView, record_starts

T = TypeVar("T")

COORDINATOR_MS = 5_000
"""How long the answer to who coordinates a group is used."""


class AdminClient:
    """What blocking administration shares. It connects with the first request; `close` ends its connections."""

    def __init__(
        self,
        servers: Servers,
        *,
        timeout: Seconds = 5.0,
        clock: Clock | None = None,
        **protection: Unpack[SecuritySettings],
    ) -> None:
        self._calls = AdminCalls(servers, timeout=timeout, clock=clock, security=security_of(**protection))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._calls.close()


class AdminCalls:
    """Connections to name servers and brokers. Not thread-safe."""

    def __init__(
        self, servers: Servers, *, timeout: Seconds = 5.0, clock: Clock | None = None, security: Security = OPEN
    ) -> None:
        self.clock = clock or SystemClock()
        self.security = security
        self.routes = BlockingRoutes(parse_addresses(servers), self.clock, security=security)
        self.skipped: frozenset[str] = frozenset()
        """Brokers that do not answer at the moment. Neither `masters` nor descriptions of topics include them."""
        self._timeout = seconds("timeout", timeout)
        self._links: dict[Address, BlockingConnection] = {}
        self._coordinators: dict[str, tuple[Millis, Address | None]] = {}
        """By group: when the name servers were asked for its coordinator, and what they said."""
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
        entry = self.run(coordinator_of_cluster(self.routes.servers))
        return None if entry is None else entry[1]

    def coordinator_of(self, group: str) -> Address | None:
        """The coordinator of a group; None if its brokers coordinate it. Asked again after five seconds."""
        now, (asked_at, known) = self.clock.now(), self._coordinators.get(group, (None, None))
        if asked_at is None or now - asked_at > COORDINATOR_MS:
            known = self.run(coordinator_of(group, self.routes.servers))
            self._coordinators[group] = now, known
        return known

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
        """Returns the answer whatever its code. If a kept connection turns out to be closed, opens a new one."""
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
