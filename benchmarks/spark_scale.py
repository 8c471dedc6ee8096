"""The cost of a row as topics grow: more messages in four queues, and the same messages in more queues.

Every turn is a batch read of a whole topic to nowhere; its count is checked. `value` is the greatest CPU time per row
divided by the smallest, of driver, JVM and Python workers together; `us` has the medians behind it, `broker_us` the
broker's, `seconds` the wall time of a read.

    python -m benchmarks.spark_scale [messages, default 1000000,3000000,10000000] [queues, default 8,64,256] [rounds, 3]

The first list grows one topic: messages are added between the sizes. The second list has a topic each, with as many
messages as the middle of the first list, which take turns. An empty list leaves its part out.
"""

import statistics
import sys
import time
from collections.abc import Sequence

from pyspark.sql import Observation, SparkSession
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


class Turn:
    """CPU time and rate of one read."""

    def __init__(self, spark: SparkSession, broker: BrokerProcess, topic: str, expected: int) -> None:
        seen = Observation()
        frame = spark.read.format("lanemq").options(servers=broker.address, topic=topic).load()
        began, cpu, broker_cpu = time.perf_counter(), cpu_seconds(broker.pid), broker.cpu_seconds()
        frame.observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
        self.seconds = time.perf_counter() - began
        self.us = (cpu_seconds(broker.pid) - cpu) / expected * 1e6
        self.broker_us = (broker.cpu_seconds() - broker_cpu) / expected * 1e6
        if seen.get["rows"] != expected:
            raise SystemExit(f"{topic}: {seen.get['rows']:,} rows instead of {expected:,}")


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
        turns = [Turn(spark, broker, "growing", size) for _ in range(warm_up + rounds)]
        taken[size] = turns[warm_up:]
    _report("spark_scale_messages", taken, queues=4)


def spreading(spark: SparkSession, broker: BrokerProcess, queues: Sequence[int], messages: int, rounds: int) -> None:
    for number in queues:
        with Admin(broker.address) as admin:
            admin.create_topic(f"queues-{number}", number)
        add(broker.address, f"queues-{number}", 0, messages)
    taken: dict[int, list[Turn]] = {number: [] for number in queues}
    for turn in range(WARM_UP + rounds):
        for number in queues:
            found = Turn(spark, broker, f"queues-{number}", messages)
            if turn >= WARM_UP:
                taken[number].append(found)
    _report("spark_scale_queues", taken, messages=messages)


def _report(name: str, taken: dict[int, list[Turn]], **more: int) -> None:
    def medians(of: str, digits: int = 2) -> dict[str, float]:
        found = {at: [getattr(turn, of) for turn in turns] for at, turns in taken.items()}
        return {str(at): round(statistics.median(values), digits) for at, values in found.items()}

    us = medians("us")
    ratio = max(us.values()) / min(us.values())
    broker_us, seconds = medians("broker_us"), medians("seconds")
    report(name, ratio, "x", goal=1.2, us=us, broker_us=broker_us, seconds=seconds, **more)


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
