"""The cost of a row as topics grow: more messages in four queues, and the same messages in more queues.

Every turn is a batch read of a whole topic to nowhere, or an available-now stream; its count is checked. `value` is the
greatest CPU time per row divided by the smallest, of driver, JVM and Python workers together; `us` has the medians
behind it, `broker_us` the broker's, `seconds` the wall time of a read.

    python -m benchmarks.spark_scale [messages, default 1000000,3000000,10000000] [queues, default 8,64,256] [rounds, 3]

The first list grows one topic: messages are added between the sizes. The second list has a topic each, with as many
messages as the middle of the first list, which take turns. Each of these topics is also read with a task for each queue
(`minPartitions`), to show what packing queues into tasks is worth. An empty list leaves its part out.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit

from benchmarks.harness import BrokerProcess, report
from benchmarks.spark_common import cpu_seconds, session
from lanemq.client.admin.admin import Admin
from lanemq.model.units import Millis
from lanemq.spark.write.sending import OutgoingRow, TaskSender

KEYS = 10_000
BODY = b"x" * 100
WARM_UP = 3
"""Turns that do not count: the JVM compiles what they run."""
GOAL = 1.2


class Turn:
    """CPU time and rate of one read."""

    def __init__(self, broker: BrokerProcess, topic: str, expected: int, read: Callable[[], int]) -> None:
        began, cpu, broker_cpu = time.perf_counter(), cpu_seconds(broker.pid), broker.cpu_seconds()
        rows = read()
        self.seconds = time.perf_counter() - began
        self.us = (cpu_seconds(broker.pid) - cpu) / expected * 1e6
        self.broker_us = (broker.cpu_seconds() - broker_cpu) / expected * 1e6
        if rows != expected:
            raise SystemExit(f"{topic}: {rows:,} rows instead of {expected:,}")


def batch(spark: SparkSession, address: str, topic: str, **options: int) -> int:
    """Reads a topic to nowhere; the number of its rows."""
    seen = Observation()
    frame = spark.read.format("lanemq").options(servers=address, topic=topic, **options).load()
    frame.observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
    return int(seen.get["rows"])


def stream(spark: SparkSession, address: str, topic: str, **options: int) -> int:
    """The same by an available-now stream."""
    rows: list[int] = []

    def each_batch(frame: DataFrame, _: int) -> None:
        seen = Observation()
        frame.observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
        rows.append(int(seen.get["rows"]))

    frame = spark.readStream.format("lanemq").options(
        servers=address, topic=topic, startingOffsets="earliest", **options
    )
    with tempfile.TemporaryDirectory() as folder:
        writer = frame.load().writeStream.foreachBatch(each_batch).option("checkpointLocation", folder)
        writer.trigger(availableNow=True).start().awaitTermination()
    return sum(rows)


def add(address: str, topic: str, first: int, end: int) -> None:
    """Adds messages to a topic by the way that is quickest."""
    sender = TaskSender(address, f"fill-{topic}-{first}", 0, Millis(10_000))
    for number in range(first, end):
        sender.send(OutgoingRow(topic, BODY, f"key-{number % KEYS}"))
    sender.flush()
    sender.close()


def growing(spark: SparkSession, broker: BrokerProcess, sizes: Sequence[int], rounds: int) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic("growing", 4)
    taken: dict[int, list[Turn]] = {}
    held = 0
    for size in sizes:
        add(broker.address, "growing", held, size)
        warm_up = 1 if held else WARM_UP
        held = size
        read = partial(batch, spark, broker.address, "growing")
        turns = [Turn(broker, "growing", size, read) for _ in range(warm_up + rounds)]
        taken[size] = turns[warm_up:]
    _report("spark_scale_messages", taken, GOAL, queues=4)


def spreading(spark: SparkSession, broker: BrokerProcess, queues: Sequence[int], messages: int, rounds: int) -> None:
    for number in queues:
        with Admin(broker.address) as admin:
            admin.create_topic(f"queues-{number}", number)
        add(broker.address, f"queues-{number}", 0, messages)
    ways: dict[str, tuple[Callable[..., int], Callable[[int], dict[str, int]]]] = {
        "spark_scale_queues": (batch, lambda number: {}),
        "spark_scale_queues_stream": (stream, lambda number: {}),
        "spark_scale_task_per_queue": (batch, lambda number: {"minPartitions": number}),
    }
    taken: dict[str, dict[int, list[Turn]]] = {way: {number: [] for number in queues} for way in ways}
    for turn in range(WARM_UP + rounds):
        for number in queues:
            for way, (read, options) in ways.items():
                topic = f"queues-{number}"
                found = Turn(broker, topic, messages, partial(read, spark, broker.address, topic, **options(number)))
                if turn >= WARM_UP:
                    taken[way][number].append(found)
    for way, turns in taken.items():
        _report(way, turns, None if "minPartitions" in ways[way][1](1) else GOAL, messages=messages)


def _report(name: str, taken: dict[int, list[Turn]], goal: float | None, **more: int) -> None:
    def medians(of: str, digits: int = 2) -> dict[str, float]:
        found = {at: [getattr(turn, of) for turn in turns] for at, turns in taken.items()}
        return {str(at): round(statistics.median(values), digits) for at, values in found.items()}

    us = medians("us")
    ratio = max(us.values()) / min(us.values())
    broker_us, seconds = medians("broker_us"), medians("seconds")
    report(name, ratio, "x", goal=goal, us=us, broker_us=broker_us, seconds=seconds, **more)


def main(words: Sequence[str] = ()) -> None:
    given = dict(enumerate(words))
    sizes, queues = (
        [int(each) for each in text.split(",") if each]
        for text in (given.get(0, "1000000,3000000,10000000"), given.get(1, "8,64,256"))
    )
    rounds = int(given.get(2, "3"))
    with BrokerProcess() as broker:
        spark = session()
        try:
            if sizes:
                growing(spark, broker, sizes, rounds)
            if queues:
                spreading(spark, broker, queues, sorted(sizes)[len(sizes) // 2] if sizes else 3_000_000, rounds)
        finally:
            spark.stop()


if __name__ == "__main__":
    main(sys.argv[1:])
