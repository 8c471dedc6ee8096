"""The batches of a queue that were sent and are not acknowledged, and what becomes of them after a failure.

Invariant: a message keeps its sequence number as long as its epoch lasts, and gets another one only when it is certain
that it is not stored under the first. A batch that is sent again is the same messages with the same numbers; a batch
that is split becomes two, whose messages keep their numbers. So a broker that checks stamps recognises every message
that it has.

A message that is given up leaves a hole in the numbers of its epoch: nothing behind the hole can be stored. A batch
behind the hole is clear, that is, free to be sent under a new epoch, when it is neither in flight nor in doubt. A batch
in flight is refused as a gap; a batch in doubt, because its reply was lost, is sent once more to get that refusal.
"""

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import takewhile
from typing import Any, Generic, TypeVar

from msgspec import Struct

from lanemq.model.units import Epoch, Millis

M = TypeVar("M")


class SendError(Enum):
    """Why a batch was not acknowledged."""

    RETRY = "may succeed later"
    """Busy, timed out, or connection lost: the batch may be stored or not."""
    GAP = "the broker misses an earlier message"
    """Expected behind a failed batch. If everything earlier was acknowledged, it freezes the queue."""
    FORGOTTEN = "the broker has forgotten this producer"
    """A gap as well: the broker expects sequence 0. If nothing earlier is open, it has lost its memory."""
    REFUSED = "the message is illegal"
    """One message is at fault: nothing of its batch is stored, and without it the others would be."""
    FATAL = "nothing can be stored in this queue"
    """The queue, the broker or the producer is at fault: any other message would be refused too."""
    TOO_LATE = "not acknowledged within the delivery timeout"


@dataclass(frozen=True, slots=True)
class Failed(Generic[M]):
    """Messages that are given up, and why. Each is in one field; their keys are to be frozen."""

    error: SendError
    refused: tuple[M, ...] = ()
    """Certainly not stored: the broker refused every attempt."""
    unknown: tuple[M, ...] = ()
    """May be stored or not."""
    unsent: tuple[M, ...] = ()
    """Too late, and never sent: certainly not stored."""
    behind: tuple[M, ...] = ()
    """In flight behind a failed message of their key. If that one is not stored, a broker that checks stamps refuses
    them; if that is unknown, they may be stored or not."""
    blocked: tuple[M, ...] = ()
    """Waited behind a failed message, of their key or (if the whole queue is frozen) of any key: not stored."""

    @property
    def everything(self) -> tuple[M, ...]:
        return (*self.refused, *self.unknown, *self.unsent, *self.behind, *self.blocked)


class SendBatch(Struct, Generic[M], eq=False):
    """Messages that share a request, with sequences first_sequence, first_sequence + 1, ... of their epoch. It lives
    from the first attempt until it is acknowledged, given up or split."""

    epoch: Epoch
    first_sequence: int
    messages: tuple[M, ...]
    sizes: Sequence[int]
    """The size of each message."""
    deadline: Millis
    """The deadline of its first message, which is the oldest."""
    number: int
    """Of its first message, among all that the sender has accepted; less if others left before it."""
    attempt: int = 0
    sent_at: int = 0
    """When the newest attempt was sent."""
    in_flight: bool = False
    doubt: bool = False
    """An attempt was not answered: the batch may be stored."""
    sent_first: bool = False
    """Everything earlier was acknowledged when it was last sent, so a gap cannot come from an open retry."""
    given_up: frozenset[int] = frozenset()
    """Indexes of messages that were given up; their senders were notified then."""
    suspect: bool = False
    """A part of a refused batch: the illegal message is in here, or in another part."""
    command: Any = None
    """Its request as the engine has built it: a repetition must be the same bytes."""

    @property
    def is_given_up(self) -> bool:
        return len(self.given_up) == len(self.messages)

    def left(self) -> tuple[M, ...]:
        """Its messages without those that were given up."""
        if not self.given_up:
            return self.messages
        return tuple(message for index, message in enumerate(self.messages) if index not in self.given_up)

    def left_sizes(self) -> list[int]:
        """The sizes of those messages."""
        return [size for index, size in enumerate(self.sizes) if index not in self.given_up]

    def halves(self) -> "list[SendBatch[M]]":
        """Its first and its second half, with the numbers they have, not in flight."""
        middle = len(self.messages) // 2
        return [self._part(0, middle), self._part(middle, len(self.messages))]

    def _part(self, start: int, end: int) -> "SendBatch[M]":
        return SendBatch(
            self.epoch,
            self.first_sequence + start,
            self.messages[start:end],
            self.sizes[start:end],
            self.deadline,
            self.number + start,
            self.attempt,
            doubt=self.doubt,
            given_up=frozenset(index - start for index in self.given_up if start <= index < end),
            suspect=True,
        )


class SentWindow(Generic[M]):
    """The unacknowledged batches of a queue, ascending by sequence."""

    def __init__(self, max_in_flight: int, key_of: Callable[[M], str | None]) -> None:
        self.max_in_flight = max_in_flight
        self._key_of = key_of
        self.batches: deque[SendBatch[M]] = deque()
        self.hole: int | None = None
        """From this sequence on nothing can be stored in this epoch."""

    @property
    def first(self) -> SendBatch[M]:
        return self.batches[0]

    @property
    def all_clear(self) -> bool:
        return all(map(self.is_clear, self.batches))

    @property
    def has_room(self) -> bool:
        """Whether a new batch may be sent: the window is not full, and what it holds does not have to be sorted out."""
        if not self.batches:
            return self.hole is None
        return len(self.batches) < self.max_in_flight and self.hole is None and not self.has_suspects

    @property
    def has_suspects(self) -> bool:
        """Parts of a refused batch are here. They are sent one at a time: those behind the illegal one are refused."""
        return any([batch.suspect for batch in self.batches])

    def is_behind_hole(self, batch: SendBatch[M]) -> bool:
        return self.hole is not None and batch.first_sequence >= self.hole

    def is_clear(self, batch: SendBatch[M]) -> bool:
        """Certainly not stored, and not to be sent again in this epoch."""
        if batch.in_flight or not self.is_behind_hole(batch):
            return False
        return not batch.doubt or batch.is_given_up

    def in_flight(self) -> list[SendBatch[M]]:
        return [batch for batch in self.batches if batch.in_flight]

    @property
    def any_in_flight(self) -> bool:
        return bool(self.batches) and any([batch.in_flight for batch in self.batches])

    def to_repeat(self) -> SendBatch[M] | None:
        """The first batch that has to be sent again."""
        for batch in self.batches:
            if not batch.in_flight and not self.is_clear(batch):
                return batch
        return None

    def may_repeat(self, again: SendBatch[M]) -> bool:
        """Whether a batch may be sent again now. Not while a later batch is in flight, which may have to follow it."""
        in_flight = self.in_flight()
        if not in_flight:
            return True
        if self.has_suspects:
            return False
        return len(in_flight) < self.max_in_flight and in_flight[-1].first_sequence < again.first_sequence

    def waits_before(self, batch: SendBatch[M]) -> bool:
        """An earlier batch has to be sent again, so a gap is expected."""
        return any(not earlier.in_flight for earlier in takewhile(lambda each: each is not batch, self.batches))

    # changes

    def add(self, batch: SendBatch[M], now: Millis) -> SendBatch[M]:
        """Sends a new batch."""
        batch.attempt, batch.in_flight, batch.sent_at = 1, True, now
        batch.sent_first = not self.batches
        self.batches.append(batch)
        return batch

    def repeat(self, batch: SendBatch[M], now: Millis) -> SendBatch[M]:
        """Sends a batch again."""
        batch.attempt += 1
        batch.in_flight, batch.sent_at = True, now
        batch.sent_first = self.batches[0] is batch
        return batch

    def remove(self, batch: SendBatch[M]) -> None:
        self.batches.remove(batch)

    def mark_unanswered(self) -> None:
        """Counts all batches in flight as unanswered: they are sent again, unless a late reply says "stored"."""
        for batch in self.batches:
            batch.doubt |= batch.in_flight
            batch.in_flight = False

    def begin_hole_at(self, sequence: int) -> None:
        """Nothing is stored in this epoch from this sequence on."""
        self.hole = sequence if self.hole is None else min(sequence, self.hole)

    def split(self, refused: SendBatch[M]) -> None:
        """Replaces the batch by its halves."""
        parts = [batch.halves() if batch is refused else [batch] for batch in self.batches]
        self.batches = deque(batch for part in parts for batch in part)

    def give_up(self, which: Callable[[SendBatch[M]], bool]) -> tuple[M, ...]:
        """Removes batches for good; returns those of their messages that were not given up before."""
        gone = [batch for batch in self.batches if which(batch)]
        for batch in gone:
            self.begin_hole_at(batch.first_sequence)
        self.batches = deque(batch for batch in self.batches if batch not in gone)
        return _left(gone)

    def give_up_late(self, now: Millis | None) -> tuple[tuple[M, ...], tuple[M, ...]]:
        """Removes batches whose deadline has passed (all, if `now` is None): what may be stored, and what is not."""
        late = [batch for batch in self.batches if now is None or batch.deadline <= now]
        clear = [batch for batch in late if self.is_clear(batch)]
        unknown = self.give_up(lambda batch: batch in late and batch not in clear)
        return unknown, self.give_up(lambda batch: batch in clear)

    def give_up_keys(self, keys: Collection[str], after: int) -> tuple[tuple[M, ...], tuple[M, ...]]:
        """Gives up messages of these keys in batches behind a sequence: those that may be stored, and the others."""
        behind: list[M] = []
        waiting: list[M] = []
        for batch in self.batches:
            if batch.first_sequence > after:
                (waiting if self.is_clear(batch) else behind).extend(self._take(batch, keys))
        return tuple(behind), tuple(waiting)

    def withdraw(self, key: str) -> tuple[M, ...]:
        """Gives up messages of this key in batches that only wait for the next epoch."""
        return tuple(each for batch in self.batches if self.is_clear(batch) for each in self._take(batch, (key,)))

    def _take(self, batch: SendBatch[M], keys: Collection[str]) -> Iterator[M]:
        for index, message in enumerate(batch.messages):
            if index not in batch.given_up and self._key_of(message) in keys:
                batch.given_up |= {index}
                yield message

    def keep_before(self, refused: SendBatch[M]) -> tuple[tuple[M, ...], tuple[M, ...]]:
        """Keeps only earlier batches that can still be stored; of the rest: what may be stored, and what is not."""
        end = refused.first_sequence
        kept = [batch for batch in self.batches if batch.first_sequence < end and not self.is_behind_hole(batch)]
        rest = [batch for batch in self.batches if batch is not refused and batch not in kept]
        self.batches = deque(kept)
        clear = [batch for batch in rest if self.is_clear(batch)]
        return _left(batch for batch in rest if batch not in clear), _left(clear)

    def take_all(self) -> list[SendBatch[M]]:
        """Empties the window and forgets the hole; returns what was left."""
        left = list(self.batches)
        self.batches.clear()
        self.hole = None
        return left


def _left(batches: Iterable[SendBatch[M]]) -> tuple[M, ...]:
    return tuple(message for batch in batches for message in batch.left())
