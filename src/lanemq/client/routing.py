"""Asking name servers where a topic's queues are.

All name servers hold the same data. They are tried in turn, beginning with the one that answered last. If none
answers, a known route stays in use: brokers keep working while every name server is down.

A caller waits for its own timeout at most. Callers that ask at the same time share the answer or the failure: ten calls
that find no name server take as long as one.
"""

import asyncio
import contextlib
import threading
from collections.abc import Iterable, Sequence
from dataclasses import replace

from msgspec.structs import replace as replace_fields

from lanemq.background_log import ClientLog
from lanemq.client.bell import Bell
from lanemq.client.topic_route import RouteCache, TopicRoute, keys_would_move, provisional_route, topic_route
from lanemq.client.topics import NewTopic, Steps, ensure, look_up, plain_route, read_layout, run, run_async
from lanemq.clock import Clock, SystemClock
from lanemq.core.sending.layout import KeyQueues, key_queues, parse_layout
from lanemq.forking import tell_child
from lanemq.model.errors import (
    ConnectFailed,
    ConnectionLost,
    LaneError,
    RequestTimedOut,
    TlsFailed,
    TopicNotFound,
    TransportError,
)
from lanemq.model.names import DEFAULT_TOPIC, check_topic
from lanemq.net.address import Address
from lanemq.net.calling.blocking import BlockingConnection, ClientThread
from lanemq.net.calling.connection import ConnectionPool
from lanemq.net.rate_limited_log import OutageLog
from lanemq.net.security import OPEN, Security
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import TopicRouteData

log = ClientLog(__name__)

REQUEST_SECONDS = 3.0
"""RocketMQ's time-out for name servers (ClientConfig.mqClientApiTimeout)."""

APPEAR_TRIES, APPEAR_SECONDS = 30, 0.1
"""How often to ask for a topic that was just created, and the pause: Apache name servers know it a little later."""


class CachedRoutes:
    """What both kinds of routes do without asking.

    `declared` topics are created when they are first asked for, if they do not exist. With `layouts`, `publish` is the
    list of queues that keys are spread over; with `may_move`, it follows a change of the queues. Clients that only read
    need neither.
    """

    _log = log

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

    def missing(self, topic: str) -> None:
        """A message was refused because the topic does not exist: the next one asks again."""
        self._cache.missing(topic, now=self._clock.now())

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
            return self._plain_route(topic)
        known = self._key_queues.get(topic)
        return look_up(topic, self.servers, known.queues if known is not None else ())

    def _plain_route(self, topic: str) -> Steps[TopicRouteData | None]:
        """The route for a client that only reads. It needs the layout only to tell what a change of queues means."""
        fresh = yield from plain_route(topic)
        before = self._cache.known(topic)
        if fresh is None or before is None or fresh.order_topic_conf:
            return fresh
        now = topic_route(topic, fresh)
        if now.is_of_lane_broker or now.writable == before.writable:
            return fresh
        layout = yield from read_layout(topic)
        return fresh if parse_layout(topic, layout) is None else replace_fields(fresh, order_topic_conf=layout)

    def _refreshed(self, topic: str, route: TopicRoute | None) -> TopicRoute:
        if route is None:
            self.forget(topic)
            self.missing(topic)
            raise no_such_topic(topic)
        route = self._with_key_queues(route)
        before = self._cache.known(topic)
        self._cache.put(route, now=self._clock.now())
        if before is not None and not before.provisional:
            report_change(self._log, before, route)
        return route

    def _with_key_queues(self, route: TopicRoute) -> TopicRoute:
        """The route with the queues that keys are spread over, which do not follow every change."""
        if route.provisional:
            return route
        if not self._layouts:
            before = self._cache.known(route.topic)
            if before is not None and before.ordered and before.writable == route.writable:
                return replace(route, publish=before.publish, ordered=True)  # the layout is asked for after a change
            return route
        known, layout = self._key_queues.get(route.topic), route.publish if route.ordered else None
        if known is not None and (known.from_layout or route.ordered) and route.is_of_lane_broker:
            known = None  # its broker refuses any change, so the topic was deleted and is a new one
        queues = key_queues(known, layout, route.writable, may_move=self._may_move)
        if queues is None:
            return route
        self._key_queues[route.topic] = queues
        return replace(route, publish=queues.queues, ordered=queues.from_layout, moved=queues.moved)

    def _refuse_missing(self, topic: str) -> None:
        """Raises `TopicNotFound` without a question, if the same was asked often in the last second."""
        if self._cache.is_missing(topic, now=self._clock.now()):
            raise no_such_topic(topic)

    def _not_refreshed(self, topic: str, error: TransportError) -> TopicRoute:
        route = self._cache.known(topic)
        if route is None:
            raise error
        self._log.debug("route of topic %s cannot be refreshed, using the known one: %s", topic, error)
        self._cache.unanswered(topic, now=self._clock.now())
        return route


def report_change(log: ClientLog, before: TopicRoute, now: TopicRoute) -> None:
    """Warns if keys would move, may have moved, or wait for a broker that is away."""
    if now.moved and now.moved != before.moved:
        log.warning("%s", keys_would_move(now))
    elif _may_have_moved(before, now):
        log.warning(
            "the queues of topic %s changed from %d to %d: keys may have moved to other queues",
            now.topic,
            len(before.publish),
            len(now.publish),
        )
    elif away := {queue.broker for queue in set(before.writable) - set(now.writable)}:
        log.warning("topic %s: messages of keys at %s wait for it, others continue", now.topic, ", ".join(sorted(away)))


def _may_have_moved(before: TopicRoute, now: TopicRoute) -> bool:
    """Whether the list of queues that keys are spread over changed, and not only brokers left or came back.

    A layout that is known only now counts for the former list too, unless a broker had other queues than it says.
    """
    if now.ordered and not before.ordered:
        brokers = {queue.broker for queue in before.publish}
        return set(before.publish) != {queue for queue in now.publish if queue.broker in brokers}
    return bool({queue.broker for queue in set(before.publish) ^ set(now.publish)} - before.away - now.away)


class AsyncRoutes(CachedRoutes):
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
            self._refuse_missing(topic)
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

    def last_failure(self, topic: str) -> TransportError | None:
        """Why the last question about the topic had no answer; None if it had one."""
        return next(iter(self._outcomes.get(topic, ())), None)

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


class BlockingRoutes(CachedRoutes):
    """Routes without an event loop, for any number of threads.

    A thread of its own asks while callers wait for it, and ends when no question is left. So a caller can give up
    waiting, and all questions that wait while the name servers do not answer fail together.
    """

    _log = ClientLog(__name__, aside=True)  # the thread that asks must not wait for a handler that waits for a route

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
        """`outages`: for a client that keeps trying in the background; others raise what happened to their caller."""
        super().__init__(servers, clock, declared, layouts, may_move)
        self._outages = outages
        self._security = security
        self._begin()
        tell_child(self)

    def _begin(self) -> None:
        # What callers wait for. Only the thread that holds `_answering` removes a question.
        self._questions: dict[tuple[str, bool], _Question] = {}
        self._answering = threading.Lock()
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
        self._refuse_missing(topic)
        question = self.refresh(topic, provisional=provisional)
        if not question.wait(timeout):
            raise RequestTimedOut(
                f"no name server answered within {timeout:g} s: where topic {topic!r} is stored is not known"
            )
        return question.result()

    def refresh(self, topic: str, *, provisional: bool = False) -> "_Question":
        """Asks for a route without waiting for it, nor for a lock: a finalizer or a signal handler may call it."""
        question = self._questions.setdefault((topic, provisional), _Question())
        if not self._answering.locked():
            try:
                ClientThread(target=self._answer_all, name="lanemq-routes", daemon=True).start()
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
        self._close_kept()

    def _close_kept(self) -> None:
        while self._connections:
            self._connections.popitem()[1].close()

    def _answer_all(self) -> None:
        """Answers what was asked, unless another thread does: that one looks again after it has released the lock."""
        while self._questions and self._answering.acquire(blocking=False):
            try:
                for key in [*self._questions]:
                    if (question := self._questions.get(key)) is not None:
                        self._answer(*key, question)
            finally:
                self._answering.release()

    def _answer(self, topic: str, provisional: bool, question: "_Question") -> None:
        try:
            with self._asking:
                route = self._request(topic, provisional)
            question.settle(self._refreshed(topic, route))
        except TransportError as error:
            self._none_answered(error)
        except Exception as error:  # noqa: BLE001 - the caller raises it
            question.settle(error)
        # Only this question: when no server answered, the same may have been asked again since.
        if self._questions.get((topic, provisional)) is question:
            del self._questions[topic, provisional]

    def _none_answered(self, error: TransportError) -> None:
        """No name server answered: all questions that wait now get the known route, or the error."""
        for topic, provisional in [*self._questions]:
            question = self._questions.pop((topic, provisional))
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
        self._connections[connection.address] = connection
        if self._closed:
            self._close_kept()
        return reply


class _Question:
    """One question for a route, and its answer."""

    def __init__(self) -> None:
        self._answered = Bell()
        self._outcome: TopicRoute | Exception | None = None

    def settle(self, outcome: TopicRoute | Exception) -> None:
        self._outcome = outcome
        self._answered.ring()

    def wait(self, seconds: float | None) -> bool:
        """Waits for the answer, at most `seconds`; returns whether there is one."""
        return self._answered.wait_until(lambda: self._outcome is not None, seconds)

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
