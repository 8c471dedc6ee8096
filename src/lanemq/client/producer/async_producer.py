"""The asyncio producer: the same names and the same engine as `Producer`, with `await`.

Its calls; what is behind them is `async_producer_shell`.
"""

import asyncio
import contextlib
from collections.abc import Mapping, Sequence
from typing import Self

from lanemq.client.producer.async_shell import AsyncProducerShell
from lanemq.client.producer.batch_block import AsyncBatch
from lanemq.client.producer.packing import Many, choice_of
from lanemq.client.producer.requests import extras_of
from lanemq.client.producer.waiters import UNHEARD, AwaitedCrowd, LoopFuture, WaitingTask
from lanemq.client.producer.work import CLOSE_SPARE_SECONDS
from lanemq.client.receipt import Receipt
from lanemq.core.sending.sharding import Selector
from lanemq.model.errors import LaneError, LaneFrozen
from lanemq.model.queue import MessageQueue


class AsyncProducer(AsyncProducerShell):
    """Sends messages and keeps those of a key in order. For one event loop."""

    # sending

    async def send(
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
        """Stores one message and returns where it is; raises when it is not known to be stored.

        Cancelled, it leaves the message to its fate: if it fails, its key is frozen.
        """
        future = WaitingTask()
        extras = extras_of(tag, keys, properties, delay_level)
        try:
            await self._accept(topic, value, key, extras, choice_of(selector, arg, queue), (future, True))
            return await future
        except LaneError:
            raise
        except BaseException:
            self._leave(future)
            raise

    async def submit(
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
    ) -> asyncio.Future[Receipt]:
        """Takes its place in line; the future says how it ended. Waits only for a route or a full buffer.

        If it fails, its key is frozen until `resume` or `drop`: what comes behind it fails with `LaneFrozen`.
        """
        if not (tag or keys or properties or delay_level or selector) and queue is None and type(key) is str:
            taken: LoopFuture | None = self._take(topic, key, value)
            if taken is not None:
                return taken
        future = LoopFuture()
        extras = extras_of(tag, keys, properties, delay_level)
        try:
            await self._accept(topic, value, key, extras, choice_of(selector, arg, queue), (future, False))
        except LaneFrozen as error:
            future.set_exception(error.with_traceback(None))  # which would lead back to the future, for ever
        return future

    async def send_oneway(
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
        await self._accept(topic, value, key, extras, choice_of(selector, arg, queue), (UNHEARD, True))

    async def send_many(self, topic: str, messages: Many) -> list[Receipt]:
        """Stores all messages, those of a key in the order given; the fast way for more than a few.

        Raises as `Producer.send_many` does. A cancelled call ends at once; keys of it that fail later are frozen.
        """
        crowd, count, told = AwaitedCrowd(), 0, False
        try:
            try:
                for run in self._packer.runs(messages, crowd):
                    await self._accept_run(topic, run)
                    count += len(run)
                    await asyncio.sleep(0)  # a long iterable must not keep the loop from reading answers
            except LaneError as error:
                crowd.failed(count, error)  # it stands for its run; the caller hears of the earliest failure
                count += 1
            crowd.close(count)
            await crowd.wait()
            told = True
            return crowd.result()
        finally:
            self._empty_inbox()
            self._engine.call_ended(crowd, told=told)

    def batch(self, topic: str) -> AsyncBatch:
        """`async with producer.batch("orders") as batch: batch.add(value, key=...)`: sent when the block ends."""
        return AsyncBatch(self, topic)

    # life

    async def flush(self) -> None:
        """Waits until everything accepted so far is settled, one way or the other; not for what comes later."""
        self._empty_inbox()
        self._post(self._engine.hurry())
        mark = self._engine.mark()
        await self._wait_until(lambda: mark.settled)

    async def resume(
        self, topic: str, *, key: str | int | None = None, queue: int | MessageQueue | None = None
    ) -> None:
        """Opens a frozen key, and its queue if that is frozen as a whole; without a key, all of queue or topic."""
        self._resume(await self._route(topic), key, queue)

    async def close(self) -> None:
        """As `Producer.close`: settles what was accepted, at most for `timeout` seconds; a second call waits too."""
        if self._closing:
            await self._ended.wait()
            return
        self._closing = True
        try:
            await self._end()
        finally:
            self._ended.set()

    async def _end(self) -> None:
        self._settled.set()  # whoever waits for space waits in vain
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self._options.timeout + CLOSE_SPARE_SECONDS):
                await self.flush()
        self._closed = True
        self._wake.set()
        if self._keeper is not None:
            await self._keeper
        for link in self._links.values():
            link.close()
        self._pool.close()
        for outcome in self._engine.abandon():
            outcome.tell()
        await asyncio.sleep(0)  # lets the transports close

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
