"""`format("lanemq")`: what Spark asks for by name. Options are checked here, before anything runs."""

import logging
import sys
from typing import cast

from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lanemq.model.errors import InvalidOption
from lanemq.spark.columns.schema import COLUMNS, some_columns
from lanemq.spark.group.ending import leave_on_sigterm
from lanemq.spark.options import parse_read_options
from lanemq.spark.read.batch_reader import LaneBatchReader
from lanemq.spark.read.stream_reader import LaneStreamReader
from lanemq.spark.session import other_python
from lanemq.spark.worker_log import log_in_worker
from lanemq.spark.write.writer import LaneBatchWriter, LaneStreamWriter, parse_write_options

log = logging.getLogger(__name__)

FORMAT = "lanemq"


class LaneDataSource(DataSource):
    """Reads topics into rows and writes rows into topics."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        columns = parse_read_options(self.options, streaming=None).columns
        return some_columns(columns) if columns else COLUMNS

    def reader(self, schema: StructType) -> LaneBatchReader:
        return LaneBatchReader(parse_read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> LaneStreamReader:  # noqa: N802
        log_in_worker()
        leave_on_sigterm()
        options = parse_read_options(self.options, streaming=True)
        return LaneStreamReader(options, schema, self.options.get("checkpointLocation"))

    def writer(self, schema: StructType, overwrite: bool) -> LaneBatchWriter:
        if overwrite:
            raise InvalidOption("mode: a topic cannot be overwritten, only appended to; use mode('append')")
        return LaneBatchWriter(parse_write_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> LaneStreamWriter:  # noqa: N802
        return LaneStreamWriter(parse_write_options(self.options, schema))


def register(spark: SparkSession) -> None:
    """Makes `format("lanemq")` known to this session."""
    trouble = other_python(spark.sparkContext.pythonExec, sys.executable)
    if trouble is not None:
        log.warning(trouble)
    spark.dataSource.register(cast(type[DataSource], LaneDataSource))
