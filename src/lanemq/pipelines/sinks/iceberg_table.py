"""One Iceberg table through pyiceberg: its columns, its ledger, and commits that hold all of a batch or nothing.

The ledger is in the table's properties, so it outlives the snapshots that maintenance removes, and in the summary of
each snapshot, so that a table which was rolled back says how far its rows go. Rows, columns, properties and summary are
one commit of the catalog.

Invariant: a commit holds only against the snapshot at which the ledger was read. The catalog checks that, but pyiceberg
would repeat a refused commit on top of the newer snapshot by itself, and a run that was replaced would write after all.
So the copy of the metadata that a commit uses allows no repetition (`commit.retry.num-retries`).

pyiceberg is imported with this module, so only an open sink pays for it. Files in local folders are synced before the
catalog can name them; other stores keep what they acknowledged.
"""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
from pyiceberg.catalog import Catalog, load_catalog
from pyiceberg.exceptions import CommitFailedException, NoSuchTableError
from pyiceberg.expressions import AlwaysTrue, And, BooleanExpression, GreaterThanOrEqual, LessThanOrEqual, Reference
from pyiceberg.io.pyarrow import (
    ArrowScan,
    PyArrowFile,
    PyArrowFileIO,
    _dataframe_to_data_files,
    _pyarrow_to_schema_without_ids,
    schema_to_pyarrow,
)
from pyiceberg.manifest import DataFile
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.table import FileScanTask, Table
from pyiceberg.table.snapshots import ancestors_of
from pyiceberg.transforms import parse_transform

from lanemq.files import sync
from lanemq.model.errors import InvalidOption, LaneError, StorageError
from lanemq.pipelines.sinks.exact_sink import aligned

CREATED_BY: Final = "lanemq.created"
"""The property of tables that a sink created."""
OWN_PROPERTIES: Final = {
    CREATED_BY: "true",
    "format-version": "2",
    "write.metadata.delete-after-commit.enabled": "true",
    "write.metadata.previous-versions-max": "20",
}
"""Of tables that a sink creates. Each commit writes a file of metadata; without a limit they would all stay."""
RETRIES: Final = "commit.retry.num-retries"
QUERY, BATCH, EPOCH = "lanemq.query", "lanemq.batch", "lanemq.epoch"
"""What the summary of a snapshot says."""
FIRST_PARTITION_ID: Final = 1000
IDENTITY: Final = "identity"
TIME_PARTS: Final = ("year", "month", "day", "hour")


class SyncedFileIO(PyArrowFileIO):
    """Files as Arrow writes them, except that a local one is on the disk when it is closed."""

    def new_output(self, location: str) -> PyArrowFile:
        scheme, netloc, path = self.parse_location(location, self.properties)
        kind = _SyncedFile if scheme == "file" else PyArrowFile
        return kind(location=location, path=path, fs=self.fs_by_scheme(scheme, netloc))


class _SyncedFile(PyArrowFile):
    def create(self, overwrite: bool = False) -> Any:
        path = Path(self._path)
        path.parent.mkdir(parents=True, exist_ok=True)
        return _SyncedStream(path.open("wb" if overwrite else "xb", buffering=0))


class _SyncedStream(io.BufferedWriter):
    def close(self) -> None:
        if not self.closed:
            self.flush()
            os.fsync(self.fileno())
            sync(Path(str(self.raw.name)).parent)  # type: ignore[attr-defined]
        super().close()


SYNCED_FILES: Final = f"{__name__}.{SyncedFileIO.__name__}"


def open_catalog(options: Mapping[str, str]) -> Catalog:
    """The catalog that pyiceberg makes of these properties; `name` is its name."""
    given = dict(options)
    name = given.pop("name", "lanemq" if "type" in given or "uri" in given else None)
    with named(f"catalog {name or 'default'}"):
        return load_catalog(name, **{"py-io-impl": SYNCED_FILES, **given})


@contextmanager
def named(what: str) -> Iterator[None]:
    """Turns what catalogs and stores raise into a `StorageError` that names the object, except for refused commits."""
    try:
        yield
    except (LaneError, CommitFailedException):
        raise
    except Exception as error:  # catalogs raise what their drivers raise
        raise StorageError(f"{what}: {type(error).__name__}: {error}") from error


class IcebergTable:
    """A table of a catalog, at the snapshot that was read last."""

    def __init__(self, catalog: Catalog, table: Table) -> None:
        self._catalog = catalog
        self._table = table
        self._allow_no_repetition()

    @classmethod
    def find(cls, catalog: Catalog, name: str) -> "IcebergTable | None":
        with named(f"table {name}"):
            try:
                return cls(catalog, catalog.load_table(name))
            except NoSuchTableError:
                return None

    @classmethod
    def create(cls, catalog: Catalog, name: str, columns: pa.Schema, partition_by: Sequence[str]) -> "IcebergTable":
        """Make the table, or return the one that another run has just made."""
        schema = iceberg_schema(columns)
        spec = partitioning(schema, partition_by)
        with named(f"table {name}"):
            catalog.create_namespace_if_not_exists(catalog.namespace_from(name))
            made = catalog.create_table_if_not_exists(name, schema, partition_spec=spec, properties=OWN_PROPERTIES)
        return cls(catalog, made)

    def refresh(self) -> None:
        with named(f"table {self.name}"):
            self._table.refresh()
        self._allow_no_repetition()

    def _allow_no_repetition(self) -> None:
        held = self._table.metadata
        self._table.metadata = held.model_copy(update={"properties": {**held.properties, RETRIES: "0"}})

    @property
    def name(self) -> str:
        return ".".join(self._table.name())

    @property
    def properties(self) -> Mapping[str, str]:
        return self._table.properties

    @property
    def columns(self) -> pa.Schema:
        """The columns with Arrow's types."""
        return schema_to_pyarrow(self._table.schema(), include_field_ids=False)

    @property
    def partition_by(self) -> tuple[str, ...]:
        """The partitioning in the form of `partition_by`."""
        schema = self._table.schema()
        return tuple(
            _partition_text(str(field.transform), schema.find_column_name(field.source_id) or "?")
            for field in self._table.spec().fields
        )

    def batch_of(self, query: str) -> int | None:
        """The highest batch of a query whose rows the table has."""
        metadata = self._table.metadata
        noted, batch = self.properties.get(_key(query, "snapshot")), self.properties.get(_key(query, "batch"))
        if noted is None or metadata.snapshot_by_id(int(noted)) is None:
            return None if batch is None else int(batch)
        for snapshot in ancestors_of(metadata.current_snapshot(), metadata):
            if snapshot.snapshot_id == int(noted):
                return None if batch is None else int(batch)
            summary = snapshot.summary.additional_properties if snapshot.summary else {}
            if summary.get(QUERY) == query:  # the table was rolled back to this snapshot, or to one that follows it
                return int(summary[BATCH]) if BATCH in summary else None
        return None

    def epoch_of(self, query: str) -> int | None:
        found = self.properties.get(_key(query, "epoch"))
        return None if found is None else int(found)

    def owner_of(self, pipeline: str) -> int | None:
        found = self.properties.get(f"lanemq.owner.{pipeline}")
        return None if found is None else int(found)

    def files(self, row_filter: BooleanExpression | None = None) -> list[FileScanTask]:
        """The data files that may have rows with these values."""
        with named(f"table {self.name}"):
            return list(self._table.scan(row_filter=row_filter or AlwaysTrue()).plan_files())

    def read(self, files: Iterable[FileScanTask], names: Sequence[str] = ()) -> pa.Table:
        """The rows of some files, in order."""
        schema = self._table.schema()
        wanted = schema.select(*names) if names else schema
        with named(f"table {self.name}"):
            found = ArrowScan(self._table.metadata, self._table.io, wanted, AlwaysTrue()).to_table(files)
        return aligned(found, schema_to_pyarrow(wanted, include_field_ids=False))

    def change(self) -> "TableChange":
        return TableChange(self._table, self.name)

    def delete_file(self, location: str) -> None:
        self._table.io.delete(location)

    @property
    def handle(self) -> Table:
        """pyiceberg's own table, for maintenance."""
        return self._table


class TableChange:
    """One commit: new columns, removed files, added files, and what the ledger says afterwards."""

    def __init__(self, table: Table, name: str) -> None:
        self._name = name
        self._transaction = table.transaction()
        self._io = table.io
        self._removed: list[DataFile] = []
        self._added: list[DataFile] = []

    @property
    def columns(self) -> pa.Schema:
        """The table's columns after the commit."""
        return schema_to_pyarrow(self._transaction.table_metadata.schema(), include_field_ids=False)

    def add_columns(self, fields: Iterable[pa.Field]) -> None:
        """Add columns, null in existing rows."""
        with named(f"columns of {self._name}"), self._transaction.update_schema() as update:
            for field in iceberg_schema(pa.schema([each.with_nullable(True) for each in fields])).fields:
                update.add_column((field.name,), field.field_type)

    def add(self, rows: pa.Table) -> None:
        """Write rows to new files, which are invisible until the commit."""
        if not rows.num_rows:
            return
        with named(f"files of {self._name}"):
            metadata = self._transaction.table_metadata
            self._added.extend(_dataframe_to_data_files(metadata, aligned(rows, self.columns), self._io))

    def remove(self, file: FileScanTask) -> None:
        self._removed.append(file.file)

    def stage(self, query: str, entries: Mapping[str, str], summary: Mapping[str, str]) -> None:
        """Write the lists of files. Nothing is visible yet. `entries`: of the ledger, by property name."""
        with named(f"commit of {self._name}"):
            update = self._transaction.update_snapshot(snapshot_properties=dict(summary))
            with update.overwrite() if self._removed else update.merge_append() as producer:
                for file in self._removed:
                    producer.delete_data_file(file)
                for file in self._added:
                    producer.append_data_file(file)
                made = producer.snapshot_id
            noted = {_key(query, "snapshot"): str(made)} if query else {}
            if entries or noted:
                self._transaction.set_properties({**entries, **noted})

    def commit(self) -> None:
        """Make the change visible; `CommitFailedException` if the snapshot that was read is not the current one."""
        with named(f"commit of {self._name}"):
            self._transaction.commit_transaction()


def ledger_entries(query: str, epoch: int, batch: int | None, pipeline: str, owner: int | None) -> dict[str, str]:
    """The properties of the ledger that a commit sets."""
    entries = {_key(query, "epoch"): str(epoch)}
    if batch is not None:
        entries[_key(query, "batch")] = str(batch)
    if owner is not None:
        entries[f"lanemq.owner.{pipeline}"] = str(owner)
    return entries


def _key(query: str, what: str) -> str:
    return f"lanemq.{what}.{query}"


def key_range(changes: pa.Table, keys: Sequence[str], extremes: Callable[[pa.ChunkedArray], Any]) -> BooleanExpression:
    """The files that may have one of the keys, by the smallest and largest value of each key column."""
    found: BooleanExpression = AlwaysTrue()
    for key in keys:
        bounds = extremes(changes[key]).as_py()
        if isinstance(bounds["min"], int | str) and not isinstance(bounds["min"], bool):
            term = Reference(key)
            found = And(found, GreaterThanOrEqual(term, bounds["min"]), LessThanOrEqual(term, bounds["max"]))  # type: ignore
    return found


# Columns and partitions.


def iceberg_schema(columns: pa.Schema) -> Schema:
    """The columns with Iceberg's types; `InvalidOption` names one that Iceberg does not have."""
    for field in columns:
        try:
            _pyarrow_to_schema_without_ids(pa.schema([field]))
        except Exception as error:
            raise InvalidOption(
                f"column {field.name} is {field.type}, which Iceberg does not have: cast it ({error})"
            ) from error
    return assign_fresh_schema_ids(_pyarrow_to_schema_without_ids(columns))


def stored_type(kind: pa.DataType) -> str:
    """The type of a column as the table has it, without what may differ: which parts may be null."""
    stored = schema_to_pyarrow(iceberg_schema(pa.schema([("it", kind)])), include_field_ids=False)
    return plain_type(stored.field("it").type)


def plain_type(kind: pa.DataType) -> str:
    return str(kind).replace(" not null", "")


def partitioning(schema: Schema, partition_by: Sequence[str]) -> PartitionSpec:
    """`day`, or `day(created)`: a column's value, or the year, month, day or hour of a time."""
    fields = []
    for at, text in enumerate(partition_by):
        transform, _, rest = text.partition("(")
        column = rest.rstrip(")").strip() if rest else text
        kind = parse_transform(transform.strip() if rest and transform.strip() in TIME_PARTS else IDENTITY)
        source = next((field for field in schema.fields if field.name == column), None)
        if source is None:
            names = ", ".join(field.name for field in schema.fields)
            raise InvalidOption(f"partition_by: there is no column {column}; there are {names}")
        if (rest and str(kind) == IDENTITY) or not kind.can_transform(source.field_type):
            raise InvalidOption(
                f"partition_by: {text} cannot be used for a column of type {source.field_type}; use a column of text, "
                f"integers, booleans or dates, or year(x), month(x), day(x) or hour(x) of a time"
            )
        name = column if str(kind) == IDENTITY else f"{column}_{kind}"
        fields.append(PartitionField(source.field_id, FIRST_PARTITION_ID + at, kind, name))
    return PartitionSpec(*fields)


def _partition_text(transform: str, column: str) -> str:
    return column if transform == IDENTITY else f"{transform}({column})"
