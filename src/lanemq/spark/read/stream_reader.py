"""`spark.readStream.format("lanemq")`: what Spark calls, in the driver and in executors.

The checkpoint is the truth: a batch is its start and end, and both can be read again after any failure. What a
broker stores as a group's offset follows behind. How a batch is chosen is `stream_driver`'s matter.
"""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa
from pyspark.sql.datasource import DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from lanemq.spark.columns.schema import arrow_schema, check_schema
from lanemq.spark.offsets import OffsetJson, from_json, to_json
from lanemq.spark.options import ReadOptions
from lanemq.spark.read.partition_reader import read_partition
from lanemq.spark.read.stream_driver import Driver


class LaneStreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    """What Spark calls. Everything that needs a connection waits in `_driver` until it is needed."""

    def __init__(self, options: ReadOptions, schema: StructType, checkpoint: str | None = None) -> None:
        self._options = options
        self._checkpoint = checkpoint
        self._schema = check_schema(schema)
        self._opened: Driver | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Executors get a copy without connections."""
        return {**self.__dict__, "_opened": None}

    @property
    def _driver(self) -> Driver:
        if self._opened is None:
            self._opened = Driver(self._options, self._checkpoint)
        return self._opened

    def initialOffset(self) -> OffsetJson:  # noqa: N802
        brokers = self._driver.brokers
        return to_json(brokers.positions(self._options.start, brokers.existing_bounds()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802
        if self._options.max_offsets is not None:
            return ReadMaxRows(self._options.max_offsets)
        return ReadAllAvailable() if self._options.max_bytes is None else ReadMaxBytes(self._options.max_bytes)

    def latestOffset(self, start: OffsetJson, limit: ReadLimit) -> OffsetJson:  # noqa: N802
        return to_json(self._driver.next_end(from_json(start), limit))

    def reportLatestOffset(self) -> OffsetJson | None:  # noqa: N802
        return to_json(self._driver.ends) if self._driver.ends else None

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802
        self._driver.stop_at_what_is_there()

    def partitions(self, start: OffsetJson, end: OffsetJson) -> Sequence[InputPartition]:
        return self._driver.partitions(from_json(start), from_json(end))

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return read_partition(partition, arrow_schema(self._schema))

    def commit(self, end: OffsetJson) -> None:
        self._driver.report_done(from_json(end))

    def stop(self) -> None:
        if self._opened is not None:
            self._opened.close()
            self._opened = None
