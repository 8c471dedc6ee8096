"""Takes each batch through the stage and the sinks, in an order that survives a crash at any point.

Invariants:
- The record of a batch is on disk before its first commit: the stage's state and, if it needs more than one commit, its
  rows. Such a batch is completed as it was decided and never run again.
- The record and the dead letters are durable before the sink has the batch, and Spark records it after that. So a sink
  that has a batch proves that all of it is done, and the batch is not run again.
- A checkpoint that is older than its sink is refused, because its batches would be taken for applied ones. So is a sink
  that lacks batches which are done, because they would never come again.
- What Spark planned is on the disk before anything is committed.
"""

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Literal

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lanemq.clock import Clock, SystemClock, wall_time
from lanemq.model.errors import StateLost
from lanemq.model.units import Millis
from lanemq.pipelines.batches import NUMBERS_PER_BATCH, Batch, batch_number, dead_letter_query
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.checkpoint.queues import QueueSet
from lanemq.pipelines.checkpoint.unit_record import UnitRecord
from lanemq.pipelines.checkpoint.units import Units
from lanemq.pipelines.ports import DEAD_LETTER_SCHEMA, Append, FileRows, Merge, Results, Sink, SinkRun, Stage
from lanemq.pipelines.running.batch_trace import BatchTracing
from lanemq.pipelines.running.effect_history import EffectHistory
from lanemq.pipelines.running.progress import AppliedBatch
from lanemq.pipelines.running.queue_ends import SourceEnds
from lanemq.spark.offsets import OffsetJson, to_json

log = logging.getLogger(__name__)


class BatchProcessor:
    """One run's stage and sinks. Opened before the query starts; used by one thread at a time."""

    def __init__(
        self,
        stage: Stage,
        sink: Sink,
        dead_letters: Sink,
        checkpoint: Checkpoint,
        effects: EffectHistory,
        clock: Clock | None = None,
        *,
        whole: bool = False,
        new_sink: bool = False,
        new_checkpoint: bool = False,
        queue_ends: SourceEnds | None = None,
        tracing: BatchTracing | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """`whole`: the stage sees every message of its queues, so missing offsets are worth a warning.

        `new_sink`: a sink that lacks batches which are done continues without them.
        `new_checkpoint`: a sink that another checkpoint of this pipeline wrote to continues with this one.
        `queue_ends`: says which queues are read to their ends.
        `tracing`: runs each batch inside a trace.
        `settings`: of Spark, which may say how the stores of sinks are reached.
        """
        self._stage = stage
        self._sink = sink
        self._dead_letters = dead_letters
        self._checkpoint = checkpoint
        self._units = Units(checkpoint.run_log, checkpoint.decided_folder, grows=stage.evolves)
        on_change = stage.on_queue_change
        self._queues = None if on_change is None else QueueSet(checkpoint.run_log, on_change)
        self._effects = effects
        self._clock = clock or SystemClock()
        self._whole = whole
        self._new_sink = new_sink
        self._new_checkpoint = new_checkpoint
        self._queue_ends = queue_ends
        self._tracing = tracing or BatchTracing()
        self._settings = settings or {}
        self._applied: int | None = None
        """The last batch that the sink had when this run opened it."""
        self._last = -1
        """The last unit of work that is complete, as far as the sink and the checkpoint can tell."""
        self._warned_full = False
        self._opened: list[Sink] = []

    def open(self, spark: SparkSession) -> None:
        """Open the stage first, since it determines the sink's columns, then the sinks; refuse what does not fit."""
        folder = self._checkpoint.stage_folder
        folder.mkdir(parents=True, exist_ok=True)
        if self._queue_ends is not None:
            self._stage.accept_queue_ends(self._queue_ends)
        self._stage.open(spark, folder)
        self._effects.check(self._stage.schema)
        query, name = self._checkpoint.query, self._checkpoint.name
        self._checkpoint.log.check_plans()
        self._refuse_lost_batches_before_open()
        letters = dead_letter_query(query), dead_letter_query(name)
        self._open_sink(self._dead_letters, spark, *letters, DEAD_LETTER_SCHEMA, Append())
        self._open_sink(self._sink, spark, query, name, self._stage.schema, self._stage.how)
        self._stage.accept_sink(self._sink)
        self._applied = self._sink.applied(query, self._settings)
        self._refuse_older_checkpoint()
        self._refuse_lost_batches(self._checkpoint.log.done(), self._applied)
        self._units.open(self._is_over)
        if (pending := self._units.pending) is not None:
            self._decided(self._batch(pending.number))  # refuse here what does not fit
            self._last = pending.number - 1
        else:
            self._last = max(-1 if number is None else number for number in (self._applied, self._units.last))
        self._stage.continue_from(self._units.state)

    def _open_sink(
        self, sink: Sink, spark: SparkSession, query: str, pipeline: str, schema: StructType, how: Append | Merge
    ) -> None:
        runs, epoch = self._checkpoint.runs, self._checkpoint.epoch
        sink.open(SinkRun(spark, query, epoch, schema, how, runs, pipeline, self._new_checkpoint, self._settings))
        self._opened.append(sink)

    def close(self) -> None:
        self._effects.close()
        if self._queue_ends is not None:
            self._queue_ends.close()
        while self._opened:
            self._opened.pop().close()

    def process_batch(self, messages: DataFrame, spark_batch: int) -> AppliedBatch:
        """Take a Spark batch through the stage and the sinks, unless the sink has it."""
        batch = self._batch(batch_number(spark_batch))
        self._refuse_newer_state(batch)
        applied = self._applied_before(batch) or self._process(batch, lambda: self._compute(messages, batch))
        assert applied is not None, "only a retry pass may have nothing to do"
        return applied

    def finish_retry_pass(self) -> AppliedBatch | None:
        """Complete the retry pass that a crash interrupted, if it was decided. Called before the query starts."""
        pending = self._units.pending
        if pending is None:
            return None
        batch = self._batch(pending.number)
        return self._process(batch, lambda: None) if batch.is_retry_pass else None

    def due(self) -> float | None:
        """Seconds until a retry pass should start; None if nothing waits, or a decided batch must come first."""
        return None if self._units.pending is not None else self._stage.due(wall_time(self._clock.wall()))

    def process_due(self) -> AppliedBatch | None:
        """Process a retry pass if one is due, before the query starts: a batch may need an operator's request."""
        done = self._checkpoint.log.done()
        return self.process_retry_pass(done) if done is not None and self.due() == 0 else None

    def process_retry_pass(self, spark_batch: int) -> AppliedBatch | None:
        """Process a retry pass after a Spark batch that is done. None if nothing was due, or no number is left."""
        number = self._retry_pass_number(spark_batch)
        if number is None:
            return None
        batch = self._batch(number)
        return self._process(batch, lambda: self._stage.process_retry_pass(batch))

    def _applied_before(self, batch: Batch) -> AppliedBatch | None:
        """The batch, if it is complete. Retry passes may have followed it, although Spark has not recorded it."""
        if self._last < batch.number:
            return None
        log.info("the sink already has %s: it is not applied again", batch)
        self._stage.finished(batch)
        return AppliedBatch(batch, repeated=True)

    def _process(self, batch: Batch, compute: Callable[[], Results | None]) -> AppliedBatch | None:
        """Complete what an earlier attempt decided, or else commit what `compute` returns; None if that is None."""
        return self._tracing.run(batch, lambda: self._process_now(batch, compute))

    def _process_now(self, batch: Batch, compute: Callable[[], Results | None]) -> AppliedBatch | None:
        began, pending = self._clock.now(), self._units.pending
        if pending is not None:
            log.info("an earlier attempt decided %s: it is completed, not computed again", batch)
        results = self._decided(batch) if pending is not None else compute()
        if results is None:
            return None
        results = self._make_durable(batch, results, is_decided=pending is not None)
        return self._apply(batch, results, began)

    def _compute(self, messages: DataFrame, batch: Batch) -> Results:
        if self._queues is not None:
            self._queues.check(self._checkpoint.log.end_of(batch.spark_batch))
        return self._stage.process(messages, batch)

    def _make_durable(self, batch: Batch, results: Results, *, is_decided: bool) -> Results:
        """Put on disk what must be there before the first sink has the batch; returns the results to apply.

        That is Spark's plan and the record of the unit.
        """
        self._checkpoint.run_log.refuse_if_replaced()
        if not batch.is_retry_pass:
            self._checkpoint.log.sync(batch.spark_batch)
        if is_decided:
            return results
        commits = self._commits(batch, results)
        results = self._units.record(
            batch, results, self._end_of(batch), decide=commits == "several", whole=commits == "none"
        )
        if results.state:
            self._stage.continue_from(results.state)
        return results

    def _decided(self, batch: Batch) -> Results:
        """The results of the batch, which is decided."""
        pending = self._units.pending
        if pending is None or pending.number != batch.number:
            raise StateLost(
                f"{batch} comes, but another one was decided before and part of it may not be committed: Spark's part "
                f"of the checkpoint was deleted or restored. Restore all of it as it was, or start with an empty one"
            )
        return self._units.decided(batch, self._stage.schema, self._end_of(batch))

    def _end_of(self, batch: Batch) -> OffsetJson:
        """Where Spark planned the batch to end; empty for a retry pass, or if Spark's file is lost."""
        planned = self._checkpoint.log.planned()
        if batch.is_retry_pass or planned is None or planned < batch.spark_batch:
            return {}
        return to_json(self._checkpoint.log.end_of(batch.spark_batch))

    def _commits(self, batch: Batch, results: Results) -> Literal["none", "one", "several"]:
        """How many commits follow; several if a crash could leave only part of the batch applied."""
        if results.dead_letters is not None and results.dead_letters.count():
            return "several"
        if batch.is_retry_pass and not results.outputs.count():
            return "none"
        return "one" if self._sink.all_at_once else "several"

    def _is_over(self, unit: UnitRecord) -> bool:
        """At a start: whether the sink has the batch, or Spark will not ask for it again."""
        batch = Batch("", unit.number, 0)
        done = self._checkpoint.log.done()
        recorded = not batch.is_retry_pass and done is not None and batch.spark_batch <= done
        return recorded or (self._applied is not None and unit.number <= self._applied)

    def _apply(self, batch: Batch, results: Results, began: Millis) -> AppliedBatch:
        if self._whole and results.counts.get("missing"):
            log.warning("%s: %d offsets had no message: retention deleted them", batch, results.counts["missing"])
        dead = 0 if results.dead_letters is None else results.dead_letters.count()
        if results.dead_letters is not None and dead:
            self._dead_letters.write(results.dead_letters, replace(batch, query=dead_letter_query(batch.query)))
        rows, counts = results.outputs.count(), dict(results.counts)
        # A retry pass without rows is not written: every retry would be a commit.
        fresh = self._write(batch, results, counts) if rows or not batch.is_retry_pass else True
        self._units.complete()
        self._last = batch.number
        self._stage.finished(batch)
        seconds = (self._clock.now() - began) / 1000
        return AppliedBatch(batch, rows, dead, not fresh, seconds, counts)

    def _write(self, batch: Batch, results: Results, counts: dict[str, int]) -> bool:
        asked = self._effects.now() if self._effects.on else 0
        fresh = self._sink.write(results.outputs, batch)
        if fresh and self._effects.on:
            self._effects.applied(results, batch, asked)
        if self._sink.last_stale:
            counts["stale"] = self._sink.last_stale
        if self._sink.last_replaced:
            counts["nul_replaced"] = self._sink.last_replaced
        return fresh

    def _batch(self, number: int) -> Batch:
        return Batch(self._checkpoint.query, number, self._checkpoint.epoch, self._checkpoint.name)

    def _retry_pass_number(self, spark_batch: int) -> int | None:
        """The number after that of the last unit; one that was given to a pass without a record stands for nothing."""
        number = max(self._last, batch_number(spark_batch)) + 1
        if number < batch_number(spark_batch + 1):
            return number
        if not self._warned_full and number == batch_number(spark_batch + 1):
            self._warned_full = True
            log.warning(
                "batch %d has no number left for a retry pass: what waits is tried after the next batch", spark_batch
            )
        return None

    def _refuse_newer_state(self, batch: Batch) -> None:
        """`StateLost` if the state is newer than Spark's last batch can explain."""
        last = (self._units.last or 0) // NUMBERS_PER_BATCH
        if last > batch.spark_batch + 1:
            raise StateLost(
                f"{batch} comes again, but the state is already that of batch {last}: Spark's part of the checkpoint "
                f"was deleted or restored. Restore all of it as it was, or start with an empty one"
            )

    def _refuse_older_checkpoint(self) -> None:
        """After a crash the sink may have the batch that Spark planned last, but never a later one."""
        planned = self._checkpoint.log.planned()
        if self._applied is None or self._applied < batch_number((planned if planned is not None else -1) + 1):
            return
        has = Batch("", self._applied, 0).spark_batch
        if planned is None:
            raise StateLost(
                f"part of checkpoint {self._checkpoint.folder} was deleted: {self._sink} has batch {has} of it, and "
                f"Spark's folders offsets and commits have no batch. Spark would count from 0 again, and the sink "
                f"would take these batches for ones that it has. Restore the whole folder from one copy, or begin "
                f"with an empty checkpoint and an empty sink"
            )
        raise StateLost(
            f"checkpoint {self._checkpoint.folder} is older than its sink: {self._sink} has batch {has}, the "
            f"checkpoint ends with {planned}. It was restored from a copy, or its newest files were deleted; "
            f"continuing would leave messages out. Use the newest checkpoint, or an empty one and an empty sink"
        )

    def _refuse_lost_batches_before_open(self) -> None:
        """Check before the sink is opened: a sink that is refused must stay unchanged, so that it can be restored."""
        done = self._checkpoint.log.done()
        if done is not None and self._sink.all_at_once and not self._new_sink:
            self._refuse_lost_batches(done, self._sink.applied(self._checkpoint.query, self._settings))

    def _refuse_lost_batches(self, done: int | None, applied: int | None) -> None:
        """`StateLost` if the sink lacks a batch that is done: it is another sink, or was restored from a copy.

        Sinks that cannot know are not checked. With `new_sink` the last batch is recorded as one without rows, so
        that the warning comes once.
        """
        if done is None or not self._sink.all_at_once:
            return
        if applied is not None and applied >= batch_number(done):
            return
        last = "" if applied is None else f"ends with batch {Batch('', applied, 0).spark_batch}"
        has = last or "has none of its batches"
        if not self._new_sink:
            raise StateLost(
                f"{self._sink} {has}, and checkpoint {self._checkpoint.folder} is done up to batch {done}: it is "
                f"another sink, was emptied, or was restored from a copy, and those batches would be missing. Use "
                f"the sink of this checkpoint; or begin with an empty checkpoint, to read everything again; or start a "
                f"new sink here, with --new-sink or run(..., new_sink=True)"
            )
        log.warning("%s %s: it continues after batch %d, without the batches before", self._sink, has, done)
        self._sink.write(FileRows(self._stage.schema, []), self._batch(batch_number(done)))
        self._applied = self._sink.applied(self._checkpoint.query, self._settings)
