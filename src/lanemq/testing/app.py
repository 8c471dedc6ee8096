"""Runs the handlers of an `App` without a broker and without sockets, on virtual time.

    with TestApp(app) as test:
        test.send("orders", {"id": 42}, key="order-42")
        test.run()
        assert [turn.value for turn in test.turns] == [{"id": 42}]

Scheduler, failure policies, dependencies, middleware and lifespan are the real ones. A backoff of minutes passes at
once: when nothing can run, the clock jumps to the next retry. Turns run one after the other; those of a topic in the
order in which its messages were sent.
"""

import asyncio
import contextlib
import heapq
from collections.abc import Callable, Coroutine, Iterator, Mapping
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Self, TypeVar
from uuid import uuid4

from lanemq.client.codec import codec_named
from lanemq.client.consumer.app import App, is_in_event_loop
from lanemq.client.consumer.turns.counting import TurnTimes
from lanemq.client.consumer.turns.scheduler import MessageRun, MessageWorker
from lanemq.client.consumer.turns.send_back import DeadLetterSender
from lanemq.client.consumer.turns.subscription import ActiveSubscription, Subscription, make_scheduler
from lanemq.client.consumer.turns.workers import RunEnd, RunReporter, log_end, run_worker, run_worker_async, stopped_at
from lanemq.client.message import Message
from lanemq.clock import SystemClock, wall_time
from lanemq.core.brokering.delay import RouteToRetry, delay_of, route_send_back
from lanemq.core.consuming.runs import DONE, NO_LEASE_NEEDED, Order
from lanemq.history import NO_HISTORY
from lanemq.model.checks import check_kind, check_text
from lanemq.model.checks import seconds as check_seconds
from lanemq.model.errors import InvalidOption, MissingKey, UsageError
from lanemq.model.keys import Key, key_text
from lanemq.model.units import Millis, QueueOffset, Seconds, to_millis

R = TypeVar("R")

MAX_TURNS = 10_000
"""Turns of one `run`. More: a handler fails for ever, and its policy never gives up."""


class VirtualTime:
    """A clock that only `TestApp` moves. Its wall time begins with the test."""

    def __init__(self) -> None:
        self.millis = 0
        self._began = SystemClock().wall()

    def now(self) -> Millis:
        return Millis(self.millis)

    def wall(self) -> Millis:
        return Millis(self._began + self.millis)


@dataclass(frozen=True, slots=True)
class TurnRecord:
    """One call of a handler that has ended. A batch gives one for each of its messages."""

    message: Message
    at: float
    """Seconds of virtual time since the start."""
    attempt: int
    error: BaseException | None = None
    """What the handler raised, decisions such as `Retry` included; None if the message is done."""

    @property
    def topic(self) -> str:
        return self.message.topic

    @property
    def key(self) -> str | None:
        return self.message.key

    @property
    def value(self) -> Any:
        """The body, decoded without a type."""
        return self.message.value()


class AppDeadLetter(NamedTuple):
    """A message that became a dead letter, and why."""

    message: Message
    why: str


class TestApp:
    """Feeds messages to an app's handlers. Use it as a context manager, which enters the app's lifespan."""

    __test__ = False  # a class for tests, not a test

    def __init__(self, app: App) -> None:
        check_kind("app", app, App, "the App whose handlers are tested")
        self._app = app
        self._clock = VirtualTime()
        self._codec = codec_named(app.options.codec)
        self._broker = f"test-{uuid4().hex}"
        """A name of its own: to `once`, each test has queues of its own, also in a database that many tests use."""
        self._numbers = count()
        self._topics: dict[str, _TestTopic] = {}
        self._later: list[tuple[int, int, Message]] = []
        self._lifespan = contextlib.AsyncExitStack()
        self._runner: asyncio.Runner | None = None
        self._open = False
        self.turns: list[TurnRecord] = []
        """Every turn so far, in order."""
        self.dead_letters: list[AppDeadLetter] = []

    # sending and running

    def send(
        self,
        topic: str,
        value: object,
        *,
        key: Key | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
    ) -> Message:
        """Puts a message into a topic; the next `run` handles it. The codec of the app encodes it.

        The topic of an ordered handler counts as created with `--ordered`: without a key this raises `MissingKey`.
        """
        test_topic = self._topic(topic)
        if key is None and test_topic.active.subscription.order is not Order.NONE:
            raise MissingKey(topic)
        message = Message.fake(
            value,
            key=key,
            topic=topic,
            tag=tag,
            properties=properties,
            offset=test_topic.next_offset,
            group=self._app.options.group,
            codec=self._codec,
            sent_at=wall_time(self._clock.wall()),
            broker=self._broker,
        )
        test_topic.put(message)
        return message

    def run(self, seconds: Seconds | None = None) -> None:
        """Handles everything that was sent, retries included, until nothing but parked lanes is left.

        With `seconds`, only so much virtual time passes. In async tests use `await test.run_async()`.
        """
        self._on_own_loop(self.run_async, "run_async", seconds)

    async def run_async(self, seconds: Seconds | None = None) -> None:
        """As `run`, on the event loop of the test."""
        self._check_open()
        end = None if seconds is None else self._clock.millis + _span(seconds)
        limit = len(self.turns) + MAX_TURNS
        while len(self.turns) < limit:
            self._put_due()
            if not await self._run_ready():
                due = [each for each in self._due_times() if end is None or each <= end]
                if not due:
                    break
                self._clock.millis = max(self._clock.millis, min(due))
        else:
            last = self.turns[-1]
            raise AssertionError(
                f"{MAX_TURNS} turns, and there is still something to do: {last.message} failed {last.attempt} times, "
                f"the last time with {last.error!r}; use run(seconds=...) for a policy that never gives up"
            )
        if end is not None:
            self._clock.millis = end

    @property
    def now(self) -> float:
        """Seconds of virtual time since the start."""
        return self._clock.millis / 1000

    # looking

    def turns_of(self, key: Key | None) -> list[TurnRecord]:
        """The turns of one key, in order."""
        wanted = None if key is None else key_text(key)
        return [each for each in self.turns if each.key == wanted]

    @property
    def parked(self) -> list[tuple[str, str | None]]:
        """Topic and key of every parked lane."""
        return [(name, key) for name, each in self._topics.items() for key in each.parked_keys()]

    def resume(self, topic: str, key: Key | None = None) -> bool:
        """Lets a parked lane try again, as an operator's redrive does; false if it is not parked."""
        wanted = None if key is None else key_text(key)
        test_topic = self._topic(topic)
        with test_topic.active.scheduler as lanes:
            return lanes.resume(test_topic.queue, wanted)

    # the life of the app

    def __enter__(self) -> Self:
        self._runner = asyncio.Runner()
        self._on_own_loop(self.__aenter__, "an `async with` block")
        return self

    def __exit__(self, *_: object) -> None:
        assert self._runner is not None
        try:
            self._on_own_loop(self.__aexit__, "an `async with` block")
        finally:
            self._runner.close()
            self._runner = None

    async def __aenter__(self) -> Self:
        subscriptions = await self._lifespan.enter_async_context(self._app.prepared())
        self._topics = {each.topic: _TestTopic(each, self._clock, self._broker) for each in subscriptions}
        self._open = True
        return self

    async def __aexit__(self, *_: object) -> None:
        self._open = False
        await self._lifespan.aclose()

    def _on_own_loop(self, call: Callable[..., Coroutine[Any, Any, R]], instead: str, *arguments: Any) -> R:
        self._check_open(entering=self._runner is not None)
        if self._runner is None or is_in_event_loop():
            raise UsageError(f"an event loop runs here already: use {instead} of the TestApp")
        return self._runner.run(call(*arguments))

    def _check_open(self, *, entering: bool = False) -> None:
        if not self._open and not entering:
            raise UsageError("this TestApp is not open: use it in a `with TestApp(app) as test:` block")

    # one turn after the other

    async def _run_ready(self) -> bool:
        """Runs what may run now; false if there is nothing."""
        ran = False
        for topic in self._topics.values():
            while (run := topic.active.scheduler.take_run(0)) is not None:
                await self._run(topic.active, run)
                ran = True
        return ran

    async def _run(self, active: ActiveSubscription, run: MessageRun) -> None:
        plan, worker, before = active.subscription, MessageWorker(), len(self.turns)
        worker.waiting.append(run)
        if plan.async_handler is not None:
            ran = await run_worker_async(worker, plan.async_handler, plan.batch_size, self._clock, TurnTimes())
        else:
            assert plan.handler is not None
            with _no_running_loop():
                ran = run_worker(worker, plan.handler, plan.batch_size, self._clock, TurnTimes())
        end = ran.end
        done = len(run.messages) if end is None else end.done
        self.turns += [self._turn(message, run, None) for message in run.messages[:done]]
        if end is None:
            active.scheduler.finish(run, DONE)
            return
        if end.stop.error is not None:
            self.turns.append(self._turn(stopped_at(run, end), run, end.stop.error))
        reporter = RunReporter(self._app.options.group, _Recorder(self), NO_HISTORY)
        log_end(run, end, await reporter.report(active, run, RunEnd(end.stop, end.done)))
        assert len(self.turns) > before or end.stop.error is None

    def _turn(self, message: Message, run: MessageRun, error: BaseException | None) -> TurnRecord:
        return TurnRecord(message, self.now, message.attempt, error)

    def again(self, message: Message, level: int, retries: int) -> None:
        """What a broker does with a message that was sent back: delivers it later, or makes it a dead letter."""
        route = route_send_back(message.reconsume_times, level, retries)
        if not isinstance(route, RouteToRetry):
            self.dead_letters.append(AppDeadLetter(message, f"failed {route.reconsume_times} times"))
            return
        due = self._clock.millis + delay_of(route.level)
        heapq.heappush(self._later, (due, next(self._numbers), message))

    def _put_due(self) -> None:
        while self._later and self._later[0][0] <= self._clock.millis:
            _, _, message = heapq.heappop(self._later)
            test_topic = self._topics[message.topic]
            copy = Message.fake(
                message.body,
                key=message.key,
                topic=message.topic,
                properties=dict(message.properties),
                offset=test_topic.next_offset,
                attempt=message.attempt + 1,
                group=message.group,
                codec="bytes",
                sent_at=message.born_at,
                broker=self._broker,
            )
            test_topic.put(copy.decoded_by(self._codec))

    def _due_times(self) -> list[int]:
        waits = [each.next_retry() for each in self._topics.values()]
        return [each for each in (*waits, *(due for due, _, _ in self._later[:1])) if each is not None]

    def _topic(self, name: str) -> "_TestTopic":
        check_text("topic", name)
        self._check_open()
        if name not in self._topics:
            raise InvalidOption(f"the app has no handler for topic {name!r}: it has {', '.join(self._topics)}")
        return self._topics[name]


@contextlib.contextmanager
def _no_running_loop() -> Iterator[None]:
    """Hides the event loop from a plain handler, which an app calls on a thread without one.

    Otherwise `asyncio.run` in it, or an ORM that refuses to block a loop, would fail in tests only.
    """
    loop = asyncio.events._get_running_loop()  # noqa: SLF001 - for implementations of loops, and documented
    asyncio.events._set_running_loop(None)  # noqa: SLF001
    try:
        yield
    finally:
        asyncio.events._set_running_loop(loop)  # noqa: SLF001


def _span(seconds: Seconds) -> Millis:
    span = check_seconds("seconds", seconds)
    if not 0 <= span < float("inf"):
        raise InvalidOption(f"seconds={seconds!r}: time does not go back; use 0 or more, or None for no limit")
    return to_millis(span)


class _TestTopic:
    """One topic with one queue, and the real scheduler of its handler."""

    def __init__(self, subscription: Subscription, clock: VirtualTime, broker: str) -> None:
        self.active = ActiveSubscription(subscription, make_scheduler(subscription, clock))
        self.queue = Message.fake(topic=subscription.topic, broker=broker).queue
        self.next_offset = 0
        with self.active.scheduler as lanes:
            lanes.add(self.queue, QueueOffset(0), usable_until=NO_LEASE_NEEDED)

    def put(self, message: Message) -> None:
        """Adds a message, unless the subscription filters its tag out."""
        at, self.next_offset = self.next_offset, self.next_offset + 1
        accepted = [message] if self.active.subscription.filter.accepts(message.tag) else []
        with self.active.scheduler as lanes:
            lanes.put(self.queue, accepted, QueueOffset(self.next_offset), pulled_from=QueueOffset(at))

    def parked_keys(self) -> tuple[str | None, ...]:
        with self.active.scheduler as lanes:
            view = lanes.view(self.queue)
        return () if view is None else view.parked

    def next_retry(self) -> Millis | None:
        """When a held lane may run again, if nothing else happens; None if none waits."""
        with self.active.scheduler as lanes:
            return lanes.wait().until


class _Recorder(DeadLetterSender):
    """Takes what would go to the broker."""

    def __init__(self, test: TestApp) -> None:
        self._test = test

    async def dead_letter(self, message: Message, why: str) -> bool:
        self._test.dead_letters.append(AppDeadLetter(message, why))
        return True

    async def send_back(self, message: Message, level: int = 0, max_retries: int = 16) -> bool:
        self._test.again(message, level, max_retries)
        return True

    async def pass_on(self, message: Message, max_retries: int = 16) -> bool:
        raise AssertionError("a TestApp has no retry topic")
