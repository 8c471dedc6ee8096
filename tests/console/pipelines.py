"""Checkpoints of pipelines for the console's tests: one with parked keys, one with dead letters."""

from pathlib import Path

from tests.console.conftest import HOSTILE
from tests.pipelines.stages.transitions import pipeline_fixture
from tests.pipelines.stages.transitions.dead_letter_fixture import DeadLetterPipeline
from tests.pipelines.stages.transitions.pipeline_fixture import Sent

from lanemq.pipelines import DeadLetter, Park
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, stage_folder

FAILS = {"n": 1, "fails": 99}


def parked_keys(
    folder: Path, *, hostile: str = HOSTILE, name: str = "orders", group: str | None = None
) -> pipeline_fixture.Pipeline:
    """Key `a` is parked with two messages, and the hostile key with one; key `c` moves."""
    Checkpoint(folder, name, {"group": group} if group else {}).close()
    stage_folder(folder).mkdir(parents=True)
    made = pipeline_fixture.Pipeline(stage_folder(folder), on_failure=Park())
    made.process(Sent(0, 0, "a", FAILS), Sent(0, 1, "a", 2), Sent(0, 2, hostile, FAILS), Sent(0, 3, "c", 4))
    return made


def given_up(folder: Path) -> DeadLetterPipeline:
    """Two dead letters of key `a`, one of key `b`."""
    made = DeadLetterPipeline(folder, on_failure=DeadLetter(skip=True))
    made.process(*(Sent(0, at, key, {"n": at, "fails": 1}) for at, key in enumerate(["a", "a", "b"])))
    return made
