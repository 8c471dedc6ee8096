"""Batches as folders of Parquet files: a batch is there completely or not at all.

    <path>/lanemq_query=<query>/lanemq_batch=<number>/000-<shard>.parquet     what readers see
    <path>/_lanemq/query=<query>/epoch=<epoch>/                               what is being written
    <path>/_lanemq/query=<query>/empty-<number>                               the newest batch without rows
    <path>/_lanemq/owner=<pipeline>                                           the query that a pipeline writes as

A run writes and syncs the files of a batch in the folder of its own epoch, then one `rename` of their folder makes
them visible. A number that is there is not written again. A newer run that opens the sink moves the older epoch
folders away, so the older run's rename finds nothing to rename. Each is a single rename and one of them comes first,
so no lock is needed and a run that hangs in between blocks no other. This is as safe as the file system's `rename`:
atomic on local disks, NFS and HDFS. Object stores have none and are refused; do not use one behind a file interface.

A batch without rows is a small file that is renamed in the same way and replaces older ones, so a topic that is mostly
silent leaves no folders.

Readers skip names that begin with an underscore. The folder names become the columns `lanemq_query` and `lanemq_batch`
in Spark, pandas and Arrow. Old batches may be deleted or compacted, except the newest of each query.
"""

import json
import uuid
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import cast
from urllib.parse import quote

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lanemq.files import StorePath, can_rename, is_address, locate, remove_tree, sync, write_durably
from lanemq.model.errors import InvalidOption, SinkFenced
from lanemq.pipelines.ports import Append, Batch, Merge, Rows
from lanemq.pipelines.sinks.exact_sink import ExactSink, LedgerEntry, ShardRows, Terms, file_name, owner_mark, shards

_BATCH, _EPOCH, _EMPTY = "lanemq_batch=", "epoch=", "empty-"
_NOTE = "_batch.json"


class ParquetSink(ExactSink):
    """Appends batches to a folder of Parquet files."""

    appends_only = True

    def __init__(self, path: str | StorePath) -> None:
        self._given = path
        self._path = locate(path) if is_address(path) else cast("StorePath", Path(str(path)))
        if not can_rename(self._path):
            raise InvalidOption(
                f"path {path}: an object store cannot rename, so a batch of several files would appear one by one; use "
                f"the Delta sink (kind delta)"
            )
        self._applied: int | None = None

    def accept_settings(self, settings: Mapping[str, str]) -> None:
        if is_address(self._given):
            self._path = locate(self._given, settings)

    def __str__(self) -> str:
        return f"Parquet folder {self._path}"

    @property
    def path(self) -> StorePath:
        """The folder."""
        return self._path

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        if isinstance(how, Merge):
            raise InvalidOption(
                f"path {self._path}: Parquet files cannot replace rows; "
                "use a sink of kind delta, iceberg, sqlite or postgres for last-state pipelines"
            )
        terms = self._agree(query, epoch, schema, how)
        self._notes(terms.query).mkdir(parents=True, exist_ok=True)
        self._check_schema(schema)
        self._check_owner(terms)
        self._take_over(terms)
        self._own(terms)
        self._note_schema(schema)
        self._visible(terms.query).mkdir(exist_ok=True)
        for folder in (self._path / "_lanemq", self._path, self._path.absolute().parent):
            sync(folder)
        self._applied = self._highest(query)

    def applied_before_open(self, query: str) -> int | None:
        return self._highest(query)

    def applied(self) -> int | None:
        self._opened()
        return self._applied

    def write(self, rows: Rows, batch: Batch) -> bool:
        terms = self._terms_for(batch)
        run_folder = self._run_folder(terms)
        owner = self._owner_query(terms)
        mark = None if owner is None else owner_mark(owner)
        if not LedgerEntry(self._applied, self._newest_epoch(terms), mark).admits(batch):
            return False
        try:
            staged = self._stage(rows, batch, run_folder, terms)
            new = (self._publish if rows.count() else self._publish_empty)(staged, batch, terms)
        except FileNotFoundError:
            if run_folder.exists():
                raise
            LedgerEntry(None, self._newest_epoch(terms)).admits(batch)
            raise SinkFenced(
                f"{run_folder} is gone: a newer run of pipeline {terms.query} has opened the sink; stop this one"
            ) from None
        self._applied = batch.number
        return new

    def _stage(self, rows: Rows, batch: Batch, run_folder: StorePath, terms: Terms) -> StorePath:
        folder = run_folder / f"{batch.number}-{uuid.uuid4().hex}"
        folder.mkdir()
        for at, shard in enumerate(shards(rows, terms.schema)):
            self._write_file(shard, folder / f"{at:03}-{file_name(shard.shard)}.parquet")
        note = folder / _NOTE
        content = {"query": batch.query, "batch": batch.number, "epoch": batch.epoch, "rows": rows.count()}
        write_durably(note, json.dumps(content).encode(), through=folder)  # fails if a newer run moved the folder away
        return folder

    def _write_file(self, shard: ShardRows, target: StorePath) -> None:
        shard.put(target)
        sync(target)

    def _publish(self, staged: StorePath, batch: Batch, terms: Terms) -> bool:
        target = self._visible(terms.query) / f"{_BATCH}{batch.number}"
        try:
            staged.rename(target)
        except OSError:
            # rename never replaces a folder that is not empty: the batch is there.
            if not target.exists():
                raise
            remove_tree(staged)
            return False
        sync(target.parent)
        return True

    def _publish_empty(self, staged: StorePath, batch: Batch, terms: Terms) -> bool:
        """Record a batch without rows. The number is part of the name, so no note replaces that of a later batch."""
        notes = self._notes(terms.query)
        with suppress(FileExistsError):  # HDFS does not replace the same note; a local disk does
            (staged / _NOTE).rename(notes / f"{_EMPTY}{batch.number}")
        sync(notes)
        self._remove_older_notes(notes, batch)
        remove_tree(staged)
        return True

    def _remove_older_notes(self, notes: StorePath, batch: Batch) -> None:
        for older, number in _numbered(notes, _EMPTY):
            if number < batch.number:
                older.unlink(missing_ok=True)

    def _highest(self, query: str) -> int | None:
        found = _numbered(self._visible(query), _BATCH) + _numbered(self._notes(query), _EMPTY)
        return max((number for _, number in found), default=None)

    def _take_over(self, terms: Terms) -> None:
        """Refuse this run or move older runs' folders away.

        Each run makes its folder before it looks for others, so of two concurrent runs at least one sees the other.
        """
        own = self._run_folder(terms)
        own.mkdir(exist_ok=True)
        try:
            others = [epoch for _, epoch in _numbered(own.parent, _EPOCH) if epoch != terms.epoch]
            LedgerEntry(None, max(others, default=None)).check_opener(terms)
        except SinkFenced:
            remove_tree(own)
            raise
        for folder, epoch in _numbered(own.parent, _EPOCH):
            if epoch < terms.epoch:
                self._move_away(folder)
        for left in [*own.parent.glob("gone-*"), *own.glob("*")]:
            remove_tree(left)
        sync(own.parent)

    def _check_owner(self, terms: Terms) -> None:
        """Refuse this checkpoint if the sink has batches of another one of the same pipeline."""
        owner = self._owner_query(terms)
        if owner is None or self._highest(owner) is None:
            return
        entry = LedgerEntry(owner=owner_mark(owner))
        entry.check_opener(terms)
        if entry.has_other_owner(terms):
            self._warn_new_owner(terms)

    def _own(self, terms: Terms) -> None:
        """Record this checkpoint as the owner, and move the run folders of the former owner away."""
        former = self._owner_query(terms)
        if not terms.pipeline or former == terms.query:
            return
        write_durably(self._owner_file(terms), terms.query.encode())
        if former is not None:
            for folder, _ in _numbered(self._notes(former), _EPOCH):
                self._move_away(folder)

    def _owner_query(self, terms: Terms) -> str | None:
        if not terms.pipeline:
            return None
        try:
            return self._owner_file(terms).read_bytes().decode()
        except FileNotFoundError:
            return None

    def _owner_file(self, terms: Terms) -> StorePath:
        return self._path / "_lanemq" / f"owner={quote(terms.pipeline, safe='')}"

    def _move_away(self, older: StorePath) -> None:
        with suppress(FileNotFoundError):  # an even newer run was faster
            older.rename(older.parent / f"gone-{uuid.uuid4().hex}")

    def _check_schema(self, schema: StructType) -> None:
        """Later runs may add columns. A column with another type would make the folder unreadable."""
        types = {field.name: field.dataType for field in self._known_schema()}
        for field in schema:
            if types.get(field.name, field.dataType) != field.dataType:
                raise InvalidOption(
                    f"column {field.name} is {types[field.name].simpleString()} in {self._path} and would become "
                    f"{field.dataType.simpleString()}: write to another folder, or cast it"
                )

    def _note_schema(self, schema: StructType) -> None:
        known = self._known_schema()
        added = [field for field in schema if field.name not in known.names]
        if added:
            write_durably(self._schema_file, StructType([*known, *added]).json().encode())

    def _known_schema(self) -> StructType:
        there = self._schema_file.exists()
        return StructType.fromJson(json.loads(self._schema_file.read_bytes())) if there else StructType()

    @property
    def _schema_file(self) -> StorePath:
        return self._path / "_lanemq" / "schema.json"

    def _newest_epoch(self, terms: Terms) -> int | None:
        return max((epoch for _, epoch in _numbered(self._notes(terms.query), _EPOCH)), default=None)

    def _run_folder(self, terms: Terms) -> StorePath:
        return self._notes(terms.query) / f"{_EPOCH}{terms.epoch}"

    def _notes(self, query: str) -> StorePath:
        return self._path / "_lanemq" / f"query={quote(query, safe='')}"

    def _visible(self, query: str) -> StorePath:
        return batches_folder(self._path, query)


def batches_folder(path: StorePath, query: str) -> StorePath:
    """The folder with the visible batches of a query, one folder `lanemq_batch=<number>` each."""
    return path / f"lanemq_query={quote(query, safe='')}"


def _numbered(folder: StorePath, prefix: str) -> list[tuple[StorePath, int]]:
    return [(found, int(found.name.removeprefix(prefix))) for found in folder.glob(f"{prefix}*")]
