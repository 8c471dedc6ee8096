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
from typing import Any, Final

from lanemq.pipelines.batch import Batch

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
        return not batch.is_pass and (step, batch.spark_batch) == (self._step, self._batch)

    def await_note(self, batch: Batch, checkpoint: Path) -> None:
        """Dies as soon as Spark has noted the batch."""
        if self.is_at("noted", batch):
            threading.Thread(target=self._watch, args=(batch, checkpoint), daemon=True).start()

    def _watch(self, batch: Batch, checkpoint: Path) -> None:
        while not (checkpoint / "commits" / str(batch.spark_batch)).exists():
            threading.Event().wait(0.002)
        self.reached("noted", batch)


class DyingStage:
    """A stage whose driver dies before the step, behind the state, or behind Spark's note."""

    def __init__(self, stage: Any, death: Death, checkpoint: Path) -> None:
        self._stage = stage
        self._death = death
        self._checkpoint = checkpoint

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stage, name)

    def run(self, messages: Any, batch: Batch) -> Any:
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


class DyingSink:
    """A sink whose driver dies right behind a commit; `step` is `sink`, or `dead` for dead letters."""

    def __init__(self, sink: Any, death: Death, step: str) -> None:
        self._sink = sink
        self._death = death
        self._step = step

    def __getattr__(self, name: str) -> Any:
        return getattr(self._sink, name)

    def write(self, rows: Any, batch: Batch) -> bool:
        fresh = bool(self._sink.write(rows, batch))
        self._death.reached(self._step, batch)
        return fresh
