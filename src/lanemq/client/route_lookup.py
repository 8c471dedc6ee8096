"""Asking name servers for routes: on an event loop (`AsyncRoutes`) and without one (`BlockingRoutes`).

Several name servers hold the same answers, so they are tried in turn, beginning with the one that answered
last. A route that cannot be refreshed stays in use: brokers go on working while every name server is down.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Sequence

from lanemq.client.routing import RouteBook, TopicRoute, provisional_route, topic_route
from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import ConnectFailed, LaneError, TlsFailed, TopicNotFound, TransportError
from lanemq.model.names import DEFAULT_TOPIC
from lanemq.net.address import Address
from lanemq.net.blocking import BlockingConnection
from lanemq.net.pool import ConnectionPool
from lanemq.net.security import OPEN, Security
from lanemq.wire.codes import RequestCode, ResponseCode, error_for
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import TopicRouteData

log = logging.getLogger(__name__)

ASK_SECONDS = 3.0
"""RocketMQ's time-out for name servers (ClientConfig.mqClientApiTimeout)."""


class NameServers:
    """The name servers' addresses, the one that answered last first."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)

    def in_turn(self) -> tuple[Address, ...]:
        return tuple(self._addresses)

    def answered(self, address: Address) -> None:
        at = self._addresses.index(address)
        self._addresses = self._addresses[at:] + self._addresses[:at]

    def none_answered(self, failures: Sequence[LaneError]) -> ConnectFailed:
        tried = ", ".join(map(str, self._addresses))
        kind = TlsFailed if isinstance(failures[-1], TlsFailed) else ConnectFailed
        return kind(f"no name server answered (tried {tried}): {failures[-1]}")


def route_request(topic: str) -> Command:
    """The question for one topic's route."""
    ext = {"topic": topic, "acceptStandardJsonOnly": "true"}
    return Command(RequestCode.GET_ROUTEINFO_BY_TOPIC, 0, ext=ext)


def read_route(reply: Command) -> TopicRouteData | None:
    """The answer; None when the name server does not know the topic, an error for any other refusal."""
    if reply.code == ResponseCode.SUCCESS:
        return TopicRouteData.decode(reply.body)
    if reply.code == ResponseCode.TOPIC_NOT_EXIST:
        return None
    raise error_for(reply.code, reply.remark)


def no_such_topic(topic: str) -> TopicNotFound:
    return TopicNotFound(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic {topic!r} does not exist; create it with: lanemq topic create {topic} --ordered",
    )


class AsyncRoutes:
    """Routes on an event loop; two askers for one topic wait for the same answer."""

    def __init__(self, servers: Sequence[Address], pool: ConnectionPool, clock: Clock | None = None) -> None:
        self._servers = NameServers(servers)
        self._pool = pool
        self._clock = clock or SystemClock()
        self._book = RouteBook()
        self._locks: dict[str, asyncio.Lock] = {}

    def cached(self, topic: str) -> TopicRoute | None:
        """The route if it needs no asking."""
        return self._book.fresh(topic, now=self._clock.now())

    def known(self, topic: str) -> TopicRoute | None:
        """The last route heard of, however old."""
        return self._book.known(topic)

    async def get(self, topic: str, *, provisional: bool = False) -> TopicRoute:
        """The route, `TopicNotFound`, or with `provisional` what the topic's first message would create."""
        async with self._locks.setdefault(topic, asyncio.Lock()):
            route = self.cached(topic)
            if route is not None and (provisional or not route.provisional):
                return route
            try:
                route = await self._ask(topic, provisional)
            except TransportError as error:
                return _keep_using(self._book, self._clock, topic, error)
            return _learn(self._book, self._clock, topic, route)

    def stale(self, topic: str) -> None:
        """A broker contradicted the route: the next `get` asks again."""
        self._book.stale(topic)

    def topics(self) -> tuple[str, ...]:
        return self._book.topics()

    async def ask(self, command: Command) -> Command:
        """Any other question for a name server; the answer of the first that gives one."""
        failures: list[LaneError] = []
        for address in self._servers.in_turn():
            try:
                connection = await self._pool.get(address)
                reply = await connection.request(command, ASK_SECONDS)
            except TransportError as error:
                failures.append(error)
                continue
            self._servers.answered(address)
            return reply
        raise self._servers.none_answered(failures)

    async def _ask(self, topic: str, provisional: bool) -> TopicRoute | None:
        data = read_route(await self.ask(route_request(topic)))
        if data is not None:
            return topic_route(topic, data)
        default = read_route(await self.ask(route_request(DEFAULT_TOPIC))) if provisional else None
        return provisional_route(topic, default) if default is not None else None


class BlockingRoutes:
    """Routes without an event loop, for any number of threads; one of them asks, the others wait."""

    def __init__(self, servers: Sequence[Address], clock: Clock | None = None, *, security: Security = OPEN) -> None:
        self._servers = NameServers(servers)
        self._security = security
        self._clock = clock or SystemClock()
        self._book = RouteBook()
        self._asking = threading.Lock()
        self._connections: dict[Address, BlockingConnection] = {}
        self._closed = False

    def cached(self, topic: str) -> TopicRoute | None:
        """The route if it needs no asking."""
        return self._book.fresh(topic, now=self._clock.now())

    def known(self, topic: str) -> TopicRoute | None:
        """The last route heard of, however old."""
        return self._book.known(topic)

    def get(self, topic: str, *, provisional: bool = False) -> TopicRoute:
        """The route, `TopicNotFound`, or with `provisional` what the topic's first message would create."""
        with self._asking:
            route = self.cached(topic)
            if route is not None and (provisional or not route.provisional):
                return route
            try:
                route = self._ask(topic, provisional)
            except TransportError as error:
                return _keep_using(self._book, self._clock, topic, error)
            return _learn(self._book, self._clock, topic, route)

    def stale(self, topic: str) -> None:
        """A broker contradicted the route: the next `get` asks again."""
        self._book.stale(topic)

    def topics(self) -> tuple[str, ...]:
        return self._book.topics()

    def ask(self, command: Command) -> Command:
        """Any other question for a name server; the answer of the first that gives one."""
        with self._asking:
            return self._ask_in_turn(command)

    def close(self) -> None:
        """A question still under way is answered, and its connection closed."""
        with self._asking:
            self._closed = True
            for connection in self._connections.values():
                connection.close()
            self._connections.clear()

    def _ask(self, topic: str, provisional: bool) -> TopicRoute | None:
        data = read_route(self._ask_in_turn(route_request(topic)))
        if data is not None:
            return topic_route(topic, data)
        default = read_route(self._ask_in_turn(route_request(DEFAULT_TOPIC))) if provisional else None
        return provisional_route(topic, default) if default is not None else None

    def _ask_in_turn(self, command: Command) -> Command:
        failures: list[LaneError] = []
        for address in self._servers.in_turn():
            try:
                reply = self._ask_one(address, command)
            except TransportError as error:
                failures.append(error)
                continue
            self._servers.answered(address)
            return reply
        raise self._servers.none_answered(failures)

    def _ask_one(self, address: Address, command: Command) -> Command:
        """Over the kept connection; the server may have closed it for being idle, so then over a new one."""
        kept = self._connections.pop(address, None)
        if kept is not None:
            with contextlib.suppress(TransportError):
                reply = kept.request(command, ASK_SECONDS)
                self._connections[address] = kept
                return reply
        connection = BlockingConnection(address, security=self._security)
        try:
            reply = connection.request(command, ASK_SECONDS)
        except BaseException:
            connection.close()
            raise
        if self._closed:
            connection.close()
        else:
            self._connections[address] = connection
        return reply


def _learn(book: RouteBook, clock: Clock, topic: str, route: TopicRoute | None) -> TopicRoute:
    if route is None:
        book.gone(topic)
        raise no_such_topic(topic)
    before = book.known(topic)
    if book.put(route, now=clock.now()) and before is not None and before.publish != route.publish:
        log.warning(
            "the queues of topic %s changed from %d to %d: keys may have moved to other queues",
            topic,
            len(before.publish),
            len(route.publish),
        )
    return route


def _keep_using(book: RouteBook, clock: Clock, topic: str, error: TransportError) -> TopicRoute:
    route = book.known(topic)
    if route is None:
        raise error
    log.warning("route of topic %s cannot be refreshed, using the known one: %s", topic, error)
    book.unanswered(topic, now=clock.now())
    return route
