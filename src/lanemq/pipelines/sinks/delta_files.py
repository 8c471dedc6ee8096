"""Rows become files of a Delta table: placed in its folder first, named in its log afterwards.

The rules guarded here: a file is visible only through the commit that names it, and no two attempts share a name. What
a crash leaves between the two is invisible to readers and deleted by the next vacuum. Files and their names are on the
disk before the log can name them, or a power cut could leave a batch that counts as applied without its rows.

Files of a stage are taken over as they are: delta-rs would decode and encode every row, ten times as long, and mix
the rows of several files; so a shard's file keeps the shard's order.
"""

import json
import uuid
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from deltalake.transaction import AddAction

from lanemq.model.units import Millis
from lanemq.pipelines.atomic_files import sync
from lanemq.pipelines.rows import Rows
from lanemq.pipelines.sinks.shard_files import ShardRows, shards

LONGEST_BOUND = 64
"""Characters of a text that is written down as a file's smallest or largest; longer ones help no reader to skip."""

Values = Mapping[str, str | None]


def place_files(
    rows: Rows, wanted: pa.Schema, folder: Path, partition_by: Sequence[str], wall: Millis
) -> list[AddAction]:
    """Every shard's rows in the table's folder, and what the table's log has to say about them."""
    actions = []
    for shard in shards(rows, wanted):
        for values, part in _parts(shard, partition_by):
            target = folder / f"lanemq-{uuid.uuid4().hex}.parquet"
            part.put(target)
            sync(target)
            actions.append(
                AddAction(target.name, target.stat().st_size, values, wall, True, _stats(pq.read_metadata(target)))
            )
    if actions:
        sync(folder)
    return actions


def _parts(shard: ShardRows, partition_by: Sequence[str]) -> Iterator[tuple[Values, ShardRows]]:
    """The shard's rows by the values of the partition columns, each part in order."""
    if not partition_by:
        yield {}, shard
        return
    table = shard.load()
    for values in table.select(list(partition_by)).group_by(list(partition_by)).aggregate([]).to_pylist():
        part = table.filter(_matching(table, values)).drop_columns(list(partition_by))
        texts = {name: _partition_text(value) for name, value in values.items()}
        yield texts, ShardRows(shard.shard, part.num_rows, None, part)


def _matching(table: pa.Table, values: Mapping[str, Any]) -> pa.ChunkedArray:
    mask = pa.chunked_array([pa.repeat(True, table.num_rows)])
    for name, value in values.items():
        column = table[name]
        mask = pc.and_(mask, pc.is_null(column) if value is None else pc.fill_null(pc.equal(column, value), False))
    return mask


def _partition_text(value: Any) -> str | None:
    """As Delta's protocol writes partition values down; it knows no empty text, which is null there."""
    if value is None or value == "":
        return None
    return str(value).lower() if isinstance(value, bool) else str(value)


def _stats(metadata: pq.FileMetaData) -> str:
    """How many rows, and between which values: readers and merges skip files by them."""
    smallest: dict[str, Any] = {}
    largest: dict[str, Any] = {}
    nulls: dict[str, int] = {}
    for at in range(metadata.num_columns):
        found = [metadata.row_group(group).column(at) for group in range(metadata.num_row_groups)]
        bounds = _bounds([column.statistics for column in found])
        if "." not in metadata.schema.column(at).path and bounds is not None:
            name = metadata.schema.column(at).name
            smallest[name], largest[name], nulls[name] = bounds
    return json.dumps(
        {"numRecords": metadata.num_rows, "minValues": smallest, "maxValues": largest, "nullCount": nulls}
    )


def _bounds(parts: Sequence[Any]) -> tuple[int | str, int | str, int] | None:
    """Whole numbers and short texts only: they mean the same to every reader, unlike NaN and moments of time."""
    if not parts or any(part is None or not part.has_min_max or not part.has_null_count for part in parts):
        return None
    low, high = min(part.min for part in parts), max(part.max for part in parts)
    if isinstance(low, bool) or not isinstance(low, int | str):
        return None
    if isinstance(low, str) and max(len(low), len(high)) > LONGEST_BOUND:
        return None
    return low, high, sum(part.null_count for part in parts)
