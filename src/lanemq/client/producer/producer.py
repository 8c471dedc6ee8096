"""The blocking producer: threads and plain sockets, no event loop.

The calling thread writes to the socket itself. The reader thread of a connection settles what was answered and sends
what has gathered since, so batches form while the broker is busy. One maintenance thread watches deadlines, back-off,
heartbeats and new connections; it never writes to a socket, so that a stalled broker cannot stop it.

One lock guards the engine (`_locked`); it is never held while writing or waiting. The log's thread writes what the
producer has to say, because a handler of the log may wait for the producer (`background_log`).

A finalizer or a signal handler runs in the middle of whatever its thread does, perhaps with the lock held, and may wait
there for a lock of the program, such as a log handler's. So no message waits for the producer's lock: if a thread has
it, this one or another, the message is left in the inbox, and the thread that releases the lock moves it. A call that
would wait for its own thread is refused (`_interrupts_us`).
"""

import itertools
import math
import sys
import threading
from collections.abc import Callable, Iterable
from concurrent.futures import Future
from functools import partial
from threading import get_ident
from typing import Self, TypeAlias, Unpack

from lanemq.background_log import ClientLog
from lanemq.client.bell import Bell
from lanemq.client.ending import close_aside, interrupts_a_call
from lanemq.client.producer.base import (
    BUSY_GATHER_MILLIS,
    GATHER_MILLIS,
    TICK_SECONDS,
    BatchBlock,
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
from lanemq.client.producer.batches import Many, PendingMessage, SendArguments, heartbeat, total_size
from lanemq.client.producer.choosing import check_sendable
from lanemq.client.producer.engine import LOG_NAME, Actions, FlushMark, SendRequest
from lanemq.client.producer.options import ProducerSettings
from lanemq.client.producer.outcomes import Outcome, notify_all
from lanemq.client.producer.waiters import (
    OnewayWaiter,
    SubmittedFuture,
    ThreadBatchWaiter,
    ThreadWaiter,
    Waiter,
    leave_future,
    receipt_seconds,
)
from lanemq.client.receipt import Receipt, Receipts
from lanemq.client.routing import BlockingRoutes
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock, SystemClock
from lanemq.forking import UNDERWAY, tell_now
from lanemq.model.errors import LaneError, TransportError, UsageError
from lanemq.model.keys import Key
from lanemq.model.names import check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, Seconds, to_millis
from lanemq.net.address import Servers, parse_addresses
from lanemq.net.calling.blocking import CLIENT_THREADS, ClientThread, DuplexConnection
from lanemq.net.rate_limited_log import OutageLog

log = ClientLog(__name__, aside=True)

_REAL_CLOCK = SystemClock()
"""Of threads that wait: they sleep in real time, whatever clock the producer has."""


ProducerLink: TypeAlias = DuplexConnection[SendRequest]


class Producer(ProducerBase[ProducerLink]):
    """Sends messages and keeps those of a key in order. Safe for any number of threads."""

    _log, _engine_log = log, ClientLog(LOG_NAME, aside=True)
    _routes: BlockingRoutes

    def __init__(self, servers: Servers, *, clock: Clock | None = None, **settings: Unpack[ProducerSettings]) -> None:
        self._renew_lock()
        super().__init__(servers, clock, settings)

    def _begin(self) -> None:
        self._begin_with(SubmittedFuture)
        self._outages = OutageLog(log, self._clock)
        self._routes = BlockingRoutes(
            parse_addresses(self._servers),
            self._clock,
            security=self._security,
            declared=self._options.create,
            may_move=self._options.on_queue_change == "continue",
            outages=self._outages,
        )
        self._changed = Bell()
        """Rings after changes that calls wait for: messages are settled, or the producer closes."""
        self._ended = False
        self._close_by: float = math.inf
        """When `close` gives up, by `_REAL_CLOCK`."""
        self._guard = CallbackGuard()
        self._alarm, self._is_woken = Bell(), False
        self._maintenance = ClientThread(target=self._maintain, name="lanemq-producer", daemon=True)
        self._maintenance.start()

    def _renew_lock(self) -> None:
        self._lock = threading.Lock()
        self._inside = 0
        """The thread that holds the lock, by its ident; 0: none."""

    def _leave_to_parent(self) -> None:
        self._renew_lock()
        for link in self._links.values():
            link.drop()
        for outcome in (*self._inbox.left_over(), *self._engine.abandon()):
            for message in outcome.messages:
                if isinstance(message.waiter, SubmittedFuture):
                    leave_future(message.waiter)

    # sending

    def send(self, topic: str, value: object, *, key: Key | None = None, **arguments: Unpack[SendArguments]) -> Receipt:
        """Stores one message and returns its receipt; raises if it is not known to be stored.

        If interrupted, or if `timeout` is shorter than `delivery_timeout` and passes, the message may still be sent; if
        it then fails, its key is frozen.
        """
        self._check_may_wait("send")
        waiter, began = ThreadWaiter(), self._clock.now() if self._may_time_out else 0
        try:
            if not arguments and key is not None and self._put_in_inbox(topic, key, value, waiter) is not None:
                self._move_inbox()
            else:
                self._accept(topic, value, key, arguments, waiter, sender_waits=True)
            left = receipt_seconds(self._options, self._clock.now() - began) if self._may_time_out else None
            if waiter.wait(left):
                return waiter.result()
        except LaneError:
            raise
        except BaseException:
            self._interrupted(waiter)
            raise
        self._interrupted(waiter)
        raise no_receipt(topic, self._options)

    def submit(
        self, topic: str, value: object, *, key: Key | None = None, **arguments: Unpack[SendArguments]
    ) -> Future[Receipt]:
        """Accepts one message and returns a future with its receipt. Waits only for a route or a full buffer.

        If the message fails, its key is frozen: later messages of the key fail with `LaneFrozen` until `resume` or
        `drop`. Other keys continue.
        """
        if UNDERWAY:
            tell_now()
        if not arguments and key is not None:
            taken: Future[Receipt] | None = self._put_in_inbox(topic, key, value)
            if taken is not None:
                if not self._unanswered:  # no reply will empty the inbox
                    self._move_inbox()
                return taken
        future = SubmittedFuture()
        self._accept(topic, value, key, arguments, future, sender_waits=False)
        return future

    def send_oneway(
        self, topic: str, value: object, *, key: Key | None = None, **arguments: Unpack[SendArguments]
    ) -> None:
        """Accepts one message, and does not report its outcome. Raises if it cannot be accepted."""
        waiter = OnewayWaiter()
        self._accept(topic, value, key, arguments, waiter, sender_waits=True)
        waiter.raise_refusal()

    def send_many(self, topic: str, messages: Many) -> Receipts:
        """Stores all messages, those of a key in the order given. The fastest call for more than a few messages.

        If a message fails, raises the error of the first one; no later message of its key is stored, other messages of
        the call may be. No messages are read after a failure. Any other error (raised by `messages`, or an
        interruption) ends the call at once: messages read before are sent, and if one fails, its key is frozen.
        """
        self._check_may_wait("send_many")
        waiter, count, interrupted = ThreadBatchWaiter(), 0, True
        try:
            try:
                for chunk in self._chunks(messages, waiter, lambda: self._routes.cached(topic), self._gather_ms):
                    self._accept_chunk(topic, chunk)
                    count += len(chunk)
            except LaneError as error:
                waiter.failed(count, error)  # for its whole chunk; the caller gets the error of the first failure
                count += 1
            waiter.close(count)
            waiter.wait()
            interrupted = False
            return waiter.result()
        finally:
            self._call_ended(waiter, interrupted=interrupted)

    def batch(self, topic: str) -> BatchBlock:
        """`with producer.batch("orders") as batch: batch.add(value, key=...)` sends all at the end of the block."""
        return BatchBlock(self, check_topic(topic))

    def flush(self) -> None:
        """Waits until everything accepted so far is stored or has failed; not for later messages."""
        self._check_may_wait("flush")
        self._check_child()
        mark = self._mark()
        self._changed.wait_until(lambda: mark.settled)

    def resume(self, topic: str, *, key: Key | None = None, queue: int | MessageQueue | None = None) -> None:
        """Resumes a frozen key, and its queue if that is frozen as a whole; without a key, all of queue or topic."""
        self._resume(self._route(topic)[0], key, queue)

    def close(self, timeout: Seconds | None = None) -> None:
        """Refuses new messages, settles accepted ones, ends connections and threads.

        Messages that are not settled after `timeout` seconds fail with `Closed`; without it, none outlives
        `delivery_timeout`. A second call waits until the first one is done, which ends sooner if the second has less
        time.

        A signal handler may call it. If the signal interrupted a call of a producer, this returns at once, and closing
        continues in the background; the end of the program waits for it.
        """
        if interrupts_a_call(sys._getframe(1)) or self._interrupts_us():  # noqa: SLF001
            close_aside(partial(self._close, timeout))
        else:
            self._close(timeout)

    def end_with_program(self, seconds: float) -> None:
        """The program ends. Closes the producer if that was not done."""
        if not self._closed and not self._in_child:
            self._close(seconds)

    def _close(self, timeout: Seconds | None) -> None:
        self._check_may_wait("close")
        if self._in_child:
            self._in_child, self._closed = False, True  # nothing was sent here
            self._ended = True
            return
        is_second = self._locked(partial(self._start_closing, self._close_seconds(timeout)))
        self._changed.ring()  # threads that wait for room in the buffer, or for a later end, give up
        if is_second:
            self._changed.wait_until(lambda: self._ended)
            return
        try:
            self._end()
        except BaseException:
            close_aside(self._end_again)
            raise
        self._has_ended()

    def _end_again(self) -> None:
        """After an exception of a signal handler, in a thread that the exit of the program waits for."""
        try:
            self._end()
        finally:
            self._has_ended()

    def _start_closing(self, seconds: float) -> bool:
        """Refuses new messages; returns whether another call has done so."""
        was_closing, self._closing = self._closing, True
        self._close_by = min(self._close_by, _REAL_CLOCK.now() + to_millis(seconds))
        self._adjust_inbox()
        return was_closing

    def _has_ended(self) -> None:
        self._ended = True
        self._changed.ring()

    def _end(self) -> None:
        mark = self._mark()
        while not mark.settled and (left := (by := self._close_by) - _REAL_CLOCK.now()) > 0:
            self._changed.wait_until(partial(self._ends_now, mark, by), left / 1000)
        self._closed = True
        self._wake_maintenance()
        self._maintenance.join()
        for link in tuple(self._links.values()):
            link.close()
        self._routes.close()
        self._empty_inbox()
        outcomes = self._locked(self._engine.abandon)
        report_abandoned(log, outcomes)
        notify_all(outcomes)

    def _ends_now(self, mark: FlushMark, by: float) -> bool:
        """Whether everything is settled, or another call wants an earlier end."""
        return mark.settled or self._close_by < by

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close(None)

    # accepting messages

    def _accept(
        self,
        topic: str,
        value: object,
        key: Key | None,
        arguments: SendArguments,
        waiter: Waiter,
        *,
        sender_waits: bool,
    ) -> None:
        route, seconds = self._route(topic)
        message, choice = self._packer.one(value, key, arguments, waiter, sender_waits=sender_waits)
        queue = self._choose(route, message, value, key, choice)
        if self._interrupts_us():
            self._leave(route, queue, message)
            return
        free = max(0, self._inbox.full_at - message.size)

        def take() -> bool:
            if self._change(lambda: self._hand_over(route, {queue: (message,)}), free, waits=False):
                return True
            return self._has_room(free) and self._leave(route, queue, message)

        self._with_room(free, seconds, take)

    def _accept_chunk(self, topic: str, chunk: list[PendingMessage]) -> None:
        route, seconds = self._route(topic)
        by_queue, free = self._chooser.sort_out(route, chunk), max(0, self._options.buffer_bytes - total_size(chunk))
        self._with_room(free, seconds, lambda: self._change(lambda: self._hand_over_all(route, by_queue), free))

    def _leave(self, route: TopicRoute, queue: MessageQueue, message: PendingMessage) -> bool:
        """Leaves a message to the thread that has the lock, which may be this one."""
        if self._closing:
            raise closed()
        self._inbox.leave(self._engine.sender_for(queue, route), message)
        self._move_inbox()
        return True

    def _move_inbox(self) -> None:
        """A message was left in the inbox for which perhaps no reply will come."""
        self._inbox.must_move = True
        if self._interrupts_us():
            self._wake_maintenance()
        else:
            self._change(self._move, waits=False)

    def _gather_ms(self) -> int:
        """How long `send_many` may pack messages for many queues: longer while the broker has something to do."""
        return BUSY_GATHER_MILLIS if self._unanswered else GATHER_MILLIS

    def _route(self, topic: str) -> tuple[TopicRoute, float]:
        """The route of the topic, and how many seconds the call may still wait."""
        if UNDERWAY:
            tell_now()
        if self._closing:
            self._check_open()
        seconds, route = self._options.timeout, self._routes.cached(topic)
        if route is not None:
            return route, seconds
        route = self._routes.usable(topic)
        if route is not None:
            self._routes.refresh(topic, provisional=True)
            return route, seconds
        began = self._clock.now()
        route = self._ask_for_route(check_sendable(topic), began)
        return route, max(0.0, seconds - (self._clock.now() - began) / 1000)

    def _ask_for_route(self, topic: str, began: Millis) -> TopicRoute:
        """Asks until a name server answers. A callback asks once: it runs on the thread that settles messages."""
        if self._interrupts_us():
            raise inside_a_call("the first message to a topic")
        seconds, last = route_seconds(self._options), None
        for failures in itertools.count(1):
            left = seconds - (self._clock.now() - began) / 1000
            if left <= 0:
                break
            try:
                return self._routes.get(topic, provisional=True, timeout=left)
            except TransportError as error:
                if self._guard.in_callback:
                    raise
                last = error
            if self._changed.wait_until(lambda: self._closing, min(route_pause(failures), left)):
                raise closed()
        raise no_route(topic, seconds, last)

    def _with_room(self, free: int, seconds: float, take: Callable[[], bool]) -> None:
        """Takes messages when no more than `free` bytes are in the buffer: waits for that, at most `seconds`.

        A callback does not wait, because it runs on the thread that makes room. A message larger than the whole buffer
        is accepted when the buffer is empty.
        """
        if take():
            return
        until = _REAL_CLOCK.now() + to_millis(seconds)
        while self._changed.wait_until(lambda: self._has_room(free), (until - _REAL_CLOCK.now()) / 1000):
            if take():
                return
        raise buffer_full(self._options.buffer_bytes, self._options.timeout)

    def _has_room(self, free: int) -> bool:
        in_buffer = self._engine.unsettled.bytes + self._inbox.bytes
        return in_buffer <= free or self._closing or self._guard.in_callback

    # the lock, and what must not wait

    def _locked(self, act: Callable[[], T]) -> T:
        """Calls `act` with the lock held, which is taken by a plain `with`: a signal handler cannot raise between the
        moment in which the lock is taken and the block."""
        me = get_ident()
        if self._inside == me:
            raise inside_a_call("this call")
        try:
            with self._lock:
                self._inside = me
                try:
                    return act()
                finally:
                    self._inside = 0
        finally:
            if self._inbox.must_move:
                self._change(self._move, waits=False)

    def _change(self, step: Callable[[], Actions], free: int | None = None, *, waits: bool = True) -> bool:
        """As `_locked`, then carries out what the step decided. Does nothing, and returns False, if the buffer has more
        than `free` bytes, or if it `waits` for no other thread and one has the lock.

        Errors of LaneMQ are raised before anything changes; anything else comes from a signal handler.
        """
        me = get_ident()
        if self._inside == me:
            raise inside_a_call("this call")
        mine = False
        try:
            [mine] = map(self._lock.acquire, (waits,))  # a signal handler cannot raise before `mine` is set
            if not mine:
                return False
            self._inside = me
            if free is not None and self._engine.unsettled.bytes > free and not self._has_room(free):
                return False
            actions = step()
            links = self._line_up(actions.requests)
        except LaneError:
            raise
        except BaseException as error:
            if mine:
                self._give_up(error)
            raise
        finally:
            if mine:
                self._inside = 0
                self._lock.release()
                if self._inbox.must_move:
                    self._change(self._move, waits=False)
        self._write(links)
        self._finish(actions)
        return True

    def _interrupts_us(self) -> bool:
        """Whether this is a call of a finalizer or a signal handler, in the middle of the producer's own work."""
        me = get_ident()
        return self._inside == me or (me in CLIENT_THREADS and not self._guard.in_callback)

    def _check_may_wait(self, call: str) -> None:
        if UNDERWAY:
            tell_now()
        if self._guard.in_callback:
            raise UsageError(
                f"{call}() inside a callback of submit() would wait for the thread it runs on: use submit() there, "
                f"or leave it to another thread"
            )
        if self._interrupts_us():
            raise inside_a_call(f"{call}()")

    def _give_up(self, error: BaseException) -> None:
        """An exception of a signal handler left a change of the senders half done; with the lock held.

        Some messages may have no sender any more, and messages behind them must not be stored. So nothing more is sent,
        everything that is left fails, in senders and inbox, and the producer closes in the background.
        """
        self._gave_up = True
        outcomes = self._engine.abandon()
        outcomes += self._inbox.left_over({id(message) for outcome in outcomes for message in outcome.messages})
        was_closing, self._closing, self._close_by = self._closing, True, 0
        self._adjust_inbox()
        self._changed.ring()
        close_aside(partial(self._end_interrupted, error, outcomes, ends=not was_closing))

    def _end_interrupted(self, error: BaseException, outcomes: list[Outcome], *, ends: bool) -> None:
        log.error("%s interrupted a call of the producer: it closes, and what it had accepted fails", repr(error))
        report_abandoned(log, outcomes)
        notify_all(outcomes)
        if ends:
            self._end_again()

    # connections

    def _post(self, link: ProducerLink, request: SendRequest) -> None:
        link.line_up(request.command, request)

    def _write(self, links: Iterable[ProducerLink]) -> None:
        """The maintenance thread leaves writing to others: a stalled broker would block it."""
        for link in links:
            if self._guard.is_maintenance:
                link.flush_aside()
            else:
                link.flush()

    def _notify(self, outcomes: Iterable[Outcome]) -> None:
        guard = self._guard
        was_in_callback, guard.in_callback = guard.in_callback, True
        try:
            notify_all(outcomes)
        except BaseException:
            if threading.current_thread() is threading.main_thread():
                raise
            log.exception("a callback of a message raised; the other messages were notified")
        finally:
            guard.in_callback = was_in_callback

    def _tell_waiting(self) -> None:
        if self._changed:
            self._changed.ring()

    def _wake_maintenance(self) -> None:
        self._is_woken = True
        self._alarm.ring()

    def _refresh_route(self, topic: str) -> None:
        self._routes.refresh(topic, provisional=True)

    def _hang_up(self, link: ProducerLink) -> None:
        link.hang_up()

    def _beat(self, link: ProducerLink) -> None:
        link.post_oneway(heartbeat(self._client_id, self._options.group), aside=self._guard.is_maintenance)

    def _start_dialing(self, broker: str, topic: str) -> None:
        name = f"lanemq-dial-{broker}"
        ClientThread(target=self._dial, args=(broker, topic), name=name, daemon=True).start()

    def _dial(self, broker: str, topic: str) -> None:
        server: object = broker
        try:
            server = address = self._routes.get(topic, provisional=True).master(broker)
            lost, options = partial(self._lost, broker), self._options
            stall = min(self._sending.answer_timeout / 1000, options.timeout, options.delivery_timeout)
            link = ProducerLink(
                address, on_replies=self._replied, on_lost=lost, write_timeout=stall, security=self._security
            )
        except Exception as error:  # noqa: BLE001 - if not reported, the broker would never be dialled again
            self._has_not_dialed(broker, topic, server, error)
        else:
            self._has_dialed(broker, link)

    # the maintenance thread

    def _maintain(self) -> None:
        """Runs until the producer is closed, whatever fails: without it nothing would be sent again."""
        pause, self._guard.is_maintenance = 0.0, True
        while not self._closed:
            self._alarm.wait_until(lambda: self._is_woken, pause)
            self._is_woken = False
            try:
                self._maintain_once()
                pause = self._pause()
            except Exception:
                log.exception("unexpected error in the producer's maintenance thread, which continues")
                pause = TICK_SECONDS


class CallbackGuard(threading.local):
    """What the current thread does for the producer."""

    in_callback = False
    """It runs callbacks of `submit`, and settles nothing until they return: one that waited for a message would wait
    for itself."""
    is_maintenance = False
    """It never waits for a broker: other brokers' deadlines would not be kept."""


def inside_a_call(call: str) -> UsageError:
    return UsageError(
        f"{call} would wait for work of the producer that its own thread is in the middle of, because a finalizer or a "
        f"signal handler made it: use submit() or send_oneway() there, or leave it to another thread"
    )
