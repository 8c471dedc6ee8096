"""The rows that a stage hands to a sink: computed once, read in whatever form the sink wants.

The rule guarded here: rows are fixed before a sink sees them. A data frame that a sink evaluated twice could run the
user's code twice, and give different rows the second time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import StructType


class Rows(Protocol):
    """Rows of one batch."""

    @property
    def schema(self) -> StructType:
        """Their columns."""

    def count(self) -> int:
        """How many there are."""

    def frame(self, spark: SparkSession) -> DataFrame:
        """As a data frame, in no order that a shuffle would keep."""

    def table(self) -> pa.Table:
        """As an Arrow table on the driver: for sinks with one connection."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A Parquet file with the rows of one shard, in order."""

    shard: str
    """What the rows' order belongs to: a queue, or a share of the keys. The same in every batch."""
    path: Path
    rows: int


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows that tasks wrote to files which every executor and the driver can read; one file per shard, in order."""

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
    """Rows that are on the driver already, such as one per key after a fold."""

    schema: StructType
    rows: pa.Table

    def count(self) -> int:
        return int(self.rows.num_rows)

    def frame(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(self.rows, self.schema)

    def table(self) -> pa.Table:
        return self.rows
