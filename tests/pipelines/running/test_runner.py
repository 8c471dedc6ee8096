"""Pipelines inside a real Spark: the order of batches and retry passes, the end, and errors."""

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.client.test_tracing import recording
from tests.pipelines.fakes import FakeSink, FakeStage, rows_of
from tests.spark.read.test_restored_broker import READ, TOPIC, Restorable
from tests.spark.spark_driver import send, until

from lanemq import trace_batches
from lanemq.client.admin.admin import Admin
from lanemq.model.errors import CheckpointInUse, InvalidOption
from lanemq.pipelines.batches import Batch, batch_number, start_of
from lanemq.pipelines.checkpoint.checkpoint import SparkLog
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.ports import Results
from lanemq.pipelines.running import runner
from lanemq.pipelines.running.failure import PipelineFailed
from lanemq.pipelines.running.progress import Progress
from lanemq.pipelines.running.runner import RunningPipeline, start
from lanemq.pipelines.source import Topic
from lanemq.pipelines.stages.project import Project
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

Declare = Callable[..., Pipeline]

ROW = ("t", 0, 5, "k")
"""A retry pass without rows writes nothing, so visible ones need a row."""


@pytest.fixture
def declare(broker: EmbeddedBroker, topic: str, tmp_path: Path) -> Declare:
    """A pipeline over this test's topic; keywords replace its parts."""

    def pipeline(servers: str = "", options: dict[str, object] | None = None, **parts: Any) -> Pipeline:
        source = Topic(servers or broker.address, topic, **(options or {}))  # type: ignore[arg-type]
        parts = {"stage": FakeStage(), "sink": FakeSink(), "checkpoint": tmp_path / "checkpoint"} | parts
        return Pipeline("orders", source, **parts)

    return pipeline


def numbers(*spark_batches: int) -> list[int]:
    return [batch_number(each) for each in spark_batches]


def test_a_pipeline_runs_continues_and_reports(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare, tmp_path: Path
) -> None:
    send(broker.address, topic, range(100))
    sink, reported = FakeSink(), list[Progress]()
    pipeline = declare(sink=sink, options={"maxOffsetsPerTrigger": 60})
    provider, exporter = recording()
    trace = trace_batches(provider=provider)
    running = start(pipeline, spark, once=True, report=reported.append, trace=trace)
    assert running.await_end(600)
    assert [(span.attributes or {})["lanemq.rows"] for span in exporter.get_finished_spans()] == [60, 40]
    assert len(sink.rows) == 100
    assert sink.numbers == numbers(0, 1)
    assert [each.messages for each in reported] == [60, 40]
    assert [each.lag_messages for each in reported] == [40, 0]
    assert reported[0].lag_seconds is not None
    assert reported[1].lag_seconds is None
    send(broker.address, topic, range(100, 130))
    again = start(pipeline, spark, once=True)
    assert again.await_end(600)
    assert sink.numbers == numbers(0, 1, 2)
    assert sorted((row[1], row[2]) for row in sink.rows) == sorted({(row[1], row[2]) for row in sink.rows})
    assert len(sink.rows) == 130
    assert sink.opened == 0
    assert again.progress is not None
    assert start_of(again.progress.applied.batch.epoch) == 2


def test_a_stop_takes_effect_between_two_batches(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare, tmp_path: Path
) -> None:
    """After a stop the ledger's number is the number in Spark's log, so nothing is repeated at the next start."""
    send(broker.address, topic, range(40))
    stage, sink = FakeStage(), FakeSink()
    entered, go_on = threading.Event(), threading.Event()

    def wait(batch: Batch) -> None:
        entered.set()
        assert go_on.wait(600)

    stage.before_run = wait
    pipeline = declare(stage=stage, sink=sink, options={"maxOffsetsPerTrigger": 10})
    running = start(pipeline, spark)
    assert entered.wait(600)
    stopper = threading.Thread(target=running.stop)
    stopper.start()
    assert not running.await_end(0.3), "the batch is not finished"
    with pytest.raises(CheckpointInUse, match="process"):
        start(pipeline, spark)
    go_on.set()
    stopper.join(600)
    assert running.await_end(1)
    log = SparkLog(tmp_path / "checkpoint")
    assert sink.numbers == numbers(0)
    assert log.done() == 0
    stage.before_run = lambda batch: None
    with start(pipeline, spark) as next_run:
        assert next_run.wait_idle(600)
    assert [step for step in stage.steps if step.startswith("run")] == [f"run {n}" for n in numbers(0, 1, 2, 3)]
    assert len(sink.rows) == 40


class SlowStart:
    """A query whose Python process did not connect in time."""

    lastProgress = None  # noqa: N815

    def awaitTermination(self, timeout: float) -> bool:
        raise RuntimeError("Job aborted: org.apache.spark.SparkException: Python worker failed to connect back.")

    def stop(self) -> None:
        pass


def test_a_query_is_started_again_if_its_python_process_was_too_slow(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(broker.address, topic, range(10))
    real, starts = runner._start_query, list[str]()

    def slow_at_first(*given: Any) -> Any:
        starts.append("again" if starts else "first")
        return SlowStart() if len(starts) < runner.MAX_STARTS else real(*given)

    monkeypatch.setattr(runner, "_start_query", slow_at_first)
    sink = FakeSink()
    assert start(declare(sink=sink), spark, once=True).await_end(600)
    assert len(sink.rows) == 10
    assert len(starts) == runner.MAX_STARTS


def test_a_query_whose_python_process_never_connects_ends_with_the_error(
    spark: Any, topic: str, declare: Declare, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts: list[SlowStart] = []

    def slow(*given: Any) -> Any:
        starts.append(SlowStart())
        return starts[-1]

    monkeypatch.setattr(runner, "_start_query", slow)
    with pytest.raises(PipelineFailed, match="Python worker failed to connect back"):
        start(declare(), spark).await_end(600)
    assert len(starts) == runner.MAX_STARTS


def test_a_crash_after_the_sinks_commit_repeats_nothing(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare
) -> None:
    send(broker.address, topic, range(30))
    stage, sink = FakeStage(), FakeSink()

    def crash(batch: Batch) -> None:
        sink.after_write = lambda batch: None
        raise OSError("power cut")

    sink.after_write = crash
    pipeline = declare(stage=stage, sink=sink)
    with pytest.raises(PipelineFailed, match=r"^pipeline 'orders' failed in batch 0: OSError: power cut$") as caught:
        start(pipeline, spark, once=True).await_end(600)
    assert isinstance(caught.value.__cause__, OSError)
    reported: list[Progress] = []
    assert start(pipeline, spark, once=True, report=reported.append).await_end(600)
    assert len(sink.rows) == 30
    assert stage.steps.count("run 0") == 1
    assert reported[0].applied.repeated


def test_retry_passes_run_between_batches_and_their_errors_end_the_pipeline(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare, tmp_path: Path
) -> None:
    send(broker.address, topic, range(5))
    stage, sink = FakeStage(), FakeSink()
    row = ("t", 0, 99, "k")
    running = start(declare(stage=stage, sink=sink), spark)
    assert running.wait_idle(600)
    stage.waiting.append(Results(rows_of(row)))
    until(lambda: batch_number(0, 1) in sink.numbers, 300)
    assert sink.rows[-1] == row
    send(broker.address, topic, range(5, 8))
    assert running.wait_idle(600)
    assert sink.numbers == [batch_number(0), batch_number(0, 1), batch_number(1)]

    log = SparkLog(tmp_path / "checkpoint")

    def fail(batch: Batch) -> None:
        send(broker.address, topic, range(8, 10))
        until(lambda: log.planned() == 2, 300)
        raise ValueError("the lane cannot be read")

    stage.before_run = fail
    stage.waiting.append(Results(rows_of(row)))
    with pytest.raises(
        PipelineFailed, match="failed in a retry pass after batch 1: ValueError: the lane cannot be read"
    ):
        running.await_end(600)
    assert sink.opened == 0
    assert f"run {batch_number(2)}" not in stage.steps, "a batch that waited for the failed retry pass is not processed"


def test_a_report_may_stop_the_pipeline(spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare) -> None:
    send(broker.address, topic, range(5))
    made = list[RunningPipeline]()
    made.append(start(declare(), spark, report=lambda progress: made[0].stop()))
    assert made[0].await_end(600)


def test_once_runs_the_retry_passes_that_are_due(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare
) -> None:
    """And a retry pass that a crash interrupted is completed before the first batch, under its number."""
    send(broker.address, topic, range(5))
    stage, sink = FakeStage(), FakeSink()
    pipeline = declare(stage=stage, sink=sink)
    stage.waiting.append(Results(rows_of(ROW)))

    def dies(batch: Batch) -> None:
        if batch.is_retry_pass:
            raise ValueError("the driver died")

    sink.before_write = dies
    with pytest.raises(PipelineFailed, match="the driver died"):
        start(pipeline, spark, once=True).await_end(600)
    sink.before_write = lambda batch: None
    stage.waiting.append(Results(rows_of(ROW)))
    late = Results(rows_of(ROW))
    stage.before_run = lambda batch: stage.waiting.append(late) if batch.number == batch_number(1) else None
    send(broker.address, topic, range(5, 8))
    assert start(pipeline, spark, once=True).await_end(600)
    assert sink.numbers == [
        batch_number(0),
        batch_number(0, 1),
        batch_number(0, 2),
        batch_number(1),
        batch_number(1, 1),
    ]


def test_once_does_not_put_off_what_is_due_after_the_last_batch(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare
) -> None:
    """One retry pass, not more: timers that it sets itself, for the same moment, are left to the next start."""
    send(broker.address, topic, range(5))
    stage, sink = FakeStage(), FakeSink()
    stage.put_off = 3600.0
    stage.before_run = lambda batch: None if batch.is_retry_pass else stage.waiting.extend([Results(rows_of(ROW))] * 2)
    assert start(declare(stage=stage, sink=sink), spark, once=True).await_end(600)
    assert sink.numbers == [batch_number(0), batch_number(0, 1)]


@pytest.mark.parametrize("once", [True, False])
def test_an_operators_request_is_carried_out_before_a_batch_that_fails_without_it(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare, once: bool
) -> None:
    """A full lane fails every batch until it is redriven, so a retry pass after the batch would never come."""
    send(broker.address, topic, range(5))
    stage, sink, reported = FakeStage(), FakeSink(), list[Progress]()
    pipeline = declare(stage=stage, sink=sink)
    assert start(pipeline, spark, once=True).await_end(600)

    def full(batch: Batch) -> None:
        if batch_number(0, 1) not in sink.numbers and not batch.is_retry_pass:
            raise ValueError("the lane is full")

    stage.before_run = full
    send(broker.address, topic, range(5, 8))
    with pytest.raises(PipelineFailed, match="the lane is full"):
        start(pipeline, spark, once=True).await_end(600)
    stage.waiting.append(Results(rows_of(ROW)))
    with start(pipeline, spark, once=once, report=reported.append) as running:
        assert running.await_end(600) if once else running.wait_idle(600)
    assert sink.numbers == [batch_number(0), batch_number(0, 1), batch_number(1)]
    assert [each.applied.batch.number for each in reported] == [batch_number(0, 1), batch_number(1)]


def test_a_broker_that_stays_down_ends_the_pipeline_with_a_clear_error(spark: Any, declare: Declare) -> None:
    pipeline = declare(servers="127.0.0.1:1", options={"brokerWait": "200ms"})
    with pytest.raises(PipelineFailed) as caught:
        start(pipeline, spark).await_end(600)
    text = str(caught.value)
    assert text.startswith("pipeline 'orders' failed: no name server answered (tried 127.0.0.1:1)")
    assert "\n" not in text
    assert "Traceback" in caught.value.trace


def test_a_topic_that_was_created_again_is_a_data_loss(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare
) -> None:
    send(broker.address, topic, range(20))
    sink = FakeSink()
    assert start(declare(sink=sink), spark, once=True).await_end(600)
    with Admin(broker.address) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 2)
    send(broker.address, topic, range(4))
    with pytest.raises(PipelineFailed, match="failOnDataLoss=false"):
        start(declare(sink=sink), spark, once=True).await_end(600)
    assert start(declare(sink=sink, options={"failOnDataLoss": False}), spark, once=True).await_end(600)
    assert len(sink.rows) == 24


def test_a_broker_that_was_restored_from_an_older_backup_is_a_data_loss(spark: Any, tmp_path: Path) -> None:
    place, sink = Restorable(tmp_path), FakeSink()
    try:
        pipeline = Pipeline("orders", Topic(place.broker.address, TOPIC), FakeStage(), sink, tmp_path / "checkpoint")
        assert start(pipeline, spark, once=True).await_end(600)
        place.restore()
        place.send(range(100, 140))
        with pytest.raises(PipelineFailed) as caught:
            start(pipeline, spark, once=True).await_end(600)
    finally:
        place.broker.stop()
    assert len(sink.rows) == READ
    assert "\n" not in str(caught.value)
    for said in (f"message {READ - 1} was stored", "empty checkpoint and table", "set failOnDataLoss=false"):
        assert said in str(caught.value)


def test_an_error_in_a_task_is_reported_by_its_last_line(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare
) -> None:
    send(broker.address, topic, range(3))
    stage = Project(["queue_id", "cast(raise_error(concat('no ', key)) as string) as x"])
    with pytest.raises(PipelineFailed) as caught:
        start(declare(stage=stage), spark, once=True).await_end(600)
    assert "\n" not in str(caught.value)
    assert "no key-" in str(caught.value)


def test_projected_rows_keep_the_order_of_their_queue(
    spark: Any, broker: EmbeddedBroker, topic: str, declare: Declare, tmp_path: Path
) -> None:
    send(broker.address, topic, range(50))
    sink = FakeSink()
    stage = Project("queue_id,\n queue_offset,\n int(cast(value as string)) as number", where="key <> 'key-3'")
    pipeline = declare(stage=stage, sink=sink, prepare=lambda messages: messages.where("queue_offset > 1"))
    assert start(pipeline, spark, once=True).await_end(600)
    assert stage.columns == ("topic", "broker", "queue_id", "queue_offset", "key", "value")
    assert {row[2] for row in sink.rows} <= {n for n in range(50) if n % 7 != 3}
    assert sink.rows == sorted(sink.rows, key=lambda row: (row[0], row[1]))
    assert min(row[1] for row in sink.rows) == 2
    with pytest.raises(InvalidOption, match=r"select: .*colour"):
        start(declare(stage=Project(["colour"]), checkpoint=tmp_path / "other"), spark)
    assert start(declare(stage=Project(["key"]), checkpoint=tmp_path / "other"), spark, once=True).await_end(600)
