"""A stage or sink of one's own needs only its essential methods; everything else has a default."""

from pathlib import Path
from typing import Any

import pytest
from tests.pipelines.checkpoint.test_checkpoint import used_by_spark
from tests.pipelines.fakes import SCHEMA, FakeSink, rows_of

from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.ports import Results, Sink, SinkRun, Stage
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.running.effect_history import EffectHistory


class OneRow(Stage):
    schema = SCHEMA

    def process(self, messages: Any, batch: Batch) -> Results:
        return Results(rows_of(("t", 0, batch.spark_batch, "k")))


class RowList(Sink):
    def __init__(self) -> None:
        self.rows: list[dict[str, Any]] = []
        self.last: int | None = None

    def open(self, run: SinkRun) -> None:
        self.last = None

    def write(self, rows: Any, batch: Batch) -> bool:
        self.rows += rows.table().to_pylist()
        self.last = batch.number
        return True


def processor(folder: Path, sink: Sink) -> tuple[BatchProcessor, Checkpoint]:
    checkpoint = Checkpoint(folder, "orders")
    used_by_spark(folder, planned=5, done=4)
    return BatchProcessor(OneRow(), sink, FakeSink(), checkpoint, EffectHistory(None, "orders")), checkpoint


def test_a_stage_and_a_sink_with_only_the_essential_methods_process_batches(tmp_path: Path) -> None:
    sink = RowList()
    opened, checkpoint = processor(tmp_path, sink)
    opened.open(None)  # type: ignore[arg-type]
    assert (opened.due(), opened.finish_retry_pass()) == (None, None)
    assert opened.process_batch(None, 5).outputs == 1  # type: ignore[arg-type]
    assert ([row["queue_offset"] for row in sink.rows], sink.last) == ([5], batch_number(5))
    opened.close()
    checkpoint.close()


def test_a_sink_that_sets_all_at_once_must_say_what_it_has_before_it_is_opened(tmp_path: Path) -> None:
    sink = RowList()
    sink.all_at_once = True
    opened, checkpoint = processor(tmp_path, sink)
    with pytest.raises(NotImplementedError, match="RowList sets all_at_once, so it must implement applied"):
        opened.open(None)  # type: ignore[arg-type]
    checkpoint.close()
