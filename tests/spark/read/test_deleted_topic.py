"""A topic that is deleted while a query reads it: only its own messages are lost."""

import json

import pytest
from tests.spark.spark_driver import Query, send, values

from lanemq.client.admin.admin import Admin
from lanemq.spark.offsets import from_json
from lanemq.spark.read.range_reader import DataLost
from lanemq.testing.embedded import EmbeddedBroker


@pytest.fixture
def other(broker: EmbeddedBroker, topic: str) -> str:
    """A second topic of the same query, with ten messages in each."""
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-other", 1)
    for each in (topic, f"{topic}-other"):
        send(broker.address, each, range(10))
    return f"{topic}-other"


def query_of(broker: EmbeddedBroker, topic: str, other: str, **options: str) -> Query:
    return Query(servers=broker.address, topic=f"{topic},{other}", startingOffsets="earliest", **options)


def delete(broker: EmbeddedBroker, topic: str) -> None:
    with Admin(broker.address) as admin:
        admin.delete_topic(topic)


@pytest.mark.parametrize("fails", [True, False])
def test_a_deleted_topic_is_reported_as_a_loss_and_the_others_are_read(
    broker: EmbeddedBroker, topic: str, other: str, fails: bool
) -> None:
    with query_of(broker, topic, other, failOnDataLoss=str(fails).lower()) as query:
        assert len(query.everything()) == 20
        delete(broker, other)
        send(broker.address, topic, range(10, 20))
        if fails:
            with pytest.raises(DataLost, match=f"{other}.* no longer exists"):
                query.plan()
        else:
            assert values(query.everything()) == list(range(10, 20))


def test_a_task_continues_without_a_topic_that_is_deleted_while_it_reads(
    broker: EmbeddedBroker, topic: str, other: str, caplog: pytest.LogCaptureFixture
) -> None:
    with query_of(broker, topic, other, failOnDataLoss="false") as query:
        assert query.plan()
        partitions = query.partitions()
        delete(broker, other)
        assert {row["topic"] for row in query.read(partitions)} == {topic}
        assert any("topic was deleted" in each for each in caplog.messages)


def test_queues_that_a_topic_lost_when_it_was_created_again_are_forgotten(broker: EmbeddedBroker, topic: str) -> None:
    """Whoever keeps state by queue can then see that keys have moved (`QueueSet`)."""
    send(broker.address, topic, range(20))
    with Query(servers=broker.address, topic=topic, startingOffsets="earliest", failOnDataLoss="false") as query:
        assert len(query.everything()) == 20
        assert len(from_json(json.loads(query.checkpoint.ends[-1]))) == 2
        delete(broker, topic)
        with Admin(broker.address) as admin:
            admin.create_topic(topic, 1)
        send(broker.address, topic, range(3))
        assert values(query.everything()) == [0, 1, 2]
        assert [each.queue_id for each in from_json(json.loads(query.checkpoint.ends[-1]))] == [0]


@pytest.mark.parametrize("fails", [True, False])
@pytest.mark.parametrize("tags", ["*", "paid"], ids=["all tags", "some tags"])
@pytest.mark.parametrize("is_planned", [False, True], ids=["before the plan", "before the tasks"])
@pytest.mark.parametrize("read_before", [0, 10])
def test_a_topic_that_is_created_again_after_the_choice_of_a_batch_is_read_once(
    broker: EmbeddedBroker, topic: str, read_before: int, is_planned: bool, tags: str, fails: bool
) -> None:
    options = {"startingOffsets": "earliest", "tags": tags, "failOnDataLoss": str(fails).lower()}
    with Query(servers=broker.address, topic=topic, **options) as query:
        send(broker.address, topic, range(read_before), tag="paid")
        assert len(query.everything()) == read_before
        send(broker.address, topic, range(10, 20), tag="paid")
        assert query.plan()
        planned = query.partitions() if is_planned else None
        delete(broker, topic)
        with Admin(broker.address) as admin:
            admin.create_topic(topic, 2)
        send(broker.address, topic, range(100, 130), tag="paid")
        if fails:
            with pytest.raises(DataLost, match=f"{topic}.*created again"):
                query.read(planned or query.partitions())
            return
        rows = query.read(planned or query.partitions())
        query.finish()
        assert values(rows + query.everything()) == list(range(100, 130))
