"""Rows in the form that a sink agreed to: columns by name, types exactly as declared, keys that identify a row.

The rule guarded here: nothing reaches a table that it would have to guess about. A merge with a key twice, without a
key or without a sequence has no right answer, so it is refused before anything is written.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType

from lanemq.model.errors import InvalidOption, UsageError
from lanemq.pipelines.ports import DELETED, SEQUENCE
from lanemq.pipelines.rows import FileRows, Rows

_JSON = msgspec.json.Encoder()


def arrow_schema(schema: StructType, keys: Sequence[str] = (), *, loose: bool = False) -> pa.Schema:
    """The columns as Arrow types. `loose`: only keys stay non-null, because a deletion knows nothing else."""
    exact = to_arrow_schema(schema, timezone="UTC")
    if not loose:
        return exact
    return pa.schema([field.with_nullable(field.name not in keys) for field in exact])


def check_merge_columns(schema: pa.Schema, keys: Sequence[str]) -> None:
    """`InvalidOption` for columns that no merge could use."""
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
    """The wanted columns in the wanted types; `UsageError` names what does not fit."""
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
    """The rows shard by shard, each in order; at most one shard in memory."""
    if not isinstance(rows, FileRows):
        yield fit(rows.table(), wanted)
        return
    for file in rows.files:
        yield fit(pq.read_table(file.path, partitioning=None), wanted)


def merge_table(rows: Rows, wanted: pa.Schema, keys: Sequence[str]) -> pa.Table:
    """All rows of a merge, or `UsageError` if a key is there twice or anything is null that must not be."""
    table = pa.concat_tables([wanted.empty_table(), *shard_tables(rows, wanted)])
    for name in (*keys, SEQUENCE, DELETED):
        if table[name].null_count:
            raise UsageError(f"{table[name].null_count} rows to merge have no {name}: nothing tells what they replace")
    if table.num_rows > 1 and table.group_by(list(keys)).aggregate([]).num_rows != table.num_rows:
        raise UsageError(f"rows to merge have a key ({', '.join(keys)}) twice: fold them to one row per key first")
    return table


def is_nested(kind: pa.DataType) -> bool:
    return bool(pa.types.is_nested(kind))


def json_column(column: pa.ChunkedArray) -> pa.Array:
    """Maps, arrays and structs as JSON text: times in ISO 8601, bytes in base64, numbers as they are."""
    values = column.to_pylist(maps_as_pydicts="strict")
    return pa.array([None if value is None else json_bytes(value).decode() for value in values], pa.string())


def json_bytes(value: Any) -> bytes:
    return _JSON.encode(value)
