"""A stage and sinks around the real ones whose driver dies at a named step of a batch, to test exactly-once.

    LANEMQ_DIE_AT="dead_letters:2"    SIGKILL right after the commit of batch 2's dead letters

The steps, in the order of a batch: `run` (before the user's code), `state` (the state is durable), `dead_letters` (the
dead letters are committed), `sink` (the rows are committed, Spark has not recorded the batch), `recorded` (Spark has
recorded the batch, the group's offset is not committed yet).

    LANEMQ_DIE_AT="pass-sink:2"       the same steps in a retry pass after batch 2

In a retry pass, `run` is before its first step or timer, and `recorded` is its end, since Spark does not record it.

Each run records the batches it processes before it can die, so that a test can tell whether a batch was repeated.
"""

import os
import signal
import threading
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Final

from pyspark.sql import DataFrame, SparkSession

from lanemq.files import StorePath
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import QueueEnds, Results, Rows, Sink, SinkRun, Stage
from lanemq.pipelines.text_limits import TextLimit

VARIABLE: Final = "LANEMQ_DIE_AT"
STEPS: Final = ("run", "state", "dead_letters", "sink", "recorded")
STAGED: Final = "staged"
"""The rows are written and not committed: a step of sinks in tests that call `KillPoint.reached` there."""
IN_PASS: Final = "pass-"


class KillPoint:
    """The step at which this process kills itself, if there is one."""

    def __init__(self, seen: Path, at: str | None = None) -> None:
        """`seen`: a file that gets a line `<batch> <epoch>` for every batch that a run processes.

        `at`: the step and batch, such as `sink:2` or `pass-sink:2`. Default: the environment variable.
        """
        self._seen = seen
        step = os.environ.get(VARIABLE, "") if at is None else at
        self._in_pass = step.startswith(IN_PASS)
        self._step, _, number = step.removeprefix(IN_PASS).partition(":")
        self._batch = int(number) if number else 0
        steps = (*STEPS, STAGED)
        if step and self._step not in steps:
            raise ValueError(f"{VARIABLE}={step!r}: the steps are {', '.join(steps)}, and 'sink:2' means in batch 2")

    def record(self, batch: Batch) -> None:
        with self._seen.open("a", encoding="ascii") as file:
            file.write(f"{batch.spark_batch} {batch.epoch}\n")

    def reached(self, step: str, batch: Batch) -> None:
        if self.is_at(step, batch):
            os.kill(os.getpid(), signal.SIGKILL)

    def is_at(self, step: str, batch: Batch) -> bool:
        return batch.is_retry_pass == self._in_pass and (step, batch.spark_batch) == (self._step, self._batch)

    def kill_when_recorded(self, batch: Batch, checkpoint: StorePath) -> None:
        """Kill this process as soon as Spark has recorded the batch."""
        if self.is_at("recorded", batch):
            threading.Thread(target=self._watch, args=(batch, checkpoint), daemon=True).start()

    def _watch(self, batch: Batch, checkpoint: StorePath) -> None:
        while not (checkpoint / "commits" / str(batch.spark_batch)).exists():
            threading.Event().wait(0.002)
        self.reached("recorded", batch)


class DyingStage(Stage):
    """A stage whose driver dies before the step, after the state is durable, or after Spark recorded the batch."""

    def __init__(self, stage: Stage, kill_point: KillPoint, checkpoint: StorePath) -> None:
        self._stage = stage
        self._kill_point = kill_point
        self._checkpoint = checkpoint
        self._batch: Batch | None = None
        """The batch or retry pass that was computed last."""
        self.columns, self.schema, self.how = stage.columns, stage.schema, stage.how
        self.on_queue_change, self.on_damaged, self.evolves = stage.on_queue_change, stage.on_damaged, stage.evolves

    def accept_queue_ends(self, queue_ends: QueueEnds) -> None:
        self._stage.accept_queue_ends(queue_ends)

    def accept_sink(self, sink: Sink) -> None:
        self._stage.accept_sink(sink)

    def open(self, spark: SparkSession, folder: StorePath) -> None:
        self._stage.open(spark, folder)
        self.columns, self.schema, self.how = self._stage.columns, self._stage.schema, self._stage.how

    def due(self, now: datetime) -> float | None:
        return self._stage.due(now)

    def process_retry_pass(self, batch: Batch) -> Results | None:
        self._batch = batch
        self._kill_point.reached("run", batch)
        return self._stage.process_retry_pass(batch)

    def process(self, messages: DataFrame, batch: Batch) -> Results:
        self._batch = batch
        self._kill_point.record(batch)
        self._kill_point.reached("run", batch)
        return self._stage.process(messages, batch)

    def continue_from(self, state: str) -> None:
        self._stage.continue_from(state)
        if self._batch is not None:
            self._kill_point.reached("state", self._batch)

    def finished(self, batch: Batch) -> None:
        self._kill_point.record(batch)
        self._stage.finished(batch)
        self._kill_point.kill_when_recorded(batch, self._checkpoint)


class DyingSink(Sink):
    """A sink whose driver dies right after a commit; `step` is `sink` or `dead_letters`."""

    def __init__(self, sink: Sink, kill_point: KillPoint, step: str) -> None:
        self._sink = sink
        self._kill_point = kill_point
        self._step = step
        self.all_at_once, self.appends_only, self.widens = sink.all_at_once, sink.appends_only, sink.widens
        self.empties, self.packages = sink.empties, sink.packages

    def __str__(self) -> str:
        return str(self._sink)

    def applied(self, query: str, settings: Mapping[str, str]) -> int | None:
        return self._sink.applied(query, settings)

    def open(self, run: SinkRun) -> None:
        self._sink.open(run)

    def text_limits(self) -> tuple[TextLimit, ...]:
        return self._sink.text_limits()

    def write(self, rows: Rows, batch: Batch) -> bool:
        fresh = self._sink.write(rows, batch)
        self.last_stale, self.last_replaced = self._sink.last_stale, self._sink.last_replaced
        self._kill_point.reached(self._step, batch)
        return fresh

    def close(self) -> None:
        self._sink.close()
