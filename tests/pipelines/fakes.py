"""A stage and a sink that record their calls and fail where a test wants it."""

from collections.abc import Callable, Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql.types import IntegerType, LongType, StringType, StructField, StructType

from lanemq.model.errors import SinkFenced
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import Append, Merge, Results, Sink, SinkRun, Stage, TableRows

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("key", StringType()),
    ]
)


def rows_of(*rows: tuple[str, int, int, str]) -> TableRows:
    columns = list(zip(*rows, strict=True)) if rows else [(), (), (), ()]
    kinds = (pa.string(), pa.int32(), pa.int64(), pa.string())
    table = pa.table(
        {name: pa.array(each, kind) for name, each, kind in zip(SCHEMA.names, columns, kinds, strict=True)}
    )
    return TableRows(SCHEMA, table)


class FakeStage(Stage):
    """Passes every message on. `steps` records what happened and is shared with the sinks."""

    columns: tuple[str, ...] = ("topic", "broker", "queue_id", "queue_offset", "key", "value")
    schema = SCHEMA
    how: Append | Merge = Append()

    def __init__(self, steps: list[str] | None = None) -> None:
        self.steps = steps if steps is not None else []
        self.waiting: list[Results] = []
        """The results of the next retry passes."""
        self.put_off = 0.0
        """Seconds by which they are put off."""
        self.dead: TableRows | None = None
        self.before_run: Callable[[Batch], None] = lambda batch: None
        self.place: Path | None = None

    def open(self, spark: Any, place: Path) -> None:
        self.place = place

    def process(self, messages: Any, batch: Batch) -> Results:
        self.steps.append(f"run {batch.number}")
        self.before_run(batch)
        found = [] if messages is None else [tuple(row) for row in messages.select(*SCHEMA.names).collect()]
        return Results(rows_of(*found), self.dead, {"events": len(found)})  # type: ignore[arg-type]

    def due(self, now: datetime) -> float | None:
        return self.put_off if self.waiting else None

    def process_retry_pass(self, batch: Batch) -> Results | None:
        self.steps.append(f"pass {batch.number}")
        self.before_run(batch)
        return self.waiting.pop(0) if self.waiting else None

    def finished(self, batch: Batch) -> None:
        self.steps.append(f"finished {batch.number}")


class FakeSink(Sink):
    """A table and a ledger in memory, kept across runs."""

    def __init__(self, steps: list[str] | None = None, word: str = "sink") -> None:
        self.steps = steps if steps is not None else []
        self.word = word
        self.rows: list[tuple[Any, ...]] = []
        self.numbers: list[int] = []
        self.query, self.epoch = "", 0
        self.opened = 0
        self.numbers_known = True
        """Whether `applied` can tell, unlike for a topic."""
        self.before_write: Callable[[Batch], None] = lambda batch: None
        self.after_write: Callable[[Batch], None] = lambda batch: None

    def open(self, run: SinkRun) -> None:
        self.query, self.epoch = run.query, run.epoch
        self.opened += 1

    def applied(self, query: str, settings: Mapping[str, str]) -> int | None:
        return max(self.numbers, default=None) if self.numbers_known else None

    def write(self, rows: Any, batch: Batch) -> bool:
        assert batch.query == self.query
        self.before_write(batch)
        if batch.epoch < self.epoch:
            raise SinkFenced(f"{batch}: epoch {self.epoch} writes now")
        if batch.number in self.numbers:
            return False
        self.steps.append(f"{self.word} {batch.number}")
        self.rows += [tuple(row.values()) for row in rows.table().to_pylist()]
        self.numbers.append(batch.number)
        self.after_write(batch)
        return True

    def close(self) -> None:
        self.opened -= 1
