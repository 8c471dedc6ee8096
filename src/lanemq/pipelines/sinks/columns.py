"""Rows in the form that a sink and a run agreed on: columns by name, exact types, keys that identify a row.

Invariant: a table never has to guess. A merge with a key twice, without a key or without a sequence has no right
answer, so it is refused before anything is written.
"""

import logging
import re
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lanemq.model.errors import InvalidOption, UsageError
from lanemq.pipelines.ports import DELETED, SEQUENCE
from lanemq.pipelines.rows import FileRows, Rows

log = logging.getLogger(__name__)

C = TypeVar("C")

_JSON = msgspec.json.Encoder()


def arrow_schema(schema: StructType, keys: Sequence[str] = (), *, loose: bool = False) -> pa.Schema:
    """The columns as Arrow types. `loose`: every column but the keys may be null, as in the row of a deletion."""
    exact = to_arrow_schema(schema, timezone="UTC")
    if not loose:
        return exact
    return pa.schema([field.with_nullable(field.name not in keys) for field in exact])


def check_merge_columns(schema: pa.Schema, keys: Sequence[str]) -> None:
    """`InvalidOption` if a merge cannot use these columns."""
    if not keys:
        raise InvalidOption("keys: a merge needs at least one column that identifies a row")
    for name in (*keys, SEQUENCE, DELETED):
        if name not in schema.names:
            raise InvalidOption(f"column {name} is missing: a merge needs its keys, {SEQUENCE} and {DELETED}")
    if not pa.types.is_boolean(schema.field(DELETED).type):
        raise InvalidOption(f"column {DELETED} is {schema.field(DELETED).type}, it must be boolean")
    kind = schema.field(SEQUENCE).type
    if not (pa.types.is_integer(kind) or pa.types.is_string(kind)):
        raise InvalidOption(f"column {SEQUENCE} is {kind}, it must be an integer or sortable text")


def fit(table: pa.Table, wanted: pa.Schema) -> pa.Table:
    """The wanted columns with the wanted types; `UsageError` names what does not fit."""
    missing = [name for name in wanted.names if name not in table.schema.names]
    if missing:
        raise UsageError(f"the rows have no column {', '.join(missing)}, which the sink was opened with")
    table = table.select(wanted.names)
    if table.schema.equals(wanted, check_metadata=False):
        return table
    try:
        return table.cast(wanted)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError, ValueError) as error:
        raise UsageError(f"the rows do not fit the columns the sink was opened with: {error}") from error


def shard_tables(rows: Rows, wanted: pa.Schema) -> Iterator[pa.Table]:
    """The rows shard by shard, each in order; at most one shard is in memory."""
    if not isinstance(rows, FileRows):
        yield fit(rows.table(), wanted)
        return
    for file in rows.files:
        yield fit(pq.read_table(file.path, partitioning=None), wanted)


def merge_table(rows: Rows, wanted: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """All rows of a merge; `UsageError` if a key occurs twice or a key, sequence or deletion mark is null."""
    table = pa.concat_tables([wanted.empty_table(), *shard_tables(rows, wanted)])
    for name in (*keys, SEQUENCE, DELETED):
        if table[name].null_count:
            raise UsageError(f"{table[name].null_count} rows to merge have no {name}: give every row a value for it")
    if table.num_rows > 1 and table.group_by(list(keys)).aggregate([]).num_rows != table.num_rows:
        raise UsageError(f"rows to merge have a key ({', '.join(keys)}) twice: fold them to one row per key first")
    return table


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The rows of one shard, either in a file that can be copied as it is or as a table."""

    shard: str
    rows: int
    path: Path | None
    table: pa.Table | None

    def load(self) -> pa.Table:
        return self.table if self.table is not None else pq.read_table(self.path, partitioning=None)

    def put(self, target: Path) -> None:
        """Write the rows to a file of the sink.

        Invariant: a file that a table refers to belongs to the table alone. Stages rewrite their files when a batch
        is repeated, so the file is copied; a link would let that change committed rows.
        """
        if self.path is not None:
            shutil.copyfile(self.path, target)
        else:
            pq.write_table(self.table, target)


def shards(rows: Rows, wanted: pa.Schema) -> Iterator[ShardRows]:
    """Every shard that has rows. Files whose columns differ from the wanted ones are loaded and made to fit."""
    if not isinstance(rows, FileRows):
        if rows.count():
            yield ShardRows("driver", rows.count(), None, fit(rows.table(), wanted))
        return
    for file in rows.files:
        if file.rows:
            as_it_is = _has_columns(pq.read_schema(file.path), wanted)
            table = None if as_it_is else fit(pq.read_table(file.path, partitioning=None), wanted)
            yield ShardRows(file.shard, file.rows, file.path if as_it_is else None, table)


def file_name(shard: str) -> str:
    """The shard's name with only characters that are safe in a file name."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", shard)[:60] or "shard"


def _has_columns(found: pa.Schema, wanted: pa.Schema) -> bool:
    """Whether a Parquet file with these columns can be used as it is. The order of columns does not matter."""
    if sorted(found.names) != sorted(wanted.names):
        return False
    return all(
        found.field(field.name).type == field.type and (field.nullable or not found.field(field.name).nullable)
        for field in wanted
    )


class ExtraColumns:
    """Fits columns that were not declared into a table, which gets them in the commit of the batch.

    Invariant: no row ends a pipeline because of an undeclared column. If the table has a column of that name and
    another type, the values are stored as text if the column takes text; otherwise the column is left out, with one
    warning. Declared columns are checked when the sink is opened, never here.
    """

    def __init__(self, table: str) -> None:
        """`table`: how messages name the table."""
        self._table = table
        self._warned: set[str] = set()

    def fit(
        self,
        changes: pa.Table,
        declared: Collection[str],
        there: Mapping[str, C],
        accepts: Callable[[C, pa.DataType], bool],
    ) -> tuple[pa.Table, list[pa.Field]]:
        """The changes in a form that the table can take, and the columns that must be added to the table first."""
        missing: list[pa.Field] = []
        folded = {name.casefold() for name in there}
        for field in changes.schema:
            column = there.get(field.name)
            if field.name in declared or (column is not None and accepts(column, field.type)):
                continue
            if column is None and field.name.casefold() not in folded:
                missing.append(field)
            elif column is not None and accepts(column, pa.string()):
                at = changes.schema.get_field_index(field.name)
                changes = changes.set_column(at, field.name, changes[field.name].cast(pa.string()))
            else:
                changes = changes.drop_columns([field.name])
                self._warn(field)
        return changes, missing

    def _warn(self, field: pa.Field) -> None:
        if field.name not in self._warned:
            self._warned.add(field.name)
            log.warning(
                "%s has a column %s that does not take %s, or one whose name differs only in case: the field is left "
                "out; declare it, or rename the column",
                self._table,
                field.name,
                field.type,
            )


def is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def json_column(column: pa.ChunkedArray) -> pa.Array:
    """Maps, arrays and structs as JSON text: times in ISO 8601, bytes in base64."""
    values = column.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if value is None else json_bytes(value).decode() for value in values], pa.string())


def json_bytes(value: Any) -> bytes:
    return _JSON.encode(value)
