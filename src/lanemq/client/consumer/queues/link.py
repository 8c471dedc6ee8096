"""How a consumer reaches its brokers: connections, routes, requests, and the heartbeat that makes it a member."""

from collections.abc import Callable, Mapping
from typing import NamedTuple, TypeAlias

from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.queues.heartbeat import Heartbeat
from lanemq.client.consumer.turns.subscription import Subscription
from lanemq.client.routing import AsyncRoutes
from lanemq.net.calling.connection import Connection, ConnectionPool
from lanemq.wire.command import Command

OnRequest: TypeAlias = Callable[[Connection, Command], None]
OnLost: TypeAlias = Callable[[Connection], None]


class BrokerLink(NamedTuple):
    """The parts of the link."""

    pool: ConnectionPool
    routes: AsyncRoutes
    calls: ConsumerCalls
    heartbeat: Heartbeat


Connect: TypeAlias = Callable[[ConsumerOptions, str, Mapping[str, Subscription], OnRequest, OnLost], BrokerLink]
"""Makes the link of a consumer, by its options, client id and subscriptions. Simulations use another one."""


def connect(
    options: ConsumerOptions,
    client_id: str,
    subscriptions: Mapping[str, Subscription],
    on_request: OnRequest,
    on_lost: OnLost,
) -> BrokerLink:
    """A link over sockets. Connects when the first request is sent; the callbacks are not called before that."""
    pool = ConnectionPool(on_request, on_lost, security=options.security, clock=options.clock)
    routes = AsyncRoutes(options.addresses, pool, options.clock, layouts=False)
    calls = ConsumerCalls(options, client_id, pool, routes)
    return BrokerLink(pool, routes, calls, Heartbeat(options, calls, pool, routes, subscriptions))
