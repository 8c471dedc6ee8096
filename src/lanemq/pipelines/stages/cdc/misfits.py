"""Misfits, values that did not fit their column and became null: reported once per run and column, kept for `status`.

Tasks count them by column and keep the first value of each. The stage's state has the totals.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import TypeAlias

import msgspec

from lanemq.pipelines.batches import Batch
from lanemq.pipelines.running.progress import counted

log = logging.getLogger(__name__)

Found: TypeAlias = dict[str, tuple[int, str]]
"""By column: how many values did not fit, and the first of them as text."""


class ColumnMisfits(msgspec.Struct, frozen=True):
    """The misfits of one column since the checkpoint began."""

    type: str
    first: str
    count: int

    def line(self, column: str) -> str:
        """A sentence for people."""
        return _line(column, self.type, self.count, self.first)


def combine_misfits(parts: Iterable[Found]) -> Found:
    """The misfits of several parts of a batch, in their order."""
    both: Found = {}
    for part in parts:
        for column, (count, first) in part.items():
            known, earlier = both.get(column, (0, first))
            both[column] = known + count, earlier
    return both


class Misfits:
    """Reports the misfits of a run."""

    def __init__(self) -> None:
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


def total_misfits(
    before: Mapping[str, ColumnMisfits], found: Found, types: Mapping[str, str]
) -> dict[str, ColumnMisfits]:
    """The totals after a batch."""
    totals = dict(before)
    for column, (count, first) in found.items():
        known = totals.get(column, ColumnMisfits(types[column], first, 0))
        totals[column] = ColumnMisfits(types[column], known.first, known.count + count)
    return totals


def _line(column: str, type: str, count: int, first: str) -> str:
    return (
        f"{counted(count, 'values')} of the column {column} did not fit {type} and became null; the first was {first}"
    )
