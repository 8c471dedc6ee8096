"""The columns of a message in Spark, and which of them a query asked for.

Spark hands Python sources no list of the columns a query uses, so the user says it: `.schema(...)` or the option
`columns` with some of these columns, and only those are decoded. What is asked for must exist under its own type,
or the query is refused before it starts; a silent null column would look like data.
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
from lanemq.spark.foreign_names import column_in_our_words

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
"""Everything. `topic`, `broker` and `queue_id` name a queue; with `queue_offset` they name a message."""


def some_columns(names: Sequence[str]) -> StructType:
    """The schema with these columns only, in the order given."""
    known = {field.name: field for field in COLUMNS.fields}
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        hints = "".join(f"; {name} is {ours} here" for name in unknown if (ours := column_in_our_words(name)))
        raise InvalidOption(f"columns: {unknown or 'nothing given'}{hints}; choose from {', '.join(known)}")
    return StructType([known[name] for name in names])


def check_schema(schema: StructType) -> StructType:
    """The schema itself if its columns are ours with our types, else `InvalidOption`."""
    expected = some_columns([field.name for field in schema.fields])
    for asked, ours in zip(schema.fields, expected.fields, strict=True):
        if asked.dataType.simpleString() != ours.dataType.simpleString():
            raise InvalidOption(
                f"schema: column {asked.name} is {ours.dataType.simpleString()}, "
                f"not {asked.dataType.simpleString()}; read it as it is and cast it"
            )
    return schema


def arrow_schema(schema: StructType) -> pa.Schema:
    """What record batches must look like, to the letter: Spark compares before it reads the first one."""
    return to_arrow_schema(schema, timezone="UTC")
