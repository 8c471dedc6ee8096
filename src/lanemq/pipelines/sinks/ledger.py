"""What every exactly-once sink has in common: the terms of a run, and the check of a batch against the ledger.

Invariants: a batch whose number the sink has is not applied again; a run that was replaced, or that belongs to a copy
of the checkpoint, applies nothing; a sink takes batches only from the run that opened it. Each sink stores the batch
number and the epoch in its own way, but in the same commit as the rows.
"""

import logging
from dataclasses import dataclass, replace

import pyarrow as pa
from pyspark.sql.types import StructType

from lanemq.model.errors import Closed, SinkFenced, UsageError
from lanemq.pipelines.batch import Batch, Runs, run_name
from lanemq.pipelines.ports import KEPT, Append, Merge, Sink
from lanemq.pipelines.rows import Rows
from lanemq.pipelines.sinks.columns import arrow_schema, check_merge_columns

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Terms:
    """What a run and a sink agreed on in `open`."""

    query: str
    epoch: int
    schema: pa.Schema
    how: Append | Merge
    runs: Runs | None = None
    """The runs of the same checkpoint. None: unknown, so every lower epoch is taken for one of them."""

    def widened(self, rows: Rows) -> "Terms":
        """The terms of a merge, with the columns that the rows have in addition."""
        if not isinstance(self.how, Merge) or set(rows.schema.names) <= set(self.schema.names):
            return self
        if KEPT in rows.schema.names and KEPT not in self.schema.names:
            raise UsageError(
                f"the rows have the column {KEPT} and the sink was opened without it: a batch that was decided with "
                f"left_out='keep' must be finished with left_out='keep'; change the option afterwards"
            )
        more = [field for field in arrow_schema(rows.schema) if field.name not in self.schema.names]
        return replace(self, schema=pa.schema([*self.schema, *(field.with_nullable(True) for field in more)]))


@dataclass(frozen=True, slots=True)
class LedgerEntry:
    """What a sink has recorded about one query."""

    batch: int | None = None
    """The highest batch number that the sink has."""
    epoch: int | None = None
    """The newest run that has opened the sink."""

    def admits(self, batch: Batch) -> bool:
        """Whether to apply the batch; False if the sink has it. `SinkFenced` if its run was replaced."""
        self._refuse_older(batch.query, batch.epoch)
        return self.batch is None or batch.number > self.batch

    def lacks(self, terms: Terms) -> bool:
        """Whether the run that opens the sink must record its epoch. `SinkFenced` if it may not use the sink."""
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
                "the sink takes nothing more from the older run; stop it"
            )


class ExactSink(Sink):
    """Base of the sinks in this package: opened by one run, and used for that run's batches only."""

    all_at_once = True
    _terms: Terms | None = None
    _runs: Runs | None = None

    def accept_runs(self, runs: Runs) -> None:
        self._runs = runs

    def close(self) -> None:
        self._terms = None

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

    def _count_stale(self, batch: Batch, rows: int, stale: int) -> None:
        """Record and log rows that a merge left out.

        A late change is left out rightly. But if the source's sequence began again, every change is left out, which
        looks the same; hence the warning.
        """
        self.last_stale = stale
        if stale:
            log.warning(
                "%s: %d of %d rows were left out because they are older than the table's rows. If this goes on, the "
                "sequence began again: a topic that was created again counts from 0, and so does a key that moved to "
                "another queue; declare sequence= of the source, or begin with an empty table and checkpoint",
                batch,
                stale,
                rows,
            )
