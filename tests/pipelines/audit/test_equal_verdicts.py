"""The Spark job and the plain checker report the same about every history: verdict, counts, texts, coverage."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
from benchmarks.checker import write as write_long_run
from tests.checker.conftest import parse
from tests.checker.test_members_without_history import UNDECIDED
from tests.checker.test_planted_violations import DRAINED, PLANTED
from tests.checker.test_random_histories import DAMAGE, World
from tests.pipelines.audit.garbage import garbage
from tests.pipelines.audit.histories import write_history

from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.parquet_writing import convert
from lanemq.checker.verdict import INVARIANTS, Report, Verdict
from lanemq.pipelines.audit import job
from lanemq.pipelines.audit.job import check_runs_with_spark, check_with_spark
from lanemq.pipelines.audit.routing import Topics

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


def check_plainly(runs: list[Path], options: CheckOptions | None = None) -> list[Report]:
    return [replace(check([run], options), around=()) for run in runs]


def check_by_spark(spark: Any, runs: list[Path], options: CheckOptions | None = None) -> list[Report]:
    return check_runs_with_spark(spark, [[run] for run in runs], options)


def compare(spark: Any, runs: list[Path], options: CheckOptions | None = None) -> list[Report]:
    """Checks every run both ways, asserts that the reports are equal, and returns them."""
    plain = check_plainly(runs, options)
    for run, one, other in zip(runs, plain, check_by_spark(spark, runs, options), strict=True):
        assert other == one, run.name
    return plain


def test_every_planted_violation_is_reported_with_the_same_text(spark: Any, tmp_path: Path) -> None:
    runs = [write_history(tmp_path / f"{i:03}", parse(script)) for i, (_, script) in enumerate(PLANTED.values())]
    runs += [write_history(tmp_path / f"u{i}", parse(script)) for i, script in enumerate(UNDECIDED.values())]
    found: set[str] = set()
    for drained in (False, True):
        reports = compare(spark, runs, CheckOptions(drained=drained))
        assert drained or all(report.verdict is Verdict.UNKNOWN for report in reports[len(PLANTED) :])
        for (name, (invariant, _)), report in zip(PLANTED.items(), reports, strict=False):
            found |= set(report.counts)
            if drained == (name in DRAINED):
                assert report.violations[0].invariant == invariant, name
    assert found == set(INVARIANTS), "the comparison covers every invariant"


def test_random_histories_get_the_same_report(spark: Any, tmp_path: Path) -> None:
    runs = [write_history(tmp_path / f"clean{number}", World(number).run()) for number in range(50)]
    clean = len(runs)
    for damage in DAMAGE:
        for number in range(1000, 1006):
            history = World(number).run()
            if damage(history, Random(number)):
                runs.append(write_history(tmp_path / f"{damage.__name__}{number}", history))
    reports = compare(spark, runs, CheckOptions(slack_ns=0))
    assert all(report.verdict is Verdict.PASS for report in reports[:clean])
    assert all(report.verdict is Verdict.VIOLATION for report in reports[clean:])
    assert len(reports) > clean + 30


@pytest.fixture(scope="module")
def random_runs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """60 runs of random events; half of them are regular, which shards rely on."""
    folder = tmp_path_factory.mktemp("random_runs")
    return [
        write_history(folder / str(number), garbage(number, regular=number % 2 == 0), lives=1 + number % 3)
        for number in range(60)
    ]


def test_histories_of_random_events_get_the_same_report(spark: Any, random_runs: list[Path]) -> None:
    reports = compare(spark, random_runs, CheckOptions(slack_ns=0))
    found = {name for report in reports for name in report.counts}
    assert len(found) > 18, f"only {found} were ever violated"


def forget_irregular(topics: Topics) -> Topics:
    return replace(topics, irregular=frozenset())


def forget_first_sends(topics: Topics) -> Topics:
    return replace(topics, first_sends={})


@pytest.mark.parametrize("forget", [forget_irregular, forget_first_sends])
def test_reports_differ_if_shards_do_not_know_their_topic(
    spark: Any, random_runs: list[Path], monkeypatch: pytest.MonkeyPatch, forget: Callable[[Topics], Topics]
) -> None:
    """Negative control: otherwise the comparisons above would prove nothing about it."""
    known = job.find_topics
    monkeypatch.setattr(job, "find_topics", lambda routes: forget(known(routes)))
    some = random_runs[:40]
    assert check_by_spark(spark, some) != check_plainly(some)


def test_reports_differ_if_sends_reach_the_wrong_shard(
    spark: Any, random_runs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    routed = job.into_shards
    monkeypatch.setattr(job, "into_shards", lambda pieces, routes, topics: routed(pieces, routes.limit(0), topics))
    regular = random_runs[:40:2]
    assert check_by_spark(spark, regular) != check_plainly(regular)


def damage_gap(lines: list[str]) -> list[str]:
    return [*lines[:5], *lines[6:]]


def damage_line(lines: list[str]) -> list[str]:
    return [*lines[:5], "{torn", *lines[6:]]


def damage_end(lines: list[str]) -> list[str]:
    return [*lines[:-1], lines[-1][:10]]


def damage_begin(lines: list[str]) -> list[str]:
    return lines[1:]


def damage_time(lines: list[str]) -> list[str]:
    return [*lines[:5], json.dumps(json.loads(lines[5]) | {"t": 1}), *lines[6:]]


def damage_kind(lines: list[str]) -> list[str]:
    return ["Dear diary,", *lines]


def test_damaged_files_are_reported_with_the_same_text(spark: Any, tmp_path: Path) -> None:
    runs = []
    for damage in (damage_gap, damage_line, damage_end, damage_begin, damage_time, damage_kind):
        run = write_history(tmp_path / damage.__name__, World(7).run())
        for path in sorted(run.iterdir())[:2]:
            path.write_text("\n".join(damage(path.read_text().splitlines())))
        runs.append(run)
    again = write_history(tmp_path / "namesakes", World(7).run())
    runs.append(write_history(again / "again", World(8).run()).parent)
    (tmp_path / "empty").mkdir()
    reports = compare(spark, [*runs, tmp_path / "empty"])
    verdicts = [report.verdict for report in reports[:6]]
    assert verdicts.count(Verdict.UNKNOWN) == 5, "a torn end is how a killed process looks"


def test_the_events_around_a_violation_are_the_same(spark: Any, tmp_path: Path) -> None:
    """One run for each position of a violation: in one file, in many with equal times, at the end."""
    scripts = [garbage(3), parse(PLANTED["1 never runs, 2 does"][1])]
    for number, events in enumerate(scripts):
        run = write_history(tmp_path / str(number), events)
        report = check_with_spark(spark, [run])
        assert report.around
        assert report == check([run])


def test_a_long_history_and_one_in_parquet_get_the_same_report(spark: Any, tmp_path: Path) -> None:
    for name, messages in (("long", 30_000), ("short", 10_000)):
        (tmp_path / name).mkdir()
        assert write_long_run(tmp_path / name, messages) > 4 * messages
    list(convert(tmp_path / "short", tmp_path / "columns"))
    long, short, columns = compare(spark, [tmp_path / name for name in ("long", "short", "columns")])
    assert long.verdict is Verdict.PASS
    assert long.events > 120_000
    assert columns == short


def test_an_empty_history_is_unknown(spark: Any) -> None:
    assert check_with_spark(spark, []).verdict is Verdict.UNKNOWN


def test_a_wrong_requirement_is_refused_before_any_work() -> None:
    with pytest.raises(ValueError, match="cannot require 'luck'"):
        check_with_spark(None, [], CheckOptions(require=("luck",)))  # type: ignore[arg-type]
