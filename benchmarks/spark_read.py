"""Batch reads into Spark: Arrow columns against a reader that hands over one row at a time.

Both read the same topic from the same broker with the same pulls and write to Spark's noop sink; the difference is
the decoding and the way into Spark. `decode_*` are messages per CPU second of the decoding alone, `broker_us` is the
broker's CPU time per message: on a small machine it is the broker that a fast reader waits for. One JSON line.

    python -m benchmarks.spark_read [messages of 100 B, default 400000]
"""

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from functools import partial
from typing import Any

from pyspark.sql.datasource import InputPartition

from benchmarks.harness import BrokerProcess
from lanemq.client.admin import Admin
from lanemq.model.units import Millis
from lanemq.spark import recommended, register
from lanemq.spark.batch_reader import LaneBatchReader
from lanemq.spark.columns import Wanted, decode
from lanemq.spark.fetch import RangeReader
from lanemq.spark.options import parse_read_options
from lanemq.spark.reading import RangePartition
from lanemq.spark.schema import COLUMNS, arrow_schema
from lanemq.spark.sending import Outgoing, TaskSender
from lanemq.spark.source import LaneDataSource
from lanemq.spark.waiting import Patience
from lanemq.wire.record import RecordView, record_starts
from lanemq.wire.stamp import find_stamp

QUEUES = 4
ROUNDS = 4
KINDS = {"arrow": ("lanemq", ""), "arrow_key_value": ("lanemq", "key,value"), "rows": ("lanemq_rows", "")}


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


def timed(run: Callable[[], None]) -> float:
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def decoding(address: str, topic: str, count: int) -> dict[str, int]:
    """Messages per CPU second from bodies that are in memory already."""
    options = parse_read_options({"servers": address, "topic": topic}, streaming=False)
    bodies: list[bytes] = []
    for partition in LaneBatchReader(options, COLUMNS).partitions():
        assert isinstance(partition, RangePartition)
        reader = RangeReader(Patience(Millis(10_000)))
        bodies += reader.chunks(partition.wanted, partition.terms.chunk_bytes)
        reader.close()
    wanted = Wanted(arrow_schema(COLUMNS), "broker")
    began = time.process_time()
    for body in bodies:
        decode(body, 0, 2**62, wanted)
    columns = time.process_time()
    for body in bodies:
        for start in record_starts(body):
            _row(RecordView(body, start), "broker")
    rows = time.process_time()
    return {"decode_arrow": round(count / (columns - began)), "decode_rows": round(count / (rows - columns))}


def main(small: int = 400_000) -> None:
    spark = recommended().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    register(spark)
    spark.dataSource.register(RowSource)
    result: dict[str, Any] = {"benchmark": "spark_read", "unit": "messages/s"}
    with BrokerProcess() as broker:
        for name, count, size in (("100B", small, 100), ("1KB", small // 4, 1_000)):
            topic = f"bench-{size}"
            fill(broker.address, topic, count, size)
            result |= {f"{what}_{name}": rate for what, rate in decoding(broker.address, topic, count).items()}

            def read(source: str, columns: str, topic: str = topic) -> None:
                reader = spark.read.format(source).option("servers", broker.address).option("topic", topic)
                reader = reader.option("columns", columns) if columns else reader
                reader.load().write.format("noop").mode("overwrite").save()

            cpu = broker.cpu_seconds()
            # In turns, so that a busy moment of the machine and a cold JVM hit all alike; the first turn warms up.
            times: dict[str, list[float]] = {label: [] for label in KINDS}
            for _ in range(ROUNDS):
                for label, (source, columns) in KINDS.items():
                    times[label].append(timed(partial(read, source, columns)))
            result |= {f"{label}_{name}": round(count / min(seconds)) for label, seconds in times.items()}
            pulled = count * ROUNDS * len(KINDS)
            result[f"broker_us_{name}"] = round((broker.cpu_seconds() - cpu) / pulled * 1e6, 2)
    spark.stop()
    result["load"] = round(os.getloadavg()[0], 1)
    print(json.dumps(result))


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
