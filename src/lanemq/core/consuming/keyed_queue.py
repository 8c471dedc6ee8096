"""A queue with a lane per key, inside the lane scheduler. Without order, every batch is a lane of its own.

Messages finish out of offset order. The queue therefore remembers the finished offsets above the first unfinished one:
one by one while they are few, as ranges beyond that. The committable offset is the first unfinished one.
"""

from collections import deque
from collections.abc import Collection, Iterable, Sequence
from operator import attrgetter

from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.lane_queue import LaneQueue
from lanemq.core.consuming.parked_lanes import LocalParkedLanes, ParkedAtBroker
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
    pass_finished,
)
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.parked_lane import Failure
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

_offset_of = attrgetter("queue_offset")
_size_of = attrgetter("size")

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
    ) -> None:
        super().__init__(queue, order, usable_until)
        self._chunk = chunk
        # What former owners finished above the first unfinished offset, treated like messages that a filter left out.
        # `_fold` adds what this owner finished.
        self._ranges = finished
        # Every lane with a waiting or running message, by key, or the run that stands for it. Unused without order.
        self._lanes: dict[str | None, LaneOrRun[M]] = {}
        self._next = finished.past(start)
        # All offsets from the first unfinished one on, ascending, and which of them are finished.
        self._offsets: deque[QueueOffset] = deque()
        self._finished: set[int] = set()
        self._bytes = 0
        if order is Order.KEY:
            self.parked_lanes = LocalParkedLanes(self)
            for each in parked:
                lane = self._lanes[each.key] = Lane(each.key, [])
                self.parked_lanes.restore(lane, each)

    @property
    def next_offset(self) -> QueueOffset:
        return self._next

    @property
    def committable(self) -> QueueOffset:
        return self._offsets[0] if self._offsets else self._next

    def put(self, messages: Sequence[M], next_offset: QueueOffset) -> None:
        if self._ranges:
            messages, next_offset = self._left_to_do(messages, next_offset)
        self._offsets.extend(map(_offset_of, messages))
        self._bytes += sum(map(_size_of, messages))
        self._next = max(self._next, next_offset)
        if self.order is Order.NONE:
            self.ready.extend(cut_runs(messages, self._chunk, self.queue, self))
            return
        if self.parked_lanes:
            messages = self._without_settled(self.parked_lanes, messages)
        lay_in_lanes(self._lanes, self.ready, messages, self.queue, self)
        if self.parked_lanes:
            self.parked_lanes.arrived({message.key for message in messages})

    def take(self, lane: Lane[M], limit: int) -> list[M]:
        if lane.redriven is not None:
            return [lane.redriven]
        pending = lane.pending
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
        if lane.redriven is not None:
            return self._settle_redriven(lane, upto)
        messages, settled = lane.run.messages, lane.run.settled
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
        for lane in redriven:
            self._settle_redriven(lane, 1)
        self.running -= len(runs)
        self._finish(done)
        return more

    def settle_part(self, run: LaneRun[M], upto: int) -> None:
        self._finish(run.messages[run.settled : upto])
        run.settled = upto

    def _settle_redriven(self, lane: Lane[M], upto: int) -> bool:
        """Ends the run of a redriven message. Its offset was passed long ago: only the broker's list changes."""
        assert lane.redriven is not None
        if not upto:
            return True
        self.failures.pop(lane.redriven.queue_offset, None)
        assert self.parked_lanes is not None
        self.parked_lanes.finished(lane)
        return False

    def park(self, lane: Lane[M], failure: Failure, *, at_broker: bool) -> None:
        if self.parked_lanes is None:
            super().park(lane, failure, at_broker=at_broker)
            return
        if lane.redriven is not None:
            self.failures.pop(lane.redriven.queue_offset, None)
        self.parked_lanes.park(lane, failure, at_broker=at_broker)

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
        messages = [*(run.messages[run.settled :] if run is not None else ()), *lane.pending]
        return (QueueOffset(messages[0].queue_offset) if messages else None), len(messages)

    def count_finished(self, messages: Sequence[M]) -> None:
        self._finish(messages)

    def remove_lane(self, lane: Lane[M]) -> None:
        del self._lanes[lane.key]

    def reset_failures(self, lane: Lane[M]) -> None:
        for message in lane.pending:
            self.failures.pop(message.queue_offset, None)

    def cached(self) -> Cached:
        count = len(self._offsets) - len(self._finished)
        return Cached(count, self._bytes, self._next - self.committable)

    def finished_ranges(self) -> FinishedRanges:
        if not self._finished and not self._ranges:
            return NOTHING_FINISHED
        return FinishedRanges.of_offsets(sorted(self._finished)).joined(self._ranges.above(self.committable))

    def forget(self) -> None:
        super().forget()
        self._lanes.clear()

    def _without_settled(self, parked_lanes: LocalParkedLanes[M], messages: Sequence[M]) -> Sequence[M]:
        """Adds messages of parked lanes that the broker already has to the finished ranges.

        The next owner must leave them out together with what runs behind them.
        """
        settled = [message for message in messages if parked_lanes.settled(message)]
        if not settled:
            return messages
        self._finish(settled)
        return [message for message in messages if not parked_lanes.settled(message)]

    def _left_to_do(self, messages: Sequence[M], next_offset: QueueOffset) -> tuple[Sequence[M], QueueOffset]:
        """Leaves out what former owners finished; finished ranges right behind the pull are not pulled at all."""
        ranges = self._ranges = self._ranges.above(self.committable)
        if messages and not (ranges and messages[0].queue_offset < ranges.bounds[-1]):
            return messages, ranges.past(next_offset)
        return [m for m in messages if m.queue_offset not in ranges], ranges.past(next_offset)

    def _finish(self, done: Sequence[M]) -> None:
        self._bytes -= pass_finished(self._offsets, self._finished, done)
        if self.failures:
            for message in done:
                self.failures.pop(message.queue_offset, None)
        if self.alone:
            self.alone.difference_update(map(_offset_of, done))
        if len(self._finished) > FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        """Turns finished offsets into ranges, so that a key stuck for hours does not cost memory per message."""
        self._ranges = self.finished_ranges()
        self._offsets = deque(offset for offset in self._offsets if offset not in self._finished)
        self._finished = set()
