"""Batches for a function of the user's own, at least once.

After a crash the function gets a batch again, with the same rows and number and possibly a higher epoch. Only the
function can know whether the first call had an effect: it should store (query, number) together with the effect, and
refuse epochs below the highest it has seen.
"""

from collections.abc import Callable

import pyarrow as pa

from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import Rows, SinkRun
from lanemq.pipelines.sinks.exact_sink import ExactSink, fit


class ForeachSink(ExactSink):
    """Calls `function(rows, batch)` on the driver for every batch, including empty ones."""

    all_at_once = False

    def __init__(self, function: Callable[[pa.Table, Batch], None]) -> None:
        self._function = function
        self._done: int | None = None

    def open(self, run: SinkRun) -> None:
        self._begin(run)
        self._done = None

    def write(self, rows: Rows, batch: Batch) -> bool:
        run = self._run_of(batch)
        if self._done is not None and batch.number <= self._done:
            return False
        self._function(fit(rows.table(), run.columns), batch)
        self._done = batch.number
        return True
