"""The runs of one checkpoint, by their epochs: how a sink tells its own former runs from those of a copy.

A checkpoint that is copied counts on in both places, with the same query and the same batch numbers, but other ranges
of messages: each copy would take the other's batches for its own repetitions. The rule guarded here: a sink is handed
over only between runs of one checkpoint; what a copy has opened, nobody but the copy goes on with.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lanemq.pipelines.batch import start_of

KEPT: Final = 1_000
"""Starts that are remembered. A sink that was last opened before them is taken for an own one."""


@dataclass(frozen=True, slots=True)
class Runs:
    """Epochs, the oldest first; the last one is the run that asks."""

    epochs: tuple[int, ...]

    def with_next(self, epoch: int) -> "Runs":
        return Runs((*self.epochs, epoch)[-KEPT:])

    def know(self, epoch: int) -> bool:
        """Whether an epoch is one of theirs. Epochs without a mark are older than marks are."""
        return epoch in self.epochs or start_of(epoch) == epoch or start_of(epoch) < start_of(self.epochs[0])

    @property
    def newest(self) -> int:
        return self.epochs[-1] if self.epochs else 0

    def text(self) -> str:
        """One line each, for a file."""
        return "\n".join(map(str, self.epochs))


def read_runs(text: str) -> Runs:
    """From what `text` gave; ValueError if it is something else."""
    lines: Sequence[str] = text.split()
    if not lines:
        raise ValueError("no epoch")
    return Runs(tuple(map(int, lines)))
