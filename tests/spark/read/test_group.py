"""A query with a group stores its offsets at the broker, to show its lag. It is no member, and nothing moves it."""

import pytest
from tests.spark.spark_driver import Checkpoint, Query, send, until, values

from lanemq.client.admin.admin import Admin
from lanemq.client.consumer.app import App
from lanemq.model.errors import GroupConflict
from lanemq.testing.embedded import EmbeddedBroker


def options(broker: EmbeddedBroker, topic: str, group: str) -> dict[str, str]:
    return {"servers": broker.address, "topic": topic, "group": group, "startingOffsets": "earliest"}


def stored(broker: EmbeddedBroker, group: str) -> int:
    with Admin(broker.address) as admin:
        return sum(queue.offset or 0 for queue in admin.describe_group(group).queues)


@pytest.mark.parametrize("ordered", ["true", "false"])
def test_offsets_are_stored_after_each_batch_and_no_queue_is_owned(
    broker: EmbeddedBroker, topic: str, group: str, ordered: str
) -> None:
    send(broker.address, topic, range(12))
    with Query(**options(broker, topic, group), ordered=ordered) as query, Admin(broker.address) as admin:
        assert query.plan()
        query.read(query.partitions())
        assert stored(broker, group) == 0, "the batch is not done"
        query.finish()
        assert stored(broker, group) == 12
        assert not admin.locks(group)
        assert admin.describe_group(group).members == ()


def test_two_queries_of_a_group_read_everything_each(broker: EmbeddedBroker, topic: str, group: str) -> None:
    send(broker.address, topic, range(12))
    with Query(**options(broker, topic, group)) as one, Query(**options(broker, topic, group)) as other:
        assert values(one.everything()) == values(other.everything()) == list(range(12))


def test_stored_offsets_do_not_move_a_query(broker: EmbeddedBroker, topic: str, group: str) -> None:
    send(broker.address, topic, range(12))
    checkpoint = Checkpoint()
    with Query(checkpoint, **options(broker, topic, group)) as query:
        assert query.plan()
    with Admin(broker.address) as admin:
        queues = [each.queue for each in admin.describe_topic(topic).queues]
        for queue in queues:
            admin.report(group, queue, 3)
    with Query(checkpoint, **options(broker, topic, group)) as query:
        assert values(query.everything()) == list(range(12))


def test_available_now_reads_to_the_end_of_its_start(broker: EmbeddedBroker, topic: str, group: str) -> None:
    send(broker.address, topic, range(30))
    with Query(**options(broker, topic, group)) as query:
        query.reader.prepareForTriggerAvailableNow()
        send(broker.address, topic, range(30, 40))
        assert values(query.everything()) == list(range(30))


def test_a_group_that_consumers_use_ends_the_query_before_it_reads(
    broker: EmbeddedBroker, topic: str, group: str
) -> None:
    """Also when they are away: they would never handle what the query has read."""
    handled: list[int] = []
    app = App(broker.address, group=group)

    @app.ordered(topic)
    def handle(value: int) -> None:
        handled.append(value)

    app.start()
    with Admin(broker.address) as admin:
        until(lambda: admin.locks(group))
    app.stop()
    send(broker.address, topic, range(12))
    with Query(**options(broker, topic, group)) as query:
        assert query.plan()
        with pytest.raises(GroupConflict, match=f"group {group} is used by consumers"):
            query.partitions()
    app = App(broker.address, group=group)
    app.ordered(topic)(handle)
    app.start()
    until(lambda: len(handled) == 12)
    app.stop()
    assert sorted(handled) == list(range(12))


def test_a_consumer_of_a_querys_group_is_refused(broker: EmbeddedBroker, topic: str, group: str) -> None:
    """It would begin where the query is, and never handle what is before."""
    send(broker.address, topic, range(12))
    with Query(**options(broker, topic, group)) as query:
        query.everything()
    app = App(broker.address, group=group)

    @app.ordered(topic)
    def handle(value: int) -> None:
        pytest.fail("the query has read it")

    with pytest.raises(GroupConflict, match=f"group {group}: its offsets are those of a Spark query"):
        app.run()
