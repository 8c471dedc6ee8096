"""Batches for a function of the user's own, at least once.

After a crash the function gets a batch again, with the same rows and number and possibly a higher epoch. Only the
function can know whether the first call had an effect: it should store (query, number) together with the effect, and
refuse epochs below the highest it has seen.
"""

from collections.abc import Callable

import pyarrow as pa
from pyspark.sql import SparkSession
from pyspark.sql.types import StructType

from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import Append, Merge, Rows
from lanemq.pipelines.sinks.exact_sink import ExactSink, fit


class ForeachSink(ExactSink):
    """Calls `function(rows, batch)` on the driver for every batch, including empty ones."""

    all_at_once = False

    def __init__(self, function: Callable[[pa.Table, Batch], None]) -> None:
        self._function = function
        self._done: int | None = None

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        self._agree(query, epoch, schema, how)
        self._done = None

    def applied(self) -> int | None:
        """The highest batch number of this run; earlier runs are unknown."""
        self._opened()
        return self._done

    def write(self, rows: Rows, batch: Batch) -> bool:
        terms = self._terms_for(batch)
        if self._done is not None and batch.number <= self._done:
            return False
        self._function(fit(rows.table(), terms.schema), batch)
        self._done = batch.number
        return True
