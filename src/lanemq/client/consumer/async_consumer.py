"""`Consumer` for programs with an event loop: the same names, with `await`.

async with AsyncConsumer("localhost:9876", group="audit", topics=["orders"]) as consumer:
    async for message in consumer:
        ...
        await consumer.done(message)

SIGTERM ends the iteration after the current message; leaving the block commits and releases the queues.
"""

import asyncio
from collections.abc import AsyncIterator, Sequence
from typing import Unpack

from lanemq.client.consumer.consumer import Undecided, subscriptions_for
from lanemq.client.consumer.engine import ConsumerEngine, ended_by, until_started
from lanemq.client.consumer.inspection import ConsumerSnapshot, take_snapshot
from lanemq.client.consumer.monitor import consumer_samples
from lanemq.client.consumer.options import ConsumerSettings, consumer_options
from lanemq.client.consumer.signals import TERMINATION
from lanemq.client.consumer.turns.async_scheduler import AsyncScheduler
from lanemq.client.message import Message
from lanemq.client.metrics import as_numbers
from lanemq.core.consuming.retry_policy import FailurePolicy
from lanemq.core.consuming.runs import Why
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.checks import seconds
from lanemq.model.errors import Closed
from lanemq.model.units import Seconds
from lanemq.net.address import Servers


class AsyncConsumer:
    """One member of a group, on the running event loop."""

    def __init__(
        self,
        servers: Servers,
        *,
        group: str,
        topics: str | Sequence[str],
        tags: str = "*",
        on_fail: FailurePolicy | None = None,
        **settings: Unpack[ConsumerSettings],
    ) -> None:
        self.options = consumer_options(servers, group, **settings)
        self._subscriptions = subscriptions_for(topics, tags, on_fail)
        first = self._subscriptions[0]
        self._scheduler = AsyncScheduler(LaneScheduler(first.lanes), self.options.clock)
        self._undecided = Undecided(self._scheduler, group, self.options.history, self.options.clock)
        self._engine: ConsumerEngine | None = None
        self._running: asyncio.Task[None] | None = None
        self._term: object | None = None
        self._ending = False

    async def start(self) -> None:
        """Starts consuming; returns after the first rebalance round, or raises the error that prevented it.

        A start that is cancelled ends the consumer.
        """
        if self._engine is not None:
            raise Closed.started_before("consumer")
        self._engine = engine = ConsumerEngine(self.options, self._subscriptions, lambda *_: self._scheduler)
        self._running = running = asyncio.create_task(engine.run())
        try:
            await until_started(engine, running)
        except BaseException:
            self._running = None
            raise
        if running.done():
            await running

    async def close(self, *, now: bool = False) -> None:
        """Commits, and hands the queues over. Undecided messages are delivered again."""
        if self._engine is not None and self._engine.in_child:
            return
        self._undecided.give_back()
        if self._engine is not None and self._running is not None:
            self._engine.stop(now=now)
            try:
                await self._running
            finally:
                TERMINATION.forget(self._term)

    async def poll(self, timeout: Seconds | None = None) -> Message | None:
        """The next message; None if none came within `timeout` seconds, or the consumer was closed.

        Raises:
            LaneError: the consumer ended by an error.
        """
        if self._engine is not None:
            self._engine.check_process()
        run = await self._scheduler.take_run_async(None if timeout is None else seconds("timeout", timeout))
        if run is None and self._engine is not None and self._engine.failure is not None:
            raise ended_by(self._engine.failure)
        return self._undecided.add(run)

    async def done(self, message: Message) -> bool:
        """Finishes the message; its lane continues.

        False: the message is delivered again, because the queue was lost or the consumer was closed in between.
        """
        return self._undecided.done(message)

    async def retry(self, message: Message, after: Seconds | None = None) -> None:
        """Delivers the same message again, after `after` seconds or as the failure policy says."""
        self._undecided.retry(message, after)

    async def dead(self, message: Message, why: str = "") -> bool:
        """Moves the message to the group's dead letters; its lane continues. False: the broker did not take it."""
        run, end = self._undecided.dead(message, why)
        if run is None:
            return False
        engine = self._require_engine()
        finished = await engine.reporter.report(engine.subscriptions[run.queue.topic], run, end)
        return finished.why is Why.STOPPED

    def snapshot(self) -> ConsumerSnapshot:
        """The assigned queues, and what was done so far."""
        return take_snapshot(self._require_engine())

    def metrics(self) -> dict[str, float]:
        """All metrics of docs/reference/metrics.md, by their names and labels. Any thread may call it."""
        return as_numbers(consumer_samples(self._require_engine()))

    def __aiter__(self) -> AsyncIterator[Message]:
        if self._term is None:
            self._loop = asyncio.get_running_loop()
            self._term = TERMINATION.listen(self._end_iteration, again=False)
        return self

    def _end_iteration(self) -> None:
        self._ending = True
        self._loop.call_soon_threadsafe(self._scheduler.close)

    async def __anext__(self) -> Message:
        message = None if self._ending else await self.poll()
        if message is None:
            raise StopAsyncIteration
        return message

    async def __aenter__(self) -> "AsyncConsumer":
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    def _require_engine(self) -> ConsumerEngine:
        if self._engine is None:
            raise Closed("this consumer is not running: start it first")
        if self._engine.failure is not None:
            raise ended_by(self._engine.failure)
        return self._engine
