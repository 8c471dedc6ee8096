"""A batch that is repeated with other rows fails; no row is dropped because of its stamp."""

import uuid
from collections.abc import Sequence

import pyarrow as pa
import pytest
from pyspark.sql.types import StringType, StructType
from tests.spark.spark_driver import Query

from lanemq.client.producer.producer import Producer
from lanemq.model.errors import NotAllowed, UsageError
from lanemq.model.units import Millis
from lanemq.spark.read.range_reader import RangeReader
from lanemq.spark.write import sending
from lanemq.spark.write.repeats import kept
from lanemq.spark.write.sending import OutgoingRow, TaskSender
from lanemq.spark.write.writer import _write, parse_write_options
from lanemq.testing.embedded import EmbeddedBroker

WAIT = Millis(60_000)


@pytest.fixture(autouse=True)
def small_batches(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "BATCH_MESSAGES", 8)


@pytest.fixture
def producer() -> str:
    return f"spark-{uuid.uuid4()}-0"


def numbered(topic: str, numbers: Sequence[int]) -> list[OutgoingRow]:
    return [OutgoingRow(topic, str(number).encode(), "k") for number in numbers]


def write(broker: EmbeddedBroker, rows: list[OutgoingRow], producer: str, *, dies: bool = False) -> None:
    """Runs a task of batch 0; one that dies has sent its full batches."""
    sender = TaskSender(broker.address, producer, 0, WAIT, check_repeats=True)
    try:
        for row in rows:
            sender.send(row)
        if not dies:
            sender.flush()
    finally:
        sender.close()


def stored(broker: EmbeddedBroker, topic: str) -> list[int]:
    with Query(servers=broker.address, topic=topic, startingOffsets="earliest") as query:
        return [int(row["value"]) for row in query.everything()]


def test_the_same_rows_are_recognised_as_a_repeat(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    write(broker, numbered(topic, range(20)), producer, dies=True)
    write(broker, numbered(topic, range(20)), producer)
    write(broker, numbered(topic, range(20)), producer)
    assert stored(broker, topic) == list(range(20))


@pytest.mark.parametrize("again", [range(3, 20), [*range(15), 99, 98, 97, 96, 95], [1, 0, *range(2, 20)]])
def test_other_rows_under_the_same_stamps_are_refused(
    broker: EmbeddedBroker, topic: str, producer: str, again: Sequence[int]
) -> None:
    """A later start, another row in the middle, another order."""
    write(broker, numbered(topic, range(20)), producer, dies=True)
    with pytest.raises(UsageError, match="batch 0 is repeated with other rows"):
        write(broker, numbered(topic, again), producer)


def test_rows_with_another_key_are_other_rows(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    """Both keys select the same queue, so the stamps are equal."""
    write(broker, [OutgoingRow(topic, b"1", "a")], producer)
    with pytest.raises(UsageError, match="other rows"):
        write(broker, [OutgoingRow(topic, b"1", "c")], producer)


def test_a_batch_is_compared_up_to_where_its_first_attempt_was_cut(
    broker: EmbeddedBroker, topic: str, producer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The broker has five messages of a request, the last of which differs."""
    write(broker, numbered(topic, [0, 1, 2, 3, 44]), producer)
    with pytest.raises(UsageError, match="offset 4 holds a different message"):
        write(broker, numbered(topic, range(8)), producer)


def test_messages_of_other_producers_do_not_end_the_comparison(
    broker: EmbeddedBroker, topic: str, producer: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "BATCH_MESSAGES", 2)
    sender = TaskSender(broker.address, producer, 0, WAIT)
    with Producer(broker.address) as stranger:
        for row in numbered(topic, range(8)):
            sender.send(row)
            stranger.send(topic, b"x", key="k")
    sender.close()
    monkeypatch.setattr(sending, "BATCH_MESSAGES", 8)
    write(broker, numbered(topic, range(8)), producer)
    with pytest.raises(UsageError, match="other rows"):
        write(broker, numbered(topic, [*range(7), 77]), producer)


def test_repeats_that_may_not_be_read_are_logged_and_assumed_to_be_equal(
    broker: EmbeddedBroker,
    topic: str,
    producer: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A user who may only send must not fail because a task was repeated."""

    def refuse(*_: object, **__: object) -> None:
        raise NotAllowed(16, "no permission to read")

    write(broker, numbered(topic, range(8)), producer)
    monkeypatch.setattr(RangeReader, "_pull", refuse)
    write(broker, numbered(topic, range(8)), producer)
    assert any("8 repeated rows could not be compared" in each for each in caplog.messages)


def test_a_broker_without_stamps_never_reports_a_repeat() -> None:
    assert kept({"queueOffset": "7", "msgId": "x"}, 3) == (0, -1)
    assert kept({"queueOffset": "7", "laneDuplicate": "true"}, 3) == (3, 7)
    assert kept({"queueOffset": "9", "laneSkipped": "2", "laneKnownOffset": "4"}, 3) == (2, 4)


def test_the_spark_writer_checks_repeats(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    """A writer cannot know whether its source repeats batches exactly."""
    schema = StructType().add("key", StringType()).add("value", StringType())
    options = parse_write_options({"servers": broker.address, "topic": topic}, schema)
    for value in ("1", "1"):
        _write(iter([pa.RecordBatch.from_pylist([{"key": "k", "value": value}])]), options, producer, 3)
    with pytest.raises(UsageError, match="batch 3 is repeated with other rows"):
        _write(iter([pa.RecordBatch.from_pylist([{"key": "k", "value": "2"}])]), options, producer, 3)
