"""A topic that is deleted under a query of a group: a loss of its own messages, and of nothing else."""

import logging
from collections.abc import Iterator

import pytest
from tests.spark.spark_driver import Query, send, values

from lanemq.client.admin.admin import Admin
from lanemq.model.units import Millis
from lanemq.spark.group.member_calls import MemberCalls
from lanemq.spark.group.membership import Membership
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
    """It owns all three queues and has planned ten messages of each topic."""
    for each in (topic, other):
        send(broker.address, each, range(10))
    options = {"servers": broker.address, "topic": f"{topic},{other}", "group": group, "failOnDataLoss": "false"}
    with Query(**options) as query:
        query.reader._driver._bounds()
        membership_of(query).wait_for_share(Millis(60_000))
        yield query


def membership_of(query: Query) -> Membership:
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


def test_the_leases_of_other_topics_live_on_and_the_query_too(
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
    assert len(deleted) == 1, "once, not in every round"


def test_a_deleted_topic_is_told_as_a_loss_of_messages(
    broker: EmbeddedBroker, topic: str, other: str, group: str
) -> None:
    """With the default, failOnDataLoss=true, the query ends; a word about another member would be untrue."""
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


def test_a_task_that_reads_while_its_topic_is_deleted_goes_on_without_it(
    broker: EmbeddedBroker, topic: str, other: str, query: Query, caplog: pytest.LogCaptureFixture
) -> None:
    assert query.plan()
    partitions = query.partitions()
    delete(broker, other)
    assert {row["topic"] for row in query.read(partitions)} == {topic}
    assert any("topic was deleted" in each for each in caplog.messages)


def test_nothing_is_waited_for_in_a_deleted_topic(broker: EmbeddedBroker, other: str, query: Query) -> None:
    """Its queues are nobody's share any more, whether a batch reads them or not."""
    delete(broker, other)
    membership = membership_of(query)
    membership._calls._routes.stale(other)
    assert membership.wait_for_share(Millis(0)) is None


def test_a_queue_whose_route_is_not_known_costs_no_other_queue_its_lease(
    broker: EmbeddedBroker, topic: str, other: str, query: Query, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with a broker that is away, whose topics a name server forgets: they are not gone, and wait."""
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


def test_a_topic_of_a_broker_that_is_not_to_be_seen_is_not_gone(
    query: Query,
) -> None:
    calls = membership_of(query)._calls
    assert calls.is_deleted("never-was", ["lanemq"])
    assert not calls.is_deleted("never-was", ["lanemq", "broker-b"])


def test_the_same_trouble_is_told_once(query: Query, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING)
    membership = membership_of(query)
    with membership._lock:
        for trouble in ("away", "away", "refused", "refused"):
            membership._warn("broker-a", trouble)
    assert sum("away" in each or "refused" in each for each in caplog.messages) == 2
