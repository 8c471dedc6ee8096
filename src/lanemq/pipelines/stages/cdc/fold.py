"""Many changes to the newest one of each key, on whole columns.

The rules guarded here: what is newer is decided by the sequence alone, never by the kind of change; of equal sequences
the later place wins; and where two queues say different things about a key with nothing to say which is newer, the
batch is refused instead of one of them chosen by accident.
"""

from collections.abc import Sequence

import pyarrow as pa
import pyarrow.compute as pc

from lanemq.model.errors import OrderError
from lanemq.pipelines.ports import SEQUENCE
from lanemq.pipelines.stages.cdc.kept import filled
from lanemq.pipelines.stages.cdc.sequence import source_part

_PLACE, _QUEUE = "\0place", "\0queue"


def last_places(columns: pa.Table) -> pa.Array:
    """The last place of each combination of values, ascending."""
    names = columns.column_names
    numbered = columns.append_column(_PLACE, [_count(columns.num_rows)])
    found = numbered.group_by(names, use_threads=False).aggregate([(_PLACE, "max")])[f"{_PLACE}_max"]
    return found.combine_chunks().sort()


def newest(rows: pa.Table, keys: Sequence[str]) -> pa.Array:
    """The places of the newest row of each key."""
    names, sequences = list(keys), rows[SEQUENCE]
    if _ascending(sequences):
        return last_places(rows.select(names))
    numbered = pa.table({SEQUENCE: sequences, _PLACE: _count(rows.num_rows)})
    order = pc.sort_indices(numbered, sort_keys=[(SEQUENCE, "ascending"), (_PLACE, "ascending")])
    return order.take(last_places(rows.select(names).take(order))).sort()


def newest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The newest row of each key, with the columns that it left out from older ones."""
    return filled(rows, keys, newest(rows, keys))


def settle(queues: Sequence[tuple[str, pa.Table]], keys: Sequence[str]) -> pa.Table:
    """The newest row of each key over all queues, from the newest ones of each queue."""
    tagged = [
        rows.append_column(_QUEUE, [pa.repeat(pa.scalar(queue, pa.string()), rows.num_rows)]) for queue, rows in queues
    ]
    rows = pa.concat_tables(tagged)
    chosen = newest_rows(rows, keys)
    if chosen.num_rows < rows.num_rows:
        _refuse_ties(rows, list(keys))
    return chosen.drop_columns([_QUEUE])


def _refuse_ties(rows: pa.Table, keys: list[str]) -> None:
    """Rows of one key from two queues need a source sequence that differs, unless they say the same."""
    ordered = rows.sort_by([(name, "ascending") for name in (*keys, SEQUENCE)])
    below, above = ordered.slice(0, ordered.num_rows - 1), ordered.slice(1)
    tie = pc.not_equal(below[_QUEUE], above[_QUEUE])
    for name in keys:
        tie = pc.and_(tie, pc.equal(below[name], above[name]))
    if pa.types.is_string(ordered.schema.field(SEQUENCE).type):
        tie = pc.and_(tie, pc.equal(source_part(below[SEQUENCE]), source_part(above[SEQUENCE])))
    said = [name for name in rows.column_names if name not in (SEQUENCE, _QUEUE)]
    for lower, upper in zip(below.filter(tie).to_pylist(), above.filter(tie).to_pylist(), strict=True):
        if any(lower[name] != upper[name] for name in said):
            key = ", ".join(f"{name}={upper[name]!r}" for name in keys)
            raise OrderError(
                f"the row {key} was changed in queue {lower[_QUEUE]} and in queue {upper[_QUEUE]}, and nothing says "
                f"which change is newer: send a row's changes with one message key, or declare a sequence of the source"
            )


def _ascending(sequences: pa.ChunkedArray) -> bool:
    count = len(sequences)
    if count < 2:
        return True
    return bool(pc.all(pc.less_equal(sequences.slice(0, count - 1), sequences.slice(1))).as_py())


def _count(count: int) -> pa.Array:
    return pa.arange(0, count)
