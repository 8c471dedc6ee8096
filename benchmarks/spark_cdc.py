"""Last state: change events of a topic into a Delta table, at 10 thousand and at a million keys.

A broker in a process of its own holds Debezium events of about 250 bytes: for the million, first one of every key.
A pipeline reads them in batches; the first batch warms Spark up, those of the snapshot fill the table, and neither is
counted. Per number of keys two lines: `fold` (read and fold, a sink that forgets) and `delta` (read, fold and merge).
`value` is messages per second of the median batch, from planning it to Spark's note that it is done; `keys_a_batch`
is how many rows were merged. `cpu_us` is the CPU time per message of everything but the broker: driver, JVM and Python
workers; on a machine that others use too, it says more than the rate.

    python -m benchmarks.spark_cdc [messages a batch, default 400000] [counted batches, default 4]
"""

import random
import statistics
import sys
import tempfile
from collections.abc import Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from benchmarks.harness import BrokerProcess, report
from benchmarks.spark_common import cpu_seconds, session
from lanemq import Producer
from lanemq.pipelines import DeltaSink, LastState, Pipeline, Progress, Sink, Topic, start
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import Rows, SinkRun

KEYS = (10_000, 1_000_000)
PACK = 20_000
"""Messages handed to the producer at once; many more would wait longer than a delivery may take."""
SCHEMA = "id bigint, name string, email string, amount double, state string"
EVENT = (
    '{"before":null,"after":{"id":%d,"name":"name %d","email":"u%d@example.org","amount":%d.25,"state":"paid"},'
    '"source":{"connector":"postgresql","ts_ms":1700000000000,"db":"shop","table":"people","lsn":%d},"op":"u"}'
)


class ForgetfulSink(Sink):
    """Takes every batch and keeps nothing but how many rows it had."""

    all_at_once = True
    _applied: int | None = None

    def open(self, run: SinkRun) -> None:
        self._applied = None

    def applied(self, query: str, settings: Mapping[str, str]) -> int | None:
        return self._applied

    def write(self, rows: Rows, batch: Batch) -> bool:
        rows.count()
        self._applied = batch.number
        return True


def events(keys: int, snapshot: int, updates: int) -> Iterator[tuple[str, bytes]]:
    """Keys with their events: some of each key in turn, then of random keys."""
    dice = random.Random(7)
    for number in range(snapshot + updates):
        key = number % keys if number < snapshot else dice.randrange(keys)
        yield f'{{"id":{key}}}', (EVENT % (key, number, key, number % 1000, number)).encode()


def measured(spark: SparkSession, pipeline: Pipeline, broker: BrokerProcess, skip: int) -> dict[str, Any]:
    """Rates of the batches behind the first `skip` messages."""
    done: list[tuple[Progress, float]] = []
    start(pipeline, spark, once=True, report=lambda each: done.append((each, cpu_seconds(broker.pid)))).await_end()
    first = next(place for place in range(1, len(done)) if sum(each.messages for each, _ in done[:place]) >= skip)
    counted = [each for each, _ in done[first:]]
    rates = [each.rate for each in counted]
    keys = statistics.median(each.applied.counts["keys"] for each in counted)
    cpu = (done[-1][1] - done[first - 1][1]) / sum(each.messages for each in counted)
    found = {"value": statistics.median(rates), "best": round(max(rates)), "batches": len(rates)}
    return {**found, "keys_a_batch": round(keys), "cpu_us": round(cpu * 1e6, 2)}


def make_pipeline(source: Topic, sink: Sink, folder: Path) -> Pipeline:
    stage = LastState(SCHEMA, ["id"], format="debezium")
    return Pipeline("cdc", source=source, stage=stage, sink=sink, checkpoint=folder)


def main(batch: int = 400_000, batches: int = 4) -> None:
    spark = session()
    with BrokerProcess() as broker, tempfile.TemporaryDirectory(prefix="lanemq-cdc-") as folder:
        for keys in KEYS:
            topic, snapshot = f"cdc-{keys}", max(batch, -(-keys // batch) * batch)
            broker.create_topic(topic)
            with Producer(broker.address) as producer:
                made = events(keys, snapshot, batch * batches)
                while some := list(islice(made, PACK)):
                    producer.send_many(topic, some)
            source = Topic(broker.address, topic, maxOffsetsPerTrigger=batch)
            for name, sink in (("fold", ForgetfulSink()), ("delta", DeltaSink(Path(folder) / topic))):
                pipeline = make_pipeline(source, sink, Path(folder) / f"{name}-{keys}")
                found = measured(spark, pipeline, broker, snapshot)
                report(f"spark_cdc_{name}_{keys}_keys", found.pop("value"), "msg/s", batch=batch, **found)
    spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:3]))
