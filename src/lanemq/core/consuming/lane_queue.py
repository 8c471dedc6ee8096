"""One queue inside the lane scheduler: its lanes, and which of its messages are unfinished.

The order says what a lane is: the whole queue, the messages of a key, or, without order, every batch for itself.

Messages of different lanes finish out of offset order. The queue therefore remembers the unfinished offsets. The first
of them is the committable one, and everything else before the last message that arrived is finished.

Invariant: a lane is in exactly one place: in `ready`, running (`run` is set), on a timer, or set aside (`lanes_aside`).
In `ready`, and while it runs, a run may stand for a lane that has nothing else.
Every assignment of a queue gets a new object, so that nothing of a former one leaks into it.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from operator import attrgetter
from typing import Generic, NamedTuple

from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.lanes_aside import LanesAside, ParkedAtBroker
from lanemq.core.consuming.runs import (
    Lane,
    LaneOptions,
    LaneOrRun,
    LaneRun,
    M,
    Order,
    RunPermit,
    Why,
    cut_runs,
    end_runs,
    grow,
    lay_in_lanes,
)
from lanemq.core.consuming.unfinished import UnfinishedOffsets
from lanemq.core.consuming.views import Failing, LaneActivity, LaneView, QueueView
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

FOLD_AT = 1_024
"""Number of finished offsets above an unfinished one that are kept until they are forgotten together."""
REASON_CHARS = 500
"""Maximum length of an error text that is kept; some errors carry whole documents."""
_STILL_FAILING = (Why.HELD, Why.SEND_BACK, Why.ROLLED_BACK, Why.PARKED)
_offset_of = attrgetter("queue_offset")


class MemberProgress(NamedTuple):
    """How far a member is in a queue: the committable offset, and the finished ranges above it."""

    offset: QueueOffset
    finished: FinishedRanges = NOTHING_FINISHED


class LaneQueue(RunPermit, Generic[M]):
    """One assignment of one queue. `offered` is called when a lane that was set aside may run."""

    def __init__(
        self,
        queue: MessageQueue,
        start: QueueOffset,
        usable_until: Millis,
        options: LaneOptions,
        finished: FinishedRanges = NOTHING_FINISHED,
        parked: Iterable[ParkedAtBroker] = (),
        *,
        broker_parks: bool = False,
        keeps_newest: bool = False,
        offered: "Callable[[LaneQueue[M]], None]" = lambda _: None,
    ) -> None:
        super().__init__(usable_until)
        self.queue = queue
        self.order = order = options.order
        self._options = options
        self.running = 0
        self.ready: deque[LaneOrRun[M]] = deque()
        # Whether the queue is in the scheduler's ready line; it is there at most once.
        self.listed = False
        self.held_until = Millis(-(2**62))
        # Every lane with a waiting or running message, by key, or the run that stands for it. The lane of a whole queue
        # has no key; without order there are only runs.
        self._lanes: dict[str | None, LaneOrRun[M]] = {}
        # What former owners finished above the first unfinished offset, treated like messages that a filter left out.
        # A queue that is one lane has none.
        self._ranges = NOTHING_FINISHED if order is Order.QUEUE else finished
        self._next = self._ranges.past(start)
        # Behind the last message that arrived. What a filter left out before it is finished; behind it, nothing was
        # overtaken, and a next owner with more tags runs it.
        self._received = start
        self._unfinished = UnfinishedOffsets()
        self._keeps_newest = keeps_newest
        self.newest_finished: M | None = None
        """The finished message with the highest offset, if that is kept. A repeat that was left out is finished too."""
        # Manual commit: messages that ran, or were sent back to the broker, and are not committed.
        self._uncommitted: list[M] = []
        self._sent_back: list[M] = []
        # How often each unfinished message failed; empty unless something fails.
        self.failures: dict[int, int] = {}
        self._forget_failures_at = FOLD_AT
        # Lanes that failed and have not succeeded since. Lanes without a failure have no entry and cost nothing.
        self.failing: dict[str | None, Failing] = {}
        # Unfinished messages that run in a batch of their own, because a batch with them failed as a whole.
        self.alone: set[int] = set()
        self._offered = offered
        self.aside: LanesAside[M] = LanesAside(self, options, broker_parks=broker_parks)
        for each in parked if order is Order.KEY else ():
            lane = self._lanes[each.key] = Lane(each.key, [])
            self.aside.restore(lane, each)

    @property
    def next_offset(self) -> QueueOffset:
        """Where the next pull starts."""
        return self._next

    @property
    def committable(self) -> QueueOffset:
        """The first unfinished offset; everything below it is done or was filtered out."""
        first = self._unfinished.first
        return self._next if first is None else QueueOffset(first)

    def cached(self) -> Cached:
        return Cached(len(self._unfinished), self._unfinished.bytes, self._next - self.committable)

    def finished_ranges(self) -> FinishedRanges:
        """Finished offsets above the committable one, also of messages that a filter left out. A queue that is one lane
        has none."""
        if self.order is Order.QUEUE:
            return NOTHING_FINISHED
        first, end = self.committable, self._received
        later = self._ranges.above(max(first, end - 1))
        if first >= end or end - first == len(self._unfinished):
            return later
        return FinishedRanges.between(self._unfinished.offsets(), end).joined(later)

    def progress(self) -> MemberProgress:
        return MemberProgress(self.committable, self.finished_ranges())

    # from a pull to runs

    def put(self, messages: Sequence[M], next_offset: QueueOffset) -> None:
        """Adds the messages of a pull that ended at `next_offset`, which is later if a filter left out the rest."""
        if self._ranges.bounds:
            messages, next_offset = self._left_to_do(messages, next_offset)
        self._unfinished.add(messages)
        if messages:
            self._received = QueueOffset(messages[-1].queue_offset + 1)
        self._next = max(self._next, next_offset)
        if self.order is Order.NONE:
            self.ready.extend(cut_runs(messages, self._options.batch_size, self.queue, self))
        elif self.order is Order.QUEUE:
            self._put_in_line(messages)
        else:
            messages = self.aside.without_ended(messages)
            for lane in lay_in_lanes(self._lanes, self.ready, messages, self.queue, self):
                self.aside.arrived(lane)

    def _put_in_line(self, messages: Sequence[M]) -> None:
        lane = self.lane(None)
        if lane is not None:
            lane.pending.extend(messages)
        elif messages:
            lane = self._lanes[None] = Lane(None, list(messages))
            self.ready.append(lane)

    def take(self, lane: Lane[M], limit: int) -> list[M]:
        """Removes up to `limit` messages from the front of a lane."""
        pending = lane.pending
        if lane.redriven is not None:
            fetched = self.aside.to_run(lane)
            if fetched is not None:
                return fetched[: 1 if self.alone and fetched and fetched[0].queue_offset in self.alone else limit]
        if self.alone and pending and pending[0].queue_offset in self.alone:
            limit = 1
        if len(pending) <= limit:
            lane.pending = []
            return pending
        taken = pending[:limit]
        del pending[:limit]
        return taken

    def _left_to_do(self, messages: Sequence[M], next_offset: QueueOffset) -> tuple[Sequence[M], QueueOffset]:
        """Leaves out what former owners finished; finished ranges right behind the pull are not pulled at all."""
        ranges = self._ranges = self._ranges.above(self.committable)
        if messages and not (ranges and messages[0].queue_offset < ranges.bounds[-1]):
            return messages, ranges.past(next_offset)
        return [m for m in messages if m.queue_offset not in ranges], ranges.past(next_offset)

    def leave_out(self, repeats: Sequence[M]) -> None:
        """Counts messages above the last pull as finished, because they are repeats. A queue that is one lane has no
        finished ranges, so its next owner compares them again."""
        if self.order is Order.KEY:
            self._ranges = self._ranges.joined(FinishedRanges.of_offsets([each.queue_offset for each in repeats]))
        self._note_newest(repeats)

    # runs end

    def end_run(self, lane: Lane[M], upto: int, *, commit: bool, gone: Collection[int] = ()) -> bool:
        """Ends the lane's run: its first `upto` messages and those in `gone` are done, the rest returns to the lane.

        Those in `gone` are at the broker: they do not run again, whatever is rolled back. Returns whether the lane has
        more to run.
        """
        assert lane.run is not None
        messages, settled = lane.run.messages, lane.run.settled
        if lane.redriven is not None:
            return self._count_redriven(
                lane, [m for at, m in enumerate(messages) if at < upto or m.queue_offset in gone]
            )
        done: Sequence[M] = messages[settled:upto]
        if upto < len(messages):
            lane.pending[:0] = [m for m in messages[upto:] if m.queue_offset not in gone]
        if gone:
            self._sent_back += [m for m in messages if m.queue_offset in gone]
            done = [m for m in done if m.queue_offset not in gone]
        self._succeeded(done, commit=commit)
        if lane.pending:
            return True
        if self.order is not Order.NONE:
            del self._lanes[lane.key]
        return False

    def end_done_runs(self, runs: Sequence[LaneRun[M]], *, commit: bool) -> list[Lane[M]]:
        """Ends runs of this queue that succeeded; returns the lanes that have more to run.

        The offsets of redriven messages were passed long ago.
        """
        done, more, redriven = end_runs(runs, self._lanes if self.order is not Order.NONE else None)
        for run in redriven:
            assert run.lane is not None
            if self._count_redriven(run.lane, run.messages):
                more.append(run.lane)
        self.running -= len(runs)
        self._succeeded(done, commit=commit)
        return more

    def count_done(self, run: LaneRun[M], upto: int) -> None:
        """Counts the first `upto` messages of a run in progress as finished."""
        if not self._options.auto_commit:
            return
        if run.lane is not None and run.lane.redriven is not None:
            self._count_redriven(run.lane, run.messages[:upto])
        else:
            self.finish(run.messages[run.settled : upto])
        run.settled = upto

    def _count_redriven(self, lane: Lane[M], done: Sequence[M]) -> bool:
        """Counts messages that the broker gave back. Their offsets were passed long ago; only its list changes."""
        for message in done:
            self.failures.pop(message.queue_offset, None)
            self.alone.discard(message.queue_offset)
        return self.aside.finished(lane, done)

    def roll_back(self, lane: Lane[M]) -> None:
        """Returns everything that ran and is not committed to the lane of a whole queue."""
        assert lane.run is not None
        lane.pending[:0] = [*self._uncommitted, *lane.run.messages]
        self._uncommitted = []

    def _succeeded(self, done: Sequence[M], *, commit: bool) -> None:
        if not commit:
            self._uncommitted += done
            return
        if self._uncommitted or self._sent_back:
            done = [*self._sent_back, *self._uncommitted, *done]
            self._uncommitted, self._sent_back = [], []
        self.finish(done)

    def finish(self, done: Sequence[M]) -> None:
        """Counts messages as finished: they ran, or the broker has them."""
        self._unfinished.finish(done)
        self._note_newest(done)
        if len(self.failures) > self._forget_failures_at:
            self._forget_failures()
        if self.alone:
            self.alone.difference_update(map(_offset_of, done))
        if self._unfinished.finished_count > FOLD_AT:  # a key stuck for hours must not cost memory per message
            self._unfinished.forget_finished()

    def _note_newest(self, done: Sequence[M]) -> None:
        if self._keeps_newest and done:
            newest, known = max(done, key=_offset_of), self.newest_finished
            if known is None or newest.queue_offset > known.queue_offset:
                self.newest_finished = newest

    def _forget_failures(self) -> None:
        """Forgets the failures of messages that are finished. Doing so for every message would cost all lanes time."""
        ranges, first = self.finished_ranges(), self.committable
        aside = self.aside.first_offsets()
        self.failures = {
            offset: count
            for offset, count in self.failures.items()
            if offset in aside or (offset >= first and offset not in ranges)
        }
        self._forget_failures_at = FOLD_AT + 2 * len(self.failures)

    # failures

    def count_failures(self, messages: Iterable[M]) -> None:
        for message in messages:
            self.failures[message.queue_offset] = self.failures.get(message.queue_offset, 0) + 1

    def note_failing(self, run: LaneRun[M], why: Why, reason: str, now: Millis) -> None:
        """Remembers since when the lane of a run fails, and why, until it succeeds."""
        known = self.failing.get(run.key)
        if why in _STILL_FAILING:
            if reason or known is not None:
                since = now if known is None else known.since
                self.failing[run.key] = Failing(since, run.messages[0].queue_offset, reason[:REASON_CHARS])
        elif known is not None and why is not Why.STOPPED:
            del self.failing[run.key]

    # lanes

    def offer(self, lane: Lane[M]) -> None:
        """A lane that was set aside may run."""
        self.ready.append(lane)
        self._offered(self)

    def remove_lane(self, lane: Lane[M]) -> None:
        del self._lanes[lane.key]

    def lane(self, key: str | None) -> Lane[M] | None:
        """The lane of a key, if it has messages here."""
        place = self._lanes.get(None if self.order is Order.QUEUE else key)
        return self.lane_of(place) if isinstance(place, LaneRun) else place

    def lane_of(self, run: LaneRun[M]) -> Lane[M]:
        """The lane of a running run; made now if the run stood for it so far."""
        lane = run.lane
        if lane is None:
            lane = grow(run)
            if self.order is Order.KEY:
                self._lanes[run.key] = lane
        return lane

    def forget(self) -> None:
        """Frees the memory of a dropped queue."""
        self.ready.clear()
        self._lanes.clear()
        self.aside.forget()

    # views

    def view(self, held: tuple[tuple[str | None, Millis], ...]) -> QueueView:
        return QueueView(
            order=self.order,
            committable=self.committable,
            next_offset=self.next_offset,
            cached=self.cached(),
            running=self.running,
            usable_until=self.usable_until,
            draining=self.withdrawn,
            held=held,
            parked=self.aside.parked(),
            parked_here=self.aside.parked_here(),
        )

    def view_lane(
        self,
        key: str | None,
        timers: Iterable[tuple[Millis, Lane[M] | None]],
        now: Millis,
        began: Millis | None,
    ) -> LaneView:
        """What the lane of a key is doing; `timers` are those of this queue, `began` is when its run began."""
        lane, failing = self.lane(key), self.failing.get(None if self.order is Order.QUEUE else key)
        if lane is None:
            return LaneView(LaneActivity.EMPTY, self.order, self.committable, self.next_offset, failing=failing)
        messages = self._unfinished_in(lane)
        head = QueueOffset(messages[0].queue_offset) if messages else None
        until = min((when for when, held in timers if held is lane and when > now), default=None)
        state = self._lane_state(lane, until, now, empty=head is None)
        return LaneView(
            state=state,
            order=self.order,
            committable=self.committable,
            next_offset=self.next_offset,
            head=head,
            attempts=0 if head is None else self.failures.get(head) or self.aside.attempts(lane),
            until=self.held_until if state is LaneActivity.QUEUE_HELD else until,
            waiting=len(messages),
            began=began,
            failing=failing,
        )

    def _unfinished_in(self, lane: Lane[M]) -> list[M]:
        run = lane.run
        begun = run.messages[run.settled :] if run is not None else lane.redriven or ()
        return [*self._uncommitted, *begun, *lane.pending]

    def _lane_state(self, lane: Lane[M], until: Millis | None, now: Millis, *, empty: bool) -> LaneActivity:
        """The first reason that applies explains why the lane waits; a run in progress comes before all of them."""
        reasons = (
            (LaneActivity.RUNNING, lane.run is not None),
            (LaneActivity.PARKED, self.aside.is_parked(lane)),
            (LaneActivity.EMPTY, empty),
            (LaneActivity.LEAVING, self.withdrawn),
            (LaneActivity.UNLEASED, now >= self.usable_until),
            (LaneActivity.QUEUE_HELD, now < self.held_until),
            (LaneActivity.HELD, until is not None),
        )
        return next((state for state, applies in reasons if applies), LaneActivity.READY)
