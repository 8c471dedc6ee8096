"""Messages of four mebibytes, the largest RocketMQ takes: sent, read and consumed whole; one byte more is refused."""

import random
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.members import until

from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.client.topics import NewTopic
from lanemq.model.errors import LaneError
from lanemq.testing.embedded import EmbeddedBroker

LARGEST = 4 * 1024 * 1024
COUNT = 6


def content(number: int) -> bytes:
    """Bytes that no compression makes smaller."""
    return random.Random(number).randbytes(LARGEST)


@pytest.mark.slow
def test_the_largest_messages_are_consumed_whole_and_in_order(tmp_path: Path) -> None:
    seen: list[bytes] = []
    with EmbeddedBroker() as broker:
        with Producer(broker.address, create=NewTopic("T", 4, ordered=False)) as producer:
            for number in range(COUNT):
                producer.send("T", content(number), key="k")
        app = App(broker.address, group="g")

        @app.ordered("T")
        def on_message(message: Message) -> None:
            seen.append(message.body)

        app.start()
        until("all are consumed", lambda: len(seen) == COUNT, 60)
        app.stop()
    assert seen == [content(number) for number in range(COUNT)]


def test_one_byte_more_than_the_largest_is_refused_and_the_next_one_passes() -> None:
    with EmbeddedBroker() as broker, Producer(broker.address, create=NewTopic("T", 4, ordered=False)) as producer:
        with pytest.raises(LaneError):
            producer.send("T", content(0) + b"x", key="k")
        assert producer.send("T", content(0), key="k").offset == 0


@pytest.mark.slow
def test_spark_reads_the_largest_messages(spark: Any) -> None:
    with EmbeddedBroker() as broker:
        with Producer(broker.address, create=NewTopic("T", 4, ordered=False)) as producer:
            for number in range(COUNT):
                producer.send("T", content(number), key="k")
        rows = spark.read.format("lanemq").option("servers", broker.address).option("topic", "T").load()
        found = {row["queue_offset"]: len(row["value"]) for row in rows.selectExpr("*").collect()}
    assert found == dict.fromkeys(range(COUNT), LARGEST)
