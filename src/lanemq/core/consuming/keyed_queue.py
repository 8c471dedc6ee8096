"""A queue with a lane per key, inside the lane scheduler. Without order, every batch is a lane of its own.

Messages finish out of offset order. The queue therefore remembers the finished offsets above the first unfinished one:
one by one while they are few, as ranges beyond that. The committable offset is the first unfinished one.
"""

from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.lane_queue import LaneQueue
from lanemq.core.consuming.lanes_at_broker import LanesAtBroker, ParkedAtBroker
from lanemq.core.consuming.retry_policy import KEPT_MESSAGES
from lanemq.core.consuming.runs import (
    Lane,
    LaneOrRun,
    LaneRun,
    M,
    Order,
    cut_runs,
    end_runs,
    grow,
    lay_in_lanes,
)
from lanemq.core.consuming.unfinished import UnfinishedOffsets
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

_offset_of = attrgetter("queue_offset")

FOLD_AT = 1_024
"""Number of finished offsets above an unfinished one that are kept one by one, before they become ranges."""


class KeyedQueue(LaneQueue[M]):
    """A lane per key; without order, a lane per `chunk` messages."""

    def __init__(
        self,
        queue: MessageQueue,
        start: QueueOffset,
        usable_until: Millis,
        order: Order,
        chunk: int,
        finished: FinishedRanges = NOTHING_FINISHED,
        parked: Iterable[ParkedAtBroker] = (),
        *,
        sets_aside: bool = False,
        keep: int = KEPT_MESSAGES,
    ) -> None:
        super().__init__(queue, order, usable_until)
        self._chunk = chunk
        self.sets_aside = sets_aside and order is Order.KEY
        """Whether a held lane with more than `keep` messages is set aside at the broker."""
        # Held lanes that may be set aside, and why each is held.
        self._held: dict[str | None, tuple[Lane[M], Failure]] = {}
        # What former owners finished above the first unfinished offset, treated like messages that a filter left out.
        # `_fold` adds what this owner finished.
        self._ranges = finished
        # Every lane with a waiting or running message, by key, or the run that stands for it. Unused without order.
        self._lanes: dict[str | None, LaneOrRun[M]] = {}
        # Lanes of former owners that ended here, and up to which offset they are done, as long as pulls may bring such
        # messages: a former owner may have parked them without committing past them.
        self._ended: dict[str | None, int] = {}
        self._next = finished.past(start)
        self._unfinished = UnfinishedOffsets()
        self._forget_failures_at = FOLD_AT
        if order is Order.KEY:
            self.parked_lanes = LanesAtBroker(self, keep)
            for each in parked:
                lane = self._lanes[each.key] = Lane(each.key, [])
                self.parked_lanes.restore(lane, each)
                if each.status is LaneStatus.HELD:
                    self.failures[each.first] = each.attempts

    @property
    def next_offset(self) -> QueueOffset:
        return self._next

    @property
    def committable(self) -> QueueOffset:
        first = self._unfinished.first
        return self._next if first is None else QueueOffset(first)

    def put(self, messages: Sequence[M], next_offset: QueueOffset) -> None:
        if self._ranges.bounds:
            messages, next_offset = self._left_to_do(messages, next_offset)
        self._unfinished.add(messages)
        self._next = max(self._next, next_offset)
        if self.order is Order.NONE:
            self.ready.extend(cut_runs(messages, self._chunk, self.queue, self))
            return
        if self._ended:
            messages = self._without_ended(messages)
        for lane in lay_in_lanes(self._lanes, self.ready, messages, self.queue, self):
            self._arrived(lane)

    def take(self, lane: Lane[M], limit: int) -> list[M]:
        pending = lane.pending
        if lane.redriven is not None:
            assert self.parked_lanes is not None
            given = self.parked_lanes.to_run(lane)
            if given is not None:
                return given[: 1 if self.alone and given and given[0].queue_offset in self.alone else limit]
        if self.alone and pending and pending[0].queue_offset in self.alone:
            limit = 1
        if len(pending) <= limit:
            lane.pending = []
            return pending
        taken = pending[:limit]
        del pending[:limit]
        return taken

    def settle(self, lane: Lane[M], upto: int, *, commit: bool, gone: Collection[int] = ()) -> bool:
        assert lane.run is not None
        messages, settled = lane.run.messages, lane.run.settled
        if lane.redriven is not None:
            return self._settle_redriven(
                lane, [m for at, m in enumerate(messages) if at < upto or m.queue_offset in gone]
            )
        done: Sequence[M] = messages[settled:]
        if upto < len(messages):
            done = [*messages[settled:upto], *(m for m in messages[upto:] if m.queue_offset in gone)]
            lane.pending[:0] = [m for m in messages[upto:] if m.queue_offset not in gone]
        self._finish(done)
        if lane.pending:
            return True
        if self.order is Order.KEY:
            del self._lanes[lane.key]
        return False

    def settle_done(self, runs: Sequence[LaneRun[M]], *, commit: bool) -> list[Lane[M]]:
        """Finishes all their messages at once, except redriven ones, whose offsets were passed long ago."""
        done, more, redriven = end_runs(runs, self._lanes if self.order is Order.KEY else None)
        for run in redriven:
            assert run.lane is not None
            if self._settle_redriven(run.lane, run.messages):
                more.append(run.lane)
        self.running -= len(runs)
        self._finish(done)
        return more

    def settle_part(self, run: LaneRun[M], upto: int) -> None:
        if run.lane is not None and run.lane.redriven is not None:
            self._settle_redriven(run.lane, run.messages[:upto])
        else:
            self._finish(run.messages[run.settled : upto])
        run.settled = upto

    def _settle_redriven(self, lane: Lane[M], done: Sequence[M]) -> bool:
        """Counts messages that the broker gave back. Their offsets were passed long ago; only its list changes."""
        assert self.parked_lanes is not None
        for message in done:
            self.failures.pop(message.queue_offset, None)
            self.alone.discard(message.queue_offset)
        return self.parked_lanes.finished(lane, done)

    def park(self, lane: Lane[M], failure: Failure, *, at_broker: bool) -> None:
        if self.parked_lanes is None:
            super().park(lane, failure, at_broker=at_broker)
            return
        for message in (lane.redriven or lane.pending)[: self._chunk]:
            self.failures.pop(message.queue_offset, None)  # a redrive has all retries again
        self.parked_lanes.park(lane, failure, at_broker=at_broker)

    # held lanes

    def hold(self, lane: Lane[M], failure: Failure) -> None:
        if self.parked_lanes is not None and lane in self.parked_lanes:
            self.parked_lanes.hold(lane, failure, self._chunk)
        elif self.sets_aside:
            self._held[lane.key] = lane, failure
            lane.watched = True
            self._set_aside_if_long(lane)

    def paused(self, lane: Lane[M]) -> None:
        if self.parked_lanes is not None and lane in self.parked_lanes:
            self.parked_lanes.paused(lane)

    def timer_fired(self, lane: Lane[M]) -> bool:
        if self.parked_lanes is not None and lane in self.parked_lanes:
            return self.parked_lanes.timer_fired(lane)
        if self._held and self._held.get(lane.key, (None,))[0] is lane:
            del self._held[lane.key]
            lane.watched = False
        return super().timer_fired(lane)

    def _set_aside_if_long(self, lane: Lane[M]) -> None:
        assert self.parked_lanes is not None
        if self.parked_lanes.is_long(lane):
            self.parked_lanes.set_aside(*self._held.pop(lane.key))

    def _arrived(self, lane: Lane[M]) -> None:
        """A pull brought messages of a lane that is held or set aside.

        What the broker has of them joins the finished ranges: the next owner must leave it out together with what runs
        behind it.
        """
        assert self.parked_lanes is not None
        if lane not in self.parked_lanes:
            self._set_aside_if_long(lane)
            return
        self._finish(self.parked_lanes.take_settled(lane))
        self.parked_lanes.arrived(lane)

    def lane_ended(self, key: str | None, through: int) -> None:
        if through >= self._next:
            self._ended[key] = through

    def _without_ended(self, messages: Sequence[M]) -> Sequence[M]:
        """Finishes the messages of ended lanes, and returns the others."""
        ended = self._ended
        settled = [message for message in messages if message.queue_offset <= ended.get(message.key, -1)]
        self._ended = {key: through for key, through in ended.items() if through >= self._next}
        if not settled:
            return messages
        self._finish(settled)
        return [message for message in messages if message.queue_offset > ended.get(message.key, -1)]

    def resume(self, key: str | None) -> bool:
        return self.parked_lanes.resume(key) if self.parked_lanes is not None else super().resume(key)

    def lane(self, key: str | None) -> Lane[M] | None:
        place = self._lanes.get(key)
        return self.lane_of(place) if isinstance(place, LaneRun) else place

    def lane_of(self, run: LaneRun[M]) -> Lane[M]:
        lane = run.lane
        if lane is None:
            lane = grow(run)
            if self.order is Order.KEY:
                self._lanes[run.key] = lane
        return lane

    def waiting_in(self, lane: Lane[M]) -> tuple[QueueOffset | None, int]:
        run = lane.run
        messages = [*(run.messages[run.settled :] if run is not None else lane.redriven or ()), *lane.pending]
        return (QueueOffset(messages[0].queue_offset) if messages else None), len(messages)

    def count_finished(self, messages: Sequence[M]) -> None:
        self._finish(messages)

    def remove_lane(self, lane: Lane[M]) -> None:
        del self._lanes[lane.key]

    def reset_failures(self, lane: Lane[M]) -> None:
        for message in lane.pending:
            self.failures.pop(message.queue_offset, None)

    def cached(self) -> Cached:
        return Cached(len(self._unfinished), self._unfinished.bytes, self._next - self.committable)

    def finished_ranges(self) -> FinishedRanges:
        if not self._unfinished.finished_count and not self._ranges:
            return NOTHING_FINISHED
        return FinishedRanges.of_offsets(self._unfinished.finished()).joined(self._ranges.above(self.committable))

    def forget(self) -> None:
        super().forget()
        self._lanes.clear()
        self._held.clear()
        self._ended.clear()

    def _left_to_do(self, messages: Sequence[M], next_offset: QueueOffset) -> tuple[Sequence[M], QueueOffset]:
        """Leaves out what former owners finished; finished ranges right behind the pull are not pulled at all."""
        ranges = self._ranges = self._ranges.above(self.committable)
        if messages and not (ranges and messages[0].queue_offset < ranges.bounds[-1]):
            return messages, ranges.past(next_offset)
        return [m for m in messages if m.queue_offset not in ranges], ranges.past(next_offset)

    def _finish(self, done: Sequence[M]) -> None:
        self._unfinished.finish(done)
        if len(self.failures) > self._forget_failures_at:
            self._forget_failures()
        if self.alone:
            self.alone.difference_update(map(_offset_of, done))
        if self._unfinished.finished_count > FOLD_AT:
            self._fold()

    def _forget_failures(self) -> None:
        """Forgets the failures of messages that are finished. Doing so for every message would cost all lanes time."""
        ranges, first = self.finished_ranges(), self.committable
        aside = self.parked_lanes.first_offsets() if self.parked_lanes is not None else frozenset()
        self.failures = {
            offset: count
            for offset, count in self.failures.items()
            if offset in aside or (offset >= first and offset not in ranges)
        }
        self._forget_failures_at = FOLD_AT + 2 * len(self.failures)

    def _fold(self) -> None:
        """Turns finished offsets into ranges, so that a key stuck for hours does not cost memory per message."""
        self._ranges = self.finished_ranges()
        self._unfinished.forget_finished()
