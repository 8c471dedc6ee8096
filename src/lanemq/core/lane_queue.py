"""One queue inside the lane scheduler: which lanes it has, and what of it is unfinished.

Two kinds behind one interface. `WholeQueue` is one lane over a `ProcessQueue`. `KeyedQueue` has a lane per
key, or one per batch when there is no order to keep; its messages finish out of offset order, so it
remembers the finished offsets above the first unfinished one (the gaps).

A lane is in exactly one place: in `ready`, running (`turn` is set), on a timer, or parked; with order by key the
parked ones are `shut_lanes`, and may wait there for the broker.
"""

from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Generic

from lanemq.core.flow_control import Cached
from lanemq.core.gap_map import NO_GAPS, GapMap
from lanemq.core.parked_lanes import Failure
from lanemq.core.process_queue import ProcessQueue
from lanemq.core.shut_lanes import KeptLane, ShutLanes
from lanemq.core.turns import Gate, Lane, M, Order
from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

_offset_of = attrgetter("queue_offset")
_size_of = attrgetter("size")

FOLD_AT = 1_024
"""Finished offsets above an unfinished one that are kept singly, before they become ranges."""


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
        self.ready: deque[Lane[M]] = deque()
        # Whether the scheduler has this queue in its own ready line; at most once.
        self.listed = False
        self.held_until = Millis(-(2**62))
        # Waiting for a person. With order by key they are in `shut` instead.
        self.parked: list[Lane[M]] = []
        self.shut: ShutLanes[M] | None = None
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
        return lane in self.parked or (self.shut is not None and lane.key in self.shut)

    def gaps(self) -> GapMap:
        """Finished offsets above the committable one."""
        return NO_GAPS

    def park(self, lane: Lane[M], failure: Failure, *, at_broker: bool) -> None:
        """The lane's retries are used up."""
        self.parked.append(lane)

    def resume(self, key: str | None) -> bool:
        """A person lets a parked lane go on; whether there was one."""
        lane = next((lane for lane in self.parked if lane.key == key), None)
        if lane is None:
            return False
        self.parked.remove(lane)
        self.forgive(lane)
        self.ready.append(lane)
        return True

    @abstractmethod
    def forgive(self, lane: Lane[M]) -> None:
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
            parked=(*(lane.key for lane in self.parked), *(self.shut or ())),
        )

    def forget(self) -> None:
        """Free the memory of a dropped queue."""
        self.ready.clear()
        self.parked.clear()
        if self.shut is not None:
            self.shut.forget()


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
        lane.busy_since = None
        return []

    def settle(self, lane: Lane[M], upto: int, *, commit: bool, gone: Collection[int] = ()) -> bool:
        assert lane.turn is not None
        messages = lane.turn.messages
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

    def forgive(self, lane: Lane[M]) -> None:
        self.failures.clear()

    def cached(self) -> Cached:
        return self._messages.cached()

    def forget(self) -> None:
        super().forget()
        self._messages.drop()

    def _forget_below(self, offset: int) -> None:
        self.failures = {at: count for at, count in self.failures.items() if at >= offset}
        self._gone = {at for at in self._gone if at >= offset}


class KeyedQueue(LaneQueue[M]):
    """A lane per key, or none at all: `chunk` messages at a time, each chunk its own lane."""

    def __init__(
        self,
        queue: MessageQueue,
        start: QueueOffset,
        usable_until: Millis,
        order: Order,
        chunk: int,
        done: GapMap = NO_GAPS,
        kept: Iterable[KeptLane] = (),
    ) -> None:
        super().__init__(queue, order, usable_until)
        self._chunk = chunk
        # What former owners finished above the first unfinished offset: treated as if a filter left it out. What
        # this one finished joins it by and by (`_fold`).
        self._done = done
        # Every lane with a message waiting or running, by key. Unused without order.
        self._lanes: dict[str | None, Lane[M]] = {}
        self._next = done.past(start)
        # Offsets from the first unfinished one on, ascending; and which of them are finished.
        self._offsets: deque[QueueOffset] = deque()
        self._finished: set[int] = set()
        self._bytes = 0
        if order is Order.KEY:
            self.shut = ShutLanes(self)
            for each in kept:
                lane = self._lanes[each.key] = Lane(each.key, [])
                self.shut.keep(lane, each)

    @property
    def next_offset(self) -> QueueOffset:
        return self._next

    @property
    def committable(self) -> QueueOffset:
        return self._offsets[0] if self._offsets else self._next

    def put(self, messages: Sequence[M], next_offset: QueueOffset) -> None:
        if self._done:
            messages, next_offset = self._left_to_do(messages, next_offset)
        self._offsets.extend(map(_offset_of, messages))
        self._bytes += sum(map(_size_of, messages))
        self._next = max(self._next, next_offset)
        if self.order is Order.NONE:
            step = self._chunk
            self.ready.extend(Lane(None, list(messages[i : i + step])) for i in range(0, len(messages), step))
            return
        if self.shut:
            messages = self._without_settled(self.shut, messages)
        lanes = self._lanes
        for message in messages:
            key = message.key
            lane = lanes.get(key)
            if lane is None:
                lane = lanes[key] = Lane(key, [message])
                self.ready.append(lane)
            else:
                lane.pending.append(message)
        if self.shut:
            self.shut.arrived({message.key for message in messages})

    def take(self, lane: Lane[M], limit: int) -> list[M]:
        if lane.redriven is not None:
            return [lane.redriven]
        taken = lane.pending[:limit]
        del lane.pending[:limit]
        return taken

    def settle(self, lane: Lane[M], upto: int, *, commit: bool, gone: Collection[int] = ()) -> bool:
        assert lane.turn is not None
        if lane.redriven is not None:
            return self._settle_redriven(lane, upto)
        messages = lane.turn.messages
        done: Sequence[M] = messages
        if upto < len(messages):
            done = [*messages[:upto], *(m for m in messages[upto:] if m.queue_offset in gone)]
            lane.pending[:0] = [m for m in messages[upto:] if m.queue_offset not in gone]
        self._finish(done)
        if lane.pending:
            return True
        if self.order is Order.KEY:
            del self._lanes[lane.key]
        return False

    def _settle_redriven(self, lane: Lane[M], upto: int) -> bool:
        """A parked message was passed long ago: what becomes of it concerns the broker's list, not the offsets."""
        assert lane.redriven is not None
        if not upto:
            return True
        self.failures.pop(lane.redriven.queue_offset, None)
        assert self.shut is not None
        self.shut.finished(lane)
        return False

    def park(self, lane: Lane[M], failure: Failure, *, at_broker: bool) -> None:
        if self.shut is None:
            super().park(lane, failure, at_broker=at_broker)
            return
        if lane.redriven is not None:
            self.failures.pop(lane.redriven.queue_offset, None)
        self.shut.shut(lane, failure, at_broker=at_broker)

    def resume(self, key: str | None) -> bool:
        return self.shut.resume(key) if self.shut is not None else super().resume(key)

    def lane(self, key: str | None) -> Lane[M] | None:
        return self._lanes.get(key)

    def waiting_in(self, lane: Lane[M]) -> tuple[QueueOffset | None, int]:
        messages = [*(lane.turn.messages if lane.turn is not None else ()), *lane.pending]
        return (QueueOffset(messages[0].queue_offset) if messages else None), len(messages)

    def set_aside(self, messages: Sequence[M]) -> None:
        self._finish(messages)

    def close_lane(self, lane: Lane[M]) -> None:
        del self._lanes[lane.key]

    def forgive(self, lane: Lane[M]) -> None:
        for message in lane.pending:
            self.failures.pop(message.queue_offset, None)

    def cached(self) -> Cached:
        count = len(self._offsets) - len(self._finished)
        return Cached(count, self._bytes, self._next - self.committable)

    def gaps(self) -> GapMap:
        if not self._finished and not self._done:
            return NO_GAPS
        return GapMap.of_offsets(sorted(self._finished)).joined(self._done.above(self.committable))

    def forget(self) -> None:
        super().forget()
        self._lanes.clear()

    def _without_settled(self, shut: ShutLanes[M], messages: Sequence[M]) -> Sequence[M]:
        """Those of parked lanes that are at the broker already become gaps, like everything that is finished: the
        next owner must leave them out together with what runs behind them."""
        settled = [message for message in messages if shut.settled(message)]
        if not settled:
            return messages
        self._finish(settled)
        return [message for message in messages if not shut.settled(message)]

    def _left_to_do(self, messages: Sequence[M], next_offset: QueueOffset) -> tuple[Sequence[M], QueueOffset]:
        """Without what former owners finished; ranges of it right behind the pull need not be pulled at all."""
        done = self._done = self._done.above(self.committable)
        if messages and not (done and messages[0].queue_offset < done.bounds[-1]):
            return messages, done.past(next_offset)
        return [m for m in messages if m.queue_offset not in done], done.past(next_offset)

    def _finish(self, done: Sequence[M]) -> None:
        finished, offsets = self._finished, self._offsets
        finished.update(map(_offset_of, done))
        self._bytes -= sum(map(_size_of, done))
        if self.failures:
            for message in done:
                self.failures.pop(message.queue_offset, None)
        while offsets and offsets[0] in finished:
            finished.remove(offsets.popleft())
        if len(finished) > FOLD_AT:
            self._fold()

    def _fold(self) -> None:
        """As ranges: a key that is stuck for hours must not cost memory for every message that passes it."""
        self._done = self.gaps()
        self._offsets = deque(offset for offset in self._offsets if offset not in self._finished)
        self._finished = set()
