"""`make bench-spark-peers`: the connector fits the PySpark that runs, and the page says where LaneMQ is behind."""

from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.peers.rounds import figures
from benchmarks.spark_peers import connector
from benchmarks.spark_peers.report import BEGIN, END, behind, pairs, publish, section
from benchmarks.spark_peers.sources import LIMIT, Prebuilt, SparkSource
from interop.maven import UnavailableError


def record(contender: str, rate: float, cpu: float, **more: Any) -> dict[str, Any]:
    common = {"path": "batch", "mode": "noop", "bytes": 100, "unit": "rows/s", "verdict": "pass", "count": 1_000}
    measured = {"client_cpu_us": cpu, "server_cpu_us": 0.5, "python_cpu_us": 1.0, "load": 1.0, "time": 1_790_000_000}
    return {**common, **measured, "contender": contender, "value": rate, **more}


def floor(contender: str, millis: float) -> dict[str, Any]:
    return record(contender, millis, 20_000.0, path="floor", unit="ms", bytes=0)


def test_a_path_on_which_the_kafka_source_is_better_gets_a_sentence_with_both_ratios() -> None:
    found = pairs(figures([record("LaneMQ", 100.0, 4.0), record("Kafka source", 150.0, 2.0)]))
    (sentence,) = behind(found)
    assert "1.50× in wall time (150/s against 100/s) and 2.00× in CPU time" in sentence


def test_a_path_on_which_lanemq_is_ahead_gets_none_and_says_whether_the_goal_is_reached() -> None:
    rounds = [record("LaneMQ", 130.0, 2.0), record("Kafka source", 100.0, 2.2)]
    found = pairs(figures(rounds))
    assert behind(found) == []
    text = section(found, rounds, "PySpark", "images/x.png")
    assert "| batch read, 100 B, discarded | 130/s | 100/s | 1.30× |" in text
    assert "| 1.10× | ≥ 1.2× | by wall |" in text
    assert "Nowhere in this run." in text


def test_for_the_smallest_micro_batch_less_time_is_ahead() -> None:
    (pair,) = pairs(figures([floor("LaneMQ", 60.0), floor("Kafka source", 90.0)]))
    assert pair.wall == 1.5
    assert pair.title == "smallest micro-batch, p50"


def test_a_path_with_fewer_rounds_than_the_others_says_so() -> None:
    rounds = [record(name, 100.0, 2.0, path=path) for name in ("LaneMQ", "Kafka source") for path in ("batch",) * 2]
    rounds += [record(name, 100.0, 2.0, mode="parquet") for name in ("LaneMQ", "Kafka source")]
    text = section(pairs(figures(rounds)), rounds, "PySpark", "images/x.png")
    assert "| batch read, 100 B, discarded | 100/s" in text
    assert "| batch read, 100 B, to Parquet (1 of 2 rounds) | 100/s" in text


def test_a_path_measured_with_one_source_only_is_left_out() -> None:
    assert pairs(figures([record("LaneMQ", 100.0, 4.0)])) == []


def test_a_run_that_ended_before_its_first_pair_leaves_the_page_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "rounds.jsonl").write_text("")
    publish(tmp_path / "rounds.jsonl", tmp_path / "page.md", "4.2.0", "connector")
    assert not (tmp_path / "page.md").exists()


def test_a_pyspark_without_a_connector_is_replaced_by_one_that_has_it(capsys: pytest.CaptureFixture[str]) -> None:
    started: list[Sequence[str]] = []

    def missing(spark: str) -> list[Path]:
        raise UnavailableError("not published")

    connector.fitting_jars(["--quick"], find=missing, start_again=started.append)
    assert started == [["--quick"]]
    assert connector.WITH_CONNECTOR in capsys.readouterr().err


def test_the_time_of_an_ended_worker_stays_pythons_although_the_jvm_has_reaped_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from benchmarks.spark_common import Process
    from benchmarks.spark_peers import paths

    looks = iter(
        [
            [
                Process(1, "driver", 1.0, 0.0, 0.0),
                Process(2, "jvm", 10.0, 0.0, 0.0),
                Process(3, "worker", 5.0, 0.0, 0.0),
            ],
            [Process(1, "driver", 1.0, 0.0, 0.0), Process(2, "jvm", 18.0, 6.0, 0.0)],
        ]
    )
    monkeypatch.setattr(paths, "processes", lambda *but: next(looks))
    monkeypatch.setattr(paths, "stream_processes", list)
    _, jvm, python, _ = paths.Watch(Prebuilt(), []).stop()
    assert (jvm, python) == (2.0, 1.0)


def test_the_page_says_how_far_ahead_a_python_source_can_be_at_most() -> None:
    costs = {"LaneMQ": (3.0, 2.0), "Kafka source": (3.6, 3.5), LIMIT: (2.0, 1.5)}
    rounds = [record(name, 100.0, cpu, jvm_cpu_us=jvm, python_cpu_us=cpu - jvm) for name, (cpu, jvm) in costs.items()]
    text = section(pairs(figures(rounds)), rounds, "PySpark", "images/x.png")
    row = "| 3.00 µs (2.00 + 1.00) | 2.00 µs (1.50 + 0.50) | 1.00 µs (0.50 + 0.50) | 3.60 µs | 1.80× | ≥ 1.2× |"
    assert f"| batch read, 100 B, discarded {row}" in text
    assert "highest ratio" not in section(pairs(figures(rounds[:2])), rounds[:2], "PySpark", "images/x.png")


def test_the_cpu_time_of_a_running_stream_is_taken_without_waiting_for_its_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting would add the micro-batches of the wait to the cost of those that are counted."""
    from benchmarks.spark_peers import paths

    monkeypatch.setattr(paths, "stream_processes", lambda: pytest.fail("waited"))
    paths.Watch(Prebuilt(), []).stop(ended=False)


def test_a_run_that_goes_on_measures_only_the_rounds_that_lack() -> None:
    from benchmarks.spark_peers.paths import SparkScale, Task, tasks_left

    scale = SparkScale(3, {100: 1_000}, 10)
    done = [record(name, 100.0, 2.0) for name in ("LaneMQ", LIMIT)] * 3 + [record("Kafka source", 100.0, 2.0)] * 2
    done += [record(name, 100.0, 2.0, mode="parquet") for name in ("LaneMQ", "Kafka source", LIMIT)] * 3
    assert tasks_left(done, scale, ["batch", "floor"]) == [Task("batch", 100, "noop", 1), Task("floor", 0, "noop", 3)]
    assert tasks_left([], scale, ["batch"]) == [Task("batch", 100, "noop", 3), Task("batch", 100, "parquet", 3)]


def test_a_run_goes_round_by_round_and_ends_when_its_time_is_over(monkeypatch: pytest.MonkeyPatch) -> None:
    from benchmarks.spark_peers import paths

    ran: list[tuple[str, str, int]] = []
    entrant = SimpleNamespace(server=SimpleNamespace(pids=[]))
    sources = [*(SparkSource(name, entrant) for name in "LK"), Prebuilt()]  # type: ignore[arg-type]
    race = paths.SparkRace(None, sources, paths.QUICK, None)  # type: ignore[arg-type]
    monkeypatch.setattr(race, "_read", lambda task, source, number: ran.append((task.sink, source.name, number)))
    monkeypatch.setattr(race, "_floor", lambda source, number: ran.append(("floor", source.name, number)))
    tasks = [paths.Task("batch", 100, sink, 1) for sink in paths.SINKS] + [paths.Task("floor", 0, "noop", 1)]
    assert race.run(tasks)
    names = ["L", "K", LIMIT]
    warm_up = [(sink, name, 0) for sink in paths.SINKS for name in names[::-1]]
    assert ran[:-2] == warm_up + [(sink, name, 1) for sink in paths.SINKS for name in names]
    assert ran[-2:] == [("floor", "L", 1), ("floor", "K", 1)]
    assert not race.run(tasks, until=0.0)


def test_the_section_has_marks_of_its_own() -> None:
    from benchmarks.peers import report

    page = report.replaced(report.replaced("# Page", "peers"), "spark", BEGIN, END)
    assert report.replaced(page, "again", BEGIN, END).count("peers\n") == 1
