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
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyspark.sql import DataFrame, Observation, SparkSession
from pyspark.sql.functions import count, lit

from benchmarks.peers.processes import ClientFailed, ClientProcess
from benchmarks.peers.race import Records
from benchmarks.peers.rounds import percentile
from benchmarks.spark_common import processes
from benchmarks.spark_peers.sources import SparkSource

Count = Callable[[], int]
"""Counts the rows of a round, after its time was taken."""
KEYS = 10_000
SINKS = ("noop", "parquet")
FLOOR_SKIPPED = 20
"""Micro-batches before the first one that counts: compilers and connections warm up."""
FLOOR_RATE = 50
"""Messages a second while the smallest micro-batches are measured: every batch has a few."""
FLOOR_SECONDS = 180


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

    def __init__(self, source: SparkSource, others: Sequence[int]) -> None:
        self._server = source.entrant.server
        self._others = others
        self._before = self._now()

    def _now(self) -> tuple[float, float, float, float]:
        cpu = {"jvm": 0.0, "python": 0.0}
        for each in processes(*self._others):
            cpu["python"] += each.ended if each.role == "jvm" else each.cpu
            cpu["jvm"] += each.cpu - each.ended if each.role == "jvm" else 0.0
        return time.perf_counter(), cpu["jvm"], cpu["python"], self._server.cpu_seconds()

    def stop(self) -> tuple[float, float, float, float]:
        """Seconds since the start: wall, JVM, Python, server."""
        wall, jvm, python, server = (after - before for after, before in zip(self._now(), self._before, strict=True))
        return wall, jvm, python, server


class SparkRace:
    """Two sources in one session, which take turns."""

    def __init__(
        self, spark: SparkSession, sources: Sequence[SparkSource], scale: SparkScale, records: Records
    ) -> None:
        self.spark, self.sources, self.scale, self._records = spark, sources, scale, records
        self._servers = [pid for source in sources for pid in source.entrant.server.pids]

    def batch(self) -> None:
        self._reading("batch", self._batch_round)

    def available_now(self) -> None:
        self._reading("available-now", self._stream_round)

    def _reading(self, path: str, read: Callable[[SparkSource, str, str, Path], Count]) -> None:
        for size, expected in self.scale.rows.items():
            topics = {source.name: self._filled(source, expected, size) for source in self.sources}
            for sink in SINKS:
                for number, source in self._turns():
                    with self._folder() as folder:
                        watch = self._watch(source)
                        counted = read(source, topics[source.name], sink, folder)
                        took = watch.stop()
                        self._check(f"{path}, {size} B, {sink}", source, counted(), expected)
                        if sink == "parquet":
                            self._check(f"{path}, {size} B, files", source, rows_in(folder / "out"), expected)
                    if number:
                        self._record(path, source, sink, size, expected, took, number)

    def floor(self) -> None:
        """The time of a micro-batch with a few messages, by Spark's own account of it."""
        for number, source in self._turns():
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
            if number:
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

    def _turns(self) -> Iterator[tuple[int, SparkSource]]:
        """Each round begins with the other source; round 0 warms up."""
        for number in range(self.scale.rounds + 1):
            order = self.sources if number % 2 else self.sources[::-1]
            yield from ((number, each) for each in order)

    def _filled(self, source: SparkSource, count: int, size: int) -> str:
        topic = source.entrant.topic()
        source.entrant.fill(topic, count, size, KEYS)
        return topic

    def _watch(self, source: SparkSource, *others: int) -> Watch:
        self.spark.sparkContext._jvm.System.gc()  # type: ignore[union-attr] # noqa: SLF001
        return Watch(source, [*self._servers, *others])

    @contextlib.contextmanager
    def _folder(self) -> Iterator[Path]:
        folder = Path(tempfile.mkdtemp(prefix="lanemq-bench-"))
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _batch_round(self, source: SparkSource, topic: str, sink: str, folder: Path) -> Count:
        frame = self.spark.read.format(source.format).options(**source.options(topic)).load()
        if sink == "parquet":
            frame.write.mode("overwrite").parquet(str(folder / "out"))
            return lambda: rows_in(folder / "out")
        # Discarded rows are counted by Spark as they pass, which costs both sources the same.
        seen = Observation()
        frame.observe(seen, count(lit(1)).alias("rows")).write.format("noop").mode("overwrite").save()
        return lambda: int(seen.get["rows"])

    def _stream(self, source: SparkSource, topic: str) -> DataFrame:
        return self.spark.readStream.format(source.format).options(**source.options(topic)).load()

    def _stream_round(self, source: SparkSource, topic: str, sink: str, folder: Path) -> Count:
        writer = self._stream(source, topic).writeStream.format(sink).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(folder / "checkpoint"))
        query = writer.start(*([str(folder / "out")] if sink == "parquet" else []))
        query.awaitTermination()
        return lambda: sum(each["numInputRows"] for each in progress_of(query))

    def _small_batches(
        self, source: SparkSource, topic: str, folder: Path, pace: ClientProcess
    ) -> tuple[list[float], float]:
        """The milliseconds of each batch that counts, and the CPU seconds of one batch."""
        writer = self._stream(source, topic).writeStream.format("noop").trigger(processingTime="0 seconds")
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
            _, jvm, python, _ = began[1].stop()
        finally:
            query.stop()
        counted = [found[number] for number in sorted(found)][FLOOR_SKIPPED:]
        return counted, (jvm + python) / max(1, len(found) - began[0])

    def _check(self, what: str, source: SparkSource, found: int, expected: int) -> None:
        if found != expected:
            raise ClientFailed(f"{source.name}, {what}: {found:,} rows instead of {expected:,}")

    def _record(
        self,
        path: str,
        source: SparkSource,
        sink: str,
        size: int,
        count: int,
        took: tuple[float, float, float, float],
        number: int,
    ) -> None:
        wall, jvm, python, server = took
        each = {name: round(value / count * 1e6, 2) for name, value in (("jvm", jvm), ("python", python))}
        self._records.add(
            path=path,
            mode=sink,
            bytes=size,
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


def progress_of(query: Any) -> list[dict[str, Any]]:
    return [json.loads(each.json) for each in query.recentProgress]


def rows_in(folder: Path) -> int:
    """Rows of all Parquet files, from their footers."""
    return sum(pq.read_metadata(path).num_rows for path in folder.rglob("*.parquet"))
