"""What a send lane puts on the wire, what it remembers of it, and what it gives up.

Rule: a message keeps its sequence number as long as its epoch lasts. A batch that is sent again is the same
messages with the same numbers; one that is taken apart becomes two, whose messages have the numbers they had. So a
broker that checks stamps recognises every message that it has, whatever was lost on the way.
"""

from collections.abc import Iterator
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from enum import Enum
from typing import Generic, NamedTuple, TypeAlias, TypeVar

from lanemq.model.units import Epoch, Millis

M = TypeVar("M")

Entry: TypeAlias = tuple[M, int, Millis]
"""A message that waits: itself, its size, and when it is given up."""


class SendError(Enum):
    """Why a batch was not acknowledged."""

    RETRY = "may succeed later"
    """Busy, timed out, connection lost: nobody knows, or not now."""
    GAP = "the broker misses an earlier message"
    """Expected behind a failed batch; a reason to freeze when everything earlier was acknowledged."""
    FORGOTTEN = "the broker has forgotten this producer"
    """A gap as well: it expects sequence 0. If nothing earlier is open, it must once have known better."""
    REFUSED = "the message is illegal"
    """The fault of one message: nothing of its batch is stored, and without it the others would be."""
    FATAL = "nothing can be stored in this queue"
    """The queue, the broker or the producer: any other message would be refused as well."""
    TOO_LATE = "not acknowledged within the delivery timeout"


class SendBatch(NamedTuple, Generic[M]):
    """One request: these messages with sequences first_sequence, first_sequence + 1, ... of this epoch.

    A tuple, because there is one per request: a frozen dataclass takes three times as long to make.
    """

    epoch: Epoch
    first_sequence: int
    messages: tuple[M, ...]
    size: int
    attempt: int
    given_up: AbstractSet[int] = frozenset()
    """Which of them, counted from 0, were given up while it was under way; nobody wants to hear of those again."""


@dataclass(frozen=True, slots=True)
class Failed(Generic[M]):
    """Messages that are given up, with the reason. Each lies in one field; their keys are to be frozen."""

    error: SendError
    refused: tuple[M, ...] = ()
    """Certainly not stored: the broker said so of every attempt."""
    unknown: tuple[M, ...] = ()
    """May or may not be stored."""
    unsent: tuple[M, ...] = ()
    """Too late, and never sent: certainly not stored."""
    behind: tuple[M, ...] = ()
    """Under way behind a failed message of their key. If that is not stored, a broker that checks stamps refuses
    them; if nobody knows, they may be stored or not."""
    blocked: tuple[M, ...] = ()
    """Waited behind a failed message, of their key or (if the whole lane is frozen) of any: not stored."""

    @property
    def everything(self) -> tuple[M, ...]:
        return (*self.refused, *self.unknown, *self.unsent, *self.behind, *self.blocked)


@dataclass(slots=True, eq=False)
class SentBatch(Generic[M]):
    """A batch that was sent at least once and not acknowledged."""

    first_sequence: int
    messages: tuple[M, ...]
    sizes: list[int]
    """Of its messages, one by one."""
    deadline: Millis
    """Of its first message, which is the oldest."""
    attempt: int = 0
    in_flight: bool = False
    doubt: bool = False
    """An attempt got no answer that says how it ended: it may be stored."""
    sent_first: bool = False
    """Everything earlier was acknowledged when it was sent last, so a gap cannot come from an open retry."""
    given_up: set[int] = field(default_factory=set)
    suspect: bool = False
    """A part of a refused batch: the illegal message is in here, or in another part."""

    @property
    def size(self) -> int:
        return sum(self.sizes)

    @property
    def is_given_up(self) -> bool:
        return len(self.given_up) == len(self.messages)

    def left(self) -> tuple[M, ...]:
        """Its messages without those that were given up."""
        if not self.given_up:
            return self.messages
        return tuple(message for index, message in enumerate(self.messages) if index not in self.given_up)

    def entries(self) -> Iterator[Entry[M]]:
        """The same, as they waited before they were sent."""
        for index, message in enumerate(self.messages):
            if index not in self.given_up:
                yield message, self.sizes[index], self.deadline

    def halves(self) -> "list[SentBatch[M]]":
        """Its first and its second half, with the numbers they have; to be sent."""
        middle = len(self.messages) // 2
        return [self._part(0, middle), self._part(middle, len(self.messages))]

    def _part(self, start: int, end: int) -> "SentBatch[M]":
        return SentBatch(
            self.first_sequence + start,
            self.messages[start:end],
            self.sizes[start:end],
            self.deadline,
            self.attempt,
            doubt=self.doubt,
            given_up={index - start for index in self.given_up if start <= index < end},
            suspect=True,
        )
