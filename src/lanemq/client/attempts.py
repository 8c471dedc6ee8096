"""One call of the user's code for one batch of a lane, and what its answer means.

Every kind of handler is brought to one shape, an attempt: messages in, None for "done, go on" or a `Stop` that
says how this batch ended. User code may raise anything; whatever it is, the messages are kept (A80).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lanemq.client.handler_call import HandlerCall
from lanemq.client.lane_board import MessageTurn
from lanemq.client.listener import (
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
from lanemq.core.retry_policy import clamp_suspend
from lanemq.core.turns import COMMIT, FAILED, ROLL_BACK, STOPPED, Outcome, Suspend
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


Attempt: TypeAlias = Callable[[Batch, MessageTurn], Stop | None]
AsyncAttempt: TypeAlias = Callable[[Batch, MessageTurn], Awaitable[Stop | None]]


def attempt_of(handler: HandlerCall, *, batched: bool) -> Attempt:
    """An attempt with a plain function: return is done, raise is again."""
    call = handler.call

    def attempt(batch: Batch, _: MessageTurn) -> Stop | None:
        try:
            call(batch if batched else batch[0])
        except Exception as error:  # noqa: BLE001 - logged by the worker, and the policy decides
            return stop_after(error, batch)
        return None

    return attempt


def async_attempt_of(handler: HandlerCall, *, batched: bool) -> AsyncAttempt:
    """The same with a coroutine function."""
    call = handler.call

    async def attempt(batch: Batch, _: MessageTurn) -> Stop | None:
        try:
            await call(batch if batched else batch[0])
        except Exception as error:  # noqa: BLE001 - logged by the worker, and the policy decides
            return stop_after(error, batch)
        return None

    return attempt


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
        case _:
            return Stop(FAILED, error=error)


class OrderlyAttempt:
    """An attempt with RocketMQ's orderly listener; `core/lane_scheduler` runs in manual commit mode then.

    RocketMQ decides per call who commits (`context.auto_commit`), the scheduler once. So a run of batches whose
    listener left automatic commit on ends with a commit, and as soon as a listener turned it off, runs are one
    batch long and only its own COMMIT commits.
    """

    def __init__(self, listener: OrderlyListener) -> None:
        self._listener = listener
        self._manual = False

    def __call__(self, batch: Batch, turn: MessageTurn) -> Stop | None:
        context = OrderlyContext(turn.queue)
        try:
            status = self._listener(batch, context)
        except Exception as error:  # noqa: BLE001 - logged by the worker; RocketMQ suspends too
            return Stop(_suspended(context), error=error)
        self._manual = self._manual or not context.auto_commit
        if status is None or status is OrderlyStatus.SUSPEND_CURRENT_QUEUE_A_MOMENT:
            return Stop(_suspended(context))
        if context.auto_commit:
            return self._committed(status, batch, turn)
        return _uncommitted(status, batch)

    def _committed(self, status: OrderlyStatus, batch: Batch, turn: MessageTurn) -> Stop | None:
        if status is not OrderlyStatus.SUCCESS:
            log.warning("%s: %s has no meaning with auto_commit and counts as success", turn.queue, status.name)
        last = batch[-1] is turn.messages[-1]
        return Stop(COMMIT) if last or self._manual else None


def _uncommitted(status: OrderlyStatus, batch: Batch) -> Stop:
    match status:
        case OrderlyStatus.COMMIT:
            return Stop(COMMIT)
        case OrderlyStatus.ROLLBACK:
            return Stop(ROLL_BACK)
        case _:
            return Stop(STOPPED, succeeded=len(batch))


def _suspended(context: OrderlyContext) -> Suspend:
    asked = context.suspend_current_queue_time_millis
    return Suspend(None if asked == -1 else clamp_suspend(asked))


class ConcurrentAttempt:
    """An attempt with RocketMQ's concurrent listener: what failed goes back to the broker."""

    def __init__(self, listener: ConcurrentListener) -> None:
        self._listener = listener

    def __call__(self, batch: Batch, turn: MessageTurn) -> Stop | None:
        context = ConcurrentlyContext(turn.queue)
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


def routed(attempts: Mapping[str, Attempt]) -> Attempt:
    """An attempt that chooses by the message's own topic: how messages of a retry topic find their handler."""

    def attempt(batch: Batch, turn: MessageTurn) -> Stop | None:
        chosen = attempts.get(batch[0].topic)
        return chosen(batch, turn) if chosen is not None else _nobody_for(batch[0])

    return attempt


def async_routed(attempts: Mapping[str, AsyncAttempt]) -> AsyncAttempt:
    """The same for coroutine functions."""

    async def attempt(batch: Batch, turn: MessageTurn) -> Stop | None:
        chosen = attempts.get(batch[0].topic)
        return await chosen(batch, turn) if chosen is not None else _nobody_for(batch[0])

    return attempt


def blocking(attempt: AsyncAttempt, loop: asyncio.AbstractEventLoop) -> Attempt:
    """A coroutine function's attempt for a worker thread."""

    def waiting(batch: Batch, turn: MessageTurn) -> Stop | None:
        async def on_the_loop() -> Stop | None:
            return await attempt(batch, turn)

        return asyncio.run_coroutine_threadsafe(on_the_loop(), loop).result()

    return waiting


def _nobody_for(message: Message) -> Stop:
    return Stop(Suspend(None), bury=f"no handler for topic {message.topic}")
