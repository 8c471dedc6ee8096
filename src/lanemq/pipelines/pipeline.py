"""What a pipeline is: a topic, what is made of its messages, and where the result goes.

A declaration and nothing more: it holds no connection and starts nothing, so it may be imported, checked and printed.
The rule guarded here: what can be wrong with it is found when it is declared.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import DataFrame

from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis
from lanemq.pipelines.ports import Merge, Sink, Stage
from lanemq.pipelines.source import Topic
from lanemq.spark.options import duration

Prepare: TypeAlias = Callable[[DataFrame], DataFrame]

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_LONGEST_TRIGGER: Final = Millis(24 * 3_600_000)


@dataclass(frozen=True)
class Pipeline:
    """Source, stage and sink, and the checkpoint that ties their runs together."""

    name: str
    """What people call it; a checkpoint belongs to one name."""
    source: Topic
    stage: Stage
    sink: Sink
    checkpoint: str | Path
    """A folder that driver and executors share. Without it every message would be new again. A relative path is
    relative to the working directory."""
    prepare: Prepare | None = None
    """Changes messages before the stage: filters and added columns. Must keep the rows of a queue together and in
    order, so no shuffle, and must give the same rows for the same messages."""
    dead_letters: Sink | None = None
    """Where messages go that no step could take; Parquet files in the checkpoint's `dead_letters` unless told."""
    trigger: str = "0s"
    """Time between the beginnings of two batches. Short: many small files and commits; long: late results."""
    history: str | Path | None = None
    """Folder for what happened, for `lanemq check`."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of the session, where `run` makes one."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidOption(f"name: {self.name!r} is no name: use 1 to 100 of the characters A-Z a-z 0-9 _ . -")
        _check_kinds(self)
        _check_fit(self)
        _check_evolution(self)
        _check_folder(str(self.checkpoint))
        if self.trigger_ms > _LONGEST_TRIGGER:
            raise InvalidOption(f"trigger: {self.trigger} is longer than a day; run it with once instead")

    @property
    def folder(self) -> Path:
        """The checkpoint's."""
        return Path(self.checkpoint).absolute()

    @property
    def trigger_ms(self) -> Millis:
        try:
            return duration(self.trigger)
        except InvalidOption as error:
            raise InvalidOption(f"trigger: {error}") from None


def _check_kinds(pipeline: Pipeline) -> None:
    if not isinstance(pipeline.source, Topic):
        raise InvalidOption(f"source: a Topic(...) is wanted, not {pipeline.source!r}")
    if not isinstance(pipeline.stage, Stage):
        raise InvalidOption(f"stage: {pipeline.stage!r} is no stage: use Transitions, LastState, Project or your own")
    for option, sink in (("sink", pipeline.sink), ("dead_letters", pipeline.dead_letters)):
        if sink is not None and not isinstance(sink, Sink):
            raise InvalidOption(f"{option}: {sink!r} is no sink: use one of lanemq.pipelines, such as ParquetSink")
    if pipeline.dead_letters is not None and pipeline.dead_letters is pipeline.sink:
        raise InvalidOption("dead_letters: the same object as sink; their columns differ, so make a sink of its own")
    if pipeline.sink is None:
        raise InvalidOption("sink: missing; say where the rows go, such as ParquetSink(folder)")


def _check_fit(pipeline: Pipeline) -> None:
    """A sink that only adds rows says so with `appends_only`; told here, since opening it needs Spark."""
    if isinstance(pipeline.stage.how, Merge) and pipeline.sink.appends_only:
        stage, sink = type(pipeline.stage).__name__, type(pipeline.sink).__name__
        raise InvalidOption(
            f"sink: {sink} only adds rows, and {stage} replaces them: use DeltaSink, SqliteSink, PostgresSink or "
            f"TopicSink (in a file: kind delta, sqlite, postgres or topic)"
        )


def _check_evolution(pipeline: Pipeline) -> None:
    """New columns are added in the commit of their batch, which not every sink can do."""
    if pipeline.stage.evolves and not pipeline.sink.widens:
        raise InvalidOption(
            f"stage: evolve needs a table that may get columns, and {type(pipeline.sink).__name__} has none, or was "
            f"made with evolve=False: use DeltaSink, SqliteSink or PostgresSink with evolve=True, or leave it out"
        )


def _check_folder(checkpoint: str) -> None:
    if not checkpoint.strip():
        raise InvalidOption("checkpoint: empty; name a folder that driver and executors share")
    if "://" in checkpoint or checkpoint.startswith("file:"):
        raise InvalidOption(
            f"checkpoint: {checkpoint!r} is an address; give the path of a folder that driver and executors share"
        )
