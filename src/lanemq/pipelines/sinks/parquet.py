"""Rows as Parquet files in a plain folder, which every program reads; each batch once, on every file system.

    <path>/created_day=2026-11-17/part-….parquet            rows, see parquet_layout.py
    <path>/_lanemq/folder.json                              columns and partitions
    <path>/_lanemq/owner=<pipeline>                         the query that a pipeline writes as
    <path>/_lanemq/query=<query>/change.json                the last change: batch, new files, replaced files
    <path>/_lanemq/query=<query>/staged/<random>/…          new files of a change that is not complete
    <path>/_lanemq/query=<query>/running/                   what fences older runs, see checkpoint/fencing.py

A batch is written in three steps: its files are staged, `change.json` names them, and they are moved to their places.
The second step is the commit: a fenced file, written in one step that only the newest run can make. If a run dies after
it, the next one completes the change before anything else. A compaction is such a change too, which also removes the
files that the new one replaces, before the new one gets its place.

Invariants: a file gets its place only after the change that names it; a change begins only after the one before it is
complete; no name is used twice. So programs that just list the folder never see a row twice, nor one of a batch that
was not committed. What they can miss for a moment, `parquet_reading` has.
"""

import logging
import os
from collections.abc import Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from pathlib import Path
from typing import Final, cast
from urllib.parse import quote

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lanemq.clock import Clock, SystemClock
from lanemq.files import (
    Output,
    StorePath,
    files_below,
    is_address,
    locate,
    move,
    remove_files,
    remove_tree,
    sync,
    write_durably,
    write_json,
)
from lanemq.model.errors import InvalidOption, SinkFenced, StorageError
from lanemq.model.units import Seconds, to_seconds
from lanemq.pipelines.checkpoint.fencing import known_runs, shut_out, take_over, write_as
from lanemq.pipelines.parquet_encoding import dictionary_columns
from lanemq.pipelines.ports import Append, Batch, FileRows, Merge, Rows
from lanemq.pipelines.sinks.exact_sink import ExactSink, LedgerEntry, Terms, owner_mark, shard_tables, shards
from lanemq.pipelines.sinks.parquet_compaction import merge_files, merged_name
from lanemq.pipelines.sinks.parquet_layout import (
    UNSAFE,
    FileName,
    FolderChange,
    Partitioning,
    compaction_groups,
    partitioning,
    query_mark,
)
from lanemq.pipelines.sinks.parquet_reading import FolderTerms, ParquetFolder
from lanemq.pipelines.text_limits import TextLimit, folder_limits

log = logging.getLogger(__name__)

FILE_SIZE: Final = 128 << 20
MIN_COMPACT_AFTER: Final = 60.0
MAX_OPEN: Final = 200
"""Files of a batch that are written at the same time. A batch with rows for more partitions makes more files."""


class ParquetSink(ExactSink):
    """Appends batches to a folder of Parquet files.

    Args:
        path: A folder, or an address (`hdfs://…`, `s3a://…`, `abfss://…`, `gs://…`).
        partition_by: Columns whose values divide the rows into folders, or `year(x)`, `month(x)`, `day(x)`, `hour(x)`
            of a time `x` in UTC. Each batch writes one file to each folder that it has rows for, so many values make
            many small files. Values of more than about 200 bytes do not fit the name of a folder.
        compact_after: Seconds without new rows after which the small files of a partition become larger ones; at
            least 60. Default: never. Too short, and a partition with late rows is compacted again and again; too long,
            and readers open many small files until then.
        file_size: Bytes of a file that a compaction aims at. Files of at least half of it are left alone. Too small,
            and readers open many files; too large, and each compaction delays the next batch for longer: it reads
            and writes about this much.
    """

    appends_only = True

    def __init__(
        self,
        path: str | StorePath,
        partition_by: Sequence[str] = (),
        *,
        compact_after: Seconds | None = None,
        file_size: int = FILE_SIZE,
        clock: Clock | None = None,
    ) -> None:
        self._compact_after = None if compact_after is None else to_seconds(compact_after)
        if self._compact_after is not None and self._compact_after < MIN_COMPACT_AFTER:
            raise InvalidOption(
                f"compact_after = {self._compact_after:g}: a partition may count as closed after {MIN_COMPACT_AFTER:g} "
                f"seconds at the earliest; write more, or leave it out to compact nothing"
            )
        if file_size < 1:
            raise InvalidOption(f"file_size = {file_size}: write a number of bytes, such as {FILE_SIZE}")
        self._given = path
        self._partition_by = tuple(partition_by)
        self._file_size = file_size
        self._clock = clock or SystemClock()
        self._folder = ParquetFolder(locate(path) if is_address(path) else cast("StorePath", Path(str(path))))
        self._partitioning = Partitioning()
        self._change: FolderChange | None = None
        self._complete = True
        """Whether everything that `_change` names is in its place."""
        self._groups: list[list[str]] = []
        """What the last look at the folder found to compact, the next group last."""
        self._next_look: float | None = None
        """When to look for files to compact, on the monotonic clock in milliseconds; None for now."""

    def accept_settings(self, settings: Mapping[str, str]) -> None:
        if is_address(self._given):
            self._folder = ParquetFolder(locate(self._given, settings))

    def __str__(self) -> str:
        return f"Parquet folder {self.path}"

    @property
    def path(self) -> StorePath:
        """The folder."""
        return self._folder.path

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        if isinstance(how, Merge):
            raise InvalidOption(
                f"path {self.path}: Parquet files cannot replace rows; "
                "use a sink of kind delta, iceberg, sqlite or postgres for last-state pipelines"
            )
        terms = self._agree(query, epoch, schema, how)
        self._partitioning = partitioning(self._partition_by, terms.schema)
        known = self._known_terms(schema)
        self._check_owner(terms)
        LedgerEntry(None, self._newest_epoch(terms)).check_opener(terms)
        self._fence(terms)
        self._own(terms)
        self._note_terms(known, schema)
        for folder in (self._folder.own, self.path, self.path.absolute().parent):
            sync(folder)
        self._change = self._folder.change(query)
        self._complete_change(terms)
        for left in self._folder.staged(query).glob("*"):
            remove_tree(left)
        self._groups, self._next_look = [], None

    def applied_before_open(self, query: str) -> int | None:
        change = self._folder.change(query)
        return None if change is None else change.batch

    def applied(self) -> int | None:
        self._opened()
        return None if self._change is None else self._change.batch

    def text_limits(self) -> tuple[TextLimit, ...]:
        return folder_limits(self._partition_by, self._opened().schema, UNSAFE.pattern)

    def write(self, rows: Rows, batch: Batch) -> bool:
        terms = self._terms_for(batch)
        owner = self._owner_query(terms)
        mark = None if owner is None else owner_mark(owner)
        new = LedgerEntry(self.applied(), self._newest_epoch(terms), mark).admits(batch)
        if not self._complete:
            self._complete_change(terms)
        if not new:
            return False
        staged = os.urandom(8).hex()
        try:
            adds = self._stage(rows, batch, terms, staged)
            self._commit(FolderChange(batch.number, staged if adds else "", adds), terms)
        except (FileNotFoundError, SinkFenced):
            remove_tree(self._folder.staged(terms.query) / staged)
            LedgerEntry(None, self._newest_epoch(terms)).admits(batch)
            raise
        self._complete_change(terms)
        self._compact(terms)
        return True

    # The steps of a change.

    def _stage(self, rows: Rows, batch: Batch, terms: Terms, staged: str) -> tuple[str, ...]:
        """Write the files of a batch where readers do not look; returns their future places."""
        folder = self._folder.staged(terms.query) / staged
        files = _BatchFiles(folder, FileName(query_mark(terms.query), batch.number, self._wall(), ""))
        if (
            not self._partitioning.columns
            and isinstance(rows, FileRows)
            and sum(each.rows > 0 for each in rows.files) == 1
        ):
            for shard in shards(rows, terms.schema):
                shard.put(files.place(""))
        else:
            with closing(files):
                for table in shard_tables(rows, terms.schema):
                    for partition, part in self._partitioning.split(table):
                        files.write(partition, part)
        for name in files.names:
            self._keep_staged(folder, name)
        return tuple(files.names)

    def _keep_staged(self, folder: StorePath, name: str) -> None:
        """Bring a staged file and the way to it to the disk before a change names it."""
        for place in _way(folder, name):
            sync(place)
        sync(folder.parent)

    def _commit(self, change: FolderChange, terms: Terms) -> None:
        """Make the change the last one of the query; `SinkFenced` if the run was replaced."""
        own = self._folder.of_query(terms.query)
        write_as(terms.epoch, own / "sink", self._folder.change_file(terms.query), msgspec.json.encode(change))
        self._change, self._complete = change, not change.staged

    def _complete_change(self, terms: Terms) -> None:
        """Put everything that the last change names into its place. Two runs may do this at the same time."""
        change = self._change
        if change is None or not change.staged:
            return
        self._complete = False
        staged = self._folder.staged(terms.query) / change.staged
        if files_below(staged):
            self._remove(change.removes)
            for name in change.adds:
                self._move(staged, name)
        remove_tree(staged)
        self._complete = True

    def _remove(self, names: Sequence[str]) -> None:
        remove_files([_below(self.path, name) for name in names])
        for folder in {name.rpartition("/")[0] for name in names}:
            with suppress(FileNotFoundError):
                sync(_below(self.path, folder))

    def _move(self, staged: StorePath, name: str) -> None:
        with suppress(FileNotFoundError):  # it has its place, or another run has moved it
            move(_below(staged, name), _below(self.path, name))
        for place in _way(self.path, name)[1:]:
            with suppress(FileNotFoundError):
                sync(place)

    # Compaction.

    def _compact(self, terms: Terms) -> None:
        """Replace one group of small files, if there is one. One per batch, so that the next batch does not wait long.

        Rows do not depend on it, so an unreadable file is logged and does not end the pipeline.
        """
        if self._compact_after is None or not self._found_group(terms.query, self._compact_after):
            return
        group, staged = self._groups.pop(), os.urandom(8).hex()
        folder = self._folder.staged(terms.query) / staged
        try:
            name = self._stage_merged(group, folder)
        except (OSError, pa.ArrowException, StorageError) as error:
            remove_tree(folder)
            log.warning("%s: %d files stay as they are, because they cannot be compacted: %s", self, len(group), error)
            return
        assert self._change is not None, "a batch was written before"
        self._commit(FolderChange(self._change.batch, staged, (name,), tuple(group)), terms)
        self._complete_change(terms)

    def _found_group(self, query: str, compact_after: float) -> bool:
        now = self._clock.now()
        if not self._groups and (self._next_look is None or now >= self._next_look):
            files = files_below(self.path)
            self._groups = compaction_groups(files, query, self._wall(), compact_after, self._file_size)[::-1]
            self._next_look = now + compact_after * 1000 / 4
        return bool(self._groups)

    def _stage_merged(self, group: Sequence[str], folder: StorePath) -> str:
        name = merged_name(group, os.urandom(4).hex())
        target = _below(folder, name)
        target.parent.mkdir(parents=True, exist_ok=True)
        known = self._folder.terms()
        assert known is not None, "the sink is open"
        schema = self._partitioning.in_files(known.arrow())
        merge_files([_below(self.path, each) for each in group], target, schema)
        self._keep_staged(folder, name)
        return name

    # Who may write.

    def _fence(self, terms: Terms) -> None:
        """Let no older run write. Each run makes its mark before it looks for others, so one of two sees the other."""
        own = self._folder.of_query(terms.query)
        own.mkdir(parents=True, exist_ok=True)
        take_over(own, terms.epoch)
        LedgerEntry(None, self._newest_epoch(terms)).check_opener(terms)

    def _newest_epoch(self, terms: Terms) -> int | None:
        return max(known_runs(self._folder.of_query(terms.query)), default=None)

    def _check_owner(self, terms: Terms) -> None:
        """Refuse this checkpoint if the folder has batches of another one of the same pipeline."""
        owner = self._owner_query(terms)
        if owner is None or self.applied_before_open(owner) is None:
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
            shut_out(self._folder.of_query(former))

    def _owner_query(self, terms: Terms) -> str | None:
        if not terms.pipeline:
            return None
        try:
            return self._owner_file(terms).read_bytes().decode()
        except FileNotFoundError:
            return None

    def _owner_file(self, terms: Terms) -> StorePath:
        return self._folder.own / f"owner={quote(terms.pipeline, safe='')}"

    # What the folder consists of.

    def _known_terms(self, schema: StructType) -> FolderTerms | None:
        """The terms of the folder. Later runs may add columns; another type or partition would make it unreadable."""
        known = self._folder.terms()
        if known is None:
            return None
        if known.partition_by != self._partition_by:
            raise InvalidOption(
                f"partition_by: {self.path} is partitioned by ({', '.join(known.partition_by)}), not by "
                f"({', '.join(self._partition_by)}); write to another folder, or keep the partitions"
            )
        types = {field.name: field.dataType for field in known.schema}
        for field in schema:
            if types.get(field.name, field.dataType) != field.dataType:
                raise InvalidOption(
                    f"column {field.name} is {types[field.name].simpleString()} in {self.path} and would become "
                    f"{field.dataType.simpleString()}: write to another folder, or cast it"
                )
        return known

    def _note_terms(self, known: FolderTerms | None, schema: StructType) -> None:
        columns = known.schema if known is not None else StructType()
        added = [field for field in schema if field.name not in columns.names]
        if known is None or added:
            write_json(self._folder.terms_file, FolderTerms(StructType([*columns, *added]).json(), self._partition_by))

    def _wall(self) -> int:
        return self._clock.wall() // 1000


class _BatchFiles:
    """The staged files of one batch: one for each partition, written shard after shard."""

    def __init__(self, folder: StorePath, name: FileName) -> None:
        self._folder = folder
        self._name = name
        self._open: dict[str, tuple[Output, pq.ParquetWriter]] = {}
        self.names: list[str] = []
        """Paths below the folder."""

    def place(self, partition: str) -> StorePath:
        """The place of a new file."""
        name = replace(self._name, token=os.urandom(4).hex())
        path = f"{partition}/{name}" if partition else str(name)
        self.names.append(path)
        target = _below(self._folder, path)
        target.parent.mkdir(parents=True, exist_ok=True)
        return target

    def write(self, partition: str, rows: pa.Table) -> None:
        if not rows.num_rows:
            return
        if partition not in self._open:
            if len(self._open) >= MAX_OPEN:
                self._close(next(iter(self._open)))
            output = Output(self.place(partition))
            writer = pq.ParquetWriter(output.target, rows.schema, use_dictionary=dictionary_columns(rows))
            self._open[partition] = output, writer
        self._open[partition][1].write_table(rows)

    def close(self) -> None:
        for partition in list(self._open):
            self._close(partition)

    def _close(self, partition: str) -> None:
        output, writer = self._open.pop(partition)
        writer.close()
        output.close()


def _below(folder: StorePath, path: str) -> StorePath:
    for segment in filter(None, path.split("/")):
        folder = folder / segment
    return folder


def _way(folder: StorePath, path: str) -> list[StorePath]:
    """A file below a folder and the folders on the way to it, the file first."""
    segments = path.split("/")
    return [_below(folder, "/".join(segments[:count])) for count in range(len(segments), -1, -1)]
