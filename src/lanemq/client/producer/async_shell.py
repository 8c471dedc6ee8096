"""What is inside an asyncio producer: the way between engine and connections, on one event loop.

Everything runs on the loop, so the engine needs no lock. Calls that cannot be served at once (the route is not known,
the buffer is full) stand in one line, and while anybody stands there later calls join its end: otherwise a later
message could take its place before an earlier one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import TypeAlias, Unpack

from lanemq.client.producer.base import ProducerBase, Told
from lanemq.client.producer.options import ProducerSettings
from lanemq.client.producer.packing import Choice, check_sendable
from lanemq.client.producer.requests import Extras, Parcel
from lanemq.client.producer.waiters import LoopFuture
from lanemq.client.producer.work import TICK_SECONDS, EngineLane, SendRequest, Work, buffer_full, closed, not_reached
from lanemq.client.routing import AsyncRoutes, TopicRoute
from lanemq.clock import Clock
from lanemq.model.errors import LaneError
from lanemq.net.address import parse_addresses
from lanemq.net.connection import Connection, ConnectionPool, open_connection
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

Run: TypeAlias = Sequence[tuple[str | int | None, Parcel]]

Place: TypeAlias = Callable[[TopicRoute], list[EngineLane]]
"""Gives messages their places in the queues of a route."""


class AsyncProducerShell(ProducerBase):
    """Everything of an `AsyncProducer` but its calls."""

    def __init__(self, servers: str, *, clock: Clock | None = None, **settings: Unpack[ProducerSettings]) -> None:
        super().__init__(contextlib.nullcontext(), LoopFuture, clock, settings)
        self._pool = ConnectionPool(security=self._security)
        self._routes = AsyncRoutes(parse_addresses(servers), self._pool, self._clock)
        self._links: dict[str, Connection] = {}
        self._line = asyncio.Lock()
        self._in_line = 0
        self._settled = asyncio.Event()
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._keeper: asyncio.Task[None] | None = None

    # taking parcels in

    async def _route(self, topic: str) -> TopicRoute:
        return self._routes.cached(topic) or await self._routes.get(check_sendable(topic), provisional=True)

    async def _accept(
        self, topic: str, value: object, key: str | int | None, extras: Extras, choice: Choice | None, told: Told
    ) -> None:
        parcel = self._packed(value, key, extras, told)

        def place(route: TopicRoute) -> list[EngineLane]:
            return [self._offer(route, self._queue_for(route, value, key, choice), parcel)]

        await self._stand_in_line(topic, parcel.size, place)

    async def _accept_run(self, topic: str, run: Run) -> None:
        def place(route: TopicRoute) -> list[EngineLane]:
            return self._engine.offer_all(self._chooser.sort_out(route, run), route)

        await self._stand_in_line(topic, sum([parcel.size for _, parcel in run]), place)

    async def _stand_in_line(self, topic: str, size: int, place: Place) -> None:
        """Gives messages their places, at once where nobody stands there."""
        if self._closing:
            raise closed()
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())
        self._empty_inbox()
        size = min(size, self._options.buffer_bytes)  # all of it is enough
        route = self._routes.cached(topic)
        if self._in_line == 0 and route is not None and self._has_space(size):
            self._place(route, place)
            return
        self._in_line += 1
        self._adjust_inbox()
        try:
            async with self._line:
                route = await self._route(topic)
                await self._wait_for_space(size)
                self._place(route, place)
        finally:
            self._in_line -= 1
            self._adjust_inbox()

    def _place(self, route: TopicRoute, place: Place) -> None:
        if self._closing:
            raise closed()
        for lane in place(route):
            self._post(self._engine.pump(lane))
            if self._engine.needs_keeper(lane):
                self._wake.set()

    def _empty_inbox(self) -> None:
        if self._inbox:
            work, wake = self._inbox.place_all(self._engine)
            if wake:
                self._wake.set()
            self._post(work.requests)
            self._finish(work)

    def _adjust_inbox(self) -> None:
        """After anything that changes what it depends on; nobody passes those who stand in line."""
        is_usual = not self._in_line and not self._closing
        self._inbox.adjust(is_usual and self._unanswered > 0, self._engine.buffered_bytes)

    def _has_space(self, size: int) -> bool:
        return self._engine.buffered_bytes + size <= self._options.buffer_bytes

    async def _wait_for_space(self, size: int) -> None:
        if self._has_space(size):
            return
        try:
            async with asyncio.timeout(self._options.timeout):
                await self._wait_until(lambda: self._has_space(size) or self._closing)
        except TimeoutError:
            raise buffer_full(self._options.buffer_bytes, self._options.timeout) from None

    async def _wait_until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._settled.clear()
            await self._settled.wait()

    # carrying out what the engine decided

    def _post(self, requests: Iterable[SendRequest]) -> None:
        # The engine's deadlines come first; this one only keeps a connection from remembering forever.
        patience = self._options.timeout + 60
        for request in requests:
            self._unanswered += 1
            self._links[request.broker].post(request.command, partial(self._replied, request), patience)
        self._adjust_inbox()

    def _replied(self, request: SendRequest, reply: Command | None, error: LaneError | None) -> None:
        self._unanswered -= 1
        self._empty_inbox()
        work = self._engine.replied(request, reply, error)
        self._post(work.requests)
        self._finish(work)
        if not work.outcomes:
            self._wake.set()  # something is to be tried again later

    def _finish(self, work: Work) -> None:
        for outcome in work.outcomes:
            outcome.tell()
        for topic in work.stale_topics:
            self._routes.stale(topic)
        for broker in work.hang_up:
            log.warning("broker %s does not answer, connecting anew", broker)
            self._links[broker].close()
        self._settled.set()

    # the keeper task

    async def _keep(self) -> None:
        """Ends with the producer and not before, whatever it meets: without it nothing is ever tried again."""
        pause = 0.0
        async with asyncio.TaskGroup() as dials:
            while not self._closed:
                await self._wait(pause)
                try:
                    self._look_after(dials)
                    pause = self._pause()
                except Exception:
                    log.exception("the producer's keeper met something unexpected and goes on")
                    pause = TICK_SECONDS

    def _look_after(self, dials: asyncio.TaskGroup) -> None:
        self._empty_inbox()
        self._inbox.forget_old(self._routes.cached)
        work = self._engine.tick()
        self._post(work.requests)
        self._finish(work)
        for broker, topic in self._engine.to_dial():
            dials.create_task(self._dial(broker, topic))
        if self._heartbeat_is_due():
            for link in self._links.values():
                link.post_oneway(self._heartbeat())

    async def _wait(self, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _dial(self, broker: str, topic: str) -> None:
        try:
            route = await self._routes.get(topic, provisional=True)
            address, lost = route.master(broker), partial(self._lost, broker)
            link = await open_connection(address, on_lost=lost, security=self._security)
        except Exception as error:  # noqa: BLE001 - whatever it was: not told, the broker would never be dialled again
            self._routes.stale(topic)
            self._engine.dial_failed(broker, not_reached(broker, error))
            self._wake.set()
            return
        link.post_oneway(self._heartbeat())
        self._links[broker] = link
        self._post(self._engine.connected(broker))
        if not link.is_open:  # lost before it was ours, so `_lost` did not know it
            self._engine.disconnected(broker)

    def _lost(self, broker: str, link: Connection) -> None:
        if self._links.get(broker) is link:
            self._engine.disconnected(broker)
        self._wake.set()
