"""The batches of a lane that were sent and not acknowledged, and which of them are accounted for.

Rule: a message is sent under another number only when it is certain that it is not stored under the one it has.

A message that is given up leaves a hole in the numbers of its epoch: from there on nothing can be stored. A batch
behind the hole is clear, free to go under a new epoch, when it is neither under way nor in doubt. What is under way
is refused as a gap; what is in doubt, because an answer was lost, is sent once more to hear that.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator
from itertools import takewhile
from typing import Generic, TypeVar

from lanemq.core.sending.batch import Entry, SendBatch, SentBatch
from lanemq.model.units import Millis

M = TypeVar("M")


class SentWindow(Generic[M]):
    """Ascending by sequence."""

    def __init__(self, most_in_flight: int, key_of: Callable[[M], str | None]) -> None:
        self.most_in_flight = most_in_flight
        self._key_of = key_of
        self._batches: deque[SentBatch[M]] = deque()
        # From this number on nothing can be stored in this epoch any more.
        self._hole: int | None = None

    def __len__(self) -> int:
        return len(self._batches)

    @property
    def first(self) -> SentBatch[M]:
        return self._batches[0]

    @property
    def has_hole(self) -> bool:
        return self._hole is not None

    @property
    def all_clear(self) -> bool:
        return all(map(self.is_clear, self._batches))

    @property
    def searches(self) -> bool:
        """Parts of a refused batch are here, so one request at a time: what goes behind the illegal one is wasted."""
        return any([batch.suspect for batch in self._batches])

    def is_behind_hole(self, batch: SentBatch[M]) -> bool:
        return self._hole is not None and batch.first_sequence >= self._hole

    def is_clear(self, batch: SentBatch[M]) -> bool:
        """Certainly not stored, and not to be sent in this epoch any more."""
        if batch.in_flight or not self.is_behind_hole(batch):
            return False
        return not batch.doubt or batch.is_given_up

    def in_flight(self) -> list[SentBatch[M]]:
        return [batch for batch in self._batches if batch.in_flight]

    def find(self, batch: SendBatch[M]) -> SentBatch[M] | None:
        first, count = batch.first_sequence, len(batch.messages)
        for sent in self._batches:
            if sent.first_sequence == first:
                return sent if len(sent.messages) == count else None  # it may have been taken apart
        return None

    def to_repeat(self) -> SentBatch[M] | None:
        """The first batch that has to be sent again."""
        return next((batch for batch in self._batches if not batch.in_flight and not self.is_clear(batch)), None)

    def may_go(self, again: SentBatch[M]) -> bool:
        """Not while a later one is under way: its answer tells whether it has to follow."""
        flying = self.in_flight()
        if not flying:
            return True
        if self.searches:
            return False
        return len(flying) < self.most_in_flight and flying[-1].first_sequence < again.first_sequence

    def waits_before(self, batch: SentBatch[M]) -> bool:
        """An earlier one has to be sent again, so a gap is no news."""
        return any(not earlier.in_flight for earlier in takewhile(lambda each: each is not batch, self._batches))

    # changes

    def append(self, batch: SentBatch[M]) -> None:
        self._batches.append(batch)

    def remove(self, batch: SentBatch[M]) -> None:
        self._batches.remove(batch)

    def land(self) -> None:
        """No answer will come any more to what is under way."""
        for batch in self._batches:
            batch.doubt |= batch.in_flight
            batch.in_flight = False

    def tear_at(self, sequence: int) -> None:
        """Nothing is stored in this epoch from this number on."""
        self._hole = sequence if self._hole is None else min(sequence, self._hole)

    def take_apart(self, refused: SentBatch[M]) -> None:
        """Its halves, in its place."""
        parts = [batch.halves() if batch is refused else [batch] for batch in self._batches]
        self._batches = deque(batch for part in parts for batch in part)

    def lose(self, which: Callable[[SentBatch[M]], bool]) -> tuple[M, ...]:
        """These are never sent again; the messages of them that somebody still waits for."""
        lost = [batch for batch in self._batches if which(batch)]
        for batch in lost:
            self.tear_at(batch.first_sequence)
        self._batches = deque(batch for batch in self._batches if batch not in lost)
        return _left(lost)

    def lose_late(self, now: Millis | None) -> tuple[tuple[M, ...], tuple[M, ...]]:
        """Loses the batches whose time is up, without a time all of them: what may be stored, and what is not."""
        late = [batch for batch in self._batches if now is None or batch.deadline <= now]
        clear = [batch for batch in late if self.is_clear(batch)]
        unknown = self.lose(lambda batch: batch in late and batch not in clear)
        return unknown, self.lose(lambda batch: batch in clear)

    def bar(self, keys: Collection[str], after: int) -> tuple[tuple[M, ...], tuple[M, ...]]:
        """Gives up what these keys have in batches behind a number: what may be under way, and what is not."""
        behind: list[M] = []
        waiting: list[M] = []
        for batch in self._batches:
            if batch.first_sequence > after:
                (waiting if self.is_clear(batch) else behind).extend(self._take(batch, keys))
        return tuple(behind), tuple(waiting)

    def withdraw(self, key: str) -> tuple[M, ...]:
        """Gives up what this key has in batches that only wait for the next epoch."""
        return tuple(each for batch in self._batches if self.is_clear(batch) for each in self._take(batch, (key,)))

    def _take(self, batch: SentBatch[M], keys: Collection[str]) -> Iterator[M]:
        for index, message in enumerate(batch.messages):
            if index not in batch.given_up and self._key_of(message) in keys:
                batch.given_up.add(index)
                yield message

    def stop_at(self, refused: SentBatch[M]) -> tuple[tuple[M, ...], tuple[M, ...]]:
        """Keeps only what can still be stored before this one; of the rest: what may be stored, and what is not."""
        end = refused.first_sequence
        kept = [batch for batch in self._batches if batch.first_sequence < end and not self.is_behind_hole(batch)]
        rest = [batch for batch in self._batches if batch is not refused and batch not in kept]
        self._batches = deque(kept)
        clear = [batch for batch in rest if self.is_clear(batch)]
        return _left(batch for batch in rest if batch not in clear), _left(clear)

    def start_anew(self) -> list[Entry[M]]:
        """Everything that is left, as it waited before it was sent; the window is empty and without a hole."""
        entries = [entry for batch in self._batches for entry in batch.entries()]
        self._batches.clear()
        self._hole = None
        return entries


def _left(batches: Iterable[SentBatch[M]]) -> tuple[M, ...]:
    return tuple(message for batch in batches for message in batch.left())
