"""How topics are created, and which changes would break order."""

import pytest

from lanemq.core.brokering.topic_table import (
    MAX_QUEUES,
    Changed,
    Created,
    Deleted,
    Existing,
    Permission,
    TopicConfig,
    TopicOrder,
    TopicRefused,
    TopicTable,
    WhyRefused,
)
from lanemq.model.errors import InvalidName
from lanemq.model.names import DEFAULT_TOPIC, NOT_SENDABLE, SCHEDULE_TOPIC, TRACE_PREFIX, TRACE_TOPIC

READ_WRITE = Permission.READ | Permission.WRITE


def topic(name: str = "orders", queues: int = 4, order: TopicOrder = TopicOrder.NONE) -> TopicConfig:
    return TopicConfig(name, queues, queues, order=order)


def test_new_topic_is_created_and_asking_again_changes_nothing() -> None:
    table = TopicTable()
    assert table.put(topic()) == Created(topic())
    assert table.put(topic()) == Existing(topic())
    assert table.get("orders") == topic()


@pytest.mark.row("A5")
def test_globally_ordered_topic_has_exactly_one_queue() -> None:
    """Queues have no order among each other."""
    table = TopicTable()
    for wrong in (
        topic(queues=2, order=TopicOrder.GLOBAL),
        TopicConfig("orders", 1, 2, order=TopicOrder.GLOBAL),
    ):
        assert table.put(wrong) == TopicRefused("orders", WhyRefused.GLOBAL_NEEDS_ONE_QUEUE)
    one = topic(queues=1, order=TopicOrder.GLOBAL)
    assert table.put(one) == Created(one)
    assert one.ordered


def test_topic_with_queues_cannot_become_globally_ordered() -> None:
    table = TopicTable()
    table.put(topic(queues=4))
    refused = table.put(topic(queues=4, order=TopicOrder.GLOBAL))
    assert refused == TopicRefused("orders", WhyRefused.GLOBAL_NEEDS_ONE_QUEUE)


@pytest.mark.parametrize("queues", [3, 5])
def test_queue_count_of_an_ordered_topic_is_fixed(queues: int) -> None:
    table = TopicTable()
    table.put(topic(order=TopicOrder.BY_KEY))
    refused = table.put(topic(queues=queues, order=TopicOrder.BY_KEY))
    assert refused == TopicRefused("orders", WhyRefused.QUEUE_COUNT_IS_FIXED)
    assert table.get("orders") == topic(order=TopicOrder.BY_KEY)


def test_queue_count_of_an_unordered_topic_may_change() -> None:
    table = TopicTable()
    table.put(topic(queues=4))
    assert table.put(topic(queues=8)) == Changed(topic(queues=4), topic(queues=8))


@pytest.mark.parametrize("queues", [0, -1, MAX_QUEUES + 1])
def test_impossible_queue_count_is_refused(queues: int) -> None:
    assert TopicTable().put(topic(queues=queues)) == TopicRefused("orders", WhyRefused.BAD_QUEUE_COUNT)


@pytest.mark.parametrize(("asked", "created"), [(4, 4), (8, 8), (16, 8)])
def test_the_first_send_creates_a_topic_from_the_template(asked: int, created: int) -> None:
    expected = TopicConfig("orders", created, created, READ_WRITE)
    assert TopicTable().auto_create("orders", DEFAULT_TOPIC, asked) == Created(expected)


def test_a_send_does_not_change_an_existing_topic() -> None:
    table = TopicTable()
    table.put(topic(queues=2))
    assert table.auto_create("orders", DEFAULT_TOPIC, 4) == Existing(topic(queues=2))


def test_without_template_no_topic_is_created_by_a_send() -> None:
    table = TopicTable(auto_create=False)
    assert table.get(DEFAULT_TOPIC) is None
    refused = TopicRefused("orders", WhyRefused.NO_TEMPLATE)
    assert table.auto_create("orders", DEFAULT_TOPIC, 4) == refused
    table.put(topic("not-a-template"))
    assert table.auto_create("orders", "not-a-template", 4) == refused


def test_retry_topic_needs_no_template() -> None:
    table = TopicTable(auto_create=False)
    expected = TopicConfig("%RETRY%g", 1, 1, READ_WRITE)
    assert table.auto_create("%RETRY%g", DEFAULT_TOPIC, 4) == Created(expected)
    assert table.ensure_retry("g") == Existing(expected)


def test_a_retry_topic_grows_and_never_shrinks() -> None:
    table = TopicTable()
    one, three = TopicConfig("%RETRY%g", 1, 1, READ_WRITE), TopicConfig("%RETRY%g", 3, 3, READ_WRITE)
    assert table.ensure_retry("g") == Created(one)
    assert table.ensure_retry("g", 3) == Changed(one, three)
    assert table.ensure_retry("g", 2) == Existing(three)
    assert table.ensure_retry("h", 3) == Created(three._replace(name="%RETRY%h"))


def test_dead_letter_topic_is_created_once() -> None:
    table = TopicTable()
    expected = TopicConfig("%DLQ%g", 1, 1, READ_WRITE)
    assert table.ensure_dead_letter("g") == Created(expected)
    assert table.ensure_dead_letter("g") == Existing(expected)


@pytest.mark.parametrize("name", [*sorted(NOT_SENDABLE), DEFAULT_TOPIC, "rmq_sys_x", "broker-a"])
def test_system_topics_cannot_be_created_changed_or_deleted(name: str) -> None:
    table = TopicTable(own_names=["broker-a"])
    before = table.topics()
    refused = TopicRefused(name, WhyRefused.SYSTEM_TOPIC)
    assert table.put(topic(name)) == refused
    assert table.delete(name) == refused
    assert table.topics() == before


@pytest.mark.parametrize("name", [*sorted(NOT_SENDABLE), "rmq_sys_x"])
def test_send_to_a_system_topic_is_refused(name: str) -> None:
    refused = TopicRefused(name, WhyRefused.SYSTEM_TOPIC)
    assert TopicTable().auto_create(name, DEFAULT_TOPIC, 4) == refused


def test_trace_topics_take_sends() -> None:
    assert isinstance(TopicTable().auto_create(TRACE_TOPIC, DEFAULT_TOPIC, 4), Existing)
    assert isinstance(TopicTable().auto_create(TRACE_PREFIX + "region", DEFAULT_TOPIC, 4), Created)


def test_system_topics_always_exist() -> None:
    table = TopicTable(own_names=["broker-a"])
    names = [config.name for config in table.topics()]
    assert names == sorted([SCHEDULE_TOPIC, "SELF_TEST_TOPIC", TRACE_TOPIC, DEFAULT_TOPIC, "broker-a"])


def test_illegal_name_is_never_stored() -> None:
    table = TopicTable()
    with pytest.raises(InvalidName):
        table.put(topic("../etc"))
    with pytest.raises(InvalidName):
        table.auto_create("a b", DEFAULT_TOPIC, 4)
    assert table.topics() == TopicTable().topics()


def test_full_broker_creates_no_further_topic_but_changes_known_ones() -> None:
    table = TopicTable(max_topics=len(TopicTable().topics()) + 1)
    table.put(topic())
    assert table.auto_create("more", DEFAULT_TOPIC, 4) == TopicRefused("more", WhyRefused.TOO_MANY)
    assert isinstance(table.put(topic(queues=5)), Changed)


def test_a_deleted_topic_does_not_exist() -> None:
    table = TopicTable()
    table.put(topic())
    assert table.delete("orders") == Deleted(topic())
    assert table.delete("orders") == TopicRefused("orders", WhyRefused.UNKNOWN)


def test_topics_survive_a_restart() -> None:
    table = TopicTable()
    table.put(topic(order=TopicOrder.BY_KEY))
    restarted = TopicTable()
    restarted.restore([topic(order=TopicOrder.BY_KEY)])
    assert restarted.topics() == table.topics()


def test_an_ordered_topic_stays_ordered() -> None:
    """Otherwise its queue count could change in three steps, and its keys would move."""
    table = TopicTable()
    table.put(TopicConfig("orders", 4, 4, order=TopicOrder.BY_KEY))
    assert table.put(TopicConfig("orders", 4, 4)) == TopicRefused("orders", WhyRefused.ORDER_IS_FIXED)


def test_a_topic_becomes_ordered_only_with_the_queues_it_has() -> None:
    table = TopicTable()
    table.put(TopicConfig("orders", 4, 4))
    refused = table.put(TopicConfig("orders", 7, 7, order=TopicOrder.BY_KEY))
    assert refused == TopicRefused("orders", WhyRefused.ORDER_KEEPS_QUEUES)
