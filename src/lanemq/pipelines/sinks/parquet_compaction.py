"""Small Parquet files of a partition become one larger file. The sink commits the exchange."""

from collections.abc import Iterator, Sequence
from itertools import chain
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from lanemq.files import Output, StorePath, arrow_source
from lanemq.pipelines.parquet_encoding import dictionary_columns
from lanemq.pipelines.sinks.exact_sink import aligned
from lanemq.pipelines.sinks.parquet_layout import FileName, read_name

_GROUP_ROWS: Final = 1 << 20
_GROUP_BYTES: Final = 128 << 20
"""Rows and bytes in memory that become one row group of the new file."""


def merge_files(sources: Sequence[StorePath], target: StorePath, schema: pa.Schema) -> None:
    """Write the rows of the sources, one after the other, to a new file.

    `schema`: the columns of the new file; those that a source lacks are null.
    """
    output = Output(target)
    try:
        tables = (aligned(pq.ParquetFile(arrow_source(source)).read(), schema) for source in sources)
        write_tables(tables, output.target, schema)
    except BaseException:
        output.close(keep=False)
        raise
    output.close()


def write_tables(tables: Iterator[pa.Table], target: Any, schema: pa.Schema) -> None:
    """Write tables of this schema, at least one, to a Parquet file. A few of them are in memory at once."""
    first = next(tables)
    with pq.ParquetWriter(target, schema, use_dictionary=dictionary_columns(first)) as writer:
        group: list[pa.Table] = []
        for table in chain([first], tables):
            group.append(table)
            rows, size = sum(each.num_rows for each in group), sum(each.nbytes for each in group)
            if rows >= _GROUP_ROWS or size >= _GROUP_BYTES:
                writer.write_table(pa.concat_tables(group), row_group_size=_GROUP_ROWS)
                group = []
        if group:
            writer.write_table(pa.concat_tables(group), row_group_size=_GROUP_ROWS)


def merged_name(sources: Sequence[str], token: str) -> str:
    """The path of the file that replaces the sources: in their folder, as new as the newest of them."""
    names = [name for name in map(read_name, sources) if name is not None]
    folder, slash, _ = sources[0].rpartition("/")
    wall, batch = max(name.wall for name in names), max(name.batch for name in names)
    return f"{folder}{slash}{FileName(names[0].mark, batch, wall, token, compacted=True)}"
