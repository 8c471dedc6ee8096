"""Drives a reader as Spark's engine does, without a JVM: offsets in a log, batches in order.

The order of calls was recorded with PySpark 4.3: `latestOffset` (only when the batch before is finished),
`partitions`, `read` in tasks, `commit`.
"""

import json
import pickle
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from lanemq import Producer
from lanemq.spark.columns import COLUMNS, select_columns
from lanemq.spark.options import parse_read_options
from lanemq.spark.read.stream_reader import LaneStreamReader
from lanemq.spark.versions import ReadAllAvailable, ReadLimit

Row = dict[str, Any]


def send(address: str, topic: str, values: Sequence[int], **extra: Any) -> None:
    """Sends one message per number, with seven keys."""
    with Producer(address) as producer:
        futures = [producer.submit(topic, value, key=f"key-{value % 7}", **extra) for value in values]
        for future in futures:
            future.result(60)


class Checkpoint:
    """Spark's checkpoint: the planned ends, and the number of finished batches."""

    def __init__(self) -> None:
        self.ends: list[str] = []
        self.finished = 0


class Query:
    """One run of a streaming query. `checkpoint` outlives it."""

    def __init__(self, checkpoint: Checkpoint | None = None, columns: Sequence[str] = (), **options: object) -> None:
        texts = {name: str(value) for name, value in options.items()}
        schema = select_columns(columns) if columns else COLUMNS
        self.reader = LaneStreamReader(parse_read_options(texts, streaming=True), schema)
        self.checkpoint = checkpoint or Checkpoint()
        if not self.checkpoint.ends:
            try:
                self.checkpoint.ends.append(json.dumps(self.reader.initialOffset()))
            except BaseException:
                self.stop()
                raise

    def plan(self, limit: ReadLimit | None = None) -> bool:
        """Writes the next end to the log; false if there is nothing to do."""
        if len(self.checkpoint.ends) > self.checkpoint.finished + 1:
            return True  # planned by a run that did not finish it
        start = self.checkpoint.ends[-1]
        end = json.dumps(self.reader.latestOffset(json.loads(start), limit or self.reader.getDefaultReadLimit()))
        if end == start:
            return False
        self.checkpoint.ends.append(end)
        return True

    def partitions(self) -> Sequence[Any]:
        at = self.checkpoint.finished
        start, end = (json.loads(text) for text in self.checkpoint.ends[at : at + 2])
        return self.reader.partitions(start, end)

    def read(self, partitions: Sequence[Any]) -> list[Row]:
        """Reads on a pickled copy, as executors do."""
        copy = pickle.loads(pickle.dumps(self.reader))  # noqa: S301
        return [row for each in partitions for batch in copy.read(each) for row in batch.to_pylist()]

    def finish(self) -> None:
        self.checkpoint.finished += 1
        self.reader.commit(json.loads(self.checkpoint.ends[self.checkpoint.finished]))

    def batch(self, limit: ReadLimit | None = None) -> list[Row]:
        """One whole batch; empty if there is nothing to do."""
        if not self.plan(limit):
            return []
        rows = self.read(self.partitions())
        self.finish()
        return rows

    def everything(self) -> list[Row]:
        """Batches until nothing is left."""
        rows: list[Row] = []
        while self.plan(ReadAllAvailable()):
            rows += self.read(self.partitions())
            self.finish()
        return rows

    def stop(self) -> None:
        self.reader.stop()

    def __enter__(self) -> "Query":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()


def places(rows: Sequence[Row]) -> list[tuple[int, int]]:
    return [(row["queue_id"], row["queue_offset"]) for row in rows]


def values(rows: Sequence[Row]) -> list[int]:
    return sorted(int(row["value"]) for row in rows)


def until(true: Callable[[], object], seconds: float = 60.0) -> None:
    """Waits until `true` returns a true value."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "the condition did not become true"
        threading.Event().wait(0.02)
