"""What a pipeline is made of: a stage turns messages into rows, a sink applies rows once.

Order of events for a batch, guarded by the runner: the stage fixes the batch's rows; where more than one commit
follows, they are decided (`decisions.py`); the stage makes its state durable; the dead-letter sink and the sink apply
the rows under the batch's name; Spark notes the batch as done. A crash between any two of them repeats the batch:
what was decided is only completed, and whoever has it already does nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.types import StructType

from lanemq.model.units import Millis
from lanemq.pipelines.batch import Batch
from lanemq.pipelines.rows import Rows
from lanemq.pipelines.sink_positions import Reach

SEQUENCE, DELETED = "_sequence", "_deleted"
"""Columns of rows that are merged: what is newer (compared with >), and whether the newest is a deletion."""
KEPT = "_kept"
"""A column that rows of a merge may have: the JSON of a list of the columns whose stored value stays as it is."""


@dataclass(frozen=True, slots=True)
class Append:
    """Every row is added, in the order of its shard."""


@dataclass(frozen=True, slots=True)
class Merge:
    """At most one row per key; it replaces an older one of the key. Rows have the columns SEQUENCE and DELETED."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Results:
    """What a stage made of one batch."""

    outputs: Rows
    dead: Rows | None = None
    """Messages set aside for good, with the columns of `dead_letters.SCHEMA`; None if there are none."""
    counts: Mapping[str, int] = field(default_factory=dict)
    """For progress and summaries: events, repeats, gaps, held, parked, dead ..."""
    state: str = ""
    """What the stage has to remember of exactly this attempt, for its `settle`; empty: nothing."""
    reached: Mapping[str, Reach] = field(default_factory=dict)
    """How far the batch goes in every queue that it holds messages of, by `topic/broker/number`. In a group this is
    what keeps messages that come again under another number from the sink; empty: the stage drops them itself."""
    late: frozenset[tuple[str, int, int]] = frozenset()
    """Messages among the rows that a person redrove from the dead letters (topic, queue, offset): their rows come out
    of their key's order, which is no violation of anything."""


class Stage(Protocol):
    """Turns the messages of a batch into rows; pure in (messages, own state before the batch).

    A stage whose results depend on which queue a key is in has the attribute `on_queue_change`, "fail" or "continue":
    what is done when its topic gets more queues. None, or no such attribute: it does not matter.
    One that sets messages aside has `on_damaged`, "null" or "raw": how a body that cannot be unpacked reaches it so
    that it is poison there. Without, such a message ends the query.
    """

    columns: tuple[str, ...]
    """Columns of the source that are needed."""
    schema: StructType
    """Columns of the outputs."""

    @property
    def how(self) -> Append | Merge:
        """What a sink does with the outputs."""

    def open(self, spark: SparkSession, place: Path) -> None:
        """Before the first batch of a run. `place` is a folder inside the checkpoint, the stage's own."""

    def run(self, messages: DataFrame, batch: Batch) -> Results:
        """The rows of a batch. Nothing that a later batch could see has changed until `settle`."""

    def settle(self, batch: Batch, state: str) -> None:
        """This attempt counts: its state is what the next unit starts from. Called only if `Results.state` is set.

        Before any sink has the batch, and again for every repetition of it.
        """

    def due(self, wall: Millis) -> Millis | None:
        """How long until a pass without new messages is wanted (0: now); None: nothing waits."""

    def run_pass(self, batch: Batch) -> Results | None:
        """Tries again what waits. None: nothing was due."""

    def unfinished_pass(self) -> int | None:
        """The number of a pass that a crash interrupted, to be run again before anything else."""

    def finished(self, batch: Batch) -> None:
        """The sinks have it: files that only they needed may go."""


class Sink(Protocol):
    """Applies batches, each once, and refuses runs that were replaced.

    A sink with the attribute `all_at_once = True` promises that after a crash it has all of a batch or nothing, and
    knows which: only then a batch without dead letters needs no decision on disk before it is written. One with the
    method `follow(runs)` is told before `open` which epochs are this checkpoint's, so that it can refuse a copy of it.
    One with the method `look(query)` says before `open` what `applied` would say, and changes nothing for it.
    """

    def open(self, spark: SparkSession, query: str, epoch: int, schema: StructType, how: Append | Merge) -> None:
        """Before the first batch of a run. From now on lower epochs of this query are refused with `SinkFenced`.

        Refuses here what could only fail later: columns that do not fit the table, a table of another kind.
        """

    def applied(self) -> int | None:
        """The highest number of a batch of this query that is in; None: none yet."""

    def write(self, rows: Rows, batch: Batch) -> bool:
        """Rows and the batch's name in one commit. False: the batch was there already, nothing was done."""

    def close(self) -> None:
        """Connections end; what was applied stays."""
