"""What the checker remembers of every queue, group and lane.

All rules share this state. It forgets what every known group has committed past, and lanes and senders with nothing
open. So memory follows what is unfinished, not the length of the history. Of a forgotten message it remembers that
there was one, as a part of a range: a group that comes later must not leave it out.
"""

from collections import deque
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from lanemq.checker.events import (
    Begin,
    GroupEvent,
    LeaseEvent,
    Process,
    QueueLineEvent,
    QueueName,
    TagsSubscribed,
    TopicDeleted,
)
from lanemq.checker.verdict import GroupAccount, Violation

_SMALL_SPAN = 4096
_LONG_LANE = 64
_KEPT_SUSPECTS = 16
_KEPT_RANGES = 10_000


@dataclass(slots=True, eq=False)
class Sender:
    """The messages of one key from one producer process, numbered in the order of its send calls."""

    name: tuple[Process, str, str]
    next_index: int = 0
    in_flight: dict[str, tuple[int, int, str]] = field(default_factory=dict)
    """Message id to index and time of the send call, and the message's tag; oldest first."""
    stored: list[tuple[int, int]] = field(default_factory=list)
    """Index and offset of stored messages, by index. Older ones are forgotten."""
    queue: tuple[str, int] | None = None
    """Broker and number."""
    frozen: tuple[int, int] = (0, 0)
    """Messages with an index in this half-open range were in flight when an earlier one failed."""


@dataclass(slots=True)
class StoredMessage:
    """The message at one offset of a queue."""

    id: str
    key: str
    sender: Sender | None
    delivered: bool
    """Whether a handler or the log itself showed it, not only an acknowledgement."""
    sent_t: int = 0
    """Time of its send call; 0 if that is not known."""
    tag: str | None = None
    """None if it is not known."""


@dataclass(slots=True, eq=False)
class Stint:
    """One member's uninterrupted ownership of a queue. Within it, only a failed turn may run again."""

    process: Process
    epoch: int
    tenure: int


@dataclass(slots=True, eq=False)
class CheckedLane:
    """One key as one group sees it."""

    key: str
    high: int = -1
    """The highest offset that ever started."""
    last: int = -1
    last_stint: Stint | None = None
    offsets: list[int] = field(default_factory=list)
    """Offsets of the lane from the committed one on, in the order in which they first started."""
    unfinished: set[int] = field(default_factory=set)
    running: Process | None = None
    running_offset: int = -1
    running_count: int = 0
    running_batch: int = 0
    redriven: bool = False
    """Whether its parked messages may run."""
    redrive_first: int = -1
    redrive_last: int = -1
    """The parked messages that the last redrive named: they may be on their way to the owner."""
    redriven_done: set[int] = field(default_factory=set)
    """Redriven messages that are done, and may run once more as long as their removal may be lost."""
    redriven_by: Process | None = None
    """The run of the broker that redrove it last."""
    with_owner: set[int] = field(default_factory=set)
    """Messages that were discarded after the owner got them, and have not succeeded since: it may still run them."""
    effects: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Sink to offset and time of the last effect that it stored."""
    running_at_reset: frozenset[int] = frozenset()
    """Messages that were running at a reset, which may have skipped them: their handler cannot be stopped, and has its
    effect."""

    def after_reset(self, offset: int, parked: Container[int]) -> "CheckedLane":
        """What is left of a running lane after a reset to `offset`: what runs, and the effects it comes after."""
        open_turns = frozenset(each for each in self.unfinished | self.running_at_reset if each not in parked)
        skipped = [each for each in open_turns if each < offset]
        return CheckedLane(
            self.key,
            running=self.running,
            running_offset=self.running_offset,
            running_count=self.running_count,
            running_batch=self.running_batch,
            effects={sink: last for sink, last in self.effects.items() if skipped and last[0] <= max(skipped)},
            running_at_reset=open_turns,
        )


class Passed(NamedTuple):
    """What was known of a message when a commit passed it."""

    offset: int
    done: int | None
    entry: tuple[CheckedLane, Stint, int] | None


class Selection(NamedTuple):
    """What the members of a group select of a topic, as its broker knows them since `t`."""

    tags: frozenset[str]
    """Empty for every message."""
    t: int
    by: Process
    lost: str = ""
    """The member that selected this until it was lost and given up, at `end`."""
    end: int | None = None

    def selects(self, message: StoredMessage) -> bool:
        """Whether it surely selects a message, which was sent after all of it was known."""
        if message.tag is None or message.sent_t <= self.t or (self.end is not None and message.sent_t >= self.end):
            return False
        return not self.tags or message.tag in self.tags


class CommittedChange(NamedTuple):
    """The committed offset moved away from `before`, by a commit or a reset."""

    t: int
    before: int
    passed: tuple[Passed, ...] = ()
    reset: bool = False


@dataclass(slots=True, eq=False)
class UnconfirmedCommit:
    """A commit without an epoch that the broker recorded. It is judged if a member records it too."""

    offset: int
    t: int
    found: Violation | None
    unknown: set[int]
    """Offsets that it passes, of which nothing was known."""
    acked: dict[int, str] = field(default_factory=dict)
    """Those at which a message was acknowledged since, and its id."""


class SuspectTurn(NamedTuple):
    """A turn that overlapped the next owner's: a violation if a commit of its epoch that passes it is accepted."""

    offset: int
    since: int
    invariant: str
    text: str


@dataclass(slots=True, eq=False)
class GroupProgress:
    """One queue as one group sees it."""

    group: str
    account: GroupAccount
    queue: "QueueContents"
    late_until: int = -1
    """Messages below it were forgotten when the group came. It must finish them like others."""
    committed: int = -1
    """The committed offset; -1 before the first commit."""
    committed_t: int = 0
    committed_by: Process | None = None
    taken_by: Process | None = None
    """The member that took the queue last, at a broker without a history and without epochs."""
    committed_by_any: int = -1
    """In a group without leases: the highest offset that any member committed."""
    reset_t: int = 0
    """When the offset was last reset, or found by a broker after a crash."""
    changes: deque[CommittedChange] = field(default_factory=deque)
    """Changes that a crash of the broker may still undo, oldest first."""
    skipped_until: int = -1
    """Offsets below it were skipped by a reset that a crash undid: they run after later ones, which ran before it."""
    suspects: dict[int, SuspectTurn] = field(default_factory=dict)
    """Epoch to a turn of it whose result must not be accepted."""
    commit_epoch: int = 0
    commit_epoch_t: int = 0
    recorded_epoch: int = 0
    """The newest epoch of which a member recorded something other than a turn."""
    tags: frozenset[str] | None = None
    """What the owner's tag filter lets through; None for everything."""
    former_tags: dict[frozenset[str], int] = field(default_factory=dict)
    """Tag filters of former owners, and the last message that each of them let through."""
    selection: Selection | None = None
    """What the widest filter of a member lets through, while members have different ones."""
    given_up: Selection | None = None
    """What a lost member selected that the broker has given up last."""
    leases_by_broker: bool = False
    """Whether a broker recorded leases of the queue."""
    unrecorded_t: int = 0
    """Until when a member without a history had the queue. It may have finished any message sent before."""
    unconfirmed: UnconfirmedCommit | None = None
    redriven_unseen: set[str] = field(default_factory=set)
    """Keys whose parked messages went to the owner before it had recorded anything."""
    started: dict[int, tuple[CheckedLane, Stint, int]] = field(default_factory=dict)
    """Offset to its lane, the stint that ran it last, and the attempt."""
    finished: dict[int, int] = field(default_factory=dict)
    """Offset to the time at which it first succeeded, was dead-lettered, parked or skipped."""
    dead: set[int] = field(default_factory=set)
    parked: dict[int, CheckedLane] = field(default_factory=dict)
    """Parked messages, and redriven ones that may run once more, because their removal may be lost."""
    parked_by_broker: dict[str, int] = field(default_factory=dict)
    """Key to its highest offset that a broker reported as parked."""
    discarded: dict[str, int] = field(default_factory=dict)
    """Key to its last offset that was discarded."""
    passed_unknown: set[int] = field(default_factory=set)
    """Offsets that a commit passed although nothing was known of them."""
    lanes: dict[str, CheckedLane] = field(default_factory=dict)
    consumes: bool = False
    """Whether the group has more than effects: a pipeline's table has no turns and no offsets."""
    sink_epochs: dict[str, tuple[int, int]] = field(default_factory=dict)
    """Sink to the highest epoch of an effect that it stored, and the time of the first one."""
    stint: Stint | None = None
    tenure: int = 0
    turn_epoch: int = 0
    epoch: int = 0
    """The highest epoch that was granted."""
    former_epoch: int = 0
    """Epochs up to this one belong to a deleted topic of the same name: its deletion ended all leases."""
    owner: str = ""
    granted_t: int = 0
    broker_until: int = 0
    """When the lease ends, as the broker recorded it; 0 once it has ended."""
    member_until: int = 0
    """When the owner stops using the lease, as it recorded that itself; 0 once it has ended."""
    granted_by_member: int = 0
    ended_by_member: int = 0
    """The newest epoch of which a member recorded that it got the lease, and that the lease ended."""
    shortened_epoch: int = 0
    """The newest epoch whose lease the broker shortened because the member's connection was lost."""

    def lane(self, key: str) -> CheckedLane:
        lane = self.lanes.get(key)
        if lane is None:
            lane = self.lanes[key] = CheckedLane(key)
        return lane

    def is_recorded(self, epoch: int) -> bool:
        """Whether a member recorded something of this epoch, or of a newer one."""
        return epoch <= self.recorded_epoch or epoch <= self.turn_epoch

    def had_unrecorded_owner(self, offset: int, t: int) -> None:
        """Until `t`, a member without a history had the queue, and left it with this committed offset.

        What others had begun may be finished, or may run again. So it is as after a reset.
        """
        self.restart_at(offset, t)
        self.unrecorded_t = t

    def unrecorded_owner_ends(self) -> None:
        """Another owner follows one without a history: what was redriven to it may be done, or run again."""
        lanes = [lane for key in self.redriven_unseen if (lane := self.lanes.get(key)) is not None]
        for lane in lanes:
            redriven = {offset for offset in lane.unfinished if lane.redrive_first <= offset <= lane.redrive_last}
            lane.unfinished -= redriven
            lane.redriven_done |= redriven
            self.account.undecided += bool(redriven)

    def forgotten(self, low: int, high: int) -> set[int]:
        """Messages from `low` to `high` of which only the place is known."""
        return set(self.queue.forgotten_between(low, min(high, self.late_until))) if low < self.late_until else set()

    def may_be_done_unrecorded(self, offset: int) -> bool:
        """Whether a member without a history may have finished a message that is not known to have run."""
        message = self.queue.stored.get(offset)
        return self.unrecorded_t > 0 and (message is None or message.sent_t <= self.unrecorded_t)

    def leaves_out(self, offset: int) -> bool:
        """Whether the tag filter leaves a message out, or may do so because its tag is not known, or a former owner's
        filter may have done so."""
        message = self.queue.stored.get(offset)
        if message is None or message.tag is None:
            return self.tags is not None
        if self.tags is not None and message.tag not in self.tags:
            return True
        return any(message.tag not in tags and offset < last for tags, last in self.former_tags.items())

    def filter_ends(self) -> None:
        """Another owner has a filter of its own. What was left out before a message that arrived counts as finished."""
        tags, self.tags = self.tags, None
        if tags is not None:
            arrived = (at for at, message in self.queue.stored.items() if message.tag in tags)
            self.former_tags[tags] = max(arrived, default=-1)

    def go_back(self, offset: int, t: int) -> None:
        """In a group without leases, a member is behind the others. What is finished stays finished."""
        self.committed_by_any = max(self.committed_by_any, self.committed)
        self.committed, self.committed_t = offset, t

    def suspect(self, epoch: int, turn: SuspectTurn) -> None:
        """Keeps the lowest turn of each epoch. Without an epoch, its commit could not be recognised."""
        known = self.suspects.get(epoch)
        if epoch and (known is None or turn.offset < known.offset):
            self.suspects[epoch] = turn
            if len(self.suspects) > _KEPT_SUSPECTS:
                del self.suspects[min(self.suspects)]

    def restart_at(self, offset: int, t: int) -> None:
        """A reset: everything from `offset` on may run again, and what is running still is."""
        self.committed = offset
        self.committed_by_any = self.skipped_until = -1
        self.committed_t = self.reset_t = t
        self.started.clear()
        self.finished.clear()
        self.dead.clear()
        self.passed_unknown.clear()
        self.unconfirmed = None
        self.lanes = {
            key: lane.after_reset(offset, self.parked) for key, lane in self.lanes.items() if lane.running is not None
        }
        last_parked: dict[str, int] = {}
        for parked, lane in list(self.parked.items()):
            is_open = parked in lane.unfinished
            if not is_open and parked not in lane.redriven_done:
                del self.parked[parked]
                continue
            self.parked[parked] = kept = self.lane(lane.key)
            kept.redriven = lane.redriven
            kept.redrive_first, kept.redrive_last = lane.redrive_first, lane.redrive_last
            # One that is done runs again if the broker was not told: the member forgets its lanes.
            (kept.unfinished if is_open else kept.redriven_done).add(parked)
            last_parked[lane.key] = max(parked, last_parked.get(lane.key, -1))
            if parked >= offset:
                self.finished[parked] = t  # it stays parked, and a commit may pass it
        if last_parked:  # a lane stays as it is: what its broker has removed from it does not run again
            self.late_until = -1  # the keys of these messages are not known
            for number, message in self.queue.stored.items():
                if offset <= number < last_parked.get(message.key, -1):
                    self.finished.setdefault(number, t)

    def passed(self, offset: int) -> Passed:
        """Forgets an offset that a commit passed, and its lane if that has nothing open."""
        done = self.finished.pop(offset, None)
        self.dead.discard(offset)
        entry = self.started.pop(offset, None)
        if entry is None:
            return Passed(offset, done, None)
        lane = entry[0]
        if lane.high == offset and lane.running is None and not (lane.unfinished or lane.redriven_done):
            self.lanes.pop(lane.key, None)
        elif len(lane.offsets) > _LONG_LANE and lane.offsets[_LONG_LANE // 2] < self.committed:
            lane.offsets = [kept for kept in lane.offsets if kept >= self.committed]
        return Passed(offset, done, entry)


@dataclass(slots=True, eq=False)
class QueueContents:
    """One queue as its producers and the log show it."""

    stored: dict[int, StoredMessage] = field(default_factory=dict)
    offsets: dict[str, int] = field(default_factory=dict)
    """Message id to offset."""
    groups: list[GroupProgress] = field(default_factory=list)
    forgotten: int = -1
    """Every known group has committed up to this offset; messages below it are forgotten."""
    forgotten_t: int = 0
    forgotten_ranges: list[int] = field(default_factory=list)
    """Where messages were that are forgotten: begin and end of each range, in turn. One range if all producers record
    a history."""
    log_offsets: set[int] | None = None
    """Offsets that were found by reading the log at the end; None if it was not read."""
    crashes: list[int] = field(default_factory=list)
    """Times at which the broker crashed."""
    trimmed: int = 0
    """Retention has deleted the messages below this offset."""
    acked_without_offset: set[str] = field(default_factory=set)
    """Ids that were acknowledged without an offset before they were seen anywhere."""

    def forget(self, offset: int) -> StoredMessage | None:
        """Forgets a message, but not that there was one. Offsets come in order."""
        stored = self.stored.pop(offset, None)
        if stored is None:
            return None
        self.offsets.pop(stored.id, None)
        ranges = self.forgotten_ranges
        if ranges and ranges[-1] == offset:
            ranges[-1] = offset + 1
        elif len(ranges) < 2 * _KEPT_RANGES:
            ranges += [offset, offset + 1]
        return stored

    def forgotten_between(self, low: int, high: int) -> Iterator[int]:
        """The offsets of forgotten messages from `low` to `high`."""
        ranges = self.forgotten_ranges
        for begin, end in zip(ranges[::2], ranges[1::2], strict=True):
            yield from range(max(begin, low), min(end, high))


class CheckerState:
    """Everything the rules look at, created when it is first mentioned."""

    def __init__(self) -> None:
        self.queues: dict[QueueName, QueueContents] = {}
        self.groups: dict[tuple[str, str, str, int], GroupProgress] = {}
        self.senders: dict[tuple[Process, str, str], Sender] = {}
        self.accounts: dict[str, GroupAccount] = {}
        self.sent: dict[str, dict[str, Sender]] = {}
        """Topic to the sent messages whose offset is not known yet. A topic without a send is missing.

        By topic, so that the copy of a message in a retry topic is not taken for the message itself.
        """
        self.delayed: dict[str, dict[str, str]] = {}
        """Topic to the ids of delayed messages that were not seen yet, with their keys."""
        self.deleted: dict[str, set[str]] = {}
        """Topic to the messages that were open when it was deleted."""
        self.deleted_t: dict[str, int] = {}
        self.former_epochs: dict[tuple[str, str, str, int], int] = {}
        """Group and queue to the last epoch before the topic was deleted."""
        self.tally: dict[str, int] = {}
        self.restarts: set[tuple[str, int]] = set()
        self._recording: set[str] = set()
        """Names of processes with a history. A member's name is its client id."""

    def began(self, event: Begin) -> None:
        self._recording.add(event.name)

    def records(self, member: str) -> bool:
        """Whether a member has a history, although it may have recorded nothing of a lease whose grant it never got."""
        return member in self._recording

    def count(self, what: str) -> None:
        self.tally[what] = self.tally.get(what, 0) + 1

    def queue(self, event: QueueLineEvent) -> QueueContents:
        """The queue that the event concerns."""
        name = (event.topic, event.broker, event.queue)
        contents = self.queues.get(name)
        if contents is None:
            contents = self.queues[name] = QueueContents()
        return contents

    def progress(self, event: GroupEvent | LeaseEvent) -> GroupProgress:
        """The progress of the event's group, which consumes the event's queue."""
        progress = self.effects_of(event)
        progress.consumes = progress.account.consumes = True
        return progress

    def effects_of(self, event: GroupEvent | LeaseEvent | TagsSubscribed) -> GroupProgress:
        """As `progress`, for a group of which perhaps only effects are known."""
        name = (event.group, event.topic, event.broker, event.queue)
        progress = self.groups.get(name)
        if progress is None:
            account = self.accounts.setdefault(event.group, GroupAccount())
            contents = self.queue(event)
            progress = self.groups[name] = GroupProgress(event.group, account, contents, contents.forgotten)
            progress.reset_t = self.deleted_t.get(event.topic, 0)
            progress.former_epoch = self.former_epochs.get(name, 0)
            contents.groups.append(progress)
        return progress

    def forget_committed(self, queue: QueueContents, t: int) -> None:
        """Forgets the messages that every known group has committed past."""
        committed = min(group.committed for group in queue.groups if group.consumes)
        if committed <= queue.forgotten:
            return
        for offset in offsets_between(queue.stored, queue.forgotten, committed):
            stored = queue.forget(offset)
            if stored is not None:
                self._forget_sender(stored.sender, offset)
        queue.forgotten, queue.forgotten_t = committed, t

    def _forget_sender(self, sender: Sender | None, offset: int) -> None:
        if sender is not None and not sender.in_flight and sender.stored and sender.stored[-1][1] == offset:
            self.senders.pop(sender.name, None)

    def topic_deleted(self, event: TopicDeleted) -> None:
        """Forgets a topic. A new one of its name starts at offset 0.

        Members that had messages of the old topic in memory, and late answers, may still mention them; that proves
        nothing about the new topic. So the ids that were open at that time are kept.
        """
        topic = event.topic
        deleted = self.deleted.setdefault(topic, set())
        deleted.update(self.sent.pop(topic, ()), self.delayed.pop(topic, ()))
        for place in [place for place in self.queues if place[0] == topic]:
            deleted.update(self.queues.pop(place).offsets)
        for consumed in [consumed for consumed in self.groups if consumed[1] == topic]:
            former = self.groups.pop(consumed)
            self.former_epochs[consumed] = max(former.epoch, former.former_epoch)
        self.senders = {name: sender for name, sender in self.senders.items() if name[1] != topic}
        self.deleted_t[topic] = event.t


def offsets_between(known: Iterable[int], low: int, high: int) -> Iterable[int]:
    """The offsets from `low` to `high` that may be known: all of a short span, the known ones of a long one."""
    low = max(low, 0)
    if high - low <= _SMALL_SPAN:
        return range(low, high)
    return sorted(offset for offset in known if low <= offset < high)
