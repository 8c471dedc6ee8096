"""`format("lanemq")`: the data source that Spark looks up by name. All options are checked before a query runs.

Every Python process that Spark starts for a query imports this module, so readers and writers are imported on use.
"""

import logging
import sys
from typing import TYPE_CHECKING, cast

from pyspark.errors import AnalysisException
from pyspark.sql import SparkSession
from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from lanemq.model.errors import InvalidOption
from lanemq.spark.columns import DEFAULT_COLUMNS, select_columns
from lanemq.spark.options import parse_read_options
from lanemq.spark.session import is_connect, python_mismatch
from lanemq.spark.versions import WITH_STREAM_WRITER, check_stream_options, need
from lanemq.spark.worker_process import configure_worker_logging, exit_on_sigterm, shorten_collections, skip_teardown

if TYPE_CHECKING:
    from lanemq.spark.read.batch_reader import LaneBatchReader
    from lanemq.spark.read.stream_reader import LaneStreamReader
    from lanemq.spark.write.writer import LaneBatchWriter, LaneStreamWriter

log = logging.getLogger(__name__)

FORMAT = "lanemq"


class LaneDataSource(DataSource):
    """Reads topics as rows, and writes rows to topics."""

    @classmethod
    def name(cls) -> str:
        return FORMAT

    def schema(self) -> StructType:
        shorten_collections()
        columns = parse_read_options(self.options, streaming=None).columns
        return select_columns(columns) if columns else DEFAULT_COLUMNS

    def reader(self, schema: StructType) -> "LaneBatchReader":
        from lanemq.spark.read.batch_reader import LaneBatchReader

        shorten_collections()
        return LaneBatchReader(parse_read_options(self.options, streaming=False), schema)

    def streamReader(self, schema: StructType) -> "LaneStreamReader":  # noqa: N802
        from lanemq.spark.read.stream_reader import LaneStreamReader

        configure_worker_logging()
        exit_on_sigterm()
        skip_teardown()
        shorten_collections()
        options = parse_read_options(self.options, streaming=True)
        check_stream_options(self.options)
        return LaneStreamReader(options, schema, self.options.get("checkpointLocation"))

    def writer(self, schema: StructType, overwrite: bool) -> "LaneBatchWriter":
        from lanemq.spark.write.writer import LaneBatchWriter, parse_write_options

        if overwrite:
            raise InvalidOption("mode: a topic cannot be overwritten; use mode('append')")
        return LaneBatchWriter(parse_write_options(self.options, schema))

    def streamWriter(self, schema: StructType, overwrite: bool) -> "LaneStreamWriter":  # noqa: N802
        from lanemq.spark.write.writer import LaneStreamWriter, parse_write_options

        need(WITH_STREAM_WRITER, "writeStream to a topic", "write in foreachBatch, with df.write.format('lanemq')")
        return LaneStreamWriter(parse_write_options(self.options, schema))


def register(spark: SparkSession) -> None:
    """Registers `format("lanemq")` with this session, for Sparks that did not find it themselves (`pyspark_lanemq`).

    Tells the source how many tasks the session can run at once, which decides how a batch is divided.
    A server of Spark Connect must have LaneMQ installed: it imports the source by its name.
    """
    if not is_connect(spark):
        from lanemq.spark.parallelism import tell_python_processes

        tell_python_processes(spark.sparkContext)
        warning = python_mismatch(spark.sparkContext.pythonExec, sys.executable)
        if warning is not None:
            log.warning(warning)
    try:
        spark.dataSource.register(cast(type[DataSource], LaneDataSource))
    except AnalysisException as error:
        if error.getCondition() != "DATA_SOURCE_ALREADY_EXISTS":  # some versions do not replace what they found
            raise
