"""What a group has finished of a queue above its committed offset.

With order by key, the committed offset is the first unfinished message of *any* key, and other keys have finished
messages above it. The broker stores these ranges, so that the queue's next owner does not run them again.

Why the next owner may skip these offsets while every key still runs in order:

1. Everything in the ranges was finished, so skipping it loses nothing.
2. The messages of a key finish in offset order. So the finished messages of a key are its first ones, and none of them
   is above an unfinished message of the same key. (A dead letter has left its key's lane: messages behind it may be
   finished, and so may the dead letter while others of its batch are not.)
3. Ranges are only ever cut at their upper end. What remains of a key is still its first messages; any other cut would
   repeat an earlier message of a key and skip a later one.
4. An owner adds to the ranges it was given, which preserves 2, and reports them together with the offset they belong
   to. Otherwise they are forgotten as a whole: after a reset, or when an owner does not know them.
5. A message that the owner's tags leave out is finished once a later one has arrived. An owner with more tags would
   otherwise run it after newer messages of its key.

The text form is the distances from bound to bound, starting at the committed offset. Each is at least 1, so ranges that
overlap, run backwards or touch the offset cannot be written.
"""

import re
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain, pairwise
from typing import Self

from lanemq.model.errors import RemoteProtocolError
from lanemq.model.java_hash import LONG_MAX
from lanemq.model.units import QueueOffset

MAX_RANGES = 20_000
"""Maximum number of ranges of one queue. Their text stays below 1 MB, whatever the offsets are."""
_AS_WRITTEN = re.compile("(?:[1-9][0-9]*,)*[1-9][0-9]*")
"""Text as `encode` writes it. `int` reads more, such as leading zeros and spaces."""


@dataclass(frozen=True, slots=True)
class FinishedRanges:
    """Ranges [start, end), stored as one ascending tuple of bounds: start, end, start, end, ..."""

    bounds: tuple[int, ...] = ()
    _text: tuple[int, str] | None = field(default=None, compare=False, repr=False)
    """The offset and the text from which they were decoded: writing 20,000 ranges again takes six milliseconds."""

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        """From ranges in any order; ranges that touch or overlap are merged."""
        bounds: list[int] = []
        for start, end in sorted(ranges):
            if bounds and start <= bounds[-1]:
                bounds[-1] = max(bounds[-1], end)
            else:
                bounds += start, end
        return cls(tuple(bounds))

    @classmethod
    def of_offsets(cls, offsets: Iterable[int]) -> Self:
        """From ascending offsets."""
        bounds: list[int] = []
        for offset in offsets:
            if bounds and bounds[-1] == offset:
                bounds[-1] = offset + 1
            else:
                bounds += offset, offset + 1
        return cls(tuple(bounds))

    @classmethod
    def between(cls, offsets: Sequence[int], end: int) -> Self:
        """What lies between ascending offsets, and from the last one to the end."""
        gaps = [(low + 1, high) for low, high in pairwise((*offsets, end)) if low + 1 < high]
        return cls(tuple(chain.from_iterable(gaps)))

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __contains__(self, offset: int) -> bool:
        return bisect_right(self.bounds, offset) % 2 == 1

    def ranges(self) -> list[tuple[QueueOffset, QueueOffset]]:
        starts, ends = self.bounds[::2], self.bounds[1::2]
        return [(QueueOffset(start), QueueOffset(end)) for start, end in zip(starts, ends, strict=True)]

    @property
    def count(self) -> int:
        """How many offsets the ranges cover."""
        return sum(self.bounds[1::2]) - sum(self.bounds[::2])

    def past(self, offset: QueueOffset) -> QueueOffset:
        """The first offset at or after this one that is not finished."""
        at = bisect_right(self.bounds, offset)
        return QueueOffset(self.bounds[at]) if at % 2 else offset

    def above(self, offset: int) -> "FinishedRanges":
        """The part above the offset, excluding the offset itself."""
        at = bisect_right(self.bounds, offset + 1)
        if at % 2:
            return FinishedRanges((offset + 1, *self.bounds[at:]))
        return FinishedRanges(self.bounds[at:]) if at else self

    def below(self, end: int) -> "FinishedRanges":
        """The part below the end."""
        at = bisect_left(self.bounds, end)
        if at % 2:
            return FinishedRanges((*self.bounds[:at], end))
        return FinishedRanges(self.bounds[:at]) if at < len(self.bounds) else self

    def lowest(self, count: int) -> "FinishedRanges":
        """The first ranges. Leaving out later ones repeats messages and does no other harm."""
        return FinishedRanges(self.bounds[: 2 * count]) if len(self.bounds) > 2 * count else self

    def joined(self, other: "FinishedRanges") -> "FinishedRanges":
        if not (self and other):
            return self or other
        return FinishedRanges.of([*self.ranges(), *other.ranges()])

    def encode(self, offset: int) -> str:
        """The part above the offset, as text."""
        if self._text is not None and self._text[0] == offset:
            return self._text[1]
        return ",".join([str(end - start) for start, end in pairwise((offset, *self.above(offset).bounds))])

    @classmethod
    def decode(cls, text: str, offset: int) -> Self:
        """Reads the text form or raises `RemoteProtocolError`. Checks the size first, since any client may send it."""
        if not text:
            return cls()
        numbers = text.count(",") + 1
        if numbers % 2 or numbers > 2 * MAX_RANGES:
            raise RemoteProtocolError(
                f"finished ranges of {numbers} numbers: they come in pairs, at most {MAX_RANGES} of them"
            )
        try:
            steps = list(map(int, text.split(",")))
        except ValueError:
            raise RemoteProtocolError(
                f"finished ranges {text[:40]!r} are not numbers with commas between them"
            ) from None
        if min(steps) < 1 or offset + sum(steps) > LONG_MAX:
            raise RemoteProtocolError(f"finished ranges above offset {offset} do not ascend, or end beyond any offset")
        bounds = tuple(accumulate(steps, initial=offset))[1:]
        return cls(bounds, (offset, text) if _AS_WRITTEN.fullmatch(text) else None)


def count_finished(text: str) -> int:
    """The number of offsets that the text form covers."""
    return sum(map(int, text.split(",")[1::2])) if text else 0


NOTHING_FINISHED = FinishedRanges()
