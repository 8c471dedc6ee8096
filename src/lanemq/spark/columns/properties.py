"""Decodes message properties, and the producer stamps among them, into columns, without a Python object per entry.

The texts of all records are in one buffer, in which separators are found by comparing bytes. The result equals that of
`wire.properties.decode_properties`: an entry without a name or a value is ignored, and if a name occurs twice the last
entry counts. Both separators are below 0x80, so they never occur inside a UTF-8 character.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanemq._fast import compiled
from lanemq.spark.columns.layout import Ints, Layout
from lanemq.wire.properties import ENTRY_END, NAME_END, decode_stamp

MAX_NAME_BITS = 32
"""Keeps the sum over all entries that a record can hold below 64 bits."""

_NAME_END, _ENTRY_END = ord(NAME_END), ord(ENTRY_END)


def texts(body: bytes, spans: tuple[Ints, Ints], kind: pa.DataType) -> pa.Array:
    """The parts of `body` as one column. Spans must be in ascending order."""
    count = len(spans[0])
    if not count:
        return pa.array([], kind)
    edges = np.empty(2 * count, np.int32)
    edges[0::2], edges[1::2] = spans
    # Every second entry of this array is a part, the others are the bytes between; `take` selects the parts.
    everything = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(body)])
    return everything.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64)))


def unicode_texts(body: bytes, spans: tuple[Ints, Ints]) -> pa.Array:
    """The same as text. Bytes that are not UTF-8 are replaced, as in Java: one bad message must not stop a query."""
    column = texts(body, spans, pa.string())
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        found = zip(spans[0].tolist(), spans[1].tolist(), strict=True)
        return pa.array([body[first:end].decode(errors="replace") for first, end in found], pa.string())
    return column


@dataclass(frozen=True, slots=True)
class Entries:
    """All valid entries, in the order of the records: the record of each, and where its name and value are."""

    data: Any
    records: int
    rows: Ints
    first: Ints
    name_end: Ints
    end: Ints

    def column(self, name: str) -> pa.Array:
        """The values of one name; null if a record has none."""
        chosen = self._named(name.encode())
        spans = self.name_end[chosen] + 1, self.end[chosen]
        values = texts(self.data, spans, pa.string())
        if len(chosen) == self.records and np.array_equal(self.rows[chosen], np.arange(self.records)):
            return values
        index = np.full(self.records, -1, np.int64)
        index[self.rows[chosen]] = np.arange(len(chosen))  # if a name occurs twice, the last one stays
        return values.take(pa.array(index, mask=index < 0))

    def maps(self) -> pa.Array:
        """All entries as one column of maps."""
        names = texts(self.data, (self.first, self.name_end), pa.string())
        values = texts(self.data, (self.name_end + 1, self.end), pa.string())
        rows = self.rows
        last = self._last_of_each_name(names)
        if last is not None:
            names, values, rows = names.take(pa.array(last)), values.take(pa.array(last)), rows[last]
        offsets = np.searchsorted(rows, np.arange(self.records + 1)).astype(np.int32)
        return pa.MapArray.from_arrays(pa.array(offsets), names, values)

    def _named(self, name: bytes) -> Ints:
        """The indexes of the entries with this name."""
        size = len(name)
        found = np.flatnonzero(self.name_end - self.first == size)
        if not len(found):
            return found
        everywhere: Any = np.ndarray((len(self.data) - size + 1,), f"S{size}", self.data, strides=(1,))
        named: Ints = found[everywhere[self.first[found]] == name]
        return named

    def _last_of_each_name(self, names: pa.Array) -> Ints | None:
        """The last entry of each name in each record; None if no name occurs twice. Arrow maps return the first."""
        count = len(self.rows)
        if not count:
            return None
        codes = names.dictionary_encode()
        numbers = codes.indices.to_numpy(zero_copy_only=False).astype(np.int64)
        distinct = len(codes.dictionary)
        if distinct <= MAX_NAME_BITS and self._no_name_twice(numbers):
            return None
        _, index = np.unique((self.rows * distinct + numbers)[::-1], return_index=True)
        last: Ints = np.sort(count - 1 - index)
        return last

    def _no_name_twice(self, numbers: Ints) -> bool:
        """One bit per name: within a record, the sum of the bits equals their union only if no name occurs twice."""
        bits = np.left_shift(1, numbers)
        first_of_row = np.flatnonzero(np.diff(self.rows, prepend=-1))
        return bool((np.add.reduceat(bits, first_of_row) == np.bitwise_or.reduceat(bits, first_of_row)).all())


def entries_of(layout: Layout) -> Entries:
    """The properties of all records. There must be at least one record."""
    column = unicode_texts(layout.body, layout.properties)
    _, offset_buffer, data = column.buffers()
    offsets = np.frombuffer(offset_buffer, np.int32)[: len(column) + 1].astype(np.int64)
    text = np.frombuffer(data, np.uint8)[: offsets[-1]] if data is not None else np.empty(0, np.uint8)
    return Entries(text, len(column), *entry_spans(text, offsets))


@compiled
def entry_spans(text: Any, offsets: Ints) -> tuple[Ints, Ints, Ints, Ints]:
    """For each valid entry: its record, its first byte, the end of its name, and its end."""
    first, end, rows = _between_separators(text, offsets)
    name_end = _name_ends(text, first, end)
    valid = (name_end > first) & (name_end + 1 < end)
    if not valid.all():
        first, end, rows, name_end = first[valid], end[valid], rows[valid], name_end[valid]
    return rows, first, name_end, end


def _between_separators(text: Any, offsets: Ints) -> tuple[Ints, Ints, Ints]:
    """The non-empty spans between separators or record ends, and the record of each."""
    separators = np.flatnonzero(text == _ENTRY_END)
    counts = np.diff(np.searchsorted(separators, offsets))
    if (np.diff(offsets) > 0).all() and (text[offsets[1:] - 1] == _ENTRY_END).all():
        # Every text ends with a separator, as nearly all do: then the spans are adjacent.
        first, end = np.append(0, separators[:-1] + 1), separators
    else:
        first = np.sort(np.concatenate((offsets[:-1], separators + 1)), kind="stable")
        end = np.sort(np.concatenate((separators, offsets[1:])), kind="stable")
        counts += 1
    rows = np.repeat(np.arange(len(offsets) - 1), counts)
    full = first < end
    return (first, end, rows) if full.all() else (first[full], end[full], rows[full])


def _name_ends(text: Any, first: Ints, end: Ints) -> Ints:
    """The first name separator of each span; if there is none, a position that makes the entry invalid."""
    separators = np.flatnonzero(text == _NAME_END)
    if len(separators) == len(first) and ((separators >= first) & (separators < end)).all():
        return separators  # one per span: the usual case
    found = np.searchsorted(separators, first)
    known = np.append(separators, len(text))[found]
    return np.where(known < end, known, first)


STAMP_TYPE = pa.struct([("producer", pa.string()), ("epoch", pa.int64()), ("sequence", pa.int64())])

_PATTERN = r"\A(?P<producer>[A-Za-z0-9_-]{1,64})\.(?P<epoch>0|[1-9][0-9]{0,18})\.(?P<sequence>0|[1-9][0-9]{0,18})\z"


@compiled
def stamp_column(values: pa.Array) -> pa.Array:
    """The column of producer stamps: one struct per value, null for null and for text that is not a stamp.

    A stamp is `producer.epoch.sequence`, as `wire.properties.decode_stamp` defines it.
    """
    parts = pc.extract_regex(values, _PATTERN)
    try:
        numbers = [pc.struct_field(parts, name).cast(pa.int64()) for name in ("epoch", "sequence")]
    except pa.ArrowInvalid:
        return _one_by_one(values)
    return pa.StructArray.from_arrays(
        [pc.struct_field(parts, "producer"), *numbers], fields=list(STAMP_TYPE), mask=parts.is_null()
    )


def _one_by_one(values: pa.Array) -> pa.Array:
    """A number of 19 digits may exceed 64 bits; then `decode_stamp` decides for the whole batch."""
    stamps = [None if text is None else decode_stamp(text) for text in values.to_pylist()]
    return pa.array([None if stamp is None else stamp._asdict() for stamp in stamps], STAMP_TYPE)
