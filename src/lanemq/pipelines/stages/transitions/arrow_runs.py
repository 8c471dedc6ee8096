"""Arrow batches to runs of one queue, as lists: each column is converted once, and only if it is read."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from lanemq.pipelines.stages.transitions.machine import Run, Stamps

SHARD = "_shard"
"""The column with a row's share of the keys, if shards are not queues."""


def runs(batch: pa.RecordBatch) -> Iterator[tuple[str, Run]]:
    """The shards of a batch's rows and their runs, in the order of the rows."""
    names = ["topic", "broker", "queue_id", *([SHARD] if SHARD in batch.schema.names else [])]
    for begin, end in pairwise(_borders(batch, names)):
        part = batch.slice(begin, end - begin)
        run = _run(part)
        yield (run.queue if len(names) == 3 else f"keys-{part.column(SHARD)[0].as_py()}"), run


def _borders(batch: pa.RecordBatch, names: list[str]) -> list[int]:
    """Where another queue or shard begins, with both ends."""
    rows = batch.num_rows
    if rows == 0:
        return []
    changes = np.zeros(rows - 1, dtype=bool)
    for name in names:
        column = batch.column(name)
        changes |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return [0, *(int(at) + 1 for at in np.flatnonzero(changes)), rows]


def _run(part: pa.RecordBatch) -> Run:
    return Run(
        topic=part.column("topic")[0].as_py(),
        broker=part.column("broker")[0].as_py(),
        queue_id=part.column("queue_id")[0].as_py(),
        offsets=part.column("queue_offset").to_numpy().tolist(),
        keys=part.column("key").to_pylist(),
        values=part.column("value").to_pylist(),
        tags=_optional(part, "tags"),
        stored=_millis(part.column("store_timestamp")),
        ids=_optional(part, "message_id"),
        stamps=_stamps(part),
    )


def _optional(part: pa.RecordBatch, name: str) -> list[Any]:
    """Columns that nobody needs but a step that reads them."""
    if name not in part.schema.names:
        return [None] * part.num_rows
    found: list[Any] = part.column(name).to_pylist()
    return found


def _millis(column: pa.Array) -> list[int]:
    times: list[int] = (column.cast(pa.int64()).fill_null(0).to_numpy() // 1_000).tolist()
    return times


def _stamps(part: pa.RecordBatch) -> Stamps | None:
    if "stamp" not in part.schema.names:
        return None
    column = part.column("stamp")
    if column.null_count == len(column):
        return None
    producers, epochs, sequences = (each.to_pylist() for each in column.flatten())
    return [
        None if who is None else (who, epoch, sequence)
        for who, epoch, sequence in zip(producers, epochs, sequences, strict=True)
    ]
