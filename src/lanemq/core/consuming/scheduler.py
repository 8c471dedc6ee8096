"""Who runs next: all queues of one consumer, and in each of them its lanes.

This is where order is kept on the consuming side. Workers ask `next_turn` and get a run of messages of one
lane; until they `finish` it nobody else gets that lane. No worker ever waits for a lane: what may not run
now (held after a failure, without a lease, being handed over) is simply not offered.

Rules it guards:

1. One running turn per lane, also across a loss and re-gain of the queue: while a turn of the former
   holding is still running here, the new holding starts none.
2. A failed message is decided before any later one of its lane runs.
3. The committable offset never passes an unfinished message, and nothing is committable for a dropped queue.
4. No turn starts at or after the end of the queue's lease.

Not thread-safe on purpose: the shell holds one mutex around every call. It knows no handlers, sockets or
clocks.
"""

from collections.abc import Collection, Iterable, Sequence
from itertools import count, groupby
from operator import attrgetter
from typing import Generic

from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.keyed_queue import KeyedQueue
from lanemq.core.consuming.lane_queue import LaneQueue, QueueView, WholeQueue
from lanemq.core.consuming.lane_turns import count_messages, take_runs
from lanemq.core.consuming.lane_view import LaneView, view_lane
from lanemq.core.consuming.parked_lanes import LocalParkedLanes, ParkedAtBroker
from lanemq.core.consuming.ready_line import ReadyLine
from lanemq.core.consuming.retry_policy import Again, Give, HoldKey, after, again
from lanemq.core.consuming.runs import (
    COMMIT,
    DONE,
    HOPELESS,
    NOT_LEASED,
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
)
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.parked_lane import Failure
from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

_gate_of = attrgetter("gate")
_SLICE_USED_UP = Again(SLICE_PAUSE, whole_queue=False)


class LaneScheduler(Generic[M]):
    """All queues a consumer holds."""

    def __init__(self, options: LaneOptions) -> None:
        self._options = options
        self._auto = options.auto_commit
        self._park_at_broker = isinstance(options.policy, HoldKey) and options.policy.then.at_broker
        self._slice = options.max_continuous
        self._limit = max(options.run_limit // options.batch_size, 1) * options.batch_size
        self._queues: dict[MessageQueue, LaneQueue[M]] = {}
        self._line: ReadyLine[M] = ReadyLine()
        self._tokens = count(1)

    def add(
        self,
        queue: MessageQueue,
        start_offset: QueueOffset,
        order: Order,
        *,
        usable_until: Millis = NOT_LEASED,
        done: FinishedRanges = NOTHING_FINISHED,
        kept: Iterable[ParkedAtBroker] = (),
    ) -> None:
        """Begin a holding. Without `usable_until` nothing runs before `set_usable_until`.

        `done` is what former owners finished above the start; it is not run again, and stays among the finished ranges.
        With the whole queue in order nothing is ever finished above an unfinished message, and `done` is ignored.
        `kept` are the lanes that the broker keeps parked; they stay parked.
        """
        options = self._options
        if queue in self._queues:
            raise UsageError(f"{queue} is held already: drop it before adding it again")
        if not options.auto_commit and order is not Order.QUEUE:
            raise InvalidOption(f"manual commit needs the whole queue in order, not order by {order.value}")
        if order is Order.QUEUE:
            self._queues[queue] = WholeQueue(queue, start_offset, usable_until, auto=options.auto_commit)
        else:
            self._queues[queue] = KeyedQueue(queue, start_offset, usable_until, order, options.batch_size, done, kept)

    def put(
        self,
        queue: MessageQueue,
        messages: Sequence[M],
        next_offset: QueueOffset,
        *,
        pulled_from: QueueOffset,
    ) -> bool:
        """Add what a pull brought; False if it was not wanted any more.

        Only the pull that starts where this holding's last one ended is accepted. A late answer to a pull of
        an earlier holding, or a repeated one, would leave a hole or run messages twice.
        """
        home = self._queues.get(queue)
        if home is None or pulled_from != home.next_offset:
            return False
        if messages and not pulled_from <= messages[0].queue_offset <= messages[-1].queue_offset < next_offset:
            raise UsageError(f"pull of {queue} from {pulled_from} to {next_offset} brought other offsets")
        home.put(messages, next_offset)
        self._line.enlist(home)
        return True

    def set_usable_until(self, queue: MessageQueue, deadline: Millis) -> None:
        """The lease was granted, renewed or lost (`NOT_LEASED`); unknown queues are ignored."""
        home = self._queues.get(queue)
        if home is not None:
            home.usable_until = deadline
            self._line.enlist(home)

    def next_run(self, *, now: Millis) -> LaneRun[M] | Wait:
        """The next run of messages, fair between queues and, inside a queue, between lanes."""
        runs = self.next_runs(1, now=now)
        return runs[0] if runs else self.wait()

    def next_runs(self, most: int, *, now: Millis) -> list[LaneRun[M]]:
        """Turns of different lanes for one worker, until they have `most` messages or more; none: see `wait`."""
        runs: list[LaneRun[M]] = []
        while most > 0 and (home := self._line.next(now)) is not None:
            taken = take_runs(home, most, self._limit, now + self._slice, self._tokens)
            most -= count_messages(taken)
            runs += taken
            self._line.enlist(home)
        return runs

    def wait(self) -> Wait:
        """Until when there is nothing to run, if nothing happens."""
        return Wait(self._line.next_timer())

    @property
    def has_ready(self) -> bool:
        """Whether some lane may be ready; asking for a turn tells."""
        return bool(self._line)

    def is_running(self, run: LaneRun[M]) -> bool:
        """Begun here, and not ended."""
        return run.running

    def may_take_over(self, run: LaneRun[M]) -> bool:
        """Whether somebody else than its worker may end it: not while its messages are on their way to the broker, and
        not when the queue was lost, because they are the next owner's then."""
        return self.is_running(run) and run.given is None and self._queues.get(run.queue) is run.gate

    def finish_done(self, runs: Iterable[LaneRun[M]], *, now: Millis) -> list[tuple[MessageQueue, Why]]:
        """`finish(turn, DONE)` for each of them at a fraction of the cost; the queues they were of.

        Where a turn's queue was given up meanwhile, that is said instead of `DONE`; a turn that somebody else ended
        meanwhile is left out.
        """
        ended: list[tuple[MessageQueue, Why]] = []
        for home, group in groupby([run for run in runs if run.running], _gate_of):
            if home.dropped:
                ended += [(run.queue, self.finish(run, DONE, now=now).why) for run in group]
                continue
            for lane in home.settle_done(list(group), commit=self._auto):
                self._go_on(home, lane, now)
            self._line.enlist(home)
            ended.append((home.queue, Why.DONE))
        return ended

    def finish(self, run: LaneRun[M], outcome: Outcome, *, done: int = 0, now: Millis, reason: str = "") -> Finished[M]:
        """End a turn: its first `done` messages succeeded, `outcome` speaks of the batch after them.

        `reason` is why it failed, for whoever finds the lane parked.
        """
        home, _ = self._running(run)
        if home.dropped:
            return self._ghost_ended(run)
        if run.given is not None:
            raise UsageError(f"turn {run.token} of {run.queue} waits for sent_back, not for another outcome")
        if outcome is DONE:
            return self._end(run, len(run.messages), Why.DONE, now=now)
        if not 0 <= done <= len(run.messages) - (outcome is not STOPPED):
            raise UsageError(f"done={done} does not fit {outcome} of a turn of {len(run.messages)}")
        if outcome is STOPPED:
            return self._end(run, done, Why.STOPPED, now=now)
        if outcome is COMMIT or outcome is ROLL_BACK:
            return self._commit_or_roll_back(run, outcome, done, now)
        return self._failed(run, done, outcome, now, reason)

    def sent_back(self, run: LaneRun[M], ok: Sequence[bool], *, now: Millis) -> Finished[M]:
        """The shell tried to hand over `Finished.send_back`, one truth value per message.

        Successors pass only when the whole batch is gone. Otherwise the batch waits; those already handed
        over are not run and not handed over a second time.
        """
        home, _ = self._running(run)
        if home.dropped:
            return self._ghost_ended(run)
        if run.given is None or len(ok) != len(run.given[1]):
            raise UsageError("sent_back answers the messages of Finished.send_back, one value each, once")
        done, given = run.given
        gone = {m.queue_offset for m, sent in zip(given, ok, strict=True) if sent}
        batch = run.messages[done : done + self._options.batch_size]
        left = [m for m in batch if m.queue_offset not in gone]
        if not left:
            return self._end(run, done + len(batch), Why.SENT_BACK, now=now, gone=gone)
        wait = again(self._options.policy, home.failures.get(left[0].queue_offset, 0))
        self._count(home, left)
        return self._end(run, done, Why.HELD, now=now, gone=gone, hold=wait)

    def resume(self, queue: MessageQueue, key: str | None = None) -> bool:
        """Let a parked lane try again with fresh retries; whether there was one."""
        home = self._queues.get(queue)
        if home is None or not home.resume(key):
            return False
        self._line.enlist(home)
        return True

    def parked_lanes(self, queue: MessageQueue) -> LocalParkedLanes[M] | None:
        """The queue's parked lanes, where they can go to the broker. `offer` the queue after changing them."""
        home = self._queues.get(queue)
        return None if home is None else home.parked_lanes

    def offer(self, queue: MessageQueue) -> None:
        """Lanes of the queue may have become ready."""
        if queue in self._queues:
            self._line.enlist(self._queues[queue])

    def drain(self, queue: MessageQueue) -> None:
        """No new turns; running ones stop before their next batch. What did not run is the next owner's."""
        self._home(queue).closed = True

    def reopen(self, queue: MessageQueue) -> None:
        """The hand-over was called off."""
        home = self._home(queue)
        home.closed = False
        self._line.enlist(home)

    def is_drained(self, queue: MessageQueue) -> bool:
        """Draining, and no handler of it is running any more (also none of an earlier holding)."""
        home = self._home(queue)
        return home.closed and home.running == 0 and queue not in self._line.ghosts

    def drop(self, queue: MessageQueue) -> None:
        """End a holding at once. Running turns cannot be stopped, but their outcome counts for nothing."""
        home = self._queues.pop(queue, None)
        if home is None:
            return
        home.closed = home.dropped = True
        if home.running:
            self._line.ghosts[queue] += home.running
        home.forget()

    def committable(self, queue: MessageQueue) -> QueueOffset | None:
        """The first unfinished offset; None for a queue that is not held."""
        home = self._queues.get(queue)
        return None if home is None else home.committable

    def next_offset(self, queue: MessageQueue) -> QueueOffset | None:
        """Where the next pull starts; None for a queue that is not held."""
        home = self._queues.get(queue)
        return None if home is None else home.next_offset

    def finished_ranges(self, queue: MessageQueue) -> FinishedRanges:
        """Finished offsets above the committable one, by this holding or known from former ones."""
        return self._home(queue).finished_ranges()

    def cached(self, queue: MessageQueue) -> Cached:
        return self._home(queue).cached()

    def snapshot(self) -> dict[MessageQueue, QueueView]:
        held: dict[MessageQueue, list[tuple[str | None, Millis]]] = {}
        for until, home, lane in self._line.timers():
            held.setdefault(home.queue, []).append((lane.key if lane else None, until))
        return {queue: home.view(tuple(held.get(queue, ()))) for queue, home in self._queues.items()}

    def view(self, queue: MessageQueue, key: str | None, *, now: Millis) -> LaneView | None:
        home = self._queues.get(queue)
        timers = ((until, lane) for until, at, lane in self._line.timers() if at is home)
        return None if home is None else view_lane(home, key, timers, now)

    def _running(self, run: LaneRun[M]) -> tuple[LaneQueue[M], Lane[M]]:
        home = run.gate
        if not run.running or not isinstance(home, LaneQueue):
            raise UsageError(f"turn {run.token} of {run.queue} has ended already: finish each turn once")
        return home, home.lane_of(run)

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
        home, lane = self._running(run)
        more = home.settle(lane, upto, commit=self._auto if commit is None else commit, gone=gone)
        until = self._next_place(home, lane, more, why, hold, now)
        return Finished(why, self._moved(home), (), until)

    def _next_place(
        self, home: LaneQueue[M], lane: Lane[M], more: bool, why: Why, hold: Again | None, now: Millis
    ) -> Millis | None:
        """Where a lane goes when its turn ended: parked, on a timer, back in line, or nowhere."""
        if lane.run is not None:
            lane.run.running, lane.run = False, None
        home.running -= 1
        if why is Why.PARKED:
            return None
        if hold is not None:
            return self._line.pause(home, lane, hold, now)
        if more:
            self._go_on(home, lane, now)
            self._line.enlist(home)
        return None

    def _go_on(self, home: LaneQueue[M], lane: Lane[M], now: Millis) -> None:
        """Back in line, or a short pause for a lane that had more than its share."""
        if lane.slice_end is not None and now > lane.slice_end:
            self._line.pause(home, lane, _SLICE_USED_UP, now)
        else:
            home.ready.append(lane)

    def _commit_or_roll_back(self, run: LaneRun[M], outcome: Outcome, done: int, now: Millis) -> Finished[M]:
        if outcome is COMMIT or self._auto:
            upto = min(done + self._options.batch_size, len(run.messages))
            why = Why.ILLEGAL if self._auto else Why.COMMITTED
            return self._end(run, upto, why, now=now, commit=True)
        home, lane = self._running(run)
        home.roll_back(lane)
        until = self._next_place(home, lane, True, Why.ROLLED_BACK, again(self._options.policy, 0), now)
        return Finished(Why.ROLLED_BACK, None, (), until)

    def _failed(self, run: LaneRun[M], done: int, outcome: Outcome, now: Millis, reason: str) -> Finished[M]:
        home, lane = self._running(run)
        batch = run.messages[done : done + self._options.batch_size]
        policy, failures = self._options.policy, home.failures
        asked, hopeless = outcome.delay if isinstance(outcome, Suspend) else None, outcome is HOPELESS
        steps = [after(policy, failures.get(m.queue_offset, 0), asked=asked, hopeless=hopeless) for m in batch]
        give = tuple(m for m, step in zip(batch, steps, strict=True) if isinstance(step, Give))
        if give:
            run.given = done, give
            return Finished(Why.GIVE, None, give)
        waits = [step for step in steps if isinstance(step, Again)]
        if len(waits) < len(batch):
            attempts = max(failures.get(m.queue_offset, 0) for m in batch) + 1
            parked = self._end(run, done, Why.PARKED, now=now)
            home.park(lane, Failure(reason, attempts), at_broker=self._park_at_broker)
            return parked
        self._count(home, batch)
        longest = max(waits, key=lambda step: step.delay)
        return self._end(run, done, Why.HELD, now=now, hold=longest)

    def _count(self, home: LaneQueue[M], failed: Sequence[M]) -> None:
        for message in failed:
            home.failures[message.queue_offset] = home.failures.get(message.queue_offset, 0) + 1

    def _moved(self, home: LaneQueue[M]) -> QueueOffset | None:
        committable = home.committable
        if committable == home.reported:
            return None
        home.reported = committable
        return committable

    def _ghost_ended(self, run: LaneRun[M]) -> Finished[M]:
        _, lane = self._running(run)
        run.running, lane.run = False, None
        if self._line.ghost_ended(run.queue) and run.queue in self._queues:
            self._line.enlist(self._queues[run.queue])
        return Finished(Why.QUEUE_GONE)

    def _home(self, queue: MessageQueue) -> LaneQueue[M]:
        home = self._queues.get(queue)
        if home is None:
            raise UsageError(f"{queue} is not held: add it first, or ask before dropping it")
        return home
