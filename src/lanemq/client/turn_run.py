"""Running one turn: the handler is called batch by batch, and the lane's gate is looked at before each call.

The gate shows a lost lease, a hand-over and a used-up time slice the moment they happen, so a run of 32
messages gives up nothing against 32 turns of one.
"""

import logging
from typing import NamedTuple

from lanemq.client.attempts import AsyncAttempt, Attempt, Stop
from lanemq.client.lane_board import MessageFinished, MessageTurn
from lanemq.client.listener import HandlerVerdict
from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.turns import DONE, STOPPED, Why

log = logging.getLogger(__name__)


class TurnEnd(NamedTuple):
    """How a run ended: this many messages went well, then came the stop."""

    stop: Stop
    done: int


_ALL_DONE = Stop(DONE)
_GATE_CLOSED = Stop(STOPPED)


def run_turn(turn: MessageTurn, attempt: Attempt, batch_size: int, clock: Clock) -> TurnEnd:
    """Runs until the end, until something stops it, or until the gate closes (A72, A78)."""
    messages = turn.messages
    messages[0].retried_here = turn.attempt - 1
    may_go_on, now = turn.may_go_on, clock.now
    for done in range(0, len(messages), batch_size):
        if not may_go_on(now=now()):
            return TurnEnd(_GATE_CLOSED, done)
        stop = attempt(messages[done : done + batch_size], turn)
        if stop is not None:
            return TurnEnd(stop, done + stop.succeeded)
    return TurnEnd(_ALL_DONE, len(messages))


async def run_turn_async(turn: MessageTurn, attempt: AsyncAttempt, batch_size: int, clock: Clock) -> TurnEnd:
    """The same on the event loop."""
    messages = turn.messages
    messages[0].retried_here = turn.attempt - 1
    for done in range(0, len(messages), batch_size):
        if not turn.may_go_on(now=clock.now()):
            return TurnEnd(_GATE_CLOSED, done)
        stop = await attempt(messages[done : done + batch_size], turn)
        if stop is not None:
            return TurnEnd(stop, done + stop.succeeded)
    return TurnEnd(_ALL_DONE, len(messages))


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
    """One line per failure that says where and what follows; the traceback with the first attempt only.

    A verdict is the handler's word and no failure: it is told in passing, unless the lane ends up parked.
    """
    message, error = stopped_at(turn, end), end.stop.error
    place = f"topic={message.topic} queue={turn.queue} offset={message.queue_offset} key={message.key!r}"
    verdict = isinstance(error, HandlerVerdict)
    trace = error if turn.attempt == 1 and not verdict else None
    if verdict and finished.why is not Why.PARKED:
        log.info("handler decided, attempt %d: %s: %r", turn.attempt, place, error)
    elif finished.why is Why.PARKED:
        log.error("handler failed, lane parked until resumed: %s: %r", place, error, exc_info=trace)
    elif finished.why is Why.HELD:
        log.warning("handler failed, attempt %d, trying again: %s: %r", turn.attempt, place, error, exc_info=trace)
    elif finished.why is Why.SENT_BACK:
        log.warning("handler failed, message handed to the broker: %s: %r", place, error, exc_info=trace)
