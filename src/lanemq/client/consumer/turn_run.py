"""Running turns: the handler is called batch by batch, and the lane's gate is looked at before each call.

The gate shows a lost lease, a hand-over and a used-up time slice the moment they happen, so a run of 32
messages gives up nothing against 32 turns of one.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from lanemq._fast import compiled
from lanemq.client.consumer.attempts import AsyncBatchHandler, BatchHandler, Stop
from lanemq.client.consumer.in_progress import MessageFinished, MessageRun
from lanemq.client.consumer.listener import HandlerVerdict
from lanemq.client.consumer.visits import Worker
from lanemq.client.message import Message
from lanemq.clock import Clock, milliseconds_of
from lanemq.core.consuming.runs import STOPPED, Why
from lanemq.model.errors import Undecodable
from lanemq.model.units import Millis

log = logging.getLogger(__name__)


class TurnEnd(NamedTuple):
    """How a run ended: this many messages went well, then came the stop."""

    stop: Stop
    done: int


class Ran(NamedTuple):
    """How far a visit got: so many turns with so many messages went well, then one ended as `end` says, if any."""

    runs: int
    messages: int
    end: TurnEnd | None


_GATE_CLOSED = Stop(STOPPED)


def run_worker(worker: Worker, handler: BatchHandler, batch_size: int, clock: Clock) -> Ran:
    """Runs turn after turn until none waits, or one of them ends otherwise than well; that one is `visit.turn`."""
    runs, messages, stop, done = run_waiting(worker, handler, batch_size, milliseconds_of(clock), _GATE_CLOSED)
    return Ran(runs, messages, None if stop is None else TurnEnd(stop, done))


@compiled
def run_waiting(
    worker: Worker, handler: BatchHandler, batch_size: int, now: Callable[[], Millis], closed: Stop
) -> tuple[int, int, Stop | None, int]:
    """How many turns, with how many messages, went well; what stopped the one after them, and after which message."""
    runs = messages = 0
    waiting, ended = worker.waiting, worker.ended
    while waiting:
        try:
            run = worker.run = waiting.popleft()
        except IndexError:  # the board was quicker
            break
        end = run_batches(run, handler, batch_size, now, closed)
        if end is not None:
            return runs, messages, end.stop, end.done
        ended.append(run)
        runs += 1
        messages += len(run.messages)
    worker.run = None
    return runs, messages, None, 0


def run_batches(
    run: MessageRun, handler: BatchHandler, batch_size: int, now: Callable[[], Millis], closed: Stop = _GATE_CLOSED
) -> TurnEnd | None:
    """Runs a turn until something stops it, or until the gate closes (A72, A78); None if all of it went well."""
    messages = run.messages
    messages[0].retried_here = run.attempt - 1
    gate, slice_end = run.gate, run.slice_end
    for done in range(0, len(messages), batch_size):
        time = now()
        if gate.closed or time >= gate.usable_until or time > slice_end:  # `Turn.may_go_on`
            return TurnEnd(closed, done)
        if not done:
            run.began = time
        stop = handler(messages[done : done + batch_size], run)
        if stop is not None:
            return TurnEnd(stop, done + stop.succeeded)
    return None


async def run_worker_async(worker: Worker, handler: AsyncBatchHandler, batch_size: int, clock: Clock) -> Ran:
    """The same on the event loop."""
    runs = messages = 0
    while worker.waiting:
        run = worker.run = worker.waiting.popleft()
        end = await _run_batches_async(run, handler, batch_size, clock.now)
        if end is not None:
            return Ran(runs, messages, end)
        worker.ended.append(run)
        runs += 1
        messages += len(run.messages)
    worker.run = None
    return Ran(runs, messages, None)


async def _run_batches_async(
    run: MessageRun, handler: AsyncBatchHandler, batch_size: int, now: Callable[[], Millis]
) -> TurnEnd | None:
    messages = run.messages
    messages[0].retried_here = run.attempt - 1
    for done in range(0, len(messages), batch_size):
        time = now()
        if not run.may_go_on(now=time):
            return TurnEnd(_GATE_CLOSED, done)
        if not done:
            run.began = time
        stop = await handler(messages[done : done + batch_size], run)
        if stop is not None:
            return TurnEnd(stop, done + stop.succeeded)
    return None


def reason_of(end: TurnEnd) -> str:
    """Why it failed, for whoever finds the lane parked."""
    return "" if end.stop.error is None else repr(end.stop.error)


def stopped_at(run: MessageRun, end: TurnEnd) -> Message:
    """The message that the stop speaks of."""
    return run.messages[min(end.done, len(run.messages) - 1)]


def log_end(run: MessageRun, end: TurnEnd, finished: MessageFinished) -> None:
    """Says what a person should know about a turn's end; nothing about one that went well."""
    if finished.why is Why.ILLEGAL:
        log.warning("%s: COMMIT and ROLLBACK have no meaning with automatic commit, taken as SUCCESS", run.queue)
    elif end.stop.error is not None:
        _log_failure(run, end, finished)


def _log_failure(run: MessageRun, end: TurnEnd, finished: MessageFinished) -> None:
    """One line per failure that says where and what follows; the traceback with the first attempt only,
    and none where the sentence says it all: a body that cannot be decoded.

    A verdict is the handler's word and no failure: it is told in passing, unless the lane ends up parked.
    """
    message, error = stopped_at(run, end), end.stop.error
    place = f"topic={message.topic} queue={run.queue} offset={message.queue_offset} key={message.key!r}"
    verdict = isinstance(error, HandlerVerdict)
    trace = error if run.attempt == 1 and not isinstance(error, (HandlerVerdict, Undecodable)) else None
    if verdict and finished.why is not Why.PARKED:
        log.info("handler decided, attempt %d: %s: %r", run.attempt, place, error)
    elif finished.why is Why.PARKED:
        log.error("handler failed, lane parked until resumed: %s: %r", place, error, exc_info=trace)
    elif finished.why is Why.HELD:
        log.warning("handler failed, attempt %d, trying again: %s: %r", run.attempt, place, error, exc_info=trace)
    elif finished.why is Why.SENT_BACK:
        log.warning("handler failed, message handed to the broker: %s: %r", place, error, exc_info=trace)
