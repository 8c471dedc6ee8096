"""The rows of a batch as Parquet files in a sink's own folder, one per shard, in order.

The rule guarded here: a file that a table points at belongs to the table alone. A stage writes its files again when a
batch is repeated, so they are copied; a link would let that change rows which are long committed.
"""

import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from lanemq.pipelines.rows import FileRows, Rows
from lanemq.pipelines.sinks.columns import fit


@dataclass(frozen=True, slots=True)
class ShardRows:
    """The rows of one shard: in a file that can be copied as it is, or as a table."""

    shard: str
    rows: int
    path: Path | None
    table: pa.Table | None

    def load(self) -> pa.Table:
        return self.table if self.table is not None else pq.read_table(self.path, partitioning=None)

    def put(self, target: Path) -> None:
        if self.path is not None:
            shutil.copyfile(self.path, target)
        else:
            pq.write_table(self.table, target)


def shards(rows: Rows, wanted: pa.Schema) -> Iterator[ShardRows]:
    """Every shard that has rows. Files whose columns differ from the wanted ones are read and made to fit."""
    if not isinstance(rows, FileRows):
        if rows.count():
            yield ShardRows("driver", rows.count(), None, fit(rows.table(), wanted))
        return
    for file in rows.files:
        if file.rows:
            as_it_is = _fits(pq.read_schema(file.path), wanted)
            table = None if as_it_is else fit(pq.read_table(file.path, partitioning=None), wanted)
            yield ShardRows(file.shard, file.rows, file.path if as_it_is else None, table)


def file_name(shard: str) -> str:
    """A shard's name as a part of a file's."""
    return re.sub(r"[^A-Za-z0-9-]+", "-", shard)[:60] or "shard"


def _fits(found: pa.Schema, wanted: pa.Schema) -> bool:
    """Order does not matter to a reader of Parquet; nulls do, and only reading them would tell."""
    if sorted(found.names) != sorted(wanted.names):
        return False
    return all(
        found.field(field.name).type == field.type and (field.nullable or not found.field(field.name).nullable)
        for field in wanted
    )
