"""Parked lanes: which messages the broker has set aside, and whether they are being redriven.

A lane whose message failed for good is parked with everything behind it, so that the queue's commit can pass.

Invariants:

1. The messages of a parked lane are kept, in offset order, until a handler has finished them or an operator has
   discarded them. Messages that do not fit are refused and stay with the consumer that asked.
2. Parking is idempotent: every message of the key up to the last offset ever parked in the lane (`through`) is settled.
   It is in the lane, has left it, or was finished before the lane failed, because a key's messages finish in order. So
   a lost answer, or a message that is pulled again because its commit was lost, changes nothing.
3. A lane exists as long as it holds a message. When the last one leaves, its key is an ordinary one again.

The queue's owner learns of an operator's changes (`redrive`, `discard`) by a serial number that comes with its lease.

This table holds offsets and sizes only; the records are on disk.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from lanemq.core.parked_lane import Failure, LaneStatus
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


@dataclass(frozen=True, slots=True)
class Limits:
    """How much may be parked. Beyond it, a lane stays with its consumer and holds back the commit."""

    lane_messages: int
    group_messages: int
    group_bytes: int


@dataclass(slots=True)
class ParkedLane:
    """One parked lane. Only the table changes it."""

    name: LaneName
    failure: Failure
    since: Millis
    """Wall time of the newest failure."""
    status: LaneStatus = LaneStatus.PARKED
    messages: dict[int, int] = field(default_factory=dict)
    """Offset → size in bytes, ascending."""
    through: int = -1
    """The last offset ever parked in the lane: pulled messages up to it must not run."""

    @property
    def size(self) -> int:
        return sum(self.messages.values())

    @property
    def first(self) -> int:
        return next(iter(self.messages))


class Parked(NamedTuple):
    """The result of a request to park."""

    settled: int
    """The number of offsets, counted from the first, that the consumer is done with."""
    fresh: tuple[int, ...]
    """Those of them that must be saved now."""
    lane: ParkedLane | None
    """The lane after the request; None if it does not exist, because it was emptied or nothing fitted."""


class ParkedLaneTable:
    """All parked lanes of one broker."""

    def __init__(self, limits: Limits, *, serial: int) -> None:
        """`serial` must be above all serials of earlier starts; wall time is."""
        self._limits = limits
        self._serial = serial
        self._places: dict[PlaceName, dict[str | None, ParkedLane]] = {}
        # Messages and bytes by group.
        self._used: dict[str, tuple[int, int]] = {}
        self._serials: dict[PlaceName, int] = {}

    # requests of the queue's owner

    def park(
        self,
        name: LaneName,
        sizes: Mapping[int, int],
        failure: Failure | None,
        *,
        now: Millis,
        again: int | None = None,
    ) -> Parked:
        """Park messages (offset → size, ascending). `failure` starts a lane or ends its redrive.

        Without a failure, the messages follow a lane that the owner believes to be parked. If it is not, nothing is
        parked, and the result says so. The same holds for the failure of a redriven message (its offset is `again`)
        that an operator discarded while it ran. A repeated request, whose first answer was lost, does not undo what an
        operator did in between.
        """
        lane = self.get(name)
        if again is not None and (lane is None or again not in lane.messages):
            failure = None
        if again is None and lane is not None and sizes and next(iter(sizes)) <= lane.through:
            failure = None
        if lane is None and failure is None:
            return Parked(0, (), None)
        fits = self._fitting(name, lane, sizes)
        if lane is None and not fits:
            return Parked(0, (), None)
        if lane is None:
            assert failure is not None
            lane = self._places.setdefault(name.place, {})[name.key] = ParkedLane(name, failure, now)
            self._serials.setdefault(name.place, self._serial)
        elif failure is not None:
            lane.failure, lane.since, lane.status = failure, now, LaneStatus.PARKED
        fresh = tuple(offset for offset in fits if offset > lane.through)
        self._insert(lane, {offset: sizes[offset] for offset in fresh})
        return Parked(len(fits), fresh, lane)

    def finished(self, name: LaneName, offset: int) -> bool:
        """Remove a redriven message that a handler has finished; False if it was not in the lane."""
        lane = self.get(name)
        return lane is not None and bool(self._remove(lane, [offset]))

    def serial(self, place: PlaceName) -> int:
        """A number that changes with every change by an operator; 0 if nothing was ever parked in the queue."""
        return self._serials.get(place, 0)

    # requests of operators

    def redrive(self, name: LaneName) -> bool:
        """Let the owner run the lane again; False if it does already."""
        lane = self.get(name)
        if lane is None or lane.status is LaneStatus.REDRIVING:
            return False
        lane.status = LaneStatus.REDRIVING
        self._changed(name.place)
        return True

    def discard(self, name: LaneName, through: int) -> tuple[int, ...]:
        """Remove the lane's messages up to and including an offset, so that messages the operator has not seen stay.

        The message that failed is among them. The rest was not tried yet: 0 attempts, and the reason says so.
        """
        lane = self.get(name)
        if lane is None:
            return ()
        removed = self._remove(lane, [offset for offset in lane.messages if offset <= through])
        if removed:
            if lane.status is LaneStatus.PARKED and lane.failure.attempts:
                lane.failure = Failure(f"offset {removed[0]} (discarded since): {lane.failure.reason}", 0)
            self._changed(name.place)
        return removed

    # queries

    def get(self, name: LaneName) -> ParkedLane | None:
        return self._places.get(name.place, {}).get(name.key)

    def of_queue(self, place: PlaceName) -> tuple[ParkedLane, ...]:
        return tuple(self._places.get(place, {}).values())

    def __iter__(self) -> Iterator[ParkedLane]:
        """All lanes, sorted."""
        for place in sorted(self._places):
            yield from sorted(self._places[place].values(), key=lambda lane: lane.name.key or "")

    # restart and deletion

    def restore(self, lanes: Iterable[ParkedLane]) -> None:
        for lane in lanes:
            kept, lane.messages = lane.messages, {}
            self._places.setdefault(lane.name.place, {})[lane.name.key] = lane
            self._insert(lane, dict(sorted(kept.items())))
            self._serials[lane.name.place] = self._serial

    def cut(self, end_of: Callable[[str, int], int]) -> dict[LaneName, tuple[int, ...]]:
        """After a power cut without durable writes, remove offsets beyond a queue's end; returns them by lane.

        New messages get those offsets and must not be mistaken for parked ones.
        """
        removed: dict[LaneName, tuple[int, ...]] = {}
        for lane in list(self):
            end = end_of(lane.name.topic, lane.name.queue_id)
            lane.through = min(lane.through, end - 1)
            lost = self._remove(lane, [offset for offset in lane.messages if offset >= end])
            if lost:
                removed[lane.name] = lost
        return removed

    def forget(self, *, group: str | None = None, topic: str | None = None) -> tuple[LaneName, ...]:
        """Remove the lanes of a deleted group, a deleted topic, or both."""
        gone = [lane for lane in self if group in (None, lane.name.group) and topic in (None, lane.name.topic)]
        for lane in gone:
            self._remove(lane, list(lane.messages))
            self._changed(lane.name.place)
        return tuple(lane.name for lane in gone)

    def _fitting(self, name: LaneName, lane: ParkedLane | None, sizes: Mapping[int, int]) -> Sequence[int]:
        """The first offsets that fit into the limits; settled ones always do."""
        limits = self._limits
        in_lane = len(lane.messages) if lane is not None else 0
        in_group, bytes_used = self._used.get(name.group, (0, 0))
        fits: list[int] = []
        for offset, size in sizes.items():
            if lane is None or offset > lane.through:
                in_lane, in_group, bytes_used = in_lane + 1, in_group + 1, bytes_used + size
            if in_lane > limits.lane_messages or in_group > limits.group_messages or bytes_used > limits.group_bytes:
                break
            fits.append(offset)
        return fits

    def _insert(self, lane: ParkedLane, sizes: Mapping[int, int]) -> None:
        lane.messages.update(sizes)
        lane.through = max((lane.through, *sizes))
        self._use(lane.name.group, len(sizes), sum(sizes.values()))

    def _remove(self, lane: ParkedLane, offsets: Iterable[int]) -> tuple[int, ...]:
        removed = tuple(offset for offset in offsets if offset in lane.messages)
        size = sum(lane.messages.pop(offset) for offset in removed)
        self._use(lane.name.group, -len(removed), -size)
        if not lane.messages:
            held = self._places[lane.name.place]
            held.pop(lane.name.key, None)
            if not held:
                del self._places[lane.name.place]
        return removed

    def _use(self, group: str, messages: int, size: int) -> None:
        count, used = self._used.get(group, (0, 0))
        if count + messages:
            self._used[group] = count + messages, used + size
        else:
            self._used.pop(group, None)

    def _changed(self, place: PlaceName) -> None:
        self._serial += 1
        self._serials[place] = self._serial

    def _check(self) -> None:
        used: dict[str, tuple[int, int]] = {}
        for lane in self:
            assert lane.messages, "an empty lane would keep its key parked indefinitely"
            assert list(lane.messages) == sorted(lane.messages)
            assert next(reversed(lane.messages)) <= lane.through
            count, size = used.get(lane.name.group, (0, 0))
            used[lane.name.group] = count + len(lane.messages), size + lane.size
        assert used == self._used
        assert all(self._places.values())
