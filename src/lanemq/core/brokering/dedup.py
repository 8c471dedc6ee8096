"""Recognises repeats, gaps and replaced producers by the stamps of their messages.

The rule guarded here: whatever is lost, repeated or delayed on the way, the log holds each stamped message
once and in the order of its sequence. A send is stored only if it continues exactly where its producer
stopped in that queue; anything else is answered from memory or refused.

Order of events in the broker: `judge`, stage the records, `record`; all on one thread, so nothing comes
between. A `Duplicate` may point at records that are staged and not yet on disk: its answer waits for the
disk like the first one's. After a crash the table is rebuilt by `restore` (checkpoint) and `replay` (the
log behind it), so what the log lost is forgotten here too, and its repetition is fresh.

Damage in the middle of the log leaves a hole in a producer's sequences, between two runs. A repetition that reaches
into it is no duplicate, and stored now it would lie behind what followed it: it is answered `Gap(0)`, as if the
producer were forgotten, so that its sender hears that nobody knows.

Memory is bounded: producers that stored nothing for `idle_ms`, and beyond `capacity` the longest silent
ones, are forgotten. A forgotten producer that goes on is told `Gap(0)` and must start a new epoch; it is
never guessed. The price: a repetition of a producer's very first batch (sequence 0) that arrives after it
was forgotten is stored again, and a replaced producer is no longer fenced.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple, TypeAlias

from lanemq.model.stamp import Stamp
from lanemq.model.units import Millis, QueueOffset

IDLE_MS = Millis(7 * 24 * 3_600_000)
CAPACITY = 65_536
MAX_RUNS = 128

ProducerKey: TypeAlias = tuple[str, int, str]
"""Topic, queue id, producer id."""


@dataclass(frozen=True, slots=True)
class Fresh:
    """Store it, but leave out the first `skip` messages: they are in the log already."""

    skip: int = 0
    known_offset: QueueOffset | None = None
    """Where the skipped messages begin; None if nothing is skipped, or see `Duplicate`."""


@dataclass(frozen=True, slots=True)
class Duplicate:
    """Everything is in the log already, from `offset` on.

    None: so long ago that it was forgotten, or a crash cut the batch in two, and its parts lie in two places.
    """

    offset: QueueOffset | None


@dataclass(frozen=True, slots=True)
class Gap:
    """An earlier message of this producer is missing; storing this one would overtake it. 0: nothing is known of it."""

    expected: int


@dataclass(frozen=True, slots=True)
class Fenced:
    """A newer producer with the same id has stored something here."""

    current_epoch: int


_FRESH = Fresh()
"""The usual judgement, made once: a broker asks for it with every send."""

Judgement: TypeAlias = Fresh | Duplicate | Gap | Fenced


class Run(NamedTuple):
    """Messages whose sequences and offsets both grow by one from here. Batches that touch make one run."""

    sequence: int
    offset: QueueOffset
    length: int


class ProducerRow(NamedTuple):
    """What a checkpoint keeps about one producer in one queue."""

    topic: str
    queue_id: int
    producer: str
    epoch: int
    next_sequence: int
    last_stored: Millis
    runs: tuple[Run, ...]


class Unsaved(NamedTuple):
    """What the next checkpoint has to write and to delete."""

    rows: tuple[ProducerRow, ...]
    gone: tuple[ProducerKey, ...]


class _Producer:
    """`runs` are the newest part of what was stored: ascending, and the last one ends at `next_sequence`."""

    __slots__ = ("epoch", "last_stored", "next_sequence", "runs")

    def __init__(self, epoch: int, next_sequence: int) -> None:
        self.epoch = epoch
        self.next_sequence = next_sequence
        self.last_stored = Millis(0)
        self.runs: list[Run] = []

    def stored(self, sequence: int, count: int, offset: QueueOffset, at: Millis) -> None:
        last = self.runs[-1] if self.runs else None
        if last is not None and (sequence, offset) == (
            last.sequence + last.length,
            last.offset + last.length,
        ):
            self.runs[-1] = Run(last.sequence, last.offset, last.length + count)
        else:
            self.runs.append(Run(sequence, offset, count))
            del self.runs[:-MAX_RUNS]
        self.next_sequence = sequence + count
        self.last_stored = max(self.last_stored, at)

    def misses(self, first: int, end: int) -> bool:
        """Whether one of these sequences lies in a hole: only damage leaves one, `record` takes what follows."""
        holes = ((run.sequence + run.length, later.sequence) for run, later in pairwise(self.runs))
        return any(max(first, begin) < min(end, until) for begin, until in holes)

    def offset_of(self, sequence: int, count: int) -> QueueOffset | None:
        """Where these lie, one behind the other; None if that was forgotten, or they lie in several places."""
        for run in reversed(self.runs):
            if run.sequence <= sequence:
                inside = sequence - run.sequence
                return QueueOffset(run.offset + inside) if inside + count <= run.length else None
        return None


class ProducerTable:
    """Every stamped producer of one broker, per queue."""

    def __init__(self, *, capacity: int = CAPACITY, idle_ms: int = IDLE_MS) -> None:
        self._capacity = capacity
        self._idle_ms = idle_ms
        # Longest silent first: `_remember` moves a producer to the end.
        self._producers: dict[ProducerKey, _Producer] = {}
        # Disjoint: a key is either to be written or to be deleted.
        self._dirty: set[ProducerKey] = set()
        self._gone: set[ProducerKey] = set()

    def judge(self, topic: str, queue_id: int, first: Stamp, count: int) -> Judgement:
        """What to do with `count` messages with consecutive sequences from `first` on. Changes nothing."""
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
    ) -> None:
        """Remember what was just staged. `first` is the first stamp stored, after the skipped ones."""
        if self.judge(topic, queue_id, first, count) is not _FRESH:
            raise ValueError(f"{first} does not continue queue {topic}/{queue_id}: judge it before storing it")
        self._remember((topic, queue_id, first.producer), first, count, first_offset, stored_at)

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
        """Learn from the log itself, which is right by definition.

        The log may begin in the middle of a producer's life (retention) or before the checkpoint (then the
        message is known): the first is accepted, the second ignored.
        """
        key = (topic, queue_id, first.producer)
        known = self._producers.get(key)
        if known is not None and (first.epoch, first.sequence) < (known.epoch, known.next_sequence):
            return
        self._remember(key, first, count, first_offset, stored_at)

    def expire(self, *, wall: Millis) -> int:
        """Forget the producers that stored nothing for `idle_ms`; says how many.

        Wall time, because store timestamps survive restarts; a clock that jumps can only forget early.
        """
        idle = [key for key, known in self._producers.items() if known.last_stored + self._idle_ms <= wall]
        for key in idle:
            self._forget(key)
        return len(idle)

    def forget_topic(self, topic: str) -> None:
        """The topic was deleted: its queues start at offset 0 again and know nobody."""
        for key in [key for key in self._producers if key[0] == topic]:
            self._forget(key)

    def export(self) -> tuple[ProducerRow, ...]:
        """Everything, longest silent first; `restore` of it gives the same table."""
        return tuple(self._row(key) for key in self._producers)

    def restore(self, rows: Iterable[ProducerRow]) -> None:
        for row in rows:
            known = _Producer(row.epoch, row.next_sequence)
            known.last_stored = row.last_stored
            known.runs = list(row.runs)
            self._producers[row.topic, row.queue_id, row.producer] = known

    def dirty(self) -> Unsaved:
        """What changed since it was last `saved`.

        Write it only when the log is on disk up to all that was recorded: a checkpoint ahead of the log would
        call a message that a crash took a duplicate, and lose it.
        """
        return Unsaved(tuple(map(self._row, self._dirty)), tuple(self._gone))

    def saved(self, unsaved: Unsaved) -> None:
        """These rows are on disk. What changed again while they were written stays dirty."""
        for row in unsaved.rows:
            key = row[:3]
            if key in self._dirty and self._row(key) == row:
                self._dirty.discard(key)
        self._gone.difference_update(unsaved.gone)

    def __len__(self) -> int:
        return len(self._producers)

    def _remember(self, key: ProducerKey, first: Stamp, count: int, offset: QueueOffset, stored_at: Millis) -> None:
        known = self._producers.pop(key, None)
        if known is None or known.epoch != first.epoch:
            known = _Producer(first.epoch, first.sequence)
        known.stored(first.sequence, count, offset, stored_at)
        self._producers[key] = known
        self._dirty.add(key)
        self._gone.discard(key)
        while len(self._producers) > self._capacity:
            self._forget(next(iter(self._producers)))

    def _forget(self, key: ProducerKey) -> None:
        del self._producers[key]
        self._dirty.discard(key)
        self._gone.add(key)

    def _row(self, key: ProducerKey) -> ProducerRow:
        known = self._producers[key]
        return ProducerRow(*key, known.epoch, known.next_sequence, known.last_stored, tuple(known.runs))

    def _check(self) -> None:
        assert len(self._producers) <= self._capacity
        assert not self._dirty & self._gone
        assert self._dirty <= self._producers.keys()
        for known in self._producers.values():
            ends = [run.sequence + run.length for run in known.runs]
            assert ends[-1] == known.next_sequence
            assert all(end <= run.sequence for end, run in zip(ends, known.runs[1:], strict=False))
            assert len(known.runs) <= MAX_RUNS
