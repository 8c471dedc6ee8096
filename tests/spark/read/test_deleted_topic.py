"""A topic that is deleted while a query of a group reads it: only its own messages are lost."""

import logging
from collections.abc import Iterator

import pytest
from tests.spark.spark_driver import Query, send, values

from lanemq.client.admin.admin import Admin
from lanemq.model.units import Millis
from lanemq.spark.group.member_calls import MemberCalls
from lanemq.spark.group.membership import DriverMembership
from lanemq.spark.read.partition_reader import DataLost
from lanemq.testing.embedded import EmbeddedBroker

pytestmark = pytest.mark.slow


@pytest.fixture
def other(broker: EmbeddedBroker, topic: str) -> str:
    """A second topic of the same query."""
    with Admin(broker.address) as admin:
        admin.create_topic(f"{topic}-other", 1)
    return f"{topic}-other"


def delete(broker: EmbeddedBroker, topic: str) -> None:
    with Admin(broker.address) as admin:
        admin.delete_topic(topic)


@pytest.fixture
def query(broker: EmbeddedBroker, topic: str, other: str, group: str) -> Iterator[Query]:
    """A query that owns all three queues, with ten messages in each topic."""
    for each in (topic, other):
        send(broker.address, each, range(10))
    options = {"servers": broker.address, "topic": f"{topic},{other}", "group": group, "failOnDataLoss": "false"}
    with Query(**options) as query:
        query.reader._driver._bounds()
        membership_of(query).wait_for_share(Millis(60_000))
        yield query


def membership_of(query: Query) -> DriverMembership:
    membership = query.reader._driver._membership
    assert membership is not None
    return membership


def rounds(query: Query, count: int) -> None:
    """What the member's thread does every second."""
    membership = membership_of(query)
    for _ in range(count):
        with membership._lock:
            membership._renew_due.clear()
            membership._round()


def test_the_leases_of_other_topics_and_the_query_survive(
    broker: EmbeddedBroker, topic: str, other: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    assert query.plan()
    rows = query.read(query.partitions())
    delete(broker, other)
    rounds(query, 3)
    assert {queue.topic for queue in membership_of(query).usable()} == {topic}
    query.finish()
    send(broker.address, topic, range(10, 20))
    assert values(query.everything()) == list(range(10, 20))
    assert len(rows) == 20
    deleted = [each for each in caplog.messages if f"topic {other} was deleted" in each]
    assert len(deleted) == 1, "logged once"


def test_a_deleted_topic_is_reported_as_a_loss_of_messages(
    broker: EmbeddedBroker, topic: str, other: str, group: str
) -> None:
    """With failOnDataLoss=true the query fails; the error must not blame another member."""
    send(broker.address, other, range(3))
    with Query(servers=broker.address, topic=f"{topic},{other}", group=group) as query:
        query.reader._driver._bounds()
        membership_of(query).wait_for_share(Millis(60_000))
        assert query.plan()
        query.read(query.partitions())
        delete(broker, other)
        rounds(query, 1)
        query.finish()
        with pytest.raises(DataLost, match=f"{other}.* no longer exists"):
            query.plan()


def test_a_task_continues_without_a_topic_that_is_deleted_while_it_reads(
    broker: EmbeddedBroker, topic: str, other: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    assert query.plan()
    partitions = query.partitions()
    delete(broker, other)
    assert {row["topic"] for row in query.read(partitions)} == {topic}
    assert any("topic was deleted" in each for each in caplog.messages)


def test_a_query_does_not_wait_for_queues_of_a_deleted_topic(broker: EmbeddedBroker, other: str, query: Query) -> None:
    """Its queues belong to no share any more."""
    delete(broker, other)
    membership = membership_of(query)
    membership._calls._routes.stale(other)
    assert membership.wait_for_share(Millis(0)) is None


def test_a_queue_with_an_unknown_route_does_not_cost_other_leases(
    broker: EmbeddedBroker, topic: str, other: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """This happens if a broker is absent: the name server forgets its topics, which still exist."""
    assert query.plan()
    query.partitions()
    monkeypatch.setattr(MemberCalls, "is_deleted", lambda *_: False)
    delete(broker, other)
    membership = membership_of(query)
    membership._calls._routes.stale(other)
    before = {queue: membership._assigned._queues[queue].lease.usable_until for queue in membership._assigned.queues()}
    rounds(query, 1)
    for queue, until_then in before.items():
        now = membership._assigned._queues[queue].lease.usable_until
        assert (now != until_then) == (queue.topic == topic), queue


def test_a_topic_is_deleted_only_if_all_its_brokers_are_registered(
    query: Query,
) -> None:
    calls = membership_of(query)._calls
    assert calls.is_deleted("never-was", ["lanemq"])
    assert not calls.is_deleted("never-was", ["lanemq", "broker-b"])


def test_the_same_warning_is_logged_once(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    membership = membership_of(query)
    with membership._lock:
        for trouble in ("away", "away", "refused", "refused"):
            membership._warn("broker-a", trouble)
    assert sum("away" in each or "refused" in each for each in caplog.messages) == 2
