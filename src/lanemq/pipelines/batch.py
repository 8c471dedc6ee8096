"""The name of a batch: how a sink knows what it has, and who may still write.

The rules guarded here: the same number always stands for the same rows, so a sink that has it does nothing; a number
never comes twice with different rows, because passes between two batches of Spark have numbers of their own; a run
of the pipeline that was replaced has a lower epoch than the one that replaced it.
"""

from dataclasses import dataclass, field
from typing import Final

PASSES: Final = 1 << 20
"""Numbers that a batch of Spark has room for: its own, and those of the passes behind it."""


_MARK_BITS: Final = 32


@dataclass(frozen=True, slots=True)
class Batch:
    """One unit of work that a sink applies once."""

    query: str
    """The checkpoint's identity; the same after every restart."""
    number: int
    """Grows with every unit of work, without regard to restarts."""
    epoch: int
    """Grows with every start of the pipeline, and is no other checkpoint's: see `epoch_of_start`."""
    name: str = field(default="", compare=False)
    """What people call the pipeline, for what they are told; nothing is recognised by it."""

    @property
    def spark_batch(self) -> int:
        """The batch of Spark that this is, or follows."""
        return self.number // PASSES

    @property
    def is_pass(self) -> bool:
        """Whether this is work without new messages: lanes that are tried again."""
        return self.number % PASSES != 0

    def __str__(self) -> str:
        behind = f" pass {self.number % PASSES}" if self.is_pass else ""
        return f"{self.name or self.query} batch {self.spark_batch}{behind} (epoch {run_name(self.epoch)})"


def batch_number(spark_batch: int, pass_number: int = 0) -> int:
    """The number of a batch of Spark, or of a pass behind it."""
    if not 0 <= pass_number < PASSES:
        raise ValueError(f"pass {pass_number} of batch {spark_batch}: there is room for {PASSES - 1} of them")
    return spark_batch * PASSES + pass_number


def epoch_of_start(start: int, mark: int) -> int:
    """The epoch of a pipeline's start: its number, and behind it a random mark.

    Two copies of a checkpoint count on from the same number; without the mark each would take the other's epoch for
    its own.
    """
    return start << _MARK_BITS | mark % (1 << _MARK_BITS)


def start_of(epoch: int) -> int:
    """The how-manieth start of the pipeline an epoch stands for."""
    return epoch >> _MARK_BITS or epoch


def run_name(epoch: int) -> str:
    """An epoch as people say it."""
    return str(start_of(epoch))
