"""The numbers of a pipeline: its batches, the retry passes between them, and the runs of its checkpoint.

Without PySpark, so that commands and the console read a checkpoint in their own process.
"""

from dataclasses import dataclass, field
from typing import Final

NUMBERS_PER_BATCH: Final = 1 << 20
"""Batch numbers reserved for each Spark batch: its own, and those of the retry passes that follow it."""
MAX_RUNS: Final = 1_000
"""Runs that a checkpoint remembers. A sink that was last opened by an older run is assumed to belong to it."""

_MARK_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """One unit of work that a sink applies once: a Spark batch or a retry pass."""

    query: str
    """The identity of the checkpoint; the same after every restart."""
    number: int
    """Grows with every unit of work, across restarts."""
    epoch: int
    """Grows with every start of the pipeline and is unique to the checkpoint: see `epoch_of_start`."""
    name: str = field(default="", compare=False)
    """The name of the pipeline, for messages only."""

    @property
    def spark_batch(self) -> int:
        """The Spark batch that this is, or follows."""
        return self.number // NUMBERS_PER_BATCH

    @property
    def retry_pass(self) -> int:
        """0 for a Spark batch, else the ordinal of the retry pass that follows it."""
        return self.number % NUMBERS_PER_BATCH

    @property
    def is_retry_pass(self) -> bool:
        """Whether this is work without new messages: held lanes that are tried again."""
        return self.retry_pass != 0

    def __str__(self) -> str:
        suffix = f" retry pass {self.retry_pass}" if self.is_retry_pass else ""
        return f"{self.name or self.query} batch {self.spark_batch}{suffix} (epoch {run_name(self.epoch)})"


def batch_number(spark_batch: int, retry_pass: int = 0) -> int:
    """The number of a Spark batch, or of a retry pass that follows it."""
    if not 0 <= retry_pass < NUMBERS_PER_BATCH:
        raise ValueError(
            f"retry pass {retry_pass} of batch {spark_batch}: a batch has at most {NUMBERS_PER_BATCH - 1} of them"
        )
    return spark_batch * NUMBERS_PER_BATCH + retry_pass


def dead_letter_query(query: str) -> str:
    """The query under which dead letters are written: the two sinks of a pipeline may share a ledger."""
    return f"{query}-dead"


def epoch_of_start(start: int, mark: int) -> int:
    """The epoch of a pipeline start: its ordinal, followed by a random mark.

    Two copies of a checkpoint count on from the same ordinal; the mark tells their epochs apart.
    """
    return start << _MARK_BITS | mark % (1 << _MARK_BITS)


def start_of(epoch: int) -> int:
    """The ordinal of the pipeline start encoded in `epoch`."""
    return epoch >> _MARK_BITS or epoch


def run_name(epoch: int) -> str:
    """An epoch as messages show it."""
    return str(start_of(epoch))


@dataclass(frozen=True, slots=True)
class Runs:
    """The epochs of one checkpoint's runs, oldest first, the current one last.

    With them a sink tells earlier runs of the same checkpoint from runs of a copy. A copy continues with the same query
    and batch numbers but reads other messages, so each copy would take the other's batches for its own.

    Invariant: only the copied checkpoint may keep writing to a sink that it has opened.
    """

    epochs: tuple[int, ...]

    def with_next(self, epoch: int) -> "Runs":
        return Runs((*self.epochs, epoch)[-MAX_RUNS:])

    def includes(self, epoch: int) -> bool:
        """Whether the epoch belongs to this checkpoint. Epochs without a mark are older than marks are."""
        return epoch in self.epochs or start_of(epoch) == epoch or start_of(epoch) < start_of(self.epochs[0])

    @property
    def newest(self) -> int:
        return self.epochs[-1] if self.epochs else 0
