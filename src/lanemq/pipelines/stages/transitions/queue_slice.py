"""Consecutive messages of one queue, cut from Arrow batches. Each column is converted to a list once."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SHARD = "_shard"
"""The column with the shard of a row's key, if shards are not queues."""

Stamps: TypeAlias = list[tuple[str, int, int] | None]


class QueueSlice(NamedTuple):
    """Messages of one queue, in the order of their offsets; one list per column."""

    topic: str
    broker: str
    queue_id: int
    offsets: list[int]
    keys: list[str | None]
    values: list[bytes | None]
    tags: list[str | None]
    stored: list[int]
    ids: list[str | None]
    stamps: Stamps | None = None
    """Producer, epoch and sequence of each message; None if none of them has a stamp."""

    @property
    def queue(self) -> str:
        """The queue's name."""
        return f"{self.topic}/{self.broker}/{self.queue_id}"

    def without(self, dropped: set[int]) -> "QueueSlice":
        """The slice without the messages at these indices, and without stamps."""
        kept = [index for index in range(len(self.offsets)) if index not in dropped]
        columns = ([column[index] for index in kept] for column in self[3:9])
        return QueueSlice(self.topic, self.broker, self.queue_id, *columns)  # type: ignore[arg-type]


def queue_slices(batch: pa.RecordBatch) -> Iterator[tuple[str, QueueSlice]]:
    """The shard and the messages of each slice of a batch, in the order of the rows."""
    names = ["topic", "broker", "queue_id", *([SHARD] if SHARD in batch.schema.names else [])]
    for begin, end in pairwise(_borders(batch, names)):
        part = batch.slice(begin, end - begin)
        found = _queue_slice(part)
        yield (found.queue if len(names) == 3 else f"keys-{part.column(SHARD)[0].as_py()}"), found


def _borders(batch: pa.RecordBatch, names: list[str]) -> list[int]:
    """The rows where another queue or shard begins, with both ends of the batch."""
    rows = batch.num_rows
    if rows == 0:
        return []
    changes = np.zeros(rows - 1, dtype=bool)
    for name in names:
        column = batch.column(name)
        changes |= pc.not_equal(column[1:], column[:-1]).to_numpy(zero_copy_only=False)
    return [0, *(int(at) + 1 for at in np.flatnonzero(changes)), rows]


def _queue_slice(part: pa.RecordBatch) -> QueueSlice:
    return QueueSlice(
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
    """A column that only the user's step may read; Nones if the source leaves it out."""
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
        None if producer is None else (producer, epoch, sequence)
        for producer, epoch, sequence in zip(producers, epochs, sequences, strict=True)
    ]
