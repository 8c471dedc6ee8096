"""Handlers by decorator, the usual way to consume.

    app = App("localhost:9876", group="billing")

    @app.ordered("orders")
    def on_order(event: dict, message: Message) -> None: ...

    app.run()

The handler gets the messages of one key in order and one at a time; different keys run in parallel. A handler returns
when it is done, and raises to try again. SIGTERM lets running handlers finish, commits, hands the queues over and ends.
"""

import asyncio
import contextlib
import inspect
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeAlias, TypeVar, Unpack

from lanemq.client.codec import codec_named, type_name
from lanemq.client.consumer.engine import ConsumerEngine, EngineThread, end_task, until_started
from lanemq.client.consumer.inspection import ConsumerSnapshot, take_snapshot
from lanemq.client.consumer.monitor import consumer_samples
from lanemq.client.consumer.options import ConsumerSettings, consumer_options
from lanemq.client.consumer.signals import stop_on_signals
from lanemq.client.consumer.turns.arguments import (
    Middleware,
    Signature,
    call_in_context,
    function_name,
    has_yield,
    missing_types,
    plain_call,
    provided_type,
    read_signature,
)
from lanemq.client.consumer.turns.handler import async_batch_handler, batch_handler
from lanemq.client.consumer.turns.subscription import DEFAULT_WORKERS, Subscription, ordered_by
from lanemq.client.ending import close_here_or_aside
from lanemq.client.metrics import as_numbers
from lanemq.core.consuming.retry_policy import FailurePolicy, SendBack
from lanemq.core.consuming.runs import Order
from lanemq.model.checks import check_text
from lanemq.model.errors import Closed, InvalidOption, UsageError
from lanemq.model.keys import Key, key_text
from lanemq.net.address import Servers
from lanemq.net.fast_loop import plain_loop

H = TypeVar("H", bound=Callable[..., Any])
M = TypeVar("M", bound=Middleware)

Lifespan: TypeAlias = "Callable[[App], AbstractAsyncContextManager[object] | AbstractContextManager[object]]"
"""What is open while the app runs: a context manager, made with the app."""


@dataclass(frozen=True, slots=True)
class Registered:
    """A handler, and the subscription that it belongs to, still without the handler."""

    handler: Callable[..., Any]
    signature: Signature
    subscription: Subscription


class App:
    """One member of a group, with a handler per topic. Options: `ConsumerOptions`, docs/reference/options.md."""

    def __init__(
        self, servers: Servers, *, group: str, lifespan: "Lifespan | None" = None, **settings: Unpack[ConsumerSettings]
    ) -> None:
        """`lifespan(app)` is a context manager that is entered before the first message and left after the last."""
        if lifespan is not None and not callable(lifespan):
            raise InvalidOption(
                f"lifespan={lifespan!r} must be a function that takes the app: see docs/guides/async.md"
            )
        self.options = consumer_options(servers, group, **settings)
        self._codec = codec_named(self.options.codec)
        self._lifespan = lifespan
        self._registered: list[Registered] = []
        self._middleware: list[Middleware] = []
        self._provided: dict[type, object] = {}
        self._is_read = False  # whether the handlers were read, so that further ones would never be called
        self._thread: EngineThread | None = None
        self._engine: ConsumerEngine | None = None
        self._running: asyncio.Task[None] | None = None

    def ordered(
        self,
        topic: str,
        *,
        tags: str = "*",
        on_fail: FailurePolicy | None = None,
        lanes: int = DEFAULT_WORKERS,
        batch_size: int = 1,
    ) -> Callable[[H], H]:
        """Registers a handler that gets the messages of each key in order, one at a time.

        `on_fail` says what waits after a failure: `HoldKey` (default) holds the key, and parks it with everything
        behind it when its retries are used up; `HoldQueue` holds the whole queue, as in RocketMQ;
        `DeadLetter(skip=True)` makes the message a dead letter when its retries are used up, and lets its successors
        pass. `lanes` is the number of keys that run at once. With `batch_size` above 1 the handler gets lists.
        """
        _check_has_topic(topic, "ordered")
        policy, order = ordered_by(on_fail)
        return self._register(
            Subscription(topic=topic, tags=tags, order=order, policy=policy, workers=lanes, batch_size=batch_size)
        )

    def concurrent(
        self, topic: str, *, tags: str = "*", workers: int = DEFAULT_WORKERS, batch_size: int = 1
    ) -> Callable[[H], H]:
        """Registers a handler without any order; the broker delivers failed messages again later."""
        _check_has_topic(topic, "concurrent")
        return self._register(
            Subscription(
                topic=topic, tags=tags, order=Order.NONE, policy=SendBack(), workers=workers, batch_size=batch_size
            )
        )

    def middleware(self, around: M) -> M:
        """Registers a function with one `yield`, which runs around every turn: before it, and after its end.

            @app.middleware
            def timed(messages: Sequence[Message]) -> Iterator[None]:
                began = time.perf_counter()
                yield
                print(f"{messages[0].key}: {time.perf_counter() - began:.3f} s")

        A failure of the handler is raised at the `yield`; if it is caught there, the turn counts as a success. The
        first one registered is the outermost. An `async def` middleware is for apps with only `async def` handlers.
        """
        if not callable(around) or not has_yield(around):
            raise InvalidOption(f"middleware {around!r} must be a function with one `yield`, where the turn runs")
        self._refuse_late(f"middleware {function_name(around)}")
        self._middleware.append(around)
        return around

    def provide(self, value: object, *, as_type: type | None = None) -> None:
        """Gives handlers an object, such as a connection pool, for parameters like `pool: Annotated[Pool, Depends()]`.

        It is found by its class, or by `as_type`, a base class or protocol of it. Call it before the start or in the
        lifespan.
        """
        self._provided[provided_type(value, as_type)] = value

    def run(self) -> None:
        """Consumes until SIGINT or SIGTERM; a second signal ends at once.

        Raises `UsageError` while a module is imported, because the import would not end: call it below
        `if __name__ == "__main__":`.
        """
        _check_not_importing("app.run()")
        if is_in_event_loop():
            raise UsageError(
                "app.run() needs a thread without an event loop, and one runs here, as in a notebook or in async code: "
                "use `app.start()` and later `app.stop()`, or `await app.run_async()`"
            )
        with asyncio.Runner(loop_factory=plain_loop()) as runner:
            runner.run(self.run_async())

    async def run_async(self) -> None:
        """`run` inside an event loop of the program; cancel it, or call `stop`, to end."""
        _check_not_importing("app.run_async()")
        self._check_not_started()
        async with self._alive() as engine:
            with stop_on_signals(engine.stop):
                await engine.run()

    async def __aenter__(self) -> "App":
        """Consumes on the running event loop while the program does something else in the block.

        Signals are left to the program: a web server, for example, leaves the block when it is stopped. The block may
        be entered again after that, as tests of a web application do.
        """
        self._check_not_started()
        started = asyncio.Event()
        self._running = running = asyncio.create_task(self._run_in_background(started))
        waiting = asyncio.create_task(started.wait())
        try:
            await asyncio.wait({running, waiting}, return_when=asyncio.FIRST_COMPLETED)
            if running.done():
                running.result()
        except BaseException:  # the block is not entered, so nothing would leave it
            self._running = None
            await end_task(running)
            raise
        finally:
            waiting.cancel()
        return self

    async def __aexit__(self, *_: object) -> None:
        self.stop()
        running, self._running = self._running, None
        if running is not None:
            await running

    async def _run_in_background(self, started: asyncio.Event) -> None:
        async with self._alive() as engine:
            running = asyncio.create_task(engine.run())
            await until_started(engine, running)
            if not running.done():
                started.set()
            await running

    def start(self) -> None:
        """Consumes in the background, on a thread of its own."""
        self._check_not_started()
        self._thread = EngineThread(self.options, self.prepared)  # a handler may stop the app before this returns
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            raise

    def stop(self, *, now: bool = False) -> None:
        """Lets running handlers finish, commits, hands the queues over and ends; `now` does not wait for handlers.

        A handler may call it: the call returns at once, and the app ends when the running handlers have returned. Any
        other caller of an app in the background waits for that, except for a signal handler that has interrupted a call
        of a client: there, the end of the program waits.
        """
        if self._thread is not None:
            close_here_or_aside(partial(self._thread.stop, now=now), sys._getframe(1))  # noqa: SLF001
        elif self._engine is not None:
            self._engine.stop(now=now)

    def snapshot(self) -> ConsumerSnapshot:
        """The assigned queues, and what was done so far."""
        return take_snapshot(self._require_engine())

    def metrics(self) -> dict[str, float]:
        """All metrics of docs/reference/metrics.md, by their names and labels. Any thread may call it."""
        return as_numbers(consumer_samples(self._require_engine()))

    @property
    def monitor_address(self) -> str | None:
        """Where the monitor listens, `host:port`; None without one."""
        address = self._require_engine().monitor_address
        return None if address is None else str(address)

    def _require_engine(self) -> ConsumerEngine:
        engine = self._thread.engine if self._thread is not None else self._engine
        if engine is None:
            raise Closed("this app is not running: start it first")
        return engine

    def resume(self, topic: str, key: Key | None = None) -> bool:
        """Lets a parked key (or, with `HoldQueue`, a parked queue) try again; returns whether there was one here.

        A lane that is parked at the broker is redriven, as by `lanemq parked redrive`; this call does not wait for it.
        """
        check_text("topic", topic)
        lane = None if key is None else key_text(key)
        engine = self._thread.engine if self._thread is not None else self._engine
        if engine is None or topic not in engine.subscriptions:
            raise Closed(f"this app does not consume {topic!r} at the moment")
        queues = [assigned.queue for assigned in engine.assignment.of_topic(topic)]
        with engine.subscriptions[topic].scheduler as lanes:
            return any([lanes.resume(queue, lane) for queue in queues])

    def __enter__(self) -> "App":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _register(self, subscription: Subscription) -> Callable[[H], H]:
        def register(handler: H) -> H:
            if any(each.subscription.topic == subscription.topic for each in self._registered):
                raise InvalidOption(
                    f"topic {subscription.topic!r} has a handler in this app already: use one handler for a topic, or "
                    f"another app with a group of its own"
                )
            self._refuse_late(f"a handler of {subscription.topic!r}")
            signature = read_signature(handler, self._codec, batched=subscription.batch_size > 1)
            self._registered.append(Registered(handler, signature, subscription))
            return handler

        return register

    def _refuse_late(self, what: str) -> None:
        """Refuses what comes after a start has read the handlers: nothing would call it."""
        if self._is_read:
            raise UsageError(f"{what} came after the start of the app: register it before, or in the lifespan")

    def _check_not_started(self) -> None:
        if self._engine is not None or self._thread is not None or self._running is not None:
            raise Closed.started_before("app")

    @contextlib.asynccontextmanager
    async def _alive(self) -> AsyncIterator[ConsumerEngine]:
        """The engine, inside the lifespan."""
        async with self.prepared() as subscriptions:
            self._engine = ConsumerEngine(self.options, subscriptions)
            try:
                yield self._engine
            finally:
                self._engine = None

    @contextlib.asynccontextmanager
    async def prepared(self) -> AsyncIterator[list[Subscription]]:
        """Enters the lifespan; the subscriptions with their handlers, whose dependencies are there now."""
        async with contextlib.AsyncExitStack() as stack:
            if self._lifespan is not None:
                await enter_lifespan(self._lifespan, self, stack)
            subscriptions = self.subscriptions()
            self._is_read = True
            try:
                yield subscriptions
            finally:
                self._is_read = False

    def subscriptions(self) -> list[Subscription]:
        """The subscriptions with their handlers. Raises `InvalidOption` if a handler needs what nothing provides."""
        return [self._with_handler(each) for each in self._registered]

    def _with_handler(self, registered: Registered) -> Subscription:
        handler, signature, subscription = registered.handler, registered.signature, registered.subscription
        for parameter, wanted in missing_types(signature, self._provided):
            raise InvalidOption(
                f"handler {signature.name} of topic {subscription.topic!r} needs {parameter}: {type_name(wanted)}, and "
                f"nothing provides one: call app.provide(...) before the start or in the lifespan"
            )
        if self._middleware or signature.has_dependencies:
            call = call_in_context(handler, signature, self._middleware, self._provided)
        else:
            call = plain_call(handler, signature)
        batched = subscription.batch_size > 1
        if call.is_async:
            return replace(subscription, async_handler=async_batch_handler(call, batched=batched))
        return replace(subscription, handler=batch_handler(call, batched=batched))


async def enter_lifespan(lifespan: Lifespan, app: App, stack: contextlib.AsyncExitStack) -> None:
    """Enters what the lifespan returns: a context manager of either kind, or a generator that makes one."""
    if inspect.isasyncgenfunction(lifespan):
        lifespan = contextlib.asynccontextmanager(lifespan)
    elif inspect.isgeneratorfunction(lifespan):
        lifespan = contextlib.contextmanager(lifespan)
    entered = lifespan(app)
    if isinstance(entered, AbstractAsyncContextManager):
        await stack.enter_async_context(entered)
    elif isinstance(entered, AbstractContextManager):
        stack.enter_context(entered)
    else:
        raise InvalidOption(
            f"the lifespan returned a {type(entered).__name__}: it must return a context manager, as a function with "
            f"one `yield` under @asynccontextmanager does"
        )


def _check_has_topic(topic: object, decorator: str) -> None:
    """Refuses `@app.ordered` without parentheses, where the handler is in the place of the topic."""
    if callable(topic):
        raise InvalidOption(f'@app.{decorator} needs a topic in parentheses: write @app.{decorator}("orders")')


def _check_not_importing(call: str) -> None:
    """Refuses a call from the body of a module that `lanemq run`, pytest or another program imports."""
    frame = inspect.currentframe()
    while frame is not None:
        name = frame.f_globals.get("__name__")
        if frame.f_code.co_name == "<module>" and name != "__main__" and frame.f_globals.get("__spec__") is not None:
            raise UsageError(
                f"module {name!r} calls {call} while it is imported, and the import would never end: put the call "
                f'below `if __name__ == "__main__":`; `lanemq run {name}:app` and tests start the app themselves'
            )
        frame = frame.f_back


def is_in_event_loop() -> bool:
    """Whether an event loop runs in this thread."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
