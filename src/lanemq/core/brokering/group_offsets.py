"""Committed offsets: how far each group has come in each queue.

Invariant: an offset only moves forward, except by a reset, or by a stock client that owns the queue or commits where no
member does. RocketMQ lets any client set any offset, and its clients rely on going back in their own queues. A stale
owner never undoes the progress of the new one.

A reset can be pending: pulls of that queue are answered "offset moved" with the new offset until a pull starts there,
because any of these answers may be lost. Until then commits are ignored: they stem from before the reset. A commit of
the new offset ends the reset too. If the queue's owner has an epoch, nothing else ends it: a pull of that owner may
start at the new offset by chance, while it still has messages from before the reset. Such an owner commits the new
offset once it has moved there.

Offsets are the next one to read. This table does not know owners: `kind_of` translates the lock table's verdict.

An offset may have finished ranges: what is finished above it. They belong to that offset. They come with a commit and
are replaced by the next one; a reset deletes them, and so does a commit of another offset by a client without finished
ranges.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, TypeAlias

from lanemq.core.brokering.lock_table import Stale, Verdict
from lanemq.core.finished_ranges import MAX_RANGES, FinishedRanges
from lanemq.model.errors import InvalidOption
from lanemq.model.units import QueueOffset


class CommitKind(Enum):
    """What a commit may do, depending on its sender."""

    FORWARD = "forward"
    """Move forward only: LaneMQ clients, and stock clients while another member owns the queue."""
    ANY_WAY = "any way"
    """Also move back: a stock client that owns the queue, or commits where no member does."""
    FENCED = "fenced"
    """Nothing: a LaneMQ client whose lease is not the current one."""


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
OffsetKey: TypeAlias = tuple[str, str, int]
"""Group, topic, queue id."""


class SavedOffset(NamedTuple):
    """The saved state of one queue of one group."""

    group: str
    topic: str
    queue_id: int
    offset: QueueOffset
    reset_pending: bool
    finished: str = ""
    """As `FinishedRanges.encode(offset)` writes them."""


def _has_ranges(finished: FinishedRanges | None) -> bool:
    return finished is not None and bool(finished.bounds)


def kind_of(verdict: Verdict, *, stock: bool) -> CommitKind:
    """What a commit may do whose sender has this standing."""
    if isinstance(verdict, Stale):
        return CommitKind.FORWARD if stock else CommitKind.FENCED
    return CommitKind.ANY_WAY if stock else CommitKind.FORWARD


_NO_TOPICS: dict[str, dict[int, QueueOffset]] = {}
_NO_QUEUES: dict[int, QueueOffset] = {}

OFFSET_BYTES = 350
"""Memory of the offset of one group in one queue."""


class GroupOffsets:
    """The committed offsets of all groups of one broker."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, dict[int, QueueOffset]]] = {}
        """Group → topic → queue id → offset; nothing is empty."""
        self._groups_of: dict[str, dict[str, None]] = {}
        """Topic → the groups with offsets in it, so that its deletion costs by what it had."""
        self._counts: dict[str, int] = {}
        """Group → how many offsets it has."""
        # All three contain only keys that have an offset. Finished ranges are text, never empty.
        self._finished: dict[OffsetKey, str] = {}
        self._pending: dict[OffsetKey, bool] = {}  # whether a pull was answered with it
        self._dirty: set[OffsetKey] = set()
        self._finished_chars: dict[str, int] = {}
        """Group → length of all its finished ranges; no zeros."""
        self._noted: set[OffsetKey] | None = None

    @contextmanager
    def noting(self) -> Iterator[set[OffsetKey]]:
        """The keys that change until the end of the block; one block at a time. The caller may remove keys."""
        assert self._noted is None, "changes are noted already"
        self._noted = set()
        try:
            yield self._noted
        finally:
            self._noted = None

    def commit(
        self,
        group: str,
        topic: str,
        queue_id: int,
        offset: QueueOffset,
        *,
        kind: CommitKind,
        finished: FinishedRanges | None = None,
    ) -> Commit:
        """Store a group's offset in a queue if its sender may; `finished` is None if it keeps no finished ranges."""
        key = (group, topic, queue_id)
        if offset < 0:
            return Ignored(WhyIgnored.NEGATIVE)
        if kind is CommitKind.FENCED:
            return Ignored(WhyIgnored.FENCED)
        stored = self.committed(group, topic, queue_id)
        # With finished ranges it stems from before the reset, and would hide messages that are to run again.
        if key in self._pending and (_has_ranges(finished) or not self._has_arrived(key, offset)):
            return Ignored(WhyIgnored.RESET_PENDING)
        if stored is not None and offset < stored and kind is CommitKind.FORWARD:
            return Backward(stored)
        before = self._finished.get(key, "")
        kept = before if offset == stored else ""
        after = kept if finished is None else finished.lowest(MAX_RANGES).encode(offset)
        if offset != stored or after != before:
            self._put(key, offset, after)
        return Committed(stored)

    def committed(self, group: str, topic: str, queue_id: int) -> QueueOffset | None:
        """The group's next offset; None if it never committed in this queue."""
        return self._groups.get(group, _NO_TOPICS).get(topic, _NO_QUEUES).get(queue_id)

    def finished_ranges(self, group: str, topic: str, queue_id: int) -> str:
        """What is finished above the committed offset, as `FinishedRanges.encode` writes it."""
        return self._finished.get((group, topic, queue_id), "")

    def bytes(self, group: str) -> int:
        """About how much memory the offsets and finished ranges of a group take."""
        return OFFSET_BYTES * self._counts.get(group, 0) + self._finished_chars.get(group, 0)

    def forget_finished(self, group: str, topic: str, queue_id: int) -> None:
        """Delete finished ranges, because the queue's owner does not know them and repeats what they cover.

        Otherwise the next owner would skip messages whose repeat was started and not finished.
        """
        key = (group, topic, queue_id)
        if key in self._finished:
            self._set_finished(key, "")
            self._changed(key)

    def cut_offsets(self, end_of: Callable[[str, int], int]) -> None:
        """After a crash, move offsets beyond a queue's end back to it: new messages there must not be skipped.

        Only a power cut without durable writes moves an end back.
        """
        for group in self._groups:
            for (topic, queue_id), offset in self.of_group(group).items():
                end = QueueOffset(end_of(topic, queue_id))
                if offset > end:
                    self._put((group, topic, queue_id), end)

    def cut_finished(self, end_of: Callable[[str, int], int]) -> None:
        """After a restart, cut finished ranges at the queue's end."""
        for key, text in list(self._finished.items()):
            group, topic, queue_id = key
            offset = self._groups[group][topic][queue_id]
            finished = FinishedRanges.decode(text, offset)
            left = finished.below(end_of(topic, queue_id))
            if left != finished:
                self._put(key, offset, left.encode(offset))

    def reset(self, group: str, topic: str, queue_id: int, offset: QueueOffset) -> None:
        """Set the offset, in either direction, for a group without members."""
        self._refuse_negative(offset)
        self._pending.pop((group, topic, queue_id), None)
        self._put((group, topic, queue_id), offset)

    def reset_at_next_pull(self, group: str, topic: str, queue_id: int, offset: QueueOffset) -> None:
        """Set the offset and ignore commits until a pull has moved the running members there."""
        self._refuse_negative(offset)
        self._pending[group, topic, queue_id] = False
        self._put((group, topic, queue_id), offset)

    def pending_reset(
        self,
        group: str,
        topic: str,
        queue_id: int,
        pulled_from: QueueOffset,
        *,
        decides: bool = False,
        commits: bool = False,
    ) -> QueueOffset | None:
        """The offset with which a pull is answered "moved"; None if no reset is pending.

        A client that `decides` itself where it reads is answered so once, and may continue elsewhere. One that
        `commits` the offset it has moved to is answered so until it has.
        """
        key = (group, topic, queue_id)
        if key not in self._pending:
            return None
        if (decides or not commits) and self._has_arrived(key, pulled_from, decides=decides):
            return None
        self._pending[key] = True
        return self.committed(*key)

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset is pending."""
        return (group, topic, queue_id) in self._pending

    def of_group(self, group: str) -> Mapping[tuple[str, int], QueueOffset]:
        """A copy: (topic, queue id) → offset."""
        topics = self._groups.get(group, _NO_TOPICS)
        return {(topic, queue_id): offset for topic, held in topics.items() for queue_id, offset in held.items()}

    def groups(self) -> tuple[str, ...]:
        """The groups that ever committed anything, sorted."""
        return tuple(sorted(self._groups))

    def has_topic(self, group: str, topic: str) -> bool:
        """Whether the group ever committed in the topic."""
        return topic in self._groups.get(group, _NO_TOPICS)

    def forget(self, *, group: str | None = None, topic: str | None = None) -> tuple[OffsetKey, ...]:
        """Remove the offsets of a deleted group, a deleted topic, or both; returns the keys to delete on disk."""
        if group is not None:
            names: Iterable[str] = (group,)
        else:
            names = self._groups if topic is None else self._groups_of.get(topic, ())
        held = [
            (name, each)
            for name in names
            for each in (self._groups.get(name, _NO_TOPICS) if topic is None else (topic,))
        ]
        gone = [
            (name, each, queue_id)
            for name, each in held
            for queue_id in self._groups.get(name, _NO_TOPICS).get(each, _NO_QUEUES)
        ]
        for name, each in held:
            self._forget_topic(name, each)
        self._dirty.difference_update(gone)
        for key in gone:
            self._pending.pop(key, None)
            self._set_finished(key, "")
        if self._noted is not None:
            self._noted.update(gone)
        return tuple(gone)

    def dirty(self) -> tuple[SavedOffset, ...]:
        """The rows that are not `saved` yet."""
        return tuple(map(self._row, self._dirty))

    def saved(self, rows: Iterable[SavedOffset]) -> None:
        """Mark rows as saved. Those that changed again while they were written stay dirty."""
        for row in rows:
            key = row[:3]
            if key in self._dirty and self._row(key) == row:
                self._dirty.discard(key)

    def restore(self, rows: Iterable[SavedOffset]) -> None:
        for row in rows:
            self._set(row[:3], row.offset)
            if row.reset_pending:
                self._pending[row[:3]] = False
            self._set_finished(row[:3], row.finished)

    def _has_arrived(self, key: OffsetKey, offset: QueueOffset, *, decides: bool = False) -> bool:
        """End a pending reset if a pull was answered with it and a member is at its offset; returns whether it ended.

        Without such an answer a member may be there by chance, while it still has messages from before the reset.
        """
        if not self._pending[key] or not (decides or offset == self.committed(*key)):
            return False
        del self._pending[key]
        self._dirty.add(key)
        return True

    def _put(self, key: OffsetKey, offset: QueueOffset, finished: str = "") -> None:
        self._set(key, offset)
        self._changed(key)
        self._set_finished(key, finished)

    def _set(self, key: OffsetKey, offset: QueueOffset) -> None:
        group, topic, queue_id = key
        held = self._groups.setdefault(group, {}).setdefault(topic, {})
        if queue_id not in held:
            self._counts[group] = self._counts.get(group, 0) + 1
            self._groups_of.setdefault(topic, {})[group] = None
        held[queue_id] = offset

    def _forget_topic(self, group: str, topic: str) -> None:
        """Remove the offsets of a group in a topic, if it has any."""
        topics = self._groups.get(group, _NO_TOPICS)
        if topic not in topics:
            return
        self._counts[group] -= len(topics.pop(topic))
        del self._groups_of[topic][group]
        if not topics:
            del self._groups[group], self._counts[group]
        if not self._groups_of[topic]:
            del self._groups_of[topic]

    def _set_finished(self, key: OffsetKey, finished: str) -> None:
        before = self._finished.pop(key, "")
        if finished:
            self._finished[key] = finished
        if len(finished) != len(before):
            chars = self._finished_chars.pop(key[0], 0) + len(finished) - len(before)
            if chars:
                self._finished_chars[key[0]] = chars

    def _changed(self, key: OffsetKey) -> None:
        self._dirty.add(key)
        if self._noted is not None:
            self._noted.add(key)

    def _row(self, key: OffsetKey) -> SavedOffset:
        group, topic, queue_id = key
        finished = self._finished.get(key, "")
        return SavedOffset(*key, self._groups[group][topic][queue_id], key in self._pending, finished)

    @staticmethod
    def _refuse_negative(offset: QueueOffset) -> None:
        if offset < 0:
            raise InvalidOption(f"offset {offset} cannot be reset to: use 0 or more")

    def _check(self) -> None:
        for group, topic, queue_id in self._pending.keys() | self._dirty | self._finished.keys():
            assert self.committed(group, topic, queue_id) is not None
        assert all(self._finished.values())
        chars: dict[str, int] = {}
        for (group, _, _), text in self._finished.items():
            chars[group] = chars.get(group, 0) + len(text)
        assert chars == self._finished_chars
        assert all(topics and all(topics.values()) for topics in self._groups.values())
        assert self._counts == {group: len(self.of_group(group)) for group in self._groups}
        pairs = {(topic, group) for group, topics in self._groups.items() for topic in topics}
        assert pairs == {(topic, group) for topic, groups in self._groups_of.items() for group in groups}
        assert all(self._groups_of.values())
