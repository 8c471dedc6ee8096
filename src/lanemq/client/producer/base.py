"""What both producers share: their parts, `drop`, `frozen_keys` and batch blocks.

`Producer` adds threads and sockets, `AsyncProducer` tasks on an event loop. Everything that touches the engine or the
inbox does so under `_lock`, which is a null context on an event loop.
"""

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Protocol, Self, TypeVar, Unpack

from lanemq.background_log import ClientLog
from lanemq.client import metrics as names
from lanemq.client.identity import new_client_id, new_producer_id
from lanemq.client.producer.batches import (
    GATHERED_PER_QUEUE,
    Many,
    MessageArguments,
    Outgoing,
    Packer,
    PendingMessage,
    QueueChoice,
    RequestBuilder,
    gathered,
    heartbeat,
)
from lanemq.client.producer.choosing import QueueChooser
from lanemq.client.producer.ending import watch
from lanemq.client.producer.engine import DIAL_BACKOFF_MILLIS, Actions, SendEngine
from lanemq.client.producer.freezes import Frozen
from lanemq.client.producer.inbox import SendInbox
from lanemq.client.producer.options import ProducerOptions, ProducerSettings, producer_options
from lanemq.client.producer.outcomes import Outcome
from lanemq.client.producer.waiters import BatchWaiter, SingleWaiter
from lanemq.client.receipt import Receipt, Receipts
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock, SystemClock
from lanemq.forking import tell_child
from lanemq.model.checks import seconds
from lanemq.model.errors import Closed, ConnectFailed, LaneError, RequestTimedOut, TransportError
from lanemq.model.figures import MetricSample
from lanemq.model.keys import Key, key_text
from lanemq.model.names import check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Seconds
from lanemq.net.address import Address, Servers, servers_text
from lanemq.net.rate_limited_log import OutageLog
from lanemq.wire.command import Command

TICK_SECONDS = 0.2
"""How exact deadlines are. Idle ticks cost next to nothing; waking the maintenance thread for every send would not."""

GATHER_MILLIS, BUSY_GATHER_MILLIS, ASYNC_GATHER_MILLIS = 20, 100, 5
"""How long `send_many` packs messages for many queues before it sends them; longer while the broker has requests to
answer. On an event loop, other tasks wait."""

CLOSE_SPARE_SECONDS = 1.0
"""How long `close` waits beyond the deadline of the youngest message, because deadlines are not exact."""

HEARTBEAT_MILLIS = 30_000
"""RocketMQ's ClientConfig.heartbeatBrokerInterval; brokers close connections that are silent for 120 s."""


class _Link(Protocol):
    address: Address
    is_open: bool


L = TypeVar("L", bound=_Link)


class ProducerBase(ABC):
    """A producer without connections."""

    _log: ClassVar[ClientLog]
    _engine_log: ClassVar[ClientLog]
    _chooser: QueueChooser

    def __init__(self, servers: Servers, clock: Clock | None, settings: ProducerSettings) -> None:
        self._servers = servers_text(servers)
        self._arguments = clock, settings
        self._begin()
        tell_child(self)
        watch(self)

    @abstractmethod
    def _begin(self) -> None:
        """Makes everything that the producer consists of; again in a child process."""

    def _begin_with(self, lock: AbstractContextManager[object], new_future: Callable[[], Any]) -> None:
        clock, settings = self._arguments
        self._lock = lock
        self._clock = clock or SystemClock()
        self._client_id = new_client_id()
        self._options = producer_options(self._clock, self._client_id, **settings)
        self._security = self._options.security
        self._packer = Packer(self._options)
        builder = RequestBuilder(self._options.group, self._client_id, new_producer_id())
        self._engine = SendEngine(self._options, builder, self._clock)
        self._inbox = SendInbox(self._options, self._packer, new_future, self._empty_inbox)
        self._take = self._inbox.take
        self._unanswered = 0
        self._closing = self._closed = False
        self._in_child = False
        self._next_heartbeat = 0

    def _chunks(
        self, messages: Many, waiter: BatchWaiter, route: Callable[[], TopicRoute | None], max_ms: Callable[[], int]
    ) -> Iterator[list[PendingMessage]]:
        """What `send_many` hands over at once: as much as the topic's queues need for batches worth a request."""

        def wanted() -> int:
            known = route()
            return 0 if known is None else GATHERED_PER_QUEUE * len(known.publish)

        chunks, max_bytes = self._packer.chunks(messages, waiter), self._options.buffer_bytes // 4
        return gathered(chunks, waiter, wanted, max_bytes, max_ms, self._clock)

    @abstractmethod
    def end_with_program(self, seconds: float) -> None:
        """The program ends, and this producer was perhaps not closed."""

    # after a fork

    def forked(self) -> None:
        """In a child process: lets go of everything that belongs to the parent. The next call starts anew."""
        if self._closed:
            return
        self._in_child = self._closing = True
        self._starting = threading.Lock()
        self._take = _take_nothing
        self._leave_to_parent()

    @abstractmethod
    def _leave_to_parent(self) -> None:
        """Gives up connections and messages without a word to the broker: the parent goes on with them."""

    def _check_child(self) -> None:
        if self._in_child:
            self._check_open()

    def _check_open(self) -> None:
        """Raises `Closed`; in a child process it starts the producer anew, with an identity of its own."""
        if self._in_child:
            with self._starting:
                if self._in_child:
                    self._begin()
                    watch(self)
        if self._closing:
            raise closed()

    # calls

    def drop(self, topic: str, *, key: Key) -> int:
        """Gives up the waiting messages of a key and resumes the key; returns how many messages.

        Messages in flight are settled as usual.
        """
        text = key_text(key)
        check_topic(topic)
        self._check_child()
        self._empty_inbox()
        with self._lock:
            outcomes = self._engine.drop(topic, text)
        self._finish(Actions(outcomes=outcomes))
        return sum(len(outcome.messages) for outcome in outcomes)

    def frozen_keys(self, topic: str | None = None) -> list[Frozen]:
        """What is frozen, since when and why; an entry without a key is a queue that is frozen as a whole."""
        if topic is not None:
            check_topic(topic)
        self._check_child()
        with self._lock:
            return self._engine.frozen(topic)

    def metrics(self) -> dict[str, float]:
        """All metrics of docs/reference/metrics.md, by their names and labels. Any thread may call it."""
        self._check_child()
        with self._lock:
            unsettled, frozen = self._engine.unsettled, len(self._engine.frozen(None))
            figures = (
                (names.STORED, unsettled.stored_messages),
                (names.FAILED, unsettled.failed_messages),
                (names.UNSETTLED_BYTES, unsettled.bytes),
                (names.FROZEN, frozen),
            )
        return names.as_numbers(MetricSample(metric, value, (self._options.group,)) for metric, value in figures)

    def _resume(self, route: TopicRoute, key: Key | None, queue: int | MessageQueue | None) -> None:
        choice = None if queue is None else QueueChoice(queue=queue)
        chosen = None if key is None and choice is None else self._chooser.choose(route, None, key, choice)
        self._empty_inbox()
        with self._lock:
            self._engine.resume(route.topic, None if key is None else key_text(key), chosen)

    def _interrupted(self, waiter: SingleWaiter) -> None:
        """A `send` was interrupted: its caller does not learn the outcome."""
        with self._lock:
            self._engine.send_interrupted(waiter)

    @abstractmethod
    def _empty_inbox(self) -> None:
        """Moves what `submit` left in the inbox to the lanes. Called before anything that must not overtake it."""

    @abstractmethod
    def _finish(self, actions: Actions) -> None:
        """Carries out all actions except requests, which are already written."""

    def _log_lines(self, actions: Actions) -> None:
        """Logs what the engine has to say, when everything else is done: a handler of the log may use the producer."""
        for line in actions.lines:
            self._engine_log.log(line.level, line.text, *line.args)

    def _close_seconds(self, timeout: Seconds | None) -> float:
        settled = self._options.delivery_timeout + CLOSE_SPARE_SECONDS
        return settled if timeout is None else min(settled, seconds("timeout", timeout))

    # maintenance

    def _pause(self) -> float:
        """Seconds until maintenance is needed again."""
        with self._lock:
            wake = self._engine.next_wake()
        return TICK_SECONDS if wake is None else min(TICK_SECONDS, max(0, wake - self._clock.now()) / 1000)

    def _former_masters(self, known: Callable[[str], TopicRoute | None], links: Mapping[str, L]) -> list[L]:
        """Open connections to brokers whose master is at another address now. What they have not answered is sent to
        the new master when they are closed."""
        old: list[L] = []
        for broker, link in links.items():
            route = known(self._engine.topic_of(broker)) if link.is_open else None
            master = route.master_of(broker) if route is not None else None
            if master is not None and master != link.address:
                self._log.warning("broker %s has another master now: %s instead of %s", broker, master, link.address)
                old.append(link)
        return old

    def _heartbeat(self) -> Command:
        return heartbeat(self._client_id, self._options.group)

    def _heartbeat_is_due(self) -> bool:
        """True once per interval."""
        now = self._clock.now()
        if now < self._next_heartbeat:
            return False
        self._next_heartbeat = now + HEARTBEAT_MILLIS
        return True


def _take_nothing(topic: str, key: str, value: object, waiter: object = None) -> None:
    """`SendInbox.take` of a producer that has to start anew first."""


def buffer_full(size: int, seconds: float) -> RequestTimedOut:
    return RequestTimedOut(
        f"the buffer of {size} bytes stayed full for {seconds:g} s: the broker is slower than this producer"
    )


def route_seconds(options: ProducerOptions) -> float:
    """How long a call waits for the first route of its topic: as long as its message would wait for its broker."""
    return min(options.timeout, options.delivery_timeout)


def route_pause(failures: int) -> float:
    """Seconds until a question for a route is asked again that had no answer so many times."""
    return DIAL_BACKOFF_MILLIS[min(failures, len(DIAL_BACKOFF_MILLIS) - 1)] / 1000


def no_route(topic: str, seconds: float, last: TransportError | None) -> TransportError:
    """The error of a call that found no route, of the kind of the last failure."""
    text = f"no name server answered within {seconds:g} s: where topic {topic!r} is stored is not known"
    if last is None or isinstance(last, RequestTimedOut):
        return RequestTimedOut(text if last is None else f"{text}; the last problem was: {last}")
    return type(last)(f"{text}; the last problem was: {last}")


def no_receipt(topic: str, options: ProducerOptions) -> RequestTimedOut:
    return RequestTimedOut(
        f"no receipt for a message to topic {topic!r} within {options.timeout:g} s: it may be stored or not, and waits "
        f"for its broker until delivery_timeout ({options.delivery_timeout:g} s); raise timeout to wait for it"
    )


def report_abandoned(log: ClientLog, outcomes: Sequence[Outcome], waiting: int = 0) -> None:
    """Warns of messages that the producer gave up because it, or the program, ended."""
    count = waiting + sum(len(outcome.messages) for outcome in outcomes)
    if count:
        log.warning("the producer ended before its broker answered: messages that may be lost: %d", count)


def no_answer(seconds: float) -> RequestTimedOut:
    return RequestTimedOut(f"no reply to a send request within {seconds:g} s, connecting anew")


def closed() -> Closed:
    return Closed("this producer is closed: make a new one")


def not_reached(log: ClientLog, outages: OutageLog, broker: str, server: object, error: Exception) -> LaneError:
    """The error of a failed attempt to connect. Logs it, an unexpected one with its traceback."""
    if isinstance(error, LaneError):
        outages.failed(server, error)
        return error
    log.error("unexpected error while connecting to broker %s", broker, exc_info=error)
    return ConnectFailed(f"connecting to broker {broker!r} failed unexpectedly: {error!r}")


# batch blocks


class _Collected:
    def __init__(self, topic: str) -> None:
        self._topic = topic
        self._messages: list[Outgoing] = []
        self.receipts: Sequence[Receipt] = ()

    def add(self, value: object, *, key: Key | None = None, **arguments: Unpack[MessageArguments]) -> None:
        """Adds a message; it is sent at the end of the block."""
        self._messages.append(Outgoing(value, key, **arguments))


class BatchBlock(_Collected):
    """`with producer.batch("orders") as batch`; `batch.receipts` afterwards. Sends nothing if the block raises."""

    def __init__(self, producer: "_SendsMany", topic: str) -> None:
        super().__init__(topic)
        self._producer = producer

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.receipts = self._producer.send_many(self._topic, self._messages)


class AsyncBatchBlock(_Collected):
    """`async with producer.batch("orders") as batch`; as `BatchBlock`."""

    def __init__(self, producer: "_SendsManyAsync", topic: str) -> None:
        super().__init__(topic)
        self._producer = producer

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind is None:
            self.receipts = await self._producer.send_many(self._topic, self._messages)


class _SendsMany(Protocol):
    def send_many(self, topic: str, messages: Many) -> Receipts: ...


class _SendsManyAsync(Protocol):
    async def send_many(self, topic: str, messages: Many) -> Receipts: ...
