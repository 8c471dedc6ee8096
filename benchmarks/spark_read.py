"""Batch reads into Spark, to nowhere and to Parquet: Arrow columns, a reader of rows, and Spark's own Parquet reader.

All three read the same rows with all their columns, in turns, so that a busy moment of the machine and a cold JVM hit
them alike; the first turn warms up and is not counted. The reader of rows is the obvious one: an object per message, a
tuple per row, the same pulls from the same broker. `value` is the median of ours; `rows` and `parquet` are the others',
`default` is ours with the columns that a query gets if it names none, `key_value` with two columns only. `*_cpu_us` is
CPU time per message of everything but the broker, and on a machine that others use it says more than a rate;
`broker_us` is the broker's.

`spark_decode` are messages per CPU second of the decoding alone, without broker and Spark.

    python -m benchmarks.spark_read [messages, default 400000] [rounds, default 4]
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.datasource import InputPartition

from benchmarks.harness import BrokerProcess, report
from benchmarks.spark_common import cpu_seconds, fill, session, timed
from lanemq.model.units import Millis
from lanemq.spark.columns import COLUMNS, DecodeOptions, arrow_schema, decode
from lanemq.spark.options import parse_read_options
from lanemq.spark.read.batch_reader import LaneBatchReader
from lanemq.spark.read.partition_reader import TaskPartition
from lanemq.spark.read.range_reader import RangeReader
from lanemq.spark.retrying import Retrying
from lanemq.spark.source import LaneDataSource
from lanemq.wire.properties import find_stamp
from lanemq.wire.record import RecordView, record_starts

Kinds = dict[str, Callable[[], DataFrame]]


class RowReader(LaneBatchReader):
    """The obvious reader: an object per message, a tuple per row."""

    def read(self, partition: InputPartition) -> Iterator[tuple[Any, ...]]:
        assert isinstance(partition, TaskPartition)
        reader = RangeReader(Retrying(Millis(10_000)))
        try:
            for wanted in partition.ranges:
                for body in reader.chunks(wanted, partition.settings.chunk_bytes):
                    for start in record_starts(body):
                        yield _row(RecordView(body, start), wanted.queue.broker)
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


def decoding(address: str, topic: str, count: int, name: str) -> None:
    """Messages per CPU second from bodies that are in memory already."""
    options = parse_read_options({"servers": address, "topic": topic}, streaming=False)
    bodies: list[bytes] = []
    for partition in LaneBatchReader(options, COLUMNS).partitions():
        assert isinstance(partition, TaskPartition)
        reader = RangeReader(Retrying(Millis(10_000)))
        for wanted in partition.ranges:
            bodies += reader.chunks(wanted, partition.settings.chunk_bytes)
        reader.close()
    wanted = DecodeOptions(arrow_schema(COLUMNS), "broker")
    began = time.process_time()
    for body in bodies:
        list(decode(body, 0, 2**62, wanted))
    columns = time.process_time()
    for body in bodies:
        for start in record_starts(body):
            _row(RecordView(body, start), "broker")
    ours, rows = count / (columns - began), count / (time.process_time() - columns)
    report(f"spark_decode_{name}", ours, "msg/cpu s", rows=round(rows), ratio=round(ours / rows, 2))


def frames(spark: SparkSession, address: str, topic: str, copy: Path) -> Kinds:
    def messages(source: str, **more: str) -> DataFrame:
        return spark.read.format(source).options(servers=address, topic=topic, **more).load()

    return {
        "arrow": lambda: messages("lanemq", columns="*"),
        "default": lambda: messages("lanemq"),
        "key_value": lambda: messages("lanemq", columns="key,value"),
        "rows": lambda: messages("lanemq_rows"),
        "parquet": lambda: spark.read.parquet(str(copy)),
    }


def save(frame: DataFrame, where: Path | None) -> None:
    if where is None:
        frame.write.format("noop").mode("overwrite").save()
    else:
        frame.write.mode("overwrite").parquet(str(where))


def measure(kinds: Kinds, broker: BrokerProcess, where: Path | None, count: int, rounds: int) -> dict[str, Any]:
    """Median rate and CPU time of each kind, and what the broker used for a message."""
    seconds: dict[str, list[float]] = {kind: [] for kind in kinds}
    cpu: dict[str, float] = dict.fromkeys(kinds, 0.0)
    broker_cpu = broker.cpu_seconds()
    for turn in range(rounds):
        for kind, frame in kinds.items():
            before = cpu_seconds(broker.pid)
            took = timed(lambda frame=frame: save(frame(), where))  # type: ignore[misc]
            if turn:
                seconds[kind].append(took)
                cpu[kind] += cpu_seconds(broker.pid) - before
    found: dict[str, Any] = {kind: round(count / statistics.median(each)) for kind, each in seconds.items()}
    found |= {f"{kind}_cpu_us": round(used / count / (rounds - 1) * 1e6, 2) for kind, used in cpu.items()}
    pulled = count * rounds * (len(kinds) - 1)
    return found | {"broker_us": round((broker.cpu_seconds() - broker_cpu) / pulled * 1e6, 2)}


def main(small: int = 400_000, rounds: int = 4) -> None:
    spark = session()
    spark.dataSource.register(RowSource)
    with BrokerProcess() as broker, tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder:
        for name, count, size in (("100B", small, 100), ("1KB", small, 1_000)):
            topic, copy, body = f"bench-{size}", Path(folder) / f"copy-{size}", b"x" * size
            fill(broker.address, topic, count, lambda number, body=body: body)  # type: ignore[misc]
            decoding(broker.address, topic, count, name)
            kinds = frames(spark, broker.address, topic, copy)
            save(kinds["arrow"](), copy)
            for sink, where in (("noop", None), ("parquet", Path(folder) / "out")):
                found = measure(kinds, broker, where, count, rounds)
                ours = found.pop("arrow")
                ratios = {f"ratio_to_{kind}": round(ours / found[kind], 2) for kind in ("rows", "parquet")}
                report(f"spark_read_{name}_to_{sink}", ours, "msg/s", messages=count, **ratios, **found)
    spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
