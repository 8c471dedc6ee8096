"""`check_with_spark`: the verdict of the plain checker, for histories of any size.

What comes back to the driver is small: a page per shard and one per file.
"""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from operator import attrgetter
from pathlib import Path
from typing import Any

import msgspec
from pyspark.sql import SparkSession
from pyspark.sql.pandas.types import from_arrow_schema

from lanemq.checker.checking import Options
from lanemq.checker.findings import Findings, conclude, minimums
from lanemq.checker.reading import find_files, first_problems
from lanemq.checker.verdict import MOST_KEPT, Report, Violation
from lanemq.pipelines.audit.judging import RESULTS, judge
from lanemq.pipelines.audit.routing import find_routes, find_topics, into_shards
from lanemq.pipelines.audit.scanning import PIECES, PLACES, FileFacts, files_of, scan_pieces, scan_places
from lanemq.pipelines.audit.surroundings import around_with_spark
from lanemq.pipelines.audit.tasks import Tasks

Part = tuple[Findings, list[FileFacts]]
"""The sum of what a run's shards found, and its files in order."""

_FINDINGS = msgspec.msgpack.Decoder(Findings)
_FACTS = msgspec.msgpack.Decoder(FileFacts)


def check_with_spark(spark: SparkSession, paths: Iterable[Path], options: Options | None = None) -> Report:
    """Judge the history under `paths`; a first violation comes with the events around it.

    Every executor must be able to read the files under the same names.
    """
    options = options or Options()
    minimums(options.require)  # a mistake in there should not cost a job
    tasks = Tasks.deal(spark, files_of([_absolute(paths)]))
    ((findings, facts),) = _judged(tasks, 1, options)
    report = report_of(findings, facts, options)
    if not report.violations:
        return report
    first = report.violations[0]
    home, _ = _lives(facts).get(first.process, (0, 0))
    return replace(report, around=around_with_spark(tasks, first, home))


def check_runs_with_spark(
    spark: SparkSession, runs: Sequence[Iterable[Path]], options: Options | None = None
) -> list[Report]:
    """Judge many runs in one job, each as if it were alone; without the events around violations."""
    options = options or Options()
    minimums(options.require)
    tasks = Tasks.deal(spark, files_of([_absolute(paths) for paths in runs]))
    return [report_of(*part, options) for part in _judged(tasks, len(runs), options)]


def _judged(tasks: Tasks, runs: int, options: Options) -> list[Part]:
    parts: list[Part] = [(Findings(), []) for _ in range(runs)]
    add_results(parts, ((row.run, row.payload) for row in _judge(tasks, options)))
    return parts


def add_results(parts: list[Part], results: Iterable[tuple[int | None, bytes]]) -> None:
    """Rows of `judging.RESULTS`, each to the run it is about."""
    for run, payload in results:
        if run is None:
            fact = _FACTS.decode(payload)
            parts[fact.run][1].append(fact)
        else:
            parts[run][0].add(_FINDINGS.decode(payload))
    for _, facts in parts:
        facts.sort(key=attrgetter("file"))


def _judge(tasks: Tasks, options: Options) -> list[Any]:
    """Two jobs: where everything is, then everything in its place."""
    routes = find_routes(tasks.map(scan_places, PLACES)).persist()
    try:
        topics = find_topics(routes)
        shards = into_shards(tasks.map(scan_pieces, PIECES), routes, topics)
        return shards.mapInArrow(partial(judge, options, topics), from_arrow_schema(RESULTS)).collect()
    finally:
        routes.unpersist()


def report_of(findings: Findings, facts: Sequence[FileFacts], options: Options) -> Report:
    """The verdict on a run, as `Checker.finish` draws it: what only shows at the end is put at the end of the run."""
    for fact in facts:
        findings.add(Findings(seen=fact.seen))
    last = max(facts, key=lambda fact: (fact.last_t, fact.file), default=FileFacts(0, 0))
    lives = _lives(facts)

    def when(found: Violation) -> tuple[Any, ...]:
        if found.n < 0:
            return 1, found.group, found.topic, found.queue, found.offset
        return 0, found.t, lives.get(found.process, (-1, 0)), found.n

    kept = sorted(findings.violations, key=when)[:MOST_KEPT]
    findings.violations = [
        replace(found, t=last.last_t, process=last.last_process) if found.n < 0 else found for found in kept
    ]
    return conclude(findings, minimums(options.require), first_problems(fact.problems for fact in facts))


def _absolute(paths: Iterable[Path]) -> list[Path]:
    return [path.absolute() for path in find_files(paths)]


def _lives(facts: Sequence[FileFacts]) -> dict[str, tuple[int, int]]:
    """Process to its file, and which of the lives in that file it is."""
    return {process: (fact.file, life) for fact in facts for life, process in enumerate(fact.processes)}
