"""Heartbeats: tell every broker that this member is alive and what it subscribes to.

A broker knows a member by the connection that its heartbeat came on, and refuses pulls of a group that it does not
know. So each broker of the subscribed topics gets a heartbeat before any other request, again on every new connection,
when the broker says that it does not know the member, and every 30 s. Between heartbeats, keep-alives (`leases`) show a
LaneMQ broker that the member is alive; the heartbeat says for how long they may stay away.
"""

import asyncio
from collections.abc import Iterable, Mapping

from msgspec import UNSET

from lanemq.background_log import ClientLog
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.options import ConsumerOptions, StartFrom
from lanemq.client.consumer.turns.subscription import Subscription
from lanemq.client.routing import AsyncRoutes
from lanemq.client.topic_route import BrokerRoute
from lanemq.model.errors import GroupConflict, LaneError
from lanemq.model.units import Millis
from lanemq.net.address import Address
from lanemq.net.calling.connection import ConnectionPool
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.bodies import ConsumerData, HeartbeatData, SubscriptionData

log = ClientLog(__name__)

PUSH = "CONSUME_PASSIVELY"
"""RocketMQ's name for a consumer that calls handlers (ConsumeType)."""

AT_A_TIME = "CONSUME_FROM_TIMESTAMP"
"""RocketMQ's name for a group that starts at a time (ConsumeFromWhere)."""

HEARTBEAT_EVERY = 30.0
"""Seconds between two heartbeats (RocketMQ's ClientConfig). An Apache broker removes a member after 120 s without one;
LaneMQ brokers go by the keep-alives."""


class Heartbeat:
    """The heartbeats of one member. `subscriptions` are by topic, including the group's retry topic."""

    def __init__(
        self,
        options: ConsumerOptions,
        calls: ConsumerCalls,
        pool: ConnectionPool,
        routes: AsyncRoutes,
        subscriptions: Mapping[str, Subscription],
    ) -> None:
        self._options = options
        self._rate_limited = RateLimitedLog(log, options.clock)
        self._calls = calls
        self._pool = pool
        self._routes = routes
        self._subscriptions = subscriptions
        self._topics: Iterable[str] = ()
        """Those of which the brokers get heartbeats: the last ones, when nothing is subscribed any more."""
        self.version: int = options.clock.wall()
        """Version of the subscriptions; a broker keeps the newest (RocketMQ's subVersion)."""
        # By address: the connection of the last heartbeat. On a new connection the broker does not know us.
        self._sent: dict[Address, object] = {}
        self._left = False

    async def run(self) -> None:
        """Sends heartbeats until cancelled."""
        while True:
            await asyncio.sleep(HEARTBEAT_EVERY)
            self._sent.clear()
            await self.send_to_all()

    def changed(self) -> None:
        """The subscriptions are others now: every broker gets a heartbeat with the next round."""
        self.version = max(self.version + 1, self._options.clock.wall())
        self._sent.clear()

    async def send_to_all(self) -> None:
        """Sends a heartbeat to each known broker that got none on its present connection.

        Raises `GroupConflict` if a broker refuses this member; other failures are logged.
        """
        await asyncio.gather(*(self._try_send(address) for address in self.addresses()))

    async def send_to(self, address: Address) -> None:
        """Makes sure that the broker knows this member, or raises."""
        connection = await self._pool.get(address)
        if self._sent.get(address) is connection or self._left:
            return
        await self._calls.heartbeat(address, self._body(), self._expiry(address))
        self._sent[address] = connection

    async def send_again_to(self, address: Address) -> None:
        """Joins again at a broker that does not have this member in its list."""
        self._sent.pop(address, None)
        try:
            await self._try_send(address)
        except GroupConflict as error:  # raised again by the next rebalance round, which decides what to do
            self._rate_limited.warn(str(address), f"cannot join again at {address}: {error}")

    async def leave(self) -> None:
        """Unregisters at every broker, so that other members take over at once."""
        self._left = True  # or the answer to a keep-alive that is under way would make this member join again
        for address in self.addresses():
            try:
                await self._calls.unregister(address)
            except LaneError as error:
                log.info("could not unregister at %s: %s", address, error)

    def addresses(self) -> list[Address]:
        """The coordinator, or every broker of the subscribed topics, masters and replicas."""
        coordinator = self._calls.coordination.address
        if coordinator is not None:
            return [coordinator]
        return sorted({address for broker in self._brokers() for address in broker.addresses.values()})

    def _brokers(self) -> list[BrokerRoute]:
        self._topics = tuple(self._subscriptions) or self._topics
        routes = [self._routes.known(topic) for topic in self._topics]
        return [broker for route in routes if route is not None for broker in route.brokers.values()]

    def only_lanemq(self) -> bool:
        """Whether only a coordinator or LaneMQ brokers get heartbeats."""
        return self._calls.coordination.address is not None or all(broker.lane for broker in self._brokers())

    def _expiry(self, address: Address) -> Millis | None:
        """None for brokers that get no keep-alives: they use RocketMQ's expiry."""
        own = [broker.lane for broker in self._brokers() if address in broker.addresses.values()]
        lane = self._calls.coordination.address == address or any(own)
        return self._options.times(lane).broker_lease_ms if self._options.speaks_lane(lane) else None

    async def _try_send(self, address: Address) -> None:
        try:
            await self.send_to(address)
        except GroupConflict:
            raise
        except LaneError as error:
            self._rate_limited.failed(str(address), f"no heartbeat to {address}", error)

    def _body(self) -> bytes:
        start = self._options.start
        consumer = ConsumerData(
            group_name=self._options.group,
            consume_type=PUSH,
            message_model=self._options.sharing.value,
            consume_from_where=start.value if isinstance(start, StartFrom) else AT_A_TIME,
            subscription_data_set=list(self.described()),
        )
        return HeartbeatData(client_id=self._calls.client_id, consumer_data_set=[consumer]).encode()

    def described(self) -> Iterable[SubscriptionData]:
        """The subscriptions in wire form."""
        compat = not self._options.speaks_lane(True)
        for topic, subscription in sorted(self._subscriptions.items()):
            tags = subscription.filter
            yield SubscriptionData(
                topic=topic,
                sub_string=tags.text,
                tags_set=sorted(tags.tags),
                code_set=tags.codes,
                sub_version=self.version,
                lane_ordered=UNSET if compat else subscription.ordered,
            )
