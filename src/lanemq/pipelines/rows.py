"""The rows that a stage hands to a sink.

Invariant: rows are computed before a sink sees them. A data frame that a sink evaluated twice could run the user's
code twice and give different rows the second time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

DEAD_LETTER_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("broker", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("message_id", StringType()),
        StructField("store_timestamp", TimestampType()),
        StructField("reason", StringType()),
        StructField("attempts", IntegerType()),
        StructField("batch", LongType()),
        StructField("tags", StringType()),
        StructField("waits", BooleanType()),
    ]
)
"""The columns of a dead letter: enough to find the message, to read it and to try it again.

`waits` is true if the message was not given up: it cannot be decoded and waits in its key for an operator."""


class Rows(Protocol):
    """The rows of one batch."""

    @property
    def schema(self) -> StructType:
        """The columns."""

    def count(self) -> int:
        """The number of rows."""

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows as a data frame. A shuffle does not keep their order."""

    def table(self) -> pa.Table:
        """The rows as an Arrow table on the driver, for sinks with one connection."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A Parquet file with the rows of one shard, in order."""

    shard: str
    """The name of the queue, or of the share of the keys, within which rows are ordered; the same in every batch."""
    path: Path
    rows: int


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows in files that the driver and every executor can read; one file per shard, in order."""

    schema: StructType
    files: Sequence[RowFile]

    def count(self) -> int:
        return sum(file.rows for file in self.files)

    def frame(self, spark: SparkSession) -> DataFrame:
        if not self.files:
            return spark.createDataFrame([], self.schema)
        return spark.read.schema(self.schema).parquet(*(str(file.path) for file in self.files))

    def table(self) -> pa.Table:
        wanted = to_arrow_schema(self.schema, timezone="UTC")
        if not self.files:
            return wanted.empty_table()
        return pa.concat_tables([pq.read_table(file.path, schema=wanted) for file in self.files])


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows in the driver's memory, such as one per key after a fold."""

    schema: StructType
    rows: pa.Table

    def count(self) -> int:
        return int(self.rows.num_rows)

    def frame(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(self.rows, self.schema)

    def table(self) -> pa.Table:
        return self.rows
