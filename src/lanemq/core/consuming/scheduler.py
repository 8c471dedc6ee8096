"""Decides what runs next: all assigned queues of a consumer, the lanes in each of them, and the runs that workers have.

The consumer's order is kept here. A worker asks for runs and gets messages of lanes; until these runs end, no other
worker gets those lanes. No worker ever waits for a lane: a lane that may not run now (held after a failure, without a
lease, being handed over) is not offered.

Invariants:

1. One run in progress per lane, even when a queue is lost and assigned again: while a run of the former assignment is
   in progress here, the new assignment starts none.
2. A failed message is decided before any later one of its lane runs.
3. The committable offset never passes an unfinished message, and a dropped queue has none.
4. No run starts at or after the end of the queue's lease.

How a run ends: a worker leaves the runs that succeeded in `Worker.ended`, and the scheduler collects them when the
worker returns (`worker_returned`) or earlier (`catch_up`). All others end with `finish`. In both cases the
`LaneQueue` ends the run: messages that are done leave its unfinished offsets, the others return to their lane. Then the
lane goes back in line, waits on a timer, or is parked.

Not thread-safe: `client/consumer/turns/scheduler` holds one mutex around every call. Knows no handlers, sockets or
clocks, and wakes no one: `take_changes` says what others should know.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, count
from typing import Generic, NamedTuple

from lanemq.core.consuming.busy_workers import BusyWorkers, Worker
from lanemq.core.consuming.lane_queue import LaneQueue
from lanemq.core.consuming.lanes_aside import ParkedAtBroker
from lanemq.core.consuming.ready_line import ReadyLine
from lanemq.core.consuming.retry_policy import Again, ToBroker, next_attempt, next_step
from lanemq.core.consuming.runs import (
    COMMIT,
    DONE,
    HOPELESS,
    NOT_LEASED,
    ONE_BY_ONE,
    ROLL_BACK,
    SLICE_PAUSE,
    STOPPED,
    Finished,
    Lane,
    LaneOptions,
    LaneRun,
    M,
    Order,
    Outcome,
    Suspend,
    Wait,
    Why,
    by_permit,
    count_messages,
    take_runs,
)
from lanemq.core.consuming.views import LaneView, QueueView
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.lane_status import Failure
from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

_SLICE_USED_UP = Again(SLICE_PAUSE, whole_queue=False)


class LaneChanges(NamedTuple):
    """What happened since the last time: who should look again."""

    arrived: int
    """How many messages were added. At most as many lanes became ready."""
    workers: int
    """Number of workers that should look for work beside those that new messages need."""
    queues: Sequence[MessageQueue]
    """Queues in which runs ended or parked lanes changed: there may be room, or something to send to the broker."""
    to_fetch: bool
    """A backoff has ended of a lane whose messages are at the broker."""


class LaneScheduler(Generic[M]):
    """All queues that are assigned to a consumer, and the runs of their lanes."""

    def __init__(self, options: LaneOptions) -> None:
        self._options = options
        self._auto = options.auto_commit
        self._slice = options.max_continuous
        self._limit = max(options.run_limit // options.batch_size, 1) * options.batch_size
        self._queues: dict[MessageQueue, LaneQueue[M]] = {}
        self._line: ReadyLine[M] = ReadyLine()
        self._tokens = count(1)
        self.busy: BusyWorkers[M] = BusyWorkers()
        # Runs taken one by one (`next_run`); all others are with a busy worker.
        self._single: dict[int, LaneRun[M]] = {}
        # For `take_changes`.
        self._arrived = self._workers = 0
        self._changed: list[MessageQueue] = []

    # an assignment begins

    def add(
        self,
        queue: MessageQueue,
        start_offset: QueueOffset,
        *,
        usable_until: Millis = NOT_LEASED,
        finished: FinishedRanges = NOTHING_FINISHED,
        parked: Iterable[ParkedAtBroker] = (),
        broker_parks: bool = False,
        keeps_newest: bool = False,
    ) -> None:
        """Begins an assignment. Without `usable_until`, nothing runs before `set_usable_until`.

        `finished` is what former owners finished above the start; it is not run again and stays in the ranges.
        A queue that is one lane has no finished message above an unfinished one, and ignores `finished`.
        `parked` are the lanes that are set aside at the broker; they stay so. `broker_parks` says that the broker can
        keep lanes: held lanes with many messages are set aside there. `keeps_newest`: the highest finished message
        is kept.
        """
        if queue in self._queues:
            raise UsageError(f"{queue} is assigned already: drop it before adding it again")
        self._queues[queue] = LaneQueue(
            queue,
            start_offset,
            usable_until,
            self._options,
            finished,
            parked,
            broker_parks=broker_parks,
            keeps_newest=keeps_newest,
            offered=self._offer,
        )

    def __contains__(self, queue: MessageQueue) -> bool:
        """Whether the queue is assigned."""
        return queue in self._queues

    def __getitem__(self, queue: MessageQueue) -> LaneQueue[M]:
        lane_queue = self._queues.get(queue)
        if lane_queue is None:
            raise UsageError(f"{queue} is not assigned: add it first, or ask before dropping it")
        return lane_queue

    def put(
        self,
        queue: MessageQueue,
        messages: Sequence[M],
        next_offset: QueueOffset,
        *,
        pulled_from: QueueOffset,
    ) -> bool:
        """Adds the messages of a pull; returns False if they are stale.

        Accepts only the pull that starts where the last one of this assignment ended. A late answer to a pull of a
        former assignment, or a repeated one, would leave a hole or run messages twice.
        """
        lane_queue = self._queues.get(queue)
        if lane_queue is None or pulled_from != lane_queue.next_offset:
            return False
        if messages and not pulled_from <= messages[0].queue_offset <= messages[-1].queue_offset < next_offset:
            raise UsageError(f"pull of {queue} from {pulled_from} to {next_offset} brought other offsets")
        lane_queue.put(messages, next_offset)
        self._line.enlist(lane_queue)
        self._arrived += len(messages) if self._options.order is not Order.QUEUE else bool(messages)
        self._changed.append(queue)
        return True

    def set_usable_until(self, queue: MessageQueue, deadline: Millis) -> None:
        """Sets the end of the lease: granted, renewed or lost (`NOT_LEASED`). Ignores queues that are not assigned."""
        lane_queue = self._queues.get(queue)
        if lane_queue is not None:
            lane_queue.usable_until = deadline
            self._offer(lane_queue)

    # runs begin

    def begin_runs(self, worker: Worker[M], *, now: Millis, now_ns: int) -> int:
        """Gives a worker runs, including those taken back from late workers; returns how many.

        Gives none while another worker is enough to do all the work.
        """
        for late in self.busy.late(now_ns):
            self._take_back(late, now)
        if self.busy.one_is_enough(now_ns):
            return 0
        runs = self.next_runs(self.busy.share, now=now)
        if runs:
            self.busy.begin(worker, runs, now_ns)
        return len(runs)

    def next_run(self, *, now: Millis, most: int | None = None) -> LaneRun[M] | Wait:
        """A single run, for a caller that is no worker; fair between queues and, inside a queue, between lanes.

        `most` is the number of its messages at most, if not `run_limit`.
        """
        runs = self.next_runs(1, now=now, limit=most)
        if not runs:
            return self.wait()
        runs[0].began = now
        self._single[runs[0].token] = runs[0]
        return runs[0]

    def next_runs(self, max_messages: int, *, now: Millis, limit: int | None = None) -> list[LaneRun[M]]:
        """Runs of different lanes, until `max_messages` or more are taken; if empty, see `wait`."""
        runs: list[LaneRun[M]] = []
        limit = limit or self._limit
        while max_messages > 0 and (lane_queue := self._line.next(now)) is not None:
            taken = take_runs(lane_queue, max_messages, limit, now + self._slice, self._tokens)
            max_messages -= count_messages(taken)
            runs += taken
            self._line.enlist(lane_queue)
        return runs

    def wait(self) -> Wait:
        """When a held lane may run again."""
        return Wait(self._line.next_timer())

    def has_work(self, *, besides: Worker[M] | None = None) -> bool:
        """Whether some lane may be ready, or a worker other than `besides` has runs that others could take."""
        return bool(self._line) or self.busy.have_work_for_others(besides)

    # runs end

    def worker_returned(self, worker: Worker[M], *, now: Millis, returned_ns: int) -> None:
        """Ends the runs of a worker that has called all their handlers; `returned_ns` is when, before it waited for the
        mutex."""
        self._collect(worker, now)
        self.busy.end(worker, returned_ns)

    def leave(self, worker: Worker[M], *, now: Millis, now_ns: int) -> None:
        """Takes the runs that it has not ended from a worker that ends early, and returns them to their lanes."""
        self._take_back(worker, now)
        run, worker.run = worker.run, None
        if run is not None and run.sending_back is not None:
            self.sent_back(run, [False] * len(run.sending_back[2]), now=now)
        elif run is not None and run not in worker.ended:
            self.finish(run, STOPPED, done=run.done, now=now)
        self.worker_returned(worker, now=now, returned_ns=now_ns)

    def catch_up(self, *, now: Millis) -> None:
        """Ends all runs that succeeded, and counts what runs in progress have finished so far.

        So offsets are current even while a handler hangs behind them, or while a long run of slow messages continues.
        """
        for worker in self.busy:
            self._collect_for_others(worker, now)
            run = worker.run
            if run is not None and self.note_progress(run):
                self._changed.append(run.queue)

    def finish_done(self, runs: Iterable[LaneRun[M]], *, now: Millis) -> None:
        """`finish(run, DONE)` for each of them at a fraction of the cost. Ignores runs that have ended already."""
        for lane_queue, group in by_permit(runs):
            assert isinstance(lane_queue, LaneQueue)
            if lane_queue.dropped:
                for run in group:
                    self.finish(run, DONE, now=now)
                continue
            for lane in lane_queue.end_done_runs(group, commit=self._auto):
                self._continue(lane_queue, lane, now)
            self._line.enlist(lane_queue)
            for run in group if lane_queue.failing else ():
                lane_queue.failing.pop(run.key, None)
            self._changed.append(lane_queue.queue)

    def note_progress(self, run: LaneRun[M]) -> bool:
        """Counts what a run in progress has finished so far; returns whether that is more than before.

        A run of slow messages would otherwise be reported only at its end, and all of it repeated after a crash.
        """
        done, lane_queue = run.done, run.permit
        if not run.settled < done < len(run.messages) or not run.running or run.sending_back is not None:
            return False
        if lane_queue.dropped or not isinstance(lane_queue, LaneQueue):
            return False
        lane_queue.count_done(run, done)
        return True

    def finish(
        self,
        run: LaneRun[M],
        outcome: Outcome,
        *,
        done: int = 0,
        concerned: int | None = None,
        now: Millis,
        reason: str = "",
    ) -> Finished[M]:
        """Ends a run: its first `done` messages succeeded, and `outcome` applies to the batch after them.

        `concerned` is the number of messages that a failure applies to, if not to a whole batch. `reason` says why it
        failed; a parked lane keeps it for its operator. Ignores a run that has ended, because it was taken over.
        """
        lane_queue = run.permit
        if not run.running or not isinstance(lane_queue, LaneQueue):
            return Finished(Why.QUEUE_GONE)
        if lane_queue.dropped:
            return self._note_end(run, self._end_stale(run))
        if run.sending_back is not None:
            raise UsageError(f"run {run.token} of {run.queue} waits for sent_back, not for another outcome")
        if outcome is not DONE and not 0 <= done <= len(run.messages) - (outcome is not STOPPED):
            raise UsageError(f"done={done} does not fit {outcome} of a run of {len(run.messages)}")
        if outcome is DONE or outcome is STOPPED:
            finished = self._end(run, len(run.messages) if outcome is DONE else done, Why[outcome.name], now=now)
        elif outcome is ONE_BY_ONE or outcome is COMMIT or outcome is ROLL_BACK:
            finished = self._end_batch(run, outcome, done, now)
        else:
            failed = run.messages[done : done + (concerned or self._options.batch_size)]
            finished = self._failed(run, done, failed, outcome, now, reason)
        lane_queue.note_failing(run, finished.why, reason, now)
        return self._note_end(run, finished)

    def sent_back(self, run: LaneRun[M], ok: Sequence[bool], *, now: Millis) -> Finished[M]:
        """Reports which messages of `Finished.send_back` the broker has taken, one value per message.

        Successors run only when the whole batch is gone. Otherwise the batch waits; messages that the broker has are
        neither run nor sent back again.
        """
        lane_queue, _ = self._running(run)
        if lane_queue.dropped:
            return self._note_end(run, self._end_stale(run))
        if run.sending_back is None or len(ok) != len(run.sending_back[2]):
            raise UsageError("sent_back answers the messages of Finished.send_back, one value each, once")
        done, failed, messages = run.sending_back
        gone = {m.queue_offset for m, sent in zip(messages, ok, strict=True) if sent}
        batch = run.messages[done : done + failed]
        left = [m for m in batch if m.queue_offset not in gone]
        if not left:
            return self._note_end(run, self._end(run, done + len(batch), Why.SENT_BACK, now=now, gone=gone))
        wait = next_attempt(self._options.policy, lane_queue.failures.get(left[0].queue_offset, 0))
        lane_queue.count_failures(left)
        return self._note_end(run, self._end(run, done, Why.HELD, now=now, gone=gone, hold=wait))

    def overdue(self, before: Millis) -> list[LaneRun[M]]:
        """Runs that began before that time, are still in progress, and may be taken over."""
        began_earlier = [run for run in self._in_progress() if run.began is not None and run.began < before]
        return [run for run in began_earlier if self._may_take_over(run)]

    def take_over(self, run: LaneRun[M], *, now: Millis) -> bool:
        """Ends a run in place of its worker; False if that is not allowed or the run has ended."""
        if not self._may_take_over(run):
            return False
        self.finish(run, DONE, now=now)
        return True

    # parked lanes

    def resume(self, queue: MessageQueue, key: str | None = None) -> bool:
        """Lets a parked lane try again with fresh retries; returns whether there was one."""
        lane_queue = self._queues.get(queue)
        if lane_queue is None or not lane_queue.aside.resume(key):
            return False
        self._changed.append(queue)
        return True

    # an assignment ends

    def drain(self, queue: MessageQueue, *, now: Millis) -> None:
        """Starts no new runs; those in progress stop before their next batch. The next owner runs the rest.

        Afterwards only handlers that are running must be waited for.
        """
        self[queue].withdrawn = True
        for worker in self.busy:
            self._take_back(worker, now)

    def reopen(self, queue: MessageQueue) -> None:
        """Undoes `drain`: the hand-over was cancelled."""
        lane_queue = self[queue]
        lane_queue.withdrawn = False
        self._offer(lane_queue)

    def is_drained(self, queue: MessageQueue) -> bool:
        """Whether the queue is draining and none of its handlers is running, not even one of a former assignment.

        True for a queue that was lost: there is nothing left to wait for.
        """
        lane_queue = self._queues.get(queue)
        if lane_queue is None:
            return True
        return lane_queue.withdrawn and lane_queue.running == 0 and queue not in self._line.stale

    def drop(self, queue: MessageQueue) -> None:
        """Ends an assignment at once. Runs in progress cannot be stopped, but their outcome is ignored."""
        lane_queue = self._queues.pop(queue, None)
        if lane_queue is None:
            return
        lane_queue.withdrawn = lane_queue.dropped = True
        if lane_queue.running:
            self._line.stale[queue] += lane_queue.running
        lane_queue.forget()
        self._changed.append(queue)

    # queries

    def view(self, queue: MessageQueue) -> QueueView | None:
        """The queue at this moment; None if it is not assigned."""
        lane_queue = self._queues.get(queue)
        if lane_queue is None:
            return None
        return lane_queue.view(tuple((lane.key if lane else None, until) for until, lane in self._timers(lane_queue)))

    def view_lane(self, queue: MessageQueue, key: str | None, *, now: Millis) -> LaneView | None:
        """What the lane of a key is doing now; None if the queue is not assigned."""
        lane_queue = self._queues.get(queue)
        if lane_queue is None:
            return None
        lane = None if lane_queue.order is Order.QUEUE else key
        began = next((run.began for run in self._in_progress() if (run.queue, run.key) == (queue, lane)), None)
        return lane_queue.view_lane(key, self._timers(lane_queue), now, began)

    @property
    def has_changes(self) -> bool:
        return bool(self._arrived or self._workers or self._changed or self._line.to_fetch)

    def take_changes(self) -> LaneChanges:
        """What happened since the last call."""
        changes = LaneChanges(self._arrived, self._workers, self._changed, self._line.to_fetch)
        self._arrived = self._workers = 0
        self._changed, self._line.to_fetch = [], False
        return changes

    # runs of workers

    def _in_progress(self) -> Iterator[LaneRun[M]]:
        """The runs whose handler is being called, or that were taken one by one."""
        return chain(self._single.values(), self.busy.running())

    def _may_take_over(self, run: LaneRun[M]) -> bool:
        """Whether a caller other than its worker may end the run.

        Not while its messages are on their way to the broker, and not after the queue was lost: then they belong to
        the next owner.
        """
        return run.running and run.sending_back is None and self._queues.get(run.queue) is run.permit

    def _collect(self, worker: Worker[M], now: Millis) -> None:
        runs = worker.collect()
        if runs:
            self.finish_done(runs, now=now)

    def _take_back(self, worker: Worker[M], now: Millis) -> None:
        """Returns the runs that a worker has not begun to their lanes, and ends those that succeeded."""
        for run in reversed(list(worker.take_back())):
            self.finish(run, STOPPED, now=now)
            self._workers += 1
        self._collect_for_others(worker, now)

    def _collect_for_others(self, worker: Worker[M], now: Millis) -> None:
        """Collects while the worker is still busy: lanes that become ready here need another worker."""
        if worker.ended:
            self._collect(worker, now)
            self._workers += bool(self._line)

    # what follows the end of a run

    def _running(self, run: LaneRun[M]) -> tuple[LaneQueue[M], Lane[M]]:
        lane_queue = run.permit
        if not run.running or not isinstance(lane_queue, LaneQueue):
            raise UsageError(f"run {run.token} of {run.queue} has ended already: finish each run once")
        return lane_queue, lane_queue.lane_of(run)

    def _note_end(self, run: LaneRun[M], finished: Finished[M]) -> Finished[M]:
        """Notes who must know of the end of a run. Messages that are to be sent back do not end it."""
        if finished.why is not Why.SEND_BACK:
            # Whoever ends a single run need not ask for the next one; another caller may wait for it. A worker must
            # sleep until the end of a hold. A queue that was lost may be assigned again, and its lanes may start now.
            was_single = self._single.pop(run.token, None) is not None
            self._workers += was_single or finished.until is not None or finished.why is Why.QUEUE_GONE
            self._changed.append(run.queue)
        return finished

    def _end(
        self,
        run: LaneRun[M],
        upto: int,
        why: Why,
        *,
        now: Millis,
        commit: bool | None = None,
        gone: Collection[int] = (),
        hold: Again | None = None,
    ) -> Finished[M]:
        lane_queue, lane = self._running(run)
        more = lane_queue.end_run(lane, upto, commit=self._auto if commit is None else commit, gone=gone)
        return Finished(why, (), self._place(lane_queue, lane, more, why, hold, now))

    def _place(
        self, lane_queue: LaneQueue[M], lane: Lane[M], more: bool, why: Why, hold: Again | None, now: Millis
    ) -> Millis | None:
        """Puts a lane where it belongs after its run: parked, on a timer, back in line, or nowhere."""
        if lane.run is not None:
            lane.run.running, lane.run = False, None
        lane_queue.running -= 1
        if why is Why.PARKED:
            return None
        if hold is not None:
            return self._line.pause(lane_queue, lane, hold, now)
        if more:
            self._continue(lane_queue, lane, now)
            self._line.enlist(lane_queue)
        return None

    def _continue(self, lane_queue: LaneQueue[M], lane: Lane[M], now: Millis) -> None:
        """Puts a lane back in line, or pauses it shortly if it used up its time slice."""
        if lane.slice_end is not None and now > lane.slice_end:
            self._line.pause(lane_queue, lane, _SLICE_USED_UP, now)
        else:
            lane_queue.ready.append(lane)

    def _end_batch(self, run: LaneRun[M], outcome: Outcome, done: int, now: Millis) -> Finished[M]:
        """Ends a run with an outcome that concerns a whole batch, and is no attempt of its messages."""
        lane_queue, lane = self._running(run)
        upto = min(done + self._options.batch_size, len(run.messages))
        if outcome is ONE_BY_ONE:
            lane_queue.alone.update(message.queue_offset for message in run.messages[done:upto])
            return self._end(run, done, Why.DIVIDED, now=now)
        if outcome is COMMIT or self._auto:
            return self._end(run, upto, Why.ILLEGAL if self._auto else Why.COMMITTED, now=now, commit=True)
        lane_queue.roll_back(lane)
        until = self._place(lane_queue, lane, True, Why.ROLLED_BACK, next_attempt(self._options.policy, 0), now)
        return Finished(Why.ROLLED_BACK, (), until)

    def _failed(
        self, run: LaneRun[M], done: int, batch: Sequence[M], outcome: Outcome, now: Millis, reason: str
    ) -> Finished[M]:
        lane_queue, lane = self._running(run)
        policy, failures = self._options.policy, lane_queue.failures
        delay, hopeless = outcome.delay if isinstance(outcome, Suspend) else None, outcome is HOPELESS
        steps = [next_step(policy, failures.get(m.queue_offset, 0), delay=delay, hopeless=hopeless) for m in batch]
        send_back = tuple(m for m, step in zip(batch, steps, strict=True) if isinstance(step, ToBroker))
        if send_back:
            run.sending_back = done, len(batch), send_back
            return Finished(Why.SEND_BACK, send_back)
        waits = [step for step in steps if isinstance(step, Again)]
        if len(waits) < len(batch):
            attempts = max(failures.get(m.queue_offset, 0) for m in batch) + 1
            parked = self._end(run, done, Why.PARKED, now=now)
            lane_queue.aside.park(lane, Failure(reason, attempts))
            return parked
        lane_queue.count_failures(batch)
        longest = max(waits, key=lambda step: step.delay)
        held = self._end(run, done, Why.HELD, now=now, hold=longest)
        if not longest.whole_queue:
            lane_queue.aside.hold(lane, Failure(reason, failures[batch[0].queue_offset]))
        return held

    def _end_stale(self, run: LaneRun[M]) -> Finished[M]:
        _, lane = self._running(run)
        run.running, lane.run = False, None
        if self._line.stale_ended(run.queue) and run.queue in self._queues:
            self._line.enlist(self._queues[run.queue])
        return Finished(Why.QUEUE_GONE)

    # queues

    def _offer(self, lane_queue: LaneQueue[M]) -> None:
        """Lanes of the queue may have become ready."""
        self._line.enlist(lane_queue)
        self._workers += 1
        self._changed.append(lane_queue.queue)

    def _timers(self, lane_queue: LaneQueue[M]) -> Iterator[tuple[Millis, Lane[M] | None]]:
        return ((until, lane) for until, at, lane in self._line.timers() if at is lane_queue)
