"""The asyncio producer: the same names and the same engine as `Producer`, with `await`.

Everything runs on the event loop, so the engine needs no lock. Calls that cannot be served at once (the route
is not known, the buffer is full) stand in one line, and while anybody stands there later calls join its end:
otherwise a later message could take its place before an earlier one.
"""

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Self, TypeAlias, Unpack

from lanemq.client.identity import new_client_id, new_producer_id
from lanemq.client.keyword_options import producer_options
from lanemq.client.producer_options import ProducerSettings
from lanemq.client.receipt import Receipt
from lanemq.client.route_lookup import AsyncRoutes
from lanemq.client.routes import TopicRoute
from lanemq.client.send_batch import AsyncBatch
from lanemq.client.send_engine import SendEngine
from lanemq.client.send_freezes import Frozen
from lanemq.client.send_inbox import SendInbox
from lanemq.client.send_packing import Choice, Many, Packer, QueueChooser, check_sendable, choice_of
from lanemq.client.send_requests import Parcel, RequestBuilder, extras_of, heartbeat
from lanemq.client.send_tickets import AwaitedCrowd, Crowd, LoopFuture
from lanemq.client.send_work import (
    CLOSE_SPARE_SECONDS,
    HEARTBEAT_MILLIS,
    TICK_SECONDS,
    SendRequest,
    Work,
    buffer_full,
    closed,
    not_reached,
)
from lanemq.clock import Clock, SystemClock
from lanemq.core.sharding import Selector
from lanemq.model.errors import LaneError, LaneFrozen
from lanemq.model.queue import MessageQueue
from lanemq.net.address import parse_addresses
from lanemq.net.connection import Connection, open_connection
from lanemq.net.pool import ConnectionPool
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

Run: TypeAlias = Sequence[tuple[str | int | None, Parcel]]


class AsyncProducer:
    """Sends messages and keeps those of a key in order. For one event loop."""

    def __init__(self, servers: str, *, clock: Clock | None = None, **settings: Unpack[ProducerSettings]) -> None:
        self._clock = clock or SystemClock()
        self._client_id = new_client_id()
        self._options = producer_options(self._clock, self._client_id, **settings)
        self._security = self._options.security
        self._pool = ConnectionPool(security=self._security)
        self._routes = AsyncRoutes(parse_addresses(servers), self._pool, self._clock)
        self._packer = Packer(self._options)
        self._chooser = QueueChooser()
        builder = RequestBuilder(self._options.group, self._client_id, new_producer_id())
        self._engine = SendEngine(self._options, builder, self._clock)
        self._inbox = SendInbox(self._options, self._packer, LoopFuture, self._empty_inbox)
        self._take = self._inbox.take
        self._unanswered = 0
        self._links: dict[str, Connection] = {}
        self._line = asyncio.Lock()
        self._in_line = 0
        self._settled = asyncio.Event()
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._closing = self._closed = False
        self._next_heartbeat = 0
        self._keeper: asyncio.Task[None] | None = None

    # sending

    async def send(
        self,
        topic: str,
        value: object,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        selector: Selector | None = None,
        arg: object = None,
        queue: int | MessageQueue | None = None,
    ) -> Receipt:
        """Stores one message and returns where it is; raises when it is not known to be stored."""
        parcel = self._packer.one(value, key, extras_of(tag, keys, properties, delay_level))
        parcel.ticket = future = LoopFuture()
        await self._accept(topic, value, [(key, parcel)], choice_of(selector, arg, queue))
        return await future

    async def submit(
        self,
        topic: str,
        value: object,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        delay_level: int = 0,
        selector: Selector | None = None,
        arg: object = None,
        queue: int | MessageQueue | None = None,
    ) -> asyncio.Future[Receipt]:
        """Takes its place in line; the future says how it ended. Waits only for a route or a full buffer.

        If it fails, its key is frozen until `resume` or `drop`: what comes behind it fails with `LaneFrozen`.
        """
        if not (tag or keys or properties or delay_level or selector) and queue is None and type(key) is str:
            taken: LoopFuture | None = self._take(topic, key, value)
            if taken is not None:
                return taken
        parcel = self._packer.one(value, key, extras_of(tag, keys, properties, delay_level))
        parcel.ticket = future = LoopFuture()
        parcel.told = False
        try:
            await self._accept(topic, value, [(key, parcel)], choice_of(selector, arg, queue))
        except LaneFrozen as error:
            future.set_exception(error)
        return future

    async def send_oneway(
        self,
        topic: str,
        value: object,
        *,
        key: str | int | None = None,
        tag: str | None = None,
        keys: Sequence[str] | str = (),
        properties: Mapping[str, str] | None = None,
        selector: Selector | None = None,
        arg: object = None,
        queue: int | MessageQueue | None = None,
    ) -> None:
        """Takes its place in line; nobody is told how it ended."""
        parcel = self._packer.one(value, key, extras_of(tag, keys, properties, 0))
        await self._accept(topic, value, [(key, parcel)], choice_of(selector, arg, queue))

    async def send_many(self, topic: str, messages: Many) -> list[Receipt]:
        """Stores all messages, those of a key in the order given; the fast way for more than a few.

        Raises as `Producer.send_many` does. A cancelled call ends at once; keys of it that fail later are frozen.
        """
        crowd, count, told = AwaitedCrowd(), 0, False
        try:
            try:
                for run in self._packer.runs(messages, crowd):
                    await self._accept(topic, None, run, None)
                    count += len(run)
                    await asyncio.sleep(0)  # a long iterable must not keep the loop from reading answers
            except LaneError as error:
                crowd.failed(count, error)  # it stands for its run; the caller hears of the earliest failure
                count += 1
            crowd.close(count)
            await crowd.wait()
            told = True
            return crowd.result()
        finally:
            self._empty_inbox()
            self._engine.call_ended(crowd, told=told)

    def batch(self, topic: str) -> AsyncBatch:
        """`async with producer.batch("orders") as batch: batch.add(value, key=...)`: sent when the block ends."""
        return AsyncBatch(self, topic)

    # life

    async def flush(self) -> None:
        """Waits until everything accepted so far is settled, one way or the other; not for what comes later."""
        self._empty_inbox()
        self._post(self._engine.hurry())
        mark = self._engine.mark()
        await self._wait_until(lambda: mark.settled)

    async def resume(
        self, topic: str, *, key: str | int | None = None, queue: int | MessageQueue | None = None
    ) -> None:
        """Opens a frozen key, and its queue if that is frozen as a whole; without a key, all of queue or topic."""
        route, everywhere = await self._route(topic), key is None and queue is None
        chosen = None if everywhere else self._chooser.choose(route, None, key, Choice(queue=queue))
        self._empty_inbox()
        self._engine.resume(topic, None if key is None else str(key), chosen)

    def drop(self, topic: str, *, key: str | int) -> int:
        """Gives up what waits of a key, and opens the key; how many messages. What is under way is settled as usual."""
        self._empty_inbox()
        outcomes = self._engine.drop(topic, str(key))
        self._finish(Work(outcomes=outcomes))
        return sum(len(outcome.parcels) for outcome in outcomes)

    def frozen_keys(self, topic: str | None = None) -> list[Frozen]:
        """What is frozen, since when and why; an entry without a key is a queue that is frozen as a whole."""
        return self._engine.frozen(topic)

    async def close(self) -> None:
        """As `Producer.close`: settles what was accepted, at most for `timeout` seconds; a second call waits too."""
        if self._closing:
            await self._ended.wait()
            return
        self._closing = True
        try:
            await self._end()
        finally:
            self._ended.set()

    async def _end(self) -> None:
        self._settled.set()  # whoever waits for space waits in vain
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.timeout + CLOSE_SPARE_SECONDS):
                await self.flush()
        self._closed = True
        self._wake.set()
        if self._keeper is not None:
            await self._keeper
        for link in self._links.values():
            link.close()
        self._pool.close()
        for outcome in self._engine.abandon():
            outcome.tell()
        await asyncio.sleep(0)  # lets the transports close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # inside: taking parcels in

    async def _route(self, topic: str) -> TopicRoute:
        return self._routes.cached(topic) or await self._routes.get(check_sendable(topic), provisional=True)

    async def _accept(self, topic: str, value: object, run: Run, choice: Choice | None) -> None:
        if self._closing:
            raise closed()
        if self._keeper is None:
            self._keeper = asyncio.get_running_loop().create_task(self._keep())
        self._empty_inbox()
        size = min(sum([parcel.size for _, parcel in run]), self._options.buffer_bytes)  # all of it is enough
        route = self._routes.cached(topic)
        if self._in_line == 0 and route is not None and self._has_space(size):
            self._offer(route, value, run, choice)
            return
        self._in_line += 1
        self._adjust_inbox()
        try:
            async with self._line:
                route = await self._route(topic)
                await self._wait_for_space(size)
                self._offer(route, value, run, choice)
        finally:
            self._in_line -= 1
            self._adjust_inbox()

    def _offer(self, route: TopicRoute, value: object, run: Run, choice: Choice | None) -> None:
        if self._closing:
            raise closed()
        if isinstance(run[0][1].ticket, Crowd):
            lanes = self._engine.offer_all(self._chooser.sort_out(route, run), route)
        else:
            ((key, parcel),) = run
            queue = self._chooser.choose(route, value, key, choice) if choice else self._chooser.by_key(route, key)
            stamps, creates = route.is_lane(queue.broker), route.provisional
            lanes = [self._engine.offer(queue, (parcel,), checks_stamps=stamps, creates=creates, hurry=parcel.told)]
        self._inbox.know(route)
        for lane in lanes:
            self._post(self._engine.pump(lane))
            if self._engine.needs_keeper(lane):
                self._wake.set()

    def _empty_inbox(self) -> None:
        """Gives what `submit` left there its place. Before anything that may not pass it."""
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

    # inside: carrying out what the engine decided

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

    # inside: the keeper task

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
        if self._clock.now() >= self._next_heartbeat:
            self._next_heartbeat = self._clock.now() + HEARTBEAT_MILLIS
            for link in self._links.values():
                link.post_oneway(heartbeat(self._client_id, self._options.group))

    def _pause(self) -> float:
        wake = self._engine.next_wake()
        return TICK_SECONDS if wake is None else min(TICK_SECONDS, max(0, wake - self._clock.now()) / 1000)

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
        link.post_oneway(heartbeat(self._client_id, self._options.group))
        self._links[broker] = link
        self._post(self._engine.connected(broker))
        if not link.is_open:  # lost before it was ours, so `_lost` did not know it
            self._engine.disconnected(broker)

    def _lost(self, broker: str, link: Connection) -> None:
        if self._links.get(broker) is link:
            self._engine.disconnected(broker)
        self._wake.set()
