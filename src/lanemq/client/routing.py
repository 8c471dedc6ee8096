"""Where a topic's queues are: asking name servers for routes, keeping them, and deriving queues from them.

Invariant: every producer derives the same list of publish queues in the same order, because `pick_queue` indexes into
it. A list that is sorted differently, or that skips a queue, sends a key to two queues. The derivation is therefore
RocketMQ's (MQClientInstance.topicRouteData2TopicPublishInfo), and pure. A list that is in use stays in use, whatever a
later route says (`core/sending/layout`).

All name servers hold the same data. They are tried in turn, beginning with the one that answered last. If none
answers, a known route stays in use: brokers keep working while every name server is down.

A caller waits for its own timeout at most. Callers that ask at the same time share the answer or the failure: ten calls
that find no name server take as long as one.
"""

import asyncio
import contextlib
import logging
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from lanemq.client.topics import MASTER, NewTopic, Steps, ensure, look_up, plain_route, run, run_async
from lanemq.clock import Clock, SystemClock
from lanemq.core.sending.layout import KeyQueues, key_queues, parse_layout
from lanemq.forking import tell_child
from lanemq.model.errors import (
    ConnectFailed,
    ConnectionLost,
    LaneError,
    OrderError,
    RemoteProtocolError,
    RequestTimedOut,
    TlsFailed,
    TopicNotFound,
    TransportError,
)
from lanemq.model.names import DEFAULT_TOPIC, check_topic
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import Address, parse_address
from lanemq.net.blocking import BlockingConnection
from lanemq.net.connection import ConnectionPool
from lanemq.net.rate_limited_log import OutageLog
from lanemq.net.security import OPEN, Security
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import PERM_READ, PERM_WRITE, BrokerData, QueueData, TopicRouteData

log = logging.getLogger(__name__)

DEFAULT_TOPIC_QUEUES = 4
"""Queues of a topic that a send creates (RocketMQ's DefaultMQProducer)."""

BROKER_PORT = 10911
"""RocketMQ's broker port, used if an address has none."""

REFRESH_MILLIS = 30_000
"""How long a route is used before it is asked for again (RocketMQ's ClientConfig.pollNameServerInterval)."""

RETRY_MILLIS = 3_000
"""How long a known route is used after a failed refresh before the next attempt."""
UNREACHABLE_MILLIS = 1_000
"""How long a route is used at most while a broker in it cannot be reached."""

REQUEST_SECONDS = 3.0
"""RocketMQ's time-out for name servers (ClientConfig.mqClientApiTimeout)."""

APPEAR_TRIES, APPEAR_SECONDS = 30, 0.1
"""How often to ask for a topic that was just created, and the pause: Apache name servers know it a little later."""


@dataclass(frozen=True, slots=True)
class BrokerRoute:
    """One broker name: a master and its replicas."""

    name: str
    addresses: Mapping[int, Address]
    lane: bool
    """Whether this is a LaneMQ broker: it drops repeats by their stamp, and its leases carry epochs."""


@dataclass(frozen=True, slots=True)
class TopicRoute:
    """Where the queues of one topic are."""

    topic: str
    publish: tuple[MessageQueue, ...]
    """Queues over which keys are spread, in the order that the hash selector indexes. Some may be away."""
    subscribe: tuple[MessageQueue, ...]
    """Queues that can be read, sorted."""
    brokers: Mapping[str, BrokerRoute]
    ordered: bool = False
    """The topic has an order configuration: every message needs a key."""
    provisional: bool = False
    """The topic does not exist yet; the broker creates it with the first message."""
    writable: tuple[MessageQueue, ...] = ()
    """Queues that take messages now; for messages without a key."""
    moved: str = ""
    """Why keys would move to other queues, as text; messages with a key are refused. Empty as long as none would."""

    def master(self, broker: str) -> Address:
        """The address of the broker's master; raises `ConnectFailed` while it has none."""
        address = self.master_of(broker)
        if address is None:
            raise ConnectFailed(f"broker {broker!r} of topic {self.topic!r} has no master at the moment")
        return address

    def reader(self, broker: str) -> Address:
        """Where to read the broker's messages: at its master or, while it has none, at a replica.

        A replica has what it copied, a beginning of the master's log. It takes no messages, locks or offsets.
        """
        known = self.brokers.get(broker)
        if known is None or not known.addresses:
            return self.master(broker)
        return known.addresses[min(known.addresses)]

    def master_of(self, broker: str) -> Address | None:
        """The address of the broker's master; None while it has none."""
        known = self.brokers.get(broker)
        return known.addresses.get(MASTER) if known is not None else None

    @property
    def broker_names(self) -> frozenset[str]:
        """The brokers that have queues of the topic, also those that are away."""
        return frozenset(queue.broker for queue in (*self.subscribe, *self.publish))

    @property
    def away(self) -> frozenset[str]:
        """The brokers that have queues of the topic, and no master at the moment."""
        return frozenset(name for name in self.broker_names if not _has_master(self.brokers, name))

    @property
    def is_of_lane_broker(self) -> bool:
        """Whether the topic is on a LaneMQ broker, which is its own name server, and so always in the route."""
        return any(broker.lane for broker in self.brokers.values())

    def is_lane(self, broker: str) -> bool:
        """Whether this is a LaneMQ broker."""
        known = self.brokers.get(broker)
        return known is not None and known.lane


# asking name servers


class _CachedRoutes:
    """What both kinds of routes do without asking.

    `declared` topics are created when they are first asked for, if they do not exist. With `layouts`, `publish` is the
    list of queues that keys are spread over; with `may_move`, it follows a change of the queues. Clients that only read
    need neither.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        clock: Clock | None,
        declared: Iterable[NewTopic],
        layouts: bool,
        may_move: bool,
    ) -> None:
        self._servers = NameServers(servers)
        self._clock = clock or SystemClock()
        self._cache = RouteCache()
        self._declared = {topic.name: topic for topic in declared}
        self._layouts = layouts
        self._may_move = may_move
        self._key_queues: dict[str, KeyQueues] = {}

    @property
    def servers(self) -> tuple[Address, ...]:
        """All name servers."""
        return self._servers.in_turn()

    def usable(self, topic: str) -> TopicRoute | None:
        """The route that a message may take without waiting: known and not contradicted, however old.

        An old one has to be asked for again; see `is_due`.
        """
        return self._cache.usable(topic)

    def is_due(self, topic: str) -> bool:
        """Whether the route is known and too old."""
        return self.known(topic) is not None and self.cached(topic) is None

    def cached(self, topic: str) -> TopicRoute | None:
        """The route, or None if it is unknown or too old to be used without asking."""
        try:
            return self._cache.fresh(topic, now=self._clock.now())
        except TypeError:
            check_topic(topic)  # one that cannot be looked up, such as a list
            raise

    def known(self, topic: str) -> TopicRoute | None:
        """The last known route, however old."""
        return self._cache.known(topic)

    def stale(self, topic: str) -> None:
        """A broker contradicted the route: the next `get` asks again."""
        self._cache.stale(topic)

    def forget(self, topic: str) -> None:
        """Forgets the route and the queues in use: an administrator changed the topic, and has sent nothing to it."""
        self._cache.gone(topic)
        self._key_queues.pop(topic, None)

    def expire(self, topic: str) -> None:
        """The route may be old: the next `get` asks again, and until then messages may take it."""
        self._cache.expire(topic)

    def unreachable(self, topic: str) -> None:
        """A broker of the topic cannot be reached and may be at another address: `get` asks again soon."""
        self._cache.unreachable(topic)

    def topics(self) -> tuple[str, ...]:
        return self._cache.topics()

    def _question(self, topic: str) -> Steps[TopicRouteData | None]:
        if not self._layouts:
            return plain_route(topic)
        known = self._key_queues.get(topic)
        return look_up(topic, self.servers, known.queues if known is not None else ())

    def _refreshed(self, topic: str, route: TopicRoute | None) -> TopicRoute:
        if route is None:
            self._cache.gone(topic)
            self._key_queues.pop(topic, None)
            raise no_such_topic(topic)
        route = self._with_key_queues(route)
        before = self._cache.known(topic)
        self._cache.put(route, now=self._clock.now())
        if before is not None and not before.provisional:
            _report_change(before, route)
        return route

    def _with_key_queues(self, route: TopicRoute) -> TopicRoute:
        """The route with the queues that keys are spread over, which do not follow every change."""
        if route.provisional or not self._layouts:
            return route
        known, layout = self._key_queues.get(route.topic), route.publish if route.ordered else None
        if known is not None and (known.from_layout or route.ordered) and route.is_of_lane_broker:
            known = None  # its broker refuses any change, so the topic was deleted and is a new one
        found = key_queues(known, layout, route.writable, may_move=self._may_move)
        if found is None:
            return route
        self._key_queues[route.topic] = found
        return replace(route, publish=found.queues, ordered=found.from_layout, moved=found.moved)

    def _not_refreshed(self, topic: str, error: TransportError) -> TopicRoute:
        route = self._cache.known(topic)
        if route is None:
            raise error
        log.debug("route of topic %s cannot be refreshed, using the known one: %s", topic, error)
        self._cache.unanswered(topic, now=self._clock.now())
        return route


def _report_change(before: TopicRoute, now: TopicRoute) -> None:
    if now.moved and now.moved != before.moved:
        log.warning("%s", keys_would_move(now))
    elif now.publish != before.publish:
        log.warning(
            "the queues of topic %s changed from %d to %d: keys may have moved to other queues",
            now.topic,
            len(before.publish),
            len(now.publish),
        )
    elif away := {queue.broker for queue in set(before.writable) - set(now.writable)}:
        log.warning("topic %s: messages of keys at %s wait for it, others go on", now.topic, ", ".join(sorted(away)))


def keys_would_move(route: TopicRoute) -> OrderError:
    """The error for a message with a key, after the queues of its topic changed."""
    return OrderError(
        f"topic {route.topic!r} has other queues than when this producer began: {route.moved}. Keys would move past "
        f"messages in their old queues. See lanemq topic order {route.topic}; when consumers have read the old "
        f"messages, start a new producer, or allow it with on_queue_change='continue'"
    )


class AsyncRoutes(_CachedRoutes):
    """Routes on an event loop. Tasks that ask for the same topic share one request and its outcome."""

    def __init__(
        self,
        servers: Sequence[Address],
        pool: ConnectionPool,
        clock: Clock | None = None,
        *,
        declared: Iterable[NewTopic] = (),
        layouts: bool = True,
        may_move: bool = False,
    ) -> None:
        super().__init__(servers, clock, declared, layouts, may_move)
        self.outages = pool.outages
        self._pool = pool
        self._locks: dict[str, asyncio.Lock] = {}
        # The outcome of the last question about a topic: a new list each time, so that waiting tasks recognise it.
        self._outcomes: dict[str, list[TransportError]] = {}

    async def get(self, topic: str, *, provisional: bool = False) -> TopicRoute:
        """The route of the topic.

        If the topic does not exist, raises `TopicNotFound`, or with `provisional` returns the route that its first
        message would create.
        """
        before = self._outcomes.get(topic)
        async with self._locks.setdefault(topic, asyncio.Lock()):
            route = self.cached(topic)
            if route is not None and (provisional or not route.provisional):
                return route
            last = self._outcomes.get(topic)
            if last and last is not before:  # it failed while this task waited for it
                return self._not_refreshed(topic, last[0])
            outcome = self._outcomes[topic] = list[TransportError]()
            try:
                route = await self._request(topic, provisional)
            except TransportError as error:
                outcome.append(error)
                return self._not_refreshed(topic, error)
            return self._refreshed(topic, route)

    async def ask(self, command: Command, to: Address | None = None) -> Command:
        """Sends a request to the name servers in turn and returns the first reply; or to a broker."""
        if to is not None:
            return await self._pool.request(to, command, REQUEST_SECONDS)
        failures: list[LaneError] = []
        for address in self._servers.in_turn():
            try:
                reply = await self._pool.request(address, command, REQUEST_SECONDS)
            except TransportError as error:
                failures.append(error)
                continue
            self._servers.answered(address)
            return reply
        raise self._servers.none_answered(failures)

    async def _request(self, topic: str, provisional: bool) -> TopicRoute | None:
        declared = self._declared.get(topic)
        if declared is not None:
            tries = APPEAR_TRIES if await run_async(ensure(declared, self.servers), self.ask) else 1
            for number in range(tries):
                data = await run_async(self._question(topic), self.ask)
                if data is not None:
                    del self._declared[topic]
                    return topic_route(topic, data)
                await asyncio.sleep(APPEAR_SECONDS if number < tries - 1 else 0)
            return None
        data = await run_async(self._question(topic), self.ask)
        if data is not None:
            return topic_route(topic, data)
        default = await run_async(plain_route(DEFAULT_TOPIC), self.ask) if provisional else None
        return provisional_route(topic, default) if default is not None else None


class BlockingRoutes(_CachedRoutes):
    """Routes without an event loop, for any number of threads.

    A thread of its own asks while callers wait for it, and ends when no question is left. So a caller can give up
    waiting, and all questions that wait while the name servers do not answer fail together.
    """

    def __init__(
        self,
        servers: Sequence[Address],
        clock: Clock | None = None,
        *,
        security: Security = OPEN,
        declared: Iterable[NewTopic] = (),
        layouts: bool = True,
        may_move: bool = False,
        outages: OutageLog | None = None,
    ) -> None:
        """`outages`: for a client that goes on trying in the background; others raise what happened to their caller."""
        super().__init__(servers, clock, declared, layouts, may_move)
        self._outages = outages
        self._security = security
        self._begin()
        tell_child(self)

    def _begin(self) -> None:
        self._lock = threading.Lock()
        # What callers wait for; guarded by `_lock`, as is `_answering`: a thread works on it.
        self._questions: dict[tuple[str, bool], _Question] = {}
        self._answering = False
        # Held by the thread that uses the connections.
        self._asking = threading.Lock()
        self._connections: dict[Address, BlockingConnection] = {}
        self._in_use: BlockingConnection | None = None
        self._closed = False

    def forked(self) -> None:
        """In a child process: leaves the connections to the parent."""
        if not self._closed:
            for connection in (*self._connections.values(), *([self._in_use] if self._in_use else [])):
                connection.drop()
            self._begin()

    def get(self, topic: str, *, provisional: bool = False, timeout: float | None = None) -> TopicRoute:
        """As `AsyncRoutes.get`; raises `RequestTimedOut` after `timeout` seconds."""
        route = self.cached(topic)
        if route is not None and (provisional or not route.provisional):
            return route
        question = self.refresh(topic, provisional=provisional)
        if not question.answered.wait(timeout):
            raise RequestTimedOut(
                f"no name server answered within {timeout:g} s: where topic {topic!r} is stored is not known"
            )
        return question.result()

    def refresh(self, topic: str, *, provisional: bool = False) -> "_Question":
        """Asks for a route without waiting for it."""
        with self._lock:
            question = self._questions.setdefault((topic, provisional), _Question())
            is_first, self._answering = not self._answering, True
        if is_first:
            try:
                threading.Thread(target=self._answer_all, name="lanemq-routes", daemon=True).start()
            except RuntimeError:  # no more threads, or the interpreter is about to end
                self._answer_all()
        return question

    def ask(self, command: Command, to: Address | None = None) -> Command:
        """As `AsyncRoutes.ask`."""
        with self._asking:
            return self._ask_in_turn(command, to)

    def close(self) -> None:
        """Closes all connections. A request under way fails."""
        self._closed = True
        in_use = self._in_use
        if in_use is not None:
            in_use.hang_up()
        with self._lock:
            kept, self._connections = self._connections, {}
        for connection in kept.values():
            connection.close()

    def _answer_all(self) -> None:
        while True:
            with self._lock:
                if not self._questions:
                    self._answering = False
                    return
                (topic, provisional), question = next(iter(self._questions.items()))
            try:
                with self._asking:
                    route = self._request(topic, provisional)
                question.settle(self._refreshed(topic, route))
            except TransportError as error:
                self._none_answered(error)
            except Exception as error:  # noqa: BLE001 - the caller raises it
                question.settle(error)
            with self._lock:
                # Only this question: when no server answered, the same may have been asked again since, and would get
                # no answer.
                if self._questions.get((topic, provisional)) is question:
                    del self._questions[topic, provisional]

    def _none_answered(self, error: TransportError) -> None:
        """No name server answered: all questions that wait now get the known route, or the error."""
        with self._lock:
            waiting, self._questions = self._questions, {}
        for (topic, _), question in waiting.items():
            try:
                question.settle(self._not_refreshed(topic, error))
            except TransportError as each:
                question.settle(each)

    def _request(self, topic: str, provisional: bool) -> TopicRoute | None:
        declared = self._declared.get(topic)
        if declared is not None:
            tries = APPEAR_TRIES if run(ensure(declared, self.servers), self._ask_in_turn) else 1
            for number in range(tries):
                data = run(self._question(topic), self._ask_in_turn)
                if data is not None:
                    del self._declared[topic]
                    return topic_route(topic, data)
                threading.Event().wait(APPEAR_SECONDS if number < tries - 1 else 0)
            return None
        data = run(self._question(topic), self._ask_in_turn)
        if data is not None:
            return topic_route(topic, data)
        default = run(plain_route(DEFAULT_TOPIC), self._ask_in_turn) if provisional else None
        return provisional_route(topic, default) if default is not None else None

    def _ask_in_turn(self, command: Command, to: Address | None = None) -> Command:
        if to is not None:
            return self._ask_one(to, command)
        failures: list[LaneError] = []
        for address in self._servers.in_turn():
            try:
                reply = self._ask_one(address, command)
            except TransportError as error:
                failures.append(error)
                continue
            self._servers.answered(address)
            return reply
        raise self._servers.none_answered(failures)

    def _ask_one(self, address: Address, command: Command) -> Command:
        """Uses the kept connection; if the server has closed it for being idle, a new one."""
        with self._lock:
            kept = self._connections.pop(address, None)
        if kept is not None:
            with contextlib.suppress(TransportError):
                return self._ask_over(kept, command)
        try:
            return self._ask_over(BlockingConnection(address, security=self._security), command)
        except TransportError as error:
            if self._outages is not None:
                self._outages.failed(address, error)
            raise

    def _ask_over(self, connection: BlockingConnection, command: Command) -> Command:
        self._in_use = connection
        try:
            if self._closed:
                raise ConnectionLost("this client is closed")
            reply = connection.request(command, REQUEST_SECONDS)
        except BaseException:
            connection.close()
            raise
        finally:
            self._in_use = None
        if self._outages is not None and self._outages.away:
            self._outages.answered(connection.address)
        with self._lock:
            if not self._closed:
                self._connections[connection.address] = connection
                return reply
        connection.close()
        return reply


class _Question:
    """One question for a route, and its answer."""

    def __init__(self) -> None:
        self.answered = threading.Event()
        self._outcome: TopicRoute | Exception | None = None

    def settle(self, outcome: TopicRoute | Exception) -> None:
        self._outcome = outcome
        self.answered.set()

    def result(self) -> TopicRoute:
        outcome = self._outcome
        if isinstance(outcome, TopicRoute):
            return outcome
        assert outcome is not None
        try:
            raise outcome.with_traceback(None)
        finally:
            del outcome, self  # the traceback refers to this frame: a reference cycle


class NameServers:
    """The addresses of the name servers, beginning with the one that answered last."""

    def __init__(self, addresses: Sequence[Address]) -> None:
        self._addresses = list(addresses)

    def in_turn(self) -> tuple[Address, ...]:
        return tuple(self._addresses)

    def answered(self, address: Address) -> None:
        at = self._addresses.index(address)
        self._addresses = self._addresses[at:] + self._addresses[:at]

    def none_answered(self, failures: Sequence[LaneError]) -> ConnectFailed:
        tried = ", ".join(map(str, self._addresses))
        kind = TlsFailed if isinstance(failures[-1], TlsFailed) else ConnectFailed
        return kind(f"no name server answered (tried {tried}): {failures[-1]}")


def no_such_topic(topic: str, hint: str = "") -> TopicNotFound:
    return TopicNotFound(
        ResponseCode.TOPIC_NOT_EXIST,
        f"topic {topic!r} does not exist; create it with: lanemq topic create {topic} --ordered{hint}",
    )


class RouteCache:
    """The routes known so far, and when each has to be asked for again."""

    def __init__(self) -> None:
        self._routes: dict[str, TopicRoute] = {}
        self._contradicted: set[str] = set()
        self._due: dict[str, int] = {}
        self._answered_at: dict[str, int] = {}
        """When a name server answered, unless the last question had no answer."""

    def fresh(self, topic: str, *, now: Millis) -> TopicRoute | None:
        """The route, or None if it is unknown or too old."""
        return self._routes.get(topic) if now < self._due.get(topic, 0) else None

    def known(self, topic: str) -> TopicRoute | None:
        """The last known route, however old."""
        return self._routes.get(topic)

    def usable(self, topic: str) -> TopicRoute | None:
        """The last known route of a topic that exists, unless a broker contradicted it."""
        route = self._routes.get(topic)
        return None if route is None or route.provisional or topic in self._contradicted else route

    def put(self, route: TopicRoute, *, now: Millis) -> bool:
        """Keeps a route; true if it differs from the known one."""
        self._contradicted.discard(route.topic)
        changed = self._routes.get(route.topic) != route
        self._routes[route.topic] = route
        self._due[route.topic] = now + (RETRY_MILLIS if route.provisional else REFRESH_MILLIS)
        self._answered_at[route.topic] = now
        return changed

    def unanswered(self, topic: str, *, now: Millis) -> None:
        """No name server answered: the known route stays in use for `RETRY_MILLIS`."""
        self._contradicted.discard(topic)
        self._due[topic] = now + RETRY_MILLIS
        self._answered_at.pop(topic, None)

    def unreachable(self, topic: str) -> None:
        """A broker of the route cannot be reached: the route is not fresh any more `UNREACHABLE_MILLIS` after it came.

        Not at once: the name servers may know the old address for a while, and must not be asked without a pause.
        """
        if topic in self._answered_at:
            self._due[topic] = min(self._due.get(topic, 0), self._answered_at[topic] + UNREACHABLE_MILLIS)

    def stale(self, topic: str) -> None:
        """A broker contradicted the route: it is not fresh any more."""
        self._due.pop(topic, None)
        if topic in self._routes:
            self._contradicted.add(topic)

    def expire(self, topic: str) -> None:
        """The route is not fresh any more; it may still be right."""
        self._due.pop(topic, None)

    def gone(self, topic: str) -> None:
        """The name server says that the topic does not exist."""
        self._routes.pop(topic, None)
        self._contradicted.discard(topic)
        self._due.pop(topic, None)
        self._answered_at.pop(topic, None)

    def topics(self) -> tuple[str, ...]:
        return tuple(self._routes)


# deriving queues from a route


def topic_route(topic: str, data: TopicRouteData) -> TopicRoute:
    """The route of a topic from a name server's reply."""
    brokers = {each.broker_name: _broker_route(each) for each in data.broker_datas}
    queue_datas = sorted(data.queue_datas, key=lambda each: each.broker_name)
    writable = tuple(_write_queues(topic, queue_datas, brokers))
    layout = data.order_topic_conf
    return TopicRoute(
        topic,
        _queues_of_layout(topic, layout) if layout else writable,
        tuple(_read_queues(topic, queue_datas)),
        brokers,
        ordered=bool(layout),
        writable=writable,
    )


def provisional_route(topic: str, default: TopicRouteData) -> TopicRoute:
    """The route of a topic that its first message will create, from the route of RocketMQ's TBW102.

    Not for ordered sends: the topic appears only on the broker that got the message, the list of queues shrinks, and
    keys move.
    """
    brokers = {each.broker_name: _broker_route(each) for each in default.broker_datas}
    publish = tuple(
        MessageQueue(topic, each.broker_name, number)
        for each in sorted(default.queue_datas, key=lambda each: each.broker_name)
        if each.perm & PERM_WRITE and _has_master(brokers, each.broker_name)
        for number in range(min(DEFAULT_TOPIC_QUEUES, each.read_queue_nums))
    )
    return TopicRoute(topic, publish, (), brokers, provisional=True, writable=publish)


def _broker_route(data: BrokerData) -> BrokerRoute:
    addresses = {number: parse_address(text, BROKER_PORT) for number, text in data.broker_addrs.items()}
    return BrokerRoute(data.broker_name, addresses, lane=data.lane_features > 0)


def _write_queues(topic: str, datas: Iterable[QueueData], brokers: Mapping[str, BrokerRoute]) -> Iterator[MessageQueue]:
    for data in datas:
        if data.perm & PERM_WRITE and _has_master(brokers, data.broker_name):
            for number in range(data.write_queue_nums):
                yield MessageQueue(topic, data.broker_name, number)


def _has_master(brokers: Mapping[str, BrokerRoute], name: str) -> bool:
    return name in brokers and MASTER in brokers[name].addresses


def _read_queues(topic: str, datas: Iterable[QueueData]) -> Iterator[MessageQueue]:
    for data in datas:
        if data.perm & PERM_READ:
            for number in range(data.read_queue_nums):
                yield MessageQueue(topic, data.broker_name, number)


def _queues_of_layout(topic: str, layout: str) -> tuple[MessageQueue, ...]:
    """The queues of `broker-a:4;broker-b:4`, whether or not the brokers are up."""
    queues = parse_layout(topic, layout)
    if queues is None:
        raise RemoteProtocolError(
            f"topic {topic!r} has an order configuration that cannot be read: {layout!r}; "
            f"it should look like broker-a:4;broker-b:4"
        )
    return queues
