"""The asyncio producer: the same calls and the same engine as `Producer`, with `await`.

Everything runs on one event loop, so the engine needs no lock. Calls that cannot be accepted at once wait in line, and
later calls join its end: otherwise a later message could take its place before an earlier one. Each topic has a line
for its route; calls that wait for room in the buffer share one.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Self, TypeAlias, Unpack

from lanemq.background_log import ClientLog
from lanemq.client.producer.base import (
    ASYNC_GATHER_MILLIS,
    TICK_SECONDS,
    AsyncBatchBlock,
    ProducerBase,
    buffer_full,
    closed,
    no_answer,
    no_receipt,
    no_route,
    not_reached,
    report_abandoned,
    route_pause,
    route_seconds,
)
from lanemq.client.producer.batches import Many, PendingMessage, SendArguments, refuse_delay
from lanemq.client.producer.choosing import QueueChooser, check_sendable
from lanemq.client.producer.engine import LOG_NAME, Actions, QueueLane, SendRequest
from lanemq.client.producer.options import ProducerSettings
from lanemq.client.producer.waiters import (
    NO_WAITER,
    LoopFuture,
    TaskBatchWaiter,
    TaskWaiter,
    Waiter,
    receipt_seconds,
)
from lanemq.client.receipt import Receipt, Receipts
from lanemq.client.routing import AsyncRoutes
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock
from lanemq.model.errors import LaneError, LaneFrozen, TransportError
from lanemq.model.keys import Key, key_text
from lanemq.model.names import check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Seconds
from lanemq.net.address import Servers, parse_addresses
from lanemq.net.connection import Connection, ConnectionPool, open_connection
from lanemq.wire.command import Command

log = ClientLog(__name__)

Offer: TypeAlias = Callable[[TopicRoute], Sequence[QueueLane]]
"""Offers messages to the lanes of a route."""


class AsyncProducer(ProducerBase):
    """Sends messages and keeps those of a key in order. For one event loop."""

    _log, _engine_log = log, ClientLog(LOG_NAME)

    def __init__(self, servers: Servers, *, clock: Clock | None = None, **settings: Unpack[ProducerSettings]) -> None:
        super().__init__(servers, clock, settings)

    def _begin(self) -> None:
        self._begin_with(contextlib.nullcontext(), LoopFuture)
        self._may_time_out = receipt_seconds(self._options, 0) is not None
        self._pool = ConnectionPool(security=self._security, clock=self._clock)
        self._routes = AsyncRoutes(
            parse_addresses(self._servers),
            self._pool,
            self._clock,
            declared=self._options.create,
            may_move=self._options.on_queue_change == "continue",
        )
        self._chooser = QueueChooser(self._routes.missing)
        self._links: dict[str, Connection] = {}
        self._asking: dict[str, asyncio.Lock] = {}
        self._line = asyncio.Lock()
        self._in_line = 0
        self._empties_soon = False
        self._old_topics: set[str] = set()
        self._refreshing: set[str] = set()
        self._settled = asyncio.Event()
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._close_by: asyncio.Timeout | None = None
        self._maintenance: asyncio.Task[None] | None = None

    def _leave_to_parent(self) -> None:
        """The connections belong to the parent's event loop, which does not run here."""

    # sending

    async def send(
        self, topic: str, value: object, *, key: Key | None = None, **arguments: Unpack[SendArguments]
    ) -> Receipt:
        """Stores one message and returns its receipt; raises if it is not known to be stored.

        If cancelled, the message may still be sent; if it then fails, its key is frozen.
        """
        waiter, began = TaskWaiter(), self._clock.now() if self._may_time_out else 0
        try:
            if arguments or key is None or self._left_in_inbox(topic, key, value, waiter) is None:
                await self._accept(topic, value, key, arguments, waiter, sender_waits=True)
            if not self._may_time_out:
                return await waiter
            async with asyncio.timeout(receipt_seconds(self._options, self._clock.now() - began)):
                return await waiter
        except LaneError:
            raise
        except TimeoutError:
            if not waiter.cancelled():
                raise  # from the caller's codec or selector
            self._interrupted(waiter)
        except BaseException:
            self._interrupted(waiter)
            raise
        raise no_receipt(topic, self._options)

    async def submit(
        self, topic: str, value: object, *, key: Key | None = None, **arguments: Unpack[SendArguments]
    ) -> asyncio.Future[Receipt]:
        """As `Producer.submit`: accepts one message and returns a future with its receipt."""
        if not arguments and key is not None:
            taken = self._left_in_inbox(topic, key, value)
            if taken is not None:
                return taken
        future = LoopFuture()
        try:
            await self._accept(topic, value, key, arguments, future, sender_waits=False)
        except LaneFrozen as error:
            future.set_exception(error.with_traceback(None))  # the traceback refers to the future: a reference cycle
        return future

    async def send_oneway(
        self, topic: str, value: object, *, key: Key | None = None, **arguments: Unpack[SendArguments]
    ) -> None:
        """Accepts one message, and does not report its outcome."""
        await self._accept(topic, value, key, arguments, NO_WAITER, sender_waits=True)

    async def send_many(self, topic: str, messages: Many) -> Receipts:
        """Stores all messages, those of a key in the order given. The fastest call for more than a few messages.

        Raises as `Producer.send_many` does. A cancelled call ends at once; keys of it that fail later are frozen.
        """
        waiter, count, interrupted = TaskBatchWaiter(), 0, True
        try:
            try:
                for chunk in self._chunks(messages, waiter, lambda: self._known_route(topic), _gather_ms):
                    await self._accept_chunk(topic, chunk)
                    count += len(chunk)
                    await asyncio.sleep(0)  # a long iterable must not keep the loop from reading replies
            except LaneError as error:
                waiter.failed(count, error)  # for its whole chunk; the caller gets the error of the first failure
                count += 1
            waiter.close(count)
            await waiter.wait()
            interrupted = False
            return waiter.result()
        finally:
            self._empty_inbox()
            self._engine.call_ended(waiter, interrupted=interrupted)

    def batch(self, topic: str) -> AsyncBatchBlock:
        """`async with producer.batch("orders") as batch: batch.add(value, key=...)` sends all at the end."""
        return AsyncBatchBlock(self, check_topic(topic))

    async def flush(self) -> None:
        """Waits until everything accepted so far is stored or has failed; not for later messages."""
        self._check_child()
        self._empty_inbox()
        self._post(self._engine.send_all_now())
        mark = self._engine.mark()
        await self._wait_until(lambda: mark.settled)

    async def resume(self, topic: str, *, key: Key | None = None, queue: int | MessageQueue | None = None) -> None:
        """Resumes a frozen key, and its queue if that is frozen as a whole; without a key, all of queue or topic."""
        self._check_child()
        self._resume(await self._route(topic), key, queue)

    async def close(self, timeout: Seconds | None = None) -> None:
        """As `Producer.close`."""
        if self._in_child:
            self._in_child, self._closed = False, True  # nothing was sent here
            self._ended = asyncio.Event()
            self._ended.set()
            return
        seconds = self._close_seconds(timeout)
        if self._closing:
            end = asyncio.get_running_loop().time() + seconds
            if self._close_by is not None and end < (self._close_by.when() or end):
                self._close_by.reschedule(end)
            await self._ended.wait()
            return
        self._closing = True
        try:
            await self._end(seconds)
        finally:
            self._ended.set()

    def end_with_program(self, seconds: float) -> None:
        """The program ends, and with it the event loop: reports what cannot be sent any more."""
        if not self._closed and not self._in_child:
            waiting = sum(map(len, self._inbox.take_out().values()))
            report_abandoned(log, self._engine.abandon(), waiting)

    async def _end(self, seconds: float) -> None:
        self._settled.set()  # tasks that wait for room in the buffer give up
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds) as self._close_by:
                await self.flush()
        self._close_by = None
        self._closed = True
        self._wake.set()
        if self._maintenance is not None:
            await self._maintenance
        for link in self._links.values():
            link.close()
        self._pool.close()
        outcomes = self._engine.abandon()
        for outcome in outcomes:
            outcome.notify()
        report_abandoned(log, outcomes)
        await asyncio.sleep(0)  # lets the transports close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # accepting messages

    def _left_in_inbox(
        self, topic: str, key: Key, value: object, waiter: TaskWaiter | None = None
    ) -> LoopFuture | None:
        """Leaves a message in the inbox, if it can be; returns its waiter, or None.

        The next reply empties the inbox. A message whose sender waits must not wait for the reply of another queue: it
        leaves the inbox when all tasks that are ready now have run, together with their messages.
        """
        try:
            taken: LoopFuture | None = self._take(topic, key if type(key) is str else key_text(key), value, waiter)
        except TypeError:
            check_topic(topic)  # one that cannot be looked up, such as a list
            raise
        if taken is waiter and waiter is not None and not self._empties_soon:
            self._empties_soon = True
            waiter.get_loop().call_soon(self._empty_soon)
        return taken

    def _empty_soon(self) -> None:
        self._empties_soon = False
        self._empty_inbox()

    async def _accept(
        self,
        topic: str,
        value: object,
        key: Key | None,
        arguments: SendArguments,
        waiter: Waiter,
        *,
        sender_waits: bool,
    ) -> None:
        message, choice = self._packer.one(value, key, arguments, waiter, sender_waits=sender_waits)

        def offer(route: TopicRoute) -> Sequence[QueueLane]:
            if message.alone:
                refuse_delay(route, message)
            queue = self._chooser.choose(route, value, key, choice)
            request = self._engine.send_alone(queue, message, route)
            if request is not None:
                self._post((request,))
            lanes = () if request is not None else (self._engine.offer_one(queue, message, route),)
            self._inbox.learn(route)
            return lanes

        await self._wait_in_line(topic, message.size, offer, self._inbox.full_at)

    async def _accept_chunk(self, topic: str, chunk: list[PendingMessage]) -> None:
        def offer(route: TopicRoute) -> list[QueueLane]:
            return self._engine.offer_all(self._chooser.sort_out(route, chunk), route)

        await self._wait_in_line(topic, sum([message.size for message in chunk]), offer, self._options.buffer_bytes)

    async def _wait_in_line(self, topic: str, size: int, offer: Offer, full_at: int) -> None:
        """Offers messages: at once if no other call waits and there is room, otherwise after the calls in line.

        There is room while the buffer has no more than `full_at` bytes.
        """
        if self._closing:
            self._check_open()
        if self._maintenance is None:
            self._maintenance = asyncio.get_running_loop().create_task(self._maintain())
        self._empty_inbox()
        most_before = full_at - min(size, full_at)  # more than the whole buffer cannot become free
        route = self._known_route(topic)
        if self._in_line == 0 and route is not None and self._has_room(most_before):
            self._offer_now(route, offer)
            return
        self._in_line += 1
        self._adjust_inbox()
        began = self._clock.now()
        try:
            route = await self._route(topic)
            left = self._options.timeout - (self._clock.now() - began) / 1000
            await self._wait_for_room(route, most_before, offer, max(0.0, left))
        finally:
            self._in_line -= 1
            self._adjust_inbox()

    async def _wait_for_room(self, route: TopicRoute, most_before: int, offer: Offer, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds) as limit, self._line:
                await self._wait_until(lambda: self._has_room(most_before) or self._closing)
                self._offer_now(route, offer)
        except TimeoutError:
            if not limit.expired():
                raise  # from the caller's selector
            raise buffer_full(self._options.buffer_bytes, self._options.timeout) from None

    def _offer_now(self, route: TopicRoute, offer: Offer) -> None:
        if self._closing:
            raise closed()
        for lane in offer(route):
            self._post(lane.take_requests())
            if lane.needs_wake:
                self._wake.set()

    async def _route(self, topic: str) -> TopicRoute:
        """The route of the topic. Asks until a name server answers; calls for one topic get it in their order."""
        seconds = route_seconds(self._options)
        try:
            async with asyncio.timeout(seconds) as limit, self._asking.setdefault(topic, asyncio.Lock()):
                for failures in itertools.count(1):
                    if failures > 1 and self._closing:
                        break
                    with contextlib.suppress(TransportError):
                        return self._known_route(topic) or await self._routes.get(
                            check_sendable(topic), provisional=True
                        )
                    await asyncio.sleep(route_pause(failures))
        except TimeoutError:
            if not limit.expired():
                raise
            raise no_route(topic, seconds, self._routes.last_failure(topic)) from None
        raise closed()

    def _known_route(self, topic: str) -> TopicRoute | None:
        """The route that can be used without waiting. The maintenance task asks for an old one again."""
        route = self._routes.cached(topic)
        if route is None:
            route = self._routes.usable(topic)
            if route is not None:
                self._old_topics.add(topic)
        return route

    def _has_room(self, most_before: int) -> bool:
        return self._engine.unsettled.bytes <= most_before

    async def _wait_until(self, true: Callable[[], bool]) -> None:
        while not true():
            self._settled.clear()
            await self._settled.wait()

    def _empty_inbox(self) -> None:
        if self._inbox:
            actions, wake = self._inbox.move_all(self._engine, self._clock.now())
            if wake:
                self._wake.set()
            self._post(actions.requests)
            self._finish(actions)

    def _adjust_inbox(self) -> None:
        """After every change of what the inbox depends on. It is closed while calls wait in line, or `submit` would
        overtake them."""
        may_open = not self._in_line and not self._closing
        self._inbox.adjust(may_open and self._unanswered > 0, self._engine.unsettled.bytes)

    # requests and replies

    def _post(self, requests: Iterable[SendRequest]) -> None:
        # The engine's deadlines come first; this one only keeps a connection from remembering requests indefinitely.
        forget_after = self._options.delivery_timeout + 60
        for request in requests:
            self._unanswered += 1
            self._links[request.broker].post(request.command, partial(self._replied, request), forget_after)
        self._adjust_inbox()

    def _replied(self, request: SendRequest, reply: Command | None, error: LaneError | None) -> None:
        self._unanswered -= 1
        receipt = None if self._inbox else self._engine.stored_alone(request, reply)
        if receipt is not None:
            self._adjust_inbox()
            request.batch.messages[0].waiter.stored(0, receipt)
            self._settled.set()
            self._has_answered(request)
            return
        if self._inbox.is_due(self._unanswered, self._clock.now):
            self._empty_inbox()
        actions = self._engine.replied(request, reply, error)
        self._post(actions.requests)
        self._finish(actions)
        if not actions.outcomes:
            self._wake.set()  # the batch will be sent again later
        if reply is not None:
            self._has_answered(request)

    def _has_answered(self, request: SendRequest) -> None:
        if self._routes.outages.away:
            self._routes.outages.answered(self._links[request.broker].address)
            self._routes.outages.answered(request.broker)

    def _finish(self, actions: Actions) -> None:
        for topic in actions.stale_topics:  # before the outcomes: a caller that gets one may send again at once
            self._routes.stale(topic)
        for outcome in actions.outcomes:
            outcome.notify()
        for topic in actions.silent_topics:
            self._routes.unreachable(topic)
            if self._routes.is_due(topic):
                self._old_topics.add(topic)
        for broker in actions.hang_up:
            self._routes.outages.failed(self._links[broker].address, no_answer(self._options.request_timeout))
            self._links[broker].close()
        self._settled.set()
        self._log_lines(actions)

    # the maintenance task

    async def _maintain(self) -> None:
        """Runs until the producer is closed, whatever fails: without it nothing would be sent again."""
        pause = 0.0
        async with asyncio.TaskGroup() as dials:
            while not self._closed:
                await self._sleep(pause)
                try:
                    self._maintain_once(dials)
                    pause = self._pause()
                except Exception:
                    log.exception("unexpected error in the producer's maintenance task, which continues")
                    pause = TICK_SECONDS

    def _maintain_once(self, dials: asyncio.TaskGroup) -> None:
        self._empty_inbox()
        self._inbox.forget_old(self._routes.cached)
        actions = self._engine.tick()
        self._post(actions.requests)
        self._finish(actions)
        for link in self._former_masters(self._routes.known, self._links):
            link.close()
        for broker, topic in self._engine.to_dial():
            dials.create_task(self._dial(broker, topic))
        old, self._old_topics = self._old_topics, set()
        for topic in old - self._refreshing:
            self._refreshing.add(topic)
            dials.create_task(self._refresh(topic))
        if self._heartbeat_is_due():
            for link in self._links.values():
                link.post_oneway(self._heartbeat())

    async def _sleep(self, seconds: float) -> None:
        """Until the time has passed or the task is woken."""
        try:
            async with asyncio.timeout(seconds):
                await self._wake.wait()
        except TimeoutError:
            pass
        self._wake.clear()

    async def _refresh(self, topic: str) -> None:
        """Asks for the route of a topic again."""
        try:
            await self._routes.get(topic, provisional=True)
        except Exception as error:  # noqa: BLE001 - the next message asks again
            log.debug("the route of topic %s cannot be refreshed: %s", topic, error)
        finally:
            self._refreshing.discard(topic)

    async def _dial(self, broker: str, topic: str) -> None:
        server: object = broker
        try:
            route = await self._routes.get(topic, provisional=True)
            server = address = route.master(broker)
            lost = partial(self._lost, broker)
            link = await open_connection(address, on_lost=lost, security=self._security)
        except Exception as error:  # noqa: BLE001 - if not reported, the broker would never be dialled again
            self._routes.expire(topic)
            self._engine.dial_failed(broker, not_reached(log, self._routes.outages, broker, server, error))
            self._wake.set()
            return
        link.post_oneway(self._heartbeat())
        self._links[broker] = link
        self._post(self._engine.connected(broker))
        if not link.is_open:  # it was lost before `_lost` could know it
            self._engine.disconnected(broker)

    def _lost(self, broker: str, link: Connection) -> None:
        if self._links.get(broker) is link:
            self._engine.disconnected(broker)
        self._wake.set()


def _gather_ms() -> int:
    """How long `send_many` may pack messages for many queues."""
    return ASYNC_GATHER_MILLIS
