"""Fields of rows that the table does not have: they become columns (`evolve=True`), or are reported once.

With `evolve=True` tasks examine every row; the driver makes columns of new fields, and only then is the batch folded.
The first message with a value decides the type of a column: by the schema that it embeds, else by the value. But JSON
writes the price 10.00 as 10, so a whole number gives a whole number column only if no value of the batch has a
fraction. Without `evolve` decoding skips such fields unread, which is most of its speed, so only the last message of
each queue and batch is examined.

Invariants: which columns a batch adds depends only on its messages and the columns before it, so a repeated batch adds
the same ones; a column never changes its type; a reserved name, or one that some database could not hold, never becomes
a column, because the table would then refuse every batch.
"""

import logging
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any, Final

import msgspec
import pyarrow as pa
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    DataType,
    DateType,
    DecimalType,
    DoubleType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import DELETED, KEPT, QUEUE, SEQUENCE
from lanemq.pipelines.stages.cdc.changes import belongs
from lanemq.pipelines.stages.cdc.documents import UNREADABLE, listed
from lanemq.pipelines.stages.cdc.meanings import column_types
from lanemq.pipelines.stages.cdc.options import ReplicaOptions

log = logging.getLogger(__name__)

MAX_COLUMNS: Final = 200
"""Columns that a table may get. Rows whose field names keep changing, such as ids, are maps."""

Fields = dict[str, tuple[int, str, bool]]
"""New fields: the offset of the first value that is not null, its type, and whether any value has a fraction."""

_KINDS: Final[dict[type, str]] = {bool: "boolean", int: "long", float: "double", str: "string"}
_TYPES: Final[dict[str, DataType]] = {
    "boolean": BooleanType(),
    "long": LongType(),
    "double": DoubleType(),
    "string": StringType(),
    "date": DateType(),
    "timestamp": TimestampType(),
    "binary": BinaryType(),
}
_DECIMAL: Final = re.compile(r"decimal\((\d+),(\d+)\)")
_NAME: Final = re.compile(r"[^\W\d]\w*")
_MAX_NAME_BYTES: Final = 63
"""PostgreSQL's limit for a name."""
_RESERVED: Final = frozenset(
    {"tableoid", "xmin", "cmin", "xmax", "cmax", "ctid", "oid", "rowid", "_rowid_", SEQUENCE, DELETED, KEPT, QUEUE}
)
"""Names that databases use themselves, and columns that tell sinks what to do with a row."""

_NUMBER: Final = b"-0123456789"
"""First characters of numbers in JSON."""

_PUTS: Final = ("insert", "update", "bootstrap-insert")
"""Message types of canal and Maxwell whose rows are put into the table."""

EXAMINED: Final = 3
"""Messages examined for skipped fields before giving up; deletions and poison have no row."""

_raw: Final = msgspec.json.Decoder(dict[str, msgspec.Raw])
_raw_rows: Final = msgspec.json.Decoder(list[dict[str, msgspec.Raw] | None])
_any: Final = msgspec.json.Decoder(Any)


class Evolution:
    """The columns that were added to a table, in order."""

    def __init__(self) -> None:
        self._reported: set[str] = set()
        self.columns: Mapping[str, str] = {}

    def find_columns(self, options: ReplicaOptions, found: Sequence[tuple[str, Fields]]) -> dict[str, str]:
        """The columns that a batch adds, in the order of queue and offset, whichever task found them."""
        taken = {name.casefold() for name in (*options.table.columns, *self.columns)}
        candidates = [(queue, at, name, kind) for queue, fields in found for name, (at, kind, _) in fields.items()]
        fractions = {name for _, fields in found for name, (*_, fraction) in fields.items() if fraction}
        fresh: dict[str, str] = {}
        for *_, name, kind in sorted(candidates):
            if len(self.columns) + len(fresh) < MAX_COLUMNS and can_be_column(name, taken):
                fresh[name] = "double" if kind == "long" and name in fractions else kind
                taken.add(name.casefold())
        return fresh

    def report(self, fresh: Mapping[str, str], conflicts: Iterable[str], batch: Batch) -> dict[str, int]:
        """Logs new columns and, once per column, conflicts. Returns the counts of the batch."""
        if fresh:
            described = ", ".join(f"{name} {kind}" for name, kind in fresh.items())
            log.warning("%s: rows have new fields, which become columns of the table: %s", batch, described)
        for name in sorted(set(conflicts) - self._reported):
            self._reported.add(name)
            log.warning(
                "%s: values of the field %s do not fit its column, which has the type of the first one: they are null "
                "and counted as misfits",
                batch,
                name,
            )
        return {"new_columns": len(fresh)} if fresh else {}

    def extend(self, declared: ReplicaOptions, fresh: Mapping[str, str] | None = None) -> ReplicaOptions:
        """The options with all added columns, except those that are declared by now."""
        known = {name.casefold() for name in (*declared.table.columns, KEPT, QUEUE)}
        added = {name: kind for name, kind in {**self.columns, **(fresh or {})}.items() if name.casefold() not in known}
        fields = [StructField(name, _column_type(kind)) for name, kind in added.items()]
        table = replace(declared.table, schema=StructType([*declared.table.schema.fields, *fields]))
        return replace(declared, table=table, added=tuple(added))


def can_be_column(name: str, taken: Iterable[str] = ()) -> bool:
    """Whether every supported database could have this column beside those of these (case-folded) names."""
    folded = name.casefold()
    fits = len(name.encode("utf-8", "replace")) <= _MAX_NAME_BYTES and _NAME.fullmatch(name) is not None
    return fits and folded not in _RESERVED and folded not in taken


def new_fields(options: ReplicaOptions, messages: pa.Table) -> Fields:
    """Fields of a queue's rows that the table does not have; `messages` are in order."""
    known = {
        *options.table.columns,
        *(part.path.partition(".")[0] for part in options.parts),
        *_deletion_field(options),
    }
    taken = {name.casefold() for name in options.table.columns}
    found: Fields = {}
    for offset, value in zip(listed(messages["queue_offset"]), listed(messages["value"]), strict=True):
        for row, schema in _rows(options, value):
            if row.keys() <= known:
                continue
            types = _types_of(schema)
            for name in row.keys() - known:
                kind = _kind(row[name]) if name not in found or memoryview(row[name])[0] in _NUMBER else None
                if kind is not None:
                    found[name] = _with_value(found.get(name), offset, types.get(name, kind))
                if kind == "double" or (kind is not None and name in types) or not can_be_column(name, taken):
                    known.add(name)  # later values cannot change the result
    return found


def combine_fields(one: Fields, two: Fields) -> Fields:
    """Combines the fields of two parts of a queue."""
    both = one.keys() & two.keys()
    return {**one, **two} | {name: (*min(one[name], two[name])[:2], one[name][2] or two[name][2]) for name in both}


def _with_value(field: tuple[int, str, bool] | None, offset: int, kind: str) -> tuple[int, str, bool]:
    at, first, fraction = field or (offset, kind, False)
    return at, first, fraction or kind == "double"


def _deletion_field(options: ReplicaOptions) -> set[str]:
    return {options.deleted.partition(".")[0]} if options.deleted else set()


def _column_type(kind: str) -> DataType:
    decimal = _DECIMAL.fullmatch(kind)
    return DecimalType(int(decimal[1]), int(decimal[2])) if decimal else _TYPES[kind]


@lru_cache(maxsize=64)
def _types_of(schema: bytes) -> Mapping[str, str]:
    """The types that a schema gives the columns. Only messages with new fields get here, nearly all with one schema."""
    return column_types(schema)


def _rows(options: ReplicaOptions, value: bytes | None) -> Iterator[tuple[dict[str, msgspec.Raw], bytes]]:
    """The rows that a message puts into the table, with undecoded values, and the schema that it embeds.

    None for poison, deletions and other tables.
    """
    try:
        event = _raw.decode(value or b"{}")
        if options.format == "json":
            yield event, b""
        elif options.format == "debezium":
            yield from _after(options, event)
        elif _is_wanted(options, event) and str(_plain(event, "type")).lower() in _PUTS:
            data = bytes(event.get("data", b"null"))
            yield from ((row, b"") for row in _raw_rows.decode(data if data[:1] == b"[" else b"[" + data + b"]") if row)
    except UNREADABLE:
        return


def _after(options: ReplicaOptions, event: dict[str, msgspec.Raw]) -> Iterator[tuple[dict[str, msgspec.Raw], bytes]]:
    inner = bytes(event.get("payload", b"null"))
    schema = bytes(event.get("schema", b"")) if inner != b"null" else b""
    event = _raw.decode(inner) if inner != b"null" else event
    source = _plain(event, "source") if options.only_table is not None else {}
    names = [source.get(name) for name in ("db", "schema", "table")] if isinstance(source, dict) else [None]
    after = bytes(event.get("after", b"null"))
    if after != b"null" and belongs(options.only_table, *names):
        yield _raw.decode(after), schema


def _is_wanted(options: ReplicaOptions, event: dict[str, msgspec.Raw]) -> bool:
    return options.only_table is None or belongs(options.only_table, _plain(event, "database"), _plain(event, "table"))


def _plain(event: dict[str, msgspec.Raw], name: str) -> Any:
    return _any.decode(event[name]) if name in event else None


def _kind(raw: msgspec.Raw) -> str | None:
    """The type of a value; None if it is null or unreadable. Objects and lists become text, as their JSON."""
    try:
        value = _any.decode(raw)
    except UNREADABLE:  # nested values are first decoded here
        return None
    return None if value is None else _KINDS.get(type(value), "string")


class SkippedFields:
    """Fields that the rows had so far. Those of the checkpoint's first batch are left out on purpose, not reported."""

    def __init__(self) -> None:
        self._seen: set[str] | None = None

    @property
    def seen(self) -> tuple[str, ...]:
        """The fields so far."""
        return tuple(sorted(self._seen or ()))

    def continue_from(self, skipped: Iterable[str] | None) -> None:
        """Add the fields that earlier batches had; None: there was no batch."""
        if skipped is not None:
            self._seen = (self._seen or set()) | set(skipped)

    def count(self, skipped: Iterable[str], batch: Batch) -> int:
        """Logs and counts the fields that are new in this batch."""
        found = set(skipped)
        if self._seen is None:
            self._seen = found
            return 0
        fresh = sorted(found - self._seen)
        self._seen |= found
        if fresh:
            log.warning(
                "%s: rows have the new field %s, which is skipped: add it to the schema to keep it",
                batch,
                ", ".join(fresh),
            )
        return len(fresh)


def skipped_fields(options: ReplicaOptions, messages: pa.Table) -> list[str]:
    """Fields of the last message that has a row, if the table does not have them."""
    for index in range(messages.num_rows - 1, max(-1, messages.num_rows - 1 - EXAMINED), -1):
        rows = [row for row, _ in _rows(options, messages["value"][index].as_py()) if row]
        if rows:
            known = {*options.table.columns, *(part.path.partition(".")[0] for part in options.parts)}
            return sorted(rows[-1].keys() - known - _deletion_field(options))
    return []
