"""Folds many changes to the newest one of each key, on whole columns.

With `left_out="keep"` a change may leave columns out; `_kept` names them, as the JSON of a list. Such a column gets the
value of the newest older change of the batch that has one. If there is none, the column stays named in `_kept`, and the
sink's merge leaves it as it is in the table.

Invariants: what is newer is decided by the sequence alone, never by the kind of change; of equal sequences the later
message wins; where two queues disagree about a key and nothing says which is newer, the batch is refused. Sinks do the
same for batches one after the other (`queue_ties.py`).
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc

from lanemq.pipelines.ports import DELETED, KEPT, QUEUE, SEQUENCE
from lanemq.pipelines.queue_ties import alike, by_source, changed_in_two_queues, tied, with_others

_INDEX = "\0index"


def last_indices(columns: pa.Table) -> pa.Array:
    """The last index of each combination of values, ascending."""
    names = columns.column_names
    numbered = columns.append_column(_INDEX, [_count(columns.num_rows)])
    found = numbered.group_by(names, use_threads=False).aggregate([(_INDEX, "max")])[f"{_INDEX}_max"]
    return found.combine_chunks().sort()


def newest(rows: pa.Table, keys: Sequence[str]) -> pa.Array:
    """The indices of the newest row of each key, ascending."""
    names, sequences = list(keys), rows[SEQUENCE]
    if _ascending(sequences):
        return last_indices(rows.select(names))
    numbered = pa.table({SEQUENCE: sequences, _INDEX: _count(rows.num_rows)})
    order = pc.sort_indices(numbered, sort_keys=[(SEQUENCE, "ascending"), (_INDEX, "ascending")])
    return order.take(last_indices(rows.select(names).take(order))).sort()


def newest_rows(rows: pa.Table, keys: Sequence[str]) -> pa.Table:
    """The newest row of each key, with the columns that it left out taken from older ones."""
    indices = newest(rows, keys)
    chosen = rows.take(indices)
    if KEPT not in rows.column_names or chosen[KEPT].null_count == chosen.num_rows:
        return chosen
    return _fill(rows, keys, indices.to_pylist())


def newest_of_queues(queues: Sequence[tuple[str, pa.Table]], keys: Sequence[str]) -> pa.Table:
    """The newest row of each key over all queues, with its queue. Raises if queues disagree."""
    tagged = [
        rows.append_column(QUEUE, [pa.repeat(pa.scalar(queue, pa.string()), rows.num_rows)]) for queue, rows in queues
    ]
    rows = pa.concat_tables(tagged)
    chosen = newest_rows(rows, keys)
    return chosen if chosen.num_rows == rows.num_rows else _settle_ties(rows, chosen, list(keys))


def _settle_ties(rows: pa.Table, chosen: pa.Table, keys: list[str]) -> pa.Table:
    """Refuses rows of one key that tie; marks those that are equal. `chosen` has the newest row of each key."""
    ordered = rows.sort_by([(name, "ascending") for name in (*keys, SEQUENCE)])
    below, above = ordered.slice(0, ordered.num_rows - 1), ordered.slice(1)
    ties = tied(below, above, QUEUE, SEQUENCE)
    for name in keys:
        ties = pc.and_(ties, pc.equal(below[name], above[name]))
    if not pc.any(ties).as_py():
        return chosen
    repeats, repeated = by_source(rows.schema.field(SEQUENCE).type), set[tuple[Any, ...]]()
    for lower, upper in zip(below.filter(ties).to_pylist(), above.filter(ties).to_pylist(), strict=True):
        if not repeats or not alike(lower, upper, (SEQUENCE, QUEUE)):
            raise changed_in_two_queues(
                {name: upper[name] for name in keys}, lower[QUEUE], upper[QUEUE], upper[SEQUENCE]
            )
        repeated.add((*(upper[name] for name in keys), upper[SEQUENCE]))
    return _marked(chosen, keys, repeated)


def _marked(chosen: pa.Table, keys: list[str], repeated: set[tuple[Any, ...]]) -> pa.Table:
    """The rows, of which those with these keys and sequences are in several queues."""
    named = zip(*(chosen[name].to_pylist() for name in (*keys, SEQUENCE)), strict=True)
    queues = [
        with_others(queue) if row in repeated else queue
        for row, queue in zip(named, chosen[QUEUE].to_pylist(), strict=True)
    ]
    at = chosen.schema.get_field_index(QUEUE)
    return chosen.set_column(at, chosen.schema.field(at), pa.array(queues, pa.string()))


def _ascending(sequences: pa.ChunkedArray) -> bool:
    count = len(sequences)
    if count < 2:
        return True
    return bool(pc.all(pc.less_equal(sequences.slice(0, count - 1), sequences.slice(1))).as_py())


def _count(count: int) -> pa.Array:
    return pa.arange(0, count)


def kept_column(indices: Sequence[int], left: dict[str, list[int]]) -> pa.Array:
    """The column `_kept` of these changes; `left` has the changes that leave each column out."""
    names: dict[int, list[str]] = {}
    for name, changes in left.items():
        for change in changes:
            names.setdefault(change, []).append(name)
    return pa.array([_text(names.get(index, [])) for index in indices] if names else [None] * len(indices), pa.string())


def _fill(rows: pa.Table, keys: Sequence[str], chosen: list[int]) -> pa.Table:
    kept: list[list[str]] = [msgspec.json.decode(text or "[]") for text in rows[KEPT].to_pylist()]
    histories = _histories(rows, keys, [index for index in chosen if kept[index]])
    gone = rows[DELETED].to_pylist()
    sources: dict[str, dict[int, int]] = {}
    for index, older in histories.items():
        for name in kept[index]:
            found = next((each for each in older if gone[each] or name not in kept[each]), None)
            if found is not None:
                sources.setdefault(name, {})[index] = found
    for name, found_at in sources.items():
        for index in found_at:
            kept[index] = [each for each in kept[index] if each != name]
    columns = [
        rows[name].take([sources.get(name, {}).get(index, index) for index in chosen])
        if name != KEPT
        else pa.array([_text(kept[index]) for index in chosen], pa.string())
        for name in rows.column_names
    ]
    return pa.table(columns, schema=rows.schema)


def _histories(rows: pa.Table, keys: Sequence[str], indices: list[int]) -> dict[int, list[int]]:
    """The other rows of each of these rows' keys, the newest first."""
    named: list[tuple[Any, ...]] = list(zip(*(rows[key].to_pylist() for key in keys), strict=True))
    sequences = rows[SEQUENCE].to_pylist()
    wanted = {named[index]: index for index in indices}
    found: dict[int, list[int]] = {index: [] for index in indices}
    for each, key in enumerate(named):
        if (index := wanted.get(key)) is not None and each != index:
            found[index].append(each)
    return {index: sorted(some, key=lambda at: (sequences[at], at), reverse=True) for index, some in found.items()}


def _text(names: list[str]) -> str | None:
    return msgspec.json.encode(names).decode() if names else None
