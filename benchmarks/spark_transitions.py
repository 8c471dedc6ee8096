"""Every transition: `Transitions` against the same step written plainly with Spark's own state, on RocksDB.

`by_row` is `transformWithState` (PySpark 4.1), `plain` is `transformWithStateInPandas`, `applied` the older
`applyInPandasWithState`. All read the same Parquet files as a stream (a file per queue and batch), decode the same
JSON, run the same step for every event of a key in order, and write a row per event to Parquet. Every key occurs
equally often, in a random order, so that `keys / rows` batches touch all keys. The first batch warms up and is not
counted.

A JSON line for every batch, as soon as it is done, and one for each number of keys. There, `value` is the rows per
second of our median batch, as Spark's progress reports its duration; `NAME_cpu_us` is the CPU time per row of driver,
JVM and Python workers, of the batches that count; `ratio_to_NAME` is our rate to another's, and `cpu_ratio_to_NAME`
its CPU time to ours. `keys_seen` are the keys that have a state at the end. All must write the same rows, which hold
the state of a key after every event (`same_rows_as_NAME` counts them). A kind that takes longer than `--minutes` is
stopped, and the rows of the batches that it has finished are compared with ours of the same batches.

    python -m benchmarks.spark_transitions --rows 100000 --batches 4 --keys 10000,1000000 --kinds ours,by_row,plain
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, GroupedData, Row, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.harness import report
from benchmarks.spark_common import cpu_seconds
from lanemq.pipelines import Event, Transitions
from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.stages.transitions.messages import COLUMNS
from lanemq.spark import recommended
from lanemq.spark.columns import arrow_schema, select_columns

QUEUES = 4
KEYS = (10_000, 1_000_000)
KINDS = ("ours", "by_row", "plain", "applied")
OUTPUTS = "order_id string, status string, events long, total long"
STATE = "status string, events long, total long"
LOOK_SECONDS = 0.3
"""How often we look whether a batch is done."""
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def step(state: dict[str, Any] | None, event: Event) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    order = state or {"events": 0, "total": 0}
    value = event.value
    order = {"status": value["status"], "events": order["events"] + 1, "total": order["total"] + value["amount"]}
    return order, [{"order_id": event.key, **order}]


class Done(NamedTuple):
    """One batch that a query has finished."""

    rows: int
    seconds: float
    cpu: float
    """CPU seconds of driver, JVM and Python workers since the batch before."""


class RowStep(StatefulProcessor):
    """The same step as a user of Spark would write it with rows."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._order = handle.getValueState("order", STATE)
        self._decode = msgspec.json.Decoder().decode

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        status, events, total = self._order.get() if self._order.exists() else ("", 0, 0)
        for row in sorted(rows, key=lambda row: (row.queue_id, row.queue_offset)):
            event = self._decode(bytes(row.value))
            status, events, total = event["status"], events + 1, total + event["amount"]
            yield Row(order_id=key[0], status=status, events=events, total=total)
        self._order.update((status, events, total))

    def close(self) -> None:
        pass


class PlainStep(StatefulProcessor):
    """The same with data frames of pandas."""

    def init(self, handle: StatefulProcessorHandle) -> None:
        self._order = handle.getValueState("order", STATE)
        self._decode = msgspec.json.Decoder().decode

    def handleInputRows(self, key: Any, rows: Iterator[Any], timerValues: Any) -> Iterator[Any]:  # noqa: N802, N803
        import pandas as pd

        frame = pd.concat(list(rows)).sort_values(["queue_id", "queue_offset"])
        status, events, total = self._order.get() if self._order.exists() else ("", 0, 0)
        made: list[tuple[Any, ...]] = []
        for value in frame["value"]:
            event = self._decode(value)
            status, events, total = event["status"], events + 1, total + event["amount"]
            made.append((key[0], status, events, total))
        self._order.update((status, events, total))
        yield pd.DataFrame(made, columns=["order_id", "status", "events", "total"])

    def close(self) -> None:
        pass


def applied_step(key: Any, frames: Iterator[Any], state: Any) -> Iterator[Any]:
    """The same step for `applyInPandasWithState`."""
    import pandas as pd

    frame = pd.concat(list(frames)).sort_values(["queue_id", "queue_offset"])
    status, events, total = state.get if state.exists else ("", 0, 0)
    made: list[tuple[Any, ...]] = []
    for value in frame["value"]:
        event = msgspec.json.decode(value)
        status, events, total = event["status"], events + 1, total + event["amount"]
        made.append((key[0], status, events, total))
    state.update((status, events, total))
    yield pd.DataFrame(made, columns=["order_id", "status", "events", "total"])


def make_input(folder: Path, keys: int, rows: int, batches: int) -> None:
    """A file per queue and batch; a key is always in the same queue."""
    random = np.random.default_rng(7)
    schema = arrow_schema(select_columns(COLUMNS))
    share, of_queue = rows // QUEUES, keys // QUEUES
    rounds = -(-share * batches // of_queue)
    orders = [np.concatenate([random.permutation(of_queue) for _ in range(rounds)]) for _ in range(QUEUES)]
    for batch in range(batches):
        for queue in range(QUEUES):
            numbers = orders[queue][batch * share : (batch + 1) * share] * QUEUES + queue
            offsets = range(batch * share, (batch + 1) * share)
            names = [f"order-{number}" for number in numbers.tolist()]
            values = [b'{"status":"paid-%d","amount":%d}' % (n % 7, n % 100) for n in numbers.tolist()]
            same = [pa.repeat(text, share) for text in ("orders", "broker-a")]
            times = [1_700_000_000_000_000 + offset for offset in offsets]
            stored = pa.array(times, schema.field("store_timestamp").type)
            columns = [*same, pa.array([queue] * share, pa.int32()), pa.array(offsets, pa.int64()), pa.array(names)]
            columns += [pa.nulls(share, pa.string()), pa.array(values, pa.binary())]
            columns += [pa.array([f"id-{queue}-{offset}" for offset in offsets]), stored]
            table = pa.table([*columns, pa.nulls(share, schema.field("stamp").type)], schema=schema)
            path = folder / f"{batch:03}-{queue}.parquet"
            pq.write_table(table, path)
            os.utime(path, (1_700_000_000 + batch * QUEUES + queue,) * 2)  # Spark takes files by their age


def stream(spark: SparkSession, folder: Path) -> DataFrame:
    reader = spark.readStream.schema(select_columns(COLUMNS)).option("maxFilesPerTrigger", QUEUES)
    return reader.parquet(str(folder))


class Watched:
    """Runs queries, and reports each batch of theirs when it is done."""

    def __init__(self, kind: str, keys: int, minutes: float) -> None:
        self._kind, self._keys, self._limit = kind, keys, minutes * 60

    def finish(self, writer: Any, place: Path) -> list[Done]:
        """The batches up to the end of the input, or those that were done within the limit."""
        began, cpu = time.perf_counter(), cpu_seconds()
        query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
        done: list[Done] = []
        ended = False
        while not ended:
            ended = bool(query.awaitTermination(LOOK_SECONDS))
            found = [each for each in query.recentProgress if each.numInputRows]
            for each in found[len(done) :]:
                used = cpu_seconds()
                done.append(Done(each.numInputRows, each.batchDuration / 1_000, used - cpu))
                cpu = used
                self._report(done)
            if not ended and time.perf_counter() - began > self._limit:
                print(f"{self._keys} keys, {self._kind}: stopped after {len(done)} batches", file=sys.stderr)
                query.stop()
                ended = True
        if not done:
            sys.exit(f"{self._kind}: no batch was done in time; give it more minutes, or batches of fewer rows")
        return done

    def _report(self, done: Sequence[Done]) -> None:
        last = done[-1]
        more = {
            "keys": self._keys,
            "batch": len(done),
            "rows": last.rows,
            "rows_so_far": sum(each.rows for each in done),
        }
        cpu_us = round(last.cpu / last.rows * 1e6, 1)
        report(f"spark_transitions_batch_{self._kind}", last.rows / last.seconds, "rows/s", cpu_us=cpu_us, **more)


def ours(spark: SparkSession, source: Path, place: Path, watched: Watched) -> list[Done]:
    stage = Transitions(step=step, outputs=OUTPUTS)
    (place / "stage").mkdir(parents=True)
    stage.open(spark, place / "stage")
    log = RunLog(place / "log", lambda runs: 1)

    def run(messages: DataFrame, number: int) -> None:
        batch = Batch("bench", batch_number(number), 1)
        made = stage.process(messages, batch)
        log.record("unit", made.state.encode())
        stage.continue_from(made.state)
        folder = place / "rows" / str(number)
        folder.mkdir(parents=True)
        for file in made.outputs.files:  # type: ignore[attr-defined]
            file.path.rename(folder / file.path.name)
        stage.finished(batch)

    return watched.finish(stream(spark, source).writeStream.foreachBatch(run), place)


SPARK_STATE: dict[str, Callable[[GroupedData], DataFrame]] = {
    "by_row": lambda groups: groups.transformWithState(RowStep(), OUTPUTS, "Append", "None"),
    "plain": lambda groups: groups.transformWithStateInPandas(PlainStep(), OUTPUTS, "Append", "None"),
    "applied": lambda groups: groups.applyInPandasWithState(applied_step, OUTPUTS, STATE, "append", "NoTimeout"),
}


def theirs(kind: str, spark: SparkSession, source: Path, place: Path, watched: Watched) -> list[Done]:
    groups = stream(spark, source).select("key", "queue_id", "queue_offset", "value").groupBy("key")

    def run(rows: DataFrame, number: int) -> None:
        rows.write.parquet(str(place / "rows" / str(number)))

    return watched.finish(SPARK_STATE[kind](groups).writeStream.foreachBatch(run).outputMode("append"), place)


def written(spark: SparkSession, place: Path, batches: int) -> DataFrame:
    """The rows of so many batches: a row for every event, with the state of its key after it."""
    return spark.read.schema(OUTPUTS).parquet(*(str(place / "rows" / str(number)) for number in range(batches)))


def session() -> SparkSession:
    builder = recommended().master("local[2]").config("spark.ui.enabled", "false")
    settings = {
        "spark.sql.shuffle.partitions": "2",
        "spark.sql.streaming.stateStore.providerClass": ROCKSDB,
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.memory": "4g",
        # RocksDB's state store cannot use the raw one that is recommended.
        "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem",
    }
    for name, value in settings.items():
        builder = builder.config(name, value)
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    return spark


def check_protobuf() -> None:
    """Spark's workers talk protobuf to the state store; pyspark does not install it."""
    if find_spec("google") is None or find_spec("google.protobuf") is None:
        sys.exit("transformWithState needs the package protobuf: install it, or measure `ours` alone")


def compare(spark: SparkSession, folder: Path, kinds: Sequence[str], done: dict[str, list[Done]]) -> dict[str, Any]:
    """The figures of all kinds, after a check that they agree about the state of every key after every event."""
    figures: dict[str, Any] = {}
    rates, cpu = {}, {}
    for kind in kinds:
        counted = done[kind][1:] or done[kind]
        each = [batch.rows / batch.seconds for batch in counted]
        rates[kind] = statistics.median(each)
        cpu[kind] = sum(batch.cpu for batch in counted) / sum(batch.rows for batch in counted) * 1e6
        figures |= {
            f"{kind}_rate": round(rates[kind]),
            f"{kind}_best": round(max(each)),
            f"{kind}_cpu_us": round(cpu[kind], 1),
        }
        figures[f"{kind}_batches"] = len(done[kind])
    first = kinds[0]
    for kind in kinds[1:]:
        batches = min(len(done[first]), len(done[kind]))
        left, right = (written(spark, folder / each, batches) for each in (first, kind))
        assert left.exceptAll(right).isEmpty(), f"states differ: {kind}"
        assert right.exceptAll(left).isEmpty(), f"states differ: {kind}"
        figures |= {
            f"ratio_to_{kind}": round(rates[first] / rates[kind], 2),
            f"cpu_ratio_to_{kind}": round(cpu[kind] / cpu[first], 2),
            f"same_rows_as_{kind}": left.count(),
        }
    return figures


def main(
    rows: int = 400_000,
    batches: int = 4,
    kinds: Sequence[str] = ("ours", "plain"),
    keys_of: Sequence[int] = (),
    minutes: float = 60.0,
) -> None:
    if {"by_row", "plain"} & set(kinds):
        check_protobuf()
    spark = session()
    runs = {"ours": ours, **{kind: partial(theirs, kind) for kind in SPARK_STATE}}
    for keys in keys_of or KEYS:
        folder = Path(tempfile.mkdtemp(prefix="lanemq-bench-"))
        try:
            source = folder / "input"
            source.mkdir()
            make_input(source, keys, rows, batches)
            done = {kind: runs[kind](spark, source, folder / kind, Watched(kind, keys, minutes)) for kind in kinds}
            figures = compare(spark, folder, kinds, done)
            seen = min(keys, rows * batches)
            name = f"spark_transitions_{keys}_keys"
            report(name, figures[f"{kinds[0]}_rate"], "rows/s", rows=rows, batches=batches, keys_seen=seen, **figures)
        finally:
            shutil.rmtree(folder, ignore_errors=True)
    spark.stop()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(prog="python -m benchmarks.spark_transitions")
    parser.add_argument("--rows", type=int, default=400_000, help="rows of a batch")
    parser.add_argument("--batches", type=int, default=4, help="batches; the first one warms up")
    parser.add_argument("--keys", default=",".join(map(str, KEYS)), help="numbers of keys, separated by commas")
    parser.add_argument(
        "--kinds", default="ours,plain", help=f"of {', '.join(KINDS)}; the first is compared with others"
    )
    parser.add_argument("--minutes", type=float, default=60.0, help="a kind that takes longer is stopped")
    given = parser.parse_args()
    keys_of = [int(each) for each in given.keys.split(",")]
    main(given.rows, given.batches, given.kinds.split(","), keys_of, given.minutes)
