"""What a batch comes to, decided once: its rows and its state, on disk before the first of two commits.

    decided/<number>/decision.json    who decided, the stage's state behind the batch, the files and their rows
    decided/<number>/...              the files: outputs and dead letters, links to those of the stage where they may be

A step may ask a service and answer otherwise the second time. Dead letters and outputs are two commits, so an attempt
that died between them must be completed as it was, or a message is in both tables or in neither. The rules guarded
here: of all attempts of a batch the first that is renamed into place counts, for the run that made it and for every
other; a decision is whole or not there; it is kept until Spark will not ask for the batch again; it is never taken for
one about other messages, which Spark plans under the same number if its own note of the batch was lost.
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
from lanemq.pipelines.batch import Batch, run_name
from lanemq.pipelines.ports import Results
from lanemq.pipelines.rows import DEAD_LETTER_SCHEMA, FileRows, RowFile, Rows, TableRows
from lanemq.pipelines.sink_positions import SinkPosition
from lanemq.spark.offsets import OffsetJson

_FILE: Final = "decision.json"
SYNCS_AT_ONCE: Final = 16


class _Part(msgspec.Struct, frozen=True):
    """One file of rows."""

    shard: str
    name: str
    rows: int


class _Decision(msgspec.Struct, frozen=True):
    query: str
    number: int
    epoch: int
    """The run that decided; a later one completes it under its own epoch."""
    columns: str
    """Of the outputs, as Spark writes them down."""
    outputs: tuple[_Part, ...]
    dead: tuple[_Part, ...]
    counts: dict[str, int]
    state: str
    end: dict[str, dict[str, int]] = {}
    """Where the batch ended that was decided, as Spark planned it; empty for a pass."""
    positions: dict[str, SinkPosition] = {}
    late: frozenset[tuple[str, int, int]] = frozenset()


class Decisions:
    """Those of one checkpoint that may still be asked for; usually none, or the last one."""

    def __init__(self, folder: Path, *, grows: bool = False) -> None:
        """`grows`: the stage adds columns by itself, so a decision may have more than are declared."""
        self._folder = folder
        self._grows = grows

    def open(self) -> None:
        """Removes what a crash left of an unfinished decision."""
        for path in self._folder.glob(".*") if self._folder.is_dir() else ():
            shutil.rmtree(path, ignore_errors=True)

    def find(self, batch: Batch, schema: StructType, end: OffsetJson) -> Results | None:
        """What an earlier attempt of the batch decided; None: nothing was committed yet, the stage may run.

        `end`: where Spark says that the batch ends; a decision about another range is `StateLost`.
        """
        folder = self._folder / str(batch.number)
        if not folder.is_dir():
            return None
        try:
            found = read_json(folder / _FILE, _Decision)
        except FileNotFoundError:
            raise StateLost(f"{folder / _FILE} is missing: the checkpoint's folder was changed by somebody") from None
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
        """Decides, unless another attempt has; gives what counts, in files that stay until `forget`."""
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
        """Units that have a decision."""
        paths = self._folder.iterdir() if self._folder.is_dir() else ()
        return sorted(int(path.name) for path in paths if path.name.isdecimal())

    def forget(self, number: int) -> None:
        """Nobody will ask for it again. Renamed first: half of a decision must not look like one."""
        gone = self._folder / f".{number}-{os.urandom(4).hex()}"
        (self._folder / str(number)).rename(gone)
        shutil.rmtree(gone, ignore_errors=True)


def _keep(rows: Rows, folder: Path, word: str) -> Iterator[_Part]:
    """The rows as files of the decision's own, on the disk: a stage removes its files when it likes."""
    if not isinstance(rows, FileRows):
        if rows.count():
            path = folder / f"{word}.parquet"
            pq.write_table(rows.table(), path)
            yield _Part("driver", path.name, rows.count())
        return
    for place, file in enumerate(file for file in rows.files if file.rows):
        path = folder / f"{word}-{place}.parquet"
        try:
            os.link(file.path, path)
        except OSError:  # a file system without links
            shutil.copyfile(file.path, path)
        yield _Part(file.shard, path.name, file.rows)


def _sync_all(paths: Sequence[Path]) -> None:
    """At once: a disk takes many syncs in little more than the time of one."""
    with ThreadPoolExecutor(max(1, min(len(paths), SYNCS_AT_ONCE))) as pool:
        list(pool.map(sync, paths))


def _files(folder: Path, parts: Sequence[_Part]) -> list[RowFile]:
    return [RowFile(part.shard, folder / part.name, part.rows) for part in parts]


def _dead_letters(files: list[RowFile]) -> Rows:
    """As they are read today: a version that had fewer columns may have decided them, and those are null then."""
    names = DEAD_LETTER_SCHEMA.names
    if all(set(names) <= set(pq.read_schema(file.path).names) for file in files):
        return FileRows(DEAD_LETTER_SCHEMA, files)
    return TableRows(DEAD_LETTER_SCHEMA, FileRows(DEAD_LETTER_SCHEMA, files).table())


def _checked(found: _Decision, batch: Batch, schema: StructType, *, grows: bool) -> StructType:
    """The columns that were decided, if they are the declared ones."""
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
            f"it up to {end}: the checkpoint's folder offsets was restored or lost its last file. Restore that file, "
            f"or begin with an empty checkpoint and sink"
        )
