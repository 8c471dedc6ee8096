"""Lag of queries: messages from Spark's progress, seconds from the broker."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from tests.spark.spark_driver import send, until

from lanemq.cli.main import main
from lanemq.clock import SystemClock
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.spark import LagListener, QueueLag, lag_of
from lanemq.spark.lag import LagAges, offsets_advanced
from lanemq.testing.embedded import EmbeddedBroker

BROKER = "lanemq"


class LaterClock(SystemClock):
    """A clock that is an hour ahead."""

    def wall(self) -> Millis:
        return Millis(super().wall() + 3_600_000)


def source(start: Any, end: Any, latest: Any) -> dict[str, Any]:
    return {"startOffset": start, "endOffset": end, "latestOffset": latest}


def test_lag_is_the_latest_offset_minus_the_end_of_the_batch() -> None:
    ours = source("null", '{"t": {"b/1": 5, "b/0": 7}}', '{"t": {"b/0": 10, "b/1": 5, "b/2": 3}}')
    rate, files, kafka = ([text] * 3 for text in ("2", '{"logOffset": 3}', '{"t": {"0": 5}}'))
    odd = ["no json"] * 3
    found = lag_of({"sources": [*(source(*each) for each in (rate, files, kafka, odd)), ours]})
    assert [(each.queue.queue_id, each.messages) for each in found] == [(0, 3), (1, 0)]
    assert lag_of({"sources": [source(None, None, None)]}) == ()


def test_lag_is_never_negative() -> None:
    assert QueueLag(MessageQueue("t", "b", 0), 10, 4).messages == 0


def test_the_offsets_that_a_batch_advanced_are_counted() -> None:
    both = [source('{"t": {"b/0": 7}}', '{"t": {"b/0": 17, "b/1": 3}}', "null")]
    assert offsets_advanced({"sources": both, "numInputRows": 999}) == 13
    assert offsets_advanced({"sources": [source("null", '{"t": {"b/0": 17}}', "null")], "numInputRows": 9}) == 9


@pytest.fixture
def times(broker: EmbeddedBroker) -> Iterator[LagAges]:
    made = LagAges(broker.address, LaterClock())
    yield made
    made.close()


def test_lag_in_seconds_is_the_age_of_the_next_message(broker: EmbeddedBroker, topic: str, times: LagAges) -> None:
    send(broker.address, topic, range(20))
    queue = MessageQueue(topic, BROKER, 0)
    lagging, level, gone = times.with_ages(
        [QueueLag(queue, 0, 5), QueueLag(queue, 5, 5), QueueLag(MessageQueue("nowhere", BROKER, 0), 0, 5)]
    )
    assert lagging.seconds is not None
    assert 3600 <= lagging.seconds < 3700
    assert level.seconds is None
    assert gone.seconds is None


def test_without_a_broker_the_lag_has_no_age() -> None:
    times = LagAges("127.0.0.1:1")
    (found,) = times.with_ages([QueueLag(MessageQueue("t", BROKER, 0), 0, 5)])
    assert (found.messages, found.seconds) == (5, None)
    times.close()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_a_query_listener_and_the_group_description_show_the_lag(
    spark: Any, broker: EmbeddedBroker, topic: str, group: str, tmp_path: Path
) -> None:
    send(broker.address, topic, range(30))
    heard: list[tuple[str, tuple[QueueLag, ...]]] = []
    listener = LagListener(lambda name, queues: heard.append((name, queues)), broker.address)
    spark.streams.addListener(listener)
    options = {"servers": broker.address, "topic": topic, "group": group, "maxOffsetsPerTrigger": "10"}
    options["startingOffsets"] = "earliest"
    frame = spark.readStream.format("lanemq").options(**options).load()
    writer = frame.writeStream.foreachBatch(lambda rows, batch: rows.count()).queryName("lagging")
    query = writer.option("checkpointLocation", str(tmp_path)).trigger(processingTime="1 hour").start()
    try:
        until(lambda: bool(heard), 300)
        described = CliRunner().invoke(main, ["group", "describe", group, "--json", "--server", broker.address])
    finally:
        query.stop()
        spark.streams.removeListener(listener)
        listener.close()
    name, queues = heard[0]
    assert name == "lagging"
    assert sum(each.messages for each in queues) == 20
    assert all(each.seconds is not None for each in queues if each.messages)
    found = json.loads(described.stdout)
    assert found["members"] == []
    mine = [each for each in found["queues"] if each["topic"] == topic]
    assert sum(each["lag"] for each in mine) >= 20
