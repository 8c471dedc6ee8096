"""Turns taken by hand: a message is given out, and its lane waits until somebody says what became of it.

The common part of both iterators. Every message given out is remembered until decided; what is undecided at the
end goes back to its lane, uncommitted, and will be delivered again.
"""

import contextlib
from collections.abc import Sequence

from lanemq.client.consumer.handler import Stop
from lanemq.client.consumer.history import TurnRecorder
from lanemq.client.consumer.in_progress import MessageFinished, MessageRun
from lanemq.client.consumer.scheduler import Scheduler
from lanemq.client.consumer.subscription import Subscription
from lanemq.client.consumer.workers import RunEnd
from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.consuming.retry_policy import FailurePolicy, HoldKey, HoldQueue
from lanemq.core.consuming.runs import DONE, FAILED, STOPPED, Order, Suspend, Why
from lanemq.history import History
from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.units import to_millis


class Undecided:
    """Messages in the user's hands."""

    def __init__(self, scheduler: Scheduler, group: str, history: History, clock: Clock) -> None:
        self.scheduler = scheduler
        self._open: dict[Message, MessageRun] = {}
        self._recorder = TurnRecorder(group, history, clock) if history.on else None

    def give_out(self, run: MessageRun) -> Message:
        (message,) = run.messages
        message.retried_here = run.attempt - 1
        self._open[message] = run
        if self._recorder is not None:
            self._recorder.begin(run.messages, run)
        return message

    def done(self, message: Message) -> bool:
        """Whether it counts: a queue that was lost meanwhile delivers the message elsewhere."""
        return self._finish(message, None).why is not Why.QUEUE_GONE

    def retry(self, message: Message, after: float | None) -> MessageFinished:
        delay = None if after is None else to_millis(after)
        return self._finish(message, Stop(FAILED if delay is None else Suspend(delay)))

    def dead_letter(self, message: Message, why: str) -> tuple[MessageRun, RunEnd]:
        """The turn, and the end that sends its message to the dead letters; the caller settles it."""
        stop = Stop(Suspend(None), dead_letter=why)
        return self._take_back(message, stop), RunEnd(stop, 0)

    def abandon(self) -> None:
        """Everything undecided goes back to its lane; other threads may be deciding meanwhile, each turn ends once."""
        with contextlib.suppress(KeyError):  # empty
            while True:
                _, run = self._open.popitem()
                self.scheduler.finish(run, STOPPED)

    def _finish(self, message: Message, stop: Stop | None) -> MessageFinished:
        run = self._take_back(message, stop)
        if stop is None:
            return self.scheduler.finish(run, DONE)
        return self.scheduler.finish(run, stop.outcome, reason="its consumer asked for a retry")

    def _take_back(self, message: Message, stop: Stop | None) -> MessageRun:
        run = self._open.pop(message, None)
        if run is None:
            raise UsageError(f"{message} is not waiting for a decision: decide about each message once")
        if self._recorder is not None:
            self._recorder.end(run.messages, run, stop)
        return run


def subscriptions_for(topics: str | Sequence[str], tags: str, policy: FailurePolicy | None) -> list[Subscription]:
    """Plans without handlers, one per topic; one message of a lane at a time."""
    policy = policy or HoldKey()
    if not isinstance(policy, (HoldKey, HoldQueue)):
        raise InvalidOption("an iterator holds failed messages: use HoldKey or HoldQueue, and dead() to set one aside")
    order = Order.QUEUE if isinstance(policy, HoldQueue) else Order.KEY
    names = [topics] if isinstance(topics, str) else list(topics)
    return [Subscription(topic=name, tags=tags, order=order, policy=policy, run_limit=1) for name in names]
