"""Deduplication: recognises repeats, gaps and replaced producers by the stamps of their messages.

Invariant: whatever is lost, repeated or delayed on the network, the log holds each stamped message once, in the order
of its sequence. A send is stored only if it continues exactly where its producer stopped in that queue. Everything else
is answered from memory or refused.

The broker calls `judge`, stages the records, and calls `record`, on one thread without interruption. A `Duplicate` may
refer to records that are staged and not yet on disk: its answer waits for the disk like the original's. After a crash
the table is rebuilt by `restore` (from the checkpoint) and `replay` (from the log after it), so it forgets what the log
lost, and a repeat of that is fresh.

Damage in the middle of the log leaves a hole in a producer's sequences, between two ranges. A repeat that reaches into
the hole is not a duplicate, and storing it now would put it after its successors. It is answered `Gap(0)`, as if the
producer were unknown, so that its sender learns that the outcome is unknown.

Memory is bounded. Producers that stored nothing for `idle_ms` (elapsed time) are forgotten. So are those idle for
longest when there are more than `capacity`, or when one topic or one user has more than an eighth of it: a flood of
producers in one topic, or of one user, makes the table forget only producers of that topic or user. A forgotten
producer that continues is answered `Gap(0)` and must start a new epoch. The price: a repeat of a producer's very first
batch (sequence 0) that arrives after it was forgotten is stored again, and a replaced producer is no longer fenced.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset

IDLE_MS = Millis(7 * 24 * 3_600_000)
CAPACITY = 65_536
MAX_SEQUENCE_RANGES = 128

ProducerKey: TypeAlias = tuple[str, int, str]
"""Topic, queue id, producer id."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """To be stored, without the first `skip` messages, which are in the log already."""

    skip: int = 0
    known_offset: QueueOffset | None = None
    """The offset of the first skipped message; None if nothing is skipped, or as in `Duplicate`."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """All messages are in the log already, from `offset` on.

    None: the offset was forgotten, or a crash cut the batch in two, and its parts are in two places.
    """

    offset: QueueOffset | None


@dataclass(frozen=True, slots=True)
class Gap:
    """An earlier message of this producer is missing, from `expected` on. 0: the producer is unknown."""

    expected: int


@dataclass(frozen=True, slots=True)
class Fenced:
    """A producer with the same id and a newer epoch has stored messages in this queue."""

    current_epoch: int


_FRESH = Fresh()
"""The usual judgement, made once because every send needs it."""

Judgement: TypeAlias = Fresh | Duplicate | Gap | Fenced


class SequenceRange(NamedTuple):
    """Messages with consecutive sequences and offsets. Adjacent batches are merged into one."""

    sequence: int
    offset: QueueOffset
    length: int


class SavedProducer(NamedTuple):
    """The saved state of one producer in one queue."""

    topic: str
    queue_id: int
    producer: str
    epoch: int
    next_sequence: int
    last_stored: Millis
    ranges: tuple[SequenceRange, ...]
    user: str | None = None
    """Who is charged for it; None if that is not known."""


class Unsaved(NamedTuple):
    """The rows that the next checkpoint must write and delete."""

    rows: tuple[SavedProducer, ...]
    gone: tuple[ProducerKey, ...]


@dataclass(slots=True, eq=False)
class Saving:
    """The changes that one checkpoint writes, as they were when it began."""

    keys: set[ProducerKey]
    gone: set[ProducerKey]
    """Rows to delete."""
    left: set[ProducerKey]
    """Those of the keys whose rows are not copied yet."""
    rows: dict[ProducerKey, SavedProducer] = field(default_factory=dict)
    dropped: set[str] = field(default_factory=set)
    """Topics that were deleted since it began. Their rows are left out: they would be written after their deletion."""

    def take_rows(self) -> Iterator[SavedProducer]:
        """The rows, for another thread. Changes of the table do not reach them any more."""
        rows, self.rows = list(self.rows.values()), {}
        return _emptied(rows, frozenset(self.dropped))


def _emptied(rows: list[SavedProducer], dropped: frozenset[str]) -> Iterator[SavedProducer]:
    """The rows without those of dropped topics. Empties the list on the way: to free tens of thousands of rows at once
    takes milliseconds."""
    while rows:
        row = rows.pop()
        if row.topic not in dropped:
            yield row


class _Producer:
    """One producer in one queue. `ranges` are the newest ones, ascending; the last one ends at `next_sequence`.

    They are empty if the first messages of an epoch could not be stored.
    """

    __slots__ = ("epoch", "idle_since", "last_stored", "next_sequence", "ranges")

    def __init__(self, epoch: int, next_sequence: int) -> None:
        self.epoch = epoch
        self.next_sequence = next_sequence
        self.last_stored = Millis(0)
        self.idle_since: Millis | None = None
        """Monotonic; None if it has stored something since the last `expire`."""
        self.ranges: list[SequenceRange] = []

    def stored(self, sequence: int, count: int, offset: QueueOffset, at: Millis) -> None:
        last = self.ranges[-1] if self.ranges else None
        if last is not None and sequence - last.sequence == offset - last.offset == last.length:
            # Not by the constructor of a named tuple, which is a function of Python: every send comes here.
            self.ranges[-1] = tuple.__new__(SequenceRange, (last.sequence, last.offset, last.length + count))
        else:
            self.ranges.append(SequenceRange(sequence, offset, count))
            del self.ranges[:-MAX_SEQUENCE_RANGES]
        self.next_sequence = sequence + count
        if at > self.last_stored:
            self.last_stored = at
        self.idle_since = None

    def cut(self, sequence: int) -> None:
        """Forget this sequence and all later ones."""
        self.ranges = [
            each._replace(length=min(each.length, sequence - each.sequence))
            for each in self.ranges
            if each.sequence < sequence
        ]
        self.next_sequence = sequence

    def misses(self, first: int, end: int) -> bool:
        """Whether one of these sequences is in a hole between two ranges, which only damage leaves."""
        holes = ((each.sequence + each.length, later.sequence) for each, later in pairwise(self.ranges))
        return any(max(first, begin) < min(end, until) for begin, until in holes)

    def offset_of(self, sequence: int, count: int) -> QueueOffset | None:
        """The offset of these messages; None if it was forgotten, or if they are in several places."""
        for each in reversed(self.ranges):
            if each.sequence <= sequence:
                inside = sequence - each.sequence
                return QueueOffset(each.offset + inside) if inside + count <= each.length else None
        return None


class ProducerTable:
    """The producers that send stamps to one broker, by queue."""

    def __init__(
        self,
        *,
        capacity: int = CAPACITY,
        idle_ms: int = IDLE_MS,
        topic_capacity: int | None = None,
        user_capacity: int | None = None,
    ) -> None:
        """`topic_capacity` and `user_capacity` are the shares of one topic and of one user; None: an eighth."""
        self._capacity = capacity
        self._topic_capacity = max(64, capacity // 8) if topic_capacity is None else topic_capacity
        self._user_capacity = max(64, capacity // 8) if user_capacity is None else user_capacity
        self._idle_ms = idle_ms
        # Longest idle first: `_remember` moves a producer to the end.
        self._producers: dict[ProducerKey, _Producer] = {}
        # The same by topic; no empty entries.
        self._of_topic: dict[str, dict[ProducerKey, None]] = {}
        # The same by user, of the producers whose user is known; no empty entries.
        self._of_user: dict[str, dict[ProducerKey, None]] = {}
        self._users: dict[ProducerKey, str] = {}
        # Disjoint: a key is either to be written or to be deleted.
        self._dirty: set[ProducerKey] = set()
        self._gone: set[ProducerKey] = set()
        # What a checkpoint writes at the moment. What changes since it began is dirty, or gone, again.
        self._saving: Saving | None = None

    def judge(self, topic: str, queue_id: int, first: Stamp, count: int) -> Judgement:
        """Decide about `count` messages with consecutive sequences from `first` on. Changes nothing."""
        known = self._producers.get((topic, queue_id, first.producer))
        if known is not None and first.epoch < known.epoch:
            return Fenced(known.epoch)
        if known is None or first.epoch > known.epoch:
            return _FRESH if first.sequence == 0 else Gap(0)
        if first.sequence > known.next_sequence:
            return Gap(known.next_sequence)
        skip = known.next_sequence - first.sequence
        if skip == 0:
            return _FRESH
        if known.misses(first.sequence, first.sequence + count):
            return Gap(0)
        offset = known.offset_of(first.sequence, min(skip, count))
        return Duplicate(offset) if skip >= count else Fresh(skip, offset)

    def record(
        self,
        topic: str,
        queue_id: int,
        first: Stamp,
        count: int,
        first_offset: QueueOffset,
        *,
        stored_at: Millis,
        user: str | None = None,
    ) -> None:
        """Record messages that were just staged. `first` is the first stamp stored, after the skipped ones.

        `user` is charged for the producer; None on a broker without users. Users are saved with the producers; one that
        only the log knows, because a crash came before the next checkpoint, has none until its next message.
        """
        key = (topic, queue_id, first.producer)
        known = self._producers.get(key)
        continues = known is not None and (known.epoch, known.next_sequence) == (first.epoch, first.sequence)
        if not continues and self.judge(topic, queue_id, first, count) is not _FRESH:
            raise ValueError(f"{first} does not continue queue {topic}/{queue_id}: judge it before storing it")
        self._remember(key, first, count, first_offset, stored_at)
        if user is not None and key in self._producers:
            self._charge(key, user)

    def _charge(self, key: ProducerKey, user: str) -> None:
        """Count a producer for a user, as the last one; above the user's share, its longest idle one is forgotten."""
        self._uncharge(key)
        self._users[key] = user
        of_user = self._of_user.setdefault(user, {})
        of_user[key] = None
        while len(of_user) > self._user_capacity:
            self._forget(next(iter(of_user)))

    def _uncharge(self, key: ProducerKey) -> None:
        user = self._users.pop(key, None)
        if user is not None:
            del self._of_user[user][key]
            if not self._of_user[user]:
                del self._of_user[user]

    def replay(
        self,
        topic: str,
        queue_id: int,
        first: Stamp,
        count: int,
        first_offset: QueueOffset,
        *,
        stored_at: Millis,
    ) -> None:
        """Record messages found in the log during recovery.

        The log may start in the middle of a producer's sequences, because of retention; that is accepted. Messages
        that the checkpoint already contains are ignored.
        """
        key = (topic, queue_id, first.producer)
        known = self._producers.get(key)
        if known is not None and (first.epoch, first.sequence) < (known.epoch, known.next_sequence):
            skip = known.next_sequence - first.sequence
            if first.epoch < known.epoch or skip >= count:
                return
            first = first._replace(sequence=first.sequence + skip)
            count, first_offset = count - skip, QueueOffset(first_offset + skip)
        self._remember(key, first, count, first_offset, stored_at)

    def undo(self, topic: str, queue_id: int, lost: Stamp) -> None:
        """Forget a message that was recorded and could not be stored, and all later ones of its producer.

        A repeat is fresh then. A new epoch stays known even if nothing of it was stored: the old one is still fenced.
        """
        key = (topic, queue_id, lost.producer)
        known = self._producers.get(key)
        if known is not None and known.epoch == lost.epoch and known.next_sequence > lost.sequence:
            self._copy_if_saving(key)
            known.cut(lost.sequence)
            self._dirty.add(key)

    def expire(self, *, now: Millis) -> Iterator[None]:
        """Forget the producers that stored nothing for `idle_ms` of elapsed time, one look in each step.

        The table may change between two steps: what stores something in between is not idle.
        """
        for key in tuple(self._producers):
            known = self._producers.get(key)
            if known is not None:
                if known.idle_since is None:
                    known.idle_since = now
                elif now - known.idle_since >= self._idle_ms:
                    self._forget(key)
            yield

    def forget_topic(self, topic: str) -> None:
        """Forget the producers of a deleted topic, whose queues start at offset 0 again.

        A checkpoint that is not written yet leaves them out: it comes after the deletion of the topic's rows. All of
        them at once: a topic has an eighth of the table at most, and one takes half a microsecond.
        """
        keys = self._of_topic.pop(topic, {})
        for key in keys:
            del self._producers[key]
            if key in self._users:
                self._uncharge(key)
        self._dirty.difference_update(keys)
        self._gone.update(keys)
        if self._saving is not None:
            self._saving.left.difference_update(keys)
            self._saving.dropped.add(topic)

    def export(self) -> tuple[SavedProducer, ...]:
        """All rows, longest idle first; `restore` of them gives the same table."""
        return tuple(self._row(key) for key in self._producers)

    def restore(self, rows: Iterable[SavedProducer], *, now: Millis) -> None:
        """Enter saved rows. Every producer is idle from now on: how long it was before, only the wall clock could tell,
        which may be wrong after a boot."""
        for row in rows:
            known = _Producer(row.epoch, row.next_sequence)
            known.last_stored = row.last_stored
            known.idle_since = now
            known.ranges = list(row.ranges)
            key = (row.topic, row.queue_id, row.producer)
            self._producers[key] = known
            self._of_topic.setdefault(row.topic, {})[key] = None
            if row.user is not None:
                self._charge(key, row.user)

    def users(self) -> dict[str, str]:
        """Producer id → its user, of the producers whose user is known."""
        return {key[2]: user for key, user in self._users.items()}

    def dirty(self) -> Unsaved:
        """The changes that are not `saved` yet, for a checkpoint in one piece.

        They may be written only when the log is on disk up to everything recorded. With a checkpoint ahead of the log,
        the repeat of a message lost in a crash would be refused as a duplicate.
        """
        keys, gone = self._dirty, self._gone
        if self._saving is not None:
            keys = keys | self._saving.keys.intersection(self._producers)
            gone = gone | self._saving.gone.difference(self._producers)
        return Unsaved(tuple(map(self._row, keys)), tuple(gone))

    def begin_saving(self) -> Saving:
        """Begin a checkpoint of what is recorded by now; one at a time. The steps of `copy` must follow.

        As for `dirty`, the rows may be written only when the log is on disk up to everything recorded by now. There may
        be tens of thousands of them, so they are not copied here: a row that changes before its turn comes is copied
        first.
        """
        assert self._saving is None, "a checkpoint is under way: end it with `saved` or `give_back`"
        self._saving = Saving(self._dirty, self._gone, set(self._dirty))
        self._dirty, self._gone = set(), set()
        return self._saving

    def copy(self, saving: Saving) -> Iterator[None]:
        """Copy the rows of a checkpoint, one in each step. The table may change in between."""
        while saving.left and saving is self._saving:
            key = saving.left.pop()
            saving.rows[key] = self._row(key)
            yield

    def saved(self, saving: Saving) -> None:
        """End a checkpoint that is on disk. What changed since it began stays dirty."""
        assert saving is self._saving
        self._saving = None

    def give_back(self, saving: Saving) -> None:
        """End a checkpoint that was not written; the next one contains its changes."""
        assert saving is self._saving
        self._saving = None
        self._dirty |= saving.keys.intersection(self._producers)
        self._gone |= saving.gone.difference(self._producers)

    def __len__(self) -> int:
        return len(self._producers)

    def _copy_if_saving(self, key: ProducerKey) -> None:
        """Called before a row changes: a checkpoint that has not copied it yet needs it as it is."""
        saving = self._saving
        if saving is not None and key in saving.left:
            saving.left.discard(key)
            saving.rows[key] = self._row(key)

    def _remember(self, key: ProducerKey, first: Stamp, count: int, offset: QueueOffset, stored_at: Millis) -> None:
        if self._saving is not None:
            self._copy_if_saving(key)
        known = self._producers.pop(key, None)
        if known is None or known.epoch != first.epoch:
            known = _Producer(first.epoch, first.sequence)
        known.stored(first.sequence, count, offset, stored_at)
        self._producers[key] = known
        of_topic = self._of_topic.setdefault(key[0], {})
        of_topic.pop(key, None)
        of_topic[key] = None
        self._dirty.add(key)
        self._gone.discard(key)
        while len(of_topic) > self._topic_capacity:
            self._forget(next(iter(of_topic)))
        while len(self._producers) > self._capacity:
            self._forget(next(iter(self._producers)))

    def _forget(self, key: ProducerKey) -> None:
        self._copy_if_saving(key)
        del self._producers[key]
        of_topic = self._of_topic[key[0]]
        del of_topic[key]
        if not of_topic:
            del self._of_topic[key[0]]
        self._uncharge(key)
        self._dirty.discard(key)
        self._gone.add(key)

    def _row(self, key: ProducerKey) -> SavedProducer:
        known = self._producers[key]
        ranges, user = tuple(known.ranges), self._users.get(key)
        return SavedProducer(*key, known.epoch, known.next_sequence, known.last_stored, ranges, user)
