"""The cost of a row as topics grow: more messages in eight queues, and the same messages in more queues.

Every turn is a batch read of a whole topic to nowhere, or an available-now stream; its count is checked. `value` is how
much the CPU time per row grows: the greatest ratio of a larger topic to a smaller one, of driver, JVM and Python
workers together. `us` has the medians behind it, `broker_us` the broker's, `seconds` the wall time of a read.

    python -m benchmarks.spark_scale [messages, default 1000000,3000000,10000000] [queues, default 8,64,256] [rounds, 3]

The first list grows one topic: messages are added between the sizes, and a line is printed for each. Beside it, a topic
of the first size is read in turns (`small_us`), because a machine that others use is not the same a quarter of an hour
later. These messages have a key and no other property, so that 100 million of them need 25 GB; a topic of more than
30 million messages is read once. The second list has a topic each, with as many messages as the middle of the first
list, which take turns. Each of these topics is also read with a task for each queue (`minPartitions`), to show what
packing queues into tasks is worth. An empty list leaves its part out.
"""

import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from typing import Any

from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit

from benchmarks.harness import BrokerProcess, report
from benchmarks.spark_common import cpu_seconds, session
from lanemq.client.admin.admin import Admin
from lanemq.client.producer.batches import PendingMessage, RequestBuilder
from lanemq.client.topics import checked
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import parse_address
from lanemq.net.calling.blocking import BlockingConnection
from lanemq.spark.write.sending import OutgoingRow, TaskSender
from lanemq.wire.batch import BATCH_FRAME_BYTES, BATCH_HEAD, BATCH_LENGTH
from lanemq.wire.command import Command
from lanemq.wire.properties import PropertyName

KEYS = 10_000
QUEUES = 8
"""Of the topic that grows."""
READ_ROWS = 30_000_000
"""Rows after which a size of the growing topic is not read again."""
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


def add(address: str, topic: str, count: int) -> None:
    """Adds messages with all properties that a Spark task gives them."""
    sender = TaskSender(address, f"fill-{topic}", 0, Millis(10_000))
    for number in range(count):
        sender.send(OutgoingRow(topic, BODY, f"key-{number % KEYS}"))
    sender.flush()
    sender.close()


def add_small(address: str, topic: str, count: int) -> None:
    """Adds messages that have a key and no other property, by requests that are encoded once."""
    with BlockingConnection(parse_address(address)) as connection:
        every_key = _requests(topic, KEYS)
        for _ in range(count // KEYS):
            for request in every_key:
                checked(connection.request(request, timeout=60.0))
        for request in _requests(topic, count % KEYS):
            checked(connection.request(request, timeout=60.0))


def _requests(topic: str, messages: int) -> list[Command]:
    """A request for each queue. A key is always in the same queue."""
    builder, unused = RequestBuilder("bench", "bench-client", "bench-producer"), PendingMessage(BODY, "", "")
    found = []
    for number in range(min(QUEUES, messages)):
        queue = MessageQueue(topic, "broker", number)
        request = builder.send(queue, (unused, unused), epoch=0, sequence=0, born=1_700_000_000_000, creates=False)
        request.body = b"".join(_framed(f"{key:x}") for key in range(number, messages, QUEUES))
        found.append(request)
    return found


def _framed(key: str) -> bytes:
    text = f"{PropertyName.KEY}\x01{key}\x02".encode()
    head = BATCH_HEAD.pack(BATCH_FRAME_BYTES + len(BODY) + len(text), 0, 0, 0, len(BODY))
    return head + BODY + BATCH_LENGTH.pack(len(text)) + text


def growing(spark: SparkSession, broker: BrokerProcess, sizes: Sequence[int], rounds: int) -> None:
    small = sizes[0]
    with Admin(broker.address) as admin:
        for topic in ("growing", "small"):
            admin.create_topic(topic, QUEUES)
    add_small(broker.address, "small", small)
    read_small = partial(batch, spark, broker.address, "small")
    for _ in range(WARM_UP):
        Turn(broker, "small", small, read_small)
    taken: dict[int, list[Turn]] = {}
    beside: dict[int, list[Turn]] = {}
    held = 0
    for size in sizes:
        began = time.perf_counter()
        add_small(broker.address, "growing", size - held)
        filled, held = round(time.perf_counter() - began), size
        taken[size], beside[size] = [], []
        for _ in range(max(1, min(rounds, READ_ROWS // size))):
            beside[size].append(Turn(broker, "small", small, read_small))
            taken[size].append(Turn(broker, "growing", size, partial(batch, spark, broker.address, "growing")))
        beside[size].append(Turn(broker, "small", small, read_small))
        us, small_us = (statistics.median(each.us for each in turns[size]) for turns in (taken, beside))
        more = {"us": round(us, 2), "small_us": round(small_us, 2), "small": small, "fill_seconds": filled}
        report(f"spark_scale_{size}_messages", us / small_us, "x", **more, turns=len(taken[size]))
    small_us = {str(size): round(statistics.median(each.us for each in turns), 2) for size, turns in beside.items()}
    _report("spark_scale_messages", taken, GOAL, queues=QUEUES, small_us=small_us)


def spreading(spark: SparkSession, broker: BrokerProcess, queues: Sequence[int], messages: int, rounds: int) -> None:
    for number in queues:
        with Admin(broker.address) as admin:
            admin.create_topic(f"queues-{number}", number)
        add(broker.address, f"queues-{number}", messages)
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


def _report(name: str, taken: dict[int, list[Turn]], goal: float | None, **more: Any) -> None:
    def medians(of: str, digits: int = 2) -> dict[str, float]:
        found = {at: [getattr(turn, of) for turn in turns] for at, turns in taken.items()}
        return {str(at): round(statistics.median(values), digits) for at, values in found.items()}

    us = medians("us")
    ratio = max((larger / smaller for smaller, larger in combinations(us.values(), 2)), default=1.0)
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
