"""One run's stage and sinks, and the order in which they see a batch.

The rules guarded here: where a batch needs more than one commit, its rows are decided on disk before the first of
them, and what was decided is completed and never run again; the stage's state and the dead letters are durable before
the sink has the batch, and Spark notes it only after that, so a sink that has a batch proves that all of it is done; a
batch that the sink has is not run again; a checkpoint that is older than what the sink has is refused, because its
batches would be taken for ones that were applied, and so is a sink that lacks batches which are done, because nobody
would ever bring them; what Spark planned is on the disk before anything is committed; a
message that the sink has is not applied under another number.
"""

import logging
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import StateLost
from lanemq.model.units import Millis
from lanemq.pipelines.batch import Batch, batch_number
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.checkpoint.decisions import Decisions
from lanemq.pipelines.checkpoint.effects import Effects
from lanemq.pipelines.checkpoint.queue_set import QueueSet
from lanemq.pipelines.ports import Append, Results, Sink, Stage
from lanemq.pipelines.rows import DEAD_LETTER_SCHEMA, FileRows
from lanemq.pipelines.running.progress import Done
from lanemq.pipelines.sink_positions import SinkPositions, refuse_without
from lanemq.spark.offsets import OffsetJson, Positions, to_json

log = logging.getLogger(__name__)

R = TypeVar("R", Results, Results | None)


class Work:
    """Opened before the query starts; used by one thread at a time."""

    def __init__(
        self,
        stage: Stage,
        sink: Sink,
        dead: Sink,
        checkpoint: Checkpoint,
        effects: Effects,
        clock: Clock | None = None,
        *,
        whole: bool = False,
        member: bool = False,
        new_sink: bool = False,
    ) -> None:
        """`whole`: the stage is given every message of its queues, so offsets that are missing are worth a warning.

        `member`: the source shares its queues with others, so a message may come again in another batch.
        `new_sink`: a sink that lacks batches which are done is to go on without them.
        """
        self._stage = stage
        self._sink = sink
        self._dead = dead
        self._checkpoint = checkpoint
        self._decisions = Decisions(checkpoint.decided_place, grows=stage.evolves)
        on_change = stage.on_queue_change
        self._queues = None if on_change is None else QueueSet(checkpoint.queues_file, on_change)
        self._positions = SinkPositions(checkpoint.sink_positions_file) if member else None
        self._effects = effects
        self._clock = clock or SystemClock()
        self._whole = whole
        self._new_sink = new_sink
        self._applied: int | None = None
        """What the sink had when this run opened it; later batches of the run are new by their numbers."""
        self._spare: int | None = None
        """A pass's number that turned out not to be needed."""
        self._told_full = False
        self._opened: list[Sink] = []

    def open(self, spark: SparkSession) -> None:
        """The stage first, since it knows what the sink's columns are."""
        place: Path = self._checkpoint.stage_place
        place.mkdir(parents=True, exist_ok=True)
        self._stage.open(spark, place)
        self._effects.check(self._stage.schema)
        query, epoch = self._checkpoint.query, self._checkpoint.epoch
        self._look_for_lost_batches()
        for sink in (self._dead, self._sink):
            sink.accept_runs(self._checkpoint.runs)
        self._dead.open(spark, _dead(query), epoch, DEAD_LETTER_SCHEMA, Append())
        self._opened.append(self._dead)
        self._sink.open(spark, query, epoch, self._stage.schema, self._stage.how)
        self._opened.append(self._sink)
        self._applied = self._sink.applied()
        self._refuse_older_checkpoint()
        self._refuse_lost_batches(self._checkpoint.log.done(), self._applied)
        if self._positions is not None:
            self._positions.open(self._is_over)
        self._decisions.open()
        self._forget(self._is_over)
        self._settle_decided()

    def close(self) -> None:
        self._effects.close()
        while self._opened:
            self._opened.pop().close()

    def run_batch(self, messages: DataFrame, spark_batch: int) -> Done:
        """A batch of Spark: through stage and sinks, unless the sink has it."""
        batch = self._batch(batch_number(spark_batch))
        if self._applied is not None and self._applied >= batch.number:
            log.info("%s is in the sink already: nothing is done again", batch)
            self._stage.finished(batch)
            return Done(batch, repeated=True)
        began = self._clock.now()
        return self._apply(batch, self._decided(batch, lambda: self._run(messages, batch)), began)

    def finish_retry_pass(self) -> Done | None:
        """The pass that a crash interrupted, if there is one. Before the query starts."""
        number = self._stage.unfinished_retry_pass()
        if number is None:
            return None
        batch, began = self._batch(number), self._clock.now()
        if self._applied is not None and self._applied >= number:
            # Its state was settled before the sink had it; run again, a step might answer otherwise.
            self._stage.finished(batch)
            return Done(batch, repeated=True)
        results = self._decided(batch, lambda: self._stage.run_retry_pass(batch))
        return self._apply(batch, results, began) if results is not None else None

    def due(self) -> Millis | None:
        """How long until a pass is wanted; None: nothing waits."""
        return self._stage.due(self._clock.wall())

    def run_due(self) -> Done | None:
        """A pass, if one is wanted. Before the query starts: a batch may fail for what a person has decided about."""
        behind = self._checkpoint.log.done()
        return self.run_retry_pass(behind) if behind is not None and self.due() == 0 else None

    def run_retry_pass(self, behind: int) -> Done | None:
        """A pass behind a batch of Spark that is done. None: nothing was due, or there is no number left."""
        number = self._retry_pass_number(behind)
        if number is None:
            return None
        batch, began = self._batch(number), self._clock.now()
        results = self._decided(batch, lambda: self._stage.run_retry_pass(batch))
        if results is None:
            self._spare = number
            return None
        return self._apply(batch, results, began)

    def _run(self, messages: DataFrame, batch: Batch) -> Results:
        if self._queues is not None:
            self._queues.check(self._checkpoint.log.end_of(batch.spark_batch))
        if self._positions is not None:
            refuse_without(messages.columns)
            messages = self._positions.fresh(messages, lambda: self._start_of(batch))
        return self._stage.run(messages, batch)

    def _decided(self, batch: Batch, run: Callable[[], R]) -> R | Results:
        """What the batch comes to: as an earlier attempt decided, or as the stage says now. The stage's state is it."""
        self._forget(lambda number: number < batch.number)
        found = self._find(batch)
        if found is not None:
            log.info("%s was decided before: it is completed, not run again", batch)
        results = found or run()
        if results is None:
            return results
        self._checkpoint.refuse_if_replaced()
        if not batch.is_retry_pass:
            self._checkpoint.log.sync(batch.spark_batch)
        if found is None and self._takes_two_commits(batch, results):
            results = self._decisions.make(batch, results, self._end_of(batch))
        if self._positions is not None:
            self._positions.note(batch.number, results.positions)
        if results.state:
            self._stage.settle(batch, results.state)
        return results

    def _find(self, batch: Batch) -> Results | None:
        """The batch's end is asked for only if there is a decision."""
        if batch.number not in self._decisions.numbers():
            return None
        return self._decisions.find(batch, self._stage.schema, self._end_of(batch))

    def _end_of(self, batch: Batch) -> OffsetJson:
        """Where Spark has planned the batch to end; nowhere, if its note of that is lost, or for a pass."""
        planned = self._checkpoint.log.planned()
        if batch.is_retry_pass or planned is None or planned < batch.spark_batch:
            return {}
        return to_json(self._checkpoint.log.end_of(batch.spark_batch))

    def _start_of(self, batch: Batch) -> Positions:
        return self._checkpoint.log.end_of(batch.spark_batch - 1) if batch.spark_batch else {}

    def _settle_decided(self) -> None:
        """At a start: a pass that ran before the decided batch is completed would change state that it starts from."""
        for number in self._decisions.numbers():
            found = self._find(self._batch(number))
            if found is not None and found.state:
                self._stage.settle(self._batch(number), found.state)

    def _takes_two_commits(self, batch: Batch, results: Results) -> bool:
        """Whether a crash could leave part of the batch in a table."""
        if results.dead_letters is not None and results.dead_letters.count():
            return True
        moved_nothing = batch.is_retry_pass and not results.outputs.count()
        return not moved_nothing and not self._sink.all_at_once

    def _forget(self, is_over: Callable[[int], bool]) -> None:
        """Spark asks for a batch only when the one before is noted, and for a pass's successor likewise."""
        for number in self._decisions.numbers():
            if is_over(number):
                self._decisions.forget(number)

    def _is_over(self, number: int) -> bool:
        """At a start: whether the sink has the unit, or Spark will not ask for it again."""
        unit = Batch("", number, 0)
        done = self._checkpoint.log.done()
        noted = not unit.is_retry_pass and done is not None and unit.spark_batch <= done
        return noted or (self._applied is not None and number <= self._applied)

    def _apply(self, batch: Batch, results: Results, began: Millis) -> Done:
        if self._whole and results.counts.get("missing"):
            log.warning(
                "%s: no message came for %d offsets: retention deleted them, or another member of the group had them",
                batch,
                results.counts["missing"],
            )
        dead = 0 if results.dead_letters is None else results.dead_letters.count()
        if results.dead_letters is not None and dead:
            self._dead.write(results.dead_letters, replace(batch, query=_dead(batch.query)))
        rows, counts = results.outputs.count(), dict(results.counts)
        # A pass that moved nothing has nothing to show; its retries would be a commit each.
        fresh = self._write(batch, results, counts) if rows or not batch.is_retry_pass else True
        if self._positions is not None:
            self._positions.committed(batch.number)
        self._stage.finished(batch)
        seconds = (self._clock.now() - began) / 1000
        return Done(batch, rows, dead, not fresh, seconds, counts)

    def _write(self, batch: Batch, results: Results, counts: dict[str, int]) -> bool:
        asked = self._effects.now()
        fresh = self._sink.write(results.outputs, batch)
        if fresh:
            self._effects.applied(results, batch, asked)
        if self._sink.last_stale:
            counts["stale"] = self._sink.last_stale
        if self._sink.last_replaced:
            counts["nul_replaced"] = self._sink.last_replaced
        return fresh

    def _batch(self, number: int) -> Batch:
        return Batch(self._checkpoint.query, number, self._checkpoint.epoch, self._checkpoint.name)

    def _retry_pass_number(self, behind: int) -> int | None:
        if self._spare is not None and Batch("", self._spare, 0).spark_batch == behind:
            number, self._spare = self._spare, None
            return number
        found = self._checkpoint.next_retry_pass(behind)
        if found is None and not self._told_full:
            self._told_full = True
            log.warning("batch %d has no number left for a pass: what waits is tried behind the next batch", behind)
        return found

    def _refuse_older_checkpoint(self) -> None:
        """After a crash the sink may have one batch that Spark has only planned, and never one it has not."""
        planned = self._checkpoint.log.planned()
        if self._applied is None or self._applied < batch_number((planned if planned is not None else -1) + 1):
            return
        has = Batch("", self._applied, 0).spark_batch
        raise StateLost(
            f"checkpoint {self._checkpoint.folder} is older than its sink: the sink has batch {has}, the checkpoint "
            f"{'planned none' if planned is None else f'ends with {planned}'}. It was restored from a copy or cut; "
            f"going on would leave messages out. Use the newest checkpoint, or an empty one and an empty sink"
        )

    def _look_for_lost_batches(self) -> None:
        """Before the sink is opened: what is refused must be as it was, so that a table put back is the right one."""
        done = self._checkpoint.log.done()
        if done is not None and self._sink.all_at_once and not self._new_sink:
            self._refuse_lost_batches(done, self._sink.applied_before_open(self._checkpoint.query))

    def _refuse_lost_batches(self, done: int | None, applied: int | None) -> None:
        """Spark notes a batch only behind the sink's commit: a sink without it is another one, or was put back.

        Not asked of sinks that cannot know. With `new_sink` the last batch is written down as one without rows, so
        that this is said once.
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
                f"another sink, was emptied, or was restored from a copy, and would stay without what is done. Use "
                f"the sink of this checkpoint; or begin with an empty checkpoint, to read everything again; or say "
                f"that a new sink begins here, with --new-sink or run(..., new_sink=True)"
            )
        log.warning("%s %s: it goes on behind batch %d, without what was done before", self._sink, has, done)
        self._sink.write(_nothing(self._stage.schema), self._batch(batch_number(done)))
        self._applied = self._sink.applied()


def _nothing(schema: StructType) -> FileRows:
    return FileRows(schema, [])


def _dead(query: str) -> str:
    """Under which name dead letters are written: in a database both sinks may share the ledger."""
    return f"{query}-dead"
