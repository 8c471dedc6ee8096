"""The limit of a Python source in Spark: a source that has its rows before the query starts.

Each task yields the same few Arrow batches again and again. They have the columns and the messages of LaneMQ's source,
but there is no broker and nothing to decode. What remains is what Spark makes every Python source pay: the socket from
the Python worker into the JVM, and the rows that the JVM makes of columns. The driver's side of a stream imports
nothing of LaneMQ, so that its start costs what Spark's own modules cost.
"""

from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource, DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import SupportsTriggerAvailableNow
from pyspark.sql.types import StructType

from benchmarks.peers.order import Messages, Numbered

FORMAT = "prebuilt"
TASKS = 4
"""As many as the topics of the other sources have queues."""
BATCH_BYTES = 1024 * 1024
MAX_BATCH_ROWS = 4096
BATCHES = 8
"""Different batches. With fewer, Parquet would store their values once, as a dictionary, which it cannot do with real
messages."""
KEYS = 10_000


class Rows(InputPartition):
    """How many rows a task yields."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        self.count = count


@cache
def prebuilt(schema: pa.Schema, size: int) -> list[pa.RecordBatch]:
    """Batches with messages of `size` bytes, as the topics have them. A worker builds them once, in the warm-up."""
    rows = min(MAX_BATCH_ROWS, BATCH_BYTES // size)
    numbered = Numbered(KEYS, size)
    return [_batch(schema, numbered.messages(rows)) for _ in range(BATCHES)]


def _batch(schema: pa.Schema, messages: Messages) -> pa.RecordBatch:
    rows = len(messages)
    columns: dict[str, list[Any]] = {
        "topic": ["bench-lanemq-0-0"] * rows,
        "broker": ["lanemq"] * rows,
        "queue_id": [1] * rows,
        "queue_offset": list(range(rows)),
        "key": [key for key, _ in messages],
        "tags": [None] * rows,
        "value": [value for _, value in messages],
        "store_timestamp": [1_790_000_000_000_000 + row for row in range(rows)],
    }
    return pa.RecordBatch.from_arrays([pa.array(columns[each.name], each.type) for each in schema], schema=schema)


def repeated(partition: InputPartition, schema: StructType, size: int) -> Iterator[pa.RecordBatch]:
    """The rows of one task."""
    from lanemq.spark.columns import arrow_schema

    assert isinstance(partition, Rows)
    left = partition.count
    for batch in cycle(prebuilt(arrow_schema(schema), size)):
        if left <= batch.num_rows:
            yield batch.slice(0, left)
            return
        yield batch
        left -= batch.num_rows


def divided(count: int) -> list[Rows]:
    return [Rows(count * (task + 1) // TASKS - count * task // TASKS) for task in range(TASKS)]


class PrebuiltReader(DataSourceReader):
    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._count, self._size, self._schema = int(options["rows"]), int(options["size"]), schema

    def partitions(self) -> Sequence[InputPartition]:
        return divided(self._count)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return repeated(partition, self._schema, self._size)


class PrebuiltStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """All rows in the first batch."""

    def __init__(self, options: Mapping[str, str], schema: StructType) -> None:
        self._count, self._size, self._schema = int(options["rows"]), int(options["size"]), schema

    def initialOffset(self) -> dict[str, int]:  # noqa: N802
        return {"rows": 0}

    def latestOffset(self, start: Any = None, limit: Any = None) -> dict[str, int]:  # noqa: N802
        return {"rows": self._count}

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        pass

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> Sequence[InputPartition]:
        return divided(end["rows"] - start["rows"])

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return repeated(partition, self._schema, self._size)


class PrebuiltSource(DataSource):
    """`format("prebuilt")`, with the options `rows` and `size` (bytes of a value)."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        from lanemq.spark.columns import DEFAULT_COLUMNS

        return DEFAULT_COLUMNS

    def reader(self, schema: StructType) -> PrebuiltReader:
        return PrebuiltReader(self.options, schema)

    def streamReader(self, schema: StructType) -> PrebuiltStreamReader:  # noqa: N802
        return PrebuiltStreamReader(self.options, schema)


def register(spark: SparkSession) -> None:
    spark.dataSource.register(PrebuiltSource)
