"""One shard's part of a unit of work: its machine, its files of rows, its change.

The rule guarded here: rows and change are complete before the task says so. Rows go to a file of the attempt's own,
and the task's answer names it: of two attempts of a task, only the one that Spark took counts.
"""

import os
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self
from urllib.parse import quote

import pyarrow.parquet as pq
from pyspark.sql.pandas.types import to_arrow_schema

from lanemq.pipelines.rows import DEAD_LETTER_SCHEMA
from lanemq.pipelines.stages.transitions.machine import Run, ShardMachine
from lanemq.pipelines.stages.transitions.plan import Plan, Summary
from lanemq.pipelines.stages.transitions.row_shape import RowShape
from lanemq.pipelines.stages.transitions.rules import Rules
from lanemq.pipelines.stages.transitions.shard import PARKED_AT, Version
from lanemq.pipelines.stages.transitions.shard_cache import CACHE
from lanemq.pipelines.stages.transitions.state_files import ShardFiles

_ROWS_AT_ONCE: Final = 50_000
"""Rows that wait for the file: a row group."""


def work_folder(place: Path, number: int) -> Path:
    """Where the rows of a unit wait for the sinks."""
    return place / "work" / str(number)


class RowWriter:
    """A Parquet file that is there if there is anything in it."""

    def __init__(self, folder: Path, name: str, shape: RowShape) -> None:
        self._path = folder / f"{quote(name, safe='')}.{os.getpid()}-{os.urandom(4).hex()}.parquet"
        self._shape = shape
        self._file: pq.ParquetWriter | None = None
        self.rows = 0

    @property
    def name(self) -> str:
        """Without its folder."""
        return self._path.name

    def write(self, rows: list[tuple[Any, ...]]) -> None:
        if not rows:
            return
        if self._file is None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = pq.ParquetWriter(self._path, self._shape.schema, compression="snappy")
        self._file.write_table(self._shape.columns(rows))
        self.rows += len(rows)

    def close(self, *, keep: bool) -> None:
        if self._file is None:
            return
        self._file.close()
        if not keep:
            self._path.unlink(missing_ok=True)


class ShardWork:
    """Use it with `with`: an error leaves no file and nothing in memory."""

    def __init__(self, plan: Plan, rules: Rules, shard: str) -> None:
        self._plan = plan
        self._name = shard
        self._files = ShardFiles(plan.place, plan.query, shard)
        self._base = plan.versions.get(shard, Version())
        self._shard = CACHE.take(self._files, self._base)
        self.machine = ShardMachine(self._shard, rules, plan.wall)
        assert isinstance(rules.shape, RowShape)
        dead_shape = RowShape(to_arrow_schema(DEAD_LETTER_SCHEMA, timezone="UTC"))
        folder = work_folder(plan.place, plan.number)
        self._outputs = RowWriter(folder, shard, rules.shape)
        self._dead = RowWriter(folder, f"{shard}.dead", dead_shape)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        for writer in (self._outputs, self._dead):
            writer.close(keep=kind is None)

    def take(self, run: Run) -> None:
        self.machine.take(run)
        if len(self.machine.table.outputs) + len(self.machine.stopped.dead) >= _ROWS_AT_ONCE:
            self._flush()

    def finish(self) -> Summary:
        """Rows and change are on disk, the shard is in the cache."""
        change = self.machine.finish()
        self._flush()
        shard, meta, limits = self._shard, self._shard.meta, self._plan.spec.limits
        # A chain with more keys than the shard is longer to read than a snapshot; short ones are cheap anyway.
        snapshot = meta.chain >= limits.snapshot_every or (meta.chain > 4 and meta.chained_keys > 2 * len(shard.lanes))
        if snapshot:
            meta.chain = meta.chained_keys = 0
        shard.version = self._files.write_change(self._plan.number, self._base, change)
        if snapshot:
            self._files.write_snapshot(shard)
        CACHE.put(self._files, shard, limits.cache_keys_per_worker, limits.cache_bytes_per_worker)
        return self._summary(snapshot=snapshot)

    def _flush(self) -> None:
        table, number = self.machine.table, self._plan.number
        self._outputs.write(table.outputs)
        table.outputs = []
        rows = [
            (
                message.topic,
                message.broker,
                message.queue_id,
                message.offset,
                key,
                message.value,
                message.message_id,
                message.stored * 1_000,
                reason,
                attempts,
                number,
                message.tags,
                waits,
            )
            for message, key, reason, attempts, waits in self.machine.stopped.dead
        ]
        self._dead.write(rows)
        self.machine.stopped.dead = []

    def _summary(self, *, snapshot: bool) -> Summary:
        shard, meta = self._shard, self._shard.meta
        return Summary(
            shard=self._name,
            version=shard.version,
            snapshot=snapshot,
            keys=len(shard.lanes),
            waiting=len(meta.waiting),
            parked=sum(at == PARKED_AT for at in meta.waiting.values()),
            retry_at=meta.retry_at(),
            outputs=(self._outputs.name, self._outputs.rows),
            dead=(self._dead.name, self._dead.rows),
            counts=dict(self.machine.counts),
            late=self.machine.table.late,
        )
