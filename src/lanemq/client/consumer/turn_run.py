"""Running turns: the handler is called batch by batch, and the lane's gate is looked at before each call.

The gate shows a lost lease, a hand-over and a used-up time slice the moment they happen, so a run of 32
messages gives up nothing against 32 turns of one.
"""

import logging
from collections.abc import Callable
from typing import NamedTuple

from lanemq._fast import compiled
from lanemq.client.consumer.attempts import AsyncAttempt, Attempt, Stop
from lanemq.client.consumer.listener import HandlerVerdict
from lanemq.client.consumer.turn_desk import MessageFinished, MessageTurn
from lanemq.client.consumer.visits import Visit
from lanemq.client.message import Message
from lanemq.clock import Clock, milliseconds_of
from lanemq.core.consuming.turns import STOPPED, Why
from lanemq.model.errors import Undecodable
from lanemq.model.units import Millis

log = logging.getLogger(__name__)


class TurnEnd(NamedTuple):
    """How a run ended: this many messages went well, then came the stop."""

    stop: Stop
    done: int


class Ran(NamedTuple):
    """How far a visit got: so many turns with so many messages went well, then one ended as `end` says, if any."""

    turns: int
    messages: int
    end: TurnEnd | None


_GATE_CLOSED = Stop(STOPPED)


def run_visit(visit: Visit, attempt: Attempt, batch_size: int, clock: Clock) -> Ran:
    """Runs turn after turn until none waits, or one of them ends otherwise than well; that one is `visit.turn`."""
    turns, messages, stop, done = run_turns(visit, attempt, batch_size, milliseconds_of(clock), _GATE_CLOSED)
    return Ran(turns, messages, None if stop is None else TurnEnd(stop, done))


@compiled
def run_turns(
    visit: Visit, attempt: Attempt, batch_size: int, now: Callable[[], Millis], closed: Stop
) -> tuple[int, int, Stop | None, int]:
    """How many turns, with how many messages, went well; what stopped the one after them, and after which message."""
    turns = messages = 0
    waiting, ended = visit.waiting, visit.ended
    while waiting:
        try:
            turn = visit.turn = waiting.popleft()
        except IndexError:  # the board was quicker
            break
        end = run_batches(turn, attempt, batch_size, now, closed)
        if end is not None:
            return turns, messages, end.stop, end.done
        ended.append(turn)
        turns += 1
        messages += len(turn.messages)
    visit.turn = None
    return turns, messages, None, 0


def run_batches(
    turn: MessageTurn, attempt: Attempt, batch_size: int, now: Callable[[], Millis], closed: Stop = _GATE_CLOSED
) -> TurnEnd | None:
    """Runs a turn until something stops it, or until the gate closes (A72, A78); None if all of it went well."""
    messages = turn.messages
    messages[0].retried_here = turn.attempt - 1
    gate, slice_end = turn.gate, turn.slice_end
    for done in range(0, len(messages), batch_size):
        time = now()
        if gate.closed or time >= gate.usable_until or time > slice_end:  # `Turn.may_go_on`
            return TurnEnd(closed, done)
        if not done:
            turn.began = time
        stop = attempt(messages[done : done + batch_size], turn)
        if stop is not None:
            return TurnEnd(stop, done + stop.succeeded)
    return None


async def run_visit_async(visit: Visit, attempt: AsyncAttempt, batch_size: int, clock: Clock) -> Ran:
    """The same on the event loop."""
    turns = messages = 0
    while visit.waiting:
        turn = visit.turn = visit.waiting.popleft()
        end = await _run_batches_async(turn, attempt, batch_size, clock.now)
        if end is not None:
            return Ran(turns, messages, end)
        visit.ended.append(turn)
        turns += 1
        messages += len(turn.messages)
    visit.turn = None
    return Ran(turns, messages, None)


async def _run_batches_async(
    turn: MessageTurn, attempt: AsyncAttempt, batch_size: int, now: Callable[[], Millis]
) -> TurnEnd | None:
    messages = turn.messages
    messages[0].retried_here = turn.attempt - 1
    for done in range(0, len(messages), batch_size):
        time = now()
        if not turn.may_go_on(now=time):
            return TurnEnd(_GATE_CLOSED, done)
        if not done:
            turn.began = time
        stop = await attempt(messages[done : done + batch_size], turn)
        if stop is not None:
            return TurnEnd(stop, done + stop.succeeded)
    return None


def reason_of(end: TurnEnd) -> str:
    """Why it failed, for whoever finds the lane parked."""
    return "" if end.stop.error is None else repr(end.stop.error)


def stopped_at(turn: MessageTurn, end: TurnEnd) -> Message:
    """The message that the stop speaks of."""
    return turn.messages[min(end.done, len(turn.messages) - 1)]


def log_end(turn: MessageTurn, end: TurnEnd, finished: MessageFinished) -> None:
    """Says what a person should know about a turn's end; nothing about one that went well."""
    if finished.why is Why.ILLEGAL:
        log.warning("%s: COMMIT and ROLLBACK have no meaning with automatic commit, taken as SUCCESS", turn.queue)
    elif end.stop.error is not None:
        _log_failure(turn, end, finished)


def _log_failure(turn: MessageTurn, end: TurnEnd, finished: MessageFinished) -> None:
    """One line per failure that says where and what follows; the traceback with the first attempt only,
    and none where the sentence says it all: a body that cannot be decoded.

    A verdict is the handler's word and no failure: it is told in passing, unless the lane ends up parked.
    """
    message, error = stopped_at(turn, end), end.stop.error
    place = f"topic={message.topic} queue={turn.queue} offset={message.queue_offset} key={message.key!r}"
    verdict = isinstance(error, HandlerVerdict)
    trace = error if turn.attempt == 1 and not isinstance(error, (HandlerVerdict, Undecodable)) else None
    if verdict and finished.why is not Why.PARKED:
        log.info("handler decided, attempt %d: %s: %r", turn.attempt, place, error)
    elif finished.why is Why.PARKED:
        log.error("handler failed, lane parked until resumed: %s: %r", place, error, exc_info=trace)
    elif finished.why is Why.HELD:
        log.warning("handler failed, attempt %d, trying again: %s: %r", turn.attempt, place, error, exc_info=trace)
    elif finished.why is Why.SENT_BACK:
        log.warning("handler failed, message handed to the broker: %s: %r", place, error, exc_info=trace)
