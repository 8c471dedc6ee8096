"""Which shard a send belongs to.

Regular is a topic in which every message has one key and one queue, and every key one queue. There a send follows its
key, or, without a key, its message. A topic that is not regular is judged in one piece, and so is one that was deleted.
"""

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as f

WHOLE_TOPIC = -1
NOWHERE = -2
"""The shard of messages of which nothing but their sends is known."""

Order = tuple[int, int, int]
"""Time, file, line."""


@dataclass(frozen=True, slots=True)
class Topics:
    """What is true of a topic as a whole: not regular, and when somebody first sent to it. By `RunFile.label`."""

    irregular: frozenset[str]
    first_sends: dict[str, Order]


def find_routes(places: DataFrame) -> DataFrame:
    """topic, name → queue; rows without a name say when the topic was first sent to. Meant to be persisted."""
    messages = places.groupBy("topic", "id").agg(
        f.min("key").alias("key"),
        f.max("key").alias("other_key"),
        f.min("queue").alias("queue"),
        f.max("queue").alias("other_queue"),
        f.min(f.when(f.col("t").isNotNull(), f.struct("t", "file", "pos"))).alias("first"),
        f.max("whole").alias("whole"),
    )
    sent = messages.where("key IS NOT NULL OR id IS NULL").select(
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
    rows = routes.groupBy("topic").agg(f.max("odd").alias("odd"), f.min("first").alias("first")).collect()
    first_sends = {row.topic: (row.first.t, row.first.file, row.first.pos) for row in rows if row.first}
    return Topics(frozenset(row.topic for row in rows if row.odd), first_sends)


def into_shards(pieces: DataFrame, routes: DataFrame, topics: Topics) -> DataFrame:
    """Every piece in the task of its shard, in time order. Without a topic: about a file, and a shard of its own."""
    known = routes.where("queue IS NOT NULL AND name IS NOT NULL").select(
        "topic", "name", f.col("queue").alias("found")
    )
    # Pieces that know their queue match nothing, but would all meet in one task if their name were empty.
    by = f.coalesce(f.col("name"), f.concat(f.lit("q"), f.col("queue").cast("string")))
    routed = pieces.withColumn("name", by).join(known, ["topic", "name"], "left")
    shard = f.coalesce("queue", "found", f.lit(NOWHERE))
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
