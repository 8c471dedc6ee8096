"""Batches in a Delta table: rows, batch number and epoch in one commit of its log.

The batch number and the epoch are application transactions of the commit that adds the rows. A commit is made against
the version in which both were read. Delta refuses the commit if a version in between has touched one of the same
application ids, and `open` writes the epoch before anything else. So a run that was replaced is refused even if it
began its write earlier.

A merge replaces a row only by one with a higher sequence. Deletions stay as rows with `_deleted`, because otherwise a
late older change would bring the row back; `read_table` hides them, `purge_tombstones` removes them. A truncation of
the source deletes all rows that are older, in the same commit.

Appended rows become files of the table: placed in its folder first, named in its log afterwards. A file is visible only
through the commit that names it, and no two attempts share a file name; what a crash leaves is invisible to readers and
deleted by the next vacuum. Files are on the disk before the log can name them, or a power cut could leave a batch that
counts as applied without its rows. A stage's file is copied as it is: delta-rs would decode and encode every row, ten
times as slow, and mix the rows of several files.
"""

import json
import logging
import math
import os
import uuid
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, QueryBuilder, Schema, Transaction, write_deltalake
from deltalake.exceptions import CommitFailedError, DeltaError
from deltalake.table import TableMerger
from deltalake.transaction import AddAction

from lanemq.clock import Clock, SystemClock
from lanemq.files import StorePath, locate, sync
from lanemq.model.errors import InvalidOption, StorageError
from lanemq.model.units import Millis, Seconds, to_seconds
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import DELETED, KEPT, QUEUE, SEQUENCE, Merge, Rows, SinkRun
from lanemq.pipelines.queue_ties import (
    SOURCE_IN_MERGE,
    alike,
    by_source,
    changed_in_two_queues,
    source_and_queue,
    tied,
    tied_in_sql,
    truncated_in_two_queues,
    with_others_in_sql,
)
from lanemq.pipelines.sinks import delta_compaction as compaction
from lanemq.pipelines.sinks.arrow_merge import pairs_of
from lanemq.pipelines.sinks.delta_files import delta_options, file_stats, partition_text
from lanemq.pipelines.sinks.exact_sink import (
    ExtraColumns,
    LedgerEntry,
    ShardRows,
    fit,
    kept_marks,
    merge_table,
    owner_id,
    owner_mark,
    refuse_other_sequence,
    refuse_removed,
    refuse_same_but_case,
    shards,
    widened,
    without_deletions,
)
from lanemq.pipelines.sinks.versioned_table import EveryBatches, VersionedTableSink, until_committed
from lanemq.pipelines.text_limits import TextLimit, folder_limits

log = logging.getLogger(__name__)

ESCAPED: Final = r"[^A-Za-z0-9_.~-]"
"""Characters that the library escapes in names of folders, each byte as three."""

T = TypeVar("T")

CREATED_BY = "created by LaneMQ"
"""The description of tables that a sink created."""
FORGETS = "delta.setTransactionRetentionDuration"
APPENDS_ONLY = "delta.appendOnly"
PLAIN_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", "changeDataFeed"})
"""Table features with which plain Parquet files can be added; delta-rs writes to tables with any other."""
_PARTITION_TYPES = (pa.types.is_integer, pa.types.is_string, pa.types.is_boolean, pa.types.is_date)


class DeltaSink(VersionedTableSink[Callable[[], bool]]):
    """Appends or merges batches.

    Args:
        path: A folder, or an address that delta-rs knows (`s3a://...`, `hdfs://...`). Appended rows keep the order of
            their shard within a file only in folders, and in tables without constraints and without generated or
            renamed columns.
        partition_by: Columns whose values divide the files. Columns with many values make many small files. Empty
            text becomes null, because Delta partitions cannot hold it.
        maintain_every: Batches between compactions with vacuum, 0 for never. Low values cost time; high values leave
            many small files to read.
        vacuum: Whether files that no version needs any more are deleted after a compaction. Default: only in tables
            that such a sink created, because other programs may rely on the old versions of their own tables. Without
            it, a merged table grows with every batch until another program vacuums it.
        keep_files: Seconds that such files are kept for slow readers and time travel, rounded up to hours. Default:
            the table's property `delta.deletedFileRetentionDuration`, or a week. High values cost disk space, since a
            merge rewrites the files it touches. A value below the duration of the longest query breaks that query; 0
            also deletes what another writer is about to commit.
        evolve: Whether a run with new columns may add them to the table.
        storage_options: How delta-rs reaches the store, with its names. Default: the settings of Spark that begin
            with `spark.hadoop.fs.s3a.`, and the environment.
    """

    def __init__(
        self,
        path: str | StorePath,
        partition_by: Sequence[str] = (),
        *,
        maintain_every: int = 100,
        vacuum: bool | None = None,
        keep_files: Seconds | None = None,
        evolve: bool = True,
        storage_options: Mapping[str, str] | None = None,
        clock: Clock | None = None,
    ) -> None:
        if maintain_every < 0 or (keep_files is not None and to_seconds(keep_files) < 0):
            raise InvalidOption("maintain_every and keep_files cannot be negative; use 0 or more")
        self._path = str(path)
        self._partition_by = tuple(partition_by)
        self._vacuum = vacuum
        self._keep_hours = None if keep_files is None else math.ceil(to_seconds(keep_files) / 3600)
        self._evolve = self.widens = evolve
        self._storage = dict(storage_options or {})
        _refuse_unsafe_commits(self._path, self._storage)
        self._clock = clock or SystemClock()
        self._table: DeltaTable | None = None
        self._checked: _Declaration | None = None
        """What the table declared when it was last compared with the rows."""
        self._upkeep = EveryBatches(maintain_every)
        self._looked = 0
        """The version in which this sink last looked for compactions of other programs."""
        self._judged: set[int] = set()
        """Compactions of other programs that were looked at."""
        self._said: set[str] = set()
        self._extra_columns = ExtraColumns(f"table {path}")

    def __str__(self) -> str:
        return f"Delta table {self._path}"

    def place(self, settings: Mapping[str, str]) -> tuple[str, Mapping[str, str]]:
        """The path, and how its store is reached, with the names of delta-rs. `settings`: of Spark."""
        if not self._storage and "://" in self._path:
            self._storage = delta_options(locate(self._path, settings))
        return self._path, self._storage

    def open(self, run: SinkRun) -> None:
        self._begin(run)
        self.place(run.settings)
        self._until_committed(lambda: self._find_table(run), f"opening for {run.query}")
        self._until_committed(lambda: self._claim(run), f"epoch {run.epoch} of {run.query}")
        self._until_committed(lambda: self._widen(run), f"columns of {run.query}")
        self._looked = self._delta().version()
        self._checked = _declaration(self._delta())

    def applied(self, query: str, settings: Mapping[str, str]) -> int | None:
        path, storage = self.place(settings)
        try:
            if not DeltaTable.is_deltatable(path, dict(storage) or None):
                return None
            return DeltaTable(path, storage_options=dict(storage) or None).transaction_version(query)
        except DeltaError as error:
            raise StorageError(f"the table {path} cannot be read: {error}") from error

    def text_limits(self) -> tuple[TextLimit, ...]:
        if not self._partition_by:
            return ()
        return folder_limits(self._partition_by, self._opened().columns, ESCAPED)

    def close(self) -> None:
        super().close()
        self._table = self._checked = None

    def _purge(self, below: int | str) -> int:
        table = DeltaTable(self._path, storage_options=self._storage or None)
        return int(table.delete(f"{_quoted(DELETED)} AND {_older(below)}")["num_deleted_rows"])

    def _find_table(self, run: SinkRun) -> bool:
        self._table = _open_table(self._path, run, self._partition_by, self._storage, evolve=self._evolve)
        return True

    def _claim(self, run: SinkRun) -> bool:
        """Record the run's epoch in the table, which fences older runs. False if it is there already."""
        entry = self._entry(run)
        entry.check_opener(run, self)
        moves = entry.has_other_owner(run)
        if not moves and not entry.lacks_epoch_of(run):
            return False
        claimed = [Transaction(_epoch_id(run.query), run.epoch)]
        if moves:
            self._warn_new_owner(run)
            claimed.append(Transaction(owner_id(run), owner_mark(run.query)))
        self._commit_nothing(CommitProperties(app_transactions=claimed))
        return True

    def _widen(self, run: SinkRun) -> bool:
        """Add the columns that the table does not have."""
        self._entry(run).check_opener(run, self)
        return _add_columns(self._delta(), run.columns)

    def _entry(self, run: SinkRun) -> LedgerEntry:
        table = self._delta()
        try:
            table.update_incremental()
            owner = table.transaction_version(owner_id(run)) if run.pipeline else None
            batch, epoch = table.transaction_version(run.query), table.transaction_version(_epoch_id(run.query))
        except DeltaError as error:
            raise StorageError(f"the table {self._path} cannot be read any more: {error}") from error
        self._check_again(table, run)
        return LedgerEntry(batch, epoch, owner)

    def _check_again(self, table: DeltaTable, run: SinkRun) -> None:
        """Refuse a table that another program has changed so that rows do not fit any more. Delta would take files."""
        if self._checked is None or (found := _declaration(table)) == self._checked:
            return
        _check_table(self._path, table, run, self._partition_by, evolve=True)
        refuse_removed(f"the table {self._path}", {field.name for field in table.schema().fields}, run.columns.names)
        self._checked = found

    def _prepare(self, rows: Rows, batch: Batch, run: SinkRun) -> Callable[[], bool]:
        """The returned commit can be tried repeatedly."""
        recorded = [Transaction(batch.query, batch.number), Transaction(_epoch_id(batch.query), batch.epoch)]
        if run.pipeline:
            recorded.append(Transaction(owner_id(run), owner_mark(run.query)))
        named = CommitProperties(app_transactions=recorded)
        if isinstance(run.how, Merge):
            wider = widened(run, rows) if self.widens else run
            changes = merge_table(rows, wider.columns, run.how.keys)
            keys = run.how.keys
            return lambda: self._merge(changes, rows.emptied_below, keys, batch, named)
        if "://" in self._path or not _takes_files(self._delta()):
            table = fit(rows.table(), run.columns)
            return lambda: self._append_streamed(table, named)
        files = _place_files(rows, run.columns, Path(self._path), self._partition_by, self._clock.wall())

        def append() -> bool:
            if _takes_files(self._delta()):
                return self._append_files(files, named)
            return self._append_streamed(fit(rows.table(), run.columns), named)  # since the files were placed

        return append

    def _commit(self, prepared: Callable[[], bool], batch: Batch, run: SinkRun) -> bool:
        return self._until_committed(lambda: self._admits(self._entry(run), batch) and prepared(), str(batch))

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

    def _merge(
        self, changes: pa.Table, below: int | str | None, keys: Sequence[str], batch: Batch, named: CommitProperties
    ) -> bool:
        table = self._delta()
        _refuse_truncation(table, below)
        if below is not None and not changes.num_rows:
            table.delete(_older(below), commit_properties=named)
        if changes.num_rows:
            same = " AND ".join(f"s.{_quoted(key)} = t.{_quoted(key)}" for key in keys)
            declared = self._opened().columns.names
            changes, missing = self._extra_columns.fit(changes, declared, _column_types(table), _is_type)

            def merge(on_tie: str) -> dict[str, Any]:
                merger = table.merge(
                    changes, same, source_alias="s", target_alias="t", merge_schema=bool(missing),
                    commit_properties=named,
                )  # fmt: skip
                if below is not None:
                    merger = _emptying(merger, below)
                merger = _updating(merger, changes, {each.name for each in missing}, on_tie)
                return merger.when_not_matched_insert_all().execute()

            try:
                done = merge(_FAILING)
            except DeltaError:
                if QUEUE not in changes.schema.names or not _all_repeats(table, changes, keys, below):
                    raise
                done = merge(with_others_in_sql(_column("s", QUEUE)))
            self._stale = changes.num_rows - done["num_target_rows_inserted"] - done["num_target_rows_updated"]
        if table.transaction_version(batch.query) != batch.number:
            # A merge that changes nothing commits nothing, and the batch would not be recorded.
            self._commit_nothing(named)
        return True

    def _commit_nothing(self, named: CommitProperties) -> None:
        table = self._delta()
        table.create_write_transaction(
            [], mode="append", schema=table.schema(), partition_by=list(self._partition_by), commit_properties=named
        )

    def _until_committed(self, attempt: Callable[[], T], what: str) -> T:
        try:
            return until_committed(attempt, CommitFailedError, what, self._path)
        except DeltaError as error:
            raise StorageError(f"{what}: the table {self._path} could not be written: {error}") from error

    def _maintain(self) -> None:
        if not self._upkeep.is_due():
            return
        table = self._delta()
        try:
            table.update_incremental()
            self._compact(table)
            own = table.metadata().description == CREATED_BY
            if own if self._vacuum is None else self._vacuum:
                # Without hours, the table's own property counts.
                table.vacuum(self._keep_hours, dry_run=False, enforce_retention_duration=False, full=True)
        except (DeltaError, StorageError, OSError, pa.ArrowException) as error:
            log.warning("table %s was not compacted: %s", self._path, error)

    def _compact(self, table: DeltaTable) -> None:
        """Compact the table, unless another program has done so since the last time: then that is its task."""
        reason = compaction.obstacle(table)
        if reason is not None:
            self._say_once(f"{reason}. Let one other program run OPTIMIZE")
            return
        wall = self._clock.wall()
        looked, self._looked = self._looked, table.version()
        judged = table.transaction_version(compaction.JUDGED)
        others = compaction.others_compactions(table, looked if judged is None else judged)
        compaction.undo_overlaps(table, [version for version in others if version not in self._judged], wall)
        self._judged.update(others)
        if any(version > looked for version in others):
            self._say_once("another program compacts it")
        else:
            compaction.compact(table, self._looked, wall)

    def _say_once(self, reason: str) -> None:
        if reason not in self._said:
            self._said.add(reason)
            log.info("%s is not compacted: %s", self, reason)

    def _delta(self) -> DeltaTable:
        self._opened()
        assert self._table is not None, "open() sets it"
        return self._table


_UNSAFE: Final = {"allow_unsafe_rename": "true", "conditional_put": "disabled"}
"""Options of delta-rs with which two commits of the same version of a table both succeed."""


def _refuse_unsafe_commits(path: str, storage: Mapping[str, str]) -> None:
    if not path.startswith(("s3://", "s3a://")):
        return
    for name, value in {**os.environ, **storage}.items():
        plain = name.lower().removeprefix("aws_").removeprefix("s3_")
        if plain in _UNSAFE and value.lower() == _UNSAFE[plain]:
            raise InvalidOption(
                f"path {path}: {name}={value} lets two runs commit the same version of the table, and the rows of one "
                f"are lost: remove the option; S3 commits safely without it"
            )


def read_table(path: str | StorePath, storage_options: Mapping[str, str] | None = None) -> pa.Table:
    """The current rows of a table, without deletions and the columns `_sequence`, `_deleted`, `_kept` and `_queue`."""
    found = DeltaTable(str(path), storage_options=dict(storage_options or {}) or None)
    # Not `to_pyarrow_table`: Arrow's threads call back into Python, which aborts a program that exits at that moment.
    rows = QueryBuilder().register("rows", found).execute("select * from rows").read_all()
    return without_deletions(pa.table(rows).cast(pa.schema(found.schema().to_arrow())))


def _updating(merge: TableMerger, changes: pa.Table, missing: Collection[str], on_tie: str) -> TableMerger:
    """Newer rows replace older ones, except for the columns that they keep.

    `missing`: columns that the table gets now. `on_tie`: the queue of a row that ties with its change.
    One clause for all rows: with one for each combination of kept columns, a merge takes 2 ms for every combination.
    """
    newer, names = f"{_column('s', SEQUENCE)} > {_column('t', SEQUENCE)}", changes.schema.names
    keeps = KEPT in names and changes[KEPT].null_count < changes.num_rows
    if not keeps and QUEUE not in names:
        return merge.when_matched_update_all(newer)
    texts = pc.unique(changes[KEPT].drop_null()).to_pylist() if keeps else []
    kept = {name for text in texts for name in json.loads(text)} - {*missing}
    updates = {_quoted(name): _kept_or_new(name) if name in kept else _column("s", name) for name in names}
    if QUEUE in names:
        source = SOURCE_IN_MERGE if by_source(changes.schema.field(SEQUENCE).type) else ""
        tie = tied_in_sql("t", "s", _quoted(QUEUE), _quoted(SEQUENCE), source)
        newer = f"{newer} OR {tie}"
        updates[_quoted(QUEUE)] = f"CASE WHEN {tie} THEN {on_tie} ELSE {_column('s', QUEUE)} END"
    return merge.when_matched_update(updates, newer)


def _column(table: str, name: str) -> str:
    return f"{table}.{_quoted(name)}"


_FAILING: Final = f"CAST(CAST(concat('queue ', t.\"{QUEUE}\") AS BIGINT) AS VARCHAR)"
"""A text that cannot be computed. A merge has no other way to refuse a row, and commits nothing if it fails."""


def _refuse_truncation(table: DeltaTable, below: int | str | None) -> None:
    """Raises `OrderError` if a row of another queue has the source position of a truncation."""
    if tie := source_and_queue(below):
        source, emptied = tie
        queue, same = _quoted(QUEUE), f"{SOURCE_IN_MERGE.format(_quoted(SEQUENCE))} = {_text(source)}"
        wanted = f"SELECT {queue} FROM held WHERE {same} AND {queue} <> {_text(emptied)} LIMIT 1"
        for batch in QueryBuilder().register("held", table).execute(wanted):
            for other in pa.table(batch)[QUEUE].to_pylist():
                raise truncated_in_two_queues(emptied, other, source)


def _all_repeats(table: DeltaTable, changes: pa.Table, keys: Sequence[str], below: int | str | None) -> bool:
    """Whether changes tie with rows of the table, and all of these are equal; `OrderError` if one is not.

    Rows that a truncation removes do not count.
    """
    found, repeats = False, by_source(changes.schema.field(SEQUENCE).type)
    known = [field.name for field in table.schema().fields]
    names = [name for name in changes.schema.names if name in known]
    index = changes.select([*keys, QUEUE, SEQUENCE])
    where = "" if below is None else f" WHERE NOT {_older(below)}"
    wanted = f"SELECT {', '.join(map(_quoted, names))} FROM held{where}"
    for batch in QueryBuilder().register("held", table).execute(wanted):
        held = pa.table(batch).cast(pa.schema(pa.schema(table.schema().to_arrow()).field(name) for name in names))
        rows, of_rows = pairs_of(held.select(index.column_names).cast(index.schema), index, keys)
        ties = tied(held.take(rows), changes.take(of_rows), QUEUE, SEQUENCE).combine_chunks()
        before, after = held.take(rows.filter(ties)).to_pylist(), changes.take(of_rows.filter(ties)).to_pylist()
        for row, change in zip(before, after, strict=True):
            if not repeats or not alike(change, row, (SEQUENCE, QUEUE)):
                key = {name: change[name] for name in keys}
                raise changed_in_two_queues(key, row[QUEUE], change[QUEUE], change[SEQUENCE])
            found = True
    return found


def _kept_or_new(name: str) -> str:
    """The stored value of a column where a row keeps it."""
    column = _quoted(name)
    keeps = " OR ".join(f"strpos(s.{_quoted(KEPT)}, {_text(mark)}) > 0" for mark in kept_marks(name))
    return f"CASE WHEN {keeps} THEN t.{column} ELSE s.{column} END"


def _emptying(merge: TableMerger, below: int | str) -> TableMerger:
    """Older rows are deleted; if a row with the same key follows, it keeps no column of the old one."""
    older = f"t.{_older(below)}"
    return merge.when_not_matched_by_source_delete(older).when_matched_update_all(older)


def _older(sequence: int | str) -> str:
    """The condition for rows with a lower sequence."""
    return f"{_quoted(SEQUENCE)} < {_text(sequence) if isinstance(sequence, str) else int(sequence)}"


def _text(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


def _epoch_id(query: str) -> str:
    return f"{query}#epoch"


# Opening a table. What could only fail, or silently go wrong, in a later batch is refused here: a column of another
# type, rows appended to a merged table, a table that forgets which batches it has.


def _open_table(
    path: str, run: SinkRun, partition_by: Sequence[str], storage: Mapping[str, str], *, evolve: bool
) -> DeltaTable:
    """The table, created if it does not exist; it has, or may get, every column that the run will write."""
    _check_partitioning(run.columns, partition_by)
    refuse_same_but_case("the rows", run.columns.names, run.columns.names)
    table = _created(path, run.columns, partition_by, storage)
    _check_table(path, table, run, partition_by, evolve=evolve)
    return table


_Declaration: TypeAlias = tuple[str, tuple[str, ...], tuple[tuple[str, str], ...]]


def _declaration(table: DeltaTable) -> _Declaration:
    """Columns, partitioning and properties of a table: all that rows have to fit."""
    found = table.metadata()
    return table.schema().to_json(), tuple(found.partition_columns), tuple(sorted(found.configuration.items()))


def _check_table(path: str, table: DeltaTable, run: SinkRun, partition_by: Sequence[str], *, evolve: bool) -> None:
    """`InvalidOption` if the table cannot hold the rows. Columns may be missing if `evolve`."""
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
    if isinstance(run.how, Merge) and found.configuration.get(APPENDS_ONLY, "").lower() == "true":
        raise InvalidOption(
            f"the table {path} has the property {APPENDS_ONLY}, and this pipeline merges by key: unset it"
        )
    _check_columns(path, table.schema(), run.columns, evolve=evolve)


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
                f"partition_by: {name} is text that must not be null, as a key of a merge, and Delta partitions store "
                f"empty text as null: one such row would make the table unreadable; use another column"
            )


def _created(path: str, wanted: pa.Schema, partition_by: Sequence[str], storage: Mapping[str, str]) -> DeltaTable:
    try:
        return DeltaTable.create(
            path,
            wanted,
            mode="ignore",
            description=CREATED_BY,
            partition_by=list(partition_by) or None,
            storage_options=dict(storage) or None,
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
    refuse_same_but_case(f"the table {path}", wanted.names, there)
    for field in json.loads(Schema.from_arrow(wanted).to_json())["fields"]:
        name = field["name"]
        if name in there and _shape(there[name]["type"]) != _shape(field["type"]):
            refuse_other_sequence(name, f"the table {path}", wanted.field(name).type)
            raise InvalidOption(
                f"column {name} is {_type_name(there[name]['type'])} in the table {path} and would become "
                f"{_type_name(field['type'])}: cast it, or write to another table"
            )
        if name not in there and not evolve:
            raise InvalidOption(f"column {name} is not in the table {path}: add it, or allow it with evolve = true")
    _check_how(path, set(there), wanted)
    for name, field in there.items():
        if not field["nullable"] and (name not in wanted.names or wanted.field(name).nullable):
            raise InvalidOption(f"column {name} of the table {path} must not be null, and the rows may have none")


def _check_how(path: str, there: set[str], wanted: pa.Schema) -> None:
    """Refuse to append to a merged table, and the reverse: such rows would never be replaced, or would repeat keys."""
    merged, merges = {SEQUENCE, DELETED} <= there, {SEQUENCE, DELETED} <= set(wanted.names)
    if merged != merges:
        kinds = ("is merged by key", "appends rows") if merged else ("holds plain rows", "merges by key")
        raise InvalidOption(f"the table {path} {kinds[0]} and this pipeline {kinds[1]}: write to another table")


def _add_columns(table: DeltaTable, wanted: pa.Schema) -> bool:
    """Add missing columns, null in existing rows. Returns whether there were any."""
    there = {field.name for field in table.schema().fields}
    new = pa.schema([field.with_nullable(True) for field in wanted if field.name not in there])
    if new.names:
        table.alter.add_columns(list(Schema.from_arrow(new).fields))
        table.update_incremental()
    return bool(new.names)


def _column_types(table: DeltaTable) -> dict[str, Any]:
    """The table's columns with Delta's names for their types."""
    return {field["name"]: field["type"] for field in json.loads(table.schema().to_json())["fields"]}


def _is_type(declared: Any, kind: pa.DataType) -> bool:
    """Whether a column of the table has this type."""
    wanted = json.loads(Schema.from_arrow(pa.schema([("it", kind)])).to_json())["fields"][0]["type"]
    return bool(_shape(declared) == _shape(wanted))


def _shape(kind: Any) -> Any:
    """A type without what may differ: comments, and which parts may be null."""
    if isinstance(kind, dict):
        left_out = ("nullable", "containsNull", "valueContainsNull", "metadata")
        return {name: _shape(part) for name, part in kind.items() if name not in left_out}
    return [_shape(part) for part in kind] if isinstance(kind, list) else kind


def _type_name(kind: Any) -> str:
    return kind if isinstance(kind, str) else str(kind.get("type"))


def _takes_files(table: DeltaTable) -> bool:
    """Whether Parquet files can be added as they are: the table has no constraints, renamed or generated columns."""
    protocol = table.protocol()
    features = set(protocol.writer_features or ()) | set(protocol.reader_features or ())
    if (protocol.min_writer_version > 2 and not features) or not features <= PLAIN_FEATURES:
        return False
    fields = json.loads(table.schema().to_json())["fields"]
    return not any(field["metadata"] for field in fields) and not any(
        name.startswith("delta.constraints.") for name in table.metadata().configuration
    )


# Rows as files of the table.


def _place_files(
    rows: Rows, wanted: pa.Schema, folder: Path, partition_by: Sequence[str], wall: Millis
) -> list[AddAction]:
    """Write every shard's rows to the table's folder, and return what the table's log has to say about them."""
    actions = []
    for shard in shards(rows, wanted):
        for values, part in _partitions(shard, partition_by):
            target = folder / f"lanemq-{uuid.uuid4().hex}.parquet"
            part.put(target)
            sync(target)
            actions.append(
                AddAction(target.name, target.stat().st_size, values, wall, True, file_stats(pq.read_metadata(target)))
            )
    if actions:
        sync(folder)
    return actions


def _partitions(shard: ShardRows, partition_by: Sequence[str]) -> Iterator[tuple[Mapping[str, str | None], ShardRows]]:
    """The shard's rows by the values of the partition columns, each part in order."""
    if not partition_by:
        yield {}, shard
        return
    table = shard.load()
    for values in table.select(list(partition_by)).group_by(list(partition_by)).aggregate([]).to_pylist():
        part = table.filter(_matching(table, values)).drop_columns(list(partition_by))
        texts = {name: partition_text(value) for name, value in values.items()}
        yield texts, ShardRows(shard.shard, part.num_rows, None, part)


def _matching(table: pa.Table, values: Mapping[str, Any]) -> pa.ChunkedArray:
    mask = pa.chunked_array([pa.repeat(True, table.num_rows)])
    for name, value in values.items():
        column = table[name]
        mask = pc.and_(mask, pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False))
    return mask
