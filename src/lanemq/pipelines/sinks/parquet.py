"""Batches as folders of Parquet files: a batch is there completely, or not at all.

    <path>/lanemq_query=<query>/lanemq_batch=<number>/000-<shard>.parquet     what readers see
    <path>/_lanemq/query=<query>/epoch=<epoch>/                               what is being written
    <path>/_lanemq/query=<query>/empty-<number>                               the newest batch without rows

The rules guarded here: a batch's files are written and synced under the run's own epoch folder, then one `rename` of
their folder makes them visible; a number that is there is not written again. Opening by a newer run moves the older
epoch folders away, so the older run's rename finds nothing to rename. Both are single renames, one of them is first:
no lock is needed, and a run that hangs in between holds nobody up. That is as good as the file system's `rename`:
atomic on local disks, NFS and HDFS-like systems; do not use object stores behind a file interface.

A batch without rows is a note that is renamed in the same way and replaces older ones, so that a topic which is silent
most of the time leaves no folders.

Readers skip names with an underscore. The folders' names become columns `lanemq_query` and `lanemq_batch` in Spark,
pandas and Arrow; old batches may be deleted or compacted by anybody, except the newest of each query.
"""

import json
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from urllib.parse import quote

from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lanemq.model.errors import InvalidOption, SinkFenced
from lanemq.pipelines.atomic_files import sync
from lanemq.pipelines.batch import Batch
from lanemq.pipelines.ports import Append, Merge
from lanemq.pipelines.rows import Rows
from lanemq.pipelines.sinks.ledger import ExactSink, Standing, Terms
from lanemq.pipelines.sinks.shard_files import file_name, shards

_BATCH, _EPOCH, _EMPTY = "lanemq_batch=", "epoch=", "empty-"
_NOTE = "_batch.json"


class ParquetSink(ExactSink):
    """Appends batches to a folder of Parquet files."""

    appends_only = True

    def __init__(self, path: str | Path) -> None:
        if "://" in str(path):
            raise InvalidOption(f"path {path}: the Parquet sink needs a folder; use the Delta sink for object stores")
        self._path = Path(path)
        self._applied: int | None = None

    def __str__(self) -> str:
        return f"Parquet folder {self._path}"

    @property
    def path(self) -> Path:
        """The folder."""
        return self._path

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        if isinstance(how, Merge):
            raise InvalidOption(
                f"path {self._path}: Parquet files cannot replace rows; "
                "use a sink of kind delta, sqlite or postgres for last-state pipelines"
            )
        terms = self._agree(query, epoch, schema, how)
        self._notes(terms.query).mkdir(parents=True, exist_ok=True)
        self._check_schema(schema)
        self._take_over(terms)
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
        workshop = self._workshop(terms)
        if not Standing(self._applied, self._newest_epoch(terms)).admits(batch):
            return False
        try:
            staged = self._stage(rows, batch, workshop, terms)
            self._reached("staged")
            new = (self._publish if rows.count() else self._publish_empty)(staged, batch, terms)
        except FileNotFoundError:
            if workshop.exists():
                raise
            Standing(None, self._newest_epoch(terms)).admits(batch)
            raise SinkFenced(f"{workshop} is gone: a newer run of pipeline {terms.query} has opened the sink") from None
        self._reached("published")
        self._applied = batch.number
        return new

    def _stage(self, rows: Rows, batch: Batch, workshop: Path, terms: Terms) -> Path:
        folder = workshop / f"{batch.number}-{uuid.uuid4().hex}"
        folder.mkdir()
        for at, shard in enumerate(shards(rows, terms.schema)):
            target = folder / f"{at:03}-{file_name(shard.shard)}.parquet"
            shard.put(target)
            sync(target)
            self._reached("one file written")
        note = folder / _NOTE
        note.write_text(
            json.dumps({"query": batch.query, "batch": batch.number, "epoch": batch.epoch, "rows": rows.count()})
        )
        sync(note)
        sync(folder)
        return folder

    def _publish(self, staged: Path, batch: Batch, terms: Terms) -> bool:
        target = self._visible(terms.query) / f"{_BATCH}{batch.number}"
        try:
            staged.rename(target)
        except OSError:
            # A folder with something in it is never replaced: the batch is there.
            if not target.exists():
                raise
            shutil.rmtree(staged, ignore_errors=True)
            return False
        sync(target.parent)
        return True

    def _publish_empty(self, staged: Path, batch: Batch, terms: Terms) -> bool:
        """The number is part of the name, so no note can replace that of a later batch."""
        notes = self._notes(terms.query)
        (staged / _NOTE).rename(notes / f"{_EMPTY}{batch.number}")
        sync(notes)
        self._reached("empty batch noted")
        for older, number in _numbered(notes, _EMPTY):
            if number < batch.number:
                older.unlink(missing_ok=True)
        shutil.rmtree(staged, ignore_errors=True)
        return True

    def _highest(self, query: str) -> int | None:
        found = _numbered(self._visible(query), _BATCH) + _numbered(self._notes(query), _EMPTY)
        return max((number for _, number in found), default=None)

    def _take_over(self, terms: Terms) -> None:
        """Each run makes its folder first and looks for others then, so of two runs at least one sees the other."""
        own = self._workshop(terms)
        own.mkdir(exist_ok=True)
        try:
            others = [epoch for _, epoch in _numbered(own.parent, _EPOCH) if epoch != terms.epoch]
            Standing(None, max(others, default=None)).lacks(terms)
        except SinkFenced:
            shutil.rmtree(own, ignore_errors=True)
            raise
        for folder, epoch in _numbered(own.parent, _EPOCH):
            if epoch < terms.epoch:
                self._reached("older run found")
                with suppress(FileNotFoundError):  # moved by a run that is newer still
                    folder.rename(own.parent / f"gone-{uuid.uuid4().hex}")
        for left in [*own.parent.glob("gone-*"), *own.glob("*")]:
            shutil.rmtree(left, ignore_errors=True)
        sync(own.parent)

    def _check_schema(self, schema: StructType) -> None:
        """Columns may be added by a later run; a column that changed its type would make the folder unreadable."""
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
            draft = self._schema_file.with_name(f"schema-{uuid.uuid4().hex}")
            draft.write_text(StructType([*known, *added]).json())
            draft.replace(self._schema_file)

    def _known_schema(self) -> StructType:
        there = self._schema_file.exists()
        return StructType.fromJson(json.loads(self._schema_file.read_text())) if there else StructType()

    @property
    def _schema_file(self) -> Path:
        return self._path / "_lanemq" / "schema.json"

    def _newest_epoch(self, terms: Terms) -> int | None:
        return max((epoch for _, epoch in _numbered(self._notes(terms.query), _EPOCH)), default=None)

    def _workshop(self, terms: Terms) -> Path:
        return self._notes(terms.query) / f"{_EPOCH}{terms.epoch}"

    def _notes(self, query: str) -> Path:
        return self._path / "_lanemq" / f"query={quote(query, safe='')}"

    def _visible(self, query: str) -> Path:
        return self._path / f"lanemq_query={quote(query, safe='')}"


def _numbered(folder: Path, prefix: str) -> list[tuple[Path, int]]:
    return [(found, int(found.name.removeprefix(prefix))) for found in folder.glob(f"{prefix}*")]
