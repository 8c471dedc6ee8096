"""`spark.readStream.format("lanemq")`: the object that Spark calls, in the driver and in executors.

Executors import this module for every worker process, so what only the driver needs is imported by its first call.
"""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.types import StructType

from lanemq.spark.columns import arrow_schema, check_schema
from lanemq.spark.offsets import OffsetJson, created_in, from_json, least_tasks_in, stored_in, to_json
from lanemq.spark.options import ReadOptions
from lanemq.spark.read.partition_reader import read_partition
from lanemq.spark.versions import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

if TYPE_CHECKING:
    from lanemq.spark.read.stream_driver import StreamDriver


class LaneStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """The object that Spark calls. It opens connections only when the first call needs them."""

    def __init__(self, options: ReadOptions, schema: StructType, checkpoint: str | None = None) -> None:
        self._options = options
        self._checkpoint = checkpoint
        self._schema = check_schema(schema)
        self._opened: StreamDriver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors get a copy without connections."""
        return {**self.__dict__, "_opened": None}

    @property
    def _driver(self) -> "StreamDriver":
        if self._opened is None:
            from lanemq.spark.read.stream_driver import StreamDriver

            self._opened = StreamDriver(self._options, self._checkpoint)
        return self._opened

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        from lanemq.spark.parallelism import warn_if_too_few_queues

        brokers = self._driver.brokers
        bounds = brokers.existing_bounds()
        warn_if_too_few_queues(self._options, len(bounds))
        positions = brokers.positions(self._options.start, bounds)
        return to_json(positions, brokers.created, self._driver.least_tasks, brokers.stored)

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: OffsetJson | None = None, limit: ReadLimit | None = None) -> OffsetJson:  # noqa: N802
        """The end of the next batch. PySpark before 4.2 gives neither start nor limit."""
        if start is None or limit is None:
            return self._driver.all_available()
        driver, created, before, stored = self._driver, created_in(start), from_json(start), stored_in(start)
        end = driver.next_end(before, limit, created, stored)
        # Spark takes another text for new data, so the number of tasks and the newest messages change only with a
        # position. The message of an unchanged position stays, because it shows that the log is the same.
        least = least_tasks_in(start) if end == before else driver.least_tasks
        moved = {queue: last for queue, last in driver.brokers.stored.items() if end.get(queue) != before.get(queue)}
        unmoved = {queue: last for queue, last in stored.items() if end.get(queue) == before.get(queue)}
        return to_json(end, created | driver.brokers.created, least, unmoved | moved)

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        return to_json(self._driver.ends, self._driver.brokers.created) if self._driver.ends else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.stop_at_current_end()

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        return self._driver.partitions(
            from_json(start), from_json(end), created_in(end), created_in(start), least_tasks_in(end), stored_in(start)
        )

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, arrow_schema(self._schema))

    def commit(self, end: OffsetJson) -> None:
        self._driver.report_done(from_json(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
