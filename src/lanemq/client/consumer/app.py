"""Handlers by decorator, the usual way to consume.

    app = App("localhost:9876", group="billing")

    @app.ordered("orders")
    def on_order(event: dict, message: Message) -> None: ...

    app.run()

The handler gets the messages of one key in order and one at a time; different keys run in parallel. A handler returns
when it is done, and raises to try again. SIGTERM lets running handlers finish, commits, hands the queues over and ends.
"""

import asyncio
import logging
from collections.abc import Callable
from typing import Any, TypeVar, Unpack

from lanemq.client.consumer.engine import ConsumerEngine, EngineThread
from lanemq.client.consumer.inspection import ConsumerSnapshot, take_snapshot
from lanemq.client.consumer.options import ConsumerSettings, consumer_options
from lanemq.client.consumer.signals import stop_on_signals
from lanemq.client.consumer.turns.handler import async_batch_handler, batch_handler, handler_call
from lanemq.client.consumer.turns.subscription import DEFAULT_WORKERS, Subscription
from lanemq.core.consuming.retry_policy import DeadLetter, FailurePolicy, HoldKey, HoldQueue, SendBack
from lanemq.core.consuming.runs import Order
from lanemq.model.errors import Closed, InvalidOption

log = logging.getLogger(__name__)

H = TypeVar("H", bound=Callable[..., Any])


class App:
    """One member of a group, with a handler per topic. Options: `ConsumerOptions`, docs/reference/options.md."""

    def __init__(self, servers: str, *, group: str, **settings: Unpack[ConsumerSettings]) -> None:
        self.options = consumer_options(servers, group, **settings)
        self._subscriptions: list[Subscription] = []
        self._thread: EngineThread | None = None
        self._engine: ConsumerEngine | None = None

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
        policy = on_fail or HoldKey()
        if isinstance(policy, SendBack):
            raise InvalidOption("SendBack gives up the order of the key: use @app.concurrent for that")
        hold = policy.hold if isinstance(policy, DeadLetter) else policy
        order = Order.QUEUE if isinstance(hold, HoldQueue) else Order.KEY
        return self._register(topic, tags, order, policy, lanes, batch_size)

    def concurrent(
        self, topic: str, *, tags: str = "*", workers: int = DEFAULT_WORKERS, batch_size: int = 1
    ) -> Callable[[H], H]:
        """Registers a handler without any order; the broker delivers failed messages again later."""
        return self._register(topic, tags, Order.NONE, SendBack(), workers, batch_size)

    def run(self) -> None:
        """Consumes until SIGINT or SIGTERM; a second signal ends at once."""
        asyncio.run(self.run_async())

    async def run_async(self) -> None:
        """`run` inside an event loop of the program; cancel it, or call `stop`, to end."""
        if self._engine is not None or self._thread is not None:
            raise Closed.started_before("app")
        self._engine = engine = ConsumerEngine(self.options, self._subscriptions)
        with stop_on_signals(engine.stop):
            try:
                await engine.run()
            finally:
                self._engine = None

    def start(self) -> None:
        """Consumes in the background, on a thread of its own."""
        if self._engine is not None or self._thread is not None:
            raise Closed.started_before("app")
        self._thread = EngineThread(self.options, self._subscriptions)  # a handler may stop the app before this returns
        try:
            self._thread.start()
        except BaseException:
            self._thread = None
            raise

    def stop(self, *, now: bool = False) -> None:
        """Lets running handlers finish, commits, hands the queues over and ends; `now` does not wait for handlers.

        A handler may call it: the call returns at once, and the app ends when the running handlers have returned. Any
        other caller of an app in the background waits for that.
        """
        if self._thread is not None:
            self._thread.stop(now=now)
        elif self._engine is not None:
            self._engine.stop(now=now)

    def snapshot(self) -> ConsumerSnapshot:
        """The assigned queues, and what was done so far."""
        engine = self._thread.engine if self._thread is not None else self._engine
        if engine is None:
            raise Closed("this app is not running")
        return take_snapshot(engine)

    def resume(self, topic: str, key: str | None = None) -> bool:
        """Lets a parked key (or, with `HoldQueue`, a parked queue) try again; returns whether there was one here.

        A lane that is parked at the broker is redriven, as by `lanemq parked redrive`; this call does not wait for it.
        """
        engine = self._thread.engine if self._thread is not None else self._engine
        if engine is None or topic not in engine.subscriptions:
            raise Closed(f"this app does not consume {topic!r} at the moment")
        scheduler = engine.subscriptions[topic].scheduler
        return any([scheduler.resume(assigned.queue, key) for assigned in engine.assignment.of_topic(topic)])

    def __enter__(self) -> "App":
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _register(
        self, topic: str, tags: str, order: Order, policy: FailurePolicy, workers: int, batch_size: int
    ) -> Callable[[H], H]:
        def register(handler: H) -> H:
            if any(each.topic == topic for each in self._subscriptions):
                raise InvalidOption(f"topic {topic!r} has a handler in this app already")
            batched = batch_size > 1
            call = handler_call(handler, batched=batched)
            subscription = Subscription(
                topic=topic,
                tags=tags,
                order=order,
                policy=policy,
                workers=workers,
                batch_size=batch_size,
                handler=None if call.is_async else batch_handler(call, batched=batched),
                async_handler=async_batch_handler(call, batched=batched) if call.is_async else None,
            )
            self._subscriptions.append(subscription)
            return handler

        return register
