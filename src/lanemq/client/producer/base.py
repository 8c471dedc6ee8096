"""What both producers share: everything but waiting, connecting and writing.

`Producer` adds threads and sockets, `AsyncProducer` tasks on an event loop. Whatever changes the engine is a step of
`_change`: it runs under the producer's lock, which does not exist on an event loop, and what it decides is carried out
after the lock is released: requests are written, senders are notified, lines are logged.

A message has one way in: a call encodes it and leaves it in the inbox, which is emptied into `SendEngine.accept`, which
appends it to the sender of its queue. Messages that the inbox does not take (`_hand_over`) follow it there. It has one
way out: `_replied`, `SendEngine.replied` and the outcome that notifies its waiter.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, Generic, Protocol, Self, TypeVar, Unpack

from lanemq.background_log import ClientLog
from lanemq.client import metrics as names
from lanemq.client.ending import watch
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
    refuse_delay,
)
from lanemq.client.producer.choosing import QueueChooser
from lanemq.client.producer.engine import DIAL_BACKOFF_MILLIS, SENDING, Actions, FlushMark, SendEngine, SendRequest
from lanemq.client.producer.freezes import Frozen, Sender
from lanemq.client.producer.inbox import SendInbox
from lanemq.client.producer.options import ProducerOptions, ProducerSettings, producer_options
from lanemq.client.producer.outcomes import Outcome
from lanemq.client.producer.waiters import BatchWaiter, SingleWaiter, receipt_seconds
from lanemq.client.receipt import Receipt, Receipts
from lanemq.client.routing import CachedRoutes
from lanemq.client.topic_route import TopicRoute
from lanemq.clock import Clock, SystemClock
from lanemq.core.sending.queue_sender import SendOptions
from lanemq.forking import UNDERWAY, tell_child, tell_now
from lanemq.model.checks import seconds
from lanemq.model.errors import Closed, ConnectFailed, LaneError, RequestTimedOut, TransportError
from lanemq.model.figures import Metric, MetricSample
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
"""How long `close` waits beyond the deadline of the newest message, because deadlines are not exact."""

HEARTBEAT_MILLIS = 30_000
"""RocketMQ's ClientConfig.heartbeatBrokerInterval; brokers close connections that are silent for 120 s."""


NOTHING_ELSE: Mapping[Sender, Sequence[PendingMessage]] = MappingProxyType({})


class _Link(Protocol):
    address: Address
    is_open: bool

    def post_oneway(self, command: Command) -> None: ...

    def close(self) -> None: ...


L = TypeVar("L", bound=_Link)
T = TypeVar("T")


class ProducerBase(ABC, Generic[L]):
    """A producer without connections."""

    _log: ClassVar[ClientLog]
    _engine_log: ClassVar[ClientLog]
    _routes: CachedRoutes
    _outages: OutageLog
    _sending: SendOptions = SENDING

    def __init__(self, servers: Servers, clock: Clock | None, settings: ProducerSettings) -> None:
        self._servers = servers_text(servers)
        self._arguments = clock, settings
        self._begin()
        tell_child(self)
        watch(self)

    @abstractmethod
    def _begin(self) -> None:
        """Makes everything that the producer consists of; again in a child process."""

    def _begin_with(self, new_future: Callable[[], Any]) -> None:
        clock, settings = self._arguments
        self._clock = clock or SystemClock()
        self._client_id = new_client_id()
        self._options = producer_options(self._clock, self._client_id, **settings)
        self._security = self._options.security
        self._packer = Packer(self._options)
        self._chooser = QueueChooser(lambda topic: self._routes.missing(topic))
        builder = RequestBuilder(self._options.group, self._client_id, new_producer_id())
        self._engine = SendEngine(self._options, builder, self._clock, self._sending)
        self._inbox = SendInbox(self._options, self._engine, self._packer, new_future)
        self._put_in_inbox = self._inbox.take
        self._may_time_out = receipt_seconds(self._options, 0) is not None
        self._links: dict[str, L] = {}
        self._unanswered = self._in_line = 0
        """Requests without a reply, and calls on an event loop that wait for a route or for room."""
        self._closing = self._closed = self._gave_up = self._in_child = False
        self._next_heartbeat = 0

    @abstractmethod
    def end_with_program(self, seconds: float) -> None:
        """The program ends, and this producer was perhaps not closed."""

    # after a fork

    def forked(self) -> None:
        """In a child process: lets go of everything that belongs to the parent. The next call starts anew."""
        if self._closed:
            return
        self._in_child = self._closing = True
        self._put_in_inbox = _no_inbox
        self._leave_to_parent()

    @abstractmethod
    def _leave_to_parent(self) -> None:
        """Gives up connections and messages without a word to the broker: the parent continues with them."""

    def _check_child(self) -> None:
        if UNDERWAY:
            tell_now()
        if self._in_child:
            self._check_open()

    def _check_open(self) -> None:
        """Raises `Closed`; in a child process it starts the producer anew, with an identity of its own."""
        if self._in_child:
            self._locked(self._start_in_child)
        if self._closing:
            raise closed()

    def _start_in_child(self) -> None:
        if self._in_child:
            self._begin()
            watch(self)

    # calls

    def drop(self, topic: str, *, key: Key) -> int:
        """Gives up the waiting messages of a key and resumes the key; returns how many messages.

        Messages in flight are settled as usual.
        """
        text = key_text(key)
        check_topic(topic)
        self._check_child()
        self._empty_inbox()
        outcomes: list[Outcome] = []

        def step() -> Actions:
            outcomes.extend(self._engine.drop(topic, text))
            return Actions(outcomes=outcomes)

        self._change(step)
        return sum(len(outcome.messages) for outcome in outcomes)

    def frozen_keys(self, topic: str | None = None) -> list[Frozen]:
        """What is frozen, since when and why; an entry without a key is a queue that is frozen as a whole."""
        if topic is not None:
            check_topic(topic)
        self._check_child()
        return self._locked(lambda: self._engine.frozen(topic))

    def metrics(self) -> dict[str, float]:
        """All metrics of docs/reference/metrics.md, by their names and labels. Any thread may call it."""
        self._check_child()
        figures = self._locked(self._figures)
        return names.as_numbers(MetricSample(metric, value, (self._options.group,)) for metric, value in figures)

    def _figures(self) -> tuple[tuple[Metric, int], ...]:
        unsettled = self._engine.unsettled
        return (
            (names.STORED, unsettled.stored_messages),
            (names.FAILED, unsettled.failed_messages),
            (names.UNSETTLED_BYTES, unsettled.bytes),
            (names.FROZEN, len(self._engine.frozen(None))),
        )

    def _resume(self, route: TopicRoute, key: Key | None, queue: int | MessageQueue | None) -> None:
        choice = None if queue is None else QueueChoice(queue=queue)
        chosen = None if key is None and choice is None else self._chooser.choose(route, None, key, choice)
        self._empty_inbox()
        self._locked(lambda: self._engine.resume(route.topic, None if key is None else key_text(key), chosen))

    def _interrupted(self, waiter: SingleWaiter) -> None:
        """A `send` was interrupted: its caller does not learn the outcome."""
        self._locked(lambda: self._engine.send_interrupted(waiter))

    def _call_ended(self, waiter: BatchWaiter, *, interrupted: bool) -> None:
        """A `send_many` ended; if interrupted, its caller does not learn the outcome."""
        self._empty_inbox()
        self._locked(lambda: self._engine.call_ended(waiter, interrupted=interrupted))

    def _close_seconds(self, timeout: Seconds | None) -> float:
        settled = self._options.delivery_timeout + CLOSE_SPARE_SECONDS
        return settled if timeout is None else min(settled, seconds("timeout", timeout))

    # messages in

    def _chunks(
        self, messages: Many, waiter: BatchWaiter, route: Callable[[], TopicRoute | None], max_ms: Callable[[], int]
    ) -> Iterator[list[PendingMessage]]:
        """What `send_many` hands over at once: as much as the topic's queues need for batches worth a request."""

        def wanted() -> int:
            known = route()
            return 0 if known is None else GATHERED_PER_QUEUE * len(known.publish)

        chunks, max_bytes = self._packer.chunks(messages, waiter), self._options.buffer_bytes // 4
        return gathered(chunks, waiter, wanted, max_bytes, max_ms, self._clock)

    def _choose(
        self, route: TopicRoute, message: PendingMessage, value: object, key: Key | None, choice: QueueChoice | None
    ) -> MessageQueue:
        """The queue of a message. Not under the lock: a selector is the caller's code."""
        if message.alone:
            refuse_delay(route, message)
        return self._chooser.choose(route, value, key, choice)

    def _hand_over(self, route: TopicRoute, by_queue: Mapping[MessageQueue, Sequence[PendingMessage]]) -> Actions:
        """Gives messages to their senders, behind those in the inbox. A step of `_change`."""
        if self._closing:
            raise closed()
        self._inbox.learn(route)
        engine = self._engine
        messages = {engine.sender_for(queue, route): together for queue, together in by_queue.items()}
        return self._move(messages) if self._inbox else engine.accept(messages)

    def _hand_over_all(self, route: TopicRoute, by_queue: Mapping[MessageQueue, Sequence[PendingMessage]]) -> Actions:
        """The same for a chunk of `send_many`: all of it, or none if one of its messages may not be sent."""
        self._engine.check(by_queue)
        return self._hand_over(route, by_queue)

    def _move(self, others: Mapping[Sender, Sequence[PendingMessage]] = NOTHING_ELSE) -> Actions:
        """Empties the inbox into the senders, and gives them these messages behind it. A step of `_change`."""
        if self._gave_up:
            return Actions(outcomes=[*self._inbox.left_over()])
        actions = self._inbox.move(others, self._clock.now())
        if self._closed:  # `close` has already abandoned the rest
            actions.outcomes += self._engine.abandon()
        return actions

    def _empty_inbox(self) -> None:
        """Called before anything that must not overtake what is in the inbox."""
        if self._inbox:
            self._change(self._move)

    def _adjust_inbox(self) -> None:
        """With the lock held, after every change of what the inbox depends on. It is closed while calls on an event
        loop wait in line, or `submit` would overtake them."""
        self._inbox.adjust(not (self._closing or self._in_line), self._engine.unsettled.bytes)

    # changes of the engine

    @abstractmethod
    def _locked(self, act: Callable[[], T]) -> T:
        """Calls `act` with the lock held. It must call nothing of the program."""

    @abstractmethod
    def _change(self, step: Callable[[], Actions]) -> object:
        """Changes the engine under the lock, then carries out what it decided without it."""

    def _line_up(self, requests: Collection[SendRequest]) -> Collection[L]:
        """Queues requests on their connections, which it returns. With the lock held, so that two threads cannot swap
        two batches of a queue."""
        links: set[L] = set()
        for request in requests:
            link = self._links[request.sender.queue.broker]
            links.add(link)
            self._unanswered += 1
            self._post(link, request)
        self._adjust_inbox()
        return links

    @abstractmethod
    def _post(self, link: L, request: SendRequest) -> None:
        """Queues a request on its connection; `_replied` follows."""

    @abstractmethod
    def _write(self, links: Iterable[L]) -> None:
        """Writes what is queued on these connections."""

    def _replied(self, replies: Sequence[tuple[SendRequest, Command | None, LaneError | None]]) -> None:
        """Requests were answered, or their connection was lost."""

        def step() -> Actions:
            self._unanswered -= len(replies)
            actions = self._move() if self._inbox.is_due(self._unanswered, self._clock.now) else Actions()
            for request, reply, error in replies:
                self._engine.replied(request, reply, error, actions)
            return actions

        if self._outages.away:
            for broker in dict.fromkeys(request.broker for request, reply, _ in replies if reply is not None):
                self._outages.answered(self._links[broker].address)
                self._outages.answered(broker)
        self._change(step)

    def _mark(self) -> FlushMark:
        """Everything that has been accepted so far."""
        self._empty_inbox()
        return self._locked(self._engine.mark)

    def _finish(self, actions: Actions) -> None:
        """Carries out everything but requests, which are already written.

        A caller that gets its outcome may send again at once. So routes are up to date before; and hardly anything
        follows, or the caller's thread, which is awake then, would wait for this one to release the interpreter.
        """
        for topic in actions.stale_topics:
            self._routes.stale(topic)
            self._inbox.forget(topic)
        for topic in actions.silent_topics:
            self._routes.unreachable(topic)
            if self._routes.is_due(topic):
                self._refresh_route(topic)
        for broker in actions.hang_up:
            link = self._links[broker]
            self._outages.failed(link.address, no_answer(self._sending.answer_timeout / 1000))
            self._hang_up(link)
        if actions.wake:
            self._wake_maintenance()
        if actions.outcomes:
            self._notify(actions.outcomes)
            self._tell_waiting()
        for line in actions.lines:  # last, because a handler of the log may use the producer
            self._engine_log.log(line.level, line.text, *line.args)

    @abstractmethod
    def _notify(self, outcomes: Iterable[Outcome]) -> None:
        """Calls `notify` of each."""

    @abstractmethod
    def _refresh_route(self, topic: str) -> None:
        """Asks for the route of a topic again, without waiting for it."""

    @abstractmethod
    def _hang_up(self, link: L) -> None:
        """Closes a connection without waiting. What it has not answered is sent again over a new one."""

    @abstractmethod
    def _tell_waiting(self) -> None:
        """Wakes calls that wait for room, or for what was accepted to be settled."""

    # maintenance

    @abstractmethod
    def _wake_maintenance(self) -> None:
        """Called when maintenance has something to do before its time."""

    def _maintain_once(self) -> None:
        self._empty_inbox()
        actions, links, old, dial = self._locked(self._tick)
        self._write(links)
        self._finish(actions)
        for link in old:
            self._hang_up(link)
        for broker, topic in dial:
            self._start_dialing(broker, topic)
        if self._heartbeat_is_due():
            for link in tuple(self._links.values()):
                self._beat(link)

    def _tick(self) -> tuple[Actions, Collection[L], list[L], list[tuple[str, str]]]:
        """What to do, connections to write to, connections to close, and brokers to connect to."""
        self._inbox.forget_old(self._routes.cached)
        actions = self._engine.tick()
        return actions, self._line_up(actions.requests), self._former_masters(), self._engine.to_dial()

    @abstractmethod
    def _start_dialing(self, broker: str, topic: str) -> None:
        """Connects to a broker in the background; `_has_dialed` or `_has_not_dialed` follows."""

    def _beat(self, link: L) -> None:
        """Sends a heartbeat."""
        link.post_oneway(heartbeat(self._client_id, self._options.group))

    def _pause(self) -> float:
        """Seconds until maintenance is needed again."""
        wake = self._locked(self._engine.next_wake)
        return TICK_SECONDS if wake is None else min(TICK_SECONDS, max(0, wake - self._clock.now()) / 1000)

    def _former_masters(self) -> list[L]:
        """Open connections to brokers whose master is at another address now. What they have not answered is sent to
        the new master when they are closed."""
        old: list[L] = []
        for broker, link in self._links.items():
            route = self._routes.known(self._engine.topic_of(broker)) if link.is_open else None
            master = route.master_of(broker) if route is not None else None
            if master is not None and master != link.address:
                self._log.warning("broker %s has another master now: %s instead of %s", broker, master, link.address)
                old.append(link)
        return old

    def _has_dialed(self, broker: str, link: L) -> None:
        self._beat(link)

        def step() -> Actions:
            self._links[broker] = link
            requests = [] if self._closed else self._engine.connected(broker)  # `close` finds it among the links
            if not link.is_open:  # it was lost before `_lost` could know it
                self._engine.disconnected(broker)
            return Actions(requests=requests)

        self._change(step)
        if self._closed:
            link.close()

    def _has_not_dialed(self, broker: str, topic: str, server: object, error: Exception) -> None:
        """Logs it, an unexpected error with its traceback."""
        self._routes.expire(topic)
        if isinstance(error, LaneError):
            self._outages.failed(server, error)
        else:
            self._log.error("unexpected error while connecting to broker %s", broker, exc_info=error)
            error = ConnectFailed(f"connecting to broker {broker!r} failed unexpectedly: {error!r}")
        self._locked(lambda: self._engine.dial_failed(broker, error))
        self._wake_maintenance()

    def _lost(self, broker: str, link: L) -> None:
        def step() -> None:
            if self._links.get(broker) is link:
                self._engine.disconnected(broker)

        self._locked(step)
        self._wake_maintenance()

    def _heartbeat_is_due(self) -> bool:
        """True once per interval."""
        now = self._clock.now()
        if now < self._next_heartbeat:
            return False
        self._next_heartbeat = now + HEARTBEAT_MILLIS
        return True


def _no_inbox(topic: str, key: Key, value: object, waiter: object = None) -> None:
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
