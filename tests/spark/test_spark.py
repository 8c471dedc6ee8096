"""The source and the sink in a real Spark session."""

import json
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.functions import spark_partition_id
from tests.spark.spark_driver import send

from lanemq.client.admin.admin import Admin
from lanemq.spark.columns import COLUMNS, DEFAULT_COLUMNS
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


class Collected:
    """Rows of a streaming query, batch by batch."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def __call__(self, frame: Any, batch: int) -> None:
        self.rows += frame.select("queue_id", "queue_offset", "key", "value").collect()

    @property
    def values(self) -> list[int]:
        return sorted(int(bytes(row.value)) for row in self.rows)


def stream(spark: Any, **options: object) -> Any:
    reader = spark.readStream.format("lanemq")
    for name, value in options.items():
        reader = reader.option(name, str(value))
    return reader.load()


def test_a_batch_query_reads_all_columns_of_all_messages(spark: Any, broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(300), tag="paid")
    reader = spark.read.format("lanemq").option("servers", broker.address).option("topic", topic)
    assert reader.load().schema == DEFAULT_COLUMNS
    frame = reader.option("columns", "*").load()
    assert frame.schema == COLUMNS
    rows = frame.collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(300))
    assert {row.tags for row in rows} == {"paid"}
    row = rows[0]
    assert row.properties["__SHARDINGKEY"] == row.key
    assert row.stamp.sequence == row.queue_offset
    for queue in (0, 1):
        offsets = [row.queue_offset for row in rows if row.queue_id == queue]
        assert offsets == list(range(len(offsets)))


def test_a_batch_query_between_two_limits_with_some_columns(spark: Any, broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(100))
    reader = spark.read.format("lanemq").schema("value binary, queue_offset long")
    reader = reader.option("servers", broker.address).option("topic", topic)
    reader = reader.option("endingOffsets", json.dumps({topic: {"0": 9}}))
    frame = reader.option("startingOffsets", json.dumps({topic: {"0": 5, "1": -1}})).load()
    assert frame.columns == ["value", "queue_offset"]
    assert [row.queue_offset for row in frame.collect()] == [5, 6, 7, 8]
    reader = reader.option("endingOffsets", "latest")
    empty = reader.option("startingOffsets", json.dumps({topic: {"0": -1, "1": -1}})).load()
    assert empty.count() == 0


def test_a_wrong_option_stops_a_query_before_it_starts(spark: Any, broker: EmbeddedBroker, topic: str) -> None:
    with pytest.raises(Exception, match=r"startingofsets: .*did you mean startingOffsets"):
        stream(spark, servers=broker.address, topic=topic, startingOfsets="earliest")


def test_a_streaming_query_continues_from_its_checkpoint(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    send(broker.address, topic, range(100))
    collected = Collected()
    frame = stream(spark, servers=broker.address, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=60)

    def run() -> Any:
        writer = frame.writeStream.foreachBatch(collected).option("checkpointLocation", str(tmp_path))
        query = writer.trigger(availableNow=True).start()
        assert query.awaitTermination(600)
        return query

    query = run()
    assert collected.values == list(range(100))
    (source,) = query.lastProgress["sources"]
    assert sum(json.loads(source["latestOffset"])[topic].values()) == 100
    send(broker.address, topic, range(100, 150))
    run()
    assert collected.values == list(range(150))


def test_the_sink_adds_nothing_when_a_batch_is_repeated(
    spark: Any, broker: EmbeddedBroker, topic: str, tmp_path: Path
) -> None:
    send(broker.address, topic, range(200))
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-out", 6)
    frame = stream(spark, servers=broker.address, topic=topic, startingOffsets="earliest", maxOffsetsPerTrigger=120)

    def run() -> None:
        # Rows as they were read: the option `topic` overrides the column, and other source columns are left out.
        writer = frame.writeStream.format("lanemq")
        writer = writer.option("servers", broker.address).option("topic", f"{topic}-out")
        query = writer.option("checkpointLocation", str(tmp_path)).trigger(availableNow=True).start()
        assert query.awaitTermination(600)

    run()
    commits = sorted(path for path in (tmp_path / "commits").iterdir() if path.name.isdigit())
    assert len(commits) == 2
    for path in (commits[-1], commits[-1].with_name(f".{commits[-1].name}.crc")):
        path.unlink(missing_ok=True)  # as if the driver had died between the batch and its commit
    run()
    frame = spark.read.format("lanemq").option("servers", broker.address).option("topic", f"{topic}-out").load()
    rows = frame.withColumn("task", spark_partition_id()).collect()
    assert sorted(int(bytes(row.value)) for row in rows) == list(range(200))
    by_key: dict[str, list[int]] = {}
    for row in rows:
        by_key.setdefault(row.key, []).append(int(bytes(row.value)))
    assert all(values == sorted(values) for values in by_key.values())
    places = [(row.task, row.queue_id, row.queue_offset) for row in rows]
    assert places == sorted(places), "each task returns one queue after the other"
    queues = {queue for _, queue, _ in places}
    assert len({(task, queue) for task, queue, _ in places}) == len(queues) > spark.sparkContext.defaultParallelism
    assert len({task for task, _, _ in places}) == spark.sparkContext.defaultParallelism, "register told the source"


def test_a_frame_is_written_to_a_topic(spark: Any, broker: EmbeddedBroker, topic: str) -> None:
    frame = spark.range(50, numPartitions=2).selectExpr("cast(id as string) value", "cast(id % 3 as string) key")
    frame.write.format("lanemq").mode("append").option("servers", broker.address).option("topic", topic).save()
    read = spark.read.format("lanemq").option("servers", broker.address).option("topic", topic).load()
    assert sorted(int(bytes(row.value)) for row in read.collect()) == list(range(50))
