"""One job with the installed PySpark: source, group, every stage, and sinks that need no server. A line for each.

`make spark-versions` runs it with every PySpark 4. What a version lacks must be refused by name, or the job fails.
"""

import contextlib
import json
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyspark
from pyspark.sql import DataFrame, SparkSession

from lanemq import Producer
from lanemq.client.admin.admin import Admin
from lanemq.pipelines import (
    DeltaSink,
    Event,
    LastState,
    ParquetSink,
    Pipeline,
    Project,
    SqliteSink,
    Topic,
    TopicSink,
    Transitions,
    read_table,
    start,
)  # fmt: skip
from lanemq.spark import recommended, register
from lanemq.spark.versions import VERSION, WITH_BATCH_STARTS, WITH_STREAM_WRITER
from lanemq.testing.embedded import EmbeddedBroker

EVENTS = 60
QUIET = {
    "spark.ui.enabled": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.sql.shuffle.partitions": "2",
    "spark.log.level": "OFF",
    "spark.ui.showConsoleProgress": "false",
}


def step(state: int | None, event: Event) -> tuple[int, list[dict[str, Any]]]:
    """Counts the events of a key."""
    count = (state or 0) + 1
    return count, [{"key": event.key, "n": event.value["n"], "count": count}]


class Job:
    """The checks, in the order in which they run."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, folder: Path) -> None:
        self.spark, self.broker, self.folder = spark, broker, folder
        self.failed = 0

    def check(self, name: str, work: Callable[[], object], least: tuple[int, int] = (4, 0)) -> None:
        """Runs one check. With a PySpark older than `least`, it must be refused by a sentence that says so."""
        try:
            work()
            answer = "works" if least <= VERSION else "FAILED: it should be refused"
        except Exception as error:  # noqa: BLE001
            needed = f"needs PySpark {least[0]}.{least[1]}"
            refused = least > VERSION and needed in str(error)
            answer = f"refused: {needed}" if refused else f"FAILED: {str(error)[-1500:]}"
        self.failed += answer.startswith("FAILED")
        print(f"PySpark {pyspark.__version__:7} {name:34} {answer}", flush=True)

    def source(self, **options: str) -> dict[str, str]:
        return {"servers": self.broker.address, "topic": "orders", **options}

    def batch_read(self) -> None:
        rows = self.spark.read.format("lanemq").options(**self.source()).load().collect()
        expect(sorted(json.loads(row["value"])["n"] for row in rows), list(range(EVENTS)))

    def batch_write(self) -> None:
        frame = self.spark.createDataFrame([("a", "1"), ("b", "2")], "key string, value string")
        frame.write.format("lanemq").options(servers=self.broker.address, topic="written").mode("append").save()
        expect(self.values("written"), ["1", "2"])

    def stream_read(self, name: str, *frames: DataFrame) -> None:
        """Reads twice with one checkpoint: everything, then what came after it."""
        found: list[str] = []

        def take(rows: DataFrame, _: int) -> None:
            found.extend(row["value"].decode() for row in rows.select("value").collect())

        for _ in range(2):
            frame = frames[0] if len(frames) == 1 else frames[0].union(frames[1])
            writer = frame.writeStream.foreachBatch(take).option("checkpointLocation", str(self.folder / name))
            with stopped(writer.trigger(availableNow=True).start()) as query:
                query.awaitTermination()
        expect(sorted(json.loads(value)["n"] for value in found), list(range(EVENTS)))

    def load(self, **options: str) -> DataFrame:
        frame = self.spark.readStream.format("lanemq").options(**self.source(**options)).load()
        return frame.select("value")

    def stream_write(self) -> None:
        frame = self.load(startingOffsets="earliest")
        writer = frame.writeStream.format("lanemq").options(servers=self.broker.address, topic="copied")
        writer = writer.option("checkpointLocation", str(self.folder / "copied"))
        with stopped(writer.trigger(availableNow=True).start()) as query:
            query.awaitTermination()
        expect(len(self.values("copied")), EVENTS)

    def pipeline(self, name: str, stage: Any, sink: Any, **options: Any) -> None:
        topic = Topic(self.broker.address, "orders", **options)
        declared = Pipeline(name, topic, stage, sink, self.folder / f"checkpoint-{name}")
        for _ in range(2):
            with start(declared, self.spark, once=True) as running:
                running.await_end(300)

    def transitions(self) -> None:
        self.pipeline("states", Transitions(step=step, outputs="key string, n long, count long"), self.delta("states"))
        rows = read_table(self.folder / "states").to_pylist()
        expect(sorted(row["n"] for row in rows), list(range(EVENTS)))
        expect(max(row["count"] for row in rows), EVENTS // 6)

    def delta(self, name: str) -> DeltaSink:
        return DeltaSink(self.folder / name)

    def last_state(self) -> None:
        stage = LastState("n bigint, what string", ["n"], format="json", sequence=["n"])
        self.pipeline("last", stage, SqliteSink(self.folder / "rows.db", "rows"))
        self.pipeline("last_delta", stage, self.delta("last"))
        expect(read_table(self.folder / "last").num_rows, EVENTS)

    def project(self) -> None:
        self.pipeline("landed", Project(["key", "queue_offset"]), ParquetSink(self.folder / "landed"))
        expect(self.spark.read.parquet(str(self.folder / "landed")).count(), EVENTS)

    def to_topic(self) -> None:
        sink = TopicSink(self.broker.address, "results", key="key")
        self.pipeline("results", Project(["key", "queue_offset"]), sink)
        expect(len(self.values("results")), EVENTS)

    def limited(self) -> None:
        sink = ParquetSink(self.folder / "limited")
        self.pipeline("limited", Project(["key"]), sink, maxOffsetsPerTrigger=7)
        expect(self.spark.read.parquet(str(self.folder / "limited")).count(), EVENTS)

    def two_loads(self) -> None:
        try:
            self.stream_read("twice", self.load(group="twice"), self.load(group="twice"))
        except Exception as error:
            if "another load of this group" not in str(error):
                raise
        else:
            raise AssertionError("two loads of one group were not refused")

    def values(self, topic: str) -> list[str]:
        frame = self.spark.read.format("lanemq").options(servers=self.broker.address, topic=topic).load()
        return sorted(bytes(row["value"]).decode() for row in frame.select("value").collect())


@contextlib.contextmanager
def stopped(query: Any) -> Iterator[Any]:
    try:
        yield query
    finally:
        query.stop()


def expect(found: object, wanted: object) -> None:
    if found != wanted:
        raise AssertionError(f"{str(found)[:500]} instead of {str(wanted)[:500]}")


def main() -> int:
    builder = recommended().master("local[2]")
    for name, value in QUIET.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    register(spark)
    with EmbeddedBroker() as broker, tempfile.TemporaryDirectory() as folder:
        with Admin(broker.address) as admin:
            for topic in ("orders", "written", "copied", "results"):
                admin.create_topic(topic, 3)
        with Producer(broker.address) as producer:
            for n in range(EVENTS):
                producer.send("orders", {"n": n, "what": f"event {n}"}, key=f"key-{n % 6}")
        job = Job(spark, broker, Path(folder))
        job.check("batch read", job.batch_read)
        job.check("batch write", job.batch_write)
        job.check("stream read", lambda: job.stream_read("plain", job.load(startingOffsets="earliest")))
        job.check("stream read in a group", lambda: job.stream_read("group", job.load(group="g")), WITH_BATCH_STARTS)
        job.check("two loads of a group are refused", job.two_loads, WITH_BATCH_STARTS)
        job.check("stream write", job.stream_write, WITH_STREAM_WRITER)
        job.check("Transitions, DeltaSink", job.transitions)
        job.check("LastState, SqliteSink, DeltaSink", job.last_state)
        job.check("Project, ParquetSink", job.project)
        job.check("Project, TopicSink", job.to_topic)
        job.check("maxOffsetsPerTrigger", job.limited, WITH_BATCH_STARTS)
    spark.stop()
    return min(job.failed, 1)


if __name__ == "__main__":
    sys.exit(main())
