"""A pipeline without a JVM that keeps its dead letters as a real one does: in a Delta table in the checkpoint."""

import json
from pathlib import Path
from typing import Any

from tests.pipelines.stages.transitions import pipeline_fixture

from lanemq.pipelines import DeadLetters, DeltaSink, dead_letters
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.checkpoint.checkpoint import stage_folder
from lanemq.pipelines.ports import DEAD_LETTER_SCHEMA, Append, Results, SinkRun


class DeadLetterPipeline(pipeline_fixture.Pipeline):
    """A pipeline with a checkpoint folder and a dead-letter sink."""

    def __init__(self, checkpoint: Path, **options: Any) -> None:
        self.checkpoint = checkpoint
        folder = stage_folder(checkpoint)
        folder.mkdir(parents=True)
        known = {
            "query": pipeline_fixture.QUERY,
            "name": "orders",
            "source": {"servers": "127.0.0.1:1", "topic": "orders"},
        }
        (folder.parent / "pipeline.json").write_text(json.dumps(known))
        self.dead_letter_sink = DeltaSink(checkpoint / "dead_letters")
        self.dead_letter_sink.open(SinkRun(None, f"{pipeline_fixture.QUERY}-dead", 1, DEAD_LETTER_SCHEMA, Append()))  # type: ignore[arg-type]
        super().__init__(folder, **options)

    @property
    def dead_letters(self) -> DeadLetters:
        return dead_letters(self.checkpoint)

    def _settle(self, results: Results, batch: Batch, *, settle: bool = True) -> dict[str, int]:
        if results.dead_letters is not None:
            self.dead_letter_sink.write(results.dead_letters, Batch(f"{batch.query}-dead", batch.number, batch.epoch))
        return super()._settle(results, batch, settle=settle)
