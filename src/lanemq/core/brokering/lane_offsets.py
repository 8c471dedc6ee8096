"""The offsets of a parked lane, ascending, in compact chunks: a lane may be millions of messages long.

Messages join at the end and leave at the beginning. Offsets are kept as distances, in chunks of up to 1,000: about two
bytes per message where a key is one of ten thousand. A chunk is also one row of the database, named by the offset that
it started with. Only the last chunk grows, so an addition writes one row, and a removal deletes whole rows.
"""

import sys
from array import array
from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import accumulate, chain, islice
from operator import sub
from struct import Struct
from typing import NamedTuple, TypeAlias

CHUNK = 1_000
"""Offsets in a chunk. Many: an addition rewrites more. Few: more rows, and more memory per message."""
_HEAD = Struct("<qc")
_WIDTHS = (("B", 1), ("H", 2), ("I", 4), ("Q", 8))

ChunkRow: TypeAlias = tuple[int, bytes]
"""The offset that a chunk started with, and its offsets."""


def pack(offsets: Sequence[int]) -> bytes:
    """Ascending offsets as their first one and the distances between them."""
    steps = list(map(sub, islice(offsets, 1, None), offsets))
    widest = max(steps, default=0)
    code = next(code for code, width in _WIDTHS if widest < 1 << 8 * width)
    return _HEAD.pack(offsets[0], code.encode()) + _little(array(code, steps)).tobytes()


def unpack(data: bytes) -> list[int]:
    first, code = _HEAD.unpack_from(data)
    steps = array(code.decode())
    steps.frombytes(data[_HEAD.size :])
    return list(accumulate(chain((first,), _little(steps))))


def _little(steps: "array[int]") -> "array[int]":
    if sys.byteorder == "big":
        steps.byteswap()
    return steps


class _Full(NamedTuple):
    """A chunk that does not grow any more."""

    start: int
    last: int
    size: int
    """Number of offsets."""
    data: bytes


class LaneOffsets:
    """The offsets of one lane: full chunks, and the chunk that grows."""

    def __init__(self) -> None:
        self._full: deque[_Full] = deque()
        self._tail: list[int] = []
        self._tail_start = -1
        self._left = 0
        """How many offsets of the first chunk have left the lane."""
        self._unpacked: tuple[int, list[int]] = (-1, [])
        """The start and the offsets of the full chunk that was first when it was needed last."""
        self._count = 0

    @classmethod
    def of_rows(cls, rows: Iterable[ChunkRow], first: int) -> "LaneOffsets":
        """From the rows of a database, in order; offsets below `first` have left the lane."""
        made = cls()
        for start, data in rows:
            made._close_tail()
            made._tail, made._tail_start = unpack(data), start
            made._count += len(made._tail)
        made.drop_through(first - 1)
        return made

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        full = chain.from_iterable(unpack(each.data) for each in self._full)
        return islice(chain(full, self._tail), self._left, None)

    def __contains__(self, offset: int) -> bool:
        return self.from_offset(offset, 1) == [offset]

    @property
    def first(self) -> int:
        """The first offset; there must be one."""
        return self._first_offsets()[self._left]

    @property
    def last(self) -> int:
        return self._tail[-1]

    @property
    def first_chunk(self) -> int:
        """The offset that the first chunk started with; rows of earlier chunks hold nothing any more."""
        return self._full[0].start if self._full else self._tail_start

    def from_offset(self, offset: int, limit: int) -> list[int]:
        """Up to `limit` offsets from this one on."""
        if not self._count:
            return []
        offset, selected = max(offset, self.first), list[int]()
        for each in self._full:
            if each.last >= offset and len(selected) < limit:
                offsets = self._first_offsets() if each is self._full[0] else unpack(each.data)
                selected += offsets[bisect_left(offsets, offset) :][: limit - len(selected)]
        return selected + self._tail[bisect_left(self._tail, offset) :][: limit - len(selected)]

    def extend(self, offsets: Sequence[int]) -> list[ChunkRow]:
        """Adds offsets above all others; returns the rows that changed."""
        rows: list[ChunkRow] = []
        at = 0
        while at < len(offsets):
            if len(self._tail) >= CHUNK:
                self._close_tail()
            if not self._tail:
                self._tail_start = offsets[at]
            part = offsets[at : at + CHUNK - len(self._tail)]
            self._tail += part
            at += len(part)
            rows.append((self._tail_start, pack(self._tail)))
        self._count += len(offsets)
        return rows

    def drop_through(self, offset: int) -> int:
        """Removes all offsets up to and including this one; returns how many."""
        before = self._count
        while self._full and self._full[0].last <= offset:
            self._count -= self._full.popleft().size - self._left
            self._left = 0
        left = max(self._left, bisect_right(self._first_offsets(), offset))
        self._count -= left - self._left
        self._left = left
        if not self._count:
            self._tail, self._left = [], 0
        return before - self._count

    def cut_from(self, end: int) -> list[int]:
        """Removes all offsets from `end` on, after a power cut; returns them. Every row is to be written again."""
        offsets = list(self)
        at = bisect_left(offsets, end)
        self._full.clear()
        self._tail, self._left, self._count, self._unpacked = [], 0, 0, (-1, [])
        self.extend(offsets[:at])
        return offsets[at:]

    def rows(self) -> list[ChunkRow]:
        """All rows."""
        tail = [(self._tail_start, pack(self._tail))] if self._tail else []
        return [*((each.start, each.data) for each in self._full), *tail]

    def _first_offsets(self) -> list[int]:
        if not self._full:
            return self._tail
        first = self._full[0]
        if self._unpacked[0] != first.start:
            self._unpacked = (first.start, unpack(first.data))
        return self._unpacked[1]

    def _close_tail(self) -> None:
        if self._tail:
            self._full.append(_Full(self._tail_start, self._tail[-1], len(self._tail), pack(self._tail)))
            self._tail = []
