"""Turns that are under way, with everybody who waits for one of them to end: pull loops that want room, hand-overs
that want quiet, people who ask what a key is doing.

Belongs to a board and is used under its mutex. It wakes and calls nobody itself: `wanted` and `calls`
say who should be. The rule guarded here: whatever a turn's end makes
possible is told, whichever way it ended and whoever reported it.
"""

from collections.abc import Callable, Iterable, Sequence
from itertools import chain
from typing import TypeAlias

from lanemq.client.consumer.lane_trouble import Failing, LaneStatus, note_failing
from lanemq.client.consumer.visits import BusyWorkers, Worker
from lanemq.client.message import Message
from lanemq.core.consuming.runs import DONE, STOPPED, Finished, LaneRun, Order, Outcome, Wait, Why
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

MessageRun: TypeAlias = LaneRun[Message]
MessageFinished: TypeAlias = Finished[Message]
Call: TypeAlias = Callable[[], None]


def _nobody() -> None:
    """Nobody brings parked lanes to a broker."""


class InProgress:
    """A scheduler with its turns under way."""

    def __init__(self, scheduler: LaneScheduler[Message], nanos: Callable[[], int]) -> None:
        self._lanes = scheduler
        self._nanos = nanos
        self.busy = BusyWorkers()
        # Turns taken one by one and not finished; the others are in visits.
        self._single: dict[int, MessageRun] = {}
        # Lanes that failed and did not get over it yet: since when, and the newest error.
        self._troubles: dict[tuple[MessageQueue, str | None], Failing] = {}
        self.hungry: dict[MessageQueue, tuple[int, Call]] = {}
        """Pull loops that wait for room: below how many cached messages they want to be called, and how."""
        self.drained: dict[MessageQueue, Call] = {}
        """Whom to call whenever a turn of a draining queue has ended."""
        self.on_parked: Call = _nobody
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

    def take_run(self, now: Millis) -> MessageRun | Wait:
        found = self._lanes.next_run(now=now)
        if isinstance(found, LaneRun):
            found.began = now
            self._single[found.token] = found
        return found

    def finish(self, run: MessageRun, outcome: Outcome, done: int, reason: str, now: Millis) -> MessageFinished:
        """A turn that somebody else ended meanwhile is ignored."""
        if not self._lanes.is_running(run):
            return Finished(Why.QUEUE_GONE)
        finished = self._lanes.finish(run, outcome, done=done, now=now, reason=reason)
        if reason or self._troubles:
            note_failing(self._troubles, run, finished.why, reason, now)
        self._settled(run, finished)
        return finished

    def sent_back(self, run: MessageRun, ok: Sequence[bool], now: Millis) -> MessageFinished:
        finished = self._lanes.sent_back(run, ok, now=now)
        self._settled(run, finished)
        return finished

    def overdue(self, before: Millis) -> list[MessageRun]:
        began_late = [run for run in self.runs() if run.began is not None and run.began < before]
        return [run for run in began_late if self._lanes.may_take_over(run)]

    def take_over(self, run: MessageRun, now: Millis) -> bool:
        """Ends a turn without its worker; False if that must not be, or is too late."""
        if not self._lanes.may_take_over(run):
            return False
        self.finish(run, DONE, 0, "", now)
        return True

    # visits

    def fill(self, worker: Worker, now: Millis) -> int:
        """Turns for a worker, and how many; among them those that wait too long for another worker. None, too, while
        another one does everything alone."""
        now_ns = self._nanos()
        for late in self.busy.late(now_ns):
            self.take_back(late, now)
        if self.busy.keeps_up(now_ns):
            return 0
        runs = self._lanes.next_runs(self.busy.share, now=now)
        if runs:
            self.busy.begin(worker, runs, now_ns)
        return len(runs)

    def end(self, worker: Worker, now: Millis) -> None:
        """A worker comes back from a visit."""
        self.collect(worker, now)
        self.busy.end(worker, self._nanos())

    def take_back(self, worker: Worker, now: Millis) -> None:
        """The worker keeps what is in its hands; what it finished is reported, and what it did not begin is free."""
        for run in reversed(list(worker.taken_back())):
            self._after(run.queue, self._lanes.finish(run, STOPPED, now=now).why)
            self.wanted += 1
        self._collect_for_others(worker, now)

    def collect(self, worker: Worker, now: Millis) -> None:
        """Reports what went well in a visit."""
        runs = worker.reported()
        if not runs:
            return
        for queue, why in self._lanes.finish_done(runs, now=now):
            self._after(queue, why)
        if self._troubles:
            for run in runs:
                note_failing(self._troubles, run, Why.DONE, "", now)

    def catch_up(self, now: Millis) -> None:
        """Whoever asks how far a queue is gets the truth, also while a handler hangs behind finished turns."""
        for worker in self.busy:
            self._collect_for_others(worker, now)

    # questions, and what the event loop does

    def runs(self) -> Iterable[MessageRun]:
        """Those in somebody's hands."""
        return chain(self._single.values(), self.busy.running())

    def look(self, queue: MessageQueue, key: str | None, now: Millis) -> LaneStatus | None:
        """What a lane is doing now; None for a queue that is not held."""
        view = self._lanes.view(queue, key, now=now)
        if view is None:
            return None
        lane = None if view.order is Order.QUEUE else key
        began = next((run.began for run in self.runs() if (run.queue, run.key) == (queue, lane)), None)
        return LaneStatus(view, now, began, self._troubles.get((queue, lane)))

    def drain(self, queue: MessageQueue, now: Millis) -> None:
        """Nothing waits in visits afterwards: only what runs has to be waited for."""
        self._lanes.drain(queue)
        for worker in self.busy:
            self.take_back(worker, now)

    def drop(self, queue: MessageQueue) -> None:
        self.hungry.pop(queue, None)
        self._lanes.drop(queue)
        for place in [place for place in self._troubles if place[0] == queue]:
            del self._troubles[place]
        if queue in self.drained:
            self.calls.append(self.drained[queue])

    def feed(self, queue: MessageQueue, *, anyway: bool = False) -> None:
        """There may be room for a pull that waits."""
        if self.hungry and queue in self.hungry:
            count, call = self.hungry[queue]
            if anyway or self._lanes.cached(queue).count <= count:
                del self.hungry[queue]
                self.calls.append(call)

    def look_at_parked(self, queue: MessageQueue) -> None:
        """Parked lanes may have something for the broker."""
        lanes = self._lanes.parked_lanes(queue)
        if lanes is not None and lanes.news:
            self.calls.append(self.on_parked)

    def _collect_for_others(self, worker: Worker, now: Millis) -> None:
        """Lanes that become free here are nobody's: unlike at a visit's end, no worker stands there to take them."""
        if worker.ended:
            self.collect(worker, now)
            if self._lanes.has_ready:
                self.wanted += 1

    def _settled(self, run: MessageRun, finished: MessageFinished) -> None:
        if finished.why is Why.GIVE:
            return
        self._single.pop(run.token, None)
        if finished.until is not None:
            self.wanted += 1  # somebody must sleep until then
        self._after(run.queue, finished.why)

    def _after(self, queue: MessageQueue, why: Why) -> None:
        if why is Why.QUEUE_GONE:
            self.wanted += 1  # somebody must look at the queue's next assigned
        self.feed(queue, anyway=why is Why.QUEUE_GONE)
        if self.drained and queue in self.drained:
            self.calls.append(self.drained[queue])
        self.look_at_parked(queue)
