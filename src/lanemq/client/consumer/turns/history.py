"""Records each turn, one call of the handler, in a history for the checker.

Handlers are wrapped only if there is a history, so that turns cost nothing without one.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace
from itertools import count

from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.turns.handler import AsyncBatchHandler, Batch, BatchHandler, Stop, describe, one_line
from lanemq.client.consumer.turns.scheduler import MessageRun
from lanemq.client.consumer.turns.subscription import Subscription
from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.consuming.runs import COMMIT, FAILED, Order
from lanemq.history import History, Outcome, Place
from lanemq.wire.properties import LANE_ORIGIN, REDRIVEN, find_property

_INTERRUPTED = Stop(FAILED)
"""End of a turn whose worker was cancelled or broke."""
_NO_ERRORS: Mapping[int, str] = {}


def group_in_history(options: ConsumerOptions, client_id: str) -> str:
    """The group's name in a history. To the checker, every broadcasting member is a group of its own."""
    return f"{options.group} of {client_id}" if options.broadcasting else options.group


def recorded(subscription: Subscription, group: str, history: History, clock: Clock) -> Subscription:
    """The subscription with recorded handlers. Without order, turns are recorded without their keys."""
    recorder = TurnRecorder(group, history, clock, keyed=subscription.order is not Order.NONE)
    return replace(
        subscription,
        handler=None if subscription.handler is None else recorder.around(subscription.handler),
        async_handler=None if subscription.async_handler is None else recorder.around_async(subscription.async_handler),
    )


class TurnRecorder:
    """Records when turns of one group begin and end; `clock` is the one by which the member judges its leases."""

    def __init__(self, group: str, history: History, clock: Clock, *, keyed: bool = True) -> None:
        self._keyed = keyed
        self._group = group
        self._history = history
        self._clock = clock
        self._numbers: Iterator[int] = count(1)

    def around(self, handler: BatchHandler) -> BatchHandler:
        def recorded(batch: Batch, run: MessageRun) -> Stop | None:
            self.begin(batch, run)
            stop: Stop | None = _INTERRUPTED
            try:
                stop = handler(batch, run)
            finally:
                self.end(batch, run, stop)
            return stop

        return recorded

    def around_async(self, handler: AsyncBatchHandler) -> AsyncBatchHandler:
        async def recorded(batch: Batch, run: MessageRun) -> Stop | None:
            self.begin(batch, run)
            stop: Stop | None = _INTERRUPTED
            try:
                stop = await handler(batch, run)
            finally:
                self.end(batch, run, stop)
            return stop

        return recorded

    def begin(self, batch: Batch, run: MessageRun) -> None:
        number = next(self._numbers) if len(batch) > 1 else 0
        for message in batch:
            self._history.turn(
                self._place(message),
                self._key(message),
                message.message_id,
                epoch=message.epoch,
                attempt=message.attempt,
                batch=number,
                copy=_is_copy(message),
            )

    def end(self, batch: Batch, run: MessageRun, stop: Stop | None) -> None:
        # Read before the lease is checked: the process may be paused before the line is written.
        ended = self._history.now()
        late = self._clock.now() >= run.usable_until
        errors = _NO_ERRORS if stop is None else _errors(stop, len(batch))
        for at, message in enumerate(batch):
            self._history.turn_end(
                self._place(message),
                self._key(message),
                _outcome(at, run, stop, late=late),
                epoch=message.epoch,
                ended=ended,
                why=errors.get(at, ""),
            )

    def _key(self, message: Message) -> str:
        return (message.key or "") if self._keyed else ""

    def _place(self, message: Message) -> Place:
        queue = message.queue
        return Place(self._group, queue.topic, queue.queue_id, message.queue_offset, queue.broker)


def _errors(stop: Stop, size: int) -> Mapping[int, str]:
    """The error as text, for each message of the batch that it concerns.

    Those before have succeeded, and those after run again without having failed.
    """
    if stop.dead_letter:
        why = one_line(stop.dead_letter)
    elif stop.error is not None:
        why = describe(stop.error)
    else:
        return _NO_ERRORS
    end = size if stop.concerned is None else stop.succeeded + stop.concerned
    return dict.fromkeys(range(stop.succeeded, end), why)


def _is_copy(message: Message) -> bool:
    """Whether it is a dead letter that was redriven, or a copy that a mirror made."""
    text = message.properties_text
    redriven = REDRIVEN in text and any(word.startswith(REDRIVEN) for word in message.keys)
    return redriven or find_property(text, LANE_ORIGIN) is not None


def _outcome(at: int, run: MessageRun, stop: Stop | None, *, late: bool) -> Outcome:
    """A turn that outlived its lease is late, even before the member learns that the queue is lost."""
    if run.permit.dropped:
        return "abandoned"
    good = stop is None or at < stop.succeeded or stop.outcome is COMMIT
    if late:
        return "late" if good else "abandoned"
    return "ok" if good else "retry"
