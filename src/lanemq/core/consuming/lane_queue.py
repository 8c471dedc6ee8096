"""One queue inside the lane scheduler: which lanes it has, and which of its messages are unfinished.

There are two kinds behind one interface. `WholeQueue` is one lane over a `ProcessQueue`; `KeyedQueue` (`keyed_queue`)
has a lane per key, or a lane per batch when there is no order to keep.

Invariant: a lane is in exactly one place: in `ready`, running (`run` is set), on a timer, or parked. With order by key,
parked lanes are in `parked_lanes`. In `ready`, and while it runs, a run may stand for a lane that has nothing else.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from typing import Generic

from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.lanes_at_broker import LanesAtBroker
from lanemq.core.consuming.process_queue import ProcessQueue
from lanemq.core.consuming.runs import Lane, LaneOrRun, LaneRun, M, Order, RunPermit, Why
from lanemq.core.consuming.views import Failing, LaneActivity, LaneView, QueueView
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.lane_status import Failure
from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

REASON_CHARS = 500
"""Maximum length of an error text that is kept; some errors carry whole documents."""
_STILL_FAILING = (Why.HELD, Why.GIVE, Why.ROLLED_BACK, Why.PARKED)


class LaneQueue(RunPermit, ABC, Generic[M]):
    """What both kinds share."""

    def __init__(self, queue: MessageQueue, order: Order, usable_until: Millis) -> None:
        super().__init__(usable_until)
        self.queue = queue
        self.order = order
        self.running = 0
        self.ready: deque[LaneOrRun[M]] = deque()
        # Whether the queue is in the scheduler's ready line; it is there at most once.
        self.listed = False
        self.held_until = Millis(-(2**62))
        # Waiting for an operator. With order by key they are in `parked_lanes` instead.
        self.parked: list[Lane[M]] = []
        self.parked_lanes: LanesAtBroker[M] | None = None
        # How often each unfinished message failed; empty unless something fails.
        self.failures: dict[int, int] = {}
        # Unfinished messages that run in a batch of their own, because a batch with them failed as a whole.
        self.alone: set[int] = set()
        # Lanes that failed and have not succeeded since. Lanes without a failure have no entry and cost nothing.
        self.failing: dict[str | None, Failing] = {}

    @property
    @abstractmethod
    def next_offset(self) -> QueueOffset: ...

    @property
    @abstractmethod
    def committable(self) -> QueueOffset: ...

    @abstractmethod
    def put(self, messages: Sequence[M], next_offset: QueueOffset) -> None: ...

    @abstractmethod
    def take(self, lane: Lane[M], limit: int) -> list[M]: ...

    @abstractmethod
    def settle(self, lane: Lane[M], upto: int, *, commit: bool, gone: Collection[int] = ()) -> bool:
        """Ends the lane's run: its first `upto` messages and those in `gone` are done, the rest returns to the lane.

        Returns whether the lane has, or may have, more to run.
        """

    def settle_done(self, runs: Sequence[LaneRun[M]], *, commit: bool) -> list[Lane[M]]:
        """Ends runs of this queue that succeeded; returns the lanes that have, or may have, more to run."""
        lanes = [run.lane for run in runs if run.lane is not None]
        more = [
            lane for run, lane in zip(runs, lanes, strict=True) if self.settle(lane, len(run.messages), commit=commit)
        ]
        for run, lane in zip(runs, lanes, strict=True):
            run.running, lane.run = False, None
        self.running -= len(runs)
        return more

    @abstractmethod
    def settle_part(self, run: LaneRun[M], upto: int) -> None:
        """Counts the first `upto` messages of a run in progress as finished."""

    def lane_of(self, run: LaneRun[M]) -> Lane[M]:
        """The lane of a running run; made now if the run stood for it so far."""
        assert run.lane is not None
        return run.lane

    def roll_back(self, lane: Lane[M]) -> None:
        """Returns everything that was taken and not committed; only for queues that are one lane."""
        raise UsageError(f"queue {self.queue} is not committed by hand: roll back needs the order of a whole queue")

    @abstractmethod
    def cached(self) -> Cached: ...

    @abstractmethod
    def lane(self, key: str | None) -> Lane[M] | None:
        """The lane of a key, if it has messages here."""

    @abstractmethod
    def waiting_in(self, lane: Lane[M]) -> tuple[QueueOffset | None, int]:
        """The first unfinished offset of a lane, and the number of its unfinished messages."""

    def is_parked(self, lane: Lane[M]) -> bool:
        return lane in self.parked or (self.parked_lanes is not None and self.parked_lanes.is_parked(lane))

    def finished_ranges(self) -> FinishedRanges:
        """Finished offsets above the committable one."""
        return NOTHING_FINISHED

    def park(self, lane: Lane[M], failure: Failure, *, at_broker: bool) -> None:
        """Parks a lane whose retries are used up."""
        self.parked.append(lane)

    def hold(self, lane: Lane[M], failure: Failure) -> None:
        """A message of the lane failed, and the lane is on a timer now."""

    def paused(self, lane: Lane[M]) -> None:
        """The lane is put on a timer."""

    def timer_fired(self, lane: Lane[M]) -> bool:
        """The time of a lane on a timer has come; returns whether it can run now."""
        self.ready.append(lane)
        return True

    def resume(self, key: str | None) -> bool:
        """Lets a parked lane go on; returns whether there was one."""
        lane = next((lane for lane in self.parked if lane.key == key), None)
        if lane is None:
            return False
        self.parked.remove(lane)
        self.reset_failures(lane)
        self.ready.append(lane)
        return True

    @abstractmethod
    def reset_failures(self, lane: Lane[M]) -> None:
        """Counts the lane's failures from zero again."""

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

    def forget(self) -> None:
        """Frees the memory of a dropped queue."""
        self.ready.clear()
        self.parked.clear()
        if self.parked_lanes is not None:
            self.parked_lanes.forget()

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
            parked=(*(lane.key for lane in self.parked), *(self.parked_lanes or ())),
            parked_here=(
                *(lane.key for lane in self.parked),
                *(self.parked_lanes.not_at_broker() if self.parked_lanes is not None else ()),
            ),
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
        head, waiting = self.waiting_in(lane)
        until = min((when for when, held in timers if held is lane and when > now), default=None)
        state = self._lane_state(lane, until, now, empty=head is None)
        return LaneView(
            state=state,
            order=self.order,
            committable=self.committable,
            next_offset=self.next_offset,
            head=head,
            attempts=0 if head is None else self.failures.get(head, 0),
            until=self.held_until if state is LaneActivity.QUEUE_HELD else until,
            waiting=waiting,
            began=began,
            failing=failing,
        )

    def _lane_state(self, lane: Lane[M], until: Millis | None, now: Millis, *, empty: bool) -> LaneActivity:
        """The first reason that applies explains why the lane waits; a run in progress comes before all of them."""
        reasons = (
            (LaneActivity.RUNNING, lane.run is not None),
            (LaneActivity.PARKED, self.is_parked(lane)),
            (LaneActivity.EMPTY, empty),
            (LaneActivity.LEAVING, self.withdrawn),
            (LaneActivity.UNLEASED, now >= self.usable_until),
            (LaneActivity.QUEUE_HELD, now < self.held_until),
            (LaneActivity.HELD, until is not None),
        )
        return next((state for state, applies in reasons if applies), LaneActivity.READY)


class WholeQueue(LaneQueue[M]):
    """One lane, in offset order."""

    def __init__(self, queue: MessageQueue, start: QueueOffset, usable_until: Millis, *, auto: bool) -> None:
        super().__init__(queue, Order.QUEUE, usable_until)
        self._messages: ProcessQueue[M] = ProcessQueue(start)
        self._lane: Lane[M] = Lane(None, [])
        self._auto = auto
        # Handed to the broker, but still in line because another message of the batch is held.
        self._gone: set[int] = set()

    @property
    def next_offset(self) -> QueueOffset:
        return self._messages.next_offset

    @property
    def committable(self) -> QueueOffset:
        return self._messages.committable

    def put(self, messages: Sequence[M], next_offset: QueueOffset) -> None:
        if self._messages.put(messages, next_offset):
            self.ready.append(self._lane)

    def take(self, lane: Lane[M], limit: int) -> list[M]:
        if self.alone and self._messages.first_ready in self.alone:
            limit = 1
        while taken := self._messages.take(limit):
            if not self._gone:
                return taken
            visible = [message for message in taken if message.queue_offset not in self._gone]
            if visible:
                return visible
            if self._auto:
                self._messages.commit()
        lane.slice_end = None
        return []

    def settle(self, lane: Lane[M], upto: int, *, commit: bool, gone: Collection[int] = ()) -> bool:
        assert lane.run is not None
        messages = lane.run.messages
        self._gone.update(gone)
        if upto < len(messages):
            self._messages.put_back_from(messages[upto].queue_offset)
        if commit:
            self._messages.commit()
            if self.failures or self._gone or self.alone:
                self._forget_below(self._messages.committable)
        return True

    def settle_part(self, run: LaneRun[M], upto: int) -> None:
        if self._auto:
            self._messages.commit(below=run.messages[upto].queue_offset)
            run.settled = upto

    def lane(self, key: str | None) -> Lane[M] | None:
        return self._lane

    def waiting_in(self, lane: Lane[M]) -> tuple[QueueOffset | None, int]:
        count = self._messages.cached().count
        return (self._messages.committable if count else None), count

    def roll_back(self, lane: Lane[M]) -> None:
        self._messages.roll_back()

    def reset_failures(self, lane: Lane[M]) -> None:
        self.failures.clear()

    def cached(self) -> Cached:
        return self._messages.cached()

    def forget(self) -> None:
        super().forget()
        self._messages.drop()

    def _forget_below(self, offset: int) -> None:
        self.failures = {at: count for at, count in self.failures.items() if at >= offset}
        self._gone = {at for at in self._gone if at >= offset}
        self.alone = {at for at in self.alone if at >= offset}
