"""Streams: the rate of large batches beside that of a batch query, and the time of the smallest batch there can be.

`spark_stream_to_parquet`: `rows` messages of 100 B a trigger into Parquet files, and batch queries over ranges of as
many messages of the same topic in the same run. The first of each warms up; `value` is the median rate of the stream
by Spark's own time of a batch, `ratio` is that to the batch queries'.

`spark_floor_*`: the time of a micro-batch with a message or two, from planning to Spark's note that it is done, with
the settings of `recommended()` and with Spark's own, each in a process of its own.

    python -m benchmarks.spark_stream [rows a trigger, default 400000] [triggers, default 5] [small batches, default 80]
"""

import json
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from functools import partial
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.harness import BrokerProcess, report
from benchmarks.spark_common import QUEUES, QUIET, fill, session, timed
from lanemq import Producer
from lanemq.spark import register
from lanemq.spark.lag import offsets_advanced

TOPIC = "stream"
PATIENCE_SECONDS = 300


def progress_of(query: Any) -> list[dict[str, Any]]:
    return [json.loads(each.json) for each in query.recentProgress]


def streamed(spark: SparkSession, address: str, folder: Path, rows: int) -> list[float]:
    reader = spark.readStream.format("lanemq").options(servers=address, topic=TOPIC, startingOffsets="earliest")
    frame = reader.option("maxOffsetsPerTrigger", rows).load()
    writer = frame.writeStream.format("parquet").option("checkpointLocation", str(folder / "checkpoint"))
    query = writer.trigger(availableNow=True).start(str(folder / "streamed"))
    query.awaitTermination()
    done = [each for each in progress_of(query) if offsets_advanced(each)]
    return [offsets_advanced(each) / each["durationMs"]["triggerExecution"] * 1_000 for each in done[1:]]


def batched(spark: SparkSession, address: str, folder: Path, rows: int, times: int) -> list[float]:
    """Ranges of nearly as many messages: keys are not spread so evenly that a range of all of them would exist."""
    share, rates = rows * 95 // 100 // QUEUES, []

    def written(first: int) -> None:
        ends = {"startingOffsets": first, "endingOffsets": first + share}
        places = {name: json.dumps({TOPIC: {str(q): at for q in range(QUEUES)}}) for name, at in ends.items()}
        frame = spark.read.format("lanemq").options(servers=address, topic=TOPIC, **places).load()
        frame.write.mode("overwrite").parquet(str(folder / "batched"))

    for number in range(times):
        rates.append(share * QUEUES / timed(partial(written, number * share)))
    return rates[1:]


def large(broker: BrokerProcess, rows: int, triggers: int) -> None:
    fill(broker.address, TOPIC, rows * triggers, lambda number: b"x" * 100)
    spark = session()
    with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder:
        batch = batched(spark, broker.address, Path(folder), rows, triggers)
        stream = streamed(spark, broker.address, Path(folder), rows)
    spark.stop()
    value, beside = statistics.median(stream), statistics.median(batch)
    more = {"best": round(max(stream)), "batch": round(beside), "batch_best": round(max(batch))}
    report("spark_stream_to_parquet", value, "msg/s", rows=rows, ratio=round(value / beside, 2), **more)


def floor(address: str, kind: str, batches: int) -> None:
    """In a process of its own, since a session's settings stay in the JVM. Prints the times as JSON."""
    if kind == "recommended":
        spark = session()
    else:
        builder = SparkSession.Builder().master("local[2]")
        for name, value in QUIET.items():
            builder = builder.config(name, value)
        spark = builder.getOrCreate()
        register(spark)
    topic = f"floor-{kind}"
    fill(address, topic, 1, lambda number: b"x")
    with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder:
        frame = (
            spark.readStream.format("lanemq").options(servers=address, topic=topic, startingOffsets="earliest").load()
        )
        writer = frame.writeStream.format("noop").option("checkpointLocation", folder)
        query = writer.trigger(processingTime="0 seconds").start()
        times = _times(query, address, topic, batches)
        query.stop()
    spark.stop()
    print(json.dumps(times))


def _times(query: Any, address: str, topic: str, batches: int) -> list[float]:
    """A message every few milliseconds, so that no batch is empty and none is large."""
    done, until = threading.Event(), time.monotonic() + PATIENCE_SECONDS
    found: dict[int, float] = {}

    def send() -> None:
        with Producer(address) as producer:
            while not done.wait(0.02):
                producer.send(topic, b"x", key="k")

    sender = threading.Thread(target=send)
    sender.start()
    try:
        while len(found) < batches + 20 and time.monotonic() < until:
            time.sleep(0.2)
            found |= {
                p["batchId"]: p["durationMs"]["triggerExecution"] for p in progress_of(query) if offsets_advanced(p)
            }
    finally:
        done.set()
        sender.join()
    return [found[number] for number in sorted(found)][20:]


def small(broker: BrokerProcess, batches: int) -> None:
    for kind in ("recommended", "defaults"):
        command = [sys.executable, "-m", "benchmarks.spark_stream", "floor", broker.address, kind, str(batches)]
        ran = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
        times = sorted(json.loads(ran.stdout.splitlines()[-1]))
        late = times[int(len(times) * 0.95)]
        report(f"spark_floor_{kind}", statistics.median(times), "ms p50", best=times[0], p95=late, batches=len(times))


def main(rows: int = 400_000, triggers: int = 5, batches: int = 80) -> None:
    with BrokerProcess() as broker:
        large(broker, rows, triggers)
        small(broker, batches)


if __name__ == "__main__":
    if sys.argv[1:2] == ["floor"]:
        floor(sys.argv[2], sys.argv[3], int(sys.argv[4]))
    else:
        main(*map(int, sys.argv[1:4]))
