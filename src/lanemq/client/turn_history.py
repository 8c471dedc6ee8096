"""Attempts that write down when a handler was called and how it ended, for the checker.

Only wrapped around when a history is asked for; without one, turns cost nothing more.
"""

from collections.abc import Iterator
from dataclasses import replace
from itertools import count

from lanemq.client.attempts import AsyncAttempt, Attempt, Batch, Stop
from lanemq.client.lane_board import MessageTurn
from lanemq.client.message import Message
from lanemq.client.station import StationPlan
from lanemq.core.turns import COMMIT, STOPPED
from lanemq.history import History, Outcome, Place


def recorded_plan(plan: StationPlan, group: str, history: History) -> StationPlan:
    """The same plan, recorded."""
    recorder = TurnRecorder(group, history)
    return replace(
        plan,
        attempt=None if plan.attempt is None else recorder.around(plan.attempt),
        async_attempt=None if plan.async_attempt is None else recorder.around_async(plan.async_attempt),
    )


class TurnRecorder:
    """Writes begins and ends of one group's turns."""

    def __init__(self, group: str, history: History) -> None:
        self._group = group
        self._history = history
        self._numbers: Iterator[int] = count(1)

    def around(self, attempt: Attempt) -> Attempt:
        def recorded(batch: Batch, turn: MessageTurn) -> Stop | None:
            self.begin(batch, turn)
            stop = attempt(batch, turn)
            self.end(batch, turn, stop)
            return stop

        return recorded

    def around_async(self, attempt: AsyncAttempt) -> AsyncAttempt:
        async def recorded(batch: Batch, turn: MessageTurn) -> Stop | None:
            self.begin(batch, turn)
            stop = await attempt(batch, turn)
            self.end(batch, turn, stop)
            return stop

        return recorded

    def begin(self, batch: Batch, turn: MessageTurn) -> None:
        number = next(self._numbers) if len(batch) > 1 else 0
        for message in batch:
            self._history.turn(
                self._place(message),
                message.key or "",
                message.message_id,
                epoch=message.epoch,
                attempt=message.attempt,
                batch=number,
            )

    def end(self, batch: Batch, turn: MessageTurn, stop: Stop | None) -> None:
        for at, message in enumerate(batch):
            self._history.turn_end(
                self._place(message), message.key or "", _outcome(at, turn, stop), epoch=message.epoch
            )

    def _place(self, message: Message) -> Place:
        queue = message.queue
        return Place(self._group, queue.topic, queue.queue_id, message.queue_offset)


def _outcome(at: int, turn: MessageTurn, stop: Stop | None) -> Outcome:
    if turn.gate.closed and getattr(turn.gate, "dropped", False):
        return "abandoned"
    good = stop is None or at < stop.succeeded or stop.outcome is COMMIT or stop.outcome is STOPPED
    return "ok" if good else "retry"
