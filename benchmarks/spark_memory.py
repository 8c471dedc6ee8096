"""Memory of driver, JVM and Python workers while ten million messages go through: flat, or not.

`spark_memory_stream` reads them as a stream to nowhere, `spark_memory_transitions` runs them through a step with
100 000 keys (state does not grow once all keys are known). Resident memory is looked at four times a second; `early` is
the median of the second fifth of the run, `late` that of the last, by role, in MiB; `value` is late minus early of all
together. A JVM fills its heap before it cleans it, so `heap` says what was really in use after a collection at the
same two moments.

    python -m benchmarks.spark_memory [messages, default 10000000] [a batch, default 200000]
"""

import statistics
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
from pyspark.sql import SparkSession

from benchmarks.harness import BrokerProcess, report
from benchmarks.spark_common import fill, processes, session
from lanemq.pipelines import Event, ForeachSink, Pipeline, Topic, Transitions, start
from lanemq.pipelines.batch import Batch

KEYS = 100_000
TOPIC = "memory"
OUTPUTS = "key string, count long"


class Watch:
    """Samples memory on a thread until it is closed."""

    def __init__(self, broker: int) -> None:
        self.samples: list[Counter[str]] = []
        self._broker = broker
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self._thread.start()

    def close(self) -> None:
        self._done.set()
        self._thread.join()

    def part(self, begin: float, end: float) -> dict[str, int]:
        """Medians by role over a part of the run."""
        some = self.samples[int(len(self.samples) * begin) : max(1, int(len(self.samples) * end))]
        return {role: round(statistics.median(each[role] for each in some)) for role in ("driver", "jvm", "worker")}

    def _look(self) -> None:
        while not self._done.wait(0.25):
            now: Counter[str] = Counter()
            for each in processes(self._broker):
                now[each.role] += round(each.resident_mib)
            self.samples.append(now)


class Heap:
    """Megabytes in use in the JVM after a collection, at a batch early in the run and at its end."""

    def __init__(self, spark: SparkSession, batches: int) -> None:
        self._jvm: Any = spark._jvm  # noqa: SLF001
        self._early = max(1, batches // 4)
        self._seen = 0
        self.found: list[int] = []

    def batch_done(self) -> None:
        self._seen += 1
        if self._seen == self._early:
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


def stream(spark: SparkSession, address: str, folder: Path, batch: int, heap: Heap) -> None:
    reader = spark.readStream.format("lanemq").options(servers=address, topic=TOPIC, startingOffsets="earliest")
    frame = reader.option("maxOffsetsPerTrigger", batch).load()

    def away(rows: Any, number: int) -> None:
        rows.write.format("noop").mode("overwrite").save()
        heap.batch_done()

    writer = frame.writeStream.foreachBatch(away).option("checkpointLocation", str(folder / "stream"))
    writer.trigger(availableNow=True).start().awaitTermination()


def transitions(spark: SparkSession, address: str, folder: Path, batch: int, heap: Heap) -> None:
    def away(rows: pa.Table, name: Batch) -> None:
        heap.batch_done()

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
    try:
        with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder:
            run(spark, broker.address, Path(folder), batch, heap)
    finally:
        watch.close()
    seconds = time.perf_counter() - began
    heap.measure()
    early, late = watch.part(0.2, 0.4), watch.part(0.8, 1.0)
    value = sum(late.values()) - sum(early.values())
    more = {"early": early, "late": late, "heap": heap.found, "messages": messages, "rate": round(messages / seconds)}
    report(f"spark_memory_{run.__name__}", value, "MiB grown", **more)


def main(messages: int = 10_000_000, batch: int = 200_000) -> None:
    with BrokerProcess() as broker:
        fill(broker.address, TOPIC, messages, lambda number: b"x" * 100, KEYS)
        spark = session()
        for run in (stream, transitions):
            watched(spark, broker, run, messages, batch)
        spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
