"""What a large batch costs the driver: seconds, CPU seconds and peak memory of its Python process.

    python -m benchmarks.large_batches [rows, default 1000000] [way ...]

One JSON line per way of writing. Every way runs in a process of its own, and gets its rows as a stage leaves them, in 8
files:

- `delta`, `postgres-driver`, `postgres-tasks`: merge into a table that has all rows; every row is replaced. The rows
  are narrow (a number, a short text, `_sequence`, `_deleted`). `postgres-tasks` copies with Spark tasks (`local[2]`),
  whose CPU time is not the driver's and is not counted. With `-empty` at the end, the table is empty.
- `postgres-append-driver`, `postgres-append-tasks`: append to an empty table.
- `parquet-1`, `parquet-8`: append; the same rows in 1 file and in 8. `parquet-8-dictionaries`: with a dictionary for
  every column. A batch before the measured one loads what is loaded once.

`memory` is the peak resident size in MiB, beside that after the imports, `memory_before`. With tasks also: `jvm` and
`worker`, the peak resident size of Spark's JVM and of the largest Python worker; `heap`, what the JVM's heap holds
before and after the batch, when the garbage collector has run; and where the time goes, `copy_seconds` of the tasks and
`merge_seconds` of the statement that merges. `all_cpu` is the CPU time of driver, JVM and workers, without the server.
PostgreSQL runs without fsync.
"""

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from pyspark.sql.types import BooleanType, LongType, StringType, StructField, StructType
from tests import postgres_server

from benchmarks.harness import commit
from benchmarks.memory_watch import Watch
from benchmarks.spark_common import cpu_seconds
from lanemq.pipelines import DeltaSink, ParquetSink, PostgresSink
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import DELETED, SEQUENCE, Append, FileRows, Merge, RowFile, SinkRun
from lanemq.pipelines.sinks import parquet

FILES = 8
WAYS = (
    "delta", "postgres-driver", "postgres-tasks", "postgres-append-driver", "postgres-append-tasks", "parquet-1",
    "parquet-8", "parquet-8-dictionaries",
)  # fmt: skip
CHANGED = StructType(
    [
        StructField("id", LongType(), False), StructField("name", StringType()),
        StructField(SEQUENCE, LongType(), False), StructField(DELETED, BooleanType(), False),
    ]
)  # fmt: skip
KEYED = Merge(("id",))


def main(arguments: Sequence[str] = ()) -> None:
    rows = int(arguments[0]) if arguments else 1_000_000
    for way in arguments[1:] or WAYS:
        with tempfile.TemporaryDirectory(prefix="lanemq-bench-") as folder, ExitStack() as stack:
            dsn = ""
            if way.startswith("postgres"):
                reason = postgres_server.reason_to_skip()
                if reason is not None:
                    print(json.dumps({"name": f"large/{way}", "skipped": reason}))
                    continue
                dsn = stack.enter_context(postgres_server.running_server()).dsn
            for step in ("prepare", "write"):  # prepared by another process, so that memory is only that of the write
                command = [sys.executable, "-m", "benchmarks.large_batches", step, way, str(rows), folder, dsn]
                subprocess.run(command, check=True, env=os.environ | {"PYTHONWARNINGS": "ignore"})


def prepare(way: str, rows: int, folder: Path, dsn: str) -> None:
    """Write the files of two batches, and apply the first one if the second is merged into it."""
    for number in (0, 1):
        _files(folder, number, rows, 1 if way == "parquet-1" else FILES)
    if _how(way) == KEYED and not way.endswith("-empty"):
        sink = _sink(way.replace("tasks", "driver"), folder, dsn)
        sink.open(SinkRun(None, "bench", 1, CHANGED, KEYED))
        sink.write(_batch(folder, 0), Batch("bench", 0, 1))
        sink.close()


def write(way: str, rows: int, folder: Path, dsn: str) -> None:
    with ExitStack() as stack:
        spark = stack.enter_context(_spark()) if "tasks" in way else None
        sink = _sink(way, folder, dsn)
        sink.open(SinkRun(spark, "bench", 1, CHANGED, _how(way)))
        batch = _batch(folder, 1)
        before = _memory()
        if way.startswith("parquet"):
            sink.write(_batch(folder, 0), Batch("bench", 0, 1))
        tasks = stack.enter_context(TaskCosts(spark)) if spark is not None else None
        clock = time.process_time if tasks is None else time.thread_time  # without the thread that watches the tasks
        began, used = time.perf_counter(), clock()
        assert sink.write(batch, Batch("bench", 1, 1))
        seconds, cpu = time.perf_counter() - began, clock() - used
        assert not sink.last_stale
        figures: dict[str, Any] = {"seconds": round(seconds, 2), "cpu": round(cpu, 2)}
        figures |= {"memory": _memory(), "memory_before": before}
        if tasks is not None:
            figures |= tasks.figures() | sink.seconds
        sink.close()
    load = round(os.getloadavg()[0], 1)
    print(json.dumps({"name": f"large/{way}", "rows": rows, **figures, "commit": commit(), "load": load}), flush=True)


class TimedSink(PostgresSink):
    """Records how long the copies and the merge take."""

    def __init__(self, dsn: str, table: str) -> None:
        super().__init__(dsn, table)
        self.seconds: dict[str, float] = {}

    def _copy_files(self, *arguments: Any) -> Any:
        return self._timed("copy_seconds", lambda: super(TimedSink, self)._copy_files(*arguments))

    def _apply_staged(self, *arguments: Any) -> Any:
        return self._timed("merge_seconds", lambda: super(TimedSink, self)._apply_staged(*arguments))

    def _timed(self, name: str, work: Callable[[], Any]) -> Any:
        began = time.perf_counter()
        try:
            return work()
        finally:
            self.seconds[name] = round(time.perf_counter() - began, 2)


class TaskCosts:
    """Memory and CPU time of Spark's processes during a batch."""

    def __init__(self, spark: Any) -> None:
        self._jvm = spark._jvm  # noqa: SLF001
        self._heap: list[int] = []
        self._cpu = 0.0

    def __enter__(self) -> Self:
        self._heap.append(self._used_heap())
        self._watch = Watch(0)
        self._cpu = cpu_seconds()
        return self

    def __exit__(self, *_: object) -> None:
        self._watch.close()

    def figures(self) -> dict[str, Any]:
        used = cpu_seconds() - self._cpu
        self._heap.append(self._used_heap())
        peaks = {role: self._watch.peak(role) for role in ("jvm", "worker")}
        return {"all_cpu": round(used, 1), **peaks, "heap": self._heap}

    def _used_heap(self) -> int:
        runtime = self._jvm.java.lang.Runtime.getRuntime()
        self._jvm.java.lang.System.gc()
        return round((runtime.totalMemory() - runtime.freeMemory()) / 2**20)


def _spark() -> Any:
    from lanemq.spark import recommended

    builder = recommended().master("local[2]").config("spark.ui.enabled", "false")
    return builder.config("spark.log.level", "ERROR").config("spark.driver.host", "127.0.0.1").getOrCreate()


def _how(way: str) -> Append | Merge:
    return Append() if "append" in way or way.startswith("parquet") else KEYED


def _sink(way: str, folder: Path, dsn: str) -> Any:
    if way.startswith("delta"):
        return DeltaSink(folder / "table")
    if way.startswith("parquet"):
        if way.endswith("dictionaries"):
            parquet.dictionary_columns = lambda rows: True  # type: ignore[assignment, return-value]
        return ParquetSink(folder / "table")
    return TimedSink(dsn, "rows") if "tasks" in way else PostgresSink(dsn, "rows", copies=0)


def _files(folder: Path, number: int, rows: int, files: int) -> None:
    """Keys in random order, as a hash divides them."""
    ids = np.random.default_rng(number).permutation(rows)
    wanted = pa.schema(
        [
            pa.field("id", pa.int64(), nullable=False), ("name", pa.string()),
            pa.field(SEQUENCE, pa.int64(), nullable=False), pa.field(DELETED, pa.bool_(), nullable=False),
        ]
    )  # fmt: skip
    for at, part in enumerate(np.array_split(ids, files)):
        names = pa.array(part).cast(pa.string())
        columns = [pa.array(part), names, pa.array(part + number * rows), pa.array(np.zeros(len(part), bool))]
        pq.write_table(pa.table(columns, schema=wanted), folder / f"{number}-{at}.parquet")


def _batch(folder: Path, number: int) -> FileRows:
    paths = sorted(folder.glob(f"{number}-*.parquet"))
    return FileRows(CHANGED, [RowFile(path.stem, path, pq.read_metadata(path).num_rows) for path in paths])


def _memory() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024


if __name__ == "__main__":
    if sys.argv[1:2] in (["prepare"], ["write"]):
        step, way, rows, folder, *dsn = sys.argv[1:]
        {"prepare": prepare, "write": write}[step](way, int(rows), Path(folder), dsn[0] if dsn else "")
    else:
        main(sys.argv[1:])
