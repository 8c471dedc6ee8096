"""Cuts the rows of a task into those of its queues.

A task reads one queue after the other, so the rows of a queue are one slice, unless `prepare` has mixed them.
"""

from collections.abc import Sequence
from functools import reduce

import pyarrow as pa
import pyarrow.compute as pc


def queue_borders(rows: pa.RecordBatch | pa.Table, names: Sequence[str]) -> list[int]:
    """The rows at which a value of these columns changes, with both ends; empty if there are no rows."""
    count = rows.num_rows
    if count < 2:
        return [0, 1] if count else []
    above, below = rows.slice(0, count - 1), rows.slice(1)
    changes = reduce(pc.or_, (pc.not_equal(above.column(name), below.column(name)) for name in names))
    return [0, *(at + 1 for at in pc.indices_nonzero(changes).to_pylist()), count]
