"""Large batches of `LastState`: executors fold the rows of all queues, each task those of one share of the keys.

A first job folds each queue for itself. If two queues have rows of one key, only a place that sees both can choose, or
refuse the batch. For a small batch this is the driver. For a large one it is a second job, so that the rows do not pass
through the driver: the first job writes one file for each share, and a task of the second one reads its share of every
queue.

Invariants: all rows of a key are in one share, whichever queue they come from. The rows of the shares together are
those that the driver would have chosen.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final
from uuid import uuid4
from zlib import crc32

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from pyarrow import feather
from pyspark.sql import SparkSession

from lanemq.files import Output, StorePath, arrow_source
from lanemq.model.errors import OrderError
from lanemq.pipelines.parquet_encoding import dictionary_columns
from lanemq.pipelines.ports import DELETED, RowFile
from lanemq.pipelines.stages.cdc.fold import newest_of_queues
from lanemq.pipelines.stages.cdc.truncation import Bound, drop_older, refuse_unordered

SHARES: Final = 16
DIVIDED_FROM: Final = 25_000
"""Rows of a queue that are written in shares. Fewer are one file, which every task reads."""
FOLDED_BY_TASKS_FROM: Final = 100_000
"""Rows of a batch, over all queues, that a second job folds. Below this the job takes longer than the driver."""
SUMMARY: Final = "summary string"
"""The schema of what a task returns."""


class QueueRows(msgspec.Struct, frozen=True):
    """Where the rows of one queue are."""

    name: str
    """The name of the file, or of the files with the number of the share after it."""
    rows: int
    divided: bool = False


def write_rows(rows: pa.Table, folder: StorePath, keys: Sequence[str]) -> QueueRows:
    """Write the rows of one queue, many of them in shares."""
    written = QueueRows(f"{uuid4().hex}.rows", rows.num_rows, rows.num_rows >= DIVIDED_FROM)
    if not written.divided:
        write_table(rows, folder / written.name)
        return written
    numbers = shares_of(rows, keys)
    for share in range(SHARES):
        write_table(rows.filter(pc.equal(numbers, share)), folder / f"{written.name}{share}")
    return written


def read_rows(folder: StorePath, written: QueueRows) -> pa.Table:
    """All rows of a queue."""
    if not written.divided:
        return read_table(folder / written.name)
    return pa.concat_tables([read_table(folder / f"{written.name}{share}") for share in range(SHARES)])


def read_share(folder: StorePath, written: QueueRows, share: int, keys: Sequence[str]) -> pa.Table:
    """The rows of a queue whose keys are in one share."""
    if written.divided:
        return read_table(folder / f"{written.name}{share}")
    rows = read_table(folder / written.name)
    return rows.filter(pc.equal(shares_of(rows, keys), share))


def shares_of(rows: pa.Table, keys: Sequence[str]) -> pa.Array:
    """The share of each row, by a hash of its key that is the same in every process."""
    sums = [0] * rows.num_rows
    for key in keys:
        column = rows[key]
        texts = column if pa.types.is_binary(column.type) else column.cast(pa.string()).cast(pa.binary())
        sums = [crc32(value, before) for value, before in zip(texts.to_pylist(), sums, strict=True)]
    return pa.array([each % SHARES for each in sums], pa.int32())


def write_table(table: pa.Table, path: StorePath) -> None:
    output = Output(path)
    feather.write_feather(table, output.target, compression="lz4")
    output.close()


def read_table(path: StorePath) -> pa.Table:
    return feather.read_table(arrow_source(path), memory_map=False)


class _ShareSummary(msgspec.Struct):
    """What a task reports about its share."""

    share: int
    name: str = ""
    rows: int = 0
    deletes: int = 0
    refused: str = ""
    """Why the order of the share's changes cannot be known."""


@dataclass(frozen=True, slots=True)
class ShareTask:
    """The task for `mapInArrow`. A repeated task writes files with other names; only summaries that arrive count."""

    source: StorePath
    """The folder of the queues' rows."""
    target: StorePath
    """The folder of the shares' rows."""
    queues: tuple[tuple[str, QueueRows, Bound], ...]
    """The name of each queue, its rows, and the sequence of its newest truncation."""
    keys: tuple[str, ...]
    schema: pa.Schema
    older_than: Bound
    """Rows up to this sequence were deleted by a truncation."""

    def __call__(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        numbers = [share for batch in batches for share in batch.column(0).to_pylist()]
        if numbers:
            yield pa.record_batch({"summary": [msgspec.json.encode(self.fold(share)).decode() for share in numbers]})

    def fold(self, share: int) -> _ShareSummary:
        parts = [(queue, read_share(self.source, rows, share, self.keys), bound) for queue, rows, bound in self.queues]
        try:
            rows = fold_queues(parts, self.keys, self.schema, self.older_than)
        except OrderError as error:
            return _ShareSummary(share, refused=str(error))
        if not rows.num_rows:
            return _ShareSummary(share)
        name = f"{share}-{uuid4().hex}.parquet"
        output = Output(self.target / name)
        pq.write_table(rows, output.target, use_dictionary=dictionary_columns(rows))
        output.close()
        return _ShareSummary(share, name, rows.num_rows, count_deletes(rows))


def fold_queues(
    queues: Sequence[tuple[str, pa.Table, Bound]], keys: Sequence[str], schema: pa.Schema, older_than: Bound
) -> pa.Table:
    """The newest row of each key over all queues; `OrderError` if nothing says which it is."""
    changes = [(queue, rows) for queue, rows, _ in queues]
    refuse_unordered(changes, {older_than, *(bound for _, _, bound in queues)})
    chosen = newest_of_queues(changes, keys)
    return drop_older(chosen.select(schema.names).cast(schema), older_than)


def count_deletes(rows: pa.Table) -> int:
    return pc.sum(rows[DELETED]).as_py() or 0


def fold_shares(spark: SparkSession, task: ShareTask) -> tuple[list[RowFile], int]:
    """Run the task for every share; returns the files of rows and how many rows are deletions."""
    task.target.mkdir(parents=True, exist_ok=True)
    found = spark.range(0, SHARES, 1, SHARES).mapInArrow(task, SUMMARY).collect()
    summaries = [msgspec.json.decode(row.summary, type=_ShareSummary) for row in found]
    for each in sorted(summaries, key=lambda each: each.share):
        if each.refused:
            raise OrderError(each.refused)
    files = [RowFile(f"share-{each.share}", task.target / each.name, each.rows) for each in summaries if each.rows]
    return files, sum(each.deletes for each in summaries)
