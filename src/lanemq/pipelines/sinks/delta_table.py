"""A Delta table as a sink finds or makes it.

The rule guarded here: what could only fail, or silently go wrong, batches later is refused when a run opens the
table: a column of another type, rows appended to a table that is merged, a table that forgets which batches it has.
"""

import json
from collections.abc import Mapping, Sequence
from typing import Any

import pyarrow as pa
from deltalake import DeltaTable, Schema
from deltalake.exceptions import CommitFailedError, DeltaError

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.ports import DELETED, SEQUENCE
from lanemq.pipelines.sinks.ledger import Terms

FORGETS = "delta.setTransactionRetentionDuration"
PLAIN_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", "changeDataFeed"})
"""Of tables whose files need nothing but rows; all others are left to delta-rs to write."""
_PARTITION_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date)


def open_table(
    path: str, terms: Terms, partition_by: Sequence[str], storage: Mapping[str, str], *, evolve: bool
) -> DeltaTable:
    """The table, created if it is not there; it has, or may get, a column for everything the run will write."""
    _check_partitioning(terms.schema, partition_by)
    table = _created(path, terms.schema, partition_by, storage)
    found = table.metadata()
    if list(found.partition_columns) != list(partition_by):
        raise InvalidOption(
            f"partition_by: the table {path} is partitioned by ({', '.join(found.partition_columns)}), "
            f"not by ({', '.join(partition_by)})"
        )
    if FORGETS in found.configuration:
        raise InvalidOption(
            f"the table {path} has the property {FORGETS}: it would forget which batches it has; unset it"
        )
    _check_columns(path, table.schema(), terms.schema, evolve=evolve)
    return table


def add_columns(table: DeltaTable, wanted: pa.Schema) -> bool:
    """Whether columns were missing, and are there now: empty in the rows of old."""
    there = {field.name for field in table.schema().fields}
    new = pa.schema([field.with_nullable(True) for field in wanted if field.name not in there])
    if new.names:
        table.alter.add_columns(list(Schema.from_arrow(new).fields))
        table.update_incremental()
    return bool(new.names)


def column_types(table: DeltaTable) -> dict[str, Any]:
    """The table's columns, with Delta's own words for their types."""
    return {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}


def is_type(declared: Any, kind: pa.DataType) -> bool:
    """Whether a column of the table is of this type."""
    wanted = json.loads(Schema.from_arrow(pa.schema([("it", kind)])).to_json())["fields"][0]["type"]
    return bool(_shape(declared) == _shape(wanted))


def takes_files(table: DeltaTable) -> bool:
    """Whether Parquet files can become part of the table as they are: it renames, computes and forbids nothing."""
    protocol = table.protocol()
    features = set(protocol.writer_features or ()) | set(protocol.reader_features or ())
    if (protocol.min_writer_version > 2 and not features) or not features <= PLAIN_FEATURES:
        return False
    fields = json.loads(table.schema().to_json())["fields"]
    return not any(field["metadata"] for field in fields) and not any(
        name.startswith("delta.constraints.") for name in table.metadata().configuration
    )


def _check_partitioning(wanted: pa.Schema, partition_by: Sequence[str]) -> None:
    for name in partition_by:
        if name not in wanted.names:
            raise InvalidOption(f"partition_by: there is no column {name}; there are {', '.join(wanted.names)}")
        if not any(fits(wanted.field(name).type) for fits in _PARTITION_TYPES):
            raise InvalidOption(
                f"partition_by: {name} is {wanted.field(name).type}; use text, integers, booleans, dates"
            )
        if pa.types.is_string(wanted.field(name).type) and not wanted.field(name).nullable:
            raise InvalidOption(
                f"partition_by: {name} is text that must not be null, as a key of a merge, and Delta's partitions have "
                f"no empty text but null: one row with it would make the table unreadable; use another column"
            )


def _created(path: str, wanted: pa.Schema, partition_by: Sequence[str], storage: Mapping[str, str]) -> DeltaTable:
    try:
        return DeltaTable.create(
            path, wanted, mode="ignore", partition_by=list(partition_by) or None, storage_options=dict(storage) or None
        )
    except CommitFailedError:
        raise
    except DeltaError as error:
        raise InvalidOption(f"path {path}: no Delta table could be opened or created there: {error}") from error
    except Exception as error:
        # deltalake raises the plain class for types that Delta does not have.
        if type(error) is not Exception:
            raise
        raise InvalidOption(f"path {path}: {str(error).splitlines()[0]}") from error


def _check_columns(path: str, found: Schema, wanted: pa.Schema, *, evolve: bool) -> None:
    there = {field["name"]: field for field in json.loads(found.to_json())["fields"]}
    for field in json.loads(Schema.from_arrow(wanted).to_json())["fields"]:
        name = field["name"]
        if name in there and _shape(there[name]["type"]) != _shape(field["type"]):
            raise InvalidOption(
                f"column {name} is {_words(there[name]['type'])} in the table {path} and would become "
                f"{_words(field['type'])}: cast it, or write to another table"
            )
        if name not in there and not evolve:
            raise InvalidOption(f"column {name} is not in the table {path}: add it, or allow it with evolve = true")
    _check_kind(path, set(there), wanted)
    for name, field in there.items():
        if not field["nullable"] and (name not in wanted.names or wanted.field(name).nullable):
            raise InvalidOption(f"column {name} of the table {path} must not be null, and the rows may have none")


def _check_kind(path: str, there: set[str], wanted: pa.Schema) -> None:
    """A merged table compares sequences: rows without one would never be replaced, and appended ones repeat keys."""
    merged, merges = {SEQUENCE, DELETED} <= there, {SEQUENCE, DELETED} <= set(wanted.names)
    if merged != merges:
        kinds = ("is merged by key", "appends rows") if merged else ("holds plain rows", "merges by key")
        raise InvalidOption(f"the table {path} {kinds[0]} and this pipeline {kinds[1]}: write to another table")


def _shape(kind: Any) -> Any:
    """A type without what may differ: which parts may be null, and comments."""
    if isinstance(kind, dict):
        left_out = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {name: _shape(part) for name, part in kind.items() if name not in left_out}
    return [_shape(part) for part in kind] if isinstance(kind, list) else kind


def _words(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))
