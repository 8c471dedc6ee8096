"""Decisions: the rows and the state of a batch, on disk before the first of two commits.

    decided/<number>/decision.json    the run that decided, the stage's state after the batch, the files and their rows
    decided/<number>/...              the files of outputs and dead letters; links to the stage's files where possible

An object store renames no folder. There the files stay in a folder of their own, and a fenced file names it:

    decided/<number>                  as decision.json
    decided/.<number>-<epoch>-.../    the files

A step may call a service and answer differently the second time. Dead letters and outputs are two commits, so an
attempt that died between them must be completed as it was, or a message is in both tables or in neither.

Invariants: of all attempts of a batch the first that is in place counts, for every run; a decision is
complete or not there; it is kept until Spark will not ask for the batch again; it is never used for other messages,
which Spark plans under the same number if its own record of the batch was lost.
"""

import os
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
import pyarrow.parquet as pq
from pyspark.sql.types import StructType

from lanemq.files import Output, StorePath, arrow_source, can_rename, copy, remove_tree, sync, write_durably
from lanemq.model.errors import StateLost, UsageError
from lanemq.pipelines.batches import Batch, run_name
from lanemq.pipelines.checkpoint.fencing import Write, read_fenced_json, remove_fenced
from lanemq.pipelines.ports import DEAD_LETTER_SCHEMA, FileRows, Results, RowFile, Rows, TableRows
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
    late: frozenset[tuple[str, str, int, int]] = frozenset()
    emptied_below: int | str | None = None
    folder: str = ""
    """The folder of the files, if it is not the decision's own."""


class Decisions:
    """The decisions of one checkpoint that may still be needed; usually none, or the last one."""

    def __init__(self, folder: StorePath, *, grows: bool = False, write: Write = write_durably) -> None:
        """`grows`: the stage adds columns, so a decision may have more of them than are declared.

        `write`: writes a fenced file.
        """
        self._folder = folder
        self._grows = grows
        self._write = write
        self._renames = can_rename(folder)

    def open(self) -> None:
        """Remove what a crash left of an unfinished decision."""
        used = set() if self._renames else {self._read(number).folder for number in self.numbers()}
        for path in self._folder.glob(".*") if self._folder.is_dir() else ():
            if path.name not in used:
                remove_tree(path)

    def find(self, batch: Batch, schema: StructType, end: OffsetJson) -> Results | None:
        """What an earlier attempt of the batch decided; None if nothing was committed, so the stage may run.

        `end`: where Spark planned the batch to end. `StateLost` if the decision concerns another range.
        """
        folder = self._folder / str(batch.number)
        if not folder.is_dir():
            return None
        found = self._read(batch.number)
        folder = self._folder / found.folder if found.folder else folder
        schema = _checked(found, batch, schema, grows=self._grows)
        _check_range(found, batch, end)
        return Results(
            outputs=FileRows(schema, _files(folder, found.outputs), found.emptied_below),
            dead_letters=_dead_letters(_files(folder, found.dead)) if found.dead else None,
            counts=found.counts,
            state=found.state,
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
                late=results.late,
                emptied_below=results.outputs.emptied_below,
                folder="" if self._renames else own.name,
            )
            self._put(decision, own)
        except BaseException:
            remove_tree(own)
            raise
        found = self.find(batch, schema, end)
        assert found is not None, "it was put in place, or was there"
        return found

    def _put(self, decision: _Decision, own: StorePath) -> None:
        content, place = msgspec.json.encode(decision), self._folder / str(decision.number)
        if not self._renames:
            # Only one run may write fenced files, and it has looked for a decision before.
            self._write(place, content)
            return
        write_durably(own / _FILE, content)
        _sync_all([own / part.name for part in (*decision.outputs, *decision.dead)])
        try:
            own.rename(place)
        except OSError:
            if not place.is_dir():
                raise
            remove_tree(own)
        sync(self._folder)

    def _read(self, number: int) -> _Decision:
        path = self._folder / str(number)
        path = path / _FILE if self._renames else path
        try:
            return read_fenced_json(path, _Decision)
        except FileNotFoundError:
            raise StateLost(f"{path} is missing: the checkpoint's folder was changed; restore it from a copy") from None

    def numbers(self) -> list[int]:
        """The numbers of decided batches."""
        return numbers_in(self._folder)

    def forget(self, number: int) -> None:
        """Remove a decision. It is renamed first, so that half a decision never looks like one."""
        place = self._folder / str(number)
        if self._renames:
            gone = self._folder / f".{number}-{os.urandom(4).hex()}"
            place.rename(gone)
        else:
            gone = self._folder / self._read(number).folder
            remove_fenced(place)
        remove_tree(gone)


def _keep(rows: Rows, folder: StorePath, word: str) -> Iterator[_Part]:
    """Link or copy the rows to the decision's folder, because the stage may remove its files at any time."""
    if not isinstance(rows, FileRows):
        if rows.count():
            path = folder / f"{word}.parquet"
            output = Output(path)
            pq.write_table(rows.table(), output.target)
            output.close()
            yield _Part("driver", path.name, rows.count())
        return
    for index, file in enumerate(file for file in rows.files if file.rows):
        path = folder / f"{word}-{index}.parquet"
        copy(file.path, path, link=True)
        yield _Part(file.shard, path.name, file.rows)


def _sync_all(paths: Sequence[StorePath]) -> None:
    """Sync concurrently: a disk does many syncs in little more than the time of one."""
    with ThreadPoolExecutor(max(1, min(len(paths), MAX_CONCURRENT_SYNCS))) as pool:
        list(pool.map(sync, paths))


def _files(folder: StorePath, parts: Sequence[_Part]) -> list[RowFile]:
    return [RowFile(part.shard, folder / part.name, part.rows) for part in parts]


def _dead_letters(files: list[RowFile]) -> Rows:
    """The dead letters with all columns of `DEAD_LETTER_SCHEMA`; those that a file does not have are null."""
    names = DEAD_LETTER_SCHEMA.names
    if all(set(names) <= set(pq.read_schema(arrow_source(file.path)).names) for file in files):
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


def numbers_in(folder: StorePath) -> list[int]:
    """The numbers of the decided batches in a folder."""
    paths = folder.iterdir() if folder.is_dir() else ()
    return sorted(int(path.name) for path in paths if path.name.isdecimal())
