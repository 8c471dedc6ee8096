"""Calls the user's handler with a batch of messages, and interprets how the call ended.

A handler returns when it is done and raises to try again. Three exceptions (`Retry`, `Skip`, `ToDeadLetter`) are
decisions and no errors. RocketMQ's listeners return a status instead; their statuses and contexts have RocketMQ's
names.

Every kind of handler becomes a `BatchHandler`: it takes a batch of messages of one lane, and returns None for success
or a `Stop`. User code may raise anything; whatever it raises, no message is lost (A80).
"""

import asyncio
import inspect
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, TypeAlias, get_args, get_type_hints

from lanemq._fast import compiled
from lanemq.client.consumer.turns.in_progress import MessageRun
from lanemq.client.message import Message
from lanemq.core.consuming.retry_policy import clamp_suspend
from lanemq.core.consuming.runs import COMMIT, FAILED, HOPELESS, ROLL_BACK, Outcome, Suspend
from lanemq.model.errors import InvalidOption, Undecodable
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Seconds, to_millis, to_seconds

log = logging.getLogger(__name__)

Handler = Callable[..., Any]
Batch: TypeAlias = tuple[Message, ...]

# what a handler may raise


class HandlerVerdict(Exception):
    """Base of the exceptions by which a handler decides about its message."""


class Retry(HandlerVerdict):
    """Delivers the same message again after `after` seconds (None: as the policy says), before the rest of its lane."""

    def __init__(self, after: Seconds | None = None) -> None:
        self.after = None if after is None else to_seconds(after)
        super().__init__("try again" if self.after is None else f"try again after {self.after:g} s")


class Skip(HandlerVerdict):
    """Marks the message as done without processing it; the lane goes on."""


class ToDeadLetter(HandlerVerdict):
    """Moves the message to the group's dead letters at once, with the reason; the lane goes on."""

    def __init__(self, why: str = "") -> None:
        self.why = why
        super().__init__(why)


# what a RocketMQ listener gets and returns


class OrderlyStatus(Enum):
    """What an orderly listener returns (RocketMQ's ConsumeOrderlyStatus)."""

    SUCCESS = "success"
    SUSPEND_CURRENT_QUEUE_A_MOMENT = "suspend"
    COMMIT = "commit"
    ROLLBACK = "rollback"


class ConcurrentlyStatus(Enum):
    """What a concurrent listener returns (RocketMQ's ConsumeConcurrentlyStatus)."""

    CONSUME_SUCCESS = "success"
    RECONSUME_LATER = "later"


@dataclass(slots=True)
class OrderlyContext:
    """What an orderly listener may set (RocketMQ's ConsumeOrderlyContext)."""

    message_queue: MessageQueue
    auto_commit: bool = True
    """False: SUCCESS leaves the messages uncommitted until COMMIT, and ROLLBACK repeats them all."""
    suspend_current_queue_time_millis: int = -1
    """How long SUSPEND waits, in milliseconds; -1 uses the consumer's setting."""


@dataclass(slots=True)
class ConcurrentlyContext:
    """What a concurrent listener may set (RocketMQ's ConsumeConcurrentlyContext)."""

    message_queue: MessageQueue
    delay_level_when_next_consume: int = 0
    """0: the broker chooses; -1: straight to the dead letters; above 0: that delay level."""
    ack_index: int = field(default=2**31 - 1)
    """Index of the last message of the batch that succeeded; those after it are tried again."""


OrderlyListener: TypeAlias = Callable[[Sequence[Message], OrderlyContext], OrderlyStatus | None]
ConcurrentListener: TypeAlias = Callable[[Sequence[Message], ConcurrentlyContext], ConcurrentlyStatus | None]


# one shape for every kind of handler


@dataclass(frozen=True, slots=True)
class Stop:
    """Ends the run at this batch, with an outcome other than success."""

    outcome: Outcome
    succeeded: int = 0
    """Number of messages of the batch that succeeded before the one that the outcome applies to."""
    error: BaseException | None = None
    """What the handler raised, for the log."""
    dead_letter: str | None = None
    """Why the message goes to the dead letters; None if it does not."""
    delay_level: int = 0
    """Concurrent: the delay level of the next delivery; 0 leaves the choice to the broker."""


BatchHandler: TypeAlias = Callable[[Batch, MessageRun], Stop | None]
AsyncBatchHandler: TypeAlias = Callable[[Batch, MessageRun], Awaitable[Stop | None]]


@dataclass(frozen=True, slots=True)
class HandlerCall:
    """How to call one handler."""

    name: str
    is_async: bool
    call: Callable[[Any], Any]
    """Takes a message, or a tuple of messages if the handler asked for batches."""


def batch_handler(handler: HandlerCall, *, batched: bool) -> BatchHandler:
    """A batch handler that calls a plain function."""
    return plain_handler(handler.call, batched, stop_after)


@compiled
def plain_handler(
    call: Callable[[Any], object], batched: bool, stop_after: Callable[[Exception, Batch], Stop | None]
) -> BatchHandler:
    """Calls the function with a message, or with the whole batch; `stop_after` interprets an exception."""

    def handle(batch: Batch, _: MessageRun) -> Stop | None:
        try:
            call(batch if batched else batch[0])
        except Exception as error:  # noqa: BLE001 - logged by the worker, and the policy decides
            return stop_after(error, batch)
        return None

    return handle


def async_batch_handler(handler: HandlerCall, *, batched: bool) -> AsyncBatchHandler:
    """A batch handler that calls a coroutine function."""
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
            log.info("handler skipped %s: %s", batch[0], error or "no reason given")
            return None
        case Retry(after=None):
            return Stop(Suspend(None), error=error)
        case Retry(after=seconds):
            return Stop(Suspend(to_millis(seconds or 0)), error=error)
        case ToDeadLetter(why=why):
            return Stop(Suspend(None), error=error, dead_letter=why)
        case Undecodable():
            return Stop(HOPELESS, error=error)
        case _:
            return Stop(FAILED, error=error)


class OrderlyHandler:
    """A batch handler that calls RocketMQ's orderly listener.

    `manual` must agree with the scheduler's `auto_commit`. In manual mode, a listener may still commit a single call by
    leaving `context.auto_commit` on.
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
    """A batch handler that calls RocketMQ's concurrent listener; failed messages go back to the broker."""

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


def by_topic(handlers: Mapping[str, BatchHandler]) -> BatchHandler:
    """Chooses the handler by the message's original topic; this is how messages of a retry topic find theirs."""

    def handle(batch: Batch, run: MessageRun) -> Stop | None:
        chosen = handlers.get(batch[0].topic)
        return chosen(batch, run) if chosen is not None else _no_handler(batch[0])

    return handle


def async_by_topic(handlers: Mapping[str, AsyncBatchHandler]) -> AsyncBatchHandler:
    """`by_topic` for coroutine functions."""

    async def handle(batch: Batch, run: MessageRun) -> Stop | None:
        chosen = handlers.get(batch[0].topic)
        return await chosen(batch, run) if chosen is not None else _no_handler(batch[0])

    return handle


def blocking(handler: AsyncBatchHandler, loop: asyncio.AbstractEventLoop) -> BatchHandler:
    """Lets a worker thread call a coroutine function, which runs on the event loop."""

    def handle(batch: Batch, run: MessageRun) -> Stop | None:
        async def on_the_loop() -> Stop | None:
            return await handler(batch, run)

        return asyncio.run_coroutine_threadsafe(on_the_loop(), loop).result()

    return handle


def _no_handler(message: Message) -> Stop:
    return Stop(Suspend(None), dead_letter=f"no handler for topic {message.topic}")


# the arguments of a handler


def handler_call(handler: Handler, *, batched: bool = False) -> HandlerCall:
    """Reads the signature of a handler, which decides what it is called with.

    A parameter annotated `Message` gets the message; the other one gets the body, decoded as its annotation says.
    `(event)`, `(event, message)` and `(message: Message)` are all valid; a second parameter without annotation gets the
    message. The signature is read once, at registration, so that a mistake shows up at start.
    """
    name = getattr(handler, "__qualname__", type(handler).__name__)
    event_type, event_at, message_at, count = _roles(handler, name)
    arguments = _arguments(event_type, event_at, message_at, count, batched=batched)
    function = handler

    def call(given: Any) -> Any:
        return function(*arguments(given))

    is_async = inspect.iscoroutinefunction(_function(handler))
    if message_at == 0 and count == 1:
        return HandlerCall(name, is_async, handler)
    return HandlerCall(name, is_async, call)


def _roles(handler: Handler, name: str) -> tuple[Any, int | None, int | None, int]:
    """The event's type, the positions of event and message, and the number of parameters."""
    parameters = _positional(handler, name)
    hints = _hints(handler)
    types = [hints.get(each.name, Any) for each in parameters]
    message_at = next((at for at, wanted in enumerate(types) if _is_message(wanted)), None)
    if message_at is None and len(parameters) == 2:
        message_at = 1
    event_at = next((at for at in range(len(parameters)) if at != message_at), None)
    event_type = Any if event_at is None else types[event_at]
    return event_type, event_at, message_at, len(parameters)


def _positional(handler: Handler, name: str) -> list[inspect.Parameter]:
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    every = inspect.signature(handler).parameters.values()
    required = [each for each in every if each.default is each.empty]
    wrong = [each for each in required if each.kind is inspect.Parameter.KEYWORD_ONLY]
    parameters = [each for each in required if each.kind in kinds]
    if wrong or not 1 <= len(parameters) <= 2:
        given = inspect.signature(handler)
        raise InvalidOption(f"handler {name} must take (event), (event, message) or (message: Message), not {given}")
    return parameters


def _hints(handler: Handler) -> dict[str, Any]:
    try:
        return get_type_hints(_function(handler))
    except (NameError, TypeError) as error:
        raise InvalidOption(
            f"the annotations of handler {handler!r} cannot be read: {error}; define the types at module level"
        ) from error


def _function(handler: Handler) -> Any:
    """The function itself, also of an object with `__call__`."""
    return handler if inspect.isroutine(handler) else type(handler).__call__


def _is_message(wanted: Any) -> bool:
    return wanted is Message or Message in get_args(wanted)


def _arguments(
    event_type: Any, event_at: int | None, message_at: int | None, count: int, *, batched: bool
) -> Callable[[Any], tuple[Any, ...]]:
    item_type = (get_args(event_type) or (Any,))[0]

    def event_of(given: Any) -> Any:
        return [message.value(item_type) for message in given] if batched else given.value(event_type)

    if count == 1:
        return (lambda given: (given,)) if event_at is None else (lambda given: (event_of(given),))
    if event_at == 0 and message_at == 1:
        return lambda given: (event_of(given), given)
    return lambda given: (given, event_of(given))
