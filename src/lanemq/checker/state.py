"""What is known of every queue, group and lane while a history passes by.

The families of invariants share this memory and nothing else. It forgets: what every group seen so far has
committed past is dropped, and a lane or sender with nothing open goes with it. So memory follows what is
unfinished, not the length of the history. Whatever comes below a dropped offset later is judged by the
committed offset alone.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from lanemq.checker.events import Process
from lanemq.checker.verdict import GroupAccount

_SMALL_SPAN = 4096
_LONG_LANE = 64
_KEPT_DOUBTS = 16


@dataclass(slots=True, eq=False)
class Sender:
    """The messages of one key from one producer process, numbered in the order it took them in."""

    name: tuple[Process, str, str]
    next_index: int = 0
    in_flight: dict[str, tuple[int, int]] = field(default_factory=dict)
    """id to index and time of the send call; oldest first."""
    placed: list[tuple[int, int]] = field(default_factory=list)
    """Index and offset of stored messages, by index; short, because older ones are forgotten."""
    queue: int = -1
    frozen: tuple[int, int] = (0, 0)
    """Messages with index in this half-open range were under way when an earlier one failed."""


@dataclass(slots=True)
class Stored:
    """What is known about one place in a queue."""

    id: str
    key: str
    sender: Sender | None
    delivered: bool
    """A handler or the log itself showed it, not only an acknowledgement."""


@dataclass(slots=True, eq=False)
class Stint:
    """One member's unbroken time with a queue. Inside a stint only a failed turn is a cause to run again."""

    process: Process
    epoch: int
    tenure: int


@dataclass(slots=True, eq=False)
class Lane:
    """One key as one group sees it."""

    key: str
    high: int = -1
    """Highest offset that ever started."""
    last: int = -1
    last_stint: Stint | None = None
    offsets: list[int] = field(default_factory=list)
    """Offsets of the lane from the committed one on, as they first started."""
    unfinished: set[int] = field(default_factory=set)
    running: Process | None = None
    running_offset: int = -1
    running_count: int = 0
    running_batch: int = 0
    redriven: bool = False
    """Its parked messages may run."""
    redone: int = -1
    """The last parked message that was redriven, while nothing behind it has started."""
    given: int = -1
    """The parked message that a broker or member named last when it let the lane run."""
    effects: dict[str, tuple[int, int, int]] = field(default_factory=dict)
    """Sink to offset, epoch and time of the last effect it took."""


class Passed(NamedTuple):
    """What was known of a message when it was committed past."""

    offset: int
    done: int | None
    entry: tuple[Lane, Stint, int] | None


class Step(NamedTuple):
    """The committed offset moved from `before`, by a commit or by name."""

    t: int
    before: int
    passed: tuple[Passed, ...] = ()
    reset: bool = False


class Doubt(NamedTuple):
    """A turn ended beside its successor's; if a commit of its epoch passes it after all, a promise is broken."""

    offset: int
    since: int
    invariant: str
    text: str


@dataclass(slots=True, eq=False)
class GroupQueue:
    """One queue as one group sees it."""

    group: str
    account: GroupAccount
    queue: "Queue"
    low: int = -1
    """The committed offset; -1 before the first commit."""
    low_t: int = 0
    low_by: Process | None = None
    """Who committed it."""
    once: int = -1
    """Where no leases are held: everything below was committed past by somebody."""
    reset_t: int = 0
    """When the position was last set by name, or found by a broker after a crash."""
    steps: deque[Step] = field(default_factory=deque)
    """What a crash could still take back, oldest first."""
    doubts: dict[int, Doubt] = field(default_factory=dict)
    """Epoch to a turn of it whose result must not be accepted."""
    commit_epoch: int = 0
    commit_epoch_t: int = 0
    started: dict[int, tuple[Lane, Stint, int]] = field(default_factory=dict)
    """Offset to its lane, and to whose turn it was last, with which attempt."""
    finished: dict[int, int] = field(default_factory=dict)
    """Offset to the time its first good end, dead letter or skip was recorded."""
    dead: set[int] = field(default_factory=set)
    parked: dict[int, Lane] = field(default_factory=dict)
    """Parked messages, and the last of each lane that was redriven: a lost removal may bring it once more."""
    discarded: dict[str, int] = field(default_factory=dict)
    """Key to the last offset of it that was given up."""
    holes: set[int] = field(default_factory=set)
    """Offsets that were committed past although nothing was known of them."""
    lanes: dict[str, Lane] = field(default_factory=dict)
    stint: Stint | None = None
    tenure: int = 0
    turn_epoch: int = 0
    epoch: int = 0
    """Highest epoch that was granted."""
    owner: str = ""
    granted_t: int = 0
    broker_until: int = 0
    cut_epoch: int = 0
    """The newest epoch whose lease the broker shortened: its member's connection was lost."""
    untils: dict[int, int] = field(default_factory=dict)
    """Epoch to the time until which its member uses it."""

    def lane(self, key: str) -> Lane:
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = Lane(key)
        return lane

    def go_back(self, offset: int, t: int) -> None:
        """One of several members without leases is behind the others; what they have done stays done."""
        self.once = max(self.once, self.low)
        self.low, self.low_t = offset, t

    def doubt(self, epoch: int, doubt: Doubt) -> None:
        """The lowest one of an epoch is enough; without epochs nobody can tell whose commit it is."""
        known = self.doubts.get(epoch)
        if epoch and (known is None or doubt.offset < known.offset):
            self.doubts[epoch] = doubt
            if len(self.doubts) > _KEPT_DOUBTS:
                del self.doubts[min(self.doubts)]

    def restart_at(self, offset: int, t: int) -> None:
        """A named reset: everything from `offset` on may run again, and what runs right now still runs."""
        self.low = offset
        self.once = -1
        self.low_t = self.reset_t = t
        self.started.clear()
        self.finished.clear()
        self.dead.clear()
        self.holes.clear()
        running = {key: lane for key, lane in self.lanes.items() if lane.running is not None}
        self.lanes = {
            key: Lane(
                key,
                running=lane.running,
                running_offset=lane.running_offset,
                running_count=lane.running_count,
                running_batch=lane.running_batch,
            )
            for key, lane in running.items()
        }
        for parked, lane in list(self.parked.items()):
            if parked not in lane.unfinished:
                del self.parked[parked]
                continue
            self.parked[parked] = kept = self.lane(lane.key)
            kept.redriven = lane.redriven
            kept.unfinished.add(parked)
            if parked >= offset:
                self.finished[parked] = t  # a reset does not bring it back: it stays parked, and settled

    def passed(self, offset: int) -> Passed:
        """The commit went past `offset`: drop it, and its lane if that has nothing open."""
        done = self.finished.pop(offset, None)
        self.dead.discard(offset)
        entry = self.started.pop(offset, None)
        if entry is None:
            return Passed(offset, done, None)
        lane = entry[0]
        if lane.high == offset and lane.running is None and not lane.unfinished:
            self.lanes.pop(lane.key, None)
        elif len(lane.offsets) > _LONG_LANE and lane.offsets[_LONG_LANE // 2] < self.low:
            lane.offsets = [kept for kept in lane.offsets if kept >= self.low]
        return Passed(offset, done, entry)


@dataclass(slots=True, eq=False)
class Queue:
    """One queue as its producers and the log show it."""

    stored: dict[int, Stored] = field(default_factory=dict)
    where: dict[str, int] = field(default_factory=dict)
    groups: list[GroupQueue] = field(default_factory=list)
    floor: int = -1
    """Every group seen so far has committed up to here."""
    floor_t: int = 0
    dumped: set[int] | None = None
    """Offsets found by reading the log at the end; None when nobody did."""
    trimmed: int = 0
    promised: set[str] = field(default_factory=set)
    """Acknowledged without a place, and not seen anywhere by then."""


class State:
    """Finds, and makes on first sight, what the families look at."""

    def __init__(self) -> None:
        self.queues: dict[tuple[str, int], Queue] = {}
        self.groups: dict[tuple[str, str, int], GroupQueue] = {}
        self.senders: dict[tuple[Process, str, str], Sender] = {}
        self.accounts: dict[str, GroupAccount] = {}
        self.sent: dict[str, dict[str, Sender]] = {}
        """Topic to the messages that were sent there and have no known place yet; a topic nobody sent to is missing.

        By topic, so that a message's copy in a retry topic never stands for the message itself.
        """
        self.gone: dict[str, set[str]] = {}
        """Topic to the messages that were open when it was deleted."""
        self.deleted_t: dict[str, int] = {}
        self.tally: dict[str, int] = {}
        self.restarts: set[tuple[str, int]] = set()

    def count(self, what: str) -> None:
        self.tally[what] = self.tally.get(what, 0) + 1

    def queue(self, topic: str, queue: int) -> Queue:
        found = self.queues.get((topic, queue))
        if found is None:
            found = self.queues[(topic, queue)] = Queue()
        return found

    def group_queue(self, group: str, topic: str, queue: int) -> GroupQueue:
        found = self.groups.get((group, topic, queue))
        if found is None:
            account = self.accounts.setdefault(group, GroupAccount())
            owner = self.queue(topic, queue)
            found = self.groups[(group, topic, queue)] = GroupQueue(group, account, owner)
            found.reset_t = self.deleted_t.get(topic, 0)
            owner.groups.append(found)
        return found

    def raise_floor(self, queue: Queue, t: int) -> None:
        """Forget what every group has committed past."""
        floor = min(group.low for group in queue.groups)
        if floor <= queue.floor:
            return
        for offset in offsets_between(queue.stored, queue.floor, floor):
            stored = queue.stored.pop(offset, None)
            if stored is not None:
                queue.where.pop(stored.id, None)
                self._forget_sender(stored.sender, offset)
        queue.floor, queue.floor_t = floor, t

    def _forget_sender(self, sender: Sender | None, offset: int) -> None:
        if sender is not None and not sender.in_flight and sender.placed and sender.placed[-1][1] == offset:
            self.senders.pop(sender.name, None)


def offsets_between(known: Iterable[int], low: int, high: int) -> Iterable[int]:
    """The offsets of `low .. high` worth looking at: all of a short span, the known ones of a long one."""
    low = max(low, 0)
    if high - low <= _SMALL_SPAN:
        return range(low, high)
    return sorted(offset for offset in known if low <= offset < high)
