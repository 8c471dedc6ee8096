"""What every exactly-once sink has in common: the terms of a run, and the judgement of a batch.

The rules guarded here: a batch whose number is in is not applied again; a run that was replaced applies nothing, and
neither does one of a copy of the checkpoint; a sink takes batches only of the run that opened it. Where the two
numbers are kept is each sink's own matter, as long as they change in the same commit as the rows.
"""

import logging
from dataclasses import dataclass

import pyarrow as pa
from pyspark.sql.types import StructType

from lanemq.model.errors import Closed, SinkFenced, UsageError
from lanemq.pipelines.batch import Batch, Runs, run_name
from lanemq.pipelines.ports import Append, Merge, Sink
from lanemq.pipelines.sinks.columns import arrow_schema, check_merge_columns

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Standing:
    """What a sink has noted about one query."""

    batch: int | None = None
    """The highest number that is in."""
    epoch: int | None = None
    """The newest run that has opened the sink."""

    def admits(self, batch: Batch) -> bool:
        """Whether the batch is to be applied; False: it is in. `SinkFenced` if its run was replaced."""
        self._refuse_older(batch.query, batch.epoch)
        return self.batch is None or batch.number > self.batch

    def lacks(self, terms: "Terms") -> bool:
        """Whether a run that opens the sink has to write its epoch down. `SinkFenced` if it may not have the sink."""
        if self.epoch is not None and terms.runs is not None and not terms.runs.know(self.epoch):
            raise SinkFenced(
                f"the sink belongs to run {run_name(self.epoch)} of another copy of pipeline {terms.query}'s "
                f"checkpoint: go on with that copy only, or begin with an empty checkpoint and an empty sink"
            )
        self._refuse_older(terms.query, terms.epoch)
        return self.epoch is None or terms.epoch > self.epoch

    def _refuse_older(self, query: str, epoch: int) -> None:
        if self.epoch is not None and epoch < self.epoch:
            raise SinkFenced(
                f"run {run_name(epoch)} of pipeline {query} was replaced by run {run_name(self.epoch)}: "
                "nothing more is written by the older one, stop it"
            )


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run and a sink agreed on in `open`."""

    query: str
    epoch: int
    schema: pa.Schema
    how: Append | Merge
    runs: Runs | None = None
    """Of the same checkpoint; None: not told, and every lower epoch is taken for one of them."""


class ExactSink(Sink):
    """The beginning of every sink: opened by one run, and used for that run's batches only."""

    all_at_once = True
    """Rows and number are one commit: after a crash there is all of a batch, or nothing."""
    _terms: Terms | None = None
    _runs: Runs | None = None

    def accept_runs(self, runs: Runs) -> None:
        self._runs = runs

    def _agree(self, query: str, epoch: int, schema: StructType, how: Append | Merge) -> Terms:
        keys = how.keys if isinstance(how, Merge) else ()
        wanted = arrow_schema(schema, keys, loose=isinstance(how, Merge))
        if isinstance(how, Merge):
            check_merge_columns(wanted, keys)
        self._terms = Terms(query, epoch, wanted, how, self._runs)
        return self._terms

    def _opened(self) -> Terms:
        if self._terms is None:
            raise Closed(
                f"{type(self).__name__} is not open: call open() before the first batch, and not after close()"
            )
        return self._terms

    def _terms_for(self, batch: Batch) -> Terms:
        terms = self._opened()
        if (batch.query, batch.epoch) != (terms.query, terms.epoch):
            raise UsageError(f"{batch} does not belong to the run that opened the sink: {terms.query}, {terms.epoch}")
        return terms

    def _tell_stale(self, batch: Batch, rows: int, stale: int) -> None:
        """Late changes lose rightly; but a sequence that began again makes all of them lose, and looks the same."""
        self.last_stale = stale
        if stale:
            log.warning(
                "%s: %d of %d rows were left out, being older than the table's. If it goes on, the sequence began "
                "again: a topic that was created again counts from 0, and so does a key that moved to another queue; "
                "declare sequence= of the source, or begin with an empty table and checkpoint",
                batch,
                stale,
                rows,
            )

    def _reached(self, step: str) -> None:
        """Called between any two steps of a commit, for tests that let the process die there."""

    def close(self) -> None:
        self._terms = None
