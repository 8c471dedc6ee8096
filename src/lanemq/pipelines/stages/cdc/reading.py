"""What an executor does: messages in, the newest row of each key out.

A Spark task cuts its messages into chunks and queues, and writes one file of rows per queue. Memory is bounded by a
chunk of messages and the distinct keys of a task. `Reader` works on the messages of one queue, without Spark.

Invariants: rows of different queues are not mixed here, because only a place that sees all
queues can see whether two disagree (`shares.py`). A
message that is poison gives no row, except for the deletion where a row's key changed. What `fold_first.py` cannot
prove to be superfluous is read.
"""

import gc
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from decimal import Decimal
from itertools import pairwise
from typing import Any, Final, TypeAlias
from uuid import uuid4

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lanemq.files import StorePath
from lanemq.model.wording import MAX_SHOWN, shown
from lanemq.pipelines.ports import DELETED, KEPT, SEQUENCE
from lanemq.pipelines.queue_ties import truncation_bound
from lanemq.pipelines.stages.cdc import documents
from lanemq.pipelines.stages.cdc.changes import KeyNames, Reading, RowChanges
from lanemq.pipelines.stages.cdc.evolving import Fields, combine_fields, new_fields, skipped_fields
from lanemq.pipelines.stages.cdc.fold import kept_column, newest, newest_rows
from lanemq.pipelines.stages.cdc.fold_first import FoldFirst
from lanemq.pipelines.stages.cdc.formats.debezium import unavailable_marks
from lanemq.pipelines.stages.cdc.meanings import Columns, SchemaCache, convert_as
from lanemq.pipelines.stages.cdc.misfits import Found, combine_misfits
from lanemq.pipelines.stages.cdc.options import ReplicaOptions
from lanemq.pipelines.stages.cdc.sequence import encode
from lanemq.pipelines.stages.cdc.shares import QueueRows, write_rows, write_table
from lanemq.pipelines.stages.cdc.truncation import Bound, drop_older, newer_bound
from lanemq.pipelines.stages.queue_borders import queue_borders

CHUNK_BYTES: Final = 256 * 1024 * 1024
"""Bytes of messages that are folded at once."""
REASON: Final = "reason"
_QUEUE: Final = ("topic", "broker", "queue_id")
_LEFT_OUT: Final = (
    "the source left {} out, a large column that the update did not touch: send whole rows (ALTER TABLE ... REPLICA "
    "IDENTITY FULL), give left_out='keep', or leave the column out of the schema"
)
_LEFT_OUT_OF_MOVE: Final = (
    "the source left {} out of a change of the row's key, and the stored value is in the row of the old key: send "
    "whole rows, or leave the column out of the schema"
)
Counts = dict[str, int]


@dataclass(slots=True)
class Folded:
    """The newest rows, the dead letters, the counts, and whether the table was emptied."""

    rows: pa.Table
    dead: pa.Table
    counts: Counts
    emptied_below: Bound = None
    """The sequence of the newest truncation."""
    misfits: Found = field(default_factory=dict)


Span: TypeAlias = tuple[int, int, int, int]
"""The lowest and the highest offset, the store time of the lowest offset, and the highest store time."""


class QueueSummary(msgspec.Struct):
    """What a task reports about one queue."""

    queue: str
    rows: QueueRows
    dead: str | None
    """The name of the file of dead letters."""
    counts: Counts
    first: int
    """The lowest queue offset."""
    last: int
    """The highest queue offset."""
    first_stored: int
    """Store time of the message with the lowest offset, in milliseconds."""
    stored: int
    """The highest store time, in milliseconds."""
    emptied_below: Bound = None
    """The sequence of its newest truncation."""
    skipped: list[str] = []
    """Fields of its last row that the table does not have."""
    fields: Fields = {}
    """If the table evolves: all fields that it does not have, with their types."""
    misfits: Found = {}
    """Values that became null, by column."""
    conflicts: list[str] = []
    """Added columns that values of the task did not fit."""


def fold_task(
    options: ReplicaOptions, folder: StorePath, batches: Iterator[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """The task for `mapInArrow`. A repeated task writes files with other names; only summaries that arrive count."""
    reader = Reader(options)
    parts: dict[str, list[Folded]] = {}
    spans: dict[str, Span] = {}
    skipped: dict[str, list[str]] = {}
    fields: dict[str, Fields] = {}
    with _no_collection():
        for chunk in _chunks(batches):
            for queue, messages in by_queue(chunk):
                folded = reader.fold(messages)
                folded.counts["events"] = messages.num_rows
                parts.setdefault(queue, []).append(folded)
                spans[queue] = _span(messages, spans.get(queue))
                skipped[queue] = skipped_fields(options, messages)
                if options.evolves:
                    fields[queue] = combine_fields(fields.get(queue, {}), new_fields(options, messages))
    keys = options.table.keys
    found = [_write(queue, reader.combine(some), spans[queue], folder, keys) for queue, some in parts.items()]
    for each in found:
        each.skipped = skipped[each.queue]
        each.fields, each.conflicts = fields.get(each.queue, {}), sorted(reader.conflicts)
    if found:
        yield pa.record_batch({"summary": pa.array([msgspec.json.encode(each).decode() for each in found])})


def by_queue(messages: pa.Table) -> Iterator[tuple[str, pa.Table]]:
    """The messages of each queue, in the order of their offsets.

    The source returns queue after queue, so a queue is a slice. Rows that `prepare` has mixed are copied.
    """
    slices = [messages.slice(first, end - first) for first, end in pairwise(queue_borders(messages, _QUEUE))]
    names = [_name(each) for each in slices]
    if len(set(names)) == len(names):
        yield from ((name, _in_order(each)) for name, each in zip(names, slices, strict=True))
        return
    for queue in messages.group_by(list(_QUEUE)).aggregate([]).to_pylist():
        mine = messages
        for name in _QUEUE:
            mine = mine.filter(pc.equal(mine[name], queue[name]))
        yield _name(mine), _in_order(mine)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Turns garbage collection off: documents form no cycles, and tracing all of them is slow."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _chunks(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.Table]:
    gathered: list[pa.RecordBatch] = []
    size = 0
    for batch in batches:
        gathered.append(batch)
        size += batch.nbytes
        if size >= CHUNK_BYTES:
            yield pa.Table.from_batches(gathered)
            gathered, size = [], 0
    if gathered:
        yield pa.Table.from_batches(gathered)


def _span(messages: pa.Table, known: Span | None) -> Span:
    """The span with that of more messages, which are in order."""
    first, last = messages["queue_offset"][0].as_py(), messages["queue_offset"][-1].as_py()
    times = messages["store_timestamp"].cast(pa.timestamp("ms", "UTC"), safe=False).cast(pa.int64())
    since, stored = times[0].as_py() or 0, pc.max(times).as_py() or 0
    if known is None:
        return first, last, since, stored
    return min(first, known[0]), max(last, known[1]), since if first < known[0] else known[2], max(stored, known[3])


def _write(queue: str, folded: Folded, span: Span, folder: StorePath, keys: Sequence[str]) -> QueueSummary:
    folder.mkdir(parents=True, exist_ok=True)
    rows, dead = write_rows(folded.rows, folder, keys), None
    if folded.dead.num_rows:
        dead = f"{uuid4().hex}.dead"
        write_table(folded.dead, folder / dead)
    return QueueSummary(
        queue, rows, dead, folded.counts, *span, emptied_below=folded.emptied_below, misfits=folded.misfits
    )


def _in_order(messages: pa.Table) -> pa.Table:
    offsets, count = messages["queue_offset"], messages.num_rows
    ascending = count < 2 or pc.all(pc.less(offsets.slice(0, count - 1), offsets.slice(1))).as_py()
    return messages if ascending else messages.sort_by("queue_offset")


def _name(messages: pa.Table) -> str:
    return "/".join(str(messages[name][0].as_py()) for name in _QUEUE)


class Reader:
    """Reads and folds messages of one queue."""

    def __init__(self, options: ReplicaOptions) -> None:
        self._options = options
        self._format = options.make_format()
        self._row_types = self._format.row_types
        fields = options.table.schema.fields
        self._decoder = documents.decoder(self._format.document, [each.dataType for each in fields])
        self._fold_first = FoldFirst(options, self._row_types)
        self._declared = {each.name: each.dataType.simpleString() for each in fields}
        self._types = {each.name: each.type for each in options.table.arrow()}
        absent = (documents.ABSENT,) if options.table.keeps else ()
        self._marks = {name: (*absent, *unavailable_marks(kind)) for name, kind in self._types.items()}
        self._meanings = {name: options.meaning(name, kind) for name, kind in self._types.items()}
        self._schemas = SchemaCache()
        self._sequence = [self._format.path(part.path) for part in options.parts]
        self.conflicts: set[str] = set()
        """Added columns that values did not fit."""

    def fold(self, messages: pa.Table) -> Folded:
        """Folds messages of one queue, in the order of their offsets."""
        chosen = self._fold_first.worth_reading(messages)
        if chosen is None:
            return self._finish(self._read(messages), frozenset())
        reading = self._read(messages.take(chosen))
        left = self._find_left_out(reading)
        unsure = self._fold_first.unproved(messages, chosen, reading)
        if self._options.table.keeps:
            unsure |= {reading.changes.message[index] for indices in left.values() for index in indices}
        if not unsure:
            return self._finish(reading, unsure)
        keys = reading.messages["key"].take(pa.array(sorted(unsure)))
        again = pc.is_in(messages["key"], value_set=keys.combine_chunks())
        if self._options.table.keeps:  # a column may be kept from a message with another message key, so all are read
            again = pc.or_(again, pc.is_in(pa.arange(0, messages.num_rows), value_set=chosen))
            return self._finish(self._read(messages.filter(again)), frozenset())
        others = self._finish(self._read(messages.filter(again)), frozenset())
        return self.combine([self._finish(reading, unsure), others])

    def combine(self, parts: Sequence[Folded]) -> Folded:
        """Combines parts of one queue."""
        if len(parts) == 1:
            return parts[0]
        emptied_below = newer_bound(part.emptied_below for part in parts)
        rows = drop_older(pa.concat_tables([part.rows for part in parts]), emptied_below)
        counts: Counts = {}
        for part in parts:
            for name, count in part.counts.items():
                counts[name] = counts.get(name, 0) + count
        chosen = newest_rows(rows, self._options.table.keys)
        misfits = combine_misfits(part.misfits for part in parts)
        return Folded(chosen, pa.concat_tables([part.dead for part in parts]), counts, emptied_below, misfits)

    def _read(self, messages: pa.Table) -> Reading:
        decoded = documents.Decoded(documents.listed(messages["value"]), self._decoder)
        events = self._format.unwrap(decoded.documents)
        names = KeyNames(self._row_types, self._options.table.keys, documents.listed(messages["key"]))
        changes = RowChanges(poison=decoded.broken)
        self._format.read(events, names, changes)
        parts = [[None if each is None else get(each) for each in events] for get in self._sequence]
        sequences = encode(self._options.parts, parts, messages["queue_offset"].combine_chunks())
        reading = Reading(messages, names, changes, sequences.take(pa.array(changes.message, pa.int64())), [])
        reading.meanings = self._read_meanings(decoded.documents, names)
        self._check_sequences(reading)
        self._read_truncations(reading, sequences)
        self._read_keys(reading)
        self._refuse_long_texts(reading)
        if self._options.misfits == "dead_letter":
            self._find_left_out(reading)
            self._refuse_misfits(reading)
        return reading

    def _read_meanings(self, found: Sequence[documents.Document | None], names: KeyNames) -> list[Columns] | None:
        """What the messages say about their columns. A tombstone has no value, so its message key says it."""
        schemas = self._format.schemas(found)
        tombstones = {message: names.schema(message) for message, each in enumerate(found) if each is None}
        if schemas is None and not any(tombstones.values()):
            return None
        schemas = schemas or [b""] * len(found)
        return self._schemas.columns([tombstones.get(message, schema) for message, schema in enumerate(schemas)])

    def _read_truncations(self, reading: Reading, sequences: pa.Array) -> None:
        """Finds how new each truncation is. One that cannot be ordered, or that the sink cannot apply, is poison."""
        for message in reading.changes.truncations:
            sequence = sequences[message].as_py()
            if why := self._options.why_not_emptied:
                reading.changes.poison[message] = f"a truncation: {why}"
            elif sequence is None:
                reading.changes.poison[message] = self._no_sequence()
            else:
                reading.truncations[message] = truncation_bound(sequence, _name(reading.messages))

    def _no_sequence(self) -> str:
        paths = ", ".join(part.path for part in self._options.parts)
        return f"the sequence ({paths}) is missing or out of range"

    def _check_sequences(self, reading: Reading) -> None:
        if reading.sequences.null_count:
            for index in pc.indices_nonzero(reading.sequences.is_null()).to_pylist():
                reading.changes.poison.setdefault(reading.changes.message[index], self._no_sequence())

    def _read_keys(self, reading: Reading) -> None:
        for name in self._options.table.keys:
            column, _ = self._column(name, reading)
            reading.keys.append(column)
            if column.null_count:
                for index in pc.indices_nonzero(column.is_null()).to_pylist():
                    reading.changes.poison.setdefault(
                        reading.changes.message[index],
                        f"column {name}: the key is missing or does not fit {self._declared[name]}",
                    )

    def _refuse_long_texts(self, reading: Reading) -> None:
        for limit in self._options.text_limits:
            for index in limit.rows_beyond([self._column(name, reading)[0] for name in limit.columns]):
                reading.changes.refuse_row(index, limit.why)

    def _refuse_misfits(self, reading: Reading) -> None:
        for name in self._options.table.columns:
            if name not in self._options.table.keys and name not in self._options.added:
                reading.columns[name], misfits = self._column(name, reading)
                for index in misfits:
                    reading.changes.refuse_row(index, f"column {name}: the value does not fit {self._declared[name]}")

    def _find_left_out(self, reading: Reading) -> dict[str, list[int]]:
        """Finds columns that changes leave out, and clears their marks.

        A change has Debezium's mark in place of such a column or, with `keep`, no field for it. Without `keep` the mark
        makes it poison, because it would replace the existing value by null.
        """
        if reading.left is not None:
            return reading.left
        changes, reading.left, moved = reading.changes, {}, {*reading.changes.moved}
        others = [name for name in self._options.table.columns if name not in self._options.table.keys]
        for name in others:
            found = _left_out(self._values(name, changes, None), self._marks[name])
            for index in found:
                self._row_types.clear(changes.row[index], name)
                if not self._options.table.keeps:
                    changes.refuse_row(index, _LEFT_OUT.format(name))
                elif changes.message[index] in moved:
                    changes.refuse_row(index, _LEFT_OUT_OF_MOVE.format(name))
            reading.left |= {name: found} if found else {}
        return reading.left

    def _finish(self, reading: Reading, leave_out: frozenset[int]) -> Folded:
        """Folds what is neither poison nor in `leave_out`."""
        changes, table = reading.changes, self._options.table
        keys = pa.table(dict(zip(table.keys, reading.keys, strict=True))).append_column(SEQUENCE, [reading.sequences])
        indices: pa.Array = pa.arange(0, len(changes.message))
        half_applied = changes.half_applied - leave_out
        unwanted = (leave_out | changes.poison.keys()) - half_applied
        if unwanted or half_applied:
            indices = changes.indices_without(unwanted, half_applied)
            keys = keys.take(indices)
        emptied_below = newer_bound(reading.truncations.values())
        if reading.left and table.keeps:
            rows, misfits = self._rows(reading, keys, indices)
            # No column is kept from a change before a truncation.
            rows = newest_rows(drop_older(rows, emptied_below), table.keys)
        else:
            chosen = newest(keys, table.keys)
            rows, misfits = self._rows(reading, keys.take(chosen), indices.take(chosen))
        if rows is None:
            self._find_left_out(reading)
            return self._finish(reading, leave_out)
        dead = {index: why for index, why in changes.poison.items() if index not in leave_out}
        counted = {"key_changes": changes.moved, "ddl": changes.ddl, "ignored": changes.ignored}
        counted["truncations"] = list(reading.truncations)
        counts = {name: sum(message not in unwanted for message in messages) for name, messages in counted.items()}
        counts |= {"misfits": sum(count for count, _ in misfits.values()), "poison": len(dead)}
        return Folded(rows, _dead(reading.messages, dead), counts, emptied_below, misfits)

    def _rows(self, reading: Reading, keys: pa.Table, indices: pa.Array) -> tuple[pa.Table | None, Found]:
        """Rows for the chosen changes, and the misfits. No rows if a left-out column is found only now."""
        chosen, misfits, columns = indices.to_pylist(), Found(), []
        for name in self._options.table.columns:
            if name in self._options.table.keys:
                columns.append(keys[name])
            elif name in reading.columns:
                columns.append(reading.columns[name].take(indices))
            else:
                values = self._values(name, reading.changes, chosen)
                if reading.left is None and _left_out(values, self._marks[name]):
                    return None, {}
                column, wrong = self._converted(name, values, reading, chosen)
                columns.append(column)
                misfits |= {name: (len(wrong), _as_sent(values[wrong[0]]))} if wrong else {}
                self.conflicts |= {name} & {*self._options.added} if wrong else set()
        deleted = pa.array([reading.changes.deleted[index] for index in chosen], pa.bool_())
        rows = pa.table([*columns, keys[SEQUENCE], deleted], names=[*self._options.table.columns, SEQUENCE, DELETED])
        if self._options.table.keeps:
            rows = rows.append_column(KEPT, [kept_column(chosen, reading.left or {})])
        return rows, misfits

    def _column(self, name: str, reading: Reading) -> tuple[pa.Array, list[int]]:
        """One column of all changes, and the indices of values that do not fit it."""
        values = self._values(name, reading.changes, None)
        return self._converted(name, values, reading, range(len(values)))

    def _converted(
        self, name: str, values: list[Any], reading: Reading, changes: Sequence[int]
    ) -> tuple[pa.Array, list[int]]:
        meanings = None
        if reading.meanings is not None:
            messages = reading.changes.message
            meanings = [reading.meanings[messages[change]].get(name) for change in changes]
        return convert_as(values, self._types[name], self._meanings[name], meanings)

    def _values(self, name: str, changes: RowChanges, chosen: list[int] | None) -> list[Any]:
        """The decoded values of a column. Deletions have only a key."""
        rows, deleted = changes.row, changes.deleted
        if chosen is not None and len(chosen) < len(rows):
            rows, deleted = [rows[index] for index in chosen], [deleted[index] for index in chosen]
        get, is_value = self._row_types.getter(name), name not in self._options.table.keys
        if is_value and True in deleted:
            values = [None if gone else get(row) for row, gone in zip(rows, deleted, strict=True)]
        else:
            values = list(map(get, rows))
        return values


def _left_out(values: Sequence[Any], marks: Sequence[Any]) -> list[int]:
    """The indices of values that are one of the marks of a column that was left out."""
    if not any(mark in values for mark in marks):
        return []
    return [index for index, value in enumerate(values) if value in marks]


def _as_sent(value: Any) -> str:
    """A value for people. A fraction is a `Decimal` if the table has a decimal column."""
    return str(value)[:MAX_SHOWN] if isinstance(value, Decimal) else shown(value)


def _dead(messages: pa.Table, reasons: dict[int, str]) -> pa.Table:
    indices = sorted(reasons)
    why = pa.array([reasons[index] for index in indices], pa.string())
    return messages.take(pa.array(indices, pa.int64())).append_column(REASON, [why])
