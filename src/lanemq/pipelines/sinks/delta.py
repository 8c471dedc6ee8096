"""Batches in a Delta table: rows, batch number and epoch in one commit of its log.

The rules guarded here: the number and the epoch are application transactions of the commit that adds the rows, so
they are there together or not at all. A commit is made against the version in which both were read; Delta refuses a
commit if a version in between has touched one of the same application ids, and `open` writes the epoch down before
anything else. So a run that was replaced is refused even if it began its write earlier.

A merge replaces a row only by one with a higher sequence. Deletions stay as rows with `_deleted`, or a late older
change would bring a row back; `read_table` hides them, `purge_tombstones` ends them.
"""

import json
import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import TableMerger
from deltalake.transaction import AddAction
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import InvalidOption, StorageError
from lanemq.pipelines.batch import Batch
from lanemq.pipelines.ports import DELETED, KEPT, SEQUENCE, Append, Merge
from lanemq.pipelines.rows import Rows
from lanemq.pipelines.sinks.columns import fit, merge_table
from lanemq.pipelines.sinks.delta_files import place_files
from lanemq.pipelines.sinks.delta_table import add_columns, column_types, is_type, open_table, takes_files
from lanemq.pipelines.sinks.ledger import ExactSink, Standing, Terms
from lanemq.pipelines.sinks.widening import Room, widened

log = logging.getLogger(__name__)

T = TypeVar("T")

ATTEMPTS = 50
"""Commits that may fail because others write to the table too, before the batch does."""


class DeltaSink(ExactSink):
    """Appends or merges batches.

    Args:
        path: Folder, or address of an object store that delta-rs knows (`s3://...`, with `storage_options`). Appended
            rows keep the order of their shard within a file only in folders, and in tables without constraints,
            generated or renamed columns.
        partition_by: Columns whose values divide the files; few values each, or the files become many and small. An
            empty text becomes null there, because partitions of Delta know none.
        maintain_every: Batches between compactions with vacuum, 0 for never. Often costs time, rarely leaves many
            small files to read.
        keep_hours: How long files that no version needs any more stay for slow readers and time travel. A merge
            rewrites the files it touches, so long means disk space; shorter than the longest query breaks that query,
            and 0 also deletes what another writer is just about to commit.
        evolve: Whether a run with new columns may add them to the table.
    """

    def __init__(
        self,
        path: str | Path,
        partition_by: Sequence[str] = (),
        *,
        maintain_every: int = 100,
        keep_hours: int = 24,
        evolve: bool = True,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if maintain_every < 0 or keep_hours < 0:
            raise InvalidOption("maintain_every and keep_hours are counts and cannot be negative")
        self._path = str(path)
        self._partition_by = tuple(partition_by)
        self._maintain_every = maintain_every
        self._keep_hours = keep_hours
        self._evolve = self.widens = evolve
        self._storage = dict(storage_options or {})
        self._clock = clock or SystemClock()
        self._table: DeltaTable | None = None
        self._since_maintained = 0
        self._stale = 0
        """Rows that lost in the last attempt to merge."""
        self._room = Room(f"table {path}")

    def __str__(self) -> str:
        return f"Delta table {self._path}"

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        terms = self._agree(query, epoch, schema, how)
        self._until_committed(lambda: self._find_table(terms), f"opening for {query}")
        self._until_committed(lambda: self._claim(terms), f"epoch {epoch} of {query}")
        self._until_committed(lambda: self._widen(terms), f"columns of {query}")

    def applied_before_open(self, query: str) -> int | None:
        try:
            there = DeltaTable.is_deltatable(self._path, self._storage or None)
            return (
                DeltaTable(self._path, storage_options=self._storage or None).transaction_version(query)
                if there
                else None
            )
        except DeltaError as error:
            raise StorageError(f"the table {self._path} cannot be read: {error}") from error

    def applied(self) -> int | None:
        return self._standing(self._opened()).batch

    def write(self, rows: Rows, batch: Batch) -> bool:
        terms = self._terms_for(batch)
        self._stale = self.last_stale = 0
        if not self._standing(terms).admits(batch):
            return False
        commit = self._prepare(rows, batch, terms)
        self._reached("files placed")
        new = self._until_committed(lambda: self._standing(terms).admits(batch) and commit(), str(batch))
        self._reached("committed")
        if new:
            self._tell_stale(batch, rows.count(), self._stale)
            self._maintain()
        return new

    def close(self) -> None:
        super().close()
        self._table = None

    def purge_tombstones(self, below: int | str) -> int:
        """Removes deletions with a sequence below this one, and says how many.

        An older change of such a key that arrives afterwards is taken for a new row: choose a sequence that nothing
        on its way to the table is older than.
        """
        bound = _text(below) if isinstance(below, str) else str(int(below))
        return self._until_committed(lambda: self._purge(bound), "purging deletions")

    def _purge(self, bound: str) -> int:
        table = DeltaTable(self._path, storage_options=self._storage or None)
        return int(table.delete(f'"{DELETED}" AND "{SEQUENCE}" < {bound}')["num_deleted_rows"])

    def _find_table(self, terms: Terms) -> bool:
        self._table = open_table(self._path, terms, self._partition_by, self._storage, evolve=self._evolve)
        return True

    def _standing(self, terms: Terms) -> Standing:
        """Brings the table up to date, so that what is committed next is judged by what was read here."""
        table = self._delta()
        try:
            table.update_incremental()
        except DeltaError as error:
            raise StorageError(f"the table {self._path} cannot be read any more: {error}") from error
        return Standing(table.transaction_version(terms.query), table.transaction_version(_epoch_id(terms.query)))

    def _claim(self, terms: Terms) -> bool:
        if not self._standing(terms).lacks(terms):
            return False
        self._commit_nothing(CommitProperties(app_transactions=[Transaction(_epoch_id(terms.query), terms.epoch)]))
        return True

    def _widen(self, terms: Terms) -> bool:
        self._standing(terms).lacks(terms)
        return add_columns(self._delta(), terms.schema)

    def _prepare(self, rows: Rows, batch: Batch, terms: Terms) -> Callable[[], bool]:
        """What takes time and does not depend on the table's version; what is left can be tried repeatedly."""
        named = CommitProperties(
            app_transactions=[Transaction(batch.query, batch.number), Transaction(_epoch_id(batch.query), batch.epoch)]
        )
        if isinstance(terms.how, Merge):
            wider = widened(terms, rows) if self.widens else terms
            changes = merge_table(rows, wider.schema, terms.how.keys)
            keys = terms.how.keys
            return lambda: self._merge(changes, keys, batch, named)
        if "://" in self._path or not takes_files(self._delta()):
            table = fit(rows.table(), terms.schema)
            return lambda: self._append_streamed(table, named)
        files = place_files(rows, terms.schema, Path(self._path), self._partition_by, self._clock.wall())
        return lambda: self._append_files(files, named)

    def _append_files(self, files: list[AddAction], named: CommitProperties) -> bool:
        table = self._delta()
        table.create_write_transaction(
            [*files],
            mode="append",
            schema=table.schema(),
            partition_by=list(self._partition_by),
            commit_properties=named,
        )
        return True

    def _append_streamed(self, rows: pa.Table, named: CommitProperties) -> bool:
        write_deltalake(self._delta(), rows, mode="append", commit_properties=named)
        return True

    def _merge(self, changes: pa.Table, keys: Sequence[str], batch: Batch, named: CommitProperties) -> bool:
        table = self._delta()
        if changes.num_rows:
            same = " AND ".join(f"s.{_quoted(key)} = t.{_quoted(key)}" for key in keys)
            changes, missing = self._room.made(changes, self._opened().schema.names, column_types(table), is_type)
            merge = table.merge(
                changes, same, source_alias="s", target_alias="t", merge_schema=bool(missing), commit_properties=named
            )
            done = _updating(merge, changes).when_not_matched_insert_all().execute()
            self._stale = changes.num_rows - done["num_target_rows_inserted"] - done["num_target_rows_updated"]
        if table.transaction_version(batch.query) != batch.number:
            # A merge that changes nothing commits nothing, and the batch would be unknown.
            self._commit_nothing(named)
        return True

    def _commit_nothing(self, named: CommitProperties) -> None:
        table = self._delta()
        table.create_write_transaction(
            [], mode="append", schema=table.schema(), partition_by=list(self._partition_by), commit_properties=named
        )

    def _until_committed(self, attempt: Callable[[], T], what: str) -> T:
        for number in range(ATTEMPTS):
            try:
                return attempt()
            except CommitFailedError as error:
                log.info("%s: table %s was changed meanwhile, attempt %d: %s", what, self._path, number + 1, error)
                last = error
            except DeltaError as error:
                raise StorageError(f"{what}: the table {self._path} could not be written: {error}") from error
        raise StorageError(f"{what}: others change the table {self._path} faster than it can be written") from last

    def _maintain(self) -> None:
        """Fewer files for readers, and no files that nobody reads. What fails here is tried again later."""
        self._since_maintained += 1
        if not self._maintain_every or self._since_maintained < self._maintain_every:
            return
        self._since_maintained = 0
        table = self._delta()
        try:
            table.update_incremental()
            table.optimize.compact()
            table.vacuum(self._keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
        except DeltaError as error:
            log.warning("table %s was not compacted: %s", self._path, error)

    def _delta(self) -> DeltaTable:
        self._opened()
        assert self._table is not None, "open() sets it"
        return self._table


def read_table(path: str | Path, storage_options: Mapping[str, str] | None = None) -> pa.Table:
    """The rows of a table as its users mean them: without deletions, and without the columns that order changes."""
    found = DeltaTable(str(path), storage_options=dict(storage_options or {}) or None)
    # Not `to_pyarrow_table`: Arrow's threads call back into Python, and a program that ends meanwhile is aborted.
    rows = QueryBuilder().register("rows", found).execute("select * from rows").read_all()
    table = pa.table(rows).cast(pa.schema(found.schema().to_arrow()))
    if DELETED in table.schema.names and SEQUENCE in table.schema.names:
        ours = [name for name in (SEQUENCE, DELETED, KEPT) if name in table.schema.names]
        table = table.filter(pc.invert(pc.fill_null(table[DELETED], False))).drop_columns(ours)
    return table


def _updating(merge: TableMerger, changes: pa.Table) -> TableMerger:
    """Newer rows replace older ones, but for the columns that they keep."""
    newer, kept = f"s.{_quoted(SEQUENCE)} > t.{_quoted(SEQUENCE)}", f"s.{_quoted(KEPT)}"
    if KEPT not in changes.schema.names:
        return merge.when_matched_update_all(newer)
    for names in pc.unique(changes[KEPT].drop_null()).to_pylist():
        same = f"{newer} AND {kept} = {_text(names)}"
        merge = merge.when_matched_update_all(same, except_cols=json.loads(names))
    return merge.when_matched_update_all(f"{newer} AND {kept} IS NULL")


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _epoch_id(query: str) -> str:
    return f"{query}#epoch"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
