"""Telling brokers that this member lives and what it wants.

A broker knows a member by the connection its heartbeat came on, and refuses pulls of a group it does not know.
So every broker of the subscribed topics is told before anything else is asked of it, again whenever its
connection is new, and every 30 s.
"""

import asyncio
import logging
from collections.abc import Iterable

from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.tag_filter import TagFilter
from lanemq.client.routing import AsyncRoutes
from lanemq.model.errors import LaneError
from lanemq.net.address import Address
from lanemq.net.connection import ConnectionPool
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.bodies import ConsumerData, HeartbeatData, Subscription

log = logging.getLogger(__name__)

PUSH, PULL = "CONSUME_PASSIVELY", "CONSUME_ACTIVELY"
"""RocketMQ's words for who drives consumption (ConsumeType)."""


class Heartbeat:
    """This member's heartbeat, and who has heard it on which connection."""

    def __init__(
        self,
        options: ConsumerOptions,
        calls: ConsumerCalls,
        pool: ConnectionPool,
        routes: AsyncRoutes,
        consume_type: str = PUSH,
    ) -> None:
        self.subscriptions: dict[str, TagFilter] = {}
        """What is wanted, by topic; the group's retry topic included."""
        self._options = options
        self._rate_limited = RateLimitedLog(log, options.clock)
        self._calls = calls
        self._pool = pool
        self._routes = routes
        self._consume_type = consume_type
        self.version: int = options.clock.wall()
        """Grows with every change; a broker keeps the newest (RocketMQ's subVersion)."""
        # By address: the connection on which the broker heard us. A new connection makes us a stranger.
        self._heard: dict[Address, object] = {}

    async def run(self) -> None:
        """Never ends; a broker that cannot be told is told next time."""
        while True:
            await asyncio.sleep(self._options.heartbeat_every)
            self._heard.clear()
            await self.everywhere()

    async def everywhere(self) -> None:
        """Tells each known broker that has not heard us on its present connection."""
        await asyncio.gather(*(self._try_tell(address) for address in self.addresses()))

    def changed(self) -> None:
        """The subscriptions are others now; everybody must hear them."""
        self.version = max(self.version + 1, self._options.clock.wall())
        self._heard.clear()

    async def tell(self, address: Address) -> None:
        """Makes sure that the broker knows us, or raises why not."""
        connection = await self._pool.get(address)
        if self._heard.get(address) is connection:
            return
        await self._calls.heartbeat(address, self._body())
        self._heard[address] = connection

    async def leave(self) -> None:
        """Says goodbye, so that others take over at once instead of waiting for us to be missed."""
        for address in self.addresses():
            try:
                await self._calls.unregister(address)
            except LaneError as error:
                log.info("could not say goodbye to %s: %s", address, error)

    def addresses(self) -> list[Address]:
        """Every broker of the subscribed topics, masters and copies."""
        routes = [self._routes.known(topic) for topic in self.subscriptions]
        brokers = [broker for route in routes if route is not None for broker in route.brokers.values()]
        return sorted({address for broker in brokers for address in broker.addresses.values()})

    async def _try_tell(self, address: Address) -> None:
        try:
            await self.tell(address)
        except LaneError as error:
            self._rate_limited.warn(str(address), f"no heartbeat to {address}: {error}")

    def _body(self) -> bytes:
        consumer = ConsumerData(
            group_name=self._options.group,
            consume_type=self._consume_type,
            message_model=self._options.sharing.value,
            consume_from_where=self._options.start.value,
            subscription_data_set=list(self.described()),
        )
        return HeartbeatData(client_id=self._calls.client_id, consumer_data_set=[consumer]).encode()

    def described(self) -> Iterable[Subscription]:
        """The subscriptions in the wire's words."""
        for topic, tags in sorted(self.subscriptions.items()):
            yield Subscription(
                topic=topic,
                sub_string=tags.text,
                tags_set=sorted(tags.tags),
                code_set=tags.codes,
                sub_version=self.version,
            )
