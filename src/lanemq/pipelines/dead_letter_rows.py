"""The columns of a message that no step could take: enough to find it, to read it, and to try it again.

`waits`: the message was not given up. It cannot be decoded and waits in its key, which a person should know of.
"""

from pyspark.sql.types import (
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("broker", StringType()),
        StructField("queue_id", IntegerType()),
        StructField("queue_offset", LongType()),
        StructField("key", StringType()),
        StructField("value", BinaryType()),
        StructField("message_id", StringType()),
        StructField("store_timestamp", TimestampType()),
        StructField("reason", StringType()),
        StructField("attempts", IntegerType()),
        StructField("batch", LongType()),
        StructField("tags", StringType()),
        StructField("waits", BooleanType()),
    ]
)
