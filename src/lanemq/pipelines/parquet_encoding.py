"""Which columns of a Parquet file get a dictionary.

Arrow gives one to every column. For a column with a different value in almost every row, such as a number or an id,
building it takes most of the time of the write, and the file becomes larger.
"""

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

SAMPLE: Final = 4_096
"""Rows that are looked at."""


def dictionary_columns(rows: pa.Table) -> list[str]:
    """Paths of the columns whose values repeat, judged by the first rows: `use_dictionary` of a Parquet writer.

    Columns within lists, maps and structs are not judged; they get a dictionary.
    """
    sample = rows.slice(0, SAMPLE)
    return [
        path
        for field, column in zip(sample.schema, sample.columns, strict=True)
        if pa.types.is_nested(field.type) or 2 * _distinct(column) <= len(column)
        for path in _paths(field.name, field.type)
    ]


def _distinct(column: pa.ChunkedArray) -> int:
    try:
        return len(column.unique())
    except pa.ArrowNotImplementedError:  # a type without a hash
        return 0


def _paths(name: str, kind: pa.DataType) -> Iterator[str]:
    """The paths of a column's values, as Parquet names them."""
    if pa.types.is_map(kind):
        yield from _paths(f"{name}.key_value.key", kind.key_type)
        yield from _paths(f"{name}.key_value.value", kind.item_type)
    elif pa.types.is_struct(kind):
        for field in kind:
            yield from _paths(f"{name}.{field.name}", field.type)
    elif pa.types.is_nested(kind):
        yield from _paths(f"{name}.list.element", kind.value_type)
    else:
        yield name
