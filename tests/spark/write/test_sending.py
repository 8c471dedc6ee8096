"""The sink sends in order by key, and a repeated task adds nothing."""

import uuid

import pyarrow as pa
import pytest
from pyspark.sql.types import BinaryType, LongType, StringType, StructType
from tests.spark.spark_driver import Query, Row

from lanemq.client.admin.admin import Admin
from lanemq.model.errors import InvalidOption, MissingKey, ProducerFenced, TopicNotFound
from lanemq.model.units import Millis
from lanemq.spark.columns import COLUMNS, arrow_schema
from lanemq.spark.write import sending
from lanemq.spark.write.sending import OutgoingRow, TaskSender
from lanemq.spark.write.writer import parse_write_options, rows_of
from lanemq.testing.embedded import EmbeddedBroker

WAIT = Millis(60_000)


def write(broker: EmbeddedBroker, rows: list[OutgoingRow], producer: str, epoch: int, cut: int | None = None) -> None:
    """Runs a task; with `cut` it dies after that many rows, with its full batches sent."""
    sender = TaskSender(broker.address, producer, epoch, WAIT)
    try:
        for row in rows[:cut]:
            sender.send(row)
        if cut is None:
            sender.flush()
    finally:
        sender.close()


def stored(broker: EmbeddedBroker, topic: str) -> list[Row]:
    with Query(servers=broker.address, topic=topic, startingOffsets="earliest") as query:
        return query.everything()


def by_key(rows: list[Row]) -> dict[str, list[int]]:
    keys: dict[str, list[int]] = {}
    for row in rows:
        keys.setdefault(row["key"], []).append(int(row["value"]))
    return keys


def numbered(topic: str, count: int) -> list[OutgoingRow]:
    return [OutgoingRow(topic, str(number).encode(), f"key-{number % 5}") for number in range(count)]


@pytest.fixture
def producer() -> str:
    return f"spark-{uuid.uuid4()}-0"


def test_rows_of_a_key_are_stored_in_the_order_of_the_rows(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    write(broker, numbered(topic, 2_500), producer, 0)
    for number in range(5):
        assert by_key(stored(broker, topic))[f"key-{number}"] == list(range(number, 2_500, 5))


def test_a_repeated_task_adds_nothing(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    for _ in range(3):
        write(broker, numbered(topic, 100), producer, 0)
    assert len(stored(broker, topic)) == 100


@pytest.mark.parametrize("cut", [1, 30, 64, 99])
def test_a_repeated_task_completes_one_that_died_halfway(
    broker: EmbeddedBroker, topic: str, producer: str, cut: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sending, "BATCH_MESSAGES", 8)
    write(broker, numbered(topic, 100), producer, 4, cut=cut)
    write(broker, numbered(topic, 100), producer, 4)
    write(broker, numbered(topic, 100), producer, 5)
    rows = by_key(stored(broker, topic))
    assert rows == {f"key-{n}": [*range(n, 100, 5), *range(n, 100, 5)] for n in range(5)}


def test_a_task_of_an_older_batch_that_wakes_up_is_refused(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    write(broker, numbered(topic, 10), producer, 7)
    with pytest.raises(ProducerFenced):
        write(broker, numbered(topic, 10), producer, 6)
    assert len(stored(broker, topic)) == 10


def test_a_repetition_has_the_same_message_ids(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    """On a broker without stamps, readers recognise repeats by message id."""
    write(broker, numbered(topic, 4), producer, 0)
    first = {row["value"]: row["message_id"] for row in stored(broker, topic)}
    with Admin(broker.address) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 2)
    write(broker, numbered(topic, 4), producer, 0)
    assert {row["value"]: row["message_id"] for row in stored(broker, topic)} == first


def test_rows_that_were_read_can_be_written(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    row = OutgoingRow(topic, b"1", "k", "paid", "a b", {"colour": "red"})
    write(broker, [row], producer, 0)
    (read,) = stored(broker, topic)
    parse_write_options({"servers": broker.address}, COLUMNS)
    batch = pa.RecordBatch.from_pylist([read], arrow_schema(COLUMNS))
    write(broker, list(rows_of(batch, None)), producer, 1)
    one, two = stored(broker, topic)
    for name in ("value", "key", "tags", "keys"):
        assert one[name] == two[name]
    assert dict(two["properties"])["colour"] == "red"


def test_a_copy_of_a_delayed_message_is_not_delayed_again(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    """Brokers leave the delay property in delivered messages; a writer may not set it."""
    over = {"DELAY": "3", "REAL_TOPIC": topic, "REAL_QID": "0", "colour": "red"}
    write(broker, [OutgoingRow(topic, b"1", "k", properties=over)], producer, 0)
    (read,) = stored(broker, topic)
    assert over.keys() & dict(read["properties"]).keys() == {"colour"}
    with pytest.raises(InvalidOption, match="DELAY"):
        write(broker, [OutgoingRow(topic, b"1", "k", properties={"DELAY": "3"})], producer, 1)


def test_an_ordered_topic_needs_keys(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    with Admin(broker.address) as admin:
        admin.create_topic(topic, 2, ordered=True)
    with pytest.raises(MissingKey):
        write(broker, [OutgoingRow(topic, b"1")], producer, 0)


def test_rows_without_a_key_go_to_the_same_queues_again(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    rows = [OutgoingRow(topic, str(number).encode()) for number in range(10)]
    write(broker, rows, producer, 0)
    write(broker, rows, producer, 0)
    assert sorted(row["queue_id"] for row in stored(broker, topic)) == [0] * 5 + [1] * 5


def test_a_topic_that_does_not_exist_is_named(broker: EmbeddedBroker, producer: str) -> None:
    with pytest.raises(TopicNotFound, match="no-such-topic"):
        write(broker, [OutgoingRow("no-such-topic", b"1", "k")], producer, 0)


@pytest.mark.parametrize(
    ("options", "schema", "named"),
    [
        ({}, StructType().add("value", BinaryType()), "servers"),
        ({"servers": "a:1"}, StructType().add("value", BinaryType()), "topic"),
        ({"servers": "a:1", "topic": "t"}, StructType().add("body", BinaryType()), "value"),
        ({"servers": "a:1", "topic": "t"}, StructType().add("value", LongType()), "value is bigint"),
        ({"servers": "a:1", "topic": "t", "topik": "t"}, StructType().add("value", StringType()), "topik"),
        (
            {"servers": "a:1", "topic": "t"},
            StructType().add("value", StringType()).add("queue_id", LongType()),
            "queue_id",
        ),
        (
            {"servers": "a:1", "topic": "t"},
            StructType().add("value", StringType()).add("broker", StringType()),
            "column broker",
        ),
        (
            {"servers": "a:1", "topic": "t"},
            StructType().add("value", StringType()).add("queue_offset", StringType()).add("message_id", StringType()),
            "column queue_offset",
        ),
    ],
)
def test_columns_that_cannot_be_written_are_named_before_anything_is_sent(
    options: dict[str, str], schema: StructType, named: str
) -> None:
    with pytest.raises(InvalidOption, match=named):
        parse_write_options(options, schema)


def test_a_property_without_a_value_is_named(broker: EmbeddedBroker, topic: str, producer: str) -> None:
    row = OutgoingRow(topic, b"1", "k", properties={"colour": "red", "weight": None})  # type: ignore[dict-item]
    with pytest.raises(InvalidOption, match="properties: weight has no value"):
        write(broker, [row], producer, 0)


def test_a_row_without_a_value_is_refused() -> None:
    batch = pa.RecordBatch.from_pylist([{"value": None}], pa.schema([("value", pa.binary())]))
    with pytest.raises(InvalidOption, match="no value"):
        list(rows_of(batch, "t"))
