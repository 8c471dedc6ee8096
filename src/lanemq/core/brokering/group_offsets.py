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

A deleted group or topic may have a hundred thousand offsets. It is forgotten at once, by taking away what leads to
them; what they occupy is freed in steps.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from itertools import islice
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


class _Held:
    """The offsets of one group in one topic, by queue id."""

    __slots__ = ("chars", "finished", "offsets", "pending")

    def __init__(self) -> None:
        self.offsets: dict[int, QueueOffset] = {}
        # Both contain only queues that have an offset. Finished ranges are text, never empty.
        self.finished: dict[int, str] = {}
        self.pending: dict[int, bool] = {}  # whether a pull was answered with it
        self.chars = 0
        """Length of all finished ranges."""

    def freed(self) -> Iterator[None]:
        """Free the memory, one queue in each step."""
        while self.offsets:
            queue_id, _ = self.offsets.popitem()
            self.finished.pop(queue_id, None)
            self.pending.pop(queue_id, None)
            yield


@dataclass(frozen=True, slots=True)
class Noted:
    """What has changed. Its reader handles `forgotten` first: the same queues may have new offsets, in `keys`."""

    keys: set[OffsetKey]
    forgotten: set[tuple[str, str]]
    """Groups and topics all of whose offsets were forgotten."""

    def clear(self) -> None:
        self.keys.clear()
        self.forgotten.clear()


class Forgotten(NamedTuple):
    """What a deletion has removed from a table."""

    groups: tuple[str, ...]
    """The groups that had anything."""
    steps: Iterator[None]
    """Frees the memory, a little in each step. The table may change in between."""


_NO_TOPICS: dict[str, _Held] = {}

OFFSET_BYTES = 350
"""Memory of the offset of one group in one queue."""


class GroupOffsets:
    """The committed offsets of all groups of one broker."""

    def __init__(self) -> None:
        self._groups: dict[str, dict[str, _Held]] = {}
        """Group → topic → offsets; nothing is empty."""
        self._groups_of: dict[str, dict[str, None]] = {}
        """Topic → the groups with offsets in it, so that its deletion costs by what it had. While a forgotten group is
        being freed, it may still be here."""
        self._counts: dict[str, int] = {}
        """Group → how many offsets it has."""
        self._finished_chars: dict[str, int] = {}
        """Group → length of all its finished ranges; no zeros."""
        self._dirty: dict[OffsetKey, None] = {}
        """Longest unsaved first. It may contain keys that were forgotten."""
        self._forgot = False
        """Whether anything was forgotten since the last `dirty`."""
        self._noted: Noted | None = None

    @contextmanager
    def noting(self) -> Iterator[Noted]:
        """What changes until the end of the block; one block at a time. The caller may remove what it has handled."""
        assert self._noted is None, "changes are noted already"
        self._noted = Noted(set(), set())
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
        if self.is_pending(*key) and (_has_ranges(finished) or not self._has_arrived(key, offset)):
            return Ignored(WhyIgnored.RESET_PENDING)
        if stored is not None and offset < stored and kind is CommitKind.FORWARD:
            return Backward(stored)
        before = self.finished_ranges(group, topic, queue_id)
        kept = before if offset == stored else ""
        after = kept if finished is None else finished.lowest(MAX_RANGES).encode(offset)
        if offset != stored or after != before:
            self._put(key, offset, after)
        return Committed(stored)

    def committed(self, group: str, topic: str, queue_id: int) -> QueueOffset | None:
        """The group's next offset; None if it never committed in this queue."""
        held = self._groups.get(group, _NO_TOPICS).get(topic)
        return None if held is None else held.offsets.get(queue_id)

    def finished_ranges(self, group: str, topic: str, queue_id: int) -> str:
        """What is finished above the committed offset, as `FinishedRanges.encode` writes it."""
        held = self._groups.get(group, _NO_TOPICS).get(topic)
        return "" if held is None else held.finished.get(queue_id, "")

    def bytes(self, group: str) -> int:
        """About how much memory the offsets and finished ranges of a group take."""
        return OFFSET_BYTES * self._counts.get(group, 0) + self._finished_chars.get(group, 0)

    def forget_finished(self, group: str, topic: str, queue_id: int) -> None:
        """Delete finished ranges, because the queue's owner does not know them and repeats what they cover.

        Otherwise the next owner would skip messages whose repeat was started and not finished.
        """
        if self.finished_ranges(group, topic, queue_id):
            self._set_finished((group, topic, queue_id), "")
            self._changed((group, topic, queue_id))

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
        for group, topics in self._groups.items():
            for topic, held in topics.items():
                for queue_id, text in list(held.finished.items()):
                    offset = held.offsets[queue_id]
                    finished = FinishedRanges.decode(text, offset)
                    left = finished.below(end_of(topic, queue_id))
                    if left != finished:
                        self._put((group, topic, queue_id), offset, left.encode(offset))

    def reset(self, group: str, topic: str, queue_id: int, offset: QueueOffset) -> None:
        """Set the offset, in either direction, for a group without members."""
        self._refuse_negative(offset)
        self._put((group, topic, queue_id), offset).pending.pop(queue_id, None)

    def reset_at_next_pull(self, group: str, topic: str, queue_id: int, offset: QueueOffset) -> None:
        """Set the offset and ignore commits until a pull has moved the running members there."""
        self._refuse_negative(offset)
        self._put((group, topic, queue_id), offset).pending[queue_id] = False

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
        held = self._groups.get(group, _NO_TOPICS).get(topic)
        if held is None or queue_id not in held.pending:
            return None
        key = (group, topic, queue_id)
        if (decides or not commits) and self._has_arrived(key, pulled_from, decides=decides):
            return None
        held.pending[queue_id] = True
        return held.offsets[queue_id]

    def is_pending(self, group: str, topic: str, queue_id: int) -> bool:
        """Whether a reset is pending."""
        held = self._groups.get(group, _NO_TOPICS).get(topic)
        return held is not None and queue_id in held.pending

    def of_group(self, group: str) -> Mapping[tuple[str, int], QueueOffset]:
        """A copy: (topic, queue id) → offset."""
        topics = self._groups.get(group, _NO_TOPICS)
        return {
            (topic, queue_id): offset for topic, held in topics.items() for queue_id, offset in held.offsets.items()
        }

    def in_steps(self, group: str) -> Iterator[tuple[str, int, QueueOffset]]:
        """Topic, queue id and offset, one in each step. The table may change in between."""
        for topic in self.topics(group):
            held = self._groups.get(group, _NO_TOPICS).get(topic)
            for queue_id, offset in () if held is None else tuple(held.offsets.items()):
                yield topic, queue_id, offset

    def topics(self, group: str) -> tuple[str, ...]:
        """The topics in which a group ever committed."""
        return tuple(self._groups.get(group, _NO_TOPICS))

    def has_group(self, group: str) -> bool:
        """Whether the group ever committed anything."""
        return group in self._groups

    def groups(self) -> tuple[str, ...]:
        """The groups that ever committed anything, sorted."""
        return tuple(sorted(self._groups))

    def has_topic(self, group: str, topic: str) -> bool:
        """Whether the group ever committed in the topic."""
        return topic in self._groups.get(group, _NO_TOPICS)

    def forget_group(self, group: str) -> Forgotten:
        """Remove all offsets of a deleted group. The caller deletes its rows on disk, behind those being written."""
        gone = self._groups.pop(group, {})
        self._counts.pop(group, None)
        self._finished_chars.pop(group, None)
        self._forgot = self._forgot or bool(gone)
        if self._noted is not None:
            self._noted.forgotten.update((group, topic) for topic in gone)
        return Forgotten((group,) if gone else (), self._free_group(group, gone))

    def forget_topic(self, topic: str) -> Forgotten:
        """Remove the offsets of all groups in a deleted topic. The caller deletes its rows on disk, as above."""
        gone: dict[str, _Held] = {}
        for group in self._groups_of.pop(topic, ()):
            topics = self._groups.get(group, {})
            held = topics.pop(topic, None)
            if held is None:
                continue
            gone[group] = held
            self._counts[group] -= len(held.offsets)
            self._count_chars(group, -held.chars)
            if not topics:
                del self._groups[group], self._counts[group]
            if self._noted is not None:
                self._noted.forgotten.add((group, topic))
        self._forgot = self._forgot or bool(gone)
        return Forgotten(tuple(gone), _free_topic(gone))

    def _free_group(self, group: str, gone: dict[str, _Held]) -> Iterator[None]:
        while gone:
            topic, held = gone.popitem()
            if not self.has_topic(group, topic):
                groups = self._groups_of.get(topic, {})
                groups.pop(group, None)
                if not groups:
                    self._groups_of.pop(topic, None)
            yield
            yield from held.freed()

    def dirty(self, limit: int | None = None) -> tuple[SavedOffset, ...]:
        """The rows that are not `saved` yet, or up to `limit` of them, the longest unsaved first."""
        rows, forgotten = [], []
        for key in islice(self._dirty, limit):
            row = self._row(key)
            if row is None:
                forgotten.append(key)
            else:
                rows.append(row)
        for key in forgotten:
            del self._dirty[key]
        self._forgot = False
        return tuple(rows)

    def saved(self, rows: Iterable[SavedOffset]) -> None:
        """Mark rows as saved. Those that changed again while they were written stay dirty.

        If something was forgotten in between, all of them do: its rows are deleted behind those that were written, and
        what has been committed again since would be missing on disk.
        """
        for row in rows:
            key = row[:3]
            if key in self._dirty:
                del self._dirty[key]
                if self._forgot or self._row(key) != row:
                    self._dirty[key] = None

    def restore(self, rows: Iterable[SavedOffset]) -> None:
        for row in rows:
            held = self._set(row[:3], row.offset)
            if row.reset_pending:
                held.pending[row.queue_id] = False
            self._set_finished(row[:3], row.finished)

    def _has_arrived(self, key: OffsetKey, offset: QueueOffset, *, decides: bool = False) -> bool:
        """End a pending reset if a pull was answered with it and a member is at its offset; returns whether it ended.

        Without such an answer a member may be there by chance, while it still has messages from before the reset.
        """
        group, topic, queue_id = key
        held = self._groups[group][topic]
        if not held.pending[queue_id] or not (decides or offset == held.offsets[queue_id]):
            return False
        del held.pending[queue_id]
        self._dirty[key] = None
        return True

    def _put(self, key: OffsetKey, offset: QueueOffset, finished: str = "") -> _Held:
        held = self._set(key, offset)
        self._changed(key)
        self._set_finished(key, finished)
        return held

    def _set(self, key: OffsetKey, offset: QueueOffset) -> _Held:
        group, topic, queue_id = key
        topics = self._groups.setdefault(group, {})
        held = topics.get(topic)
        if held is None:
            held = topics[topic] = _Held()
            self._groups_of.setdefault(topic, {})[group] = None
        if queue_id not in held.offsets:
            self._counts[group] = self._counts.get(group, 0) + 1
        held.offsets[queue_id] = offset
        return held

    def _set_finished(self, key: OffsetKey, finished: str) -> None:
        """Replace the finished ranges of a queue that has an offset."""
        group, topic, queue_id = key
        held = self._groups[group][topic]
        before = held.finished.pop(queue_id, "")
        if finished:
            held.finished[queue_id] = finished
        if len(finished) != len(before):
            held.chars += len(finished) - len(before)
            self._count_chars(group, len(finished) - len(before))

    def _count_chars(self, group: str, more: int) -> None:
        chars = self._finished_chars.pop(group, 0) + more
        if chars:
            self._finished_chars[group] = chars

    def _changed(self, key: OffsetKey) -> None:
        self._dirty[key] = None
        if self._noted is not None:
            self._noted.keys.add(key)

    def _row(self, key: OffsetKey) -> SavedOffset | None:
        """The row of a key; None if it was forgotten."""
        group, topic, queue_id = key
        held = self._groups.get(group, _NO_TOPICS).get(topic)
        offset = None if held is None else held.offsets.get(queue_id)
        if held is None or offset is None:
            return None
        return SavedOffset(*key, offset, queue_id in held.pending, held.finished.get(queue_id, ""))

    @staticmethod
    def _refuse_negative(offset: QueueOffset) -> None:
        if offset < 0:
            raise InvalidOption(f"offset {offset} cannot be reset to: use 0 or more")

    def _check(self) -> None:
        assert all(self._groups.values())
        for group, topics in self._groups.items():
            assert self._counts[group] == sum(len(held.offsets) for held in topics.values())
            assert self._finished_chars.get(group, 0) == sum(held.chars for held in topics.values())
            for topic, held in topics.items():
                assert group in self._groups_of[topic]
                assert held.offsets
                assert held.finished.keys() | held.pending.keys() <= held.offsets.keys()
                assert all(held.finished.values())
                assert held.chars == sum(map(len, held.finished.values()))
        assert self._counts.keys() == self._groups.keys()
        assert self._finished_chars.keys() <= self._groups.keys()
        assert all(self._finished_chars.values())
        assert all(self._groups_of.values())


def _free_topic(gone: dict[str, _Held]) -> Iterator[None]:
    while gone:
        _, held = gone.popitem()
        yield
        yield from held.freed()
