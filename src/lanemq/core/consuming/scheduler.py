"""Decides what runs next: all assigned queues of a consumer, and the lanes in each of them.

The consumer's order is kept here. A worker asks for runs and gets messages of lanes; until the worker calls `finish`,
no other worker gets those lanes. No worker ever waits for a lane: a lane that may not run now (held after a failure,
without a lease, being handed over) is not offered.

Invariants:

1. One run in progress per lane, even when a queue is lost and assigned again: while a run of the former assignment is
   in progress here, the new assignment starts none.
2. A failed message is decided before any later one of its lane runs.
3. The committable offset never passes an unfinished message, and a dropped queue has none.
4. No run starts at or after the end of the queue's lease.

Not thread-safe: the caller holds one mutex around every call. Knows no handlers, sockets or clocks.
"""

import heapq
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count
from typing import Generic

from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.keyed_queue import KeyedQueue
from lanemq.core.consuming.lane_queue import LaneQueue, WholeQueue
from lanemq.core.consuming.lanes_at_broker import LanesAtBroker, ParkedAtBroker
from lanemq.core.consuming.retry_policy import KEPT_MESSAGES, Again, DeadLetter, Give, HoldKey, after, again
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
from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

_SLICE_USED_UP = Again(SLICE_PAUSE, whole_queue=False)


class LaneScheduler(Generic[M]):
    """All queues that are assigned to a consumer."""

    def __init__(self, options: LaneOptions) -> None:
        self._options = options
        self._auto = options.auto_commit
        hold = options.policy.hold if isinstance(options.policy, DeadLetter) else options.policy
        self._uses_broker = isinstance(hold, HoldKey) and hold.then.at_broker
        self._keep = hold.keep if isinstance(hold, HoldKey) else KEPT_MESSAGES
        self._slice = options.max_continuous
        self._limit = max(options.run_limit // options.batch_size, 1) * options.batch_size
        self._queues: dict[MessageQueue, LaneQueue[M]] = {}
        self._line: ReadyLine[M] = ReadyLine()
        self._tokens = count(1)

    # an assignment begins

    def add(
        self,
        queue: MessageQueue,
        start_offset: QueueOffset,
        order: Order,
        *,
        usable_until: Millis = NOT_LEASED,
        finished: FinishedRanges = NOTHING_FINISHED,
        parked: Iterable[ParkedAtBroker] = (),
        broker_parks: bool = False,
    ) -> None:
        """Begins an assignment. Without `usable_until`, nothing runs before `set_usable_until`.

        `finished` is what former owners finished above the start; it is not run again and stays in the ranges.
        A queue that is one lane has no finished message above an unfinished one, and ignores `finished`.
        `parked` are the lanes that are set aside at the broker; they stay so. `broker_parks` says that the broker can
        keep lanes: held lanes with many messages are set aside there.
        """
        options = self._options
        if queue in self._queues:
            raise UsageError(f"{queue} is assigned already: drop it before adding it again")
        if not options.auto_commit and order is not Order.QUEUE:
            raise InvalidOption(f"manual commit needs the whole queue in order, not order by {order.value}")
        if order is Order.QUEUE:
            self._queues[queue] = WholeQueue(queue, start_offset, usable_until, auto=options.auto_commit)
        else:
            self._queues[queue] = KeyedQueue(
                queue,
                start_offset,
                usable_until,
                order,
                options.batch_size,
                finished,
                parked,
                sets_aside=broker_parks and self._uses_broker,
                keep=self._keep,
            )

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
        return True

    def set_usable_until(self, queue: MessageQueue, deadline: Millis) -> None:
        """Sets the end of the lease: granted, renewed or lost (`NOT_LEASED`). Ignores queues that are not assigned."""
        lane_queue = self._queues.get(queue)
        if lane_queue is not None:
            lane_queue.usable_until = deadline
            self._line.enlist(lane_queue)

    # runs begin

    def next_run(self, *, now: Millis) -> LaneRun[M] | Wait:
        """The next run, fair between queues and, inside a queue, between lanes."""
        runs = self.next_runs(1, now=now)
        return runs[0] if runs else self.wait()

    def next_runs(self, max_messages: int, *, now: Millis) -> list[LaneRun[M]]:
        """Runs of different lanes for one worker, until `max_messages` or more are taken; if empty, see `wait`."""
        runs: list[LaneRun[M]] = []
        while max_messages > 0 and (lane_queue := self._line.next(now)) is not None:
            taken = take_runs(lane_queue, max_messages, self._limit, now + self._slice, self._tokens)
            max_messages -= count_messages(taken)
            runs += taken
            self._line.enlist(lane_queue)
        return runs

    def wait(self) -> Wait:
        """Until when there is nothing to run, if nothing else happens."""
        return Wait(self._line.next_timer())

    @property
    def has_ready(self) -> bool:
        """Whether some lane may be ready; only `next_runs` finds out."""
        return bool(self._line)

    # runs end

    def is_running(self, run: LaneRun[M]) -> bool:
        """Whether the run was taken here and has not ended."""
        return run.running

    def may_take_over(self, run: LaneRun[M]) -> bool:
        """Whether a caller other than its worker may end the run.

        Not while its messages are on their way to the broker, and not after the queue was lost: then they belong to
        the next owner.
        """
        return self.is_running(run) and run.given is None and self._queues.get(run.queue) is run.permit

    def finish_done(self, runs: Iterable[LaneRun[M]], *, now: Millis) -> list[tuple[MessageQueue, Why]]:
        """`finish(run, DONE)` for each of them at a fraction of the cost; returns their queues.

        A run whose queue was dropped is reported with that reason; a run that has ended already is left out.
        """
        ended: list[tuple[MessageQueue, Why]] = []
        for lane_queue, group in by_permit(runs):
            assert isinstance(lane_queue, LaneQueue)
            if lane_queue.dropped:
                ended += [(run.queue, self.finish(run, DONE, now=now).why) for run in group]
                continue
            for lane in lane_queue.settle_done(group, commit=self._auto):
                self._go_on(lane_queue, lane, now)
            self._line.enlist(lane_queue)
            ended.append((lane_queue.queue, Why.DONE))
        return ended

    def note_progress(self, run: LaneRun[M]) -> bool:
        """Counts what a run in progress has finished so far; returns whether that is more than before.

        A run of slow messages would otherwise be reported only at its end, and all of it repeated after a crash.
        """
        done, lane_queue = run.done, run.permit
        if not run.settled < done < len(run.messages) or not run.running or run.given is not None:
            return False
        if lane_queue.dropped or not isinstance(lane_queue, LaneQueue):
            return False
        lane_queue.settle_part(run, done)
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
        failed; a parked lane keeps it for its operator.
        """
        lane_queue, _ = self._running(run)
        if lane_queue.dropped:
            return self._stale_ended(run)
        if run.given is not None:
            raise UsageError(f"run {run.token} of {run.queue} waits for sent_back, not for another outcome")
        if outcome is DONE:
            return self._end(run, len(run.messages), Why.DONE, now=now)
        if not 0 <= done <= len(run.messages) - (outcome is not STOPPED):
            raise UsageError(f"done={done} does not fit {outcome} of a run of {len(run.messages)}")
        if outcome is STOPPED:
            return self._end(run, done, Why.STOPPED, now=now)
        if outcome is ONE_BY_ONE:
            return self._divide(run, done, now)
        if outcome is COMMIT or outcome is ROLL_BACK:
            return self._commit_or_roll_back(run, outcome, done, now)
        failed = run.messages[done : done + (concerned or self._options.batch_size)]
        return self._failed(run, done, failed, outcome, now, reason)

    def sent_back(self, run: LaneRun[M], ok: Sequence[bool], *, now: Millis) -> Finished[M]:
        """Reports which messages of `Finished.send_back` the broker has taken, one value per message.

        Successors go on only when the whole batch is gone. Otherwise the batch waits; messages that were handed over
        are neither run nor handed over again.
        """
        lane_queue, _ = self._running(run)
        if lane_queue.dropped:
            return self._stale_ended(run)
        if run.given is None or len(ok) != len(run.given[2]):
            raise UsageError("sent_back answers the messages of Finished.send_back, one value each, once")
        done, failed, given = run.given
        gone = {m.queue_offset for m, sent in zip(given, ok, strict=True) if sent}
        batch = run.messages[done : done + failed]
        left = [m for m in batch if m.queue_offset not in gone]
        if not left:
            return self._end(run, done + len(batch), Why.SENT_BACK, now=now, gone=gone)
        wait = again(self._options.policy, lane_queue.failures.get(left[0].queue_offset, 0))
        self._count(lane_queue, left)
        return self._end(run, done, Why.HELD, now=now, gone=gone, hold=wait)

    # parked lanes

    def resume(self, queue: MessageQueue, key: str | None = None) -> bool:
        """Lets a parked lane try again with fresh retries; returns whether there was one."""
        lane_queue = self._queues.get(queue)
        if lane_queue is None or not lane_queue.resume(key):
            return False
        self._line.enlist(lane_queue)
        return True

    def parked_lanes(self, queue: MessageQueue) -> LanesAtBroker[M] | None:
        """The queue's parked lanes that can go to the broker. Call `offer` after changing them."""
        lane_queue = self._queues.get(queue)
        return None if lane_queue is None else lane_queue.parked_lanes

    def take_to_fetch(self) -> bool:
        """Whether, since the last call, a backoff has ended of a lane whose messages are at the broker."""
        to_fetch, self._line.to_fetch = self._line.to_fetch, False
        return to_fetch

    def offer(self, queue: MessageQueue) -> None:
        """Called when lanes of the queue may have become ready."""
        if queue in self._queues:
            self._line.enlist(self._queues[queue])

    # an assignment ends

    def drain(self, queue: MessageQueue) -> None:
        """Starts no new runs; those in progress stop before their next batch. The next owner runs the rest."""
        self._assigned(queue).withdrawn = True

    def reopen(self, queue: MessageQueue) -> None:
        """Undoes `drain`: the hand-over was cancelled."""
        lane_queue = self._assigned(queue)
        lane_queue.withdrawn = False
        self._line.enlist(lane_queue)

    def is_drained(self, queue: MessageQueue) -> bool:
        """Whether the queue is draining and none of its handlers is running, not even one of a former assignment."""
        lane_queue = self._assigned(queue)
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

    # queries

    def committable(self, queue: MessageQueue) -> QueueOffset | None:
        """The first unfinished offset; None if the queue is not assigned."""
        lane_queue = self._queues.get(queue)
        return None if lane_queue is None else lane_queue.committable

    def next_offset(self, queue: MessageQueue) -> QueueOffset | None:
        """Where the next pull starts; None if the queue is not assigned."""
        lane_queue = self._queues.get(queue)
        return None if lane_queue is None else lane_queue.next_offset

    def finished_ranges(self, queue: MessageQueue) -> FinishedRanges:
        """Finished offsets above the committable one, by this owner or former ones."""
        return self._assigned(queue).finished_ranges()

    def cached(self, queue: MessageQueue) -> Cached:
        return self._assigned(queue).cached()

    def snapshot(self) -> dict[MessageQueue, QueueView]:
        held: dict[MessageQueue, list[tuple[str | None, Millis]]] = {}
        for until, lane_queue, lane in self._line.timers():
            held.setdefault(lane_queue.queue, []).append((lane.key if lane else None, until))
        return {queue: each.view(tuple(held.get(queue, ()))) for queue, each in self._queues.items()}

    def view(self, queue: MessageQueue, key: str | None, *, now: Millis) -> LaneView | None:
        lane_queue = self._queues.get(queue)
        timers = ((until, lane) for until, at, lane in self._line.timers() if at is lane_queue)
        return None if lane_queue is None else lane_queue.view_lane(key, timers, now)

    # what follows the end of a run

    def _running(self, run: LaneRun[M]) -> tuple[LaneQueue[M], Lane[M]]:
        lane_queue = run.permit
        if not run.running or not isinstance(lane_queue, LaneQueue):
            raise UsageError(f"run {run.token} of {run.queue} has ended already: finish each run once")
        return lane_queue, lane_queue.lane_of(run)

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
        more = lane_queue.settle(lane, upto, commit=self._auto if commit is None else commit, gone=gone)
        until = self._place(lane_queue, lane, more, why, hold, now)
        return Finished(why, self._moved(lane_queue), (), until)

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
            self._go_on(lane_queue, lane, now)
            self._line.enlist(lane_queue)
        return None

    def _go_on(self, lane_queue: LaneQueue[M], lane: Lane[M], now: Millis) -> None:
        """Puts a lane back in line, or pauses it shortly if it used up its time slice."""
        if lane.slice_end is not None and now > lane.slice_end:
            self._line.pause(lane_queue, lane, _SLICE_USED_UP, now)
        else:
            lane_queue.ready.append(lane)

    def _commit_or_roll_back(self, run: LaneRun[M], outcome: Outcome, done: int, now: Millis) -> Finished[M]:
        if outcome is COMMIT or self._auto:
            upto = min(done + self._options.batch_size, len(run.messages))
            why = Why.ILLEGAL if self._auto else Why.COMMITTED
            return self._end(run, upto, why, now=now, commit=True)
        lane_queue, lane = self._running(run)
        lane_queue.roll_back(lane)
        until = self._place(lane_queue, lane, True, Why.ROLLED_BACK, again(self._options.policy, 0), now)
        return Finished(Why.ROLLED_BACK, None, (), until)

    def _divide(self, run: LaneRun[M], done: int, now: Millis) -> Finished[M]:
        lane_queue, _ = self._running(run)
        batch = run.messages[done : done + self._options.batch_size]
        lane_queue.alone.update(message.queue_offset for message in batch)
        return self._end(run, done, Why.DIVIDED, now=now)

    def _failed(
        self, run: LaneRun[M], done: int, batch: Sequence[M], outcome: Outcome, now: Millis, reason: str
    ) -> Finished[M]:
        lane_queue, lane = self._running(run)
        policy, failures = self._options.policy, lane_queue.failures
        asked, hopeless = outcome.delay if isinstance(outcome, Suspend) else None, outcome is HOPELESS
        steps = [after(policy, failures.get(m.queue_offset, 0), asked=asked, hopeless=hopeless) for m in batch]
        give = tuple(m for m, step in zip(batch, steps, strict=True) if isinstance(step, Give))
        if give:
            run.given = done, len(batch), give
            return Finished(Why.GIVE, None, give)
        waits = [step for step in steps if isinstance(step, Again)]
        if len(waits) < len(batch):
            attempts = max(failures.get(m.queue_offset, 0) for m in batch) + 1
            parked = self._end(run, done, Why.PARKED, now=now)
            lane_queue.park(lane, Failure(reason, attempts), at_broker=self._uses_broker)
            return parked
        self._count(lane_queue, batch)
        longest = max(waits, key=lambda step: step.delay)
        held = self._end(run, done, Why.HELD, now=now, hold=longest)
        if not longest.whole_queue:
            lane_queue.hold(lane, Failure(reason, failures[batch[0].queue_offset]))
        return held

    def _count(self, lane_queue: LaneQueue[M], failed: Sequence[M]) -> None:
        for message in failed:
            lane_queue.failures[message.queue_offset] = lane_queue.failures.get(message.queue_offset, 0) + 1

    def _moved(self, lane_queue: LaneQueue[M]) -> QueueOffset | None:
        committable = lane_queue.committable
        if committable == lane_queue.reported:
            return None
        lane_queue.reported = committable
        return committable

    def _stale_ended(self, run: LaneRun[M]) -> Finished[M]:
        _, lane = self._running(run)
        run.running, lane.run = False, None
        if self._line.stale_ended(run.queue) and run.queue in self._queues:
            self._line.enlist(self._queues[run.queue])
        return Finished(Why.QUEUE_GONE)

    def _assigned(self, queue: MessageQueue) -> LaneQueue[M]:
        lane_queue = self._queues.get(queue)
        if lane_queue is None:
            raise UsageError(f"{queue} is not assigned: add it first, or ask before dropping it")
        return lane_queue


class ReadyLine(Generic[M]):
    """The queues that have a lane that may run, in the order in which they are served.

    A queue is in the line at most once and goes to its end when it was served, so that no queue waits for the backlog
    of another. A queue that may not run now (without a lease, held, being handed over, with a run of a former
    assignment in progress) leaves the line; `enlist` puts it back when that may have changed. Held lanes are on timers.
    """

    def __init__(self) -> None:
        self._line: deque[LaneQueue[M]] = deque()
        # (when, serial, queue, lane): that lane, or the whole queue if None, may run again.
        self._timers: list[tuple[Millis, int, LaneQueue[M], Lane[M] | None]] = []
        self._serial = count(1)
        self.stale: Counter[MessageQueue] = Counter()
        """Number of runs in progress of assignments that were dropped."""
        self.to_fetch = False
        """The messages of a lane whose backoff has ended must be fetched from the broker."""

    def __bool__(self) -> bool:
        return bool(self._line)

    def enlist(self, lane_queue: LaneQueue[M]) -> None:
        """Adds a queue that may have become ready."""
        if lane_queue.ready and not lane_queue.listed:
            lane_queue.listed = True
            self._line.append(lane_queue)

    def next(self, now: Millis) -> LaneQueue[M] | None:
        """Removes and returns the first queue that may run; call `enlist` after taking lanes from it."""
        if self._timers and self._timers[0][0] <= now:
            self._fire(now)
        while self._line:
            lane_queue = self._line.popleft()
            lane_queue.listed = False
            if lane_queue.ready and self._may_run(lane_queue, now):
                return lane_queue
        return None

    def pause(self, lane_queue: LaneQueue[M], lane: Lane[M], hold: Again, now: Millis) -> Millis:
        """Holds the lane, or its whole queue; returns until when."""
        until = Millis(now + hold.delay)
        lane.slice_end = None
        if hold.whole_queue and lane_queue.order is not Order.QUEUE:
            lane_queue.held_until = max(lane_queue.held_until, until)
            lane_queue.ready.appendleft(lane)
            heapq.heappush(self._timers, (until, next(self._serial), lane_queue, None))
        else:
            lane_queue.paused(lane)
            heapq.heappush(self._timers, (until, next(self._serial), lane_queue, lane))
        return until

    def next_timer(self) -> Millis | None:
        return self._timers[0][0] if self._timers else None

    def timers(self) -> Iterator[tuple[Millis, LaneQueue[M], Lane[M] | None]]:
        """All timers, the earliest first."""
        for until, _, lane_queue, lane in sorted(self._timers, key=lambda timer: timer[:2]):
            yield until, lane_queue, lane

    def stale_ended(self, queue: MessageQueue) -> bool:
        """Counts a run of a former assignment that ended; returns whether it was the last one."""
        self.stale[queue] -= 1
        if self.stale[queue]:
            return False
        del self.stale[queue]
        return True

    def _may_run(self, lane_queue: LaneQueue[M], now: Millis) -> bool:
        if lane_queue.withdrawn or not lane_queue.held_until <= now < lane_queue.usable_until:
            return False
        return not self.stale or lane_queue.order is Order.NONE or lane_queue.queue not in self.stale

    def _fire(self, now: Millis) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, lane_queue, lane = heapq.heappop(self._timers)
            if lane is not None and not lane_queue.timer_fired(lane):
                self.to_fetch = True
            self.enlist(lane_queue)
