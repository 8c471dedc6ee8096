"""Decisions: the rows and the state of a batch, on disk before the first of two commits.

    decided/<number>/decision.json    the run that decided, the stage's state after the batch, the files and their rows
    decided/<number>/...              the files of outputs and dead letters; links to the stage's files where possible

A step may call a service and answer differently the second time. Dead letters and outputs are two commits, so an
attempt that died between them must be completed as it was, or a message is in both tables or in neither.

Invariants: of all attempts of a batch the first that is renamed into place counts, for every run; a decision is
complete or not there; it is kept until Spark will not ask for the batch again; it is never used for other messages,
which Spark plans under the same number if its own record of the batch was lost.
"""

import os
import shutil
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import msgspec
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from lanemq.model.errors import StateLost, UsageError
from lanemq.pipelines.atomic_files import read_json, sync, write_json
from lanemq.pipelines.ports import (
    DEAD_LETTER_SCHEMA,
    Batch,
    FileRows,
    Results,
    RowFile,
    Rows,
    SinkPosition,
    TableRows,
    run_name,
)
from lanemq.spark.offsets import OffsetJson

_FILE: Final = "decision.json"
MAX_CONCURRENT_SYNCS: Final = 16


class _Part(msgspec.Struct, frozen=True):
    """One file with rows."""

    shard: str
    name: str
    rows: int


class _Decision(msgspec.Struct, frozen=True):
    query: str
    number: int
    epoch: int
    """The run that decided. A later run completes the batch under its own epoch."""
    columns: str
    """The columns of the outputs, as Spark's JSON."""
    outputs: tuple[_Part, ...]
    dead: tuple[_Part, ...]
    counts: dict[str, int]
    state: str
    end: dict[str, dict[str, int]] = {}
    """Where the batch ended, as Spark planned it; empty for a retry pass."""
    positions: dict[str, SinkPosition] = {}
    late: frozenset[tuple[str, int, int]] = frozenset()


class Decisions:
    """The decisions of one checkpoint that may still be needed; usually none, or the last one."""

    def __init__(self, folder: Path, *, grows: bool = False) -> None:
        """`grows`: the stage adds columns, so a decision may have more of them than are declared."""
        self._folder = folder
        self._grows = grows

    def open(self) -> None:
        """Remove what a crash left of an unfinished decision."""
        for path in self._folder.glob(".*") if self._folder.is_dir() else ():
            shutil.rmtree(path, ignore_errors=True)

    def find(self, batch: Batch, schema: StructType, end: OffsetJson) -> Results | None:
        """What an earlier attempt of the batch decided; None if nothing was committed, so the stage may run.

        `end`: where Spark planned the batch to end. `StateLost` if the decision is about another range.
        """
        folder = self._folder / str(batch.number)
        if not folder.is_dir():
            return None
        try:
            found = read_json(folder / _FILE, _Decision)
        except FileNotFoundError:
            raise StateLost(
                f"{folder / _FILE} is missing: the checkpoint's folder was changed; restore it from a copy"
            ) from None
        schema = _checked(found, batch, schema, grows=self._grows)
        _check_range(found, batch, end)
        return Results(
            outputs=FileRows(schema, _files(folder, found.outputs)),
            dead_letters=_dead_letters(_files(folder, found.dead)) if found.dead else None,
            counts=found.counts,
            state=found.state,
            positions=found.positions,
            late=found.late,
        )

    def make(self, batch: Batch, results: Results, end: OffsetJson) -> Results:
        """Decide, unless another attempt has; returns the results that count, in files that stay until `forget`."""
        schema = results.outputs.schema
        own = self._folder / f".{batch.number}-{batch.epoch}-{os.getpid()}-{os.urandom(4).hex()}"
        own.mkdir(parents=True)
        try:
            decision = _Decision(
                query=batch.query,
                number=batch.number,
                epoch=batch.epoch,
                columns=schema.json(),
                outputs=tuple(_keep(results.outputs, own, "rows")),
                dead=() if results.dead_letters is None else tuple(_keep(results.dead_letters, own, "dead")),
                counts=dict(results.counts),
                state=results.state,
                end=end,
                positions=dict(results.positions),
                late=results.late,
            )
            write_json(own / _FILE, decision)
            _sync_all([own / part.name for part in (*decision.outputs, *decision.dead)])
            try:
                own.rename(self._folder / str(batch.number))
            except OSError:
                if not (self._folder / str(batch.number)).is_dir():
                    raise
            sync(self._folder)
        finally:
            shutil.rmtree(own, ignore_errors=True)
        found = self.find(batch, schema, end)
        assert found is not None, "it was renamed into place, or was there"
        return found

    def numbers(self) -> list[int]:
        """The numbers of decided batches."""
        paths = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(int(path.name) for path in paths if path.name.isdecimal())

    def forget(self, number: int) -> None:
        """Remove a decision. It is renamed first, so that half a decision never looks like one."""
        gone = self._folder / f".{number}-{os.urandom(4).hex()}"
        (self._folder / str(number)).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _keep(rows: Rows, folder: Path, word: str) -> Iterator[_Part]:
    """Link or copy the rows to the decision's folder, because the stage may remove its files at any time."""
    if not isinstance(rows, FileRows):
        if rows.count():
            path = folder / f"{word}.parquet"
            pq.write_table(rows.table(), path)
            yield _Part("driver", path.name, rows.count())
        return
    for index, file in enumerate(file for file in rows.files if file.rows):
        path = folder / f"{word}-{index}.parquet"
        try:
            os.link(file.path, path)
        except OSError:  # a file system without links
            shutil.copyfile(file.path, path)
        yield _Part(file.shard, path.name, file.rows)


def _sync_all(paths: Sequence[Path]) -> None:
    """Sync concurrently: a disk does many syncs in little more than the time of one."""
    with ThreadPoolExecutor(max(1, min(len(paths), MAX_CONCURRENT_SYNCS))) as pool:
        list(pool.map(sync, paths))


def _files(folder: Path, parts: Sequence[_Part]) -> list[RowFile]:
    return [RowFile(part.shard, folder / part.name, part.rows) for part in parts]


def _dead_letters(files: list[RowFile]) -> Rows:
    """The dead letters with today's columns; those that an older version did not write are null."""
    names = DEAD_LETTER_SCHEMA.names
    if all(set(names) <= set(pq.read_schema(file.path).names) for file in files):
        return FileRows(DEAD_LETTER_SCHEMA, files)
    return TableRows(DEAD_LETTER_SCHEMA, FileRows(DEAD_LETTER_SCHEMA, files).table())


def _checked(found: _Decision, batch: Batch, schema: StructType, *, grows: bool) -> StructType:
    """The decided columns; `UsageError` if they are not the declared ones."""
    if found.query != batch.query:
        raise StateLost(f"{batch} was decided by query {found.query}: give every pipeline a checkpoint of its own")
    decided: StructType = StructType.fromJson(msgspec.json.decode(found.columns))
    kept = [field for field in decided if field.name in schema.names] if grows else decided.fields
    if kept != schema.fields:
        raise UsageError(
            f"{batch} was decided by run {run_name(found.epoch)} with other columns, and only part of it was "
            f"committed: start the pipeline as it was declared then until the batch is done, and change its outputs "
            f"after that"
        )
    return decided


def _check_range(found: _Decision, batch: Batch, end: OffsetJson) -> None:
    if found.end != end:
        raise StateLost(
            f"{batch} was decided by run {run_name(found.epoch)} for messages up to {found.end}, and Spark has planned "
            f"it up to {end}: the checkpoint's folder `offsets` was restored or lost its last file. Restore that file, "
            f"or begin with an empty checkpoint and sink"
        )
