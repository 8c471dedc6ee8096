"""Rows as Parquet files in a plain folder, which every program reads: one file for each batch that has rows, once.

    <path>/part-<query>-<batch>-<random>.parquet            the rows of a batch
    <path>/_lanemq/columns.json                             all columns that any run declared, as Spark's JSON
    <path>/_lanemq/owner=<pipeline>                         the query that a pipeline writes as
    <path>/_lanemq/query=<query>/committed.json             the last batch, and its file
    <path>/_lanemq/query=<query>/staged/…                   a file whose batch is not complete
    <path>/_lanemq/query=<query>/running/                   what fences older runs, see checkpoint/fencing.py

A batch is written in three steps: its file is staged, `committed.json` names it, and it is moved to its place. The
second step is the commit: a fenced file, written in one step that only the newest run can make. If a run dies after it,
the next one moves the file before anything else.

Invariants: a file gets its place only after the commit that names it; a commit begins only after the file of the one
before it has its place; no name is used twice. So programs that just list the folder see all rows of a batch or none,
never twice, and never those of a batch that was not committed. The folder only grows: a table format, such as Delta or
Iceberg, divides it, compacts it and merges into it.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import cast
from urllib.parse import quote

import msgspec
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lanemq.files import Output, StorePath, is_address, locate, move, sync, write_durably
from lanemq.model.errors import InvalidOption, SinkFenced
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.checkpoint.fencing import fence_all, known_runs, read_fenced_json, take_over, write_as
from lanemq.pipelines.parquet_encoding import dictionary_columns
from lanemq.pipelines.ports import Append, FileRows, Merge, Rows
from lanemq.pipelines.sinks.exact_sink import ExactSink, LedgerEntry, Terms, owner_mark, shard_tables, shards


class CommittedBatch(msgspec.Struct, frozen=True):
    """The last batch that a query has committed."""

    batch: int
    file: str = ""
    """The name of its file, staged or in its place; empty if the batch has no rows."""


class ParquetSink(ExactSink):
    """Appends batches to a folder of Parquet files.

    Args:
        path: A folder, or an address (`hdfs://…`, `s3a://…`, `abfss://…`, `gs://…`).
    """

    appends_only = True

    def __init__(self, path: str | StorePath) -> None:
        self._given = path
        self.path = locate(path) if is_address(path) else cast("StorePath", Path(str(path)))
        """The folder."""
        self._committed: CommittedBatch | None = None

    def accept_settings(self, settings: Mapping[str, str]) -> None:
        if is_address(self._given):
            self.path = locate(self._given, settings)

    def __str__(self) -> str:
        return f"Parquet folder {self.path}"

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        if isinstance(how, Merge):
            raise InvalidOption(
                f"path {self.path}: Parquet files cannot replace rows; "
                "use a sink of kind delta, iceberg, sqlite or postgres for last-state pipelines"
            )
        terms = self._agree(query, epoch, schema, how)
        columns = self._columns_with(schema)
        self._check_owner(terms)
        LedgerEntry(None, self._newest_epoch(terms)).check_opener(terms)
        self._fence(terms)
        self._own(terms)
        write_durably(self._own_folder / "columns.json", columns.json().encode())
        for folder in (self._own_folder, self.path, self.path.absolute().parent):
            sync(folder)
        self._committed = self._read(query)
        self._place(terms)
        for left in self._staged(query).glob("*"):
            left.unlink(missing_ok=True)

    def applied_before_open(self, query: str) -> int | None:
        committed = self._read(query)
        return None if committed is None else committed.batch

    def applied(self) -> int | None:
        self._opened()
        return None if self._committed is None else self._committed.batch

    def write(self, rows: Rows, batch: Batch) -> bool:
        terms = self._terms_for(batch)
        owner = self._owner_query(terms)
        mark = None if owner is None else owner_mark(owner)
        new = LedgerEntry(self.applied(), self._newest_epoch(terms), mark).admits(batch)
        self._place(terms)  # what could not be moved when the disk was full
        if not new:
            return False
        name = f"part-{_mark(terms.query)}-{batch.number:015}-{os.urandom(4).hex()}.parquet" if rows.count() else ""
        staged = self._staged(terms.query) / name
        try:
            if name:
                self._stage(rows, staged, terms)
            self._commit(CommittedBatch(batch.number, name), terms)
        except (FileNotFoundError, SinkFenced):
            if name:
                staged.unlink(missing_ok=True)
            LedgerEntry(None, self._newest_epoch(terms)).admits(batch)
            raise
        self._place(terms)
        return True

    # The steps of a batch.

    def _stage(self, rows: Rows, target: StorePath, terms: Terms) -> None:
        """Write the rows to a file where readers do not look, and bring it to the disk."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(rows, FileRows) and sum(each.rows > 0 for each in rows.files) == 1:
            for shard in shards(rows, terms.schema):
                shard.put(target)
        else:
            self._join(rows, target, terms)
        for place in (target, target.parent, target.parent.parent):
            sync(place)

    def _join(self, rows: Rows, target: StorePath, terms: Terms) -> None:
        """Write the rows of all shards to one file, shard after shard."""
        output, writer = Output(target), None
        try:
            for table in shard_tables(rows, terms.schema):
                writer = writer or pq.ParquetWriter(
                    output.target, table.schema, use_dictionary=dictionary_columns(table)
                )
                writer.write_table(table)
        except BaseException:
            output.close(keep=False)
            raise
        if writer is not None:
            writer.close()
        output.close()

    def _commit(self, committed: CommittedBatch, terms: Terms) -> None:
        """Make the batch the last one of the query; `SinkFenced` if the run was replaced."""
        own = self._of_query(terms.query)
        write_as(terms.epoch, own / "sink", own / "committed.json", msgspec.json.encode(committed))
        self._committed = committed

    def _place(self, terms: Terms) -> None:
        """Move the file of the last batch to its place, unless it is there. Two runs may do this at the same time."""
        if self._committed is None or not self._committed.file:
            return
        staged = self._staged(terms.query) / self._committed.file
        if not staged.exists():
            return
        with suppress(FileNotFoundError):  # another run has moved it
            move(staged, self.path / self._committed.file)
        sync(self.path)

    # Who may write.

    def _fence(self, terms: Terms) -> None:
        """Let no older run write. Each run makes its mark before it looks for others, so one of two sees the other."""
        own = self._of_query(terms.query)
        own.mkdir(parents=True, exist_ok=True)
        take_over(own, terms.epoch)
        LedgerEntry(None, self._newest_epoch(terms)).check_opener(terms)

    def _newest_epoch(self, terms: Terms) -> int | None:
        return max(known_runs(self._of_query(terms.query)), default=None)

    def _check_owner(self, terms: Terms) -> None:
        """Refuse this checkpoint if the folder has batches of another one of the same pipeline."""
        owner = self._owner_query(terms)
        if owner is None or self._read(owner) is None:
            return
        entry = LedgerEntry(owner=owner_mark(owner))
        entry.check_opener(terms)
        if entry.has_other_owner(terms):
            self._warn_new_owner(terms)

    def _own(self, terms: Terms) -> None:
        """Record this checkpoint as the owner, and shut out the runs of the former one."""
        former = self._owner_query(terms)
        if not terms.pipeline or former == terms.query:
            return
        write_durably(self._owner_file(terms), terms.query.encode())
        if former is not None:
            fence_all(self._of_query(former))

    def _owner_query(self, terms: Terms) -> str | None:
        if not terms.pipeline:
            return None
        try:
            return self._owner_file(terms).read_bytes().decode()
        except FileNotFoundError:
            return None

    # What is where.

    def _columns_with(self, schema: StructType) -> StructType:
        """The columns of the folder with those of this run, which may be new but not of another type."""
        try:
            known = StructType.fromJson(msgspec.json.decode((self._own_folder / "columns.json").read_bytes()))
        except FileNotFoundError:
            return schema
        types = {field.name: field.dataType for field in known}
        for field in schema:
            if types.get(field.name, field.dataType) != field.dataType:
                raise InvalidOption(
                    f"column {field.name} is {types[field.name].simpleString()} in {self.path} and would become "
                    f"{field.dataType.simpleString()}: write to another folder, or cast it"
                )
        return StructType([*known, *(field for field in schema if field.name not in types)])

    def _read(self, query: str) -> CommittedBatch | None:
        try:
            return read_fenced_json(self._of_query(query) / "committed.json", CommittedBatch)
        except FileNotFoundError:
            return None

    @property
    def _own_folder(self) -> StorePath:
        """The folder that readers of data skip."""
        return self.path / "_lanemq"

    def _of_query(self, query: str) -> StorePath:
        return self._own_folder / f"query={quote(query, safe='')}"

    def _staged(self, query: str) -> StorePath:
        return self._of_query(query) / "staged"

    def _owner_file(self, terms: Terms) -> StorePath:
        return self._own_folder / f"owner={quote(terms.pipeline, safe='')}"


def _mark(query: str) -> str:
    """A short mark of a query, for names of files."""
    return sha256(query.encode()).hexdigest()[:8]
