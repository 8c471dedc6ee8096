"""What is inside a blocking producer: its lock, its threads, and the way between engine and sockets.

Callers write to the socket themselves; the reader thread of a connection settles what was answered and sends
what has gathered meanwhile, so batches form exactly while the broker is busy. One keeper thread looks after
time: deadlines, back-off, heartbeats, new connections; it never writes itself, so that no broker can stop it.
Everything that decides is `send_engine`; this file moves its decisions to sockets and waiters. One lock guards the
engine and is never held while writing.
"""

import logging
import threading
from collections.abc import Callable, Iterable
from functools import partial
from typing import Unpack

from lanemq.client.producer.base import ProducerBase, Told
from lanemq.client.producer.callback_guard import Here
from lanemq.client.producer.options import ProducerSettings
from lanemq.client.producer.packing import Choice, check_sendable
from lanemq.client.producer.requests import Extras, Parcel, total_size
from lanemq.client.producer.waiters import SubmittedFuture
from lanemq.client.producer.work import NO_WORK, TICK_SECONDS, SendRequest, Work, buffer_full, closed, not_reached
from lanemq.client.routing import BlockingRoutes, TopicRoute
from lanemq.clock import Clock
from lanemq.model.errors import LaneError
from lanemq.net.address import parse_addresses
from lanemq.net.blocking import DuplexConnection
from lanemq.wire.command import Command

log = logging.getLogger(__name__)


class ProducerShell(ProducerBase):
    """Everything of a `Producer` but its calls."""

    def __init__(self, servers: str, *, clock: Clock | None = None, **settings: Unpack[ProducerSettings]) -> None:
        lock = threading.Lock()
        super().__init__(lock, SubmittedFuture, clock, settings)
        self._routes = BlockingRoutes(parse_addresses(servers), self._clock, security=self._security)
        self._changed = threading.Condition(lock)
        self._waiting = 0
        self._links: dict[str, DuplexConnection] = {}
        self._ended = threading.Event()
        self._here = Here()
        self._wake = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name="lanemq-producer", daemon=True)
        self._keeper.start()

    # taking parcels in

    def _route(self, topic: str) -> TopicRoute:
        if self._closing:
            raise closed()
        return self._routes.cached(topic) or self._routes.get(check_sendable(topic), provisional=True)

    def _accept(
        self, topic: str, value: object, key: str | int | None, extras: Extras, choice: Choice | None, told: Told
    ) -> None:
        route, engine = self._route(topic), self._engine
        parcel = self._packed(value, key, extras, told)
        queue = self._queue_for(route, value, key, choice)
        if self._inbox:
            self._empty_inbox()
        with self._lock:
            if engine.buffered_bytes + parcel.size > self._options.buffer_bytes:
                self._wait_for_space(parcel.size)
            if self._closing:
                raise closed()
            lane = self._offer(route, queue, parcel)
            links = self._line_up(engine.pump(lane))
            wake = engine.needs_keeper(lane)
        self._write(links)
        if wake:
            self._wake.set()

    def _accept_run(self, topic: str, run: list[tuple[str | int | None, Parcel]]) -> None:
        route = self._route(topic)
        placed = self._chooser.sort_out(route, run)
        self._empty_inbox()
        with self._lock:
            self._wait_for_space(sum(map(total_size, placed.values())))
            if self._closing:
                raise closed()
            lanes = self._engine.offer_all(placed, route)
            links = self._line_up([request for lane in lanes for request in self._engine.pump(lane)])
            wake = any([self._engine.needs_keeper(lane) for lane in lanes])
        self._write(links)
        if wake:
            self._wake.set()

    def _empty_inbox(self) -> None:
        if not self._inbox:
            return
        with self._lock:
            work = self._place_inbox()
            links = self._line_up(work.requests)
        self._write(links)
        self._finish(work)

    def _place_inbox(self) -> Work:
        """With the lock held."""
        work, wake = self._inbox.place_all(self._engine)
        if wake:
            self._wake.set()
        if self._closed:  # too late even for the end of `close`
            work.outcomes += self._engine.abandon()
        return work

    def _adjust_inbox(self) -> None:
        """With the lock held, after anything that changes what it depends on."""
        self._inbox.adjust(self._unanswered > 0 and not self._closing, self._engine.buffered_bytes)

    def _wait_for_space(self, size: int) -> None:
        """With the lock held. A callback never waits: it runs on the thread that makes room.

        What is larger than the buffer, with what each message costs beside its body, is let in when that is empty.
        """
        engine, free = self._engine, max(0, self._options.buffer_bytes - size)
        if engine.buffered_bytes <= free or self._here.is_telling:
            return
        if not self._wait_until(lambda: engine.buffered_bytes <= free or self._closing, self._options.timeout):
            raise buffer_full(self._options.buffer_bytes, self._options.timeout)

    def _wait_until(self, true: Callable[[], bool], seconds: float | None = None) -> bool:
        self._waiting += 1
        try:
            return self._changed.wait_for(true, seconds)
        finally:
            self._waiting -= 1

    def _settle(self, seconds: float | None) -> None:
        self._empty_inbox()
        with self._lock:
            links = self._line_up(self._engine.hurry())
            mark = self._engine.mark()
        self._write(links)
        with self._changed:
            self._wait_until(lambda: mark.settled, seconds)

    # carrying out what the engine decided

    def _line_up(self, requests: Iterable[SendRequest]) -> set[DuplexConnection]:
        """With the lock held, so that two threads cannot swap two batches of a lane. Writing comes after it."""
        links = set()
        for request in requests:
            link = self._links[request.broker]
            link.line_up(request.command, partial(self._replied, request))
            links.add(link)
            self._unanswered += 1
        self._adjust_inbox()
        return links

    def _write(self, links: Iterable[DuplexConnection]) -> None:
        """The keeper leaves it to others: a broker that takes nothing would stop every deadline."""
        for link in links:
            if self._here.is_keeper:
                link.flush_aside()
            else:
                link.flush()

    def _replied(self, request: SendRequest, reply: Command | None, error: LaneError | None) -> None:
        with self._lock:
            self._unanswered -= 1
            left = self._place_inbox() if self._inbox else NO_WORK
            work = self._engine.replied(request, reply, error)
            links = self._line_up((*left.requests, *work.requests))
        self._write(links)
        self._finish(work)
        self._finish(left)
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

    # the keeper thread

    def _keep(self) -> None:
        """Ends with the producer and not before, whatever it meets: without it nothing is ever tried again."""
        pause, self._here.is_keeper = 0.0, True
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
        self._empty_inbox()
        with self._lock:
            self._inbox.forget_old(self._routes.cached)
            work = self._engine.tick()
            links = self._line_up(work.requests)
            dial = self._engine.to_dial()
        self._write(links)
        self._finish(work)
        for broker, topic in dial:
            name = f"lanemq-dial-{broker}"
            threading.Thread(target=self._dial, args=(broker, topic), name=name, daemon=True).start()
        if self._heartbeat_is_due():
            for link in tuple(self._links.values()):
                link.post_oneway(self._heartbeat(), aside=True)

    def _dial(self, broker: str, topic: str) -> None:
        try:
            address = self._routes.get(topic, provisional=True).master(broker)
            lost, patience = partial(self._lost, broker), min(self._options.request_timeout, self._options.timeout)
            link = DuplexConnection(address, on_lost=lost, write_timeout=patience, security=self._security)
        except Exception as error:  # noqa: BLE001 - whatever it was: not told, the broker would never be dialled again
            self._routes.stale(topic)
            with self._lock:
                self._engine.dial_failed(broker, not_reached(broker, error))
            return
        link.post_oneway(self._heartbeat())
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
