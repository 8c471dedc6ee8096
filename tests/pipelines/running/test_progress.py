"""What people are told about batches and passes."""

import json
import subprocess
import sys
from typing import Any

import pytest

from lanemq.cli.pipeline.run_output import progress_output
from lanemq.model.queue import MessageQueue
from lanemq.pipelines.batch import Batch, batch_number
from lanemq.pipelines.running.progress import AppliedBatch, Progress, ProgressReporter, counted
from lanemq.spark.lag import QueueLag

QUEUE = MessageQueue("orders", "b", 0)


def done(spark_batch: int, retry_pass: int = 0, **more: Any) -> AppliedBatch:
    return AppliedBatch(Batch("q", batch_number(spark_batch, retry_pass), 2), **more)


def spark_s(batch: int, start: int, end: int, latest: int) -> dict[str, Any]:
    offsets = {"startOffset": start, "endOffset": end, "latestOffset": latest}
    source = {name: f'{{"orders": {{"b/0": {at}}}}}' for name, at in offsets.items()}
    return {"batchId": batch, "durationMs": {"triggerExecution": 500}, "sources": [source], "numInputRows": 1}


@pytest.fixture
def told() -> list[Progress]:
    return []


@pytest.fixture
def reporting(told: list[Progress]) -> ProgressReporter:
    return ProgressReporter("orders", "127.0.0.1:1", told.append)


def test_a_batch_is_told_once_spark_has_told_its_part(reporting: ProgressReporter, told: list[Progress]) -> None:
    reporting.on_spark_progress(None)
    reporting.on_spark_progress(spark_s(3, 0, 10, 10))
    reporting.on_applied(done(4, outputs=7))
    assert told == []
    for _ in range(2):
        reporting.on_spark_progress(spark_s(4, 10, 30, 75))
    (only,) = told
    assert (only.messages, only.lag_messages, only.rate, only.seconds) == (20, 45, 40.0, 0.5)
    assert only.lag_seconds is None, "a broker that is away costs the age, not the report"
    assert reporting.last is only
    reporting.close()


def test_batches_that_were_missed_and_the_last_one_are_told_all_the_same(
    reporting: ProgressReporter, told: list[Progress]
) -> None:
    reporting.on_applied(done(4))
    reporting.on_applied(done(5))
    reporting.on_spark_progress(spark_s(5, 10, 30, 30))
    reporting.on_applied(done(6))
    reporting.close()
    assert [each.applied.batch.spark_batch for each in told] == [4, 5, 6]


def test_a_pass_is_told_at_once(reporting: ProgressReporter, told: list[Progress]) -> None:
    reporting.on_applied(done(4, 2, outputs=1, seconds=0.25, counts={"events": 3, "parked": 1}))
    (only,) = told
    assert only.line() == "orders retry pass 2 after batch 4: 1 row, 1 parked, 0.2 s, lag 0"
    assert only.document()["retry_pass"] == 2
    reporting.close()


def test_a_report_that_raises_does_not_end_the_pipeline(caplog: pytest.LogCaptureFixture) -> None:
    def broken(progress: Progress) -> None:
        raise BrokenPipeError("nobody reads")

    reporting = ProgressReporter("orders", "127.0.0.1:1", broken)
    reporting.on_applied(done(4, 1))
    reporting.close()
    assert "the pipeline goes on" in caplog.text


def test_a_line_has_what_matters() -> None:
    lag = (QueueLag(QUEUE, 30, 75, 12.34), QueueLag(MessageQueue("orders", "b", 1), 5, 5))
    progress = Progress("orders", done(4, outputs=7, counts={"events": 20, "repeats": 2, "gaps": 0}), 20, 0.5, lag)
    assert progress.line() == "orders batch 4: 20 messages, 7 rows, 2 repeats, 0.5 s, 40/s, lag 45 (12.3 s)"
    repeated = Progress("orders", done(4, repeated=True))
    assert "repeated, the sink had it" in repeated.line()
    queues: Any = progress.document()["queues"]
    assert [each["lag"] for each in queues] == [45, 0]


def test_a_terminal_shows_one_picture_that_lives(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    lag = (QueueLag(QUEUE, 30, 75, 12.34),)
    counts = {"events": 20, "parked": 1, "keys": 7, "lanes_parked": 1}
    with progress_output("orders", as_json=False, quiet=False) as report:
        for batch in (4, 5):
            report(Progress("orders", done(batch, counts=counts), 20, 0.5, lag))
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
    ],
)
def test_one_is_not_many(count: int, name: str, said: str) -> None:
    assert counted(count, name) == said


def test_a_reader_that_goes_away_ends_the_telling_and_not_the_pipeline() -> None:
    """`lanemq pipeline run --json | head -1`: no traceback, neither then nor at the end of the program."""
    code = (
        "from lanemq.cli.pipeline.run_output import _print\nimport logging\nlogging.basicConfig()\n"
        "input()\nfor _ in range(3): _print('x' * 100_000)\n"
    )
    told = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert told.stdout is not None
    told.stdout.close()
    _, errors = told.communicate("\n", timeout=60)
    assert told.returncode == 0, errors
    assert len(errors.splitlines()) == 1
    assert "the reader of the progress output is gone" in errors


def test_quiet_says_nothing_and_programs_get_a_line_each(capsys: pytest.CaptureFixture[str]) -> None:
    for as_json in (False, True):
        with progress_output("orders", as_json=as_json, quiet=True) as report:
            report(Progress("orders", done(4)))
    (line,) = capsys.readouterr().out.splitlines()
    assert json.loads(line)["batch"] == 4
