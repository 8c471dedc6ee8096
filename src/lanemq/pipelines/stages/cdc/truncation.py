"""Truncation: an event that deletes every row of the table without naming one.

The sink deletes all rows with a lower sequence, in the commit of the batch. Nothing of them stays, not even deletions
as rows, so a late older change would come back as a new row. The stage remembers the newest truncation and drops such
changes itself.

Invariants: after a truncation the table has exactly the rows whose newest change is newer than it, in whatever order
queues deliver them; where nothing says whether a change is older or newer than a truncation, the batch is refused.
"""

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lanemq.files import StorePath
from lanemq.pipelines.checkpoint.fencing import read_fenced_json, write_as
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


class _Known(msgspec.Struct):
    """What is stored beside the stage's other state."""

    emptied_below: Bound = None


class Truncation:
    """The newest truncation that the batches so far had."""

    def __init__(self, path: StorePath | None = None) -> None:
        """Reads it from `path`; None: keeps it in memory only."""
        self._path = path
        self._bound: Bound = None
        if path is not None and path.exists():
            found = read_fenced_json(path, _Known)
            assert isinstance(found, _Known)
            self._bound = found.emptied_below

    def newest(self, found: Bound) -> Bound:
        """The newest of the known truncations and `found`, which the batch has."""
        return newer_bound((self._bound, found))

    def state_after(self, found: Bound, state: str) -> str:
        """The stage's state, with the newest truncation if the batch has one."""
        if found is None:
            return state
        other = msgspec.json.decode(state or "{}", type=dict[str, Any])
        return msgspec.json.encode({**other, "emptied_below": self.newest(found)}).decode()

    def settle(self, state: str, epoch: int) -> None:
        """Stores the truncation in the state, if there is one; from now on older changes are dropped."""
        found = msgspec.json.decode(state, type=_Known)
        if found.emptied_below is None or found.emptied_below == self._bound:
            return
        if self._path is not None:
            write_as(epoch, self._path.parent, self._path, msgspec.json.encode(found))
        self._bound = found.emptied_below


def refuse_unordered(queues: Sequence[tuple[str, pa.Table]], bounds: Iterable[Bound]) -> None:
    """Raises `OrderError` if a change has the source sequence of a truncation in another queue."""
    for source, emptied in filter(None, map(source_and_queue, bounds)):
        for queue, rows in queues:
            if queue != emptied and pc.any(pc.equal(source_part(rows[SEQUENCE]), source)).as_py():
                raise truncated_in_two_queues(emptied, queue, source)
