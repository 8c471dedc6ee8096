"""How fast sinks apply batches: appended from a stage's files, and merged by key.

    python -m benchmarks.pipeline_sinks [rows of a batch, default 400000] [kind ...]

One JSON line per sink and way of writing; `value` is rows per second, the median of the rounds, with the whole of
`write` in it: reading the stage's files, rows, ledger, commit. Delta copies files that the stage's tasks have encoded
already (`copied`), so its figure is that of a copy and a commit, not of an encoder.

`merge` starts from a table with all keys in it and replaces as many as a batch of 400 000 changes by random keys has:
10 000 of 10 000 keys, and 330 000 of 1 000 000. `changes` is what that makes of changes per second. PostgreSQL is
left out if its programs are not installed; it runs without fsync.
"""

import json
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import BooleanType, DoubleType, LongType, StringType, StructField, StructType, TimestampType
from tests import postgres_server

from benchmarks.harness import TOPIC, BrokerProcess
from lanemq.pipelines import DeltaSink, ParquetSink, PostgresSink, SqliteSink, TopicSink, read_table
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import DELETED, SEQUENCE, Append, FileRows, Merge, RowFile, SinkRun, TableRows
from lanemq.pipelines.sinks.exact_sink import arrow_schema

ROUNDS, FILES = 3, 4
CHANGES = 400_000
MERGES = ((10_000, 10_000), (1_000_000, 330_000))
KINDS = ("delta", "parquet", "sqlite", "postgres", "topic")

ROWS = StructType(
    [
        StructField("id", LongType(), False), StructField("name", StringType()), StructField("amount", DoubleType()),
        StructField("status", StringType()), StructField("at", TimestampType()),
    ]
)  # fmt: skip
CHANGED = StructType([*ROWS, StructField(SEQUENCE, LongType()), StructField(DELETED, BooleanType())])


def main(arguments: Sequence[str] = ()) -> None:
    rows = int(arguments[0]) if arguments else 400_000
    for kind in arguments[1:] or KINDS:
        with ExitStack() as stack:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="lanemq-bench-")))
            make = _maker(kind, folder, stack)
            if make is None:
                continue
            _append(kind, make, folder, rows)
            if kind in ("delta", "sqlite", "postgres"):
                for keys, changed in MERGES:
                    _merge(kind, make, keys, changed)


def _maker(kind: str, folder: Path, stack: ExitStack) -> Callable[[str], Any] | None:
    if kind == "delta":
        return lambda name: DeltaSink(folder / name)
    if kind == "parquet":
        return lambda name: ParquetSink(folder / name)
    if kind == "sqlite":
        return lambda name: SqliteSink(folder / "rows.db", name)
    if kind == "postgres":
        reason = postgres_server.reason_to_skip()
        if reason is not None:
            print(json.dumps({"name": "sink/postgres", "skipped": reason}))
            return None
        server = stack.enter_context(postgres_server.running_server())
        return lambda name: PostgresSink(server.dsn, name)
    broker = stack.enter_context(BrokerProcess())
    broker.create_topic()
    return lambda name: TopicSink(broker.address, TOPIC, key="id", value="name")


def _append(kind: str, make: Callable[[str], Any], folder: Path, count: int) -> None:
    """The files are there before the clock starts, as a stage's tasks leave them."""
    with _spark(kind) as spark:
        sink = make("appended")
        sink.open(SinkRun(spark, "bench", 1, ROWS, Append()))
        seconds = []
        for number in range(ROUNDS + 1):
            rows = _files(folder / f"stage-{number}", number * count, count)
            seconds.append(_timed(lambda n=number, r=rows: sink.write(r, Batch("bench", n, 1))))
        sink.close()
    _check_files(kind, folder / "appended", (ROUNDS + 1) * count)
    _report(f"sink/{kind}/append", count, seconds[1:], copied=kind == "delta")


def _check_files(kind: str, folder: Path, rows: int) -> None:
    """What was written that quickly must be there."""
    if kind == "delta":
        assert read_table(folder).num_rows == rows
    if kind == "parquet":
        assert pq.read_table(folder).num_rows == rows


def _merge(kind: str, make: Callable[[str], Any], keys: int, changed: int) -> None:
    sink = make(f"merged{keys}")
    sink.open(SinkRun(None, "bench", 1, CHANGED, Merge(("id",))))
    sink.write(_changes(np.arange(keys), 0), Batch("bench", 0, 1))
    random = np.random.default_rng(7)
    seconds = []
    for number in range(1, ROUNDS + 1):
        rows = _changes(random.choice(keys, changed, replace=False), number * keys)
        seconds.append(_timed(lambda n=number, r=rows: sink.write(r, Batch("bench", n, 1))))
    sink.close()
    _report(f"sink/{kind}/merge", changed, seconds, keys=keys, changes=round(CHANGES / statistics.median(seconds)))


def _files(folder: Path, first: int, count: int) -> FileRows:
    folder.mkdir()
    files = []
    for at in range(FILES):
        table = _rows(np.arange(first + at * count // FILES, first + (at + 1) * count // FILES))
        pq.write_table(table, folder / f"{at}.parquet")
        files.append(RowFile(str(at), folder / f"{at}.parquet", table.num_rows))
    return FileRows(ROWS, files)


def _rows(ids: Any) -> pa.Table:
    count = len(ids)
    columns = {
        "id": ids,
        "name": [f"name-{number % 1000}" for number in range(count)],
        "amount": ids * 0.25,
        "status": ["open" if number % 3 else "paid" for number in range(count)],
        "at": np.full(count, 1_700_000_000_000_000) + ids,
    }
    wanted = arrow_schema(ROWS)
    return pa.table([pa.array(columns[field.name]).cast(field.type) for field in wanted], schema=wanted)


def _changes(ids: Any, sequence: int) -> TableRows:
    count = len(ids)
    table = _rows(ids).append_column(SEQUENCE, pa.array(np.arange(sequence, sequence + count)))
    return TableRows(CHANGED, table.append_column(DELETED, pa.array(np.arange(count) % 20 == 0)))


@contextmanager
def _spark(kind: str) -> Iterator[Any]:
    """Only the topic's sink has tasks."""
    if kind != "topic":
        yield None
        return
    from lanemq.spark import recommended

    session = recommended().master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    try:
        yield session
    finally:
        session.stop()


def _timed(work: Callable[[], bool]) -> float:
    began = time.perf_counter()
    assert work(), "the batch was applied before"
    return time.perf_counter() - began


def _report(name: str, rows: int, seconds: list[float], **more: Any) -> None:
    line = {
        "name": name,
        "value": round(rows / statistics.median(seconds)),
        "unit": "rows/s",
        "best": round(rows / min(seconds)),
        "rows": rows,
        "seconds": round(statistics.median(seconds), 3),
        **more,
        "load": round(os.getloadavg()[0], 1),
    }
    print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
