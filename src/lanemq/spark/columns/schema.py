"""The columns of a message in Spark, and the selection that a query makes.

Spark does not tell Python sources which columns a query uses. A user can select them with `.schema(...)` or the option
`columns`, and only those are decoded. A query that selects an unknown column, or a column with another type, is refused
before it starts.
"""

from collections.abc import Sequence

import pyarrow as pa
from pyspark.sql.pandas.types import to_arrow_schema
from pyspark.sql.types import (
    BinaryType,
    IntegerType,
    LongType,
    MapType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from lanemq.model.errors import InvalidOption
from lanemq.spark.foreign_names import equivalent_column

STAMP = StructType(
    [
        StructField("producer", StringType()),
        StructField("epoch", LongType()),
        StructField("sequence", LongType()),
    ]
)

COLUMNS = StructType(
    [
        StructField("topic", StringType()),
        StructField("broker", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("key", StringType()),
        StructField("tags", StringType()),
        StructField("keys", StringType()),
        StructField("value", BinaryType()),
        StructField("properties", MapType(StringType(), StringType())),
        StructField("message_id", StringType()),
        StructField("born_timestamp", TimestampType()),
        StructField("store_timestamp", TimestampType()),
        StructField("reconsume_times", IntegerType()),
        StructField("stamp", STAMP),
    ]
)
"""All columns. `topic`, `broker` and `queue_id` identify a queue; together with `queue_offset`, a message."""


def select_columns(names: Sequence[str]) -> StructType:
    """The schema with only these columns, in this order."""
    known = {field.name: field for field in COLUMNS.fields}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        hints = "".join(f"; {name} is {column} here" for name in unknown if (column := equivalent_column(name)))
        raise InvalidOption(f"columns: {unknown or 'nothing given'}{hints}; choose from {', '.join(known)}")
    return StructType([known[name] for name in names])


def check_schema(schema: StructType) -> StructType:
    """Returns the schema if all its columns exist with these types, else raises `InvalidOption`."""
    expected = select_columns([field.name for field in schema.fields])
    for asked, actual in zip(schema.fields, expected.fields, strict=True):
        if asked.dataType.simpleString() != actual.dataType.simpleString():
            raise InvalidOption(
                f"schema: column {asked.name} is {actual.dataType.simpleString()}, "
                f"not {asked.dataType.simpleString()}; read it with its own type and cast it"
            )
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """The Arrow schema of the record batches. Spark compares it exactly before it reads the first batch."""
    return to_arrow_schema(schema, timezone="UTC")
