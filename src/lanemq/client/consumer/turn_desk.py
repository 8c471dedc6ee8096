"""Turns that are under way, with everybody who waits for one of them to end: pull loops that want room, hand-overs
that want quiet, people who ask what a key is doing.

Belongs to a board and is used under its mutex. It wakes and calls nobody itself: `wanted` and `calls`
say who should be. The rule guarded here: whatever a turn's end makes
possible is told, whichever way it ended and whoever reported it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeAlias

from lanemq.client.consumer.lane_trouble import LaneLook, Trouble, note_trouble
from lanemq.client.consumer.visits import Visit, Visits
from lanemq.client.message import Message
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.consuming.turns import DONE, STOPPED, Finished, Order, Outcome, Turn, Wait, Why
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

MessageTurn: TypeAlias = Turn[Message]
MessageFinished: TypeAlias = Finished[Message]
Call: TypeAlias = Callable[[], None]


def _nobody() -> None:
    """Nobody brings parked lanes to a broker."""


class TurnDesk:
    """A scheduler with its turns under way."""

    def __init__(self, scheduler: LaneScheduler[Message], nanos: Callable[[], int]) -> None:
        self._scheduler = scheduler
        self._nanos = nanos
        self.visits = Visits()
        # Turns taken one by one and not finished; the others are in visits.
        self._single: dict[int, MessageTurn] = {}
        # Lanes that failed and did not get over it yet: since when, and the newest error.
        self._troubles: dict[tuple[MessageQueue, str | None], Trouble] = {}
        self.hungry: dict[MessageQueue, tuple[int, Call]] = {}
        """Pull loops that wait for room: below how many cached messages they want to be called, and how."""
        self.drained: dict[MessageQueue, Call] = {}
        """Whom to call whenever a turn of a draining queue has ended."""
        self.on_shut: Call = _nobody
        self.wanted = 0
        """Workers that should look."""
        self.calls: list[Call] = []
        """What is to be called when the mutex is free."""

    def take_calls(self) -> Sequence[Call]:
        if not self.calls:
            return ()
        calls, self.calls = self.calls, []
        return calls

    # turns one by one

    def take(self, now: Millis) -> MessageTurn | Wait:
        found = self._scheduler.next_turn(now=now)
        if isinstance(found, Turn):
            found.began = now
            self._single[found.token] = found
        return found

    def finish(self, turn: MessageTurn, outcome: Outcome, done: int, reason: str, now: Millis) -> MessageFinished:
        """A turn that somebody else ended meanwhile is ignored."""
        if not self._scheduler.is_running(turn):
            return Finished(Why.QUEUE_GONE)
        finished = self._scheduler.finish(turn, outcome, done=done, now=now, reason=reason)
        if reason or self._troubles:
            note_trouble(self._troubles, turn, finished.why, reason, now)
        self._settled(turn, finished)
        return finished

    def sent_back(self, turn: MessageTurn, ok: Sequence[bool], now: Millis) -> MessageFinished:
        finished = self._scheduler.sent_back(turn, ok, now=now)
        self._settled(turn, finished)
        return finished

    def overdue(self, before: Millis) -> list[MessageTurn]:
        began_late = [turn for turn in self.turns() if turn.began is not None and turn.began < before]
        return [turn for turn in began_late if self._scheduler.may_take_over(turn)]

    def take_over(self, turn: MessageTurn, now: Millis) -> bool:
        """Ends a turn without its worker; False if that must not be, or is too late."""
        if not self._scheduler.may_take_over(turn):
            return False
        self.finish(turn, DONE, 0, "", now)
        return True

    # visits

    def fill(self, visit: Visit, now: Millis) -> int:
        """Turns for a worker, and how many; among them those that wait too long for another worker. None, too, while
        another one does everything alone."""
        now_ns = self._nanos()
        for late in self.visits.late(now_ns):
            self.take_back(late, now)
        if self.visits.keeps_up(now_ns):
            return 0
        turns = self._scheduler.next_turns(self.visits.share, now=now)
        if turns:
            self.visits.begin(visit, turns, now_ns)
        return len(turns)

    def end(self, visit: Visit, now: Millis) -> None:
        """A worker comes back from a visit."""
        self.collect(visit, now)
        self.visits.end(visit, self._nanos())

    def take_back(self, visit: Visit, now: Millis) -> None:
        """The worker keeps what is in its hands; what it finished is reported, and what it did not begin is free."""
        for turn in reversed(list(visit.taken_back())):
            self._after(turn.queue, self._scheduler.finish(turn, STOPPED, now=now).why)
            self.wanted += 1
        self._collect_for_others(visit, now)

    def collect(self, visit: Visit, now: Millis) -> None:
        """Reports what went well in a visit."""
        turns = visit.reported()
        if not turns:
            return
        for queue, why in self._scheduler.finish_done(turns, now=now):
            self._after(queue, why)
        if self._troubles:
            for turn in turns:
                note_trouble(self._troubles, turn, Why.DONE, "", now)

    def catch_up(self, now: Millis) -> None:
        """Whoever asks how far a queue is gets the truth, also while a handler hangs behind finished turns."""
        for visit in self.visits:
            self._collect_for_others(visit, now)

    # questions, and what the event loop does

    def turns(self) -> Iterable[MessageTurn]:
        """Those in somebody's hands."""
        return chain(self._single.values(), self.visits.running())

    def look(self, queue: MessageQueue, key: str | None, now: Millis) -> LaneLook | None:
        """What a lane is doing now; None for a queue that is not held."""
        view = self._scheduler.view(queue, key, now=now)
        if view is None:
            return None
        lane = None if view.order is Order.QUEUE else key
        began = next((turn.began for turn in self.turns() if (turn.queue, turn.key) == (queue, lane)), None)
        return LaneLook(view, now, began, self._troubles.get((queue, lane)))

    def drain(self, queue: MessageQueue, now: Millis) -> None:
        """Nothing waits in visits afterwards: only what runs has to be waited for."""
        self._scheduler.drain(queue)
        for visit in self.visits:
            self.take_back(visit, now)

    def drop(self, queue: MessageQueue) -> None:
        self.hungry.pop(queue, None)
        self._scheduler.drop(queue)
        for place in [place for place in self._troubles if place[0] == queue]:
            del self._troubles[place]
        if queue in self.drained:
            self.calls.append(self.drained[queue])

    def feed(self, queue: MessageQueue, *, anyway: bool = False) -> None:
        """There may be room for a pull that waits."""
        if self.hungry and queue in self.hungry:
            count, call = self.hungry[queue]
            if anyway or self._scheduler.cached(queue).count <= count:
                del self.hungry[queue]
                self.calls.append(call)

    def look_at_shut(self, queue: MessageQueue) -> None:
        """Parked lanes may have something for the broker."""
        lanes = self._scheduler.shut(queue)
        if lanes is not None and lanes.news:
            self.calls.append(self.on_shut)

    def _collect_for_others(self, visit: Visit, now: Millis) -> None:
        """Lanes that become free here are nobody's: unlike at a visit's end, no worker stands there to take them."""
        if visit.ended:
            self.collect(visit, now)
            if self._scheduler.has_ready:
                self.wanted += 1

    def _settled(self, turn: MessageTurn, finished: MessageFinished) -> None:
        if finished.why is Why.GIVE:
            return
        self._single.pop(turn.token, None)
        if finished.until is not None:
            self.wanted += 1  # somebody must sleep until then
        self._after(turn.queue, finished.why)

    def _after(self, queue: MessageQueue, why: Why) -> None:
        if why is Why.QUEUE_GONE:
            self.wanted += 1  # somebody must look at the queue's next holding
        self.feed(queue, anyway=why is Why.QUEUE_GONE)
        if self.drained and queue in self.drained:
            self.calls.append(self.drained[queue])
        self.look_at_shut(queue)
