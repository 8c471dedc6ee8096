"""The blocking producer: threads, plain sockets, no event loop.

Callers write to the socket themselves; the reader thread of a connection settles what was answered and sends
what has gathered meanwhile, so batches form exactly while the broker is busy. One keeper thread looks after
time: deadlines, back-off, heartbeats, new connections. Everything that decides is `send_engine`; this file
moves its decisions to sockets and waiters. One lock guards the engine and is never held while writing.
"""

import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from functools import partial
from types import TracebackType
from typing import Any, Self, Unpack

from lanemq.client.producer_options import ProducerOptions, ProducerSettings
from lanemq.client.receipt import Receipt
from lanemq.client.route_lookup import BlockingRoutes
from lanemq.client.routes import TopicRoute
from lanemq.client.send_engine import SendEngine, SendRequest, Work, settle
from lanemq.client.send_packing import Many, Outgoing, Packer, QueueChooser, check_sendable
from lanemq.client.send_requests import Extras, Parcel, extras_of
from lanemq.client.send_tickets import SubmittedFuture, Ticket, Unheard, WaitingCrowd, WaitingThread
from lanemq.clock import Clock, SystemClock
from lanemq.core.sharding import Selector
from lanemq.model.errors import Closed, LaneError, RequestTimedOut, TransportError
from lanemq.model.queue import MessageQueue
from lanemq.net.address import parse_addresses
from lanemq.net.blocking import DuplexConnection
from lanemq.wire.command import Command

log = logging.getLogger(__name__)

TICK_SECONDS = 0.2
"""How exact deadlines are. Idle ticks cost nothing worth counting; waking the keeper for every send would."""

KEEPER_NAME = "lanemq-producer"


class Producer:
    """Sends messages and keeps those of a key in order. Safe for any number of threads."""

    def __init__(
        self, servers: str, *, clock: Clock | None = None, **settings: Unpack[ProducerSettings]
    ) -> None:
        self._options = ProducerOptions(**settings)
        self._clock = clock or SystemClock()
        self._routes = BlockingRoutes(parse_addresses(servers), self._clock)
        self._packer = Packer(self._options)
        self._chooser = QueueChooser()
        self._engine = SendEngine(self._options, self._clock)
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._waiting = 0
        self._links: dict[str, DuplexConnection] = {}
        self._dialing: set[str] = set()
        self._closed = False
        self._wake = threading.Event()
        self._keeper = threading.Thread(target=self._keep, name=KEEPER_NAME, daemon=True)
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
        ticket = WaitingThread()
        extras = extras_of(tag, keys, properties, delay_level)
        self._accept(topic, value, key, extras, (selector, arg, queue), ticket, told=True)
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
        self._accept(topic, value, key, extras, (selector, arg, queue), ticket, told=False)
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
        self._accept(topic, value, key, extras, (selector, arg, queue), Unheard(), told=True)

    def send_many(self, topic: str, messages: Many) -> list[Receipt]:
        """Stores all messages, those of a key in the order given; the fast way for more than a few.

        Raises the error of the first message that failed; others of the call may be stored.
        """
        crowd = WaitingCrowd()
        count = 0
        try:
            for count, (key, parcel) in enumerate(self._packer.many(messages, crowd), 1):
                route = self._routes.cached(topic) or self._route(topic)
                self._line_up_one(route, self._chooser.by_key(route, key), parcel)
        finally:
            self._send_waiting()
            crowd.close(count)
        return crowd.wait()
