"""Message properties as columns: every entry of every record found at once, none of them as a Python object.

Texts of all records lie behind one another in one buffer; separators are found by comparing bytes. The meaning is
that of `wire.properties.decode_properties`: an entry without a name or a value does not count, and of a name that
occurs twice the last entry does. Both separators are below 0x80, so they never lie inside a UTF-8 character.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from lanemq._fast import compiled
from lanemq.spark.columns.layout import Ints, Layout
from lanemq.wire.properties import ENTRY_END, NAME_END

MOST_BITS = 32
"""So that the sum of as many entries as a record can hold stays below 64 bits."""

_NAME_END, _ENTRY_END = ord(NAME_END), ord(ENTRY_END)


def texts(body: bytes, spans: tuple[Ints, Ints], kind: pa.DataType) -> pa.Array:
    """The parts of `body` as one column. Spans must not run backwards."""
    count = len(spans[0])
    if not count:
        return pa.array([], kind)
    edges = np.empty(2 * count, np.int32)
    edges[0::2], edges[1::2] = spans
    # Every second entry of this array is a part, the others are what lies between; `take` copies the parts together.
    everything = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(body)])
    return everything.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64)))


def unicode_texts(body: bytes, spans: tuple[Ints, Ints]) -> pa.Array:
    """The same as text. Bytes that are no UTF-8 are replaced, as Java does: one odd message must not stop a query."""
    column = texts(body, spans, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        found = zip(spans[0].tolist(), spans[1].tolist(), strict=True)
        return pa.array([body[first:end].decode(errors="replace") for first, end in found], pa.string())
    return column


@dataclass(frozen=True, slots=True)
class Entries:
    """All entries that count, in the order of the records: whose they are, and where name and value lie."""

    data: Any
    records: int
    rows: Ints
    first: Ints
    name_end: Ints
    end: Ints

    def column(self, name: str) -> pa.Array:
        """The values of one name; null where a record has none."""
        chosen = self._named(name.encode())
        spans = self.name_end[chosen] + 1, self.end[chosen]
        values = texts(self.data, spans, pa.string())
        if len(chosen) == self.records and np.array_equal(self.rows[chosen], np.arange(self.records)):
            return values
        index = np.full(self.records, -1, np.int64)
        index[self.rows[chosen]] = np.arange(len(chosen))  # of several the last stays
        return values.take(pa.array(index, mask=index < 0))

    def maps(self) -> pa.Array:
        """All of them as one column of maps."""
        names = texts(self.data, (self.first, self.name_end), pa.string())
        values = texts(self.data, (self.name_end + 1, self.end), pa.string())
        rows = self.rows
        last = self._last_of_each_name(names)
        if last is not None:
            names, values, rows = names.take(pa.array(last)), values.take(pa.array(last)), rows[last]
        offsets = np.searchsorted(rows, np.arange(self.records + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _named(self, name: bytes) -> Ints:
        """Which entries have this name."""
        size = len(name)
        found = np.flatnonzero(self.name_end - self.first == size)
        if not len(found):
            return found
        everywhere: Any = np.ndarray((len(self.data) - size + 1,), f"S{size}", self.data, strides=(1,))
        named: Ints = found[everywhere[self.first[found]] == name]
        return named

    def _last_of_each_name(self, names: pa.Array) -> Ints | None:
        """A map with a name twice would answer with the first; these are the entries that count, None for all."""
        count = len(self.rows)
        if not count:
            return None
        codes = names.dictionary_encode()
        numbers = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        distinct = len(codes.dictionary)
        if distinct <= MOST_BITS and self._no_name_twice(numbers):
            return None
        _, index = np.unique((self.rows * distinct + numbers)[::-1], return_index=True)
        last: Ints = np.sort(count - 1 - index)
        return last

    def _no_name_twice(self, numbers: Ints) -> bool:
        """One bit per name: within a record the sum of the bits is their union only if none comes twice."""
        bits = np.left_shift(1, numbers)
        first_of_row = np.flatnonzero(np.diff(self.rows, prepend=-1))
        return bool((np.add.reduceat(bits, first_of_row) == np.bitwise_or.reduceat(bits, first_of_row)).all())


def entries_of(layout: Layout) -> Entries:
    """The properties of all records; there must be at least one record."""
    column = unicode_texts(layout.body, layout.properties)
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[: len(column) + 1].astype(np.int64)
    text = np.frombuffer(data, np.uint8)[: offsets[-1]] if data is not None else np.empty(0, np.uint8)
    return Entries(text, len(column), *entry_spans(text, offsets))


@compiled
def entry_spans(text: Any, offsets: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """Of all entries that count: whose they are, where they begin, where their names and where they end."""
    first, end, rows = _between_separators(text, offsets)
    name_end = _name_ends(text, first, end)
    counts = (name_end > first) & (name_end + 1 < end)
    if not counts.all():
        first, end, rows, name_end = first[counts], end[counts], rows[counts], name_end[counts]
    return rows, first, name_end, end


def _between_separators(text: Any, offsets: Ints) -> tuple[Ints, Ints, Ints]:
    """Non-empty stretches that end at a separator or with their record, and whose they are."""
    separators = np.flatnonzero(text == _ENTRY_END)
    counts = np.diff(np.searchsorted(separators, offsets))
    if (np.diff(offsets) > 0).all() and (text[offsets[1:] - 1] == _ENTRY_END).all():
        # Every text ends with a separator, as nearly all do: then stretches follow one another without a gap.
        first, end = np.append(0, separators[:-1] + 1), separators
    else:
        first = np.sort(np.concatenate((offsets[:-1], separators + 1)), kind="stable")
        end = np.sort(np.concatenate((separators, offsets[1:])), kind="stable")
        counts += 1
    rows = np.repeat(np.arange(len(offsets) - 1), counts)
    full = first < end
    return (first, end, rows) if full.all() else (first[full], end[full], rows[full])


def _name_ends(text: Any, first: Ints, end: Ints) -> Ints:
    """The first name separator of each stretch; where there is none, a place that makes it not count."""
    separators = np.flatnonzero(text == _NAME_END)
    if len(separators) == len(first) and ((separators >= first) & (separators < end)).all():
        return separators  # one each: what nearly every message looks like
    found = np.searchsorted(separators, first)
    known = np.append(separators, len(text))[found]
    return np.where(known < end, known, first)
