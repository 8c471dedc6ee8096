"""Finds the shard that a send belongs to.

A topic is regular if every message has one key and one queue, and every key one queue. There a send belongs to the
queue of its key or, without a key, of its message. A topic that is not regular, or was deleted, is one shard.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

WHOLE_TOPIC = "*"
UNKNOWN_QUEUE = "?"
"""The shard of messages of which only their sends are known."""

Order = tuple[int, int, int]
"""Time, file, line."""


@dataclass(frozen=True, slots=True)
class Topics:
    """The topics that are not regular, and the first send to each topic. By `RunFile.label`."""

    irregular: frozenset[str]
    first_sends: dict[str, Order]


def find_routes(messages: DataFrame) -> DataFrame:
    """The queue of each topic and name; rows without a name have the topic's first send. The caller persists it."""
    merged = messages.groupBy("topic", "id").agg(
        f.min("key").alias("key"),
        f.max("key").alias("other_key"),
        f.min("queue").alias("queue"),
        f.max("queue").alias("other_queue"),
        f.min(f.when(f.col("t").isNotNull(), f.struct("t", "file", "pos"))).alias("first"),
        f.max("whole").alias("whole"),
    )
    sent = merged.where("key IS NOT NULL OR id IS NULL").select(
        "topic",
        f.when(f.col("id").isNotNull(), _name()).alias("name"),
        "queue",
        "other_queue",
        (f.col("whole") | f.coalesce(f.col("key") != f.col("other_key"), f.lit(False))).alias("odd"),
        "first",
    )
    names = sent.groupBy("topic", "name").agg(
        f.min("queue").alias("queue"),
        f.max("other_queue").alias("other_queue"),
        f.max("odd").alias("odd"),
        f.min("first").alias("first"),
    )
    split = f.coalesce(f.col("queue") != f.col("other_queue"), f.lit(False))
    return names.select("topic", "name", "queue", (f.col("odd") | split).alias("odd"), "first")


def find_topics(routes: DataFrame) -> Topics:
    """Collects what is true of whole topics."""
    rows = routes.groupBy("topic").agg(f.max("odd").alias("odd"), f.min("first").alias("first")).collect()
    first_sends = {row.topic: (row.first.t, row.first.file, row.first.pos) for row in rows if row.first}
    return Topics(frozenset(row.topic for row in rows if row.odd), first_sends)


def into_shards(pieces: DataFrame, routes: DataFrame, topics: Topics) -> DataFrame:
    """Brings every piece to the task of its shard, in time order. Pieces without a topic have a shard of their own."""
    known = routes.where("queue IS NOT NULL AND name IS NOT NULL").select(
        "topic", "name", f.col("queue").alias("found")
    )
    # Pieces with a queue match no name. They get one, because null names would all be joined in one task.
    by = f.coalesce(f.col("name"), f.concat(f.lit("q"), f.col("queue")))
    routed = pieces.withColumn("name", by).join(known, ["topic", "name"], "left")
    shard = f.coalesce("queue", "found", f.lit(UNKNOWN_QUEUE))
    if topics.irregular:
        shard = f.when(f.col("topic").isin(*topics.irregular), f.lit(WHOLE_TOPIC)).otherwise(shard)
    return (
        routed.withColumn("shard", shard)
        .drop("queue", "name", "found")
        .repartition("topic", "shard")
        .sortWithinPartitions("topic", "shard", "t", "file", "pos")
    )


def _name() -> Column:
    """As `scanning.name_of`."""
    keyed = f.concat(f.lit("k"), f.col("key"))
    return f.when(f.col("key") != "", keyed).otherwise(f.concat(f.lit("i"), f.col("id")))
