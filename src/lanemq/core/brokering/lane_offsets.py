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
    """The offsets of one lane."""

    def __init__(self) -> None:
        # In this order: what is left of a full chunk, full chunks, and the chunk that grows.
        self._head: list[int] = []
        self._head_start = -1
        self._full: deque[_Full] = deque()
        self._tail: list[int] = []
        self._tail_start = -1
        self._count = 0

    @classmethod
    def of_rows(cls, rows: Iterable[ChunkRow], first: int) -> "LaneOffsets":
        """From the rows of a database, in order; offsets below `first` have left the lane."""
        made = cls()
        for start, data in rows:
            made._tail, made._tail_start = unpack(data), start
            made._count += len(made._tail)
            made._full.append(_Full(start, made._tail[-1], len(made._tail), data))
        if made._full:
            made._full.pop()  # the last one grows
        made.drop_through(first - 1)
        return made

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[int]:
        return chain(self._head, chain.from_iterable(unpack(each.data) for each in self._full), self._tail)

    def __contains__(self, offset: int) -> bool:
        return self.from_offset(offset, 1) == [offset]

    @property
    def first(self) -> int:
        """The first offset; there must be one."""
        self._open_head()
        return (self._head or self._tail)[0]

    @property
    def last(self) -> int:
        if self._tail:
            return self._tail[-1]
        return self._full[-1].last if self._full else self._head[-1]

    @property
    def first_row(self) -> int:
        """Rows that started before this one hold nothing any more."""
        self._open_head()
        return self._head_start if self._head else self._tail_start

    def from_offset(self, offset: int, limit: int) -> list[int]:
        """Up to `limit` offsets from this one on."""
        found = self._head[bisect_left(self._head, offset) :][:limit]
        for each in self._full:
            if len(found) >= limit:
                break
            if each.last >= offset:
                offsets = unpack(each.data)
                found += offsets[bisect_left(offsets, offset) :][: limit - len(found)]
        if len(found) < limit:
            found += self._tail[bisect_left(self._tail, offset) :][: limit - len(found)]
        return found

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
        del self._head[: self._leaving(self._head, offset)]
        while not self._head and self._full:
            if self._full[0].last <= offset:
                self._count -= self._full.popleft().size
            else:
                self._open_head()
                del self._head[: self._leaving(self._head, offset)]
        if not self._head:
            del self._tail[: self._leaving(self._tail, offset)]
        return before - self._count

    def cut_from(self, end: int) -> list[int]:
        """Removes all offsets from `end` on, after a power cut; returns them. Every row is to be written again."""
        kept: list[int] = []
        lost: list[int] = []
        for offset in self:
            (kept if offset < end else lost).append(offset)
        self._head, self._tail, self._count = [], [], 0
        self._full.clear()
        self.extend(kept)
        return lost

    def rows(self) -> list[ChunkRow]:
        """All rows."""
        head = [(self._head_start, pack(self._head))] if self._head else []
        tail = [(self._tail_start, pack(self._tail))] if self._tail else []
        return [*head, *((each.start, each.data) for each in self._full), *tail]

    def _leaving(self, offsets: Sequence[int], through: int) -> int:
        count = bisect_right(offsets, through)
        self._count -= count
        return count

    def _open_head(self) -> None:
        if not self._head and self._full:
            chunk = self._full.popleft()
            self._head, self._head_start = unpack(chunk.data), chunk.start

    def _close_tail(self) -> None:
        if self._tail:
            chunk = _Full(self._tail_start, self._tail[-1], len(self._tail), pack(self._tail))
            self._full.append(chunk)
            self._tail = []
