"""The columns of a message that no step could take: enough to find it, to read it and to send it again."""

from pyspark.sql.types import BinaryType, IntegerType, LongType, StringType, StructField, StructType, TimestampType

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
    ]
)
