"""Every transition: `Transitions` against the same step written plainly with Spark's own state, on RocksDB.

`plain` is `transformWithStateInPandas`, `applied` the older `applyInPandasWithState`. All read the same Parquet files
as a stream (a file per queue and batch), decode the same JSON, run the same step for every event of a key in order, and
write a row per event to Parquet. Every key occurs equally often, in a random order, so that `keys / rows` batches touch
all keys. The first batch warms up and is not counted; the figure is rows per second of the median batch, as Spark's
progress tells its duration. All must reach the same final state of every key. One JSON line per number of keys; `value`
is ours, `ratio_to_*` is ours to another. `keys_seen` are the keys that have a state at the end.

    python -m benchmarks.spark_transitions --rows 100000 --batches 4 --keys 10000,1000000 --kinds ours,plain,applied
"""

import argparse
import os
import shutil
import statistics
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.stateful_processor import StatefulProcessor, StatefulProcessorHandle

from benchmarks.harness import report
from benchmarks.spark_common import cpu_seconds
from lanemq.pipelines import Event, Transitions
from lanemq.pipelines.ports import Batch, batch_number
from lanemq.pipelines.stages.transitions.messages import COLUMNS
from lanemq.spark import recommended
from lanemq.spark.columns import arrow_schema, select_columns

QUEUES = 4
KEYS = (10_000, 1_000_000)
KINDS = ("ours", "plain", "applied")
OUTPUTS = "order_id string, status string, events long, total long"
STATE = "status string, events long, total long"
ROCKSDB = "org.apache.spark.sql.execution.streaming.state.RocksDBStateStoreProvider"


def step(state: dict[str, Any] | None, event: Event) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    order = state or {"events": 0, "total": 0}
    value = event.value
    order = {"status": value["status"], "events": order["events"] + 1, "total": order["total"] + value["amount"]}
    return order, [{"order_id": event.key, **order}]


class PlainStep(StatefulProcessor):
    """The same step as a user of Spark would write it."""

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


def finish(writer: Any, place: Path) -> list[float]:
    """Rows per second of every batch but the first."""
    query = writer.option("checkpointLocation", str(place / "checkpoint")).trigger(availableNow=True).start()
    query.awaitTermination()
    done = [each for each in query.recentProgress if each.numInputRows]
    return [each.numInputRows / each.batchDuration * 1_000 for each in done[1:]]


def ours(spark: SparkSession, source: Path, place: Path) -> list[float]:
    stage = Transitions(step=step, outputs=OUTPUTS)
    (place / "stage").mkdir(parents=True)
    stage.open(spark, place / "stage")

    def run(messages: DataFrame, number: int) -> None:
        batch = Batch("bench", batch_number(number), 1)
        made = stage.process(messages, batch)
        stage.settle(batch, made.state)
        folder = place / "rows" / str(number)
        folder.mkdir(parents=True)
        for file in made.outputs.files:  # type: ignore[attr-defined]
            file.path.rename(folder / file.path.name)
        stage.finished(batch)

    return finish(stream(spark, source).writeStream.foreachBatch(run), place)


def plain(spark: SparkSession, source: Path, place: Path) -> list[float]:
    made = (
        stream(spark, source)
        .select("key", "queue_id", "queue_offset", "value")
        .groupBy("key")
        .transformWithStateInPandas(PlainStep(), OUTPUTS, "Append", "None")
    )

    def run(rows: DataFrame, number: int) -> None:
        rows.write.parquet(str(place / "rows" / str(number)))

    return finish(made.writeStream.foreachBatch(run).outputMode("append"), place)


def applied(spark: SparkSession, source: Path, place: Path) -> list[float]:
    made = (
        stream(spark, source)
        .select("key", "queue_id", "queue_offset", "value")
        .groupBy("key")
        .applyInPandasWithState(applied_step, OUTPUTS, STATE, "append", "NoTimeout")
    )

    def run(rows: DataFrame, number: int) -> None:
        rows.write.parquet(str(place / "rows" / str(number)))

    return finish(made.writeStream.foreachBatch(run).outputMode("append"), place)


def final_states(spark: SparkSession, place: Path) -> DataFrame:
    rows = spark.read.schema(OUTPUTS).option("recursiveFileLookup", "true").parquet(str(place / "rows"))
    return rows.groupBy("order_id").agg({"events": "max", "total": "max", "*": "count"})


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
        sys.exit("transformWithStateInPandas needs the package protobuf: install it, or measure `ours` alone")


def main(
    rows: int = 400_000, batches: int = 4, kinds: Sequence[str] = ("ours", "plain"), keys_of: Sequence[int] = ()
) -> None:
    if "plain" in kinds:
        check_protobuf()
    spark = session()
    for keys in keys_of or KEYS:
        folder = Path(tempfile.mkdtemp(prefix="lanemq-bench-"))
        try:
            source = folder / "input"
            source.mkdir()
            make_input(source, keys, rows, batches)
            more: dict[str, Any] = {"rows": rows, "batches": batches, "keys_seen": min(keys, rows * batches)}
            value: dict[str, float] = {}
            for kind in kinds:
                began = cpu_seconds()
                rates = {"ours": ours, "plain": plain, "applied": applied}[kind](spark, source, folder / kind)
                value[kind] = statistics.median(rates)
                more |= {kind: round(value[kind]), f"{kind}_best": round(max(rates))}
                more[f"{kind}_cpu_us"] = round((cpu_seconds() - began) / (rows * batches) * 1e6, 1)
                print(
                    f"{keys} keys, {kind}: {more[kind]} rows/s, {more[f'{kind}_cpu_us']} us",
                    file=sys.stderr,
                    flush=True,
                )
            for kind in kinds[1:]:
                left, right = (final_states(spark, folder / each) for each in (kinds[0], kind))
                assert left.exceptAll(right).isEmpty(), f"final states differ: {kind}"
                assert right.exceptAll(left).isEmpty(), f"final states differ: {kind}"
                more[f"ratio_to_{kind}"] = round(value[kinds[0]] / value[kind], 2)
            report(f"spark_transitions_{keys}_keys", value[kinds[0]], "rows/s", **more)
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
    given = parser.parse_args()
    main(given.rows, given.batches, given.kinds.split(","), [int(each) for each in given.keys.split(",")])
