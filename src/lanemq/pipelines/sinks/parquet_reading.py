"""Exact views of a Parquet folder, for programs that must not meet a batch or a compaction half way.

    read_parquet("/data/orders")                        an Arrow table
    spark.read.option("basePath", path).parquet(*parquet_files(path))

The view lists the folder between two looks at the last change of each query. If the change is still the same, every
difference between the folder and the changes is known: see `parquet_layout.exact_view`. Nothing is written, so readers
need no permission to write and do not delay the pipeline.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from lanemq.files import StorePath, arrow_source, files_below, locate, read_json
from lanemq.model.errors import StorageError, UsageError
from lanemq.pipelines.checkpoint.fencing import read_fenced_json
from lanemq.pipelines.sinks.parquet_layout import FolderChange, Partitioning, ShownFile, exact_view, partitioning
from lanemq.spark.versions import to_arrow_schema

OWN: Final = "_lanemq"
"""The folder that readers of data skip."""
MAX_TRIES: Final = 20
"""Views that may be out of date before they are complete, because batches are written at the same time."""


class FolderTerms(msgspec.Struct, frozen=True):
    """What all queries that write to a folder agree on."""

    columns: str
    """All columns that any run declared, as Spark's JSON."""
    partition_by: tuple[str, ...] = ()

    @property
    def schema(self) -> StructType:
        return StructType.fromJson(msgspec.json.decode(self.columns))

    def arrow(self) -> pa.Schema:
        """The columns; each may be null, since older files may lack it."""
        return pa.schema([field.with_nullable(True) for field in to_arrow_schema(self.schema)])

    def partitioning(self) -> Partitioning:
        return partitioning(self.partition_by, self.arrow())


@dataclass(frozen=True, slots=True)
class ParquetFolder:
    """The places in a Parquet folder."""

    path: StorePath

    @property
    def own(self) -> StorePath:
        return self.path / OWN

    def of_query(self, query: str) -> StorePath:
        return self.own / f"query={quote(query, safe='')}"

    def change_file(self, query: str) -> StorePath:
        return self.of_query(query) / "change.json"

    def staged(self, query: str) -> StorePath:
        """The folder of the staged folders."""
        return self.of_query(query) / "staged"

    @property
    def terms_file(self) -> StorePath:
        return self.own / "folder.json"

    def terms(self) -> FolderTerms | None:
        """None if no sink has written to this folder."""
        try:
            return read_json(self.terms_file, FolderTerms)
        except FileNotFoundError:
            return None

    def change(self, query: str) -> FolderChange | None:
        """The last change of a query; None before its first."""
        return _last_change(self.of_query(query))

    def view(self, query: str | None = None) -> list[tuple[ShownFile, StorePath]]:
        """The files of the exact view and where each is now. `query`: only files that this query wrote."""
        for _ in range(MAX_TRIES):
            changes = self._changes(query)
            waiting = {
                (change.staged, name): folder / "staged" / change.staged
                for folder, change in changes.items()
                if change.staged
                for name in files_below(folder / "staged" / change.staged)
            }
            listed = files_below(self.path)
            if self._changes(query) == changes:
                shown = exact_view(listed, waiting.keys(), changes.values())
                return [(file, self._place(file, waiting)) for file in shown]
        raise StorageError(
            f"{self.path}: batches are written faster than the folder is listed; try again, or use larger batches"
        )

    def _changes(self, query: str | None) -> dict[StorePath, FolderChange]:
        folders = self.own.glob("query=*") if query is None else [self.of_query(query)]
        found = {folder: _last_change(folder) for folder in folders}
        return {folder: change for folder, change in found.items() if change is not None}

    def _place(self, file: ShownFile, waiting: Mapping[tuple[str, str], StorePath]) -> StorePath:
        at = waiting[file.staged, file.path] if file.staged else self.path
        for segment in file.path.split("/"):
            at = at / segment
        return at


def _last_change(folder: StorePath) -> FolderChange | None:
    """A version that is removed while it is read is not the last one."""
    for _ in range(MAX_TRIES):
        try:
            return read_fenced_json(folder / "change.json", FolderChange)
        except FileNotFoundError:
            if not (folder / "change.json").exists():
                return None
    raise StorageError(f"{folder}: changes too quickly to be read; try again")


def parquet_files(path: str | StorePath, settings: Mapping[str, str] | None = None) -> list[str]:
    """The files that hold every row of all complete batches once, for any program that takes a list of files.

    A file that a compaction replaces is deleted, so a program that opens it later fails. List the files again then.

    Args:
        path: The folder of a `ParquetSink`.
        settings: Settings of Spark that say how a store is reached (`spark.hadoop.fs.…`). Default: the environment.
    """
    folder, _ = _opened(path, settings)
    return [str(place) for _, place in folder.view()]


def read_parquet(
    path: str | StorePath, columns: Sequence[str] | None = None, settings: Mapping[str, str] | None = None
) -> pa.Table:
    """Every row of all complete batches once, with the columns of all runs and of the partitions.

    Args:
        path: The folder of a `ParquetSink`.
        columns: Only these columns. Default: all.
        settings: Settings of Spark that say how a store is reached (`spark.hadoop.fs.…`). Default: the environment.
    """
    folder, terms = _opened(path, settings)
    for _ in range(MAX_TRIES):
        try:
            tables = list(read_files(folder, terms, folder.view(), columns))
        except FileNotFoundError:  # a compaction has replaced it
            continue
        return pa.concat_tables(tables)
    raise StorageError(f"{path}: files are replaced faster than they are read; try again")


def read_files(
    folder: ParquetFolder,
    terms: FolderTerms,
    files: Sequence[tuple[ShownFile, StorePath]],
    columns: Sequence[str] | None = None,
) -> Iterator[pa.Table]:
    """One table per file, after an empty one; all have the same columns."""
    schema, parts = terms.arrow(), terms.partitioning()
    wanted = pa.schema([*schema, *(pa.field(each.name, each.type_in(schema)) for each in parts.columns if each.time)])
    unknown = [name for name in columns or () if name not in wanted.names]
    if unknown:
        raise UsageError(f"{folder.path} has no column {', '.join(unknown)}; there are {', '.join(wanted.names)}")
    wanted = wanted if columns is None else pa.schema([wanted.field(name) for name in columns])
    yield wanted.empty_table()
    for file, place in files:
        values = parts.values(file.path, schema)
        yield _filled_table(place, wanted, values)


def _filled_table(place: StorePath, wanted: pa.Schema, values: Mapping[str, pa.Scalar]) -> pa.Table:
    file = pq.ParquetFile(arrow_source(place))
    there = [name for name in wanted.names if name in file.schema_arrow.names and name not in values]
    table = file.read(there)
    columns = []
    for field in wanted:
        if field.name in values:
            columns.append(pa.repeat(values[field.name], file.metadata.num_rows))
        elif field.name in there:
            columns.append(table[field.name].cast(field.type))
        else:
            columns.append(pa.nulls(file.metadata.num_rows, field.type))
    return pa.table(columns, schema=wanted)


def _opened(path: str | StorePath, settings: Mapping[str, str] | None) -> tuple[ParquetFolder, FolderTerms]:
    folder = ParquetFolder(locate(path, settings))
    terms = folder.terms()
    if terms is None:
        raise UsageError(
            f"{path} is not the folder of a ParquetSink, or no pipeline has started with it; check the path"
        )
    return folder, terms
