"""The blocking producer: threads, plain sockets, no event loop.

Callers write to the socket themselves; the reader thread of a connection settles what was answered and sends
what has gathered meanwhile, so batches form exactly while the broker is busy. One keeper thread looks after
time: deadlines, back-off, heartbeats, new connections. Everything that decides is `send_engine`; this file
moves its decisions to sockets and waiters. One lock guards the engine and is never held while writing.
"""

import logging
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from typing import Self, TypeAlias, Unpack

from lanemq.client.identity import new_client_id, new_producer_id
from lanemq.client.keyword_options import producer_options
from lanemq.client.producer_options import ProducerSettings
from lanemq.client.receipt import Receipt
from lanemq.client.route_lookup import BlockingRoutes
from lanemq.client.routes import TopicRoute
from lanemq.client.send_batch import Batch
from lanemq.client.send_engine import SendEngine
from lanemq.client.send_packing import Choice, Many, Packer, QueueChooser, check_sendable, choice_of
from lanemq.client.send_requests import Extras, Parcel, RequestBuilder, extras_of, heartbeat
from lanemq.client.send_tickets import UNHEARD, SubmittedFuture, Ticket, WaitingCrowd, WaitingThread
from lanemq.client.send_work import SendRequest, Work, closed, not_reached
from lanemq.clock import Clock, SystemClock
from lanemq.core.sharding import Selector
from lanemq.model.errors import LaneError, LaneFrozen, RequestTimedOut, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.net.address import parse_addresses
from lanemq.net.blocking import DuplexConnection
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
"""How exact deadlines are. Idle ticks cost nothing worth counting; waking the keeper for every send would."""

CLOSE_SPARE_SECONDS = 1.0
"""How long `close` waits beyond the deadline of the youngest message: the keeper is not that exact."""

HEARTBEAT_MILLIS = 30_000
"""RocketMQ's ClientConfig.heartbeatBrokerInterval; brokers close connections that are silent for 120 s."""

Told: TypeAlias = tuple[Ticket, bool]
"""Whom to tell, and whether they hear of a failure before they send anything else."""


class _Here(threading.local):
    """What the present thread is doing."""

    is_telling = False
    """Callers' callbacks run now; nothing is settled on this thread before they return."""


class Producer:
    """Sends messages and keeps those of a key in order. Safe for any number of threads."""

    def __init__(self, servers: str, *, clock: Clock | None = None, **settings: Unpack[ProducerSettings]) -> None:
        self._clock = clock or SystemClock()
        self._client_id = new_client_id()
        self._options = producer_options(self._clock, self._client_id, **settings)
        self._routes = BlockingRoutes(parse_addresses(servers), self._clock)
        self._packer = Packer(self._options)
        self._chooser = QueueChooser()
        builder = RequestBuilder(self._options.group, self._client_id, new_producer_id())
        self._engine = SendEngine(self._options, builder, self._clock)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._links: dict[str, DuplexConnection] = {}
        self._closing = self._closed = False
        self._here = _Here()
        self._wake = threading.Event()
        self._next_heartbeat = 0
        self._keeper = threading.Thread(target=self._keep, name="lanemq-producer", daemon=True)
        self._keeper.start()

    # sending

    def send(
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
        self._check_may_wait("send")
        ticket = WaitingThread()
        extras = extras_of(tag, keys, properties, delay_level)
        self._accept(topic, value, key, extras, choice_of(selector, arg, queue), (ticket, True))
        return ticket.wait()

    def submit(
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
    ) -> Future[Receipt]:
        """Takes its place in line at once; the future says how it ended. Waits only while the buffer is full.

        If it fails, the lane is frozen: what was submitted behind it fails with `LaneFrozen`, and so does what
        comes later, until `resume`.
        """
        ticket = SubmittedFuture()
        extras = extras_of(tag, keys, properties, delay_level)
        try:
            self._accept(topic, value, key, extras, choice_of(selector, arg, queue), (ticket, False))
        except LaneFrozen as error:
            ticket.failed(0, error)
        return ticket

    def send_oneway(
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
        extras = extras_of(tag, keys, properties, 0)
        self._accept(topic, value, key, extras, choice_of(selector, arg, queue), (UNHEARD, True))

    def send_many(self, topic: str, messages: Many) -> list[Receipt]:
        """Stores all messages, those of a key in the order given; the fast way for more than a few.

        Raises the error of the first message that failed; nothing behind it in its queue is stored, others of the
        call may be. No more messages are read after a failure.
        """
        self._check_may_wait("send_many")
        crowd = WaitingCrowd()
        count = 0
        try:
            try:
                for run in self._packer.runs(messages, crowd):
                    self._accept_run(topic, run)
                    count += len(run)
            except LaneError as error:
                crowd.failed(count, error)  # it stands for its run; the caller hears of the earliest failure
                count += 1
            crowd.close(count)
            return crowd.wait()
        finally:
            with self._lock:
                self._engine.call_ended(crowd)

    def batch(self, topic: str) -> Batch:
        """`with producer.batch("orders") as batch: batch.add(value, key=...)` sends all at the end of the block."""
        return Batch(self, topic)

    # life

    def flush(self) -> None:
        """Waits until everything accepted so far is settled, one way or the other; not for what comes later."""
        self._check_may_wait("flush")
        self._settle(None)

    def _settle(self, seconds: float | None) -> None:
        with self._lock:
            links = self._line_up(self._engine.hurry())
            mark = self._engine.mark()
        self._write(links)
        with self._changed:
            self._wait_until(lambda: mark.settled, seconds)

    def resume(self, topic: str, *, key: str | int | None = None, queue: int | MessageQueue | None = None) -> None:
        """Opens the frozen lane of a key (or a queue) again; without either, all frozen lanes of the topic."""
        route = self._route(topic)
        if key is None and queue is None:
            queues: Sequence[MessageQueue] = route.publish
        else:
            queues = [self._chooser.choose(route, None, key, Choice(queue=queue))]
        with self._lock:
            for each in queues:
                self._engine.resume(each)

    def close(self) -> None:
        """Refuses new messages, settles what was accepted (at most `timeout` seconds), ends connections and threads."""
        self._check_may_wait("close")
        with self._changed:
            if self._closing:
                return
            self._closing = True
            self._changed.notify_all()  # whoever waits for space waits in vain
        self._settle(self._options.timeout + CLOSE_SPARE_SECONDS)
        with self._lock:
            self._closed = True
        self._wake.set()
        self._keeper.join()
        for link in tuple(self._links.values()):
            link.close()
        self._routes.close()
        with self._lock:
            outcomes = self._engine.abandon()
        for outcome in outcomes:
            outcome.tell()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # inside: taking parcels in

    def _check_may_wait(self, call: str) -> None:
        if self._here.is_telling:
            raise UsageError(
                f"{call}() inside a callback of submit() would wait for the thread it runs on: use submit() there, "
                f"or leave it to another thread"
            )

    def _route(self, topic: str) -> TopicRoute:
        if self._closing:
            raise closed()
        return self._routes.cached(topic) or self._routes.get(check_sendable(topic), provisional=True)

    def _accept(
        self, topic: str, value: object, key: str | int | None, extras: Extras, choice: Choice | None, told: Told
    ) -> None:
        route, engine = self._route(topic), self._engine
        parcel = self._packer.one(value, key, extras)
        parcel.ticket, parcel.told = told
        queue = self._chooser.choose(route, value, key, choice) if choice else self._chooser.by_key(route, key)
        with self._lock:
            if engine.buffered_bytes + parcel.size > self._options.buffer_bytes:
                self._wait_for_space(parcel.size)
            if self._closing:
                raise closed()
            stamps, creates = route.is_lane(queue.broker), route.provisional
            lane = engine.offer(queue, (parcel,), checks_stamps=stamps, creates=creates, hurry=parcel.told)
            requests = engine.pump(lane)
            links = self._line_up(requests) if requests else ()
            wake = engine.needs_keeper(lane)
        for link in links:
            link.flush()
        if wake:
            self._wake.set()

    def _accept_run(self, topic: str, run: list[tuple[str | int | None, Parcel]]) -> None:
        route = self._route(topic)
        placed = self._chooser.sort_out(route, run)
        with self._lock:
            self._wait_for_space(sum([parcel.size for _, parcel in run]))
            if self._closing:
                raise closed()
            lanes = self._engine.offer_all(placed, route)
            links = self._line_up([request for lane in lanes for request in self._engine.pump(lane)])
            wake = any([self._engine.needs_keeper(lane) for lane in lanes])
        self._write(links)
        if wake:
            self._wake.set()

    def _wait_for_space(self, size: int) -> None:
        """With the lock held. A callback never waits: it runs on the thread that makes room."""
        engine, free = self._engine, self._options.buffer_bytes - size
        if engine.buffered_bytes <= free or self._here.is_telling:
            return
        if not self._wait_until(lambda: engine.buffered_bytes <= free or self._closing, self._options.timeout):
            raise RequestTimedOut(
                f"the buffer of {self._options.buffer_bytes} bytes stayed full for {self._options.timeout:g} s: "
                f"the broker is slower than this producer"
            )

    def _wait_until(self, true: Callable[[], bool], seconds: float | None = None) -> bool:
        self._waiting += 1
        try:
            return self._changed.wait_for(true, seconds)
        finally:
            self._waiting -= 1

    # inside: carrying out what the engine decided

    def _line_up(self, requests: Iterable[SendRequest]) -> set[DuplexConnection]:
        """With the lock held, so that two threads cannot swap two batches of a lane. Writing comes after it."""
        links = set()
        for request in requests:
            link = self._links[request.broker]
            link.line_up(request.command, partial(self._replied, request))
            links.add(link)
        return links

    def _write(self, links: Iterable[DuplexConnection]) -> None:
        for link in links:
            link.flush()

    def _replied(self, request: SendRequest, reply: Command | None, error: LaneError | None) -> None:
        with self._lock:
            work = self._engine.replied(request, reply, error)
            links = self._line_up(work.requests)
        self._write(links)
        self._finish(work)
        if not work.outcomes:
            self._wake.set()  # something is to be tried again later

    def _finish(self, work: Work) -> None:
        here = self._here
        was_telling, here.is_telling = here.is_telling, True
        try:
            for outcome in work.outcomes:
                outcome.tell()
        finally:
            here.is_telling = was_telling
        for topic in work.stale_topics:
            self._routes.stale(topic)
        for broker in work.hang_up:
            log.warning("broker %s does not answer, connecting anew", broker)
            self._links[broker].hang_up()
        if self._waiting:
            with self._changed:
                self._changed.notify_all()

    # inside: the keeper thread

    def _keep(self) -> None:
        """Ends with the producer and not before, whatever it meets: without it nothing is ever tried again."""
        pause = 0.0
        while not self._closed:
            self._wake.wait(pause)
            self._wake.clear()
            try:
                self._look_after()
                pause = self._pause()
            except Exception:
                log.exception("the producer's keeper met something unexpected and goes on")
                pause = TICK_SECONDS

    def _look_after(self) -> None:
        with self._lock:
            work = self._engine.tick()
            links = self._line_up(work.requests)
            dial = self._engine.to_dial()
        self._write(links)
        self._finish(work)
        for broker, topic in dial:
            name = f"lanemq-dial-{broker}"
            threading.Thread(target=self._dial, args=(broker, topic), name=name, daemon=True).start()
        if self._clock.now() >= self._next_heartbeat:
            self._next_heartbeat = self._clock.now() + HEARTBEAT_MILLIS
            for link in tuple(self._links.values()):
                link.post_oneway(heartbeat(self._client_id, self._options.group))

    def _pause(self) -> float:
        with self._lock:
            wake = self._engine.next_wake()
        return TICK_SECONDS if wake is None else min(TICK_SECONDS, max(0, wake - self._clock.now()) / 1000)

    def _dial(self, broker: str, topic: str) -> None:
        try:
            address = self._routes.get(topic, provisional=True).master(broker)
            link = DuplexConnection(address, on_lost=partial(self._lost, broker))
        except Exception as error:  # noqa: BLE001 - whatever it was: not told, the broker would never be dialled again
            self._routes.stale(topic)
            with self._lock:
                self._engine.dial_failed(broker, not_reached(broker, error))
            return
        link.post_oneway(heartbeat(self._client_id, self._options.group))
        with self._lock:
            self._links[broker] = link
            too_late = self._closed  # else `close` finds it among the links
            links = () if too_late else self._line_up(self._engine.connected(broker))
            if not link.is_open:  # lost before it was ours, so `_lost` did not know it
                self._engine.disconnected(broker)
        if too_late:
            link.close()
        self._write(links)

    def _lost(self, broker: str, link: DuplexConnection) -> None:
        with self._lock:
            if self._links.get(broker) is link:
                self._engine.disconnected(broker)
        self._wake.set()
