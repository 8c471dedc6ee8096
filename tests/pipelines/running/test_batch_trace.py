"""Spans of batches: what they show, and that a run without them reads nothing. Without Spark."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import StatusCode
from tests.client.test_tracing import recording
from tests.pipelines.checkpoint.test_checkpoint import used_by_spark
from tests.pipelines.fakes import FakeSink, FakeStage, rows_of

from lanemq import trace_batches
from lanemq.model.queue import MessageQueue
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.ports import Results
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.running.batch_trace import BatchTracing, PlannedBatch, ProcessBatch, ranges_between
from lanemq.pipelines.running.effect_history import EffectHistory
from lanemq.pipelines.running.progress import AppliedBatch

ROW = ("t", 0, 5, "k")


@pytest.fixture
def checkpoint(tmp_path: Path) -> Iterator[Checkpoint]:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    used_by_spark(folder, planned=-1, done=-1)
    made = Checkpoint(folder, "orders")
    yield made
    made.close()


def plan(checkpoint: Checkpoint, *ends: str) -> None:
    """Plans batches as Spark does; each end is the JSON of a topic's queues."""
    for number, end in enumerate(ends):
        path = checkpoint.folder / "offsets" / str(number)
        path.write_bytes(f'v1\n{{}}\n{{"orders": {end}}}'.encode())


def process(checkpoint: Checkpoint, tracing: BatchTracing, stage: FakeStage, batches: Sequence[int]) -> BatchProcessor:
    processor = BatchProcessor(
        stage, FakeSink(), FakeSink(), checkpoint, EffectHistory(None, "orders"), tracing=tracing
    )
    processor.open(None)  # type: ignore[arg-type]
    for number in batches:
        processor.process_batch(None, number)  # type: ignore[arg-type]
    return processor


def shown(span: ReadableSpan, *names: str) -> list[object]:
    return [(span.attributes or {}).get(name) for name in names]


def test_each_batch_and_retry_pass_is_a_span_that_says_what_it_read_and_gave(checkpoint: Checkpoint) -> None:
    provider, exporter = recording()
    plan(checkpoint, '{"b/0": 5}', '{"b/0": 5, "b/1": 2}', '{"b/0": 9, "b/1": 3}')
    stage = FakeStage()
    stage.dead = rows_of(ROW)
    processor = process(checkpoint, BatchTracing(trace_batches(provider=provider), checkpoint.log), stage, (0, 1, 2))
    stage.waiting = [Results(rows_of(ROW, ROW), None, {})]
    processor.process_retry_pass(2)
    processor.close()
    spans = exporter.get_finished_spans()
    assert {span.name for span in spans} == {"process orders"}
    assert [shown(span, "lanemq.pipeline", "lanemq.batch", "lanemq.retry_pass") for span in spans] == [
        ["orders", 0, 0], ["orders", 1, 0], ["orders", 2, 0], ["orders", 2, 1],
    ]  # fmt: skip
    assert [shown(span, "lanemq.queues", "messaging.batch.message_count") for span in spans] == [
        [("orders/b/0:-5",), None],
        [("orders/b/1:0-2",), 2],
        [("orders/b/0:5-9", "orders/b/1:2-3"), 5],
        [(), 0],
    ]
    assert [shown(span, "lanemq.rows", "lanemq.dead_letters") for span in spans] == [[0, 1], [0, 1], [0, 1], [2, 0]]


def test_a_batch_that_fails_is_a_failed_span_with_the_error(checkpoint: Checkpoint) -> None:
    provider, exporter = recording()
    plan(checkpoint, '{"b/0": 5}')

    def fail(batch: Batch) -> None:
        raise ValueError("not today")

    stage = FakeStage()
    stage.before_run = fail
    with pytest.raises(ValueError, match="not today"):
        process(checkpoint, BatchTracing(trace_batches(provider=provider), checkpoint.log), stage, (0,))
    (span,) = exporter.get_finished_spans()
    assert span.status.status_code is StatusCode.ERROR
    assert [(event.name, (event.attributes or {})["exception.message"]) for event in span.events] == [
        ("exception", "not today")
    ]


def test_without_a_trace_nothing_is_read_for_it(checkpoint: Checkpoint, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the control: with one, the plan is read."""
    plan(checkpoint, '{"b/0": 5}')
    monkeypatch.setattr(BatchTracing, "_plan", lambda *_: pytest.fail("planned"))
    process(checkpoint, BatchTracing(), FakeStage(), (0,)).close()

    def trace(planned: PlannedBatch, process: ProcessBatch) -> AppliedBatch | None:
        return process()

    plan(checkpoint, '{"b/0": 5}', '{"b/0": 6}')
    with pytest.raises(pytest.fail.Exception, match="planned"):
        process(checkpoint, BatchTracing(trace, checkpoint.log), FakeStage(), (1,))


def test_ranges_leave_out_queues_without_new_messages() -> None:
    one, two, three = (MessageQueue("t", "b", number) for number in range(3))
    found = ranges_between({one: 3, two: 4}, {one: 3, two: 6, three: 2})
    assert [(each.queue, each.start, each.end) for each in found] == [(two, 4, 6), (three, 0, 2)]
