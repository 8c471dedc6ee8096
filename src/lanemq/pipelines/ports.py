"""What a pipeline is made of: a stage turns messages into rows, a sink applies each batch of rows once.

The steps of a batch, in order: the stage computes the rows; if more than one commit will follow, the rows are decided
on disk (`checkpoint/decisions.py`); the stage makes its state durable; the dead-letter sink and then the sink apply
the rows under the batch's number; Spark records the batch as done. A crash between two steps repeats the batch: a
decided batch is completed as it was decided, and a sink that already has the batch does nothing.
"""
# ruff: noqa: B027  # the empty methods are defaults

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Literal, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lanemq.pipelines.batch import Batch, Runs
from lanemq.pipelines.rows import Rows
from lanemq.pipelines.sink_positions import SinkPosition

SEQUENCE, DELETED = "_sequence", "_deleted"
"""Columns of rows to merge: a value that grows with every change of a row, and whether the row was deleted."""
KEPT = "_kept"
"""An optional column of rows to merge: a JSON list of the columns whose stored value must not change."""

OnQueueChange: TypeAlias = Literal["fail", "continue"]


@dataclass(frozen=True, slots=True)
class Append:
    """The sink adds every row; rows of a shard keep their order."""


@dataclass(frozen=True, slots=True)
class Merge:
    """The sink replaces the row with the same key if the new one is newer.

    A batch has at most one row per key. Rows have the columns SEQUENCE and DELETED.
    """

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """What a stage made of one batch."""

    outputs: Rows
    dead_letters: Rows | None = None
    """Messages that were given up, with the columns of `rows.DEAD_LETTER_SCHEMA`; None if there are none."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers for progress reports: events, repeats, gaps, held, parked, dead ..."""
    state: str = ""
    """What the stage needs to make the state of this attempt durable in `settle`; empty if there is nothing."""
    positions: Mapping[str, SinkPosition] = field(default_factory=dict)
    """How far the batch read each queue, by `topic/broker/number`. In a consumer group this keeps messages that come
    again in a later batch from being applied twice. Empty if the stage drops repeats itself."""
    late: frozenset[tuple[str, int, int]] = frozenset()
    """Messages (topic, queue, offset) that an operator redrove from the dead letters. Their rows are out of their
    key's order on purpose."""


class Stage(ABC):
    """Turns the messages of a batch into rows. Base class for your own stages; only `run` must be written.

    `run` must depend only on the messages and on the stage's state before the batch: a batch may be repeated.
    """

    columns: tuple[str, ...] = ()
    """Columns of the source that the stage reads; empty for all."""
    schema: StructType
    """Columns of the outputs. May be set in `open`."""
    how: Append | Merge = Append()
    """What the sink does with the outputs."""
    on_queue_change: OnQueueChange | None = None
    """What happens when the topic gets more queues. None if the results do not depend on a key's queue."""
    on_damaged: Literal["null", "raw"] | None = None
    """What the stage receives for a body that cannot be decompressed, so that it becomes a dead letter: no body, or
    the raw bytes. None: such a message ends the query."""
    evolves: bool = False
    """Whether outputs may have more columns than `schema` declares. Needs a sink with `widens`."""

    def open(self, spark: SparkSession, folder: Path) -> None:
        """Called before the first batch of a run. `folder` lies in the checkpoint and belongs to the stage."""

    @abstractmethod
    def run(self, messages: DataFrame, batch: Batch) -> Results:
        """Compute the rows of a batch. State that later batches see may change only in `settle`."""

    def settle(self, batch: Batch, state: str) -> None:
        """Make the state of this attempt durable; the next batch starts from it.

        Called only if `Results.state` is set, before any sink has the batch, and again when the batch is repeated.
        """

    def due(self, now: datetime) -> float | None:
        """Seconds until a retry pass should run; 0 for now, None if nothing waits."""
        return None

    def run_retry_pass(self, batch: Batch) -> Results | None:
        """Try held messages again and carry out operator requests. None if nothing was due."""
        return None

    def unfinished_retry_pass(self) -> int | None:
        """The number of a retry pass that a crash interrupted; it is run again before anything else."""
        return None

    def finished(self, batch: Batch) -> None:
        """Called when the sinks have the batch: files that only the sinks needed may be removed."""


class Sink(ABC):
    """Applies each batch once and refuses runs that were replaced. Base class for your own sinks."""

    all_at_once: bool = False
    """Whether after a crash the sink has all of a batch or nothing, and knows which. Only then a batch without dead
    letters is written without a decision on disk first. Needs `applied_before_open`."""
    appends_only: bool = False
    """Whether the sink cannot merge rows."""
    widens: bool = False
    """Whether rows may have columns that the table does not have yet."""
    last_stale: int = 0
    """Rows of the last `write` that a merge left out because the table's rows were as new or newer."""
    last_replaced: int = 0
    """Texts of the last `write` that were stored with a replacement character."""

    def __str__(self) -> str:
        """How messages name the sink."""
        return type(self).__name__

    def accept_runs(self, runs: Runs) -> None:
        """Called before `open` with the runs of this checkpoint, so that the sink can refuse a copied checkpoint."""

    def applied_before_open(self, query: str) -> int | None:
        """What `applied` would return for this query, without creating or changing anything. Called before `open`."""
        raise NotImplementedError(f"{type(self).__name__} sets all_at_once, so it must implement applied_before_open")

    @abstractmethod
    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        """Called before the first batch of a run. From now on the sink refuses lower epochs with `SinkFenced`.

        Refuse here what would fail later: columns that do not fit the table, a table that is written another way.
        """

    @abstractmethod
    def applied(self) -> int | None:
        """The highest batch number of this query that the sink has; None before the first."""

    @abstractmethod
    def write(self, rows: Rows, batch: Batch) -> bool:
        """Apply the rows and record the batch in one commit. False if the sink already had the batch."""

    def close(self) -> None:
        """Close connections. What was applied stays."""
