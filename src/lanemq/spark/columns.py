"""The columns of a message in Spark: their schema, and how the body of a pull becomes Arrow columns.

Spark does not tell Python sources which columns a query uses. A user selects them with `.schema(...)` or the option
`columns`, and only those are decoded. Without a selection a query gets eight columns: what Spark's Kafka source gives,
the broker, and the tag. A query that selects an unknown column, or a column with another type, is refused before it
starts.

Decoding makes no Python object per row: it handles all records of a body at once, as arrays. Only two things are done
row by row, for the rows that need them: decompressing bodies, and making ids for messages whose producer gave none.

Invariant: every column equals the field of `wire.record.RecordView`, and the same records are refused; tests compare
the two.
"""

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lanemq._fast import compiled
from lanemq.model.errors import InvalidOption, RemoteProtocolError
from lanemq.model.queue import MessageQueue
from lanemq.spark.foreign_names import equivalent_column
from lanemq.spark.options import OnDamaged
from lanemq.spark.versions import to_arrow_schema
from lanemq.wire.compression import decompress
from lanemq.wire.properties import ENTRY_END, LANE_STAMP, NAME_END, PropertyName, decode_stamp
from lanemq.wire.record import (
    BORN_HOST_V6,
    COMPRESSED,
    HEAD_BYTES,
    MAGIC_V2,
    STORE_HOST_V6,
    RecordView,
    encode_offset_id,
    record_starts,
)

log = logging.getLogger(__name__)

STAMP = StructType(
    [
        StructField("producer", StringType()),
        StructField("epoch", LongType()),
        StructField("sequence", LongType()),
    ]
)

COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("broker", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("key", StringType()),
        StructField("tags", StringType()),
        StructField("keys", StringType()),
        StructField("value", BinaryType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("message_id", StringType()),
        StructField("born_timestamp", TimestampType()),
        StructField("store_timestamp", TimestampType()),
        StructField("reconsume_times", IntegerType()),
        StructField("stamp", STAMP),
    ]
)
"""All columns. `topic`, `broker` and `queue_id` identify a queue; together with `queue_offset`, a message."""
ALL_COLUMNS = "*"
"""The value of the option `columns` that selects all of them."""
ON_REQUEST = frozenset({"keys", "properties", "message_id", "born_timestamp", "reconsume_times", "stamp"})
"""Columns that are read only if they are selected: each costs time for every row, in Python, in Spark and in the files
that it writes, and most queries use none of them."""
DEFAULT_COLUMNS = StructType([field for field in COLUMNS.fields if field.name not in ON_REQUEST])


def select_columns(names: Sequence[str]) -> StructType:
    """The schema with only these columns, in this order; `*` for all."""
    if tuple(names) == (ALL_COLUMNS,):
        return COLUMNS
    known = {field.name: field for field in COLUMNS.fields}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        hints = "".join(f"; {name} is {column} here" for name in unknown if (column := equivalent_column(name)))
        raise InvalidOption(f"columns: {unknown or 'nothing given'}{hints}; choose from {', '.join(known)}")
    return StructType([known[name] for name in names])


def check_schema(schema: StructType) -> StructType:
    """Returns the schema if all its columns exist with these types, else raises `InvalidOption`."""
    expected = select_columns([field.name for field in schema.fields])
    for asked, actual in zip(schema.fields, expected.fields, strict=True):
        if asked.dataType.simpleString() != actual.dataType.simpleString():
            raise InvalidOption(
                f"schema: column {asked.name} is {actual.dataType.simpleString()}, "
                f"not {asked.dataType.simpleString()}; read it with its own type and cast it"
            )
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of the record batches. Spark compares it exactly before it reads the first batch."""
    return to_arrow_schema(schema)


@dataclass(frozen=True, slots=True)
class DecodeOptions:
    """What to decode from the messages of a queue."""

    schema: pa.Schema
    broker: str
    tags: frozenset[str] = frozenset()
    """Tags to keep; empty keeps all messages."""
    on_damaged: OnDamaged = OnDamaged.FAIL


EXPANDED_BYTES = 16 * 1024 * 1024
"""A batch ends with the decompressed body that exceeds this size together with those before it. A pull of 1 MiB can
hold a gigabyte, and Arrow's columns end at 2 GiB. Larger: more memory for each task. Much smaller: batches of a pull
that compresses well have few rows, and each batch costs time."""


def decode(body: bytes, low: int, high: int, options: DecodeOptions) -> Iterator[pa.RecordBatch]:
    """The records with offsets from `low` up to, but not including, `high`, whose tags match.

    They are one batch, or several if their bodies are much larger than they are stored.
    """
    layout = measure(body, low, high)
    while len(layout):
        records = _Records(layout, options)
        batch = records.batch(options.schema)
        if options.tags:  # the broker compared hash codes of tags, which can collide
            batch = batch.filter(compute().is_in(records.tags(), pa.array(sorted(options.tags), pa.string())))
        yield batch
        layout = layout.part(len(records.layout), len(layout))


def compute() -> Any:
    """Arrow's functions. The driver's side of a stream decodes nothing, and importing them takes 0.03 s of CPU time."""
    import pyarrow.compute

    return pyarrow.compute


class _Records:
    """The columns of the first records of a body, as many as fit in one batch; each column is decoded on request."""

    def __init__(self, layout: "Layout", options: DecodeOptions) -> None:
        self.layout = layout
        self._broker = options.broker
        self._on_damaged = options.on_damaged
        self._entries: Entries | None = None
        self._plain: list[bytes | None] = []
        if "value" in options.schema.names:
            self._decompress()

    def batch(self, schema: pa.Schema) -> pa.RecordBatch:
        return pa.RecordBatch.from_arrays([_MAKERS[name](self) for name in schema.names], schema=schema)

    def _decompress(self) -> None:
        """Decompresses bodies, and leaves out the records after those that fit in one batch."""
        body, flags, (first, end) = self.layout.body, self.layout.sys_flags, self.layout.value
        rows = np.flatnonzero(flags & COMPRESSED).tolist()
        bodies = (CompressedBody(row, int(flags[row]), body[first[row] : end[row]]) for row in rows)
        self._plain = decompress_bodies(bodies, self._on_damaged, self._position)
        if len(self._plain) < len(rows):
            self.layout = self.layout.part(0, rows[len(self._plain)])

    @property
    def entries(self) -> "Entries":
        if self._entries is None:
            self._entries = entries_of(self.layout)
        return self._entries

    def topic(self) -> pa.Array:
        return text_column(self.layout.body, self.layout.topic)

    def broker(self) -> pa.Array:
        return pa.repeat(pa.scalar(self._broker, pa.string()), len(self.layout))

    def queue_id(self) -> pa.Array:
        return number_column(self.layout.body, self.layout.starts + 12, pa.int32())

    def queue_offset(self) -> pa.Array:
        return number_column(self.layout.body, self.layout.starts + 20, pa.int64())

    def key(self) -> pa.Array:
        return property_column(self, PropertyName.KEY)

    def tags(self) -> pa.Array:
        return property_column(self, PropertyName.TAGS)

    def keys(self) -> pa.Array:
        return property_column(self, PropertyName.KEYS)

    def properties(self) -> pa.Array:
        return self.entries.maps()

    def born_timestamp(self) -> pa.Array:
        return number_column(self.layout.body, self.layout.starts + 40, TIME)

    def store_timestamp(self) -> pa.Array:
        return number_column(self.layout.body, self.layout.starts + self.layout.born_shift + 56, TIME)

    def reconsume_times(self) -> pa.Array:
        return number_column(self.layout.body, self.layout.starts + self.layout.shift + 72, pa.int32())

    def stamp(self) -> pa.Array:
        return stamp_column(property_column(self, LANE_STAMP))

    def value(self) -> pa.Array:
        layout = self.layout
        values = part_column(layout.body, layout.value, pa.binary())
        if not self._plain:
            return values
        mask = pa.array((layout.sys_flags & COMPRESSED).astype(bool))
        return compute().replace_with_mask(values, mask, pa.array(self._plain, pa.binary()))

    def message_id(self) -> pa.Array:
        """The producer's id; if an old producer gave none, an id made from the record's place in the broker's log."""
        ids = property_column(self, PropertyName.UNIQUE_ID)
        if not ids.null_count:
            return ids
        missing = ids.is_null()
        rows = np.flatnonzero(missing.to_numpy(zero_copy_only=False)).tolist()
        return compute().replace_with_mask(ids, missing, pa.array(map(self._offset_id, rows), pa.string()))

    def _position(self, row: int) -> str:
        record = RecordView(self.layout.body, int(self.layout.starts[row]))
        return f"{MessageQueue(record.topic, self._broker, record.queue_id)} at {record.queue_offset}"

    def _offset_id(self, row: int) -> str:
        record = RecordView(self.layout.body, int(self.layout.starts[row]))
        host, _, port = record.store_host.rpartition(":")
        return encode_offset_id(host.strip("[]"), int(port), record.position)


_MAKERS: dict[str, Callable[[_Records], pa.Array]] = {
    "topic": _Records.topic,
    "broker": _Records.broker,
    "queue_id": _Records.queue_id,
    "queue_offset": _Records.queue_offset,
    "key": _Records.key,
    "tags": _Records.tags,
    "keys": _Records.keys,
    "value": _Records.value,
    "properties": _Records.properties,
    "message_id": _Records.message_id,
    "born_timestamp": _Records.born_timestamp,
    "store_timestamp": _Records.store_timestamp,
    "reconsume_times": _Records.reconsume_times,
    "stamp": _Records.stamp,
}


class CompressedBody(NamedTuple):
    """The compressed body of one row."""

    row: int
    sys_flag: int
    body: bytes


def decompress_bodies(
    bodies: Iterable[CompressedBody], on_damaged: OnDamaged, position: Callable[[int], str]
) -> list[bytes | None]:
    """The decompressed bodies, up to the one that exceeds `EXPANDED_BYTES` together with those before it.

    All damaged ones are logged in one line; `position` describes a row's message.
    """
    plain: list[bytes | None] = []
    damaged: list[str] = []
    size = 0
    for row, sys_flag, body in bodies:
        try:
            plain.append(decompress(sys_flag, body))
            size += len(plain[-1] or b"")
            if size > EXPANDED_BYTES:
                break
        except RemoteProtocolError as error:
            if on_damaged is OnDamaged.FAIL:
                raise RemoteProtocolError(
                    f"{position(row)}: {error}. To continue set onDamaged=null (its value is null) or onDamaged=raw "
                    f"(its value is the stored bytes)"
                ) from None
            plain.append(None if on_damaged is OnDamaged.NULL else body)
            damaged.append(f"{position(row)}: {error}")
    if damaged:
        log.warning("%d damaged messages, onDamaged=%s; the first is %s", len(damaged), on_damaged, damaged[0])
    return plain


# The parts of each record, found for all records at once. A record whose lengths contradict its size is an error that
# names the record.


Ints: TypeAlias = np.ndarray[Any, np.dtype[np.int64]]

INT, LONG, SHORT, BYTE = ">i4", ">i8", ">i2", ">i1"
_V6_SHIFT = 12


def numbers_at(body: bytes, kind: str, positions: Ints) -> Ints:
    """The big-endian numbers at these byte positions, aligned or not: a view with a stride of one byte, indexed."""
    size = np.dtype(kind).itemsize
    everywhere: Any = np.ndarray((len(body) - size + 1,), kind, body, strides=(1,))
    numbers: Ints = everywhere[positions].astype(np.int64)
    return numbers


TIME = pa.timestamp("us", tz="UTC")
"""The type of a column of times. Records have milliseconds."""


@compiled
def number_column(body: bytes, positions: Ints, kind: pa.DataType) -> pa.Array:
    """The numbers at these byte positions, which have as many bytes as those of the column: int32, int64 or `TIME`."""
    numbers = numbers_at(body, INT if kind.bit_width == 32 else LONG, positions)
    if kind == TIME:
        return pa.array(numbers * 1000).cast(TIME)
    return pa.array(numbers.astype(kind.to_pandas_dtype()))


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

    def part(self, first: int, end: int) -> "Layout":
        """The records from `first` up to, but not including, `end`."""
        numbers = (self.starts, self.sys_flags, self.born_shift, self.shift)
        starts, flags, born_shift, shift = (each[first:end] for each in numbers)
        spans = (self.value, self.topic, self.properties)
        value, topic, properties = ((begin[first:end], stop[first:end]) for begin, stop in spans)
        return Layout(self.body, starts, flags, born_shift, shift, value, topic, properties)


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
        offsets = numbers_at(body, LONG, starts + 20)
        starts = starts[(offsets >= low) & (offsets < high)]
    if not len(starts):
        return (starts,) * 10
    ends = starts + numbers_at(body, INT, starts)
    flags = numbers_at(body, INT, starts + 36)
    born_shift = np.where(flags & BORN_HOST_V6, _V6_SHIFT, 0)
    shift = born_shift + np.where(flags & STORE_HOST_V6, _V6_SHIFT, 0)
    value = _part(body, INT, starts + HEAD_BYTES + shift, ends, starts)
    topic = _topic(body, value[1], ends, starts)
    properties = _part(body, SHORT, topic[1], ends, starts)
    return starts, flags, born_shift, shift, *value, *topic, *properties


def _topic(body: bytes, length_at: Ints, ends: Ints, starts: Ints) -> tuple[Ints, Ints]:
    """The topic, whose length field has one byte in version 1 records and two bytes in version 2 records."""
    longer = numbers_at(body, ">u4", starts + 4) == MAGIC_V2
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
    lengths = numbers_at(body, kind, length_at)
    end = first + lengths
    _refuse((lengths < 0) | (end > ends), starts, "one of its parts is longer than itself")
    return first, end


def _refuse(bad: Any, starts: Ints, why: str) -> None:
    if bad.any():
        raise RemoteProtocolError(f"record at byte {starts[bad.argmax()]} is damaged: {why}")


# Message properties, and the producer stamps among them. The texts of all records are in one buffer, in which
# separators are found by comparing bytes. The result equals that of `wire.properties.decode_properties`: an entry
# without a name or a value is ignored, and if a name occurs twice the last entry counts. Both separators are below
# 0x80, so they never occur inside a UTF-8 character.


MAX_NAME_BITS = 32
"""Keeps the sum over all entries that a record can hold below 64 bits."""

_NAME_END, _ENTRY_END = ord(NAME_END), ord(ENTRY_END)


@compiled
def part_column(body: bytes, spans: tuple[Ints, Ints], kind: pa.DataType) -> pa.Array:
    """The parts of `body` as one column. Spans must be in ascending order."""
    count = len(spans[0])
    if not count:
        return pa.array([], kind)
    edges = np.empty(2 * count, np.int32)
    edges[0::2], edges[1::2] = spans
    # Every second entry of this array is a part, the others are the bytes between; `take` selects the parts.
    everything = pa.Array.from_buffers(kind, 2 * count - 1, [None, pa.py_buffer(edges), pa.py_buffer(body)])
    return everything.take(pa.array(np.arange(0, 2 * count, 2, dtype=np.int64)))


def text_column(body: bytes, spans: tuple[Ints, Ints]) -> pa.Array:
    """The same, as text. Bytes that are not UTF-8 are replaced, as in Java: one bad message must not stop a query."""
    column = part_column(body, spans, pa.string())
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
        values = part_column(self.data, spans, pa.string())
        if len(chosen) == self.records and np.array_equal(self.rows[chosen], np.arange(self.records)):
            return values
        index = np.full(self.records, -1, np.int64)
        index[self.rows[chosen]] = np.arange(len(chosen))  # if a name occurs twice, the last one stays
        return values.take(pa.array(index, mask=index < 0))

    def maps(self) -> pa.Array:
        """All entries as one column of maps."""
        names = part_column(self.data, (self.first, self.name_end), pa.string())
        values = part_column(self.data, (self.name_end + 1, self.end), pa.string())
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


@compiled
def property_column(records: _Records, name: str) -> pa.Array:
    """The values of one property; null if a record has none."""
    return records.entries.column(name)


def entries_of(layout: Layout) -> Entries:
    """The properties of all records. There must be at least one record."""
    column = text_column(layout.body, layout.properties)
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
    pc = compute()
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
