"""Truncation: an event that deletes every row of the table without naming one.

The sink deletes all rows with a lower sequence, in the commit of the batch. Nothing of them stays, not even deletions
as rows, so a late older change would come back as a new row. The stage remembers the newest truncation and drops such
changes itself.

Invariants: after a truncation the table has exactly the rows whose newest change is newer than it, in whatever order
queues deliver them; where nothing says whether a change is older or newer than a truncation, the batch is refused.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import pyarrow as pa
import pyarrow.compute as pc

from lanemq.pipelines.ports import SEQUENCE
from lanemq.pipelines.queue_ties import source_and_queue, source_part, truncated_in_two_queues

Bound: TypeAlias = int | str | None
"""The sequence of a truncation, with its queue if it is a position of the source; None if there is none."""


def newer_bound(bounds: Iterable[Bound]) -> Bound:
    """The newest of some truncations, whose sequences are all numbers or all texts."""
    known: list[Any] = [bound for bound in bounds if bound is not None]
    return max(known, default=None)


def drop_older(rows: pa.Table, bound: Bound) -> pa.Table:
    """The rows that are newer than a truncation."""
    return rows if bound is None else rows.filter(pc.greater(rows[SEQUENCE], pa.scalar(bound)))


def refuse_unordered(queues: Sequence[tuple[str, pa.Table]], bounds: Iterable[Bound]) -> None:
    """Raises `OrderError` if a change has the source sequence of a truncation in another queue."""
    for source, emptied in filter(None, map(source_and_queue, bounds)):
        for queue, rows in queues:
            if queue != emptied and pc.any(pc.equal(source_part(rows[SEQUENCE]), source)).as_py():
                raise truncated_in_two_queues(emptied, queue, source)
