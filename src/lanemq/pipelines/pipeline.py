"""The declaration of a pipeline: a topic, what is made of its messages, and where the result goes.

A declaration holds no connection and starts nothing, so it may be imported, checked and printed. Mistakes in it are
reported when it is declared.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Final, TypeAlias

from pyspark.sql import DataFrame

from lanemq.files import StorePath, locate
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis, Seconds, parse_duration, to_millis
from lanemq.pipelines.ports import Merge, Sink, Stage
from lanemq.pipelines.source import Topic

Prepare: TypeAlias = Callable[[DataFrame], DataFrame]

_NAME: Final = re.compile(r"[A-Za-z0-9_.-]{1,100}")
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")
"""Where an object is in memory, which is all that most objects say about themselves beside their names."""
_MAX_TRIGGER: Final = Millis(24 * 3_600_000)


@dataclass(frozen=True)
class Pipeline:
    """Source, stage and sink, and the checkpoint that connects their runs."""

    name: str
    """The name of the pipeline. A checkpoint belongs to one name."""
    source: Topic
    stage: Stage
    sink: Sink
    checkpoint: str | StorePath
    """A folder that the driver and the executors share, or an address such as `s3a://bucket/orders` or
    `hdfs://host/orders`. If it is lost, every message is read again. A relative path is relative to the working
    directory."""
    prepare: Prepare | None = None
    """Changes messages before the stage: filters and added columns. Must keep the rows of a queue together and in
    order, so no shuffle, and must return the same rows for the same messages."""
    dead_letters: Sink | None = None
    """The sink for dead letters. Default: a Delta table in the checkpoint's folder `dead_letters`."""
    trigger: Seconds | str = 0.0
    """Seconds between the starts of two batches, or text such as "5s" or "1m". A low value makes many small files and
    commits; a high value makes results late."""
    history: str | Path | None = None
    """A folder for the history of what the sink applied, for `lanemq check`."""
    spark: Mapping[str, str] = field(default_factory=dict)
    """Settings of the Spark session, if `run` makes one."""

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not _NAME.fullmatch(self.name):
            raise InvalidOption(
                f"name: {self.name!r} is not a valid name: use 1 to 100 of the characters A-Z a-z 0-9 _ . -"
            )
        _check_kinds(self)
        _check_fit(self)
        _check_evolution(self)
        _check_folder(self)
        if not 0 <= self.trigger_ms <= _MAX_TRIGGER:
            raise InvalidOption(f"trigger: {self.trigger} is not between 0 and a day; for rarer runs use once")
        for part in (self.stage, self.sink, self.dead_letters):
            if part is not None:
                object.__setattr__(part, "declared", part.declared or _described(part))  # it may be a frozen dataclass

    @property
    def folder(self) -> StorePath:
        """The checkpoint as an absolute path."""
        return locate(self.checkpoint, self.spark)

    @property
    def fingerprint(self) -> str:
        """A hash of what is declared about source, stage, `prepare` and sinks, equal in every process.

        Functions and objects count by their names only, because their content cannot be compared.
        """
        stage, sink, dead = self.stage.declared, self.sink.declared, self.dead_letters and self.dead_letters.declared
        declared = repr((sorted(self.source.public_options.items()), stage, sink, dead, self.prepare))
        return sha256(_ADDRESS.sub("", declared).encode()).hexdigest()

    @property
    def trigger_ms(self) -> Millis:
        if not isinstance(self.trigger, str):
            return to_millis(self.trigger)
        try:
            return to_millis(parse_duration(self.trigger))
        except InvalidOption as error:
            raise InvalidOption(f"trigger: {error}") from None


def _described(part: Stage | Sink) -> str:
    """A hash of a part's class and options. Made before the part is opened, which changes its attributes."""
    state = object.__getstate__(part)  # what `vars` gives; if the class has slots, followed by what is in them
    options: dict[str, object] = {}
    for attributes in state if isinstance(state, tuple) else (state,):
        for name, value in (attributes or {}).items():
            options[name] = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
    text = f"{type(part).__module__}.{type(part).__qualname__} {sorted(options.items())!r}"
    return sha256(_ADDRESS.sub("", text).encode()).hexdigest()


def _check_kinds(pipeline: Pipeline) -> None:
    if not isinstance(pipeline.source, Topic):
        raise InvalidOption(f"source: {pipeline.source!r} is not a topic: use Topic(...)")
    if not isinstance(pipeline.stage, Stage):
        raise InvalidOption(
            f"stage: {pipeline.stage!r} is not a stage: use Transitions, LastState, Project or your own"
        )
    for option, sink in (("sink", pipeline.sink), ("dead_letters", pipeline.dead_letters)):
        if sink is not None and not isinstance(sink, Sink):
            raise InvalidOption(f"{option}: {sink!r} is not a sink: use one of lanemq.pipelines, such as ParquetSink")
    if pipeline.dead_letters is not None and pipeline.dead_letters is pipeline.sink:
        raise InvalidOption("dead_letters: the same object as sink, but their columns differ: make another sink")
    if pipeline.sink is None:
        raise InvalidOption("sink: missing; name the target of the rows, such as ParquetSink(folder)")


def _check_fit(pipeline: Pipeline) -> None:
    """Refuse a stage that merges with a sink that only appends, before Spark is started."""
    if isinstance(pipeline.stage.how, Merge) and pipeline.sink.appends_only:
        stage, sink = type(pipeline.stage).__name__, type(pipeline.sink).__name__
        raise InvalidOption(
            f"sink: {sink} only adds rows, and {stage} replaces them: use DeltaSink, IcebergSink, SqliteSink, "
            f"PostgresSink or TopicSink (in a file: kind delta, iceberg, sqlite, postgres or topic)"
        )


def _check_evolution(pipeline: Pipeline) -> None:
    """Refuse new columns with a sink that cannot add them in the commit of a batch."""
    if pipeline.stage.evolves and not pipeline.sink.widens:
        raise InvalidOption(
            f"stage: evolve needs a sink that adds columns, and {type(pipeline.sink).__name__} cannot, or was made "
            f"with evolve=False: use DeltaSink, IcebergSink, SqliteSink or PostgresSink with evolve=True, or "
            f"leave evolve out"
        )


def _check_folder(pipeline: Pipeline) -> None:
    if not str(pipeline.checkpoint).strip():
        raise InvalidOption("checkpoint: empty; name a folder that the driver and the executors share")
    try:
        _ = pipeline.folder
    except InvalidOption as error:
        raise InvalidOption(f"checkpoint: {error}") from None
