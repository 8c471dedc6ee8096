"""Batches in an Iceberg table: rows, new columns, batch number and epoch in one commit of its catalog.

The ledger is part of the table (`iceberg_table.py`). A commit is made against the snapshot at which it was read, and
`open` makes a snapshot of its own to record the epoch. So a run that was replaced is refused even if it began its write
earlier: the catalog does not take its commit, and the next look at the ledger says why.

A merge rewrites the files that have a key of the batch (`arrow_merge.py`), on the driver and one file at a time.
Deletions stay as rows with `_deleted`; `read_iceberg` hides them, `purge_tombstones` removes them.

Files are visible only through the commit that names them, and no two attempts share a file name. What a crash leaves is
invisible to readers.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias, TypeVar

import pyarrow as pa
import pyarrow.compute as pc

from lanemq.clock import Clock, SystemClock
from lanemq.model.environment import install_extra
from lanemq.model.errors import InvalidOption, StorageError
from lanemq.model.units import Seconds, to_millis
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import DELETED, SEQUENCE, Merge, Rows, SinkRun
from lanemq.pipelines.sinks.arrow_merge import ArrowMerge
from lanemq.pipelines.sinks.exact_sink import (
    ExtraColumns,
    LedgerEntry,
    aligned,
    fit,
    merge_table,
    owner_mark,
    refuse_other_sequence,
    refuse_removed,
    refuse_same_but_case,
    widened,
    without_deletions,
)
from lanemq.pipelines.sinks.versioned_table import EveryBatches, VersionedTableSink, until_committed
from lanemq.pipelines.text_limits import TextLimit, folder_limits

if TYPE_CHECKING:
    from lanemq.pipelines.sinks.iceberg_table import IcebergTable, TableChange

log = logging.getLogger(__name__)

ESCAPED: Final = r"[^A-Za-z0-9_.~ -]"
"""Characters that the library escapes in names of folders, each byte as three."""

T = TypeVar("T")
Filling: TypeAlias = Callable[["TableChange"], None]
"""Writes the rows of a batch to a change of the table."""


class IcebergSink(VersionedTableSink[Filling]):
    """Appends or merges batches. Needs the extra `iceberg`.

    Args:
        table: The table with its namespace, such as `shop.orders`. Both are created if they do not exist.
        warehouse: A local folder for tables, with its catalog in the SQLite file `catalog.db`. For one machine.
        catalog: Properties of any catalog that pyiceberg knows, such as `{"type": "rest", "uri": "https://..."}`, with
            the settings of its file system (`s3.endpoint` ...). `{"name": "prod"}`: the catalog of that name in
            pyiceberg's own configuration. Either `warehouse` or `catalog` is needed.
        partition_by: Columns whose values divide the files, or `year(x)`, `month(x)`, `day(x)`, `hour(x)` of a time.
            Columns with many values make many small files. Default: no partitions, or those that the table has.
        maintain_every: Batches between compactions, 0 for never. Low values cost time; high values leave many small
            files to read.
        vacuum: Whether old snapshots, and files that no snapshot needs any more, are deleted after a compaction.
            Default: only in tables that such a sink created, because other programs may rely on the old snapshots of
            their own tables. Without it, a merged table grows with every batch until another program cleans it.
        keep_files: Seconds that old snapshots are kept for slow readers and time travel. Default: the table's property
            `history.expire.max-snapshot-age-ms`, or 5 days. High values cost disk space, since a merge rewrites the
            files it touches. A value below the duration of the longest query breaks that query.
        evolve: Whether a run with new columns, or a row with an undeclared one, may add them to the table.
    """

    packages: Mapping[str, str] = {"pyiceberg": "iceberg"}

    def __init__(
        self,
        table: str,
        *,
        warehouse: str | Path | None = None,
        catalog: Mapping[str, str] | None = None,
        partition_by: Sequence[str] = (),
        maintain_every: int = 100,
        vacuum: bool | None = None,
        keep_files: Seconds | None = None,
        evolve: bool = True,
        clock: Clock | None = None,
    ) -> None:
        self._keep = None if keep_files is None else to_millis(keep_files)
        if maintain_every < 0 or (self._keep is not None and self._keep < 0):
            raise InvalidOption("maintain_every and keep_files cannot be negative; use 0 or more")
        if "." not in table.strip("."):
            raise InvalidOption(f"table {table!r}: write it with its namespace, such as 'shop.orders'")
        self._name = table
        self._place = _Place(warehouse, catalog)
        self._partition_by = tuple(partition_by)
        self._vacuum = vacuum
        self._evolve = self.widens = evolve
        self._clock = clock or SystemClock()
        self._table: IcebergTable | None = None
        self._checked: pa.Schema | None = None
        """The columns of the table when they were last compared with the rows."""
        self._upkeep = EveryBatches(maintain_every)
        self._extra_columns = ExtraColumns(f"table {table}")

    def __str__(self) -> str:
        return f"Iceberg table {self._name}"

    def open(self, run: SinkRun) -> None:
        self._begin(run)
        self._until_committed(lambda: self._find_table(run), f"opening for {run.query}")
        self._until_committed(lambda: self._claim(run), f"epoch {run.epoch} of {run.query}")

    def applied(self, query: str, settings: Mapping[str, str]) -> int | None:
        table = self._place.find(self._name)
        return None if table is None else table.batch_of(query)

    def text_limits(self) -> tuple[TextLimit, ...]:
        return folder_limits(self._opened_table().partition_by, self._opened().columns, ESCAPED)

    def close(self) -> None:
        super().close()
        self._table = self._checked = None
        self._place.close()

    def _purge(self, below: int | str) -> int:
        table = self._place.find(self._name)
        if table is None:
            return 0
        change, purged = table.change(), 0
        for file in table.files():
            index = table.read([file], (SEQUENCE, DELETED))
            gone = pc.fill_null(pc.and_(index[DELETED], pc.less(index[SEQUENCE], below)), False)
            count = pc.sum(gone).as_py() or 0
            if count:
                change.remove(file)
                change.add(table.read([file]).filter(pc.invert(gone)))
            purged += count
        if purged:
            change.stage("", {}, {})
            change.commit()
        return purged

    def _find_table(self, run: SinkRun) -> None:
        table = self._place.find(self._name)
        if table is None:
            table = _library().IcebergTable.create(self._place.catalog(), self._name, run.columns, self._partition_by)
        elif self._partition_by and table.partition_by != self._partition_by:
            raise InvalidOption(
                f"partition_by: the table {self._name} is partitioned by ({', '.join(table.partition_by)}), "
                f"not by ({', '.join(self._partition_by)})"
            )
        assert table is not None, "create() returns one"
        _check_columns(table, run.columns, evolve=self._evolve)
        self._table = table

    def _claim(self, run: SinkRun) -> None:
        """Record the run's epoch in the table, which fences older runs, and add the columns that the table lacks."""
        entry = self._entry(run)
        entry.check_opener(run, self)
        moves = entry.has_other_owner(run)
        table = self._opened_table()
        missing = [field for field in run.columns if field.name not in table.columns.names]
        if not moves and not missing and not entry.lacks_epoch_of(run):
            return
        if moves:
            self._warn_new_owner(run)
        change = table.change()
        if missing:
            change.add_columns(missing)
        self._stage(change, run, entry.batch, owner=owner_mark(run.query) if moves else None)
        change.commit()

    def _entry(self, run: SinkRun) -> LedgerEntry:
        table = self._opened_table()
        table.refresh()
        owner = table.owner_of(run.pipeline) if run.pipeline else None
        return LedgerEntry(table.batch_of(run.query), table.epoch_of(run.query), owner)

    def _check_again(self, run: SinkRun) -> None:
        """Refuse a table that another program has changed so that rows do not fit any more."""
        table = self._opened_table()
        if table.columns != self._checked:
            _check_columns(table, run.columns, evolve=True)
            refuse_removed(f"the table {self._name}", table.columns.names, run.columns.names)
            self._checked = table.columns

    def _prepare(self, rows: Rows, batch: Batch, run: SinkRun) -> Filling:
        """Check and load the rows; the returned function writes them to a change, as often as it takes."""
        if isinstance(run.how, Merge):
            wider = widened(run, rows) if self.widens else run
            changes = merge_table(rows, wider.columns, run.how.keys)
            keys, below = run.how.keys, rows.emptied_below
            return lambda change: self._merge(change, changes, keys, below)
        table = fit(rows.table(), run.columns)
        return lambda change: change.add(table)

    def _commit(self, prepared: Filling, batch: Batch, run: SinkRun) -> bool:
        def attempt() -> bool:
            if not self._admits(self._entry(run), batch):
                return False
            self._check_again(run)
            change = self._opened_table().change()
            prepared(change)
            self._stage(change, run, batch.number, owner=owner_mark(run.query) if run.pipeline else None)
            self._publish(change)
            return True

        return self._until_committed(attempt, str(batch))

    def _stage(self, change: "TableChange", run: SinkRun, batch: int | None, *, owner: int | None) -> None:
        library = _library()
        summary = {library.QUERY: run.query, library.EPOCH: str(run.epoch)}
        if batch is not None:
            summary[library.BATCH] = str(batch)
        change.stage(run.query, library.ledger_entries(run.query, run.epoch, batch, run.pipeline, owner), summary)

    def _publish(self, change: "TableChange") -> None:
        change.commit()

    def _merge(self, change: "TableChange", changes: pa.Table, keys: tuple[str, ...], below: int | str | None) -> None:
        library, table = _library(), self._opened_table()
        declared = self._opened().columns.names
        types = {field.name: library.plain_type(field.type) for field in table.columns}
        changes, missing = self._extra_columns.fit(changes, declared, types, _is_type)
        if missing:
            change.add_columns(missing)
        after = change.columns
        changes = aligned(changes, pa.schema([after.field(name) for name in changes.schema.names]))
        merge = ArrowMerge(changes, keys, below)
        for file in table.files(None if below is not None else library.key_range(changes, keys, pc.min_max)):
            rewrite = merge.plan(table.read([file], merge.index_columns))
            if rewrite is not None:
                change.remove(file)
                change.add(merge.rewritten(aligned(table.read([file]), after), rewrite))
        change.add(merge.inserted())
        self._stale = merge.stale

    def _until_committed(self, attempt: Callable[[], T], what: str) -> T:
        return until_committed(attempt, _library().CommitFailedException, what, self._name)

    def _maintain(self) -> None:
        if not self._upkeep.is_due():
            return
        from lanemq.pipelines.sinks import iceberg_maintenance as maintenance

        table = self._opened_table()
        try:
            table.refresh()
            maintenance.compact(table)
            own = _library().CREATED_BY in table.properties
            if own if self._vacuum is None else self._vacuum:
                table.refresh()
                maintenance.vacuum(table, self._keep, self._clock.wall())
        except (StorageError, _library().CommitFailedException) as error:
            log.warning("table %s was not compacted: %s", self._name, error)

    def _opened_table(self) -> "IcebergTable":
        self._opened()
        assert self._table is not None, "open() sets it"
        return self._table


def read_iceberg(
    table: str, *, warehouse: str | Path | None = None, catalog: Mapping[str, str] | None = None
) -> pa.Table:
    """The current rows of a table, without deletions and the columns `_sequence`, `_deleted`, `_kept` and `_queue`."""
    with _Place(warehouse, catalog) as place:
        found = place.find(table)
        if found is None:
            raise InvalidOption(f"table {table}: there is no such table in {place}")
        return without_deletions(found.read(found.files()))


class _Place:
    """The catalog of a table, connected when it is first needed."""

    def __init__(self, warehouse: str | Path | None, catalog: Mapping[str, str] | None) -> None:
        if (warehouse is None) == (not catalog):
            raise InvalidOption(
                "warehouse, catalog: an Iceberg table needs one of them: a local folder, or the properties of a catalog"
            )
        if warehouse is not None and "://" in str(warehouse):
            raise InvalidOption(
                f"warehouse {warehouse}: the catalog of a warehouse is a local file; name a catalog with catalog=, and "
                f"give it this address as its property `warehouse`"
            )
        self._folder = None if warehouse is None else Path(warehouse)
        self._options = dict(catalog or {})
        self._catalog: Any = None

    def __str__(self) -> str:
        return f"the catalog {self._folder or self._options.get('uri') or self._options.get('name')}"

    def __enter__(self) -> "_Place":
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def find(self, table: str) -> "IcebergTable | None":
        """The table; None if there is none. Creates nothing."""
        if self._folder is not None and not _catalog_file(self._folder).exists():
            return None
        found: IcebergTable | None = _library().IcebergTable.find(self.catalog(), table)
        return found

    def catalog(self) -> Any:
        if self._catalog is None:
            options = self._options
            if self._folder is not None:
                self._folder.mkdir(parents=True, exist_ok=True)
                file = _catalog_file(self._folder).absolute()
                options = {"type": "sql", "uri": f"sqlite:///{file}", "warehouse": str(self._folder.absolute())}
            self._catalog = _library().open_catalog(options)
        return self._catalog

    def close(self) -> None:
        if self._catalog is not None:
            self._catalog.close()
            self._catalog = None


def _catalog_file(folder: Path) -> Path:
    return folder / "catalog.db"


def _check_columns(table: "IcebergTable", wanted: pa.Schema, *, evolve: bool) -> None:
    library = _library()
    library.iceberg_schema(wanted)
    there = {field.name: field for field in table.columns}
    _check_nested(table, [*there.values(), *(field for field in wanted if field.name not in there)])
    refuse_same_but_case(f"the table {table.name}", wanted.names, there)
    for field in wanted:
        found = there.get(field.name)
        if found is not None and library.plain_type(found.type) != library.stored_type(field.type):
            refuse_other_sequence(field.name, f"the table {table.name}", field.type)
            raise InvalidOption(
                f"column {field.name} is {found.type} in the table {table.name} and would become {field.type}: cast "
                f"it, or write to another table"
            )
        if found is None and not evolve:
            raise InvalidOption(
                f"column {field.name} is not in the table {table.name}: add it, or allow it with evolve = true"
            )
    merged, merges = {SEQUENCE, DELETED} <= set(there), {SEQUENCE, DELETED} <= set(wanted.names)
    if merged != merges:
        kinds = ("is merged by key", "appends rows") if merged else ("holds plain rows", "merges by key")
        raise InvalidOption(f"the table {table.name} {kinds[0]} and this pipeline {kinds[1]}: write to another table")
    for name, found in there.items():
        if not found.nullable and (name not in wanted.names or wanted.field(name).nullable):
            raise InvalidOption(f"column {name} of the table {table.name} must not be null, and the rows may have none")


def _check_nested(table: "IcebergTable", fields: Sequence[pa.Field]) -> None:
    for field in fields:
        if _has_repeated_structs(field.type):
            raise InvalidOption(
                f"column {field.name} of the table {table.name} is {field.type}: pyiceberg turns a null list or map of "
                f"structs into an empty one; select to_json({field.name}), or write to another table"
            )


def _has_repeated_structs(kind: pa.DataType) -> bool:
    """Whether a list or a map has structs as its values, at any depth."""
    if pa.types.is_struct(kind):
        return any(_has_repeated_structs(kind.field(at).type) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return pa.types.is_struct(kind.item_type) or _has_repeated_structs(kind.item_type)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.types.is_struct(kind.value_type) or _has_repeated_structs(kind.value_type)
    return False


def _is_type(declared: str, kind: pa.DataType) -> bool:
    return bool(declared == _library().stored_type(kind))


def _library() -> Any:
    """The module that uses pyiceberg, imported when it is needed."""
    try:
        from lanemq.pipelines.sinks import iceberg_table
    except ImportError as error:
        raise InvalidOption(f"the Iceberg sink needs pyiceberg: {install_extra('iceberg')}") from error
    return iceberg_table
