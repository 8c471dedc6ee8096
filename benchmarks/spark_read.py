"""Batch reads into Spark: Arrow columns against a reader that hands over one row at a time.

Both read the same topic from the same broker with the same pulls and write to Spark's noop sink; the difference is
the decoding and the way into Spark. Prints one JSON line.

    python benchmarks/spark_read.py [messages of 100 B, default 400000]
"""

import json
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import Any

from pyspark.sql.datasource import InputPartition

from lanemq.client.admin import Admin
from lanemq.model.units import Millis
from lanemq.spark import recommended, register
from lanemq.spark.batch_reader import LaneBatchReader
from lanemq.spark.fetch import RangeReader
from lanemq.spark.options import parse_read_options
from lanemq.spark.reading import RangePartition
from lanemq.spark.sending import Outgoing, TaskSender
from lanemq.spark.source import LaneDataSource
from lanemq.spark.waiting import Patience
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.record import RecordView, record_starts
from lanemq.wire.stamp import find_stamp

QUEUES = 4
ROUNDS = 3


class RowReader(LaneBatchReader):
    """The obvious reader: an object per message, a tuple per row."""

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:  # type: ignore[override]
        assert isinstance(partition, RangePartition)
        reader = RangeReader(Patience(Millis(10_000)))
        try:
            for body in reader.chunks(partition.wanted, partition.terms.chunk_bytes):
                for start in record_starts(body):
                    yield _row(RecordView(body, start), partition.wanted.queue.broker)
        finally:
            reader.close()


class RowSource(LaneDataSource):
    @classmethod
    def name(cls) -> str:
        return "lanemq_rows"

    def reader(self, schema: Any) -> RowReader:
        return RowReader(parse_read_options(self.options, streaming=False), schema)


def _row(record: RecordView, broker: str) -> tuple[Any, ...]:
    properties = record.properties
    return (
        record.topic,
        broker,
        record.queue_id,
        record.queue_offset,
        properties.get("__SHARDINGKEY"),
        properties.get("TAGS"),
        properties.get("KEYS"),
        record.body,
        properties,
        properties.get("UNIQ_KEY"),
        datetime.fromtimestamp(record.born_timestamp / 1000, UTC),
        datetime.fromtimestamp(record.store_timestamp / 1000, UTC),
        record.reconsume_times,
        find_stamp(record.properties_text),
    )


def fill(address: str, topic: str, count: int, size: int) -> None:
    with Admin(address) as admin:
        admin.create_topic(topic, QUEUES)
    sender = TaskSender(address, f"fill-{topic}", 0, Millis(10_000))
    value = b"x" * size
    for number in range(count):
        sender.send(Outgoing(topic, value, f"key-{number % 10_000}"))
    sender.flush()
    sender.close()


def best(run: Callable[[], None]) -> float:
    """Seconds of the fastest round; the first also warms up the JVM."""
    times = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        run()
        times.append(time.perf_counter() - began)
    return min(times)


def main() -> None:
    small = int(sys.argv[1]) if len(sys.argv) > 1 else 400_000
    spark = recommended().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(RowSource)
    result: dict[str, Any] = {"benchmark": "spark_read", "unit": "messages/s"}
    with EmbeddedBroker() as broker:
        for name, count, size in (("100B", small, 100), ("1KB", small // 4, 1_000)):
            fill(broker.address, f"bench-{size}", count, size)

            def read(source: str, columns: str, topic: str = f"bench-{size}") -> None:
                reader = spark.read.format(source).option("servers", broker.address).option("topic", topic)
                reader = reader.option("columns", columns) if columns else reader
                reader.load().write.format("noop").mode("overwrite").save()

            for label, source, columns in (
                ("arrow", "lanemq", ""),
                ("arrow_key_value", "lanemq", "key,value"),
                ("rows", "lanemq_rows", ""),
            ):
                seconds = best(lambda source=source, columns=columns, read=read: read(source, columns))  # type: ignore[misc]
                result[f"{label}_{name}"] = round(count / seconds)
    spark.stop()
    print(json.dumps(result))


if __name__ == "__main__":
    main()
