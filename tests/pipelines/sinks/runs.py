"""Runs of one checkpoint with a real sink and without Spark."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.pipelines.checkpoint.test_checkpoint import used_by_spark
from tests.pipelines.fakes import FakeSink, FakeStage
from tests.pipelines.sinks.targets import (
    EVENTS,
    DeltaTarget,
    IcebergTarget,
    ParquetTarget,
    PostgresTarget,
    SqliteTarget,
    Target,
)

from lanemq.files import remove_tree
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.ports import Results
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.running.effect_history import EffectHistory


class Runs:
    """Runs of one checkpoint with one target; every batch has one row, its number."""

    def __init__(self, target: Target, folder: Path, name: str = "orders") -> None:
        self.target, self.folder, self.name = target, folder, name
        self.stage = FakeStage()
        self.stage.schema = EVENTS
        self.stage.process = self._row  # type: ignore[method-assign]
        self.make: Callable[[], Any] = target.make
        self.held: list[Any] = []
        folder.mkdir()

    def _row(self, messages: Any, batch: Batch) -> Results:
        return Results(self.target.batch_rows(a=[batch.spark_batch]))

    def start(self, *, new_sink: bool = False, new_checkpoint: bool = False) -> BatchProcessor:
        self.crash()
        checkpoint = Checkpoint(self.folder, self.name)
        self.held.append(checkpoint)
        effects = EffectHistory(None, self.name)
        processor = BatchProcessor(
            self.stage, self.make(), FakeSink(), checkpoint, effects, new_sink=new_sink, new_checkpoint=new_checkpoint
        )  # type: ignore[arg-type]
        self.held.append(processor)
        processor.open(None)  # type: ignore[arg-type]
        return processor

    def crash(self) -> None:
        while self.held:
            self.held.pop().close()

    def do(self, number: int, *, recorded: bool = True, new_sink: bool = False, new_checkpoint: bool = False) -> None:
        """Run one batch; unless `recorded`, the driver dies before Spark records it."""
        processor = self.start(new_sink=new_sink, new_checkpoint=new_checkpoint)
        used_by_spark(self.folder, planned=number, done=number - 1)
        processor.process_batch(None, number)  # type: ignore[arg-type]
        if recorded:
            used_by_spark(self.folder, planned=number, done=number)


def emptied(target: Target) -> None:
    """Empty the target as users do: drop the table but not the ledger, or delete the folder."""
    if isinstance(target, PostgresTarget):
        target.ask(f"DROP TABLE {target.schema}.rows")
    elif isinstance(target, SqliteTarget):
        target.ask("DROP TABLE rows")
    elif isinstance(target, IcebergTarget):
        target.drop()
    elif isinstance(target, DeltaTarget | ParquetTarget):
        remove_tree(target.place)
