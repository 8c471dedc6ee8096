"""One queue inside the lane scheduler: which lanes it has, and what of it is unfinished.

Two kinds behind one interface. `WholeQueue` is one lane over a `ProcessQueue`; `keyed_queue` has a lane per key, or
one per batch when there is no order to keep.

A lane is in exactly one place: in `ready`, running (`turn` is set), on a timer, or parked; with order by key the
parked ones are `parked_lanes`, and may wait there for the broker. In `ready`, and while it runs, a turn may stand for a
lane that has nothing else (`lane_turns`).
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Generic

from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.lane_turns import Place
from lanemq.core.consuming.parked_lanes import LocalParkedLanes
from lanemq.core.consuming.process_queue import ProcessQueue
from lanemq.core.consuming.runs import Gate, Lane, LaneRun, M, Order
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.core.parked_lane import Failure
from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset


@dataclass(frozen=True, slots=True)
class QueueView:
    """One queue as people see it."""

    order: Order
    committable: QueueOffset
    next_offset: QueueOffset
    cached: Cached
    running: int
    usable_until: Millis
    draining: bool
    held: tuple[tuple[str | None, Millis], ...]
    parked: tuple[str | None, ...]


class LaneQueue(Gate, ABC, Generic[M]):
    """What both kinds share."""

    def __init__(self, queue: MessageQueue, order: Order, usable_until: Millis) -> None:
        super().__init__(usable_until)
        self.queue = queue
        self.order = order
        self.dropped = False
        self.running = 0
        self.ready: deque[Place[M]] = deque()
        # Whether the scheduler has this queue in its own ready line; at most once.
        self.listed = False
        self.held_until = Millis(-(2**62))
        # Waiting for a person. With order by key they are in `parked_lanes` instead.
        self.parked: list[Lane[M]] = []
        self.parked_lanes: LocalParkedLanes[M] | None = None
        # How often each unfinished message failed; empty while all goes well.
        self.failures: dict[int, int] = {}
        # The last committable offset the shell was told.
        self.reported = QueueOffset(-1)

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
        """End the lane's turn: its first `upto` messages are done, those in `gone` too, the rest returns.

        Returns whether the lane has, or may have, more to run.
        """

    def settle_done(self, runs: Sequence[LaneRun[M]], *, commit: bool) -> list[Lane[M]]:
        """End turns that went well, all of this queue; the lanes that have, or may have, more to run."""
        lanes = [run.lane for run in runs if run.lane is not None]
        more = [
            lane for run, lane in zip(runs, lanes, strict=True) if self.settle(lane, len(run.messages), commit=commit)
        ]
        for run, lane in zip(runs, lanes, strict=True):
            run.running, lane.run = False, None
        self.running -= len(runs)
        return more

    def lane_of(self, run: LaneRun[M]) -> Lane[M]:
        """The lane of a running turn; made now, if the turn stood for it so far."""
        assert run.lane is not None
        return run.lane

    def roll_back(self, lane: Lane[M]) -> None:
        """Everything taken and not committed returns; a meaning it has only where a queue is one lane."""
        raise UsageError(f"queue {self.queue} is not committed by hand: roll back needs the order of a whole queue")

    @abstractmethod
    def cached(self) -> Cached: ...

    @abstractmethod
    def lane(self, key: str | None) -> Lane[M] | None:
        """The key's lane, if it has something here."""

    @abstractmethod
    def waiting_in(self, lane: Lane[M]) -> tuple[QueueOffset | None, int]:
        """The first unfinished offset of a lane, and how many messages of it are unfinished."""

    def is_parked(self, lane: Lane[M]) -> bool:
        return lane in self.parked or (self.parked_lanes is not None and lane.key in self.parked_lanes)

    def finished_ranges(self) -> FinishedRanges:
        """Finished offsets above the committable one."""
        return NOTHING_FINISHED

    def park(self, lane: Lane[M], failure: Failure, *, at_broker: bool) -> None:
        """The lane's retries are used up."""
        self.parked.append(lane)

    def resume(self, key: str | None) -> bool:
        """A person lets a parked lane go on; whether there was one."""
        lane = next((lane for lane in self.parked if lane.key == key), None)
        if lane is None:
            return False
        self.parked.remove(lane)
        self.reset_failures(lane)
        self.ready.append(lane)
        return True

    @abstractmethod
    def reset_failures(self, lane: Lane[M]) -> None:
        """Count the lane's failures from zero again."""

    def view(self, held: tuple[tuple[str | None, Millis], ...]) -> QueueView:
        return QueueView(
            order=self.order,
            committable=self.committable,
            next_offset=self.next_offset,
            cached=self.cached(),
            running=self.running,
            usable_until=self.usable_until,
            draining=self.closed,
            held=held,
            parked=(*(lane.key for lane in self.parked), *(self.parked_lanes or ())),
        )

    def forget(self) -> None:
        """Free the memory of a dropped queue."""
        self.ready.clear()
        self.parked.clear()
        if self.parked_lanes is not None:
            self.parked_lanes.forget()


class WholeQueue(LaneQueue[M]):
    """One lane, in offset order."""

    def __init__(self, queue: MessageQueue, start: QueueOffset, usable_until: Millis, *, auto: bool) -> None:
        super().__init__(queue, Order.QUEUE, usable_until)
        self._messages: ProcessQueue[M] = ProcessQueue(start)
        self._lane: Lane[M] = Lane(None, [])
        self._auto = auto
        # Handed to the broker already, but still in line because a neighbour of its batch was held.
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
            if self.failures or self._gone:
                self._forget_below(self._messages.committable)
        return True

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
