"""Finds the parts of every record in the body of a pull, for all records at once.

It reads the layout as `wire.record.RecordView` does and refuses the same records, with arrays instead of a Python
object per row. A record whose lengths contradict its size is an error that names the record.
"""

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from lanemq._fast import compiled
from lanemq.model.errors import RemoteProtocolError
from lanemq.wire.record import BORN_HOST_V6, HEAD_BYTES, MAGIC_V2, STORE_HOST_V6, record_starts

Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

INT, LONG, SHORT, BYTE = ">i4", ">i8", ">i2", ">i1"
_V6_SHIFT = 12


def at(body: bytes, kind: str, positions: Ints) -> Ints:
    """The big-endian numbers at these byte positions, aligned or not: a view with a stride of one byte, indexed."""
    size = np.dtype(kind).itemsize
    everywhere: Any = np.ndarray((len(body) - size + 1,), kind, body, strides=(1,))
    numbers: Ints = everywhere[positions].astype(np.int64)
    return numbers


@dataclass(frozen=True, slots=True)
class Layout:
    """Positions in `body`, one entry per record. A part is a pair: its first byte, and its end (exclusive)."""

    body: bytes
    starts: Ints
    sys_flags: Ints
    born_shift: Ints
    shift: Ints
    value: tuple[Ints, Ints]
    topic: tuple[Ints, Ints]
    properties: tuple[Ints, Ints]

    def __len__(self) -> int:
        return len(self.starts)

    @property
    def queue_ids(self) -> Ints:
        return at(self.body, INT, self.starts + 12)

    @property
    def queue_offsets(self) -> Ints:
        return at(self.body, LONG, self.starts + 20)

    @property
    def born_times(self) -> Ints:
        return at(self.body, LONG, self.starts + 40)

    @property
    def store_times(self) -> Ints:
        return at(self.body, LONG, self.starts + 56 + self.born_shift)

    @property
    def reconsume_times(self) -> Ints:
        return at(self.body, INT, self.starts + 72 + self.shift)


def measure(body: bytes, low: int, high: int) -> Layout:
    """The records of a pull's body with queue offsets from `low` up to, but not including, `high`."""
    starts, flags, born_shift, shift, *parts = record_spans(body, low, high)
    value, topic, properties = ((parts[at], parts[at + 1]) for at in (0, 2, 4))
    return Layout(body, starts, flags, born_shift, shift, value, topic, properties)


@compiled
def record_spans(body: bytes, low: int, high: int) -> tuple[Ints, ...]:
    """Starts, flags and shifts of these records, then first byte and end of their values, topics and properties."""
    starts = np.array(record_starts(body), np.int64)
    if len(starts):
        offsets = at(body, LONG, starts + 20)
        starts = starts[(offsets >= low) & (offsets < high)]
    if not len(starts):
        return (starts,) * 10
    ends = starts + at(body, INT, starts)
    flags = at(body, INT, starts + 36)
    born_shift = np.where(flags & BORN_HOST_V6, _V6_SHIFT, 0)
    shift = born_shift + np.where(flags & STORE_HOST_V6, _V6_SHIFT, 0)
    value = _part(body, INT, starts + HEAD_BYTES + shift, ends, starts)
    topic = _topic(body, value[1], ends, starts)
    properties = _part(body, SHORT, topic[1], ends, starts)
    return starts, flags, born_shift, shift, *value, *topic, *properties


def _topic(body: bytes, length_at: Ints, ends: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """The topic, whose length field has one byte in version 1 records and two bytes in version 2 records."""
    longer = at(body, ">u4", starts + 4) == MAGIC_V2
    if not longer.any():
        return _part(body, BYTE, length_at, ends, starts)
    first, end = length_at.copy(), length_at.copy()
    for kind, chosen in ((BYTE, ~longer), (SHORT, longer)):
        first[chosen], end[chosen] = _part(body, kind, length_at[chosen], ends[chosen], starts[chosen])
    return first, end


def _part(body: bytes, kind: str, length_at: Ints, ends: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """The bytes after a length field, checked to be inside their record."""
    first = length_at + np.dtype(kind).itemsize
    _refuse(first > ends, starts, "it ends before one of its parts")
    lengths = at(body, kind, length_at)
    end = first + lengths
    _refuse((lengths < 0) | (end > ends), starts, "one of its parts is longer than itself")
    return first, end


def _refuse(bad: Any, starts: Ints, why: str) -> None:
    if bad.any():
        raise RemoteProtocolError(f"record at byte {starts[bad.argmax()]} is damaged: {why}")
