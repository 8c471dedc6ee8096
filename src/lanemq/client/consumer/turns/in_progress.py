"""Runs in progress: which worker has them, and who is notified when one of them ends.

Belongs to a `Scheduler` and is used under its mutex. It wakes no worker and calls no callback itself: it counts the
workers to wake in `to_wake` and collects `callbacks`, and the scheduler acts on both.

A worker takes several runs of different lanes at once, so that it need not return to the scheduler for every message.
How many depends on how long handlers take: as much as fits into one millisecond. A handler slower than that gets one
run at a time, so that slow work still spreads over all workers. The time that a worker waits for the scheduler's mutex
does not count: it says how many workers there are, not how slow the handler is.

Invariant: runs behind a handler that hangs or has become slow do not wait while another worker is free to run them.
Both a worker and the scheduler take runs out of `Worker.waiting`, and only the one that takes a run out has it.
Finished runs are in `Worker.ended`, where the scheduler may collect them at any time.
"""

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple, TypeAlias

from lanemq.client.message import Message
from lanemq.core.consuming.runs import DONE, STOPPED, Finished, LaneRun, Order, Outcome, Wait, Why, count_messages
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.consuming.views import LaneView
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

MessageRun: TypeAlias = LaneRun[Message]
MessageFinished: TypeAlias = Finished[Message]
Callback: TypeAlias = Callable[[], None]

TARGET_NS = 1_000_000
"""How long the runs that a worker takes at once should last. Longer saves little and makes other lanes wait."""
MAX_MESSAGES = 1024
"""Maximum number of messages that a worker takes at once, however fast the handler is. Smaller: a handler that takes a
microsecond pays for the scheduler more often. Larger: saves nothing, because `TARGET_NS` is over first."""
QUICK_MESSAGES = 128
"""From this many messages at once, the handler costs less than waking another worker to share the work."""
LATE_MS = 5
"""A worker that is busy for longer loses the runs that it has not begun to the others. Shorter would take runs from
workers that only wait for the interpreter; longer would make runs wait behind a handler that hangs."""
_LATE_NS = LATE_MS * 1_000_000
REASON_CHARS = 500
"""Maximum length of an error text that is kept; some errors carry whole documents."""


class Worker:
    """The runs of one worker. It is shared with the scheduler without a lock: each step is one deque operation."""

    __slots__ = ("began_ns", "ended", "error", "in_child", "messages", "run", "waiting")

    def __init__(self) -> None:
        self.waiting: deque[MessageRun] = deque()
        """Taken and not begun, in the order in which they run."""
        self.ended: deque[MessageRun] = deque()
        """Succeeded and not yet reported to the scheduler."""
        self.run: MessageRun | None = None
        """The run whose handler is being called."""
        self.error: BaseException | None = None
        """What ended the worker unexpectedly."""
        self.in_child = False
        """Whether this is a copy in a child process, which the worker's handler has forked."""
        self.began_ns = 0
        self.messages = 0
        """Number of messages taken, without those taken back."""

    def take_back(self) -> Iterator[MessageRun]:
        """Removes all waiting runs, the last one first, because the worker takes from the other end."""
        while True:
            try:
                run = self.waiting.pop()
            except IndexError:
                return
            self.messages -= len(run.messages)
            yield run

    def collect(self) -> list[MessageRun]:
        """Removes all runs that succeeded. Under the scheduler's mutex, no other thread removes from `ended`."""
        next_one = self.ended.popleft
        return [next_one() for _ in range(len(self.ended))]


class BusyWorkers:
    """The workers that have runs, and how many messages a worker takes at once."""

    def __init__(self) -> None:
        self._busy: dict[Worker, None] = {}
        self.share = 1
        """Number of messages that a worker takes at once."""
        self._next_check_ns = 0

    def __iter__(self) -> Iterator[Worker]:
        return iter(self._busy)

    def __len__(self) -> int:
        return len(self._busy)

    def begin(self, worker: Worker, runs: list[MessageRun], now_ns: int) -> None:
        worker.messages = count_messages(runs)
        worker.began_ns = now_ns
        worker.waiting.extend(runs)
        self._busy[worker] = None

    def end(self, worker: Worker, now_ns: int) -> None:
        """Called when all runs of a worker ended or were taken back; their duration adjusts `share`.

        One take changes `share` by a factor of two at most. Now and then a worker loses the interpreter to another
        thread in the middle of its runs; a share that believed a single such take would wake all workers, which
        would then compete for the interpreter and look slow for good.
        """
        if worker not in self._busy:
            return
        del self._busy[worker]
        fit = TARGET_NS * worker.messages // max(now_ns - worker.began_ns, 1)
        self.share = max(1, self.share // 2, min(fit, 2 * self.share, MAX_MESSAGES))

    def running(self) -> Iterator[MessageRun]:
        return (run for worker in self._busy if (run := worker.run) is not None)

    def workers_for(self, messages: int) -> int:
        """How many sleeping workers to wake for new messages, beside those that return within a millisecond."""
        if self.share == 1:
            return messages
        if self._is_quick:
            return 0 if self._busy else 1
        return max(-(-messages // self.share) - len(self._busy), 0)

    def one_is_enough(self, now_ns: int) -> bool:
        """Whether one worker does all the work: the handler is quick, and a worker is busy and not late.

        More workers would only compete for the interpreter. A lane waits no longer for that worker to be late than it
        would wait behind other runs of it.
        """
        if not self._is_quick:
            return False
        since = now_ns - _LATE_NS
        return any(each.began_ns > since for each in self._busy)

    @property
    def _is_quick(self) -> bool:
        return self.share >= QUICK_MESSAGES

    def have_work_for_others(self, besides: Worker | None = None) -> bool:
        """Whether a worker other than `besides` has runs that others could begin or collect."""
        return any(worker is not besides and (worker.waiting or worker.ended) for worker in self._busy)

    def late(self, now_ns: int) -> list[Worker]:
        """Workers that take too long and have work for others. Checks now and then, not at every call."""
        if now_ns < self._next_check_ns:
            return []
        self._next_check_ns = now_ns + _LATE_NS // 2
        since = now_ns - _LATE_NS
        return [each for each in self._busy if each.began_ns <= since and (each.waiting or each.ended)]


class Failing(NamedTuple):
    """A lane that failed and has not succeeded since: when it first failed, the last message to fail, and why."""

    since: Millis
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class LaneReport:
    """A lane at one moment; `began` is when its current run began. All times are on the member's clock."""

    view: LaneView
    now: Millis
    began: Millis | None
    failing: Failing | None


_STILL_FAILING = (Why.HELD, Why.GIVE, Why.ROLLED_BACK, Why.PARKED)


def _do_nothing() -> None:
    """Default of `on_parked`."""


class InProgress:
    """The runs in progress of one scheduler."""

    def __init__(self, lanes: LaneScheduler[Message], nanos: Callable[[], int]) -> None:
        self._lanes = lanes
        self.nanos = nanos
        self.busy = BusyWorkers()
        # Runs taken one by one (`take_run`); all others are with a busy worker.
        self._single: dict[int, MessageRun] = {}
        # Queues and lanes without a failure have no entry, so that they cost nothing.
        self._failing: dict[MessageQueue, dict[str | None, Failing]] = {}
        self.waiting_for_room: dict[MessageQueue, tuple[int, Callback]] = {}
        """Pull loops with a full cache: what to call once no more than so many messages are cached."""
        self.on_run_end: dict[MessageQueue, Callback] = {}
        """What to call whenever a run of a draining queue ends."""
        self.on_parked: Callback = _do_nothing
        self.to_wake = 0
        """Number of workers that should be woken."""
        self.callbacks: list[Callback] = []
        """What to call once the mutex is released."""

    def take_callbacks(self) -> Sequence[Callback]:
        if not self.callbacks:
            return ()
        callbacks, self.callbacks = self.callbacks, []
        return callbacks

    # the runs of workers

    def fill(self, worker: Worker, now: Millis) -> int:
        """Gives a worker runs, including those taken back from late workers; returns how many.

        Gives none while another worker is enough to do all the work.
        """
        now_ns = self.nanos()
        for late in self.busy.late(now_ns):
            self.take_back(late, now)
        if self.busy.one_is_enough(now_ns):
            return 0
        runs = self._lanes.next_runs(self.busy.share, now=now)
        if self._lanes.take_to_fetch():
            self.callbacks.append(self.on_parked)
        if runs:
            self.busy.begin(worker, runs, now_ns)
        return len(runs)

    def end(self, worker: Worker, now: Millis, returned_ns: int | None = None) -> None:
        """Called when a worker has returned from its runs; `returned_ns` is when, before it waited for the mutex."""
        self.collect(worker, now)
        self.busy.end(worker, self.nanos() if returned_ns is None else returned_ns)

    def collect(self, worker: Worker, now: Millis) -> None:
        """Ends the runs that succeeded."""
        runs = worker.collect()
        if not runs:
            return
        for queue, why in self._lanes.finish_done(runs, now=now):
            self._after(queue, why)
        if self._failing:
            self._note_success(runs)

    def take_back(self, worker: Worker, now: Millis) -> None:
        """Returns the runs that a worker has not begun to their lanes, and ends those that succeeded."""
        for run in reversed(list(worker.take_back())):
            self._after(run.queue, self._lanes.finish(run, STOPPED, now=now).why)
            self.to_wake += 1
        self._collect_for_others(worker, now)

    def catch_up(self, now: Millis) -> None:
        """Ends all runs that succeeded, and counts what runs in progress have finished so far.

        So offsets are current even while a handler hangs behind them, or while a long run of slow messages goes on.
        """
        for worker in self.busy:
            self._collect_for_others(worker, now)
            run = worker.run
            if run is not None and self._lanes.note_progress(run):
                self.announce_room(run.queue)
                self.announce_parked(run.queue)

    # runs one by one

    def take_run(self, now: Millis) -> MessageRun | Wait:
        found = self._lanes.next_run(now=now)
        if isinstance(found, LaneRun):
            found.began = now
            self._single[found.token] = found
        return found

    def finish(
        self,
        run: MessageRun,
        outcome: Outcome,
        done: int,
        reason: str,
        now: Millis,
        concerned: int | None = None,
    ) -> MessageFinished:
        """Ends a run; ignores one that has ended already, because it was taken over."""
        if not self._lanes.is_running(run):
            return Finished(Why.QUEUE_GONE)
        finished = self._lanes.finish(run, outcome, done=done, concerned=concerned, now=now, reason=reason)
        if reason or self._failing:
            self._note_failing(run, finished.why, reason, now)
        self._settled(run, finished)
        return finished

    def sent_back(self, run: MessageRun, ok: Sequence[bool], now: Millis) -> MessageFinished:
        finished = self._lanes.sent_back(run, ok, now=now)
        self._settled(run, finished)
        return finished

    def overdue(self, before: Millis) -> list[MessageRun]:
        began_earlier = [run for run in self.running() if run.began is not None and run.began < before]
        return [run for run in began_earlier if self._lanes.may_take_over(run)]

    def take_over(self, run: MessageRun, now: Millis) -> bool:
        """Ends a run in place of its worker; False if that is not allowed or the run has ended."""
        if not self._lanes.may_take_over(run):
            return False
        self.finish(run, DONE, 0, "", now)
        return True

    # queries, and calls of the event loop

    def running(self) -> Iterable[MessageRun]:
        """The runs whose handler is being called, or that were taken one by one."""
        return chain(self._single.values(), self.busy.running())

    def lane_report(self, queue: MessageQueue, key: str | None, now: Millis) -> LaneReport | None:
        """What a lane is doing now; None if the queue is not assigned."""
        view = self._lanes.view(queue, key, now=now)
        if view is None:
            return None
        lane = None if view.order is Order.QUEUE else key
        began = next((run.began for run in self.running() if (run.queue, run.key) == (queue, lane)), None)
        return LaneReport(view, now, began, self._failing.get(queue, {}).get(lane))

    def drain(self, queue: MessageQueue, now: Millis) -> None:
        """Stops new runs of a queue; afterwards only handlers that are running must be waited for."""
        self._lanes.drain(queue)
        for worker in self.busy:
            self.take_back(worker, now)

    def drop(self, queue: MessageQueue) -> None:
        self.waiting_for_room.pop(queue, None)
        self._lanes.drop(queue)
        self._failing.pop(queue, None)
        if queue in self.on_run_end:
            self.callbacks.append(self.on_run_end[queue])

    def announce_room(self, queue: MessageQueue, *, always: bool = False) -> None:
        """Calls back a pull loop that waits, if there is room in the queue's cache now."""
        if self.waiting_for_room and queue in self.waiting_for_room:
            count, callback = self.waiting_for_room[queue]
            if always or self._lanes.cached(queue).count <= count:
                del self.waiting_for_room[queue]
                self.callbacks.append(callback)

    def announce_parked(self, queue: MessageQueue) -> None:
        """Calls `on_parked` if parked lanes have something to send to the broker."""
        lanes = self._lanes.parked_lanes(queue)
        if lanes is not None and lanes.news:
            self.callbacks.append(self.on_parked)

    def _collect_for_others(self, worker: Worker, now: Millis) -> None:
        """Collects while the worker is still busy: lanes that become ready here need another worker."""
        if worker.ended:
            self.collect(worker, now)
            if self._lanes.has_ready:
                self.to_wake += 1

    def _settled(self, run: MessageRun, finished: MessageFinished) -> None:
        if finished.why is Why.GIVE:
            return
        if self._single.pop(run.token, None) is not None:
            self.to_wake += 1  # whoever ends such a run need not ask for the next one: another caller may wait for it
        elif finished.until is not None:
            self.to_wake += 1  # a worker must sleep until then
        self._after(run.queue, finished.why)

    def _after(self, queue: MessageQueue, why: Why) -> None:
        if why is Why.QUEUE_GONE:
            self.to_wake += 1  # the queue may be assigned again, and its lanes may start now
        self.announce_room(queue, always=why is Why.QUEUE_GONE)
        if self.on_run_end and queue in self.on_run_end:
            self.callbacks.append(self.on_run_end[queue])
        self.announce_parked(queue)

    def _note_failing(self, run: MessageRun, why: Why, reason: str, now: Millis) -> None:
        """Called for runs that failed, and for every run that ends alone while some lane is failing."""
        if why in _STILL_FAILING:
            lanes = self._failing.setdefault(run.queue, {})
            known = lanes.get(run.key)
            offset = run.messages[0].queue_offset
            lanes[run.key] = Failing(known.since if known else now, offset, reason[:REASON_CHARS])
        elif why is not Why.STOPPED:
            self._note_success([run])

    def _note_success(self, runs: Iterable[MessageRun]) -> None:
        """Called for all runs while some lane is failing, so it must cost healthy lanes next to nothing."""
        queue, failing = None, None
        for run in runs:
            if run.queue is not queue:
                queue, failing = run.queue, self._failing.get(run.queue)
            if failing is not None and run.key in failing:
                del failing[run.key]
                if not failing:
                    del self._failing[run.queue]
                    failing = None
