"""What a pipeline is made of: a stage turns the messages of a batch into rows, and a sink applies each batch once.

The steps of a batch, in order (`running/batch_processor.py`): the stage computes the rows and its state after them; the
checkpoint records the state and, if more than one commit will follow, the rows (`checkpoint/units.py`); the dead-letter
sink and then the sink apply the rows under the batch's number; Spark records the batch as done. A crash between two
steps repeats the batch: a decided batch is completed as it was decided, a sink that has the batch does nothing, and if
the sink does not have it, the stage computes it again from the state before it.

Invariants: a batch number always stands for the same rows; retry passes between two Spark batches have numbers of their
own; a run that was replaced has a lower epoch than its successor; rows are computed before a sink sees them, because a
data frame that a sink evaluated twice could call the user's code twice and give different rows the second time.
"""
# ruff: noqa: B027  # the empty methods are defaults

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Literal, Protocol, TypeAlias

import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lanemq.files import StorePath, arrow_source
from lanemq.pipelines.batches import Batch, Runs
from lanemq.pipelines.text_limits import TextLimit
from lanemq.spark.versions import to_arrow_schema


class Rows(Protocol):
    """The rows of one batch."""

    @property
    def schema(self) -> StructType:
        """The columns."""

    def count(self) -> int:
        """The number of rows."""

    def frame(self, spark: SparkSession) -> DataFrame:
        """The rows as a data frame. A shuffle does not keep their order."""

    def table(self) -> pa.Table:
        """The rows as an Arrow table on the driver, for sinks with one connection."""

    @property
    def emptied_below(self) -> int | str | None:
        """For a merge: the sink first deletes all rows of its table with a sequence below this one. None: no rows."""


@dataclass(frozen=True, slots=True)
class RowFile:
    """A Parquet file with the rows of one shard, in order."""

    shard: str
    """The name of the queue, or of the share of the keys, within which rows are ordered; the same in every batch."""
    path: StorePath
    rows: int


@dataclass(frozen=True, slots=True)
class FileRows:
    """Rows in files that the driver and every executor can read; one file per shard, in order."""

    schema: StructType
    files: Sequence[RowFile]
    emptied_below: int | str | None = None

    def count(self) -> int:
        return sum(file.rows for file in self.files)

    def frame(self, spark: SparkSession) -> DataFrame:
        if not self.files:
            return spark.createDataFrame([], self.schema)
        return spark.read.schema(self.schema).parquet(*(str(file.path) for file in self.files))

    def table(self) -> pa.Table:
        wanted = to_arrow_schema(self.schema)
        if not self.files:
            return wanted.empty_table()
        return pa.concat_tables([pq.read_table(arrow_source(file.path), schema=wanted) for file in self.files])


@dataclass(frozen=True, slots=True)
class TableRows:
    """Rows in the driver's memory, such as one per key after a fold."""

    schema: StructType
    rows: pa.Table
    emptied_below: int | str | None = None

    def count(self) -> int:
        return int(self.rows.num_rows)

    def frame(self, spark: SparkSession) -> DataFrame:
        return spark.createDataFrame(self.rows, self.schema)

    def table(self) -> pa.Table:
        return self.rows


DEAD_LETTER_SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("broker", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("message_id", StringType()),
        StructField("store_timestamp", TimestampType()),
        StructField("reason", StringType()),
        StructField("attempts", IntegerType()),
        StructField("batch", LongType()),
        StructField("tags", StringType()),
        StructField("waits", BooleanType()),
    ]
)
"""The columns of a dead letter: enough to find the message, to read it and to try it again.

`waits` is true if the message was not given up: it cannot be decoded and waits in its key for an operator."""

SEQUENCE, DELETED = "_sequence", "_deleted"
"""Columns of rows to merge: a value that grows with every change of a row, and whether the row was deleted."""
KEPT = "_kept"
"""An optional column of rows to merge: a JSON list of the columns whose stored value must not change."""
QUEUE = "_queue"
"""An optional column of rows to merge: the queue of a row's last change. The sequence is then the offset in it, or a
position of the source and this offset. A sink refuses a batch with a row that ties with one of another queue
(`queue_ties.py`)."""


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
    """Messages that were given up, with the columns of `DEAD_LETTER_SCHEMA`; None if there are none."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """Numbers for progress reports: events, repeats, gaps, held, parked, dead ..."""
    state: str = ""
    """The stage's state after the batch, which its checkpoint keeps; empty if it is the same as before."""
    late: frozenset[tuple[str, str, int, int]] = frozenset()
    """Messages (topic, broker, queue, offset) that an operator redrove from the dead letters. Their rows are out of
    their key's order on purpose."""


QueueEnds: TypeAlias = Callable[[], Mapping[str, int | None]]
"""By `topic/broker/number` of every queue: the position, if the last batch that is done has read the queue to its end,
else None. Empty if the brokers do not answer."""


class Stage(ABC):
    """Turns the messages of a batch into rows. Base class for your own stages; only `process` must be written.

    `process` must depend only on the messages and on the state that `continue_from` gave: a batch may be repeated.
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
    declared: str = ""
    """A hash of the stage's options, which its pipeline sets when it is declared."""
    evolves: bool = False
    """Whether outputs may have more columns than `schema` declares. Needs a sink with `widens`."""

    def accept_queue_ends(self, queue_ends: QueueEnds) -> None:
        """Called before `open` with a function that says which queues are read to their ends now."""

    def accept_sink(self, sink: "Sink") -> None:
        """Called with the open sink before the first batch, for stages whose rows depend on what it can hold."""

    def open(self, spark: SparkSession, folder: StorePath) -> None:
        """Called before the first batch of a run. `folder` lies in the checkpoint and belongs to the stage."""

    def continue_from(self, state: str) -> None:
        """Compute the next batch from this state, which an earlier batch returned; empty: from the beginning.

        Called once after `open`, and whenever a new state has been recorded, before any sink has the batch.
        """

    @abstractmethod
    def process(self, messages: DataFrame, batch: Batch) -> Results:
        """Compute the rows of a batch, and the state after it. The batches that follow see it in `continue_from`."""

    def due(self, now: datetime) -> float | None:
        """Seconds until a retry pass should run; 0 for now, None if nothing waits."""
        return None

    def process_retry_pass(self, batch: Batch) -> Results | None:
        """Try held messages again and carry out operator requests. None if nothing was due."""
        return None

    def finished(self, batch: Batch) -> None:
        """Called when the sinks have the batch: files that only the sinks needed may be removed."""


@dataclass(frozen=True, slots=True, eq=False)
class SinkRun:
    """A run of a pipeline, as it opens a sink."""

    spark: SparkSession
    query: str
    """The name by which the sink knows the batches of this checkpoint."""
    epoch: int
    schema: StructType
    """The columns of the rows."""
    how: Append | Merge = Append()
    runs: Runs | None = None
    """The runs of the same checkpoint, so that the sink can refuse a copy of it. None: unknown, so every lower epoch is
    taken for one of them."""
    pipeline: str = ""
    """The name of the pipeline, so that the sink can refuse another checkpoint of it. Empty: unknown, and the sink has
    no owner."""
    new_checkpoint: bool = False
    """Whether the sink belongs to this checkpoint from now on, and no longer to the one before."""
    settings: Mapping[str, str] = field(default_factory=dict)
    """The settings of Spark, which may say how a store is reached."""
    columns: pa.Schema = None
    """The columns as Arrow has them. In a merge all but the keys may be null, as in the row of a deletion."""

    def __post_init__(self) -> None:
        if self.columns is None:
            keys = self.how.keys if isinstance(self.how, Merge) else ()
            columns = arrow_schema(self.schema, keys, loose=isinstance(self.how, Merge))
            object.__setattr__(self, "columns", columns)


def arrow_schema(schema: StructType, keys: Sequence[str] = (), *, loose: bool = False) -> pa.Schema:
    """The columns as Arrow types. `loose`: every column but the keys may be null, as in the row of a deletion."""
    exact = to_arrow_schema(schema)
    if not loose:
        return exact
    return pa.schema([field.with_nullable(field.name not in keys) for field in exact])


class Sink(ABC):
    """Applies each batch once and refuses runs that were replaced. Base class for your own sinks."""

    all_at_once: bool = False
    """Whether after a crash the sink has all of a batch or nothing, and knows which. Only then a batch without dead
    letters is written without recording its rows first. Needs `applied`."""
    appends_only: bool = False
    """Whether the sink cannot merge rows."""
    widens: bool = False
    """Whether rows may have columns that the table does not have yet."""
    empties: bool = False
    """Whether a merge observes `Rows.emptied_below`. Otherwise a truncation of the source becomes a dead letter."""
    last_stale: int = 0
    """Rows of the last `write` that a merge left out because the table's rows were as new or newer."""
    last_replaced: int = 0
    """Texts of the last `write` that were stored with a replacement character."""
    declared: str = ""
    """A hash of the sink's options, which its pipeline sets when it is declared."""
    packages: Mapping[str, str] = {}
    """Modules that the sink imports only when it is used, each with the extra of LaneMQ that installs it, or ""."""

    def __str__(self) -> str:
        """How messages name the sink."""
        return type(self).__name__

    def applied(self, query: str, settings: Mapping[str, str]) -> int | None:
        """The highest batch number of the query that the sink has; None if it has none, or cannot know.

        Called before and after `open`, also without Spark. Creates and changes nothing. `settings`: as in `SinkRun`.
        """
        if self.all_at_once:
            raise NotImplementedError(f"{type(self).__name__} sets all_at_once, so it must implement applied")
        return None

    @abstractmethod
    def open(self, run: SinkRun) -> None:
        """Called before the first batch of a run. From now on the sink refuses lower epochs with `SinkFenced`.

        Refuse here what would fail later: columns that do not fit the table, a table that is written another way.
        """

    @abstractmethod
    def write(self, rows: Rows, batch: Batch) -> bool:
        """Apply the rows and record the batch in one commit. False if the sink already had the batch."""

    def text_limits(self) -> tuple[TextLimit, ...]:
        """How long texts may be. Called after `open`; a message that gives a longer one is poison."""
        return ()

    def close(self) -> None:
        """Close connections. What was applied stays."""
