"""A streaming query against a real broker, driven as Spark does it."""

import json
import logging
import time
from pathlib import Path

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxRows
from tests.spark.spark_driver import Checkpoint, Query, places, send, until, values

from lanemq import Producer
from lanemq.broker.config import BrokerOptions
from lanemq.client.admin.admin import Admin
from lanemq.client.producer import batches
from lanemq.model.errors import RemoteProtocolError, TopicNotFound, TransportError
from lanemq.net.address import Address
from lanemq.spark.parallelism import VARIABLE
from lanemq.spark.read.brokers import Brokers
from lanemq.spark.read.range_reader import DataLost
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.compression import ZLIB_SYS_FLAG, compress_zlib


def earliest(broker: EmbeddedBroker, topic: str, **more: object) -> dict[str, object]:
    return {"servers": broker.address, "topic": topic, "startingOffsets": "earliest", **more}


def test_every_message_is_read_once_in_the_order_of_its_queue(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(200))
    with Query(**earliest(broker, topic, maxOffsetsPerTrigger=30)) as query:
        batches = [query.batch() for _ in range(8)]
        assert [len(batch) for batch in batches] == [30] * 6 + [20, 0]
        rows = [row for batch in batches for row in batch]
        assert values(rows) == list(range(200))
        for queue in (0, 1):
            offsets = [offset for number, offset in places(rows) if number == queue]
            assert offsets == list(range(len(offsets)))


def test_a_batch_asks_the_brokers_once_for_the_bounds_of_its_queues_and_its_repetition_again(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[Brokers] = []
    bounds = Brokers.bounds
    monkeypatch.setattr(Brokers, "bounds", lambda brokers: asked.append(brokers) or bounds(brokers))
    send(broker.address, topic, range(30))
    checkpoint = Checkpoint()
    with Query(checkpoint, **earliest(broker, topic)) as query:
        for number in range(1, 3):
            query.batch(ReadMaxRows(10))
            assert len(asked) == number
        assert query.plan(ReadMaxRows(5))
        planned = query.read(query.partitions())
        assert len(asked) == 3
        assert query.read(query.partitions()) == planned
        assert len(asked) == 4, "a batch that is planned again needs a new answer"
    with Query(checkpoint, **earliest(broker, topic)) as restarted:
        assert restarted.read(restarted.partitions()) == planned
        assert len(asked) == 5
        restarted.finish()
        restarted.reader.prepareForTriggerAvailableNow()
        send(broker.address, topic, range(30, 40))
        assert len(restarted.everything()) == 5, "available-now ends where the queue ended"


def test_a_repeated_batch_has_the_same_rows(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(50))
    checkpoint = Checkpoint()
    with Query(checkpoint, **earliest(broker, topic)) as query:
        assert query.plan(ReadMaxRows(20))
        first = query.read(query.partitions())
    send(broker.address, topic, range(50, 80))
    with Query(checkpoint, **earliest(broker, topic)) as again:
        assert again.plan()
        assert again.read(again.partitions()) == first
        again.finish()
        assert len(again.everything()) == 60


def test_starting_at_latest_skips_existing_messages(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(10))
    with Query(servers=broker.address, topic=topic) as query:
        assert query.everything() == []
        send(broker.address, topic, range(10, 13))
        assert values(query.everything()) == [10, 11, 12]


def test_a_query_begins_at_a_time_or_at_an_offset_of_each_queue(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(10))
    with Query(**earliest(broker, topic)) as query:
        last = max(row["store_timestamp"] for row in query.everything())
    after = int(last.timestamp() * 1000) + 1
    until(lambda: time.time() * 1000 > after)
    send(broker.address, topic, range(10, 16))
    with Query(servers=broker.address, topic=topic, startingTimestamp=after) as query:
        assert values(query.everything()) == list(range(10, 16))
    per_queue = json.dumps({topic: {"0": after, "1": after}})
    with Query(servers=broker.address, topic=topic, startingOffsetsByTimestamp=per_queue) as query:
        assert values(query.everything()) == list(range(10, 16))
    with Query(servers=broker.address, topic=topic, startingOffsets=json.dumps({topic: {"0": 2, "1": -1}})) as query:
        assert places(query.everything())[0] == (0, 2)


def test_new_queues_are_read_from_their_first_message(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(20))
    with Query(**earliest(broker, topic)) as query, Admin(broker.address) as admin:
        assert len(query.everything()) == 20
        admin.create_topic(topic, 4)
        send(broker.address, topic, range(20, 120))
        rows = query.everything()
        assert values(rows) == list(range(20, 120))
        assert {queue for queue, _ in places(rows)} > {0, 1}


def test_a_pattern_finds_topics_that_are_created_later(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(5))
    options = {"servers": broker.address, "topicPattern": f"{topic}.*", "startingOffsets": "earliest"}
    with Query(**options) as query, Admin(broker.address) as admin:
        assert len(query.everything()) == 5
        admin.create_topic(f"{topic}-more", 1)
        send(broker.address, f"{topic}-more", range(3))
        assert {row["topic"] for row in query.everything()} == {f"{topic}-more"}


def test_available_now_stops_at_the_end_at_its_start(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(25))
    with Query(**earliest(broker, topic, maxOffsetsPerTrigger=10, minOffsetsPerTrigger=10)) as query:
        query.reader.prepareForTriggerAvailableNow()
        send(broker.address, topic, range(25, 40))
        rows = [row for _ in range(5) for row in query.batch()]
        assert values(rows) == list(range(25))
        assert not query.plan()


def test_sparks_limit_overrides_the_options(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(40))
    with Query(**earliest(broker, topic, maxOffsetsPerTrigger=30)) as query:
        assert len(query.batch(ReadMaxRows(7))) == 7
        assert len(query.batch(ReadAllAvailable())) == 33


def test_a_byte_limit_makes_small_batches_that_make_progress(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(100), properties={"padding": "x" * 800})
    with Query(**earliest(broker, topic, maxBytesPerTrigger=20_000)) as query:
        sizes = [len(query.batch()) for _ in range(20)]
    assert sum(sizes) == 100
    assert 10 <= max(sizes) <= 20


def test_too_few_messages_wait_for_more(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(5))
    with Query(**earliest(broker, topic, minOffsetsPerTrigger=10, maxTriggerDelay="1h")) as query:
        assert query.batch() == []
        send(broker.address, topic, range(5, 12))
        assert len(query.batch()) == 12
        assert json.loads(query.checkpoint.ends[-1])[topic]


def test_lag_is_reported(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(30))
    with Query(**earliest(broker, topic, maxOffsetsPerTrigger=10)) as query:
        query.batch()
        latest = query.reader.reportLatestOffset()
        assert latest is not None
        assert sum(latest[topic].values()) == 30
        assert sum(json.loads(query.checkpoint.ends[-1])[topic].values()) == 10


def test_an_empty_range_makes_no_partition(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, [7, 7, 7])
    with Query(**earliest(broker, topic)) as query:
        assert query.plan()
        assert len(query.partitions()) == 1


def test_a_task_reads_several_queues_one_after_the_other(broker: EmbeddedBroker, topic: str) -> None:
    """Each queue is one run of rows in the order of offsets, so keys stay in order behind it."""
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-many", 12)
    send(broker.address, f"{topic}-many", range(300))
    with Query(**earliest(broker, f"{topic}-many", minPartitions=2)) as query:
        assert query.plan()
        partitions = query.partitions()
        assert len(partitions) == 2
        rows = [query.read([each]) for each in partitions]
        assert all(places(each) == sorted(places(each)) for each in rows)
        assert not {row["queue_id"] for row in rows[0]} & {row["queue_id"] for row in rows[1]}
        assert values(rows[0] + rows[1]) == list(range(300))


def test_a_repeated_batch_has_the_tasks_that_it_had(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session may have other cores after a restart; a sink finds rows again by their task and place."""
    send(broker.address, topic, range(40))
    checkpoint = Checkpoint()
    for slots in ("1", "2"):
        monkeypatch.setenv(VARIABLE, slots)
        with Query(checkpoint, **earliest(broker, topic)) as query:
            assert query.plan()
            assert len(query.partitions()) == 1
    with Query(checkpoint, **earliest(broker, topic)) as query:
        query.batch()
        assert not query.plan(), "another number of cores is not new data"
        send(broker.address, topic, range(40))
        assert query.plan()
        assert len(query.partitions()) == 2, "the next batch has the new number"


def test_a_query_whose_queues_cannot_make_so_many_tasks_says_so(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker.address, topic, range(40))
    with Query(**earliest(broker, topic, minPartitions=64)) as query:
        assert query.plan()
        assert len(query.partitions()) == 2
    assert "minPartitions=64: the query reads 2 queues" in caplog.text


def test_unordered_queries_may_split_a_queue(broker: EmbeddedBroker, topic: str) -> None:
    send(broker.address, topic, range(64))
    with Query(**earliest(broker, topic, ordered="false", minPartitions=6)) as query:
        assert query.plan()
        partitions = query.partitions()
        assert len(partitions) >= 6
        assert values(query.read(partitions)) == list(range(64))


def test_a_topic_that_does_not_exist_is_an_error_at_the_start(broker: EmbeddedBroker) -> None:
    with pytest.raises(TopicNotFound):
        Query(servers=broker.address, topic="no-such-topic")


def test_a_recreated_topic_fails_the_query_unless_fail_on_data_loss_is_false(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker.address, topic, range(20))
    checkpoint = Checkpoint()
    with Query(checkpoint, **earliest(broker, topic)) as query:
        query.everything()
    with Admin(broker.address) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 2)
    send(broker.address, topic, [100, 101])
    with Query(checkpoint, **earliest(broker, topic)) as strict, pytest.raises(DataLost, match="failOnDataLoss"):
        strict.plan()
    lenient = Query(checkpoint, **earliest(broker, topic, failOnDataLoss="false"))
    with lenient, caplog.at_level(logging.WARNING):
        assert values(lenient.everything()) == [100, 101]
    assert "deleted and created again" in caplog.text


def recreated_and_grown(broker: EmbeddedBroker, topic: str) -> Checkpoint:
    """A query has read 20 messages; then the topic is created again and grows far beyond the query's positions."""
    send(broker.address, topic, range(20))
    checkpoint = Checkpoint()
    with Query(checkpoint, **earliest(broker, topic)) as query:
        query.everything()
    with Admin(broker.address) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 2)
    send(broker.address, topic, range(100, 180))
    return checkpoint


def test_a_topic_that_was_created_again_and_has_grown_past_the_position_is_noticed(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    checkpoint = recreated_and_grown(broker, topic)
    with Query(checkpoint, **earliest(broker, topic)) as strict, pytest.raises(DataLost, match="created again since"):
        strict.plan()
    lenient = Query(checkpoint, **earliest(broker, topic, failOnDataLoss="false"))
    with lenient, caplog.at_level(logging.WARNING):
        assert values(lenient.everything()) == list(range(100, 180))
    assert "deleted and created again since" in caplog.text
    with Query(checkpoint, **earliest(broker, topic)) as after:
        assert after.everything() == []


def test_without_the_time_of_creation_the_other_messages_at_its_offsets_are_noticed(
    broker: EmbeddedBroker, topic: str
) -> None:
    """An Apache broker does not tell when it created a topic."""
    checkpoint = recreated_and_grown(broker, topic)
    ends = [json.loads(end) for end in checkpoint.ends]
    checkpoint.ends = [json.dumps({name: end[name] for name in (topic, "@stored") if name in end}) for end in ends]
    with Query(checkpoint, **earliest(broker, topic)) as strict, pytest.raises(DataLost, match="another one has its"):
        strict.everything()
    checkpoint.ends = [json.dumps({topic: end[topic]}) for end in ends]  # the control
    with Query(checkpoint, **earliest(broker, topic)) as query:
        assert len(query.everything()) == 60, "the query read 20 of the old topic, and misses 20 of the new one"


def test_a_planned_batch_of_a_topic_that_was_created_again_is_not_read_from_the_new_one(
    broker: EmbeddedBroker, topic: str
) -> None:
    send(broker.address, topic, range(20))
    checkpoint = Checkpoint()
    with Query(checkpoint, **earliest(broker, topic)) as query:
        query.plan()
    with Admin(broker.address) as admin:
        admin.delete_topic(topic)
        admin.create_topic(topic, 2)
    send(broker.address, topic, range(100, 180))
    with Query(checkpoint, **earliest(broker, topic)) as strict, pytest.raises(DataLost, match="created again since"):
        strict.partitions()
    with Query(checkpoint, **earliest(broker, topic, failOnDataLoss="false")) as lenient:
        assert values(lenient.everything()) == list(range(100, 180))


def test_a_deleted_topic_is_reported_once_and_other_topics_continue(
    broker: EmbeddedBroker, topic: str, caplog: pytest.LogCaptureFixture
) -> None:
    send(broker.address, topic, range(3))
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-b", 1)
        send(broker.address, f"{topic}-b", range(4))
        options = earliest(broker, f"{topic},{topic}-b", failOnDataLoss="false")
        with Query(**options) as query, caplog.at_level(logging.WARNING):
            assert len(query.everything()) == 7
            admin.delete_topic(topic)
            send(broker.address, f"{topic}-b", range(2))
            assert len(query.everything()) == 2
            assert query.everything() == []
    assert caplog.text.count("the queue or its topic no longer exists") == 2  # two queues, one line each


def test_the_query_waits_for_an_absent_broker_and_then_names_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    broker = EmbeddedBroker(BrokerOptions(tmp_path, listen=Address("127.0.0.1", 0)))
    with broker:
        with Admin(broker.address) as admin:
            admin.create_topic("orders", 4)
        send(broker.address, "orders", range(5))
        options = {"servers": broker.address, "topic": "orders", "startingOffsets": "earliest", "brokerWait": "300ms"}
        query = Query(**options)
    with caplog.at_level(logging.WARNING), pytest.raises(TransportError, match="broker"):
        query.plan()
    assert "retrying for up to" in caplog.text
    assert "gave up" in caplog.text
    with broker:
        assert len(query.everything()) == 5
        query.stop()


def test_a_topic_removed_from_the_options_is_reported_as_such(broker: EmbeddedBroker, topic: str) -> None:
    checkpoint = Checkpoint()
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-b", 1)
    send(broker.address, f"{topic}-b", range(3))
    with Query(checkpoint, **earliest(broker, f"{topic},{topic}-b")) as query:
        query.everything()
    with (
        Query(checkpoint, **earliest(broker, topic)) as query,
        pytest.raises(DataLost, match=f"at offset 3, but the options no longer select topic {topic}-b"),
    ):
        query.plan()


@pytest.mark.parametrize(("damaged", "value"), [("null", None), ("raw", b"no zlib")])
def test_a_query_can_continue_after_a_damaged_message(
    broker: EmbeddedBroker, topic: str, damaged: str, value: bytes | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "maybe_compressed", lambda _: (b"no zlib", ZLIB_SYS_FLAG))
    with Producer(broker.address) as producer:
        for body in (b"1", b"2" * 10_000, b"3"):
            producer.send(topic, body, key="k")
    with (
        Query(**earliest(broker, topic)) as query,
        pytest.raises(RemoteProtocolError, match=rf"{topic}.* at 1: .*onDamaged"),
    ):
        query.everything()
    with Query(**earliest(broker, topic, onDamaged=damaged)) as query:
        assert [row["value"] for row in query.everything()] == [b"1", value, b"3"]


def test_a_pull_of_bodies_that_compress_very_well_is_read_in_parts(
    broker: EmbeddedBroker, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A few kilobytes in the broker can be gigabytes in memory, which a task must not have at once."""
    size, count = 20 * 1024 * 1024, 5
    packed = compress_zlib(bytes(size))
    monkeypatch.setattr(batches, "maybe_compressed", lambda _: (packed, ZLIB_SYS_FLAG))
    with Producer(broker.address) as producer:
        for _ in range(count):
            producer.send(topic, b"1" * 10_000, key="k")
    with Query(columns=["queue_offset", "value"], **earliest(broker, topic)) as query:
        assert query.plan()
        found = [batch for each in query.partitions() for batch in query.reader.read(each)]
    assert [batch.column("queue_offset").to_pylist() for batch in found] == [[offset] for offset in range(count)]
    assert {len(batch.column("value")[0].as_buffer()) for batch in found} == {size}


def test_a_byte_limit_holds_if_the_filter_matches_nothing_at_first(broker: EmbeddedBroker, topic: str) -> None:
    """Filtered messages cost nothing; the messages after them are limited."""
    with Producer(broker.address) as producer:
        for _ in range(3_000):
            producer.submit(topic, b"x" * 10, key="k", tag="a")
        futures = [producer.submit(topic, b"x" * 1_000, key="k", tag="b") for _ in range(300)]
        futures[-1].result(20)
    with Query(**earliest(broker, topic, tags="b", maxBytesPerTrigger=50_000)) as query:
        sizes = []
        while query.plan():
            sizes.append(len(query.read(query.partitions())))
            query.finish()
    assert sum(sizes) == 300
    assert max(sizes) <= 50
    assert len(sizes) < 20, "a batch for every few filtered messages would take too long"


def test_only_the_latest_losses_are_remembered(broker: EmbeddedBroker, topic: str) -> None:
    """A query that continues without deleted messages finds new losses as long as it runs."""
    with Query(**earliest(broker, topic, failOnDataLoss="false")) as query:
        driver = query.reader._driver
        for number in range(50):
            driver._report_losses("chosen", [f"messages {number} to {number + 1} are gone"])
            driver._report_losses("planned", [f"messages {number} are gone"])
        assert sum(map(len, driver._reported_losses.values())) == 2
