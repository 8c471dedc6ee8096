"""The differences between PySpark 4.0, 4.1, 4.2 and 4.3, in one place.

Before 4.2 Spark does not tell a Python source where a batch starts, nor how much it may hold. Reading everything needs
neither. Options that do need them are refused by name: a source that guesses would skip messages, or end a query with
available-now before the end. Before 4.1 a streaming writer gets no Arrow batches, so it is refused too.
"""

from collections.abc import Iterable
from typing import Final

import pyarrow as pa
import pyspark
from pyspark.sql.pandas import types
from pyspark.sql.types import StructType

from lanemq.model.errors import UsageError

VERSION: Final = tuple(int(part) for part in pyspark.__version__.split(".")[:2])
WITH_STREAM_WRITER: Final = (4, 1)
WITH_BATCH_STARTS: Final = (4, 2)

NEEDS_BATCH_STARTS: Final = (
    "group", "maxOffsetsPerTrigger", "maxBytesPerTrigger", "minOffsetsPerTrigger", "maxTriggerDelay",
)  # fmt: skip
"""Options that need to know where a batch starts."""

try:
    from pyspark.sql.streaming.datasource import (
        ReadAllAvailable,
        ReadLimit,
        ReadMaxBytes,
        ReadMaxRows,
        SupportsTriggerAvailableNow,
    )
except ModuleNotFoundError:  # before 4.2
    from dataclasses import dataclass

    class ReadLimit:  # type: ignore[no-redef]
        """How much a batch may hold."""

    class ReadAllAvailable(ReadLimit):  # type: ignore[no-redef]
        """Everything."""

    @dataclass
    class ReadMaxRows(ReadLimit):  # type: ignore[no-redef]
        """At most so many rows."""

        max_rows: int

    @dataclass
    class ReadMaxBytes(ReadLimit):  # type: ignore[no-redef]
        """At most so many bytes."""

        max_bytes: int

    class SupportsTriggerAvailableNow:  # type: ignore[no-redef]
        """Spark reads up to the end that the source reports first."""


try:
    from pyspark.sql.datasource import DataSourceStreamArrowWriter
except ImportError:  # before 4.1
    from pyspark.sql.datasource import DataSourceStreamWriter as DataSourceStreamArrowWriter  # type: ignore[assignment]

__all__ = [
    "DataSourceStreamArrowWriter",
    "ReadAllAvailable",
    "ReadLimit",
    "ReadMaxBytes",
    "ReadMaxRows",
    "SupportsTriggerAvailableNow",
    "check_stream_options",
    "checkpoint_file_manager",
    "need",
    "tells_batch_starts",
    "to_arrow_schema",
]


def need(least: tuple[int, int], what: str, instead: str) -> None:
    """`UsageError` if this PySpark is older than `least`."""
    if least > VERSION:
        raise UsageError(
            f"{what} needs PySpark {least[0]}.{least[1]} or newer, and this is {pyspark.__version__}: {instead}"
        )


def tells_batch_starts() -> bool:
    """Whether Spark tells where a batch starts when it asks for the end of the batch."""
    return VERSION >= WITH_BATCH_STARTS


def check_stream_options(names: Iterable[str]) -> None:
    """`UsageError` if an option of a streaming read needs a newer PySpark."""
    given = {name.lower() for name in names}
    for name in NEEDS_BATCH_STARTS:
        if name.lower() in given:
            need(WITH_BATCH_STARTS, f"the option {name}", "leave it out")


def to_arrow_schema(schema: StructType) -> pa.Schema:
    """The columns as Arrow types; timestamps in UTC."""
    if not tells_batch_starts():
        return types.to_arrow_schema(schema, timestamp_utc=True)  # type: ignore[call-arg]
    return types.to_arrow_schema(schema, timezone="UTC")


def checkpoint_file_manager() -> str:
    """Spark's class that writes the files of a checkpoint with plain renames."""
    folder = "" if VERSION < WITH_STREAM_WRITER else "checkpointing."
    return f"org.apache.spark.sql.execution.streaming.{folder}FileSystemBasedCheckpointFileManager"
