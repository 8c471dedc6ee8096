"""How far one group is in one queue: the committed offset, what is finished above it, and which lanes wait below it.

**The offset** is the next one to read. It only moves forward, except by a reset, or by a stock client that owns the
queue or commits where no member does. RocketMQ lets any client set any offset, and its clients rely on going back in
their own queues. A stale owner never undoes the progress of the new one. Owners are not known here: `kind_of`
translates the lock table's verdict.

**Finished ranges** are what is finished above the offset, and belong to that offset. They come with a commit and are
replaced by the next one; a reset deletes them, and so does a commit of another offset by a client without them.

**A reset** can be pending: pulls are answered "offset moved" until a pull starts at the new offset, because any of
these answers may be lost. Until then commits are ignored: they stem from before the reset. A commit of the new offset
ends the reset too. If the queue's owner has an epoch, nothing else ends it: a pull of that owner may start at the new
offset by chance, while it still has messages from before the reset. Such an owner commits the new offset once it has
moved there.

**A lane** whose message failed for good is parked with everything behind it, so that the offset can pass. A held lane
with many messages behind the failed one is set aside in the same way; its owner continues with it by itself.

1. The messages of a lane are kept, in offset order, until a handler has finished them or an operator has discarded
   them. They leave in offset order.
2. Parking is idempotent: every message of the key up to the last offset ever parked in the lane (`through`) is settled.
   It is in the lane, has left it, or was finished before the lane failed, because a key's messages finish in order. So
   a lost answer, or a message that is pulled again because its commit was lost, changes nothing.
3. A lane exists as long as it holds a message. When the last one leaves, its key is an ordinary one again.

The queue's owner learns of an operator's changes (`redrive`, `discard`) by a serial number that comes with its lease.

**What tags leave out** is finished once the owner has read past it, which the owner reports about once a second. For an
owner that ends before it has, the last read is kept here (`FilteredRead`): what it left out is finished for the next
owner. One with more tags would otherwise run it behind newer messages of its key.

Everything here is offsets; the messages are in a log, which is not known here. A decision is made at once, so that
every later request sees it; who asked for it saves it (`progress_store`).
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, Protocol, TypeAlias

from lanemq.core.brokering.lane_offsets import CHUNK, ChunkRow, LaneOffsets
from lanemq.core.brokering.lock_table import Stale, Verdict
from lanemq.core.brokering.queue_seen import QueueSeen, most_producers
from lanemq.core.finished_ranges import MAX_RANGES, FinishedRanges
from lanemq.core.lane_status import Failure, LaneStatus
from lanemq.model.errors import InvalidOption
from lanemq.model.log_marks import SeenLog
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset

OFFSET_BYTES = 350
"""Memory of the progress of one group in one queue, without finished ranges and lanes."""
LANE_BYTES = 1_500
"""Memory of a lane beside its texts and offsets, as measured."""


class CommitKind(Enum):
    """What a commit may do, depending on its sender."""

    FORWARD = "forward"
    """Move forward only: LaneMQ clients, and stock clients while another member owns the queue."""
    ANY_WAY = "any way"
    """Also move back: a stock client that owns the queue, or commits where no member does."""
    FENCED = "fenced"
    """Nothing: a LaneMQ client whose lease is not the current one."""


def kind_of(verdict: Verdict, *, stock: bool) -> CommitKind:
    """What a commit may do whose sender has this standing."""
    if isinstance(verdict, Stale):
        return CommitKind.FORWARD if stock else CommitKind.FENCED
    return CommitKind.ANY_WAY if stock else CommitKind.FORWARD


class WhyIgnored(Enum):
    """Why a commit was not stored."""

    NEGATIVE = "negative offset"
    """Java clients send -1 for "none yet", and ali-ons also for 0. Not an error."""
    RESET_PENDING = "a reset waits for the group's next pull"
    FENCED = "the queue was granted to another member"


@dataclass(frozen=True, slots=True)
class Committed:
    """Stored. `before` is None for the group's first commit in this queue."""

    before: QueueOffset | None


@dataclass(frozen=True, slots=True)
class Backward:
    """Not stored, because it is before the stored offset."""

    stored: QueueOffset


@dataclass(frozen=True, slots=True)
class Ignored:
    why: WhyIgnored


Commit: TypeAlias = Committed | Backward | Ignored


class ResetState(Enum):
    """Whether members still have to obey a reset."""

    NONE = 0
    UNTOLD = 1
    """No pull was answered with it yet."""
    TOLD = 2


class LaneName(NamedTuple):
    """The name of a lane. Messages without a key share one, whose key is None."""

    group: str
    queue: MessageQueue
    key: str | None


@dataclass(slots=True)
class ParkedLane:
    """One lane that is set aside. Only its `QueueProgress` changes it."""

    name: LaneName
    failure: Failure
    since: Millis
    """Wall time of the newest failure."""
    status: LaneStatus = LaneStatus.PARKED
    offsets: LaneOffsets = field(default_factory=LaneOffsets)
    through: int = -1
    """The last offset ever parked in the lane: pulled messages up to it must not run."""
    overtaken: bool = False
    """An owner that does not know lanes had the queue: it may have run newer messages of the key."""
    copied: int = -1
    """Up to this offset, records were copied out of the log since the start of the broker."""
    weight: int = 0
    """What was counted for it."""

    @property
    def first(self) -> int:
        return self.offsets.first


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


class ProgressHome(Protocol):
    """Where the progress of a group in a queue is entered: `ProgressTable`."""

    serial: int
    queues: int
    """Groups times queues: how many have a progress."""

    def offset_changed(self, progress: "QueueProgress", more: int) -> None:
        """`more`: by how many bytes its offset and finished ranges grew."""

    def lanes_changed(self, progress: "QueueProgress", more: int, parked_from: int | None) -> None:
        """`more`: by how many bytes its lanes grew; `parked_from`: the first offset that was parked, if any was."""


class FilteredRead(NamedTuple):
    """How far an owner that reads with tags has read."""

    owner: str
    epoch: Epoch
    tags: frozenset[int]
    """Hash codes."""
    end: int


_NO_LANES: dict[str | None, ParkedLane] = {}


class QueueProgress:
    """The progress of one group in one queue."""

    __slots__ = ("_home", "_lanes", "filtered", "finished", "group", "offset", "queue", "reset", "seen", "serial")

    def __init__(self, home: ProgressHome, group: str, queue: MessageQueue) -> None:
        self._home = home
        self.group = group
        self.queue = queue
        self.offset: QueueOffset | None = None
        """The group's next offset; None if it never committed in this queue."""
        self.finished = ""
        """What is finished above the offset, as `FinishedRanges.encode` writes it."""
        self.reset = ResetState.NONE
        self.serial = 0
        """A number that changes with every change by an operator; 0 if nothing was ever parked in the queue."""
        self.seen: QueueSeen | None = None
        """What the group has seen of the queue's log; None if it is not kept, because the log is here."""
        self.filtered: FilteredRead | None = None
        """The last read of an owner with tags; not stored, because the next grant ends it."""
        self._lanes = _NO_LANES

    @property
    def lanes(self) -> Mapping[str | None, ParkedLane]:
        """The lanes that wait, by key."""
        return self._lanes

    # the offset, and what is finished above it

    def commit(
        self,
        offset: QueueOffset,
        *,
        kind: CommitKind,
        finished: FinishedRanges | None = None,
        seen: SeenLog | None = None,
    ) -> Commit:
        """Store an offset if its sender may; `finished` is None if it keeps no finished ranges."""
        if offset < 0:
            return Ignored(WhyIgnored.NEGATIVE)
        if kind is CommitKind.FENCED:
            return Ignored(WhyIgnored.FENCED)
        # With finished ranges it stems from before the reset, and would hide messages that are to run again.
        if self.reset is not ResetState.NONE and (finished or not self._end_reset(offset)):
            return Ignored(WhyIgnored.RESET_PENDING)
        stored = self.offset
        if stored is not None and offset < stored and kind is CommitKind.FORWARD:
            return Backward(stored)
        after = self.finished if offset == stored else ""
        if finished is not None:
            after = finished.lowest(MAX_RANGES).encode(offset)
        if seen is not None:
            self.see(seen)
        if offset != stored or after != self.finished or seen is not None:
            self._put(offset, after)
        return Committed(stored)

    def leave_out(self, offsets: Sequence[int]) -> None:
        """Finish what the former owner has left out (ascending); the offset passes what is finished."""
        if self.offset is not None and offsets:
            finished = FinishedRanges.decode(self.finished, self.offset).joined(FinishedRanges.of_offsets(offsets))
            offset = finished.past(self.offset)
            self._put(offset, finished.lowest(MAX_RANGES).encode(offset))

    def see(self, seen: SeenLog) -> None:
        """Note what the owner has seen of the log."""
        self.seen = self.seen or QueueSeen()
        self.seen.take(seen, most_producers(self._home.queues))

    def forget_finished(self) -> None:
        """Delete finished ranges, because the queue's owner does not know them and repeats what they cover.

        Otherwise the next owner would skip messages whose repeat was started and not finished.
        """
        if self.offset is not None and self.finished:
            self._put(self.offset, "")

    def overtake_lanes(self) -> list[ParkedLane]:
        """The queue's next owner does not know lanes, and runs newer messages of their keys; returns what changed."""
        changed = [lane for lane in self._lanes.values() if not lane.overtaken]
        for lane in changed:
            lane.overtaken = True
        return changed

    def move(self, offset: QueueOffset, *, pending: bool) -> None:
        """Reset the offset, in either direction; `pending` if the group has members, which have to move there first."""
        if offset < 0:
            raise InvalidOption(f"offset {offset} cannot be reset to: use 0 or more")
        self.reset = ResetState.UNTOLD if pending else ResetState.NONE
        self.filtered = None
        if self.seen is not None:
            self.seen.cut(max((lane.through + 1 for lane in self._lanes.values()), default=0))
        self._put(offset, "")

    def rewind(self, end: int, *, owned: bool) -> dict[str | None, list[int]]:
        """Drop everything from `end` on, because the log has other messages there; returns the parked offsets, by key.

        An owner that has not noticed it gets a reset, and repeats what was finished above the offset.
        """
        lost, self.filtered = self.cut(end, clean=False), None
        if self.seen is not None:
            self.seen.cut(end)
        if self.offset is not None:
            self.reset = ResetState.UNTOLD if owned else self.reset
            self._put(self.offset, "" if owned else self.finished)
        return lost

    def moved_to(self, pulled_from: QueueOffset, *, decides: bool = False, commits: bool = False) -> QueueOffset | None:
        """The offset with which a pull is answered "moved"; None if no reset is pending, or if this pull ends it.

        Notes that a pull was answered so. A client that `decides` itself where it reads is answered so once, and may
        continue elsewhere. One that `commits` the offset it has moved to is answered so until it has.
        """
        if self.reset is ResetState.NONE:
            return None
        if (decides or not commits) and self._end_reset(pulled_from, decides=decides):
            return None
        self.reset = ResetState.TOLD
        return self.offset

    def tell_reset(self) -> bool:
        """Whether a reset is pending, told to an owner that ends it by committing its offset."""
        if self.reset is ResetState.NONE:
            return False
        self.reset = ResetState.TOLD
        return True

    def _end_reset(self, offset: QueueOffset, *, decides: bool = False) -> bool:
        """End a pending reset if a pull was answered with it and a member is at its offset; return whether it ended.

        Without such an answer a member may be there by chance, while it still has messages from before the reset.
        """
        if self.reset is ResetState.UNTOLD or not (decides or offset == self.offset):
            return False
        self.reset = ResetState.NONE
        self._home.offset_changed(self, 0)
        return True

    def _put(self, offset: QueueOffset, finished: str) -> None:
        more = len(finished) - len(self.finished) + (OFFSET_BYTES if self.offset is None else 0)
        self.offset, self.finished = offset, finished
        self._home.offset_changed(self, more)

    # lanes: requests of the queue's owner

    def parkable(self, key: str | None, offsets: Sequence[int], bounds: tuple[int, int]) -> Sequence[int]:
        """The offsets up to the first one that is neither settled nor in the log, whose `bounds` are given."""
        lane, (first, end) = self._lanes.get(key), bounds
        through = -1 if lane is None else lane.through
        for count, offset in enumerate(offsets):
            if offset > through and not first <= offset < end:
                return offsets[:count]
        return offsets

    def growth(self, key: str | None, failure: Failure | None, offsets: int) -> int:
        """By how many bytes the lanes may grow if so many messages are parked."""
        lane, reason = self._lanes.get(key), "" if failure is None else failure.reason
        if lane is None:
            return _weight(key, reason, offsets)
        return _weight(key, reason, offsets + len(lane.offsets)) - lane.weight

    def park(
        self,
        key: str | None,
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
        lane = self._lanes.get(key)
        if again is not None:
            if lane is None or again not in lane.offsets:
                failure = None
            self.finish(key, again - 1)
            lane = self._lanes.get(key)
        elif lane is not None and offsets and offsets[0] <= lane.through:
            failure = None
        if lane is None:
            if failure is None or not offsets:
                return Parked(0, (), None)
            lane = ParkedLane(LaneName(self.group, self.queue, key), failure, now)
        if failure is not None:
            lane.failure, lane.since = failure, now
            lane.status = LaneStatus.HELD if held else LaneStatus.PARKED
        fresh = tuple(offset for offset in offsets if offset > lane.through)
        rows: Sequence[ChunkRow] = ()
        if fresh:
            rows = lane.offsets.extend(fresh)
            lane.through = fresh[-1]
        self._enter(lane, parked_from=fresh[0] if fresh else None)
        return Parked(len(offsets), fresh, lane, tuple(rows))

    def finish(self, key: str | None, through: int) -> bool:
        """Remove the messages up to an offset, which a handler has finished; False if the lane had none of them.

        If one of them had failed before, the lane continues like a redriven one.
        """
        lane = self._lanes.get(key)
        return lane is not None and self._remove(lane, through) > 0

    # lanes: requests of operators

    def redrive(self, key: str | None) -> bool:
        """Let the owner run the lane again; False if it does already."""
        lane = self._lanes.get(key)
        if lane is None or lane.status.runs:
            return False
        lane.status = LaneStatus.REDRIVING
        self._changed_by_operator()
        return True

    def discard(self, key: str | None, through: int) -> int:
        """Remove the lane's messages up to and including an offset, so that messages the operator has not seen stay.

        The message that failed is among them. The rest was not tried yet: 0 attempts, and the reason says so. Returns
        the number of messages removed.
        """
        lane = self._lanes.get(key)
        if lane is None or lane.first > through:
            return 0
        if lane.failure.attempts and lane.status is not LaneStatus.REDRIVING:
            lane.failure = Failure(f"offset {lane.first} (discarded since): {lane.failure.reason}", 0)
        self._changed_by_operator()
        return self._remove(lane, through)

    def _remove(self, lane: ParkedLane, through: int) -> int:
        removed = lane.offsets.drop_through(through)
        if removed:
            if lane.status is LaneStatus.HELD:
                lane.status = LaneStatus.REDRIVING
            self._enter(lane)
        return removed

    def _changed_by_operator(self) -> None:
        self._home.serial += 1
        self.serial = self._home.serial

    def _enter(self, lane: ParkedLane, *, parked_from: int | None = None) -> None:
        """Enter a lane that is new or has changed, or end it if it is empty."""
        key, before = lane.name.key, lane.weight
        if lane.offsets:
            lane.weight = _weight(key, lane.failure.reason, len(lane.offsets))
            if not self._lanes:
                self._lanes, self.serial = {}, self.serial or self._home.serial
            self._lanes[key] = lane
        else:
            lane.weight = 0
            del self._lanes[key]
            self._lanes = self._lanes or _NO_LANES
        self._home.lanes_changed(self, lane.weight - before, parked_from)

    # restart and deletion

    def restore_offset(
        self, offset: QueueOffset, finished: str, *, reset_pending: bool, seen: QueueSeen | None = None
    ) -> None:
        self.reset, self.seen = ResetState.UNTOLD if reset_pending else ResetState.NONE, seen
        self._put(offset, finished)

    def restore_lane(self, lane: ParkedLane) -> None:
        self._enter(lane)

    def cut(self, end: int, *, clean: bool) -> dict[str | None, list[int]]:
        """After a restart, cut everything at the queue's end; returns the parked offsets that were beyond it, by key.

        Only a power cut without durable writes moves an end back. New messages get the lost offsets: they must neither
        be skipped nor be mistaken for parked ones. After a `clean` stop the offset stays where it was committed.
        """
        if self.offset is not None and self.offset > end and not clean:
            self._put(QueueOffset(end), "")
        elif self.offset is not None and self.finished:
            finished = FinishedRanges.decode(self.finished, self.offset)
            left = finished.below(end)
            if left != finished:
                self._put(self.offset, left.encode(self.offset))
        lost: dict[str | None, list[int]] = {}
        for key, lane in tuple(self._lanes.items()):
            lane.through = min(lane.through, end - 1)
            if lane.offsets.last >= end:
                lost[key] = lane.offsets.cut_from(end)
                self._enter(lane)
        return lost

    def freed(self) -> Iterator[None]:
        """Free the memory of the lanes, one in each step: there may be tens of thousands."""
        lanes, self._lanes = self._lanes, _NO_LANES
        while lanes:
            lanes.popitem()
            yield


def _weight(key: str | None, reason: str, offsets: int) -> int:
    """About how many bytes of memory a lane takes; offsets of full chunks take two or three bytes each."""
    return LANE_BYTES + 4 * (len(key or "") + len(reason)) + 40 * min(offsets, CHUNK) + 3 * max(0, offsets - CHUNK)
