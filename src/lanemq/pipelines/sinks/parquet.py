"""Rows as Parquet files in a plain folder, which every program reads: one file for each batch that has rows, once.

    <path>/part-<query>-<batch>-<random>.parquet            the rows of a batch
    <path>/_lanemq/columns.json                             all columns that any run declared, as Spark's JSON
    <path>/_lanemq/owner=<pipeline>                         the query that a pipeline writes as
    <path>/_lanemq/query=<query>/log/…                      the runs, and the last batch with its file: run_log.py
    <path>/_lanemq/query=<query>/staged/…                   a file whose batch is not complete

A batch is written in three steps: its file is staged, the log names it, and it is moved to its place. The second step
is the commit, which only the newest run can make. If a run dies after it, the next one moves the file before anything
else.

Invariants: a file gets its place only after the commit that names it; a commit begins only after the file of the one
before it has its place; no name is used twice; a folder that was deleted or restored from a copy takes no batch. So
programs that just list the folder see all rows of a batch or none, never twice, and never those of a batch that was not
committed. The folder only grows: a table format, such as Delta or Iceberg, divides it, compacts it and merges into it.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

import msgspec
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from lanemq.files import Output, StorePath, is_address, locate, move, sync, write_durably
from lanemq.model.errors import InvalidOption
from lanemq.pipelines.batches import Batch, Runs
from lanemq.pipelines.checkpoint.run_log import RunLog, read_log, shut_runs_out
from lanemq.pipelines.parquet_encoding import dictionary_columns
from lanemq.pipelines.ports import FileRows, Merge, Rows, SinkRun
from lanemq.pipelines.sinks.exact_sink import (
    ExactSink,
    LedgerEntry,
    owner_mark,
    refuse_same_but_case,
    shard_tables,
    shards,
)

_COMMITTED: Final = "committed"
"""The name of the record in the log."""


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
        self._log: RunLog | None = None
        self._committed: CommittedBatch | None = None

    def __str__(self) -> str:
        return f"Parquet folder {self.path}"

    def open(self, run: SinkRun) -> None:
        if isinstance(run.how, Merge):
            raise InvalidOption(
                f"path {self.path}: Parquet files cannot replace rows; "
                "use a sink of kind delta, iceberg, sqlite or postgres for last-state pipelines"
            )
        self._begin(run)
        self._reach(run.settings)
        columns = self._columns_with(run.schema)
        self._check_owner(run)
        self._log = self._begin_run(run)
        self._own(run)
        write_durably(self._own_folder / "columns.json", columns.json().encode())
        for folder in (self._own_folder, self.path, self.path.absolute().parent):
            sync(folder)
        self._committed = _committed(self._log.records)
        self._reached = None if self._committed is None else self._committed.batch
        self._place(run)
        self._remove_staged(run)

    def applied(self, query: str, settings: Mapping[str, str]) -> int | None:
        self._reach(settings)
        committed = self._read(query)
        return None if committed is None else committed.batch

    def _reach(self, settings: Mapping[str, str]) -> None:
        if is_address(self._given):
            self.path = locate(self._given, settings)

    def write(self, rows: Rows, batch: Batch) -> bool:
        run = self._run_of(batch)
        owner = self._owner_query(run)
        mark = None if owner is None else owner_mark(owner)
        log = read_log(self._log_of(run.query))  # another program may have deleted or restored the folder
        self._committed = _committed(log.records)
        last = None if self._committed is None else self._committed.batch
        new = self._admits(LedgerEntry(last, log.runs.newest, mark), batch)
        self._place(run)  # what could not be moved when the disk was full
        if not new:
            return False
        name = f"part-{_mark(run.query)}-{batch.number:015}-{os.urandom(4).hex()}.parquet" if rows.count() else ""
        staged = self._staged(run.query) / name
        if name:
            self._stage(rows, staged, run)
        # If this fails, the file stays: the entry may be there nevertheless, and the next run places the file.
        self._commit(CommittedBatch(batch.number, name), run)
        self._place(run)
        return True

    # The steps of a batch.

    def _stage(self, rows: Rows, target: StorePath, run: SinkRun) -> None:
        """Write the rows to a file where readers do not look, and bring it to the disk."""
        target.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(rows, FileRows) and sum(each.rows > 0 for each in rows.files) == 1:
            for shard in shards(rows, run.columns):
                shard.put(target)
        else:
            self._join(rows, target, run)
        for place in (target, target.parent, target.parent.parent):
            sync(place)

    def _join(self, rows: Rows, target: StorePath, run: SinkRun) -> None:
        """Write the rows of all shards to one file, shard after shard."""
        output, writer = Output(target), None
        try:
            for table in shard_tables(rows, run.columns):
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

    def _commit(self, committed: CommittedBatch, run: SinkRun) -> None:
        """Make the batch the last one of the query; `SinkFenced` if the run was replaced."""
        assert self._log is not None, "the sink is open"
        self._log.record(_COMMITTED, msgspec.json.encode(committed))
        self._committed, self._reached = committed, committed.batch

    def _place(self, run: SinkRun) -> None:
        """Move the file of the last batch to its place, unless it is there. Two runs may do this at the same time."""
        if self._committed is None or not self._committed.file:
            return
        staged = self._staged(run.query) / self._committed.file
        if not staged.exists():
            return
        with suppress(FileNotFoundError):  # another run has moved it
            move(staged, self.path / self._committed.file)
        sync(self.path)

    def _remove_staged(self, run: SinkRun) -> None:
        """Remove what former runs did not commit. A newer run may have begun, whose file must stay."""
        assert self._log is not None, "the sink is open"
        there = list(self._staged(run.query).glob("*"))
        self._log.refuse_if_replaced()  # so no newer run had begun when the folder was listed
        for path in there:
            path.unlink(missing_ok=True)

    # Who may write.

    def _begin_run(self, run: SinkRun) -> RunLog:
        """Let no older run write."""

        def checked(runs: Runs) -> int:
            LedgerEntry(None, runs.newest or None).check_opener(run, self)
            return run.epoch

        return RunLog(self._log_of(run.query), checked)

    def _check_owner(self, run: SinkRun) -> None:
        """Refuse this checkpoint if the folder has batches of another one of the same pipeline."""
        owner = self._owner_query(run)
        if owner is None or self._read(owner) is None:
            return
        entry = LedgerEntry(owner=owner_mark(owner))
        entry.check_opener(run, self)
        if entry.has_other_owner(run):
            self._warn_new_owner(run)

    def _own(self, run: SinkRun) -> None:
        """Record this checkpoint as the owner, and shut out the runs of the former one."""
        former = self._owner_query(run)
        if not run.pipeline or former == run.query:
            return
        write_durably(self._owner_file(run), run.query.encode())
        if former is not None:
            shut_runs_out(self._log_of(former))

    def _owner_query(self, run: SinkRun) -> str | None:
        if not run.pipeline:
            return None
        try:
            return self._owner_file(run).read_bytes().decode()
        except FileNotFoundError:
            return None

    # What is where.

    def _columns_with(self, schema: StructType) -> StructType:
        """The columns of the folder with those of this run, which may be new but not of another type."""
        refuse_same_but_case("the rows", schema.names, schema.names)
        try:
            known = StructType.fromJson(msgspec.json.decode((self._own_folder / "columns.json").read_bytes()))
        except FileNotFoundError:
            return schema
        refuse_same_but_case(f"the folder {self.path}", schema.names, known.names)
        types = {field.name: field.dataType for field in known}
        for field in schema:
            if types.get(field.name, field.dataType) != field.dataType:
                raise InvalidOption(
                    f"column {field.name} is {types[field.name].simpleString()} in {self.path} and would become "
                    f"{field.dataType.simpleString()}: write to another folder, or cast it"
                )
        return StructType([*known, *(field for field in schema if field.name not in types)])

    def _read(self, query: str) -> CommittedBatch | None:
        return _committed(read_log(self._log_of(query)).records)

    @property
    def _own_folder(self) -> StorePath:
        """The folder that readers of data skip."""
        return self.path / "_lanemq"

    def _of_query(self, query: str) -> StorePath:
        return self._own_folder / f"query={quote(query, safe='')}"

    def _log_of(self, query: str) -> StorePath:
        return self._of_query(query) / "log"

    def _staged(self, query: str) -> StorePath:
        return self._of_query(query) / "staged"

    def _owner_file(self, run: SinkRun) -> StorePath:
        return self._own_folder / f"owner={quote(run.pipeline, safe='')}"


def _committed(records: Mapping[str, bytes]) -> CommittedBatch | None:
    content = records.get(_COMMITTED)
    return None if content is None else msgspec.json.decode(content, type=CommittedBatch)


def _mark(query: str) -> str:
    """A short mark of a query, for names of files."""
    return sha256(query.encode()).hexdigest()[:8]
