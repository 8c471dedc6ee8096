"""Units of work: what a checkpoint has of the last batch or retry pass, recorded before a sink has any of it.

The record is one entry of the run log, so it is complete or not there, and only the newest run writes it. It has the
stage's state before the unit and after it. Which of the two counts is known without another record:

- One commit follows, of a sink that has all of a unit or nothing: the state after it counts if the sink has the unit.
  Otherwise nothing of the unit has happened, and it is computed again.
- More commits follow, such as dead letters and rows: the unit is *decided*. The record names its rows, which are in
  files of their own, and its state counts from now on. A step may call a service and answer differently the second
  time, so an attempt that died between two commits is completed as it was decided, or a message would be in both tables
  or in neither. When the sinks have all of it, the record says so.
- No commit follows, as after a retry pass without rows: the record is all there is.

    lanemq/log/…                  the record
    lanemq/decided/<folder>/…     the rows of a decided unit; links to the stage's files where possible

Invariants: a decided unit is completed and never computed again; it is never used for other messages, which Spark plans
under the same number if its own record of the batch was lost; the number of a unit that counts is given to no other.
"""

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

import msgspec
import pyarrow.parquet as pq
from msgspec.structs import replace
from pyspark.sql.types import StructType

from lanemq.files import Output, StorePath, arrow_source, copy, remove_tree, sync
from lanemq.model.errors import StateLost, UsageError
from lanemq.pipelines.batches import Batch, run_name
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.checkpoint.unit_record import UNIT, DecidedFile, DecidedRows, UnitRecord, pack_unit, unit_in
from lanemq.pipelines.ports import DEAD_LETTER_SCHEMA, FileRows, Results, RowFile, Rows, TableRows
from lanemq.spark.offsets import OffsetJson

MAX_CONCURRENT_SYNCS: Final = 16


class Units:
    """The last unit of work of a checkpoint, as the run that uses it continues from it."""

    def __init__(self, log: RunLog, folder: StorePath, *, grows: bool = False) -> None:
        """`folder`: of the rows of decided units. `grows`: the stage adds columns, so there may be more than declared.

        Until `open`, nothing is known of former runs.
        """
        self._log = log
        self._folder = folder
        self._grows = grows
        self.pending: UnitRecord | None = None
        """The unit that is decided, if the sinks may not have all of it."""
        self.last: int | None = None
        """The number of the last unit that counts; None if none was recorded."""
        self.state = ""
        """The stage's state after it; empty before the first unit that has one."""

    def open(self, is_over: Callable[[UnitRecord], bool]) -> None:
        """Find out which state counts. `is_over`: whether the sink has the unit, or Spark will not ask for it again."""
        unit = unit_in(self._log.records)
        if unit is not None:
            over = is_over(unit)
            self.last, self.state = (unit.number, unit.state) if over or unit.counts else (unit.previous, unit.before)
            self.pending = None if unit.decided is None else unit
            if over:
                self.complete()
        self._remove_unused()

    def _remove_unused(self) -> None:
        """Remove rows that are of no decided unit. A newer run may have begun, whose rows must stay."""
        used = "" if self.pending is None or self.pending.decided is None else self.pending.decided.folder
        there = list(self._folder.iterdir()) if self._folder.is_dir() else []
        self._log.refuse_if_replaced()  # so no newer run had begun when the folder was listed
        for path in there:
            if path.name != used:
                remove_tree(path)

    def record(self, batch: Batch, results: Results, end: OffsetJson, *, decide: bool, whole: bool) -> Results:
        """Record a unit, if there is something to record; returns its results, in files that stay if it is decided.

        `end`: where Spark planned the batch to end. `whole`: no commit follows.
        """
        if not decide and not results.state:
            return results
        decided = self._write_rows(batch, results) if decide else None
        state = results.state or self.state
        unit = UnitRecord(batch.number, batch.epoch, self.state, state, self.last, end, decided, whole)
        # If this fails, the rows stay: the entry may be there nevertheless, and the next run completes the unit.
        self._log.record(UNIT, pack_unit(unit))
        self.last, self.state = unit.number, state
        if decided is None:
            return results
        self.pending = unit
        return self.decided(batch, results.outputs.schema, end)

    def decided(self, batch: Batch, schema: StructType, end: OffsetJson) -> Results:
        """The results of the decided unit. `StateLost` if it concerns other messages than Spark planned."""
        unit = self.pending
        assert unit is not None
        assert unit.decided is not None
        schema = _checked(unit.decided, batch, unit.epoch, schema, grows=self._grows)
        _check_range(unit, batch, end)
        folder, rows = self._folder / unit.decided.folder, unit.decided
        return Results(
            outputs=FileRows(schema, _files(folder, rows.outputs), rows.emptied_below),
            dead_letters=_dead_letters(_files(folder, rows.dead)) if rows.dead else None,
            counts=rows.counts,
            state=unit.state,
            late=rows.late,
        )

    def complete(self) -> None:
        """Record that the sinks have all of a decided unit, and remove its rows."""
        unit = self.pending
        if unit is None or unit.decided is None:
            return
        self._log.record(UNIT, pack_unit(replace(unit, before="", decided=None, whole=True)))
        self.pending = None
        remove_tree(self._folder / unit.decided.folder)

    def _write_rows(self, batch: Batch, results: Results) -> DecidedRows:
        """Put the rows of a unit into files that stay until it is completed, and bring them to the disk."""
        own = self._folder / f"{batch.number}-{run_name(batch.epoch)}-{os.urandom(4).hex()}"
        own.mkdir(parents=True)
        try:
            outputs = tuple(_keep(results.outputs, own, "rows"))
            dead = () if results.dead_letters is None else tuple(_keep(results.dead_letters, own, "dead"))
            _sync_all([own / part.name for part in (*outputs, *dead)])
            for place in (own, self._folder, self._folder.parent):
                sync(place)
        except BaseException:
            remove_tree(own)
            raise
        return DecidedRows(
            folder=own.name,
            columns=results.outputs.schema.json(),
            outputs=outputs,
            dead=dead,
            counts=dict(results.counts),
            late=results.late,
            emptied_below=results.outputs.emptied_below,
        )


def _keep(rows: Rows, folder: StorePath, word: str) -> Iterator[DecidedFile]:
    """Link or copy the rows to the unit's folder, because the stage may remove its files at any time."""
    if not isinstance(rows, FileRows):
        if rows.count():
            path = folder / f"{word}.parquet"
            output = Output(path)
            pq.write_table(rows.table(), output.target)
            output.close()
            yield DecidedFile("driver", path.name, rows.count())
        return
    for index, file in enumerate(file for file in rows.files if file.rows):
        path = folder / f"{word}-{index}.parquet"
        copy(file.path, path, link=True)
        yield DecidedFile(file.shard, path.name, file.rows)


def _sync_all(paths: Sequence[StorePath]) -> None:
    """Sync concurrently: a disk does many syncs in little more than the time of one."""
    with ThreadPoolExecutor(max(1, min(len(paths), MAX_CONCURRENT_SYNCS))) as pool:
        list(pool.map(sync, paths))


def _files(folder: StorePath, parts: Sequence[DecidedFile]) -> list[RowFile]:
    return [RowFile(part.shard, folder / part.name, part.rows) for part in parts]


def _dead_letters(files: list[RowFile]) -> Rows:
    """The dead letters with all columns of `DEAD_LETTER_SCHEMA`; those that a file does not have are null."""
    names = DEAD_LETTER_SCHEMA.names
    if all(set(names) <= set(pq.read_schema(arrow_source(file.path)).names) for file in files):
        return FileRows(DEAD_LETTER_SCHEMA, files)
    return TableRows(DEAD_LETTER_SCHEMA, FileRows(DEAD_LETTER_SCHEMA, files).table())


def _checked(rows: DecidedRows, batch: Batch, epoch: int, schema: StructType, *, grows: bool) -> StructType:
    """The decided columns; `UsageError` if they are not the declared ones."""
    decided: StructType = StructType.fromJson(msgspec.json.decode(rows.columns))
    kept = [field for field in decided if field.name in schema.names] if grows else decided.fields
    if kept != schema.fields:
        raise UsageError(
            f"{batch} was decided by run {run_name(epoch)} with other columns, and only part of it was committed: "
            f"start the pipeline as it was declared then until the batch is done, and change its outputs after that"
        )
    return decided


def _check_range(unit: UnitRecord, batch: Batch, end: OffsetJson) -> None:
    if unit.end != end:
        raise StateLost(
            f"{batch} was decided by run {run_name(unit.epoch)} for messages up to {unit.end}, and Spark has planned "
            f"it up to {end}: the checkpoint's folder `offsets` was restored or lost its last file. Restore that file, "
            f"or begin with an empty checkpoint and sink"
        )
