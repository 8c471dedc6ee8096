"""One call of the user's code for one batch of a lane, and what its answer means.

Every kind of handler is brought to one shape, an attempt: messages in, None for "done, go on" or a `Stop` that
says how this batch ended. User code may raise anything; whatever it is, the messages are kept (A80).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from lanemq._fast import compiled
from lanemq.client.consumer.handler import HandlerCall
from lanemq.client.consumer.in_progress import MessageRun
from lanemq.client.consumer.listener import (
    ConcurrentListener,
    ConcurrentlyContext,
    ConcurrentlyStatus,
    OrderlyContext,
    OrderlyListener,
    OrderlyStatus,
    Retry,
    Skip,
    ToDeadLetter,
)
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import clamp_suspend
from lanemq.core.consuming.runs import COMMIT, FAILED, HOPELESS, ROLL_BACK, Outcome, Suspend
from lanemq.model.errors import InvalidOption, Undecodable
from lanemq.model.units import Millis

log = logging.getLogger(__name__)

Batch: TypeAlias = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Stop:
    """The run ends with this batch."""

    outcome: Outcome
    succeeded: int = 0
    """How many messages of the batch went well before the outcome's."""
    error: BaseException | None = None
    """What the handler raised, for the log."""
    bury: str | None = None
    """The handler wants the message among the dead letters, for this reason."""
    delay_level: int = 0
    """Concurrent: when the broker shall deliver it again; 0 leaves that to the broker."""


BatchHandler: TypeAlias = Callable[[Batch, MessageRun], Stop | None]
AsyncBatchHandler: TypeAlias = Callable[[Batch, MessageRun], Awaitable[Stop | None]]


def batch_handler(handler: HandlerCall, *, batched: bool) -> BatchHandler:
    """An attempt with a plain function: return is done, raise is again."""
    return plain_handler(handler.call, batched, stop_after)


@compiled
def plain_handler(
    call: Callable[[Any], object], batched: bool, stop_after: Callable[[Exception, Batch], Stop | None]
) -> BatchHandler:
    """Calls the function with a message, or with the whole batch; `stop_after` says what an exception means."""

    def handler(batch: Batch, _: MessageRun) -> Stop | None:
        try:
            call(batch if batched else batch[0])
        except Exception as error:  # noqa: BLE001 - logged by the worker, and the policy decides
            return stop_after(error, batch)
        return None

    return handler


def async_batch_handler(handler: HandlerCall, *, batched: bool) -> AsyncBatchHandler:
    """The same with a coroutine function."""
    call = handler.call

    async def handle(batch: Batch, _: MessageRun) -> Stop | None:
        try:
            await call(batch if batched else batch[0])
        except Exception as error:  # noqa: BLE001 - logged by the worker, and the policy decides
            return stop_after(error, batch)
        return None

    return handle


def stop_after(error: Exception, batch: Batch) -> Stop | None:
    """What an exception of the handler means."""
    match error:
        case Skip():
            log.info("%s is skipped by its handler: %s", batch[0], error or "no reason given")
            return None
        case Retry(after=None):
            return Stop(Suspend(None), error=error)
        case Retry(after=seconds):
            return Stop(Suspend(Millis(int((seconds or 0) * 1000))), error=error)
        case ToDeadLetter(why=why):
            return Stop(Suspend(None), error=error, bury=why)
        case Undecodable():
            return Stop(HOPELESS, error=error)
        case _:
            return Stop(FAILED, error=error)


class OrderlyHandler:
    """An attempt with RocketMQ's orderly listener.

    Who commits is the lane scheduler's setting, made once: `manual` here and there must agree. A listener may
    still commit a single call in manual mode by leaving `context.auto_commit` on.
    """

    def __init__(self, listener: OrderlyListener, *, manual: bool = False) -> None:
        self._listener = listener
        self._manual = manual

    def __call__(self, batch: Batch, run: MessageRun) -> Stop | None:
        context = OrderlyContext(run.queue, auto_commit=not self._manual)
        try:
            status = self._listener(batch, context)
        except Exception as error:  # noqa: BLE001 - logged by the worker; RocketMQ suspends too
            return Stop(_suspended(context), error=error)
        if not (context.auto_commit or self._manual):
            return Stop(FAILED, error=InvalidOption("auto_commit=False needs PushConsumer(manual_commit=True)"))
        match status:
            case OrderlyStatus.SUCCESS:
                return Stop(COMMIT) if self._manual and context.auto_commit else None
            case OrderlyStatus.COMMIT:
                return Stop(COMMIT)
            case OrderlyStatus.ROLLBACK:
                return Stop(COMMIT if context.auto_commit else ROLL_BACK)
            case _:
                return Stop(_suspended(context))


def _suspended(context: OrderlyContext) -> Suspend:
    asked = context.suspend_current_queue_time_millis
    return Suspend(None if asked == -1 else clamp_suspend(asked))


class ConcurrentHandler:
    """An attempt with RocketMQ's concurrent listener: what failed goes back to the broker."""

    def __init__(self, listener: ConcurrentListener) -> None:
        self._listener = listener

    def __call__(self, batch: Batch, run: MessageRun) -> Stop | None:
        context = ConcurrentlyContext(run.queue)
        try:
            status = self._listener(batch, context)
        except Exception as error:  # noqa: BLE001 - logged by the worker; RocketMQ sends back too
            return Stop(FAILED, error=error, delay_level=context.delay_level_when_next_consume)
        if status is ConcurrentlyStatus.CONSUME_SUCCESS:
            succeeded = max(0, min(context.ack_index + 1, len(batch)))
        else:
            succeeded = 0
        if succeeded == len(batch):
            return None
        return Stop(FAILED, succeeded=succeeded, delay_level=context.delay_level_when_next_consume)


def by_topic(attempts: Mapping[str, BatchHandler]) -> BatchHandler:
    """An attempt that chooses by the message's own topic: how messages of a retry topic find their handler."""

    def handler(batch: Batch, run: MessageRun) -> Stop | None:
        chosen = attempts.get(batch[0].topic)
        return chosen(batch, run) if chosen is not None else _nobody_for(batch[0])

    return handler


def async_by_topic(attempts: Mapping[str, AsyncBatchHandler]) -> AsyncBatchHandler:
    """The same for coroutine functions."""

    async def handler(batch: Batch, run: MessageRun) -> Stop | None:
        chosen = attempts.get(batch[0].topic)
        return await chosen(batch, run) if chosen is not None else _nobody_for(batch[0])

    return handler


def blocking(handler: AsyncBatchHandler, loop: asyncio.AbstractEventLoop) -> BatchHandler:
    """A coroutine function's attempt for a worker thread."""

    def waiting(batch: Batch, run: MessageRun) -> Stop | None:
        async def on_the_loop() -> Stop | None:
            return await handler(batch, run)

        return asyncio.run_coroutine_threadsafe(on_the_loop(), loop).result()

    return waiting


def _nobody_for(message: Message) -> Stop:
    return Stop(Suspend(None), bury=f"no handler for topic {message.topic}")
