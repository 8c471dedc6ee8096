"""Small files of a Delta table become larger ones, in commits that cannot double a row.

delta-rs's own `optimize` raises no conflict if another compaction has removed the same files in between: both new files
stay, and every row is there twice. Retries and application transactions of its commit do not change that. So files are
exchanged here in a commit of our own. It is made against exactly one version of the table, in which all files that it
removes are active: delta-rs refuses it if any other version exists by then. If the files are still active in the newest
version, the exchange is tried again there; otherwise it is dropped, because somebody else has rewritten them.

That protects the table from our compactions. An `optimize` of another program that began before one of ours and ends
after it doubles rows all the same. `undo_overlaps` finds such a version later and reverses it.
"""

import json
import logging
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Final
from urllib.parse import unquote

import pyarrow as pa
import pyarrow.fs as pafs
import pyarrow.parquet as pq
from deltalake import CommitProperties, DeltaTable, Transaction
from deltalake.exceptions import CommitFailedError, TableNotFoundError
from deltalake.fs import DeltaStorageHandler
from deltalake.transaction import AddAction, RemoveAction

from lanemq.files import sync
from lanemq.model.errors import StorageError
from lanemq.model.units import Millis
from lanemq.pipelines.parquet_encoding import dictionary_columns
from lanemq.pipelines.sinks.delta_files import file_stats, partition_text
from lanemq.pipelines.sinks.exact_sink import aligned
from lanemq.pipelines.sinks.versioned_table import MAX_ATTEMPTS, small_groups

log = logging.getLogger(__name__)

_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 128 << 20
"""Rows and bytes in memory that become one row group of a new file."""

JUDGED: Final = "lanemq#judged"
"""The application id whose version is the version of the table up to which other programs' compactions were judged."""
MAX_LOOK_BACK: Final = 1_000
"""Versions in which other programs' compactions are looked for."""
READ_PLAINLY: Final = frozenset({"timestampNtz"})
"""Reader features of tables whose Parquet files hold exactly the table's rows."""
WRITTEN_PLAINLY: Final = READ_PLAINLY | {"appendOnly", "invariants", "checkConstraints", "changeDataFeed"}
"""Writer features that ask nothing of a file whose rows were in the table before."""


@dataclass(frozen=True, slots=True)
class TableFile:
    """An active file of a version."""

    name: str
    """As the log has it, that is, with escaped characters."""
    size: int
    rows: int | None
    partition: tuple[tuple[str, str | None], ...]
    modified: int

    @property
    def path(self) -> str:
        return unquote(self.name)


def active_files(table: DeltaTable) -> dict[str, TableFile]:
    """The files of the version that is loaded, oldest first."""
    found = pa.table(table.get_add_actions()).to_pylist()
    return {
        row["path"]: TableFile(
            row["path"],
            row["size_bytes"],
            row["num_records"],
            tuple((name, partition_text(value)) for name, value in (row.get("partition") or {}).items()),
            row["modification_time"],
        )
        for row in sorted(found, key=lambda row: row["modification_time"])
    }


def obstacle(table: DeltaTable) -> str | None:
    """Why files of this table cannot be rewritten as plain Parquet; None if they can."""
    protocol = table.protocol()
    if protocol.min_reader_version == 2:
        return "its columns may be renamed (column mapping)"
    readers, writers = set(protocol.reader_features or ()), set(protocol.writer_features or ())
    unknown = (readers - READ_PLAINLY) | (writers - WRITTEN_PLAINLY)
    return f"it has the features {', '.join(sorted(unknown))}" if unknown else None


def compact(table: DeltaTable, judged: int, wall: Millis) -> int:
    """Replace the small files of each partition by larger ones, and return how many were replaced.

    0 as well if another writer has rewritten one of them in the meantime.

    `judged`: the version up to which other programs' compactions were judged.
    """
    store = _store(table)
    files = active_files(table).values()
    groups = list(small_groups(files, lambda file: file.partition, lambda file: file.size))
    if not groups:
        return 0
    schema = table.schema().to_json()
    new = [_rewritten(table, store, group, wall) for group in groups]
    old = [file for group in groups for file in group]
    if _exchange(table, new, old, schema, judged, wall):
        return len(old)
    for action in new:
        store.delete_file(action.path)
    log.info("table %s: other writers have rewritten the same files; they are left as they are", table.table_uri)
    return 0


def others_compactions(table: DeltaTable, since: int) -> list[int]:
    """Versions after this one in which another program has compacted the table, oldest first."""
    count = min(table.version() - since, MAX_LOOK_BACK)
    found = table.history(count) if count > 0 else []
    return sorted(int(entry["version"]) for entry in found if entry.get("operation") == "OPTIMIZE")


def undo_overlaps(table: DeltaTable, versions: Iterable[int], wall: Millis) -> None:
    """Reverse each of these compactions that removed files which were not active any more, since it doubled rows."""
    for version in versions:
        change = _Change.read(table, version)
        if change is None or change.removed <= change.before.keys():
            continue
        said = (
            f"table {table.table_uri}: version {version} is a compaction of another program, and it replaced "
            f"{len(change.removed - change.before.keys())} files that had been replaced before, so their rows were in "
            f"the table twice"
        )
        if _undone(table, change, version, wall):
            log.warning("%s. The version was undone. Let only one program compact the table", said)
        else:
            log.error(
                "%s. It cannot be undone, because its files were rewritten since: compare the table with version %d, "
                "remove the surplus rows, and let only one program compact the table",
                said,
                version - 1,
            )


def _store(table: DeltaTable) -> pafs.FileSystem:
    return pafs.PyFileSystem(DeltaStorageHandler.from_table(table._table))  # noqa: SLF001


def _rewritten(table: DeltaTable, store: pafs.FileSystem, group: Sequence[TableFile], wall: Millis) -> AddAction:
    """Write the rows of the files to a new one. It is invisible until the log names it."""
    partition = dict(group[0].partition)
    columns = pa.schema([field for field in pa.schema(table.schema().to_arrow()) if field.name not in partition])
    name = f"lanemq-{uuid.uuid4().hex}.parquet"
    with store.open_output_stream(name) as target:
        write_tables(_tables(store, group, columns), target, columns)
    metadata = pq.read_metadata(store.open_input_file(name))
    expected = [file.rows for file in group]
    if None not in expected and metadata.num_rows != sum(rows or 0 for rows in expected):
        store.delete_file(name)
        raise StorageError(
            f"{len(group)} files have {metadata.num_rows} rows, and the table's log says "
            f"{sum(rows or 0 for rows in expected)}"
        )
    folder = Path(unquote(table.table_uri.removeprefix("file://")))
    if folder.is_dir():
        sync(folder / name)
        sync(folder)
    return AddAction(name, store.get_file_info(name).size, partition, wall, False, file_stats(metadata))


def write_tables(tables: Iterator[pa.Table], target: Any, schema: pa.Schema) -> None:
    """Write tables of this schema, at least one, to a Parquet file. A few of them are in memory at once."""
    first = next(tables)
    with pq.ParquetWriter(target, schema, use_dictionary=dictionary_columns(first)) as writer:
        group: list[pa.Table] = []
        for table in chain([first], tables):
            group.append(table)
            rows, size = sum(each.num_rows for each in group), sum(each.nbytes for each in group)
            if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                writer.write_table(pa.concat_tables(group), row_group_size=_GROUP_ROWS)
                group = []
        if group:
            writer.write_table(pa.concat_tables(group), row_group_size=_GROUP_ROWS)


def _tables(store: pafs.FileSystem, group: Iterable[TableFile], columns: pa.Schema) -> Iterator[pa.Table]:
    for file in group:
        with store.open_input_file(file.path) as source:
            # Spark stores times as INT96, which Arrow reads as nanoseconds, and those do not reach all years.
            yield aligned(pq.ParquetFile(source, coerce_int96_timestamp_unit="us").read(), columns)


def _exchange(
    table: DeltaTable, new: Sequence[AddAction], old: Sequence[TableFile], schema: str, judged: int, wall: Millis
) -> bool:
    """Commit new files in place of old ones; False if the old ones, or the table's columns, are not there any more."""
    for _ in range(MAX_ATTEMPTS):
        active = active_files(table)
        same = table.schema().to_json() == schema and obstacle(table) is None
        if not same or any(active.get(file.name) != file for file in old):
            return False
        version, refused = table.version() + 1, False
        removals = [RemoveAction(file.path, False, wall, file.size, dict(file.partition)) for file in old]
        try:
            table.create_write_transaction(
                [*new, *removals],
                mode="append",
                schema=table.schema(),
                partition_by=list(table.metadata().partition_columns),
                commit_properties=CommitProperties(
                    custom_metadata={"lanemq": "compaction"},
                    max_commit_retries=0,  # the version that was read, or none
                    app_transactions=[Transaction(JUDGED, judged)],
                ),
            )
        except CommitFailedError:
            refused = True
        table.update_incremental()  # a vacuum of the version before would delete the new files
        change = _Change.read(table, version)
        # A store that lost its answer and was asked again refuses a commit that it has.
        if refused and not (change and change.exchanges(new, old)):
            continue
        _check_exchange(table, change, version, wall)
        return True
    return False


def _check_exchange(table: DeltaTable, change: "_Change | None", version: int, wall: Millis) -> None:
    """Undo our own version if it does not remove what it should: then the table has rows twice."""
    if change is None or change.removed <= change.before.keys():
        return
    undone = _undone(table, change, version, wall)
    raise StorageError(
        f"version {version} was to replace {len(change.removed)} files and did not replace all of them, so rows were "
        f"in the table twice; " + ("it was undone" if undone else f"restore version {version - 1}")
    )


@dataclass(frozen=True, slots=True)
class _Change:
    """A version that exchanged files."""

    added: set[str]
    removed: set[str]
    before: Mapping[str, TableFile]
    """The files that were active just before."""

    @classmethod
    def read(cls, table: DeltaTable, version: int) -> "_Change | None":
        """None if the log has the version, or the one before, no more."""
        options: dict[str, Any] | None = table._storage_options  # noqa: SLF001
        try:
            with _store(table).open_input_file(f"_delta_log/{version:020}.json") as source:
                actions = [json.loads(line) for line in source.read().splitlines() if line]
            before = DeltaTable(table.table_uri, version=version - 1, storage_options=options)
        except (FileNotFoundError, TableNotFoundError):
            return None
        return cls(
            {action["add"]["path"] for action in actions if "add" in action},
            {action["remove"]["path"] for action in actions if "remove" in action},
            active_files(before),
        )

    def exchanges(self, new: Iterable[AddAction], old: Iterable[TableFile]) -> bool:
        """Whether the version did exactly this exchange."""
        added, removed = {file.path for file in new}, {file.path for file in old}
        return {*map(unquote, self.added)} == added and {*map(unquote, self.removed)} == removed


def _undone(table: DeltaTable, change: _Change, version: int, wall: Millis) -> bool:
    """Remove what the version added, and add again what it removed; False if that is not possible any more."""
    table.update_incremental()
    active, store = active_files(table), _store(table)
    lost = [change.before[name] for name in sorted(change.removed & change.before.keys())]
    if not change.added <= active.keys():
        return False
    if any(store.get_file_info(file.path).type is pafs.FileType.NotFound for file in lost):
        return False
    again = [
        AddAction(
            file.path, file.size, dict(file.partition), file.modified, False, json.dumps({"numRecords": file.rows})
        )
        for file in lost
    ]
    doubled = [active[name] for name in sorted(change.added)]
    return _exchange(table, again, doubled, table.schema().to_json(), version, wall)
