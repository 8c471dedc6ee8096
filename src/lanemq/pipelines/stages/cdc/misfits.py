"""Misfits, values that did not fit their column and became null: reported once per run and column, kept for `status`.

Tasks count them by column and keep the first value of each. The checkpoint has the totals, in `misfits.json` of the
stage's folder.

Invariant: a repeated batch is counted once.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, TypeAlias

import msgspec

from lanemq.files import StorePath
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.checkpoint.fencing import read_fenced_json, write_as
from lanemq.pipelines.running.progress import counted

log = logging.getLogger(__name__)

Found: TypeAlias = dict[str, tuple[int, str]]
"""By column: how many values did not fit, and the first of them as text."""


class ColumnMisfits(msgspec.Struct, frozen=True):
    """The misfits of one column since the checkpoint began."""

    type: str
    first: str
    count: int
    batch: int
    """The last batch that had one."""
    before: int
    """The count before that batch, from which a repetition of it counts."""

    def line(self, column: str) -> str:
        """A sentence for people."""
        return _line(column, self.type, self.count, self.first)


class _Known(msgspec.Struct):
    """What is stored beside the stage's other state."""

    misfits: dict[str, ColumnMisfits] = {}


def combine_misfits(parts: Iterable[Found]) -> Found:
    """The misfits of several parts of a batch, in their order."""
    both: Found = {}
    for part in parts:
        for column, (count, first) in part.items():
            known, earlier = both.get(column, (0, first))
            both[column] = known + count, earlier
    return both


def read_misfits(stage_folder: StorePath) -> dict[str, ColumnMisfits]:
    """The misfits that a stage has recorded, by column; empty for stages without any."""
    path = stage_folder / "misfits.json"
    return read_fenced_json(path, _Known).misfits if path.exists() else {}


class Misfits:
    """The misfits of a stage: those of this run that were reported, and the totals."""

    def __init__(self, folder: StorePath | None = None) -> None:
        """Reads the totals from the stage's folder; None: keeps them in memory only."""
        self._folder = folder
        self._totals = {} if folder is None else read_misfits(folder)
        self._reported: set[str] = set()

    def report(self, found: Found, types: Mapping[str, str], batch: Batch) -> None:
        """Warns about each column, the first time in this run."""
        for column, (count, first) in found.items():
            if column not in self._reported:
                self._reported.add(column)
                log.warning(
                    "%s: %s. Correct the schema, or set misfits='dead_letter' to keep such messages; further values "
                    "of this column are only counted",
                    batch,
                    _line(column, types[column], count, first),
                )

    def state_after(self, found: Found, types: Mapping[str, str], state: str, batch: Batch) -> str:
        """The stage's state, with the totals after the batch."""
        if not found:
            return state
        totals = dict(self._totals)
        for column, (count, first) in found.items():
            known = totals.get(column, ColumnMisfits(types[column], first, 0, batch.number, 0))
            before = known.before if known.batch == batch.number else known.count
            totals[column] = ColumnMisfits(types[column], known.first, before + count, batch.number, before)
        other = msgspec.json.decode(state or "{}", type=dict[str, Any])
        return msgspec.json.encode({**other, "misfits": totals}).decode()

    def settle(self, state: str, epoch: int) -> None:
        """Stores the totals in the state, if it has any."""
        found = msgspec.json.decode(state, type=_Known)
        if not found.misfits or found.misfits == self._totals:
            return
        if self._folder is not None:
            write_as(epoch, self._folder, self._folder / "misfits.json", msgspec.json.encode(found))
        self._totals = found.misfits


def _line(column: str, type: str, count: int, first: str) -> str:
    return (
        f"{counted(count, 'values')} of the column {column} did not fit {type} and became null; the first was {first}"
    )
