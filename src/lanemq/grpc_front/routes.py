"""QueryRoute and QueryAssignment: where clients send and receive, which is always this front.

It is at the address that they already use, or at the advertised one if several fronts share that.
"""

from collections.abc import Iterable
from ipaddress import ip_address

from lanemq.client.routing import AsyncRoutes
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock
from lanemq.grpc_front.answers import OK
from lanemq.net.address import Address
from lanemq.net.calling.connection import ConnectionPool
from lanemq.net.security import Security
from lanemq.wire.grpc.messages import (
    AddressScheme,
    AssignedAt,
    BrokerAt,
    Endpoints,
    HostPort,
    MessageType,
    QueryAssignmentResponse,
    QueryRouteResponse,
    QueueAt,
    QueueRights,
    Resource,
)

RECEIVE_LOOPS = 4
"""Queues that a push consumer is assigned, at most. They stand for none of the topic's: each is one open receive."""


def endpoints_at(address: Address) -> Endpoints:
    """An address as clients are told of it."""
    try:
        scheme = AddressScheme.IPV4 if ip_address(address.host).version == 4 else AddressScheme.IPV6
    except ValueError:
        scheme = AddressScheme.DOMAIN_NAME
    return Endpoints(scheme, (HostPort(address.host, address.port),))


class Routes:
    """What the broker says about topics, in the form of the protocol."""

    def __init__(
        self, servers: Iterable[Address], security: Security, clock: Clock, advertise: Address | None = None
    ) -> None:
        self._advertised = None if advertise is None else endpoints_at(advertise)
        self._pool = ConnectionPool(security=security, clock=clock)
        self._routes = AsyncRoutes(list(servers), self._pool, clock)

    async def of(self, topic: str) -> TopicRoute:
        """Raises `TopicNotFound`, or `TransportError` if no server answers."""
        return await self._routes.get(topic)

    async def ordered(self, topics: Iterable[str]) -> bool:
        """Whether one of these topics is ordered. Raises as `of` does."""
        return any([(await self.of(topic)).ordered for topic in topics])

    def close(self) -> None:
        self._pool.close()

    async def answer(self, topic: str, at: Endpoints | None) -> QueryRouteResponse:
        """The queues of a topic, each at the address that the client asked by."""
        route, at = await self.of(topic), self._advertised or at
        kind = MessageType.FIFO if route.ordered else MessageType.NORMAL
        queues = [
            QueueAt(
                Resource(name=topic), queue.queue_id, QueueRights.READ_WRITE, BrokerAt(queue.broker, 0, at), (kind,)
            )
            for queue in route.publish or route.subscribe
        ]
        return QueryRouteResponse(OK, queues)

    async def assignments(self, topic: str, at: Endpoints | None) -> QueryAssignmentResponse:
        """As many queues as the client is to have open receives."""
        route, at = await self.of(topic), self._advertised or at
        queues = [
            QueueAt(Resource(name=topic), queue.queue_id, QueueRights.READ, BrokerAt(queue.broker, 0, at))
            for queue in route.subscribe[:RECEIVE_LOOPS]
        ]
        return QueryAssignmentResponse(OK, [AssignedAt(queue) for queue in queues])
