"""What a group has finished of a queue above its committed offset, as ranges.

With order by key the committed offset is the first unfinished message of *any* key, and other keys have finished
much above it. This map remembers what, so that the queue's next owner does not run it again.

Why the next owner may leave these offsets out, and every key still runs in order:

1. Everything in a map was finished, so leaving it out loses nothing.
2. A key's messages finish in offset order (`lane_scheduler`). So the finished ones of a key are its first ones, and
   none of them lies above an unfinished message of the same key; only above one of another key. (A dead letter has
   left its key's line: what is behind it may be finished, and it itself while its neighbours in a batch are not.)
3. Whatever makes a map smaller cuts it at its upper end. What remains of a key is still its first messages; a
   map cut elsewhere would repeat an earlier message of a key and leave out a later one.
4. An owner adds to the map it was given, which keeps 2, and reports it together with the offset it belongs to.
   Otherwise a map is forgotten as a whole: when somebody goes back (a reset), or works without knowing it.

As text it is the distances from bound to bound, beginning at the committed offset: every one is at least 1, so a
map that reaches down to its offset, overlaps itself or runs backwards cannot even be written.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Self

from lanemq.model.errors import RemoteProtocolError
from lanemq.model.java_hash import LONG_MAX
from lanemq.model.units import QueueOffset

MAX_RANGES = 20_000
"""Ranges of one queue that are kept. As text they stay below 1 MB, whatever the offsets are."""


@dataclass(frozen=True, slots=True)
class FinishedRanges:
    """Ranges [start, end), as one ascending row of their bounds: start, end, start, end, ..."""

    bounds: tuple[int, ...] = ()

    @classmethod
    def of(cls, ranges: Iterable[tuple[int, int]]) -> Self:
        """Ranges in any order; those that touch or overlap become one."""
        bounds: list[int] = []
        for start, end in sorted(ranges):
            if bounds and start <= bounds[-1]:
                bounds[-1] = max(bounds[-1], end)
            else:
                bounds += start, end
        return cls(tuple(bounds))

    @classmethod
    def of_offsets(cls, offsets: Iterable[int]) -> Self:
        """Exactly these offsets, given ascending. What a filter left out between two of them is not covered."""
        bounds: list[int] = []
        for offset in offsets:
            if bounds and bounds[-1] == offset:
                bounds[-1] = offset + 1
            else:
                bounds += offset, offset + 1
        return cls(tuple(bounds))

    def __bool__(self) -> bool:
        return bool(self.bounds)

    def __contains__(self, offset: int) -> bool:
        return bisect_right(self.bounds, offset) % 2 == 1

    def ranges(self) -> list[tuple[QueueOffset, QueueOffset]]:
        starts, ends = self.bounds[::2], self.bounds[1::2]
        return [(QueueOffset(start), QueueOffset(end)) for start, end in zip(starts, ends, strict=True)]

    def past(self, offset: QueueOffset) -> QueueOffset:
        """The first offset from this one on that is not in the map."""
        at = bisect_right(self.bounds, offset)
        return QueueOffset(self.bounds[at]) if at % 2 else offset

    def above(self, offset: int) -> "FinishedRanges":
        """What of it lies above the offset, the offset itself not included."""
        at = bisect_right(self.bounds, offset + 1)
        if at % 2:
            return FinishedRanges((offset + 1, *self.bounds[at:]))
        return FinishedRanges(self.bounds[at:]) if at else self

    def below(self, end: int) -> "FinishedRanges":
        """What of it lies below the end."""
        at = bisect_left(self.bounds, end)
        if at % 2:
            return FinishedRanges((*self.bounds[:at], end))
        return FinishedRanges(self.bounds[:at]) if at < len(self.bounds) else self

    def lowest(self, most: int) -> "FinishedRanges":
        """Its first ranges; leaving out later ones costs repeats and nothing else."""
        return FinishedRanges(self.bounds[: 2 * most]) if len(self.bounds) > 2 * most else self

    def joined(self, other: "FinishedRanges") -> "FinishedRanges":
        if not (self and other):
            return self or other
        return FinishedRanges.of([*self.ranges(), *other.ranges()])

    def encode(self, offset: int) -> str:
        """What of it lies above the offset, as text."""
        return ",".join([str(end - start) for start, end in pairwise((offset, *self.above(offset).bounds))])

    @classmethod
    def decode(cls, text: str, offset: int) -> Self:
        """The map of a text, or `RemoteProtocolError`; counted before it is read, since it may come from anybody."""
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
        return cls(tuple(accumulate(steps, initial=offset))[1:])


NOTHING_FINISHED = FinishedRanges()
