"""Transitions in Spark itself: real tasks, real streams, real shuffles."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession
from tests.pipelines.stages.transitions.pipeline_fixture import QUERY, Sent, Sink, arrow, begin, recorded

from lanemq import Producer
from lanemq.clock import wall_time
from lanemq.model.errors import OrderError
from lanemq.pipelines import Event, Hold, Park, Transitions
from lanemq.pipelines.batches import NUMBERS_PER_BATCH, Batch, batch_number
from lanemq.pipelines.checkpoint.checkpoint import run_log_of_stage
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.checkpoint.units import Units
from lanemq.pipelines.operate.parked import list_parked, show
from lanemq.pipelines.ports import Results
from lanemq.pipelines.stages.transitions.messages import COLUMNS, WaitingMessage
from lanemq.pipelines.stages.transitions.operator_requests import RedrivenDeadLetter, Redrives, request_redrive
from lanemq.spark.columns import select_columns
from lanemq.testing.embedded import EmbeddedBroker

OUTPUTS = "key string, n long, seen long"


def make_step() -> Callable[[Any, Event], tuple[Any, list[dict[str, object]]]]:
    """Made in a function, so that it is pickled by value: workers cannot import tests."""

    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        seen = (state or 0) + 1
        if event.attempt <= event.value.get("fails", 0):
            raise ValueError("not yet")
        return seen, [{"key": event.key, "n": event.value["n"], "seen": seen}]

    return step


class Stream:
    """A topic read into a stage and a sink, batch by batch, with restarts."""

    def __init__(self, spark: SparkSession, broker: EmbeddedBroker, topic: str, folder: Path, **options: Any) -> None:
        self.spark, self.broker, self.topic, self.folder = spark, broker, topic, folder
        self.stage = Transitions(step=make_step(), outputs=OUTPUTS, **options)
        self.stage.open(spark, folder / "stage")
        self.log = RunLog(run_log_of_stage(folder / "stage"), lambda runs: 1)
        self.sink = Sink()
        self.fail_after = ""
        self.counts: list[dict[str, int]] = []

    def batch(self, messages: DataFrame, number: int) -> None:
        batch = Batch(QUERY, batch_number(number), 1)
        units = Units(self.log, self.folder / "decided")
        units.open(lambda unit: unit.number in self.sink.batches)
        self.stage.continue_from(units.state)
        if units.last == batch.number:
            self.stage.finished(batch)
            return
        results = units.record(batch, self.stage.process(messages, batch), {}, decide=False, whole=False)
        self.stage.continue_from(results.state)
        self.counts.append(dict(results.counts))
        self._maybe_fail("stage")
        self.sink.write(results, batch)
        self._maybe_fail("sink")
        self.stage.finished(batch)
        self._maybe_fail("finished")

    def _maybe_fail(self, where: str) -> None:
        if self.fail_after == where:
            self.fail_after = ""
            raise RuntimeError(f"died after {where}")

    def send(self, *events: tuple[str, dict[str, Any]]) -> None:
        with Producer(self.broker.address) as producer:
            for key, value in events:
                producer.send(self.topic, value, key=key)

    def catch_up(self, most: int = 1_000) -> None:
        source = self.spark.readStream.format("lanemq").option("servers", self.broker.address)
        source = source.option("topic", self.topic).option("startingOffsets", "earliest")
        frame = source.option("maxOffsetsPerTrigger", str(most)).option("columns", ",".join(COLUMNS)).load()
        writer = frame.writeStream.foreachBatch(self.batch).trigger(availableNow=True)
        writer.option("checkpointLocation", str(self.folder / "checkpoint")).start().awaitTermination()

    def outputs(self, key: str) -> list[tuple[int, int]]:
        return [(row["n"], row["seen"]) for row in self.sink.rows() if row["key"] == key]


@pytest.fixture
def stream(spark: SparkSession, broker: EmbeddedBroker, topic: str, tmp_path: Path) -> Stream:
    return Stream(spark, broker, topic, tmp_path, on_failure=Hold(retries=1, first=0.001))


def test_a_stream_applies_every_event_once_whatever_is_repeated(stream: Stream) -> None:
    """Crashes after the state was written, after the sink wrote, and before Spark recorded the batch."""
    stream.send(*((f"key-{n % 3}", {"n": n}) for n in range(12)))
    for where in ("stage", "sink", "finished"):
        stream.fail_after = where
        with pytest.raises(StreamingQueryException, match=f"died after {where}"):
            stream.catch_up(most=6)
    stream.catch_up(most=6)
    for key in range(3):
        assert stream.outputs(f"key-{key}") == [(n, n // 3 + 1) for n in range(key, 12, 3)]


def test_a_held_key_continues_in_a_retry_pass_and_a_parked_one_after_a_redrive(stream: Stream) -> None:
    stream.send(("a", {"n": 0, "fails": 1}), ("a", {"n": 1}), ("b", {"n": 2, "fails": 2}), ("b", {"n": 3}))
    stream.catch_up()
    assert stream.sink.rows() == []
    folder = stream.folder / "stage"
    number = batch_number(max(stream.sink.batches) // NUMBERS_PER_BATCH, 1)
    _until_due(stream)
    results = stream.stage.process_retry_pass(Batch(QUERY, number, 1))
    assert results is not None
    recorded(stream.stage, folder, Batch(QUERY, number, 1), results)
    stream.sink.write(results, Batch(QUERY, number, 1))
    stream.stage.finished(Batch(QUERY, number, 1))
    assert stream.outputs("a") == [(0, 1), (1, 2)]
    assert [lane.key for lane in list_parked(folder, held=False)] == ["b"]
    stream.stage = Transitions(step=_lenient(), outputs=OUTPUTS)
    begin(stream.stage, stream.spark, folder)
    request_redrive(folder, "b")
    results = stream.stage.process_retry_pass(Batch(QUERY, number + 1, 1))
    assert results is not None
    stream.sink.write(results, Batch(QUERY, number + 1, 1))
    assert stream.outputs("b") == [(2, 1), (3, 2)]


def _lenient() -> Callable[[Any, Event], tuple[Any, list[dict[str, object]]]]:
    def step(state: Any, event: Event) -> tuple[Any, list[dict[str, object]]]:
        return (state or 0) + 1, [{"key": event.key, "n": event.value["n"], "seen": (state or 0) + 1}]

    return step


def _until_due(stream: Stream) -> None:
    """Waits until a retry pass is due: the policy asks for a millisecond of real time."""
    clock = stream.stage._clock
    while stream.stage.due(wall_time(clock.wall())) != 0:
        pass


def ran(stage: Transitions, folder: Path, messages: DataFrame, batch: Batch) -> Results:
    """Runs and records a batch, as a pipeline does."""
    return recorded(stage, folder, batch, stage.process(messages, batch))


def frame(spark: SparkSession, messages: list[Sent]) -> DataFrame:
    return spark.createDataFrame(pa.Table.from_batches([arrow(messages)]), select_columns(COLUMNS))


def feed(queues: int, count: int, first: int = 0) -> list[Sent]:
    made = [(queue, first + at) for at in range(count) for queue in range(queues)]
    return [Sent(queue, at, f"key-{queue}-{at % 5}", {"n": at}) for queue, at in made]


def test_a_number_of_shards_restores_the_order_of_shuffled_rows(spark: SparkSession, tmp_path: Path) -> None:
    stage = Transitions(step=make_step(), outputs=OUTPUTS, shards=3)
    stage.open(spark, tmp_path)
    rows = []
    for number in range(2):
        shuffled = frame(spark, feed(3, 20, first=20 * number)[::-1]).repartition(2)
        batch = Batch(QUERY, batch_number(number), 1)
        rows += ran(stage, tmp_path, shuffled, batch).outputs.table().to_pylist()
        stage.finished(batch)
    for queue in range(3):
        seen = [row["seen"] for row in rows if row["key"] == f"key-{queue}-2"]
        assert seen == list(range(1, 9))
        assert [row["n"] for row in rows if row["key"] == f"key-{queue}-2"] == list(range(2, 40, 5))


def test_redriven_dead_letters_reach_the_shards_of_their_keys(spark: SparkSession, tmp_path: Path) -> None:
    """Shards are shares of the keys by Spark's hash, which the driver computes too."""
    stage = Transitions(step=make_step(), outputs=OUTPUTS, shards=3)
    stage.open(spark, tmp_path)
    first, behind = Batch(QUERY, 0, 1), Batch(QUERY, 1, 1)
    ran(stage, tmp_path, frame(spark, feed(2, 10)), first)
    stage.finished(first)
    keys = ("key-0-1", "key-1-3", "new")
    Redrives(tmp_path).ask(
        RedrivenDeadLetter(key, 0, WaitingMessage("orders", "broker-a", 0, 90 + at, None, 1, None, b'{"n": 7}'))
        for at, key in enumerate(keys)
    )
    results = stage.process_retry_pass(behind)
    assert results is not None
    recorded(stage, tmp_path, behind, results)
    rows = results.outputs.table().to_pylist()
    stage.finished(behind)
    assert {(row["key"], row["seen"]) for row in rows} == {
        ("key-0-1", 3), ("key-1-3", 3), ("new", 1),
    }  # fmt: skip
    assert [show(tmp_path, key)[0].state for key in keys] == [3, 3, 1]


def test_a_queue_that_a_shuffle_split_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    """Negative control of the test above: without `shards=<number>` the same rows are an error, not a wrong table."""
    stage = Transitions(step=make_step(), outputs=OUTPUTS)
    stage.open(spark, tmp_path)
    shuffled = frame(spark, feed(1, 40)).repartition(2)
    with pytest.raises(OrderError, match="shuffled"):
        stage.process(shuffled, Batch(QUERY, 0, 1))


def test_coalesced_queues_stay_in_order(spark: SparkSession, tmp_path: Path) -> None:
    stage = Transitions(step=make_step(), outputs=OUTPUTS)
    stage.open(spark, tmp_path)
    ordered = frame(spark, feed(3, 20)).coalesce(1).sortWithinPartitions("queue_id", "queue_offset")
    results = ran(stage, tmp_path, ordered, Batch(QUERY, 0, 1))
    assert (results.counts["applied"], len(results.outputs.files)) == (60, 3)  # type: ignore[attr-defined]
    assert results.outputs.frame(spark).count() == 60
    assert show(tmp_path, "key-2-4")[0].state == 4


def test_empty_and_tiny_frames_are_accepted(spark: SparkSession, tmp_path: Path) -> None:
    stage = Transitions(step=make_step(), outputs=OUTPUTS, on_failure=Park())
    stage.open(spark, tmp_path)
    assert ran(stage, tmp_path, frame(spark, feed(1, 1)).limit(0), Batch(QUERY, 0, 1)).outputs.count() == 0
    results = stage.process(frame(spark, [Sent(0, 0, "k", b"\xff")]), Batch(QUERY, NUMBERS_PER_BATCH, 1))
    assert results.dead_letters is not None
    assert results.dead_letters.frame(spark).first().queue_offset == 0  # type: ignore[union-attr]
