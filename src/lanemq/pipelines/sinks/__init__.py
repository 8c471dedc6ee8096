"""The sinks of a pipeline: each applies a batch once, even if it is repeated or an older run is still writing."""

from lanemq.pipelines.sinks.delta import DeltaSink, read_table
from lanemq.pipelines.sinks.factory import open_sink
from lanemq.pipelines.sinks.foreach import ForeachSink
from lanemq.pipelines.sinks.iceberg import IcebergSink, read_iceberg
from lanemq.pipelines.sinks.parquet import ParquetSink
from lanemq.pipelines.sinks.postgres import PostgresSink
from lanemq.pipelines.sinks.sqlite import SqliteSink
from lanemq.pipelines.sinks.topic import TopicSink

__all__ = [
    "DeltaSink",
    "ForeachSink",
    "IcebergSink",
    "ParquetSink",
    "PostgresSink",
    "SqliteSink",
    "TopicSink",
    "open_sink",
    "read_iceberg",
    "read_table",
]
