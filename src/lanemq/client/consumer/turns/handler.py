"""Calls the user's handler with a batch of messages, and interprets how the call ended.

A handler returns when it is done and raises to try again. Three exceptions (`Retry`, `Skip`, `ToDeadLetter`) are
decisions and no errors. RocketMQ's listeners return a status instead; their statuses and contexts have RocketMQ's
names.

Every kind of handler becomes a `BatchHandler`: it takes a batch of messages of one lane, and returns None for success
or a `Stop`. User code may raise anything, `SystemExit` included; whatever it raises, the turn ends, the message fails
by its policy, and no message is lost.

Invariant: an exception decides about one message. A batch whose exception names none of its messages runs again, one
message at a time; so no message is skipped or dead-lettered that the handler did not mean.
"""

import asyncio
import functools
import inspect
import logging
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from enum import Enum
from typing import Any, TypeAlias, TypeVar, get_origin

from lanemq._fast import compiled
from lanemq.background_log import ClientLog
from lanemq.client.consumer.turns.scheduler import MessageRun
from lanemq.client.message import Message
from lanemq.core.consuming.lane_queue import REASON_CHARS
from lanemq.core.consuming.retry_policy import clamp_suspend
from lanemq.core.consuming.runs import COMMIT, FAILED, HOPELESS, ONE_BY_ONE, ROLL_BACK, STOPPED, Outcome, Suspend
from lanemq.model.checks import check_callable
from lanemq.model.errors import InvalidOption, Undecodable, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, Seconds, to_millis
from lanemq.model.where_raised import where_raised

log = ClientLog(__name__)

Handler = Callable[..., Any]
Batch: TypeAlias = tuple[Message, ...]

MAX_TEXT_CHARS = 2_000
"""Maximum length of an error text in log lines and reports; some errors carry whole documents. The broker refuses to
set a lane aside if the request, which contains the text, has more than 256 KiB."""

# what a handler may raise

MAX_RETRY_SECONDS = 30 * 24 * 3600.0
"""The longest wait that a handler may ask for. A longer one is a mistake, and would hold the lane for good."""


class HandlerVerdict(Exception):
    """Base of the exceptions by which a handler decides about a message.

    A batch handler names the message with `message=`: the message itself, or its index in the batch. The messages
    before it are done, and those after it run again. If the exception leaves a block of `lanemq.effects.once` that
    holds messages before it, their writes are undone, so the whole batch runs again, one message at a time.
    """

    message: Message | int | None = None
    rolled_back: Batch = ()
    """Set by `lanemq.effects.once`: the messages of a block that this exception left; their writes were undone."""


class Retry(HandlerVerdict):
    """Delivers the same message again after `after` seconds (None: as the policy says), before the rest of its lane.

    The wait is at least 10 ms and counts as one of the policy's retries. If the queue moves to another member before it
    ends, that member gets the message at once.
    """

    def __init__(self, after: Seconds | None = None, *, message: Message | int | None = None) -> None:
        self.after = after = after.total_seconds() if isinstance(after, timedelta) else after
        self.message = message
        wait = f"{after:g} s" if isinstance(after, (int, float)) else str(after)
        super().__init__("try again" if after is None else f"try again after {wait}")


class Skip(HandlerVerdict):
    """Marks the message as done without processing it; the lane continues."""

    def __init__(self, why: str = "", *, message: Message | int | None = None) -> None:
        self.message = message
        super().__init__(*([why] if why else []))


class AlreadyApplied(Skip):
    """Raised by `lanemq.effects.once`: an earlier delivery of the message had its effect, so it is done.

    In a batch it names the last message of those that were applied; without a name, the messages run one by one.
    """


class ToDeadLetter(HandlerVerdict):
    """Moves the message to the group's dead letters at once, with the reason; the lane continues."""

    def __init__(self, why: str = "", *, message: Message | int | None = None) -> None:
        self.why = why
        self.message = message
        super().__init__(why)


class MessageFailed(HandlerVerdict):
    """Raised by a batch handler: this message failed, those before it are done, those after it run again.

    `message` is the message, or its index in the batch. `raise MessageFailed(message) from error` keeps the cause.
    """

    def __init__(self, message: Message | int, why: str = "") -> None:
        self.message = message
        super().__init__(*([why] if why else []))


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
    concerned: int | None = None
    """Number of messages that a failure applies to; None: to the rest of the batch."""
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
    return plain_handler(handler.call, batched, stop_after, refuse_unfinished)


@compiled
def plain_handler(
    call: Callable[[Any], object],
    batched: bool,
    stop_after: Callable[[BaseException, Batch], Stop | None],
    check_result: Callable[[object], None],
) -> BatchHandler:
    """Calls the function with a message, or with the whole batch.

    `stop_after` interprets an exception; `check_result` raises for a result that is no success.
    """

    def handle(batch: Batch, _: MessageRun) -> Stop | None:
        try:
            result = call(batch if batched else batch[0])
            if result is not None:
                check_result(result)
        except BaseException as error:  # noqa: BLE001 - logged by the worker, and the policy decides
            return stop_after(error, batch)
        return None

    return handle


def async_batch_handler(handler: HandlerCall, *, batched: bool) -> AsyncBatchHandler:
    """A batch handler that calls a coroutine function."""
    call = handler.call

    async def handle(batch: Batch, _: MessageRun) -> Stop | None:
        try:
            result = await call(batch if batched else batch[0])
            if result is not None:
                refuse_unfinished(result)
        except BaseException as error:
            if _ends_the_task(error):
                raise
            return stop_after(error, batch)
        return None

    return handle


def _ends_the_task(error: BaseException) -> bool:
    """Whether an exception concerns the task that calls the handler, and not the handler's own work.

    A `CancelledError` that comes from something that the handler awaited is a failure of its message.
    """
    match error:
        case asyncio.CancelledError():
            task = asyncio.current_task()
            return task is None or task.cancelling() > 0
        case KeyboardInterrupt():
            return threading.current_thread() is threading.main_thread()
    return False


def stop_after(error: BaseException, batch: Batch) -> Stop | None:
    """What an exception of the handler means. In a batch of several messages it must name the one that it concerns."""
    if len(batch) == 1 and not isinstance(error, HandlerVerdict):
        return Stop(HOPELESS if isinstance(error, Undecodable) else FAILED, error=error)
    try:
        at = _index_in(batch, error)
        delay = retry_delay(error.after) if isinstance(error, Retry) else None
    except UsageError as mistake:
        mistake.__cause__ = error
        error, at, delay = mistake, 0 if len(batch) == 1 else None, None
    if at is None or _were_rolled_back(batch[:at], error):
        return Stop(ONE_BY_ONE, error=error)
    concerned = None if len(batch) == 1 else 1
    match error:
        case Skip():
            level = logging.DEBUG if isinstance(error, AlreadyApplied) else logging.INFO
            log.log(level, "handler skipped %s: %s", batch[at], describe(error))
            return None if at == len(batch) - 1 else Stop(STOPPED, succeeded=at + 1)
        case Retry():
            return Stop(Suspend(delay), succeeded=at, concerned=concerned, error=error)
        case ToDeadLetter(why=why):
            return Stop(Suspend(None), succeeded=at, concerned=concerned, error=error, dead_letter=one_line(why))
        case _:
            return Stop(FAILED, succeeded=at, concerned=concerned, error=error)


def _index_in(batch: Batch, error: BaseException) -> int | None:
    """The index of the message that an exception concerns; None if it names none of several messages."""
    named = error.message if isinstance(error, HandlerVerdict) else None
    if named is None:
        return 0 if len(batch) == 1 else None
    if isinstance(named, Message):
        at = next((at for at, message in enumerate(batch) if message is named), -1)
    else:
        at = named if isinstance(named, int) else -1
    if not 0 <= at < len(batch):
        raise UsageError(
            f"{type(error).__name__} names {named!r}, which is not in this batch of {len(batch)}: "
            f"pass one of its messages, or an index"
        )
    return at


def _were_rolled_back(before: Batch, error: BaseException) -> bool:
    """Whether the writes of a message before the named one were undone with the transaction that the exception left."""
    undone = error.rolled_back if isinstance(error, HandlerVerdict) else ()
    return any(message is each for message in before for each in undone)


def retry_delay(after: Seconds | None) -> Millis | None:
    """The delay of a retry; raises if it has no meaning."""
    seconds = after.total_seconds() if isinstance(after, timedelta) else after
    if seconds is None:
        return None
    if isinstance(seconds, bool) or not isinstance(seconds, (int, float)) or not 0 <= seconds <= MAX_RETRY_SECONDS:
        raise UsageError(f"Retry(after={after!r}) has no meaning: pass seconds, from 0 to 30 days, or a timedelta")
    return to_millis(seconds)


def refuse_unfinished(result: object) -> None:
    """Raises if a handler returned work that has not run; any other result is ignored."""
    if not isinstance(result, Awaitable) and not inspect.isgenerator(result) and not inspect.isasyncgen(result):
        return
    if inspect.iscoroutine(result) or inspect.isgenerator(result):
        result.close()
    raise UsageError(
        f"the handler returned a {type(result).__name__} that has not run, so nothing was done: "
        f"define the handler with `async def`, or wait for the result inside it"
    )


def describe(error: BaseException) -> str:
    """The exception as text, for the log and for reports, even if it cannot produce one.

    `MessageFailed` without a reason only says which message failed; its cause is what went wrong.
    """
    error = _cause(error)
    try:
        text = repr(error)
    except BaseException:  # noqa: BLE001 - user code, too
        text = f"{type(error).__qualname__} (its text cannot be produced)"
    return _reportable(text)


def describe_with_place(error: BaseException) -> str:
    """As `describe`, and where it was raised: `KeyError(43) at shop/bill.py:21 in bill`. A verdict has no place."""
    cause = _cause(error)
    verdict = isinstance(cause, HandlerVerdict) and not isinstance(cause, MessageFailed)
    place = "" if verdict or isinstance(cause, Undecodable) else where_raised(cause)
    text = describe(error)
    if not place:
        return text
    room = REASON_CHARS - len(place) - len(" at ")
    return f"{text if len(text) <= room else f'{text[: room - 1]}…'} at {_reportable(place)}"


def _cause(error: BaseException) -> BaseException:
    if isinstance(error, MessageFailed) and not error.args and error.__cause__ is not None:
        return error.__cause__
    return error


def one_line(why: object) -> str:
    """The reason that a handler gives, as text on one line."""
    try:
        return _reportable(" ".join(str(why).split()))
    except BaseException as error:  # noqa: BLE001 - user code, too
        return f"reason cannot be produced: {type(error).__qualname__}"


def _reportable(text: str) -> str:
    """The text up to `MAX_TEXT_CHARS`, without lone surrogates, which UTF-8 cannot encode."""
    shown = text if len(text) <= MAX_TEXT_CHARS else f"{text[:MAX_TEXT_CHARS]}…"
    return shown.encode("utf-8", "replace").decode()


class OrderlyHandler:
    """A batch handler that calls RocketMQ's orderly listener.

    `manual` must agree with the scheduler's `auto_commit`. In manual mode, a listener may still commit a single call by
    leaving `context.auto_commit` on.
    """

    def __init__(self, listener: OrderlyListener, *, manual: bool = False) -> None:
        self._listener = _plain(listener)
        self._manual = manual

    def __call__(self, batch: Batch, run: MessageRun) -> Stop | None:
        context = OrderlyContext(run.queue, auto_commit=not self._manual)
        try:
            status = self._listener(batch, context)
            if status is not None:
                refuse_unfinished(status)
        except AlreadyApplied as repeat:
            return stop_after(repeat, batch)
        except BaseException as error:  # noqa: BLE001 - logged by the worker; RocketMQ suspends too
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


L = TypeVar("L", bound=Callable[..., Any])


def _plain(listener: L) -> L:
    """The listener, unless it is async; RocketMQ's listeners return their status."""
    check_callable("listener", listener)
    if returns_awaitable(listener):
        raise InvalidOption(f"listener {listener!r} is async and cannot return a status: use App for async handlers")
    return listener


def _suspended(context: OrderlyContext) -> Suspend:
    asked = context.suspend_current_queue_time_millis
    return Suspend(clamp_suspend(asked) if isinstance(asked, int) and asked != -1 else None)


class ConcurrentHandler:
    """A batch handler that calls RocketMQ's concurrent listener; failed messages go back to the broker."""

    def __init__(self, listener: ConcurrentListener) -> None:
        self._listener = _plain(listener)

    def __call__(self, batch: Batch, run: MessageRun) -> Stop | None:
        context = ConcurrentlyContext(run.queue)
        try:
            status = self._listener(batch, context)
            if status is not None:
                refuse_unfinished(status)
        except AlreadyApplied as repeat:
            return stop_after(repeat, batch)
        except BaseException as error:  # noqa: BLE001 - logged by the worker; RocketMQ sends back too
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


class NoHandler(Exception):
    """A message of a retry topic came to a member that does not subscribe to the message's own topic."""


def _no_handler(message: Message) -> Stop:
    return Stop(FAILED, error=NoHandler(f"this member does not subscribe to topic {message.topic}"))


def function_of(handler: Handler) -> Any:
    """The function itself, also of an object with `__call__` and of a `functools.partial`."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    return handler if inspect.isroutine(handler) else type(handler).__call__


def innermost_function(handler: Handler) -> Any:
    """The function that the user wrote, below decorators that name it (`functools.wraps`) and partials."""
    while (inner := handler.func if isinstance(handler, functools.partial) else _wrapped(handler)) is not None:
        handler = inner
    return function_of(handler)


def _wrapped(handler: Handler) -> Handler | None:
    wrapped: Handler | None = getattr(handler, "__wrapped__", None)
    return wrapped


def returns_awaitable(handler: Handler) -> bool:
    """Whether a call of the handler must be awaited, as far as its definition says."""
    function = function_of(handler)
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidOption(f"handler {handler!r} contains `yield`: a call would not run it")
    return is_coroutine_function(handler) or _says_awaitable(function) or wraps_coroutine_function(handler)


def is_coroutine_function(handler: Handler) -> bool:
    """Whether the handler itself is written with `async def`."""
    # The second one also knows functions that were marked as coroutine functions, such as mocks.
    return inspect.iscoroutinefunction(function_of(handler)) or asyncio.iscoroutinefunction(handler)


def wraps_coroutine_function(handler: Handler) -> bool:
    """Whether a decorator has put a plain function around a coroutine function: `Histogram.time()` does, for example.

    Its call returns the coroutine, or a result of the decorator's own.
    """
    return inspect.iscoroutinefunction(innermost_function(handler))


def _says_awaitable(function: Any) -> bool:
    declared = getattr(function, "__annotations__", {}).get("return")
    if isinstance(declared, str):  # written under `from __future__ import annotations`
        return declared.partition("[")[0].rpartition(".")[2] in ("Awaitable", "Coroutine")
    return (get_origin(declared) or declared) in (Awaitable, Coroutine)
