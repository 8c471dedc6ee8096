"""`check_with_spark`: the verdict of the plain checker, for histories of any size.

The files are spread over Spark's tasks; the driver receives one small result per shard and per file.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
import pyarrow as pa
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from lanemq.checker.checking import CheckOptions
from lanemq.checker.events import HistoryEvent
from lanemq.checker.explain import AFTER, BEFORE, line, surroundings
from lanemq.checker.reading import clock_problems, find_files, first_problems
from lanemq.checker.verdict import MAX_VIOLATIONS, Findings, Report, Violation, conclude, end_order, minimums
from lanemq.pipelines.audit.judging import RESULTS, judge
from lanemq.pipelines.audit.routing import find_routes, find_topics, into_shards
from lanemq.pipelines.audit.scanning import (
    MESSAGES,
    PIECES,
    FileFacts,
    Files,
    RunFile,
    assigned,
    files_of,
    scan_messages,
    scan_pieces,
)

TASKS_PER_CORE = 3
"""More: starting tasks takes longer than reading. Fewer: the last one keeps the others waiting."""

TASK_BYTES = 128 * 1024 * 1024
"""Bytes of history for each task after a shuffle. More: a task may not fit into its memory."""

PIECES_PER_BATCH = 1000
"""Pieces have kilobytes, so Spark's usual ten thousand rows would be a hundred megabytes per batch."""

LINES = pa.schema({"after": pa.bool_(), "t": pa.int64(), "file": pa.int32(), "at": pa.int32(), "text": pa.string()})

Batches = Iterator[pa.RecordBatch]

Part = tuple[Findings, list[FileFacts]]
"""The findings of a run's shards, added up, and its files in order."""

_FINDINGS = msgspec.msgpack.Decoder(Findings)
_FACTS = msgspec.msgpack.Decoder(FileFacts)


@dataclass(frozen=True, slots=True)
class Tasks:
    """The files of a history, spread over Spark's tasks: a few files each, about the same work for all."""

    numbers: DataFrame
    files: Files

    @classmethod
    def deal(cls, spark: SparkSession, files: Files) -> "Tasks":
        """Spreads the files, in a new session, so that its settings do not affect the given one."""
        sizes = {file: _size(Path(file.path)) for file in files}
        cores = spark.sparkContext.defaultParallelism
        session = spark.newSession()
        shuffled = max(TASKS_PER_CORE * cores, sum(sizes.values()) // TASK_BYTES)
        session.conf.set("spark.sql.shuffle.partitions", str(shuffled))
        session.conf.set("spark.sql.execution.arrow.maxRecordsPerBatch", str(PIECES_PER_BATCH))
        tasks = max(1, min(len(files), TASKS_PER_CORE * cores))
        return cls(session.range(0, len(files), 1, tasks), _dealt(sizes, tasks))

    def map(self, task: Callable[[Files, Batches], Batches], schema: pa.Schema) -> DataFrame:
        """Runs a function in every task; `scanning.assigned` gives it the task's files."""
        return self.numbers.mapInArrow(partial(task, self.files), from_arrow_schema(schema))


def check_with_spark(spark: SparkSession, paths: Iterable[Path], options: CheckOptions | None = None) -> Report:
    """Check the history under `paths`. The first violation is reported with the events around it.

    Every executor must be able to read the files under the same paths.
    """
    options = options or CheckOptions()
    minimums(options.require)  # report a mistake before a job is started
    tasks = Tasks.deal(spark, files_of([_absolute(paths)]))
    ((findings, facts),) = _judged(tasks, 1, options)
    report = report_of(findings, facts, options)
    if not report.violations:
        return report
    first = report.violations[0]
    home, _ = _process_positions(facts).get(first.process, (0, 0))
    return replace(report, around=_events_around(tasks, first, home))


def check_runs_with_spark(
    spark: SparkSession, runs: Sequence[Iterable[Path]], options: CheckOptions | None = None
) -> list[Report]:
    """Check many runs in one job, each separately. Violations are reported without the events around them."""
    options = options or CheckOptions()
    minimums(options.require)
    tasks = Tasks.deal(spark, files_of([_absolute(paths) for paths in runs]))
    return [report_of(*part, options) for part in _judged(tasks, len(runs), options)]


def _judged(tasks: Tasks, runs: int, options: CheckOptions) -> list[Part]:
    parts: list[Part] = [(Findings(), []) for _ in range(runs)]
    add_results(parts, ((row.run, row.payload) for row in _judge(tasks, options)))
    return parts


def add_results(parts: list[Part], results: Iterable[tuple[int | None, bytes]]) -> None:
    """Adds rows of `judging.RESULTS` to their runs."""
    for run, payload in results:
        if run is None:
            fact = _FACTS.decode(payload)
            parts[fact.run][1].append(fact)
        else:
            parts[run][0].add(_FINDINGS.decode(payload))
    for _, facts in parts:
        facts.sort(key=attrgetter("file"))


def _judge(tasks: Tasks, options: CheckOptions) -> list[Any]:
    """Two jobs: the first finds the queue of each message, the second checks every shard."""
    routes = find_routes(tasks.map(scan_messages, MESSAGES)).persist()
    try:
        topics = find_topics(routes)
        shards = into_shards(tasks.map(scan_pieces, PIECES), routes, topics)
        return shards.mapInArrow(partial(judge, options, topics), from_arrow_schema(RESULTS)).collect()
    finally:
        routes.unpersist()


def report_of(findings: Findings, facts: Sequence[FileFacts], options: CheckOptions) -> Report:
    """The verdict on a run, as `Checker.finish` gives it. Violations found at the end get the last event's time."""
    for fact in facts:
        findings.add(Findings(seen=fact.seen))
    last = max(facts, key=lambda fact: (fact.last_t, fact.file), default=FileFacts(0, 0))
    positions = _process_positions(facts)

    def when(found: Violation) -> tuple[Any, ...]:
        if found.n < 0:
            return 1, *end_order(found)
        return 0, found.t, positions.get(found.process, (-1, 0)), found.n

    kept = sorted(findings.violations, key=when)[:MAX_VIOLATIONS]
    findings.violations = [
        replace(found, t=last.last_t, process=last.last_process) if found.n < 0 else found for found in kept
    ]
    findings.add_untouched(last.last_t, last.last_process)
    clocks = clock_problems((fact.name, fact.machines) for fact in facts)
    problems = first_problems([clocks, *(fact.problems for fact in facts)])
    return conclude(findings, minimums(options.require), problems, foreign_members=options.foreign_members)


def _absolute(paths: Iterable[Path]) -> list[Path]:
    return [path.absolute() for path in find_files(paths)]


def _process_positions(facts: Sequence[FileFacts]) -> dict[str, tuple[int, int]]:
    """The file of each process, and its position among the processes of that file."""
    return {process: (fact.file, at) for fact in facts for at, process in enumerate(fact.processes)}


def _dealt(sizes: dict[RunFile, int], tasks: int) -> Files:
    """The files in an order in which ranges of equal length mean about the same work."""
    by_size = sorted(sizes, key=sizes.__getitem__, reverse=True)
    return tuple(file for first in range(tasks) for file in by_size[first::tasks])


def _size(path: Path) -> int:
    return sum(part.stat().st_size for part in path.iterdir()) if path.is_dir() else path.stat().st_size


def _events_around(tasks: Tasks, found: Violation, home: int) -> tuple[str, ...]:
    """What `explain.around` gives, one sentence per event. `home` is the number of the file with the violation.

    Each file gives its nearest events; the nearest of all are among them.
    """
    rows = tasks.map(partial(_lines, found, home), LINES).collect()
    ordered = sorted(rows, key=lambda row: (row.t, row.file, row.at))
    before = [row.text for row in ordered if not row.after][-BEFORE:]
    return (*before, *[row.text for row in ordered if row.after][:AFTER])


def _lines(found: Violation, home: int, files: Files, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    for file in assigned(files, batches):
        before, after = surroundings(file.open().blocks(), found, _later(file, found, home))
        rows = [
            {"after": is_after, "t": event.t, "file": file.number, "at": at, "text": line(event, found)}
            for is_after, events in ((False, before), (True, after))
            for at, event in enumerate(events)
        ]
        yield pa.RecordBatch.from_pylist(rows, LINES)


def _later(file: RunFile, found: Violation, home: int) -> Callable[[HistoryEvent], bool] | None:
    """Whether an event of another file is later than the violation. None in its own file, where its line is found, and
    for a violation without a line, which is last.
    """
    if found.n < 0 or file.number == home:
        return None
    return lambda event: (event.t, file.number) > (found.t, home)
