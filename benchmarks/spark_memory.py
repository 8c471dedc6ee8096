"""Memory of driver, JVM and Python workers while ten million messages go through: flat, or not.

`spark_memory_stream` reads them as a stream to nowhere, `spark_memory_transitions` runs them through a step with
100 000 keys (state does not grow once all keys are known). `value` is the most that one Python worker held; `grown` by
how many MiB the Python process that grew most (the driver or a worker) grew between half of the batches and their end,
and `flat` whether that is within what a chunk on its way makes (see `memory_watch`). `workers` is each Python worker at
both moments, `started_late` how many came in between. A JVM fills its heap before it cleans it, so `heap` says what was
really in use after a collection at the same two moments.

    python -m benchmarks.spark_memory [messages, default 10000000] [a batch, default 200000]
"""

import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.harness import BrokerProcess, report
from benchmarks.memory_watch import Watch, growth, started_late
from benchmarks.spark_common import fill, session
from lanemq.pipelines import Event, ForeachSink, Pipeline, Topic, Transitions, start
from lanemq.pipelines.batches import Batch

KEYS = 100_000
TOPIC = "memory"
OUTPUTS = "key string, count long"
ROLES = ("driver", "jvm", "worker")
Done = Callable[[], None]


class Heap:
    """Megabytes in use in the JVM after a collection, at half of the batches and at their end."""

    def __init__(self, spark: SparkSession, batches: int) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._half = max(1, batches // 2)
        self._seen = 0
        self.found: list[int] = []

    def batch_done(self) -> None:
        self._seen += 1
        if self._seen == self._half:
            self.measure()

    def measure(self) -> None:
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        self._jvm.java.lang.System.gc()
        self.found.append(round((runtime.totalMemory() - runtime.freeMemory()) / 2**20))


def make_step() -> Any:
    """Made here, so that workers get it by value."""

    def step(state: int | None, event: Event) -> tuple[int, list[dict[str, Any]]]:
        count = (state or 0) + 1
        return count, [{"key": event.key, "count": count}]

    return step


def stream(spark: SparkSession, address: str, folder: Path, batch: int, done: Done) -> None:
    reader = spark.readStream.format("lanemq").options(servers=address, topic=TOPIC, startingOffsets="earliest")
    frame = reader.option("maxOffsetsPerTrigger", batch).load()

    def away(rows: Any, number: int) -> None:
        rows.write.format("noop").mode("overwrite").save()
        done()

    writer = frame.writeStream.foreachBatch(away).option("checkpointLocation", str(folder / "stream"))
    writer.trigger(availableNow=True).start().awaitTermination()


def transitions(spark: SparkSession, address: str, folder: Path, batch: int, done: Done) -> None:
    def away(rows: pa.Table, name: Batch) -> None:
        done()

    pipeline = Pipeline(
        "memory",
        Topic(address, TOPIC, maxOffsetsPerTrigger=batch),
        Transitions(step=make_step(), outputs=OUTPUTS, decode="bytes"),
        ForeachSink(away),
        folder / "pipeline",
    )
    start(pipeline, spark, once=True).await_end()


def watched(spark: SparkSession, broker: BrokerProcess, run: Callable[..., None], messages: int, batch: int) -> None:
    heap, watch = Heap(spark, messages // batch), Watch(broker.pid)
    began = time.perf_counter()

    def done() -> None:
        watch.batch_done()
        heap.batch_done()

    try:
        with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder:
            run(spark, broker.address, Path(folder), batch, done)
    finally:
        watch.close()
    seconds = time.perf_counter() - began
    heap.measure()
    more = {"heap": heap.found, "messages": messages, "rate": round(messages / seconds)}
    judge(f"spark_memory_{run.__name__}", watch, more)


def judge(name: str, watch: Watch, more: dict[str, Any]) -> None:
    found = growth(watch.samples, watch.batches)
    python = [each for each in found if each.role != "jvm"]
    sizes = {role: [(round(each.half), round(each.end)) for each in found if each.role == role] for role in ROLES}
    report(
        name,
        watch.peak("worker"),
        "MiB, largest worker",
        grown=round(python[0].mib, 1),
        flat=all(each.is_flat for each in python),
        workers=sizes["worker"],
        started_late=started_late(watch.samples, watch.batches),
        driver=sizes["driver"][0],
        jvm=sizes["jvm"][0],
        **more,
    )


def main(messages: int = 10_000_000, batch: int = 200_000) -> None:
    with BrokerProcess() as broker:
        fill(broker.address, TOPIC, messages, lambda number: b"x" * 100, KEYS)
        spark = session()
        for run in (stream, transitions):
            watched(spark, broker, run, messages, batch)
        spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
