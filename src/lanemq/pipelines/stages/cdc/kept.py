"""Changes that leave columns out: `_kept` names them, and an older change of the batch, or the table, has the value.

The rule guarded here: a column that the source left out gets the value of the newest older change that has one, and
never null where somebody knows better. What the batch does not know stays named in `_kept`, as the JSON of a list of
names, and the sink's merge leaves these columns of the row as they are.
"""

from collections.abc import Sequence
from typing import Any

import msgspec
import pyarrow as pa

from lanemq.pipelines.ports import DELETED, KEPT, SEQUENCE


def kept_column(places: Sequence[int], left: dict[str, list[int]]) -> pa.Array:
    """`_kept` of the changes in these places; `left` has the changes that leave each column out."""
    names: dict[int, list[str]] = {}
    for name, changes in left.items():
        for change in changes:
            names.setdefault(change, []).append(name)
    return pa.array([_text(names.get(place, [])) for place in places] if names else [None] * len(places), pa.string())


def filled(rows: pa.Table, keys: Sequence[str], places: pa.Array) -> pa.Table:
    """The rows in these places, the newest of their keys, with what they left out taken from older ones."""
    chosen = rows.take(places)
    if KEPT not in rows.column_names or chosen[KEPT].null_count == chosen.num_rows:
        return chosen
    return _filled(rows, keys, places.to_pylist())


def _filled(rows: pa.Table, keys: Sequence[str], chosen: list[int]) -> pa.Table:
    kept: list[list[str]] = [msgspec.json.decode(text or "[]") for text in rows[KEPT].to_pylist()]
    histories = _histories(rows, keys, [place for place in chosen if kept[place]])
    gone = rows[DELETED].to_pylist()
    sources: dict[str, dict[int, int]] = {}
    for place, older in histories.items():
        for name in kept[place]:
            found = next((each for each in older if gone[each] or name not in kept[each]), None)
            if found is not None:
                sources.setdefault(name, {})[place] = found
    for name, found_at in sources.items():
        for place in found_at:
            kept[place] = [each for each in kept[place] if each != name]
    columns = [
        rows[name].take([sources.get(name, {}).get(place, place) for place in chosen])
        if name != KEPT
        else pa.array([_text(kept[place]) for place in chosen], pa.string())
        for name in rows.column_names
    ]
    return pa.table(columns, schema=rows.schema)


def _histories(rows: pa.Table, keys: Sequence[str], places: list[int]) -> dict[int, list[int]]:
    """The older rows of each of these rows' keys, the newest of them first."""
    named: list[tuple[Any, ...]] = list(zip(*(rows[key].to_pylist() for key in keys), strict=True))
    sequences = rows[SEQUENCE].to_pylist()
    wanted = {named[place]: place for place in places}
    found: dict[int, list[int]] = {place: [] for place in places}
    for each, key in enumerate(named):
        if (place := wanted.get(key)) is not None and each != place:
            found[place].append(each)
    return {place: sorted(some, key=lambda at: (sequences[at], at), reverse=True) for place, some in found.items()}


def _text(names: list[str]) -> str | None:
    return msgspec.json.encode(names).decode() if names else None
