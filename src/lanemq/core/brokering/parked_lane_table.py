"""Parked lanes: which messages the broker has set aside, and what each lane waits for.

A lane whose message failed for good is parked with everything behind it, so that the queue's commit can pass. A held
lane with many messages behind the failed one is set aside in the same way; its owner goes on with it by itself.

Invariants:

1. The messages of a lane are kept, in offset order, until a handler has finished them or an operator has discarded
   them. They leave in offset order.
2. Parking is idempotent: every message of the key up to the last offset ever parked in the lane (`through`) is settled.
   It is in the lane, has left it, or was finished before the lane failed, because a key's messages finish in order. So
   a lost answer, or a message that is pulled again because its commit was lost, changes nothing.
3. A lane exists as long as it holds a message. When the last one leaves, its key is an ordinary one again.

The queue's owner learns of an operator's changes (`redrive`, `discard`) by a serial number that comes with its lease.

This table holds offsets only; the records are in the log. Every decision is made here at once, without the disk, so
that every later request sees it.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from lanemq.core.brokering.lane_offsets import CHUNK, ChunkRow, LaneOffsets
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.model.units import Millis


class LaneName(NamedTuple):
    """The name of a lane. Messages without a key share one, whose key is None."""

    group: str
    topic: str
    queue_id: int
    key: str | None

    @property
    def place(self) -> "PlaceName":
        return self[:3]


PlaceName: TypeAlias = tuple[str, str, int]
"""Group, topic, queue id."""


@dataclass(slots=True)
class ParkedLane:
    """One lane that is set aside. Only the table changes it."""

    name: LaneName
    failure: Failure
    since: Millis
    """Wall time of the newest failure."""
    status: LaneStatus = LaneStatus.PARKED
    offsets: LaneOffsets = field(default_factory=LaneOffsets)
    through: int = -1
    """The last offset ever parked in the lane: pulled messages up to it must not run."""
    copied: int = -1
    """Up to this offset, records were copied out of the log since the start of the broker."""
    weight: int = 0
    """What the table has counted for it."""

    @property
    def first(self) -> int:
        return self.offsets.first


LANE_BYTES = 1_500
"""Memory of a lane beside its texts and offsets, as measured."""


def weight_of(key: str | None, reason: str, offsets: int) -> int:
    """About how many bytes of memory a lane takes; offsets of full chunks take two or three bytes each."""
    return LANE_BYTES + 4 * (len(key or "") + len(reason)) + 40 * min(offsets, CHUNK) + 3 * max(0, offsets - CHUNK)


class Parked(NamedTuple):
    """The result of a request to park."""

    settled: int
    """The number of offsets, counted from the first, that the consumer is done with."""
    fresh: tuple[int, ...]
    """Those of them that must be saved now."""
    lane: ParkedLane | None
    """The lane after the request; None if it does not exist, because it was emptied or nothing was parked."""
    rows: tuple[ChunkRow, ...] = ()
    """What `fresh` changed of the lane's offsets, as stored."""


class ParkedLaneTable:
    """All parked lanes of one broker."""

    def __init__(self, *, serial: int) -> None:
        """`serial` must be above all serials of earlier starts; wall time is."""
        self._serial = serial
        self._places: dict[PlaceName, dict[str | None, ParkedLane]] = {}
        self._serials: dict[PlaceName, int] = {}
        self._weights: dict[str, int] = {}
        """Group → the weight of its lanes; no zeros."""
        self._noted: dict[PlaceName, int] | None = None

    # requests of the queue's owner

    def park(
        self,
        name: LaneName,
        offsets: Sequence[int],
        failure: Failure | None,
        *,
        now: Millis,
        again: int | None = None,
        held: bool = False,
    ) -> Parked:
        """Park messages, ascending. `failure` starts a lane or ends its redrive; `held`: it has retries left.

        Without a failure, the messages follow a lane that the owner believes to be parked. If it is not, nothing is
        parked, and the result says so. The same holds for the failure of a message of the lane (its offset is `again`)
        that an operator discarded while it ran; everything before it has been finished. A repeated request, whose
        first answer was lost, does not undo what an operator did in between.
        """
        lane = self.get(name)
        if again is not None:
            if lane is None or again not in lane.offsets:
                failure = None
            self.finished(name, again - 1)
            lane = self.get(name)
        elif lane is not None and offsets and offsets[0] <= lane.through:
            failure = None
        if lane is None and (failure is None or not offsets):
            return Parked(0, (), None)
        if lane is None:
            assert failure is not None
            lane = self._places.setdefault(name.place, {})[name.key] = ParkedLane(name, failure, now)
            self._serials.setdefault(name.place, self._serial)
        if failure is not None:
            lane.failure, lane.since = failure, now
            lane.status = LaneStatus.HELD if held else LaneStatus.PARKED
        fresh = tuple(offset for offset in offsets if offset > lane.through)
        rows: Sequence[ChunkRow] = ()
        if fresh:
            rows = lane.offsets.extend(fresh)
            lane.through = fresh[-1]
            if self._noted is not None:
                self._noted[name.place] = min(fresh[0], self._noted.get(name.place, fresh[0]))
        self._weigh(lane)
        return Parked(len(offsets), fresh, lane, tuple(rows))

    @contextmanager
    def noting(self) -> Iterator[dict[PlaceName, int]]:
        """The first offset that is parked in each queue until the end of the block; one block at a time."""
        assert self._noted is None, "parked messages are noted already"
        self._noted = {}
        try:
            yield self._noted
        finally:
            self._noted = None

    def finished(self, name: LaneName, through: int) -> bool:
        """Remove the messages up to an offset, which a handler has finished; False if the lane had none of them.

        If one of them had failed before, the lane goes on like a redriven one.
        """
        lane = self.get(name)
        if lane is None or not lane.offsets.drop_through(through):
            return False
        if lane.status is LaneStatus.HELD:
            lane.status = LaneStatus.REDRIVING
        self._close_if_empty(lane)
        self._weigh(lane)
        return True

    def serial(self, place: PlaceName) -> int:
        """A number that changes with every change by an operator; 0 if nothing was ever parked in the queue."""
        return self._serials.get(place, 0)

    # requests of operators

    def redrive(self, name: LaneName) -> bool:
        """Let the owner run the lane again; False if it does already."""
        lane = self.get(name)
        if lane is None or lane.status.runs:
            return False
        lane.status = LaneStatus.REDRIVING
        self._changed(name.place)
        return True

    def discard(self, name: LaneName, through: int) -> int:
        """Remove the lane's messages up to and including an offset, so that messages the operator has not seen stay.

        The message that failed is among them. The rest was not tried yet: 0 attempts, and the reason says so. Returns
        the number of messages removed.
        """
        lane = self.get(name)
        if lane is None:
            return 0
        first = lane.first
        removed = lane.offsets.drop_through(through)
        if removed:
            if lane.failure.attempts and lane.status is not LaneStatus.REDRIVING:
                lane.failure = Failure(f"offset {first} (discarded since): {lane.failure.reason}", 0)
            if lane.status is LaneStatus.HELD:
                lane.status = LaneStatus.REDRIVING
            self._close_if_empty(lane)
            self._weigh(lane)
            self._changed(name.place)
        return removed

    # queries

    def weight(self, group: str) -> int:
        """About how many bytes of memory the lanes of a group take."""
        return self._weights.get(group, 0)

    def get(self, name: LaneName) -> ParkedLane | None:
        return self._places.get(name.place, {}).get(name.key)

    def places(self) -> tuple[PlaceName, ...]:
        """Group, topic and queue id of every queue with parked lanes, in no particular order."""
        return tuple(self._places)

    def of_queue(self, place: PlaceName) -> tuple[ParkedLane, ...]:
        return tuple(self._places.get(place, {}).values())

    def __iter__(self) -> Iterator[ParkedLane]:
        """All lanes, sorted."""
        for place in sorted(self._places):
            yield from sorted(self._places[place].values(), key=lambda lane: lane.name.key or "")

    def unsorted(self) -> list[ParkedLane]:
        """All lanes; much faster than sorted, where there are many."""
        return [lane for lanes in self._places.values() for lane in lanes.values()]

    def __bool__(self) -> bool:
        return bool(self._places)

    # restart and deletion

    def restore(self, lanes: Iterable[ParkedLane]) -> None:
        for lane in lanes:
            self._places.setdefault(lane.name.place, {})[lane.name.key] = lane
            self._serials[lane.name.place] = self._serial
            self._weigh(lane)

    def cut(self, end_of: Callable[[str, int], int]) -> dict[LaneName, tuple[int, ...]]:
        """After a power cut without durable writes, remove offsets beyond a queue's end; returns them by lane.

        New messages get those offsets and must not be mistaken for parked ones.
        """
        removed: dict[LaneName, tuple[int, ...]] = {}
        for lane in list(self):
            end = end_of(lane.name.topic, lane.name.queue_id)
            lane.through = min(lane.through, end - 1)
            if lane.offsets.last >= end:
                removed[lane.name] = tuple(lane.offsets.cut_from(end))
                self._close_if_empty(lane)
                self._weigh(lane)
        return removed

    def forget(self, *, group: str | None = None, topic: str | None = None) -> list[dict[str | None, ParkedLane]]:
        """Remove the lanes of a deleted group, a deleted topic, or both, and return them.

        There may be tens of thousands, so the caller frees them little by little.
        """
        forgotten = []
        for place in [each for each in self._places if group in (None, each[0]) and topic in (None, each[1])]:
            gone = self._places.pop(place)
            forgotten.append(gone)
            self._add_weight(place[0], -sum([lane.weight for lane in gone.values()]))
            self._changed(place)
        return forgotten

    def _weigh(self, lane: ParkedLane) -> None:
        """Count the weight of a lane that may have changed or ended."""
        group, kept = lane.name.group, self.get(lane.name) is lane
        weight = weight_of(lane.name.key, lane.failure.reason, len(lane.offsets)) if kept else 0
        self._add_weight(group, weight - lane.weight)
        lane.weight = weight

    def _add_weight(self, group: str, more: int) -> None:
        total = self._weights.get(group, 0) + more
        if total:
            self._weights[group] = total
        else:
            self._weights.pop(group, None)

    def _close_if_empty(self, lane: ParkedLane) -> None:
        if not lane.offsets:
            self._close(lane)

    def _close(self, lane: ParkedLane) -> None:
        lanes = self._places[lane.name.place]
        del lanes[lane.name.key]
        if not lanes:
            del self._places[lane.name.place]

    def _changed(self, place: PlaceName) -> None:
        self._serial += 1
        self._serials[place] = self._serial

    def _check(self) -> None:
        for lane in self:
            offsets = list(lane.offsets)
            assert offsets, "an empty lane would keep its key parked indefinitely"
            assert offsets == sorted(set(offsets))
            assert len(offsets) == len(lane.offsets)
            assert (offsets[0], offsets[-1]) == (lane.offsets.first, lane.offsets.last)
            assert offsets[-1] <= lane.through
        assert all(self._places.values())
        weights: dict[str, int] = {}
        for lane in self:
            assert lane.weight == weight_of(lane.name.key, lane.failure.reason, len(lane.offsets))
            weights[lane.name.group] = weights.get(lane.name.group, 0) + lane.weight
        assert weights == self._weights
