"""What is measured: batch queries, available-now streams, and the smallest micro-batch.

A round reads a whole topic. The count of every round is checked, by what Spark counts or in the files written; a round
with another count fails the run. CPU time is that of this process and all below it (driver, JVM, Python workers)
without the servers, which have a figure of their own.
"""

import contextlib
import json
import shutil
import statistics
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit

from benchmarks.peers.processes import ClientFailed, ClientProcess
from benchmarks.peers.race import Records
from benchmarks.peers.rounds import percentile
from benchmarks.spark_common import processes
from benchmarks.spark_peers.sources import FILLED_BY, LIMIT, AnySource, SparkSource

Count = Callable[[], int]
"""Counts the rows of a round, after its time was taken."""
KEYS = 10_000
SINKS = ("noop", "parquet")
FLOOR_SKIPPED = 20
"""Micro-batches before the first one that counts: compilers and connections warm up."""
FLOOR_RATE = 50
"""Messages a second while the smallest micro-batches are measured: every batch has a few."""
FLOOR_SECONDS = 180
STREAM_END_SECONDS = 10
"""How long to wait for the end of a stream's driver side, whose CPU time counts."""


@dataclass(frozen=True)
class SparkScale:
    """How much is measured. Smaller numbers make a run shorter and its figures less sure."""

    rounds: int
    rows: dict[int, int]
    """Messages of each size in bytes."""
    batches: int
    """Micro-batches of a round of the floor."""


FULL = SparkScale(5, {100: 600_000, 1_000: 300_000}, 60)
QUICK = SparkScale(1, {100: 100_000}, 30)


class Watch:
    """Wall time and CPU time between two moments: JVM, Python processes, and the server of a source."""

    def __init__(self, source: AnySource, others: Sequence[int]) -> None:
        self._server_cpu_seconds = source.server_cpu_seconds
        self._others = others
        self._before = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        cpu = {"jvm": 0.0, "python": 0.0}
        for each in processes(*self._others):
            cpu["python"] += each.ended if each.role == "jvm" else each.cpu
            cpu["jvm"] += each.cpu - each.ended if each.role == "jvm" else 0.0
        return time.perf_counter(), cpu["jvm"], cpu["python"], self._server_cpu_seconds()

    def stop(self, *, ended: bool = True) -> tuple[float, float, float, float]:
        """Seconds since the start: wall, JVM, Python, server.

        If the query has `ended`, the CPU time has that of a stream's driver side, which ends a moment after its query.
        """
        now = time.perf_counter()
        while ended and stream_processes() and time.perf_counter() < now + STREAM_END_SECONDS:
            time.sleep(0.05)
        wall = now - self._before[0]
        _, *after = self._now()
        jvm, python, server = (late - early for late, early in zip(after, self._before[1:], strict=True))
        return wall, jvm, python, server


class Task(NamedTuple):
    """One line of the table, and the rounds of it that are still to be measured."""

    path: str
    size: int
    sink: str
    rounds: int


class SparkRace:
    """The sources in one session, which take turns."""

    def __init__(self, spark: SparkSession, sources: Sequence[AnySource], scale: SparkScale, records: Records) -> None:
        self.spark, self.sources, self.scale, self._records = spark, sources, scale, records
        self._servers = [pid for source in sources for pid in source.pids]

    def run(self, tasks: Sequence[Task], until: float = float("inf")) -> bool:
        """All tasks, round by round, so that a run that ends early has as many rounds of each.

        Round 0 warms up. Returns false if the time `until` (of `time.monotonic`) came first.
        """
        for number in range(max((task.rounds for task in tasks), default=-1) + 1):
            for task in tasks:
                if number > task.rounds or (task.path == "floor" and not number):
                    continue  # the smallest micro-batches have a warm-up of their own
                for source in self.sources if number % 2 else self.sources[::-1]:
                    if time.monotonic() > until:
                        return False
                    if task.path != "floor":
                        self._read(task, source, number)
                    elif isinstance(source, SparkSource):
                        self._floor(source, number)
        return True

    def _read(self, task: Task, source: AnySource, number: int) -> None:
        expected = self.scale.rows[task.size]
        options = source.full(task.size, expected, KEYS)
        read = self._batch_round if task.path == "batch" else self._stream_round
        with self._folder() as folder:
            watch = self._watch(source)
            counted = read(source, options, task.sink, folder)
            took = watch.stop()
            self._check(f"{task.path}, {task.size} B, {task.sink}", source, counted(), expected)
            if task.sink == "parquet":
                self._check(f"{task.path}, {task.size} B, files", source, rows_in(folder / "out"), expected)
        if number:
            self._record(task, source, expected, took, number)

    def _floor(self, source: SparkSource, number: int) -> None:
        """The time of a micro-batch with a few messages, by Spark's own account of it."""
        topic = source.entrant.topic()
        source.entrant.fill(topic, 1, 100, 1)
        pace = source.entrant.client(
            topic, do="pace", count=FLOOR_RATE * FLOOR_SECONDS, rate=FLOOR_RATE, size=100, keys=KEYS
        )
        try:
            with self._folder() as folder:
                times, cpu = self._small_batches(source, topic, folder, pace)
        finally:
            pace.close()
        self._records.add(
            path="floor",
            mode="noop",
            contender=source.name,
            value=round(statistics.median(times), 1),
            unit="ms",
            p99=percentile(times, 99),
            client_cpu_us=round(cpu * 1e6, 1),
            server_cpu_us=0.0,
            count=len(times),
            round=number,
            verdict="pass",
        )

    def _watch(self, source: AnySource) -> Watch:
        self.spark.sparkContext._jvm.System.gc()  # type: ignore[union-attr] # noqa: SLF001
        return Watch(source, self._servers)

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix="lanemq-bench-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _batch_round(self, source: AnySource, options: dict[str, str], sink: str, folder: Path) -> Count:
        frame = self.spark.read.format(source.format).options(**options).load()
        if sink == "parquet":
            frame.write.mode("overwrite").parquet(str(folder / "out"))
            return lambda: rows_in(folder / "out")
        # Discarded rows are counted by Spark as they pass, which costs both sources the same.
        seen = Observation()
        frame.observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
        return lambda: int(seen.get["rows"])

    def _stream(self, source: AnySource, options: dict[str, str]) -> DataFrame:
        return self.spark.readStream.format(source.format).options(**options).load()

    def _stream_round(self, source: AnySource, options: dict[str, str], sink: str, folder: Path) -> Count:
        writer = self._stream(source, options).writeStream.format(sink).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.start(*([str(folder / "out")] if sink == "parquet" else []))
        query.awaitTermination()
        return lambda: sum(each["numInputRows"] for each in progress_of(query))

    def _small_batches(
        self, source: SparkSource, topic: str, folder: Path, pace: ClientProcess
    ) -> tuple[list[float], float]:
        """The milliseconds of each batch that counts, and the CPU seconds of one batch."""
        stream = self._stream(source, source.options(topic))
        writer = stream.writeStream.format("noop").trigger(processingTime="0 seconds")
        query = writer.option("checkpointLocation", str(folder)).start()
        found: dict[int, float] = {}
        began: tuple[int, Watch] | None = None
        deadline = time.monotonic() + FLOOR_SECONDS
        try:
            while len(found) < FLOOR_SKIPPED + self.scale.batches:
                if time.monotonic() > deadline or not query.isActive:
                    raise ClientFailed(f"{source.name}: {len(found)} micro-batches, then none: {query.exception()}")
                time.sleep(0.2)
                done = [each for each in progress_of(query) if each["numInputRows"]]
                found |= {each["batchId"]: each["durationMs"]["triggerExecution"] for each in done}
                if began is None and len(found) >= FLOOR_SKIPPED:
                    began = len(found), Watch(source, [*self._servers, pace.pid])
            assert began is not None
            _, jvm, python, _ = began[1].stop(ended=False)
        finally:
            query.stop()
        counted = [found[number] for number in sorted(found)][FLOOR_SKIPPED:]
        return counted, (jvm + python) / max(1, len(found) - began[0])

    def _check(self, what: str, source: AnySource, found: int, expected: int) -> None:
        if found != expected:
            raise ClientFailed(f"{source.name}, {what}: {found:,} rows instead of {expected:,}")

    def _record(
        self, task: Task, source: AnySource, count: int, took: tuple[float, float, float, float], number: int
    ) -> None:
        wall, jvm, python, server = took
        each = {name: round(value / count * 1e6, 2) for name, value in (("jvm", jvm), ("python", python))}
        self._records.add(
            path=task.path,
            mode=task.sink,
            bytes=task.size,
            contender=source.name,
            value=round(count / wall),
            unit="rows/s",
            count=count,
            client_cpu_us=round((jvm + python) / count * 1e6, 2),
            server_cpu_us=round(server / count * 1e6, 2),
            jvm_cpu_us=each["jvm"],
            python_cpu_us=each["python"],
            round=number,
            verdict="pass",
        )


def tasks_left(records: Iterable[dict[str, Any]], scale: SparkScale, paths: Sequence[str]) -> list[Task]:
    """What is to be measured, given the rounds that an earlier run has written: all rounds of all sources."""
    done = Counter((each["path"], each.get("bytes", 0), each["mode"], each["contender"]) for each in records)
    left = []
    for path in paths:
        for size in [0] if path == "floor" else list(scale.rows):
            for sink in SINKS[:1] if path == "floor" else SINKS:
                names = FILLED_BY if path == "floor" else (*FILLED_BY, LIMIT)
                rounds = scale.rounds - min(done[path, size, sink, name] for name in names)
                if rounds > 0:
                    left.append(Task(path, size, sink, rounds))
    return left


def stream_processes() -> list[int]:
    """Python processes below this one that are the driver's side of a stream."""
    return [each.pid for each in processes() if b"python_streaming_source_runner" in _command(each.pid)]


def _command(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def progress_of(query: Any) -> list[dict[str, Any]]:
    return [json.loads(each.json) for each in query.recentProgress]


def rows_in(folder: Path) -> int:
    """Rows of all Parquet files, from their footers."""
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))
