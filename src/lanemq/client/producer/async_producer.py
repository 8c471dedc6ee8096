"""The asyncio producer: the same calls and the same engine as `Producer`, with `await`.

Everything runs on one event loop, so the engine needs no lock. Calls that cannot be accepted at once wait in line, and
later calls join its end: otherwise a later message could take its place before an earlier one. Each topic has a line
for its route; calls that wait for room in the buffer share one.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable, Iterable
from functools import partial
from typing import Self, Unpack

from lanemq.background_log import ClientLog
from lanemq.client.producer.base import (
    ASYNC_GATHER_MILLIS,
    TICK_SECONDS,
    AsyncBatchBlock,
    ProducerBase,
    T,
    buffer_full,
    closed,
    no_receipt,
    no_route,
    report_abandoned,
    route_pause,
    route_seconds,
)
from lanemq.client.producer.batches import Many, PendingMessage, SendArguments, total_size
from lanemq.client.producer.choosing import check_sendable
from lanemq.client.producer.engine import LOG_NAME, Actions, SendRequest
from lanemq.client.producer.options import ProducerSettings
from lanemq.client.producer.outcomes import Outcome, notify_all
from lanemq.client.producer.waiters import (
    LoopFuture,
    OnewayWaiter,
    TaskBatchWaiter,
    TaskWaiter,
    Waiter,
    receipt_seconds,
)
from lanemq.client.receipt import Receipt, Receipts
from lanemq.client.routing import AsyncRoutes
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock
from lanemq.model.errors import LaneError, TransportError, UsageError
from lanemq.model.keys import Key
from lanemq.model.names import check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Seconds
from lanemq.net.address import Servers, parse_addresses
from lanemq.net.calling.connection import Connection, ConnectionPool, open_connection
from lanemq.wire.command import Command

log = ClientLog(__name__)


class AsyncProducer(ProducerBase[Connection]):
    """Sends messages and keeps those of a key in order. For one event loop."""

    _log, _engine_log = log, ClientLog(LOG_NAME)
    _routes: AsyncRoutes

    def __init__(self, servers: Servers, *, clock: Clock | None = None, **settings: Unpack[ProducerSettings]) -> None:
        super().__init__(servers, clock, settings)

    def _begin(self) -> None:
        self._begin_with(LoopFuture)
        self._pool = ConnectionPool(security=self._security, clock=self._clock)
        self._routes = AsyncRoutes(
            parse_addresses(self._servers),
            self._pool,
            self._clock,
            declared=self._options.create,
            may_move=self._options.on_queue_change == "continue",
        )
        self._outages = self._routes.outages
        self._asking: dict[str, asyncio.Lock] = {}
        self._line = asyncio.Lock()
        self._empties_soon = False
        self._old_topics: set[str] = set()
        self._refreshing: set[str] = set()
        self._settled = asyncio.Event()
        self._wake = asyncio.Event()
        self._ended = asyncio.Event()
        self._close_by: asyncio.Timeout | None = None
        self._maintenance: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None

    def _leave_to_parent(self) -> None:
        """The connections belong to the parent's event loop, which does not run here."""
        self._loop = None

    def _check_loop(self) -> None:
        """Raises `UsageError` on another event loop than that of the first call, to which the connections belong."""
        running = asyncio.get_running_loop()
        if self._loop is None:
            self._loop = running
        elif self._loop is not running:
            raise UsageError(
                "this AsyncProducer belongs to the event loop of its first call, and another one runs here: make a "
                "producer in each loop, with `async with AsyncProducer(...)`; each asyncio.run() has a loop of its own"
            )

    # sending

    async def send(
        self, topic: str, value: object, *, key: Key | None = None, **arguments: Unpack[SendArguments]
    ) -> Receipt:
        """Stores one message and returns its receipt; raises if it is not known to be stored.

        If cancelled, the message may still be sent; if it then fails, its key is frozen.
        """
        self._check_loop()
        waiter, began = TaskWaiter(), self._clock.now() if self._may_time_out else 0
        try:
            if not arguments and key is not None and self._put_in_inbox(topic, key, value, waiter) is not None:
                self._empty_soon() if self._unanswered else self._empty_inbox()
            else:
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
        self._check_loop()
        if not arguments and key is not None:
            taken: LoopFuture | None = self._put_in_inbox(topic, key, value)
            if taken is not None:
                if not self._unanswered:  # no reply will empty the inbox
                    self._empty_inbox()
                return taken
        future = LoopFuture()
        await self._accept(topic, value, key, arguments, future, sender_waits=False)
        return future

    async def send_oneway(
        self, topic: str, value: object, *, key: Key | None = None, **arguments: Unpack[SendArguments]
    ) -> None:
        """Accepts one message, and does not report its outcome. Raises if it cannot be accepted."""
        self._check_loop()
        waiter = OnewayWaiter()
        await self._accept(topic, value, key, arguments, waiter, sender_waits=True)
        waiter.raise_refusal()

    async def send_many(self, topic: str, messages: Many) -> Receipts:
        """Stores all messages, those of a key in the order given. The fastest call for more than a few messages.

        Raises as `Producer.send_many` does. A cancelled call ends at once; keys of it that fail later are frozen.
        """
        self._check_loop()
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
            self._call_ended(waiter, interrupted=interrupted)

    def batch(self, topic: str) -> AsyncBatchBlock:
        """`async with producer.batch("orders") as batch: batch.add(value, key=...)` sends all at the end."""
        return AsyncBatchBlock(self, check_topic(topic))

    async def flush(self) -> None:
        """Waits until everything accepted so far is stored or has failed; not for later messages."""
        self._check_child()
        self._check_loop()
        mark = self._mark()
        await self._wait_until(lambda: mark.settled)

    async def resume(self, topic: str, *, key: Key | None = None, queue: int | MessageQueue | None = None) -> None:
        """Resumes a frozen key, and its queue if that is frozen as a whole; without a key, all of queue or topic."""
        self._check_child()
        self._check_loop()
        self._resume(await self._route(topic), key, queue)

    async def close(self, timeout: Seconds | None = None) -> None:
        """As `Producer.close`."""
        if self._in_child:
            self._in_child, self._closed = False, True  # nothing was sent here
            self._ended = asyncio.Event()
            self._ended.set()
            return
        if self._loop is not None and self._loop.is_closed():  # nothing can be sent any more
            self.end_with_program(0)
            self._closing = self._closed = True
            return
        self._check_loop()
        seconds = self._close_seconds(timeout)
        if self._closing:
            end = asyncio.get_running_loop().time() + seconds
            if self._close_by is not None and end < (self._close_by.when() or end):
                self._close_by.reschedule(end)
            await self._ended.wait()
            return
        self._closing = True
        self._adjust_inbox()  # or `submit` would still be accepted there, and nothing would send it
        try:
            await self._end(seconds)
        finally:
            self._ended.set()

    def end_with_program(self, seconds: float) -> None:
        """The program ends, and with it the event loop: reports what cannot be sent any more."""
        if not self._closed and not self._in_child:
            report_abandoned(log, [*self._inbox.left_over(), *self._engine.abandon()])

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
        notify_all(outcomes)
        report_abandoned(log, outcomes)
        await asyncio.sleep(0)  # lets the transports close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    # accepting messages

    def _empty_soon(self) -> None:
        """Empties the inbox when all tasks that are ready now have run, together with their messages.

        The next reply would empty it, too, but a message whose sender waits must not wait for the reply of another
        queue.
        """
        if not self._empties_soon:
            self._empties_soon = True
            asyncio.get_running_loop().call_soon(self._empty_now)

    def _empty_now(self) -> None:
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
        route = await self._room_for(topic, message.size, self._inbox.full_at)
        queue = self._choose(route, message, value, key, choice)
        self._change(lambda: self._hand_over(route, {queue: (message,)}))

    async def _accept_chunk(self, topic: str, chunk: list[PendingMessage]) -> None:
        route = await self._room_for(topic, total_size(chunk), self._options.buffer_bytes)
        by_queue = self._chooser.sort_out(route, chunk)
        self._change(lambda: self._hand_over_all(route, by_queue))

    async def _room_for(self, topic: str, size: int, full_at: int) -> TopicRoute:
        """The route of a topic, when there is room: at once if no other call waits, otherwise after the calls in line.

        There is room while the buffer has no more than `full_at` bytes. The caller hands its messages over before any
        other task runs.
        """
        if self._closing:
            self._check_open()
        if self._maintenance is None:
            self._maintenance = asyncio.get_running_loop().create_task(self._maintain())
        self._empty_inbox()
        most_before = full_at - min(size, full_at)  # more than the whole buffer cannot become free
        route = self._known_route(topic)
        if self._in_line == 0 and route is not None and self._has_room(most_before):
            return route
        self._in_line += 1
        self._adjust_inbox()
        began = self._clock.now()
        try:
            route = await self._route(topic)
            left = self._options.timeout - (self._clock.now() - began) / 1000
            await self._wait_for_room(most_before, max(0.0, left))
            return route
        finally:
            self._in_line -= 1
            self._adjust_inbox()

    async def _wait_for_room(self, most_before: int, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), self._line:
                await self._wait_until(lambda: self._has_room(most_before) or self._closing)
        except TimeoutError:
            raise buffer_full(self._options.buffer_bytes, self._options.timeout) from None

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

    def _locked(self, act: Callable[[], T]) -> T:
        """One event loop needs no lock."""
        return act()

    def _change(self, step: Callable[[], Actions]) -> None:
        """An exception of a signal handler ends the event loop, and with it the producer (`end_with_program`)."""
        actions = step()
        self._line_up(actions.requests)
        self._finish(actions)

    # connections

    def _post(self, link: Connection, request: SendRequest) -> None:
        def on_reply(reply: Command | None, error: LaneError | None) -> None:
            self._replied([(request, reply, error)])

        # The engine's deadlines come first; this one only keeps a connection from remembering requests indefinitely.
        link.post(request.command, on_reply, self._options.delivery_timeout + 60)

    def _write(self, links: Iterable[Connection]) -> None:
        """`_post` has written them."""

    def _notify(self, outcomes: Iterable[Outcome]) -> None:
        notify_all(outcomes)

    def _tell_waiting(self) -> None:
        self._settled.set()

    def _wake_maintenance(self) -> None:
        self._wake.set()

    def _refresh_route(self, topic: str) -> None:
        self._old_topics.add(topic)

    def _hang_up(self, link: Connection) -> None:
        link.close()

    def _start_dialing(self, broker: str, topic: str) -> None:
        self._tasks.create_task(self._dial(broker, topic))

    async def _dial(self, broker: str, topic: str) -> None:
        server: object = broker
        try:
            route = await self._routes.get(topic, provisional=True)
            server = address = route.master(broker)
            lost = partial(self._lost, broker)
            link = await open_connection(address, on_lost=lost, security=self._security)
        except Exception as error:  # noqa: BLE001 - if not reported, the broker would never be dialled again
            self._has_not_dialed(broker, topic, server, error)
        else:
            self._has_dialed(broker, link)

    # the maintenance task

    async def _maintain(self) -> None:
        """Runs until the producer is closed, whatever fails: without it nothing would be sent again."""
        pause = 0.0
        async with asyncio.TaskGroup() as self._tasks:
            while not self._closed:
                await self._sleep(pause)
                try:
                    self._maintain_once()
                    self._refresh_old()
                    pause = self._pause()
                except Exception:
                    log.exception("unexpected error in the producer's maintenance task, which continues")
                    pause = TICK_SECONDS

    def _refresh_old(self) -> None:
        old, self._old_topics = self._old_topics, set()
        for topic in old - self._refreshing:
            self._refreshing.add(topic)
            self._tasks.create_task(self._refresh(topic))

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


def _gather_ms() -> int:
    """How long `send_many` may pack messages for many queues."""
    return ASYNC_GATHER_MILLIS
