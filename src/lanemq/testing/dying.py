"""Drivers that die at a named step of a batch, for proofs of exactly-once: a stage and sinks around the real ones.

    LANEMQ_DIE_AT="dead:2"    SIGKILL right behind the commit of batch 2's dead letters

The steps, in the order of a batch: `run` (before the user's code), `state` (the state is durable), `dead` (the dead
letters are committed), `sink` (the rows are, Spark knows nothing yet), `noted` (Spark has noted the batch, the group's
offset is not told yet). The rule guarded here: which run saw which batch is written down before the process can die,
so that a test can tell a batch that was really repeated from one that was not.
"""

import os
import signal
import threading
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lanemq.model.units import Millis
from lanemq.pipelines.batch import Batch, Runs
from lanemq.pipelines.ports import Append, Merge, Results, Sink, Stage
from lanemq.pipelines.rows import Rows

VARIABLE: Final = "LANEMQ_DIE_AT"
STEPS: Final = ("run", "state", "dead", "sink", "noted")


class Death:
    """Where this process ends, if it was told to."""

    def __init__(self, seen: Path, at: str | None = None) -> None:
        """`seen`: the file that gets a line `<batch> <epoch>` whenever a run comes by a batch."""
        self._seen = seen
        told = os.environ.get(VARIABLE, "") if at is None else at
        self._step, _, number = told.partition(":")
        self._batch = int(number) if number else 0
        if told and self._step not in STEPS:
            raise ValueError(f"{VARIABLE}={told!r}: the steps are {', '.join(STEPS)}, and 'dead:2' means in batch 2")

    def note(self, batch: Batch) -> None:
        with self._seen.open("a", encoding="ascii") as file:
            file.write(f"{batch.spark_batch} {batch.epoch}\n")

    def reached(self, step: str, batch: Batch) -> None:
        if self.is_at(step, batch):
            os.kill(os.getpid(), signal.SIGKILL)

    def is_at(self, step: str, batch: Batch) -> bool:
        return not batch.is_retry_pass and (step, batch.spark_batch) == (self._step, self._batch)

    def await_note(self, batch: Batch, checkpoint: Path) -> None:
        """Dies as soon as Spark has noted the batch."""
        if self.is_at("noted", batch):
            threading.Thread(target=self._watch, args=(batch, checkpoint), daemon=True).start()

    def _watch(self, batch: Batch, checkpoint: Path) -> None:
        while not (checkpoint / "commits" / str(batch.spark_batch)).exists():
            threading.Event().wait(0.002)
        self.reached("noted", batch)


class DyingStage(Stage):
    """A stage whose driver dies before the step, behind the state, or behind Spark's note."""

    def __init__(self, stage: Stage, death: Death, checkpoint: Path) -> None:
        self._stage = stage
        self._death = death
        self._checkpoint = checkpoint
        self.columns, self.schema, self.how = stage.columns, stage.schema, stage.how
        self.on_queue_change, self.on_damaged, self.evolves = stage.on_queue_change, stage.on_damaged, stage.evolves

    def open(self, spark: SparkSession, folder: Path) -> None:
        self._stage.open(spark, folder)
        self.columns, self.schema, self.how = self._stage.columns, self._stage.schema, self._stage.how

    def due(self, wall: Millis) -> Millis | None:
        return self._stage.due(wall)

    def run_retry_pass(self, batch: Batch) -> Results | None:
        return self._stage.run_retry_pass(batch)

    def unfinished_retry_pass(self) -> int | None:
        return self._stage.unfinished_retry_pass()

    def run(self, messages: DataFrame, batch: Batch) -> Results:
        self._death.note(batch)
        self._death.reached("run", batch)
        return self._stage.run(messages, batch)

    def settle(self, batch: Batch, state: str) -> None:
        self._death.note(batch)
        self._stage.settle(batch, state)
        self._death.reached("state", batch)

    def finished(self, batch: Batch) -> None:
        self._death.note(batch)
        self._stage.finished(batch)
        self._death.await_note(batch, self._checkpoint)


class DyingSink(Sink):
    """A sink whose driver dies right behind a commit; `step` is `sink`, or `dead` for dead letters."""

    def __init__(self, sink: Sink, death: Death, step: str) -> None:
        self._sink = sink
        self._death = death
        self._step = step
        self.all_at_once, self.appends_only, self.widens = sink.all_at_once, sink.appends_only, sink.widens

    def __str__(self) -> str:
        return str(self._sink)

    def accept_runs(self, runs: Runs) -> None:
        self._sink.accept_runs(runs)

    def applied_before_open(self, query: str) -> int | None:
        return self._sink.applied_before_open(query)

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        self._sink.open(spark, query, epoch, schema, how)

    def applied(self) -> int | None:
        return self._sink.applied()

    def write(self, rows: Rows, batch: Batch) -> bool:
        fresh = self._sink.write(rows, batch)
        self.last_stale, self.last_replaced = self._sink.last_stale, self._sink.last_replaced
        self._death.reached(self._step, batch)
        return fresh

    def close(self) -> None:
        self._sink.close()
