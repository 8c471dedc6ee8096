"""Reports about batches and retry passes."""

import json
import subprocess
import sys
from typing import Any

import pytest

from lanemq.cli.pipeline.run_output import progress_output
from lanemq.model.queue import MessageQueue
from lanemq.pipelines.batches import Batch, batch_number
from lanemq.pipelines.running.progress import AppliedBatch, Progress, ProgressReporter, counted
from lanemq.spark.lag import QueueLag

QUEUE = MessageQueue("orders", "b", 0)


def applied(spark_batch: int, retry_pass: int = 0, **more: Any) -> AppliedBatch:
    return AppliedBatch(Batch("q", batch_number(spark_batch, retry_pass), 2), **more)


def spark_progress(batch: int, start: int, end: int, latest: int) -> dict[str, Any]:
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    source = {name: f'{{"orders": {{"b/0": {at}}}}}' for name, at in offsets.items()}
    return {"batchId": batch, "durationMs": {"triggerExecution": 500}, "sources": [source], "numInputRows": 1}


@pytest.fixture
def reported() -> list[Progress]:
    return []


@pytest.fixture
def reporter(reported: list[Progress]) -> ProgressReporter:
    return ProgressReporter("orders", "127.0.0.1:1", reported.append)


def test_a_batch_is_reported_once_with_sparks_progress(reporter: ProgressReporter, reported: list[Progress]) -> None:
    reporter.on_spark_progress(None)
    reporter.on_spark_progress(spark_progress(3, 0, 10, 10))
    reporter.on_applied(applied(4, outputs=7))
    assert reported == []
    for _ in range(2):
        reporter.on_spark_progress(spark_progress(4, 10, 30, 75))
    (only,) = reported
    assert (only.messages, only.lag_messages, only.rate, only.seconds) == (20, 45, 40.0, 0.5)
    assert only.lag_seconds is None, "without a broker the report has no age"
    assert reporter.last is only
    reporter.close()


def test_the_lag_after_a_batch_that_an_earlier_run_planned_is_unknown_not_0(
    reporter: ProgressReporter, reported: list[Progress]
) -> None:
    """Spark repeats such a batch after a restart without asking for the ends of the queues."""
    progress = spark_progress(4, 10, 30, 75)
    progress["sources"][0]["latestOffset"] = "null"
    reporter.on_applied(applied(4, outputs=7))
    reporter.on_spark_progress(progress)
    (only,) = reported
    assert only.lag_messages is None
    assert only.document()["lag"] is None
    assert only.line() == "orders batch 4: 20 messages, 7 rows, 0.5 s, 40/s"
    reporter.close()


def test_batches_without_sparks_progress_are_reported_too(reporter: ProgressReporter, reported: list[Progress]) -> None:
    reporter.on_applied(applied(4))
    reporter.on_applied(applied(5))
    reporter.on_spark_progress(spark_progress(5, 10, 30, 30))
    reporter.on_applied(applied(6))
    reporter.close()
    assert [each.applied.batch.spark_batch for each in reported] == [4, 5, 6]


def test_the_last_batch_of_a_stopped_run_names_the_messages_that_its_stage_read(
    reporter: ProgressReporter, reported: list[Progress]
) -> None:
    reporter.on_applied(applied(1, outputs=1, seconds=0.5, counts={"events": 3, "keys": 1}))
    reporter.on_applied(applied(2, outputs=1, seconds=0.5))
    reporter.close()
    assert [each.line() for each in reported] == [
        "orders batch 1: 3 messages, 1 row, 1 key, 0.5 s, 6.0/s",
        "orders batch 2: 1 row, 0.5 s",
    ], "a stage of the user's own may count nothing; then the line does not say 0"


def test_a_retry_pass_is_reported_at_once(reporter: ProgressReporter, reported: list[Progress]) -> None:
    reporter.on_applied(applied(4, 2, outputs=1, seconds=0.25, counts={"events": 3, "parked": 1}))
    (only,) = reported
    assert only.line() == "orders retry pass 2 after batch 4: 1 row, 1 parked, 0.2 s"
    assert only.document()["retry_pass"] == 2
    reporter.close()


def test_a_report_that_raises_does_not_end_the_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    def broken(progress: Progress) -> None:
        raise BrokenPipeError("the reader is gone")

    reporter = ProgressReporter("orders", "127.0.0.1:1", broken)
    reporter.on_applied(applied(4, 1))
    reporter.close()
    assert "the pipeline continues" in caplog.text


def test_the_line_of_a_batch_names_its_counts_rate_and_lag() -> None:
    lag = (QueueLag(QUEUE, 30, 75, 12.34), QueueLag(MessageQueue("orders", "b", 1), 5, 5))
    progress = Progress("orders", applied(4, outputs=7, counts={"events": 20, "repeats": 2, "gaps": 0}), 20, 0.5, lag)
    assert (
        progress.line()
        == "orders batch 4: 20 messages, 7 rows, 2 repeats, 0.5 s, 40/s, lag 45 (the oldest is 12.3 s old)"
    )
    repeated = Progress("orders", applied(4, repeated=True))
    assert "repeated, the sink had it" in repeated.line()
    queues: Any = progress.document()["queues"]
    assert [each["lag"] for each in queues] == [45, 0]


def test_a_terminal_shows_one_view_that_is_updated(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lag = (QueueLag(QUEUE, 30, 75, 12.34),)
    counts = {"events": 20, "parked": 1, "keys": 7, "lanes_parked": 1}
    with progress_output("orders", as_json=False, quiet=False) as report:
        for batch in (4, 5):
            report(Progress("orders", applied(batch, counts=counts), 20, 0.5, lag))
    shown = capsys.readouterr().out
    assert "orders batch 5: 20 messages" in shown
    assert "since the start: 40 messages, 40 events, 2 parked, 7 keys, 1 lane parked" in shown, "keys do not add up"
    assert "12.3 s" in shown


@pytest.mark.parametrize(
    ("count", "name", "said"),
    [
        (1, "rows", "1 row"),
        (2, "rows", "2 rows"),
        (1, "lanes_parked", "1 lane parked"),
        (1, "key_changes", "1 key change"),
        (1, "missing", "1 missing"),
        (1, "misfits", "1 misfit"),
        (1, "redriven_dead_letters", "1 redriven dead letter"),
    ],
)
def test_a_count_of_one_is_singular(count: int, name: str, said: str) -> None:
    assert counted(count, name) == said


def test_a_closed_pipe_ends_the_report_but_not_the_pipeline() -> None:
    """`lanemq pipeline run --json | head -1` prints no traceback, neither then nor at the end of the program."""
    code = (
        "from lanemq.cli.pipeline.run_output import _print\nimport logging\nlogging.basicConfig()\n"
        "input()\nfor _ in range(3): _print('x' * 100_000)\n"
    )
    reported = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert reported.stdout is not None
    reported.stdout.close()
    _, errors = reported.communicate("\n", timeout=60)
    assert reported.returncode == 0, errors
    assert len(errors.splitlines()) == 1
    assert "the progress cannot be written (Broken pipe)" in errors


def test_quiet_prints_nothing_and_json_prints_a_line_per_batch(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        with progress_output("orders", as_json=as_json, quiet=True) as report:
            report(Progress("orders", applied(4)))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["batch"] == 4
