"""Ordered topics on a cluster: the layout at every name server, the order flag at every broker, and their repair."""

import logging
from collections.abc import Iterator

import pytest
from tests.client.fake_cluster import Answer, FakeCluster

from lanemq.client.admin.admin import Admin
from lanemq.client.producer.producer import Producer
from lanemq.client.topics import NewTopic
from lanemq.model.errors import InvalidOption, UsageError
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command

FULL = "broker-a:4;broker-b:4"


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(servers=2) as fake:
        yield fake


@pytest.fixture
def admin(cluster: FakeCluster) -> Iterator[Admin]:
    with Admin(cluster.address) as admin:
        yield admin


def test_an_ordered_topic_gets_its_layout_at_every_name_server_and_its_flag_at_every_broker(
    cluster: FakeCluster, admin: Admin
) -> None:
    admin.create_topic("orders", 4, ordered=True)
    assert [table["orders"] for table in cluster.layouts] == [FULL, FULL]
    assert cluster.flags == {"broker-a": {"orders"}, "broker-b": {"orders"}}
    report = admin.topic_order("orders")
    assert (report.layouts, report.problems, report.in_all_routes) == ((FULL,), (), False)
    assert admin.describe_topic("orders").ordered


def test_a_replica_that_has_not_copied_the_topic_yet_is_a_problem(cluster: FakeCluster, admin: Admin) -> None:
    """If it became the master now, the topic would be gone there."""
    replica = cluster.add_replica("broker-a")
    admin.create_topic("orders", 4, ordered=True)
    report = admin.topic_order("orders")
    assert report.replicas_without == (str(replica.address),)
    assert "does not have the topic yet" in report.problems[0]
    replica.create("orders", 4)
    assert admin.topic_order("orders").problems == ()


def test_a_topic_without_order_gets_no_layout(cluster: FakeCluster, admin: Admin) -> None:
    admin.create_topic("metrics", 4)
    assert cluster.layouts == [{}, {}]
    assert not admin.describe_topic("metrics").ordered
    assert admin.topic_order("metrics").layouts == ()


@pytest.mark.parametrize("make", ["create_topic", "ensure_topic"])
def test_the_layout_is_set_before_any_broker_has_the_topic(cluster: FakeCluster, admin: Admin, make: str) -> None:
    """A producer that finds the topic on the first broker only would otherwise choose over its queues."""
    creates = cluster.brokers["broker-a"].answers[RequestCode.UPDATE_AND_CREATE_TOPIC]
    seen = list[dict[str, str]]()

    def noted(command: Command) -> Answer:
        seen.extend(map(dict, cluster.layouts))
        return creates(command)

    cluster.brokers["broker-a"].answers[RequestCode.UPDATE_AND_CREATE_TOPIC] = noted
    getattr(admin, make)("orders", 4, ordered=True)
    assert seen == [{"orders": FULL}, {"orders": FULL}]


@pytest.mark.parametrize("make", ["create_topic", "ensure_topic"])
def test_an_ordered_topic_is_not_created_while_a_broker_has_no_master(
    cluster: FakeCluster, admin: Admin, make: str
) -> None:
    """Its replica is known, so the layout would be known to be too short."""
    cluster.add_replica("broker-b")
    cluster.kill("broker-b")
    with pytest.raises(UsageError, match="broker-b has no master now"):
        getattr(admin, make)("orders", 4, ordered=True)
    assert cluster.layouts == [{}, {}]
    admin.create_topic("metrics", 4)
    cluster.restart("broker-b")
    getattr(admin, make)("orders", 4, ordered=True)
    assert cluster.layouts[0] == {"orders": FULL}


def test_creating_it_again_changes_nothing_and_with_other_queues_is_refused(cluster: FakeCluster, admin: Admin) -> None:
    admin.create_topic("orders", 4, ordered=True)
    admin.create_topic("orders", 4, ordered=True)
    with pytest.raises(UsageError, match="would move keys"):
        admin.create_topic("orders", 8, ordered=True)
    with pytest.raises(UsageError, match="would move keys"):
        admin.create_topic("orders", 4)
    assert [table["orders"] for table in cluster.layouts] == [FULL, FULL]
    assert cluster.brokers["broker-a"].topics["orders"].queues == 4


def test_creating_it_again_while_a_broker_is_away_is_refused(cluster: FakeCluster, admin: Admin) -> None:
    """The new layout would lack the broker."""
    admin.create_topic("orders", 4, ordered=True)
    cluster.kill("broker-a")
    with pytest.raises(UsageError, match="would move keys"):
        admin.create_topic("orders", 4, ordered=True)
    assert [table["orders"] for table in cluster.layouts] == [FULL, FULL]


def test_a_layout_in_another_order_is_not_rewritten(cluster: FakeCluster, admin: Admin) -> None:
    """RocketMQ's tools write it in the order of a hash table, and keys depend on it."""
    cluster.create("orders", layout="broker-b:4;broker-a:4")
    admin.create_topic("orders", 4, ordered=True)
    assert {table["orders"] for table in cluster.layouts} == {"broker-b:4;broker-a:4"}
    assert any("not sorted" in each for each in admin.topic_order("orders").problems)


def test_a_name_server_that_is_away_is_named_and_repaired_later(
    cluster: FakeCluster, admin: Admin, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.servers[1].stop()
    with caplog.at_level(logging.WARNING):
        admin.create_topic("orders", 4, ordered=True)
    assert f"name server {cluster.servers[1].address} was not reached" in caplog.text
    assert f"name server {cluster.servers[1].address} was not reached" in admin.topic_order("orders").problems
    cluster.servers[1].start()
    assert cluster.layouts[1] == {}
    plan = admin.repair_order("orders", dry_run=True)
    assert (plan.servers, cluster.layouts[1]) == ((str(cluster.servers[1].address),), {})
    admin.repair_order("orders")
    assert cluster.layouts[1] == {"orders": FULL}
    assert not admin.repair_order("orders").is_needed


def test_a_topic_without_order_is_repaired_from_what_its_brokers_have(cluster: FakeCluster, admin: Admin) -> None:
    cluster.create("orders", 4)
    plan = admin.repair_order("orders", dry_run=True)
    assert (plan.layout, len(plan.servers), plan.flags) == (FULL, 2, ("broker-a", "broker-b"))
    assert cluster.layouts == [{}, {}]
    admin.repair_order("orders")
    assert [table["orders"] for table in cluster.layouts] == [FULL, FULL]
    assert cluster.flags == {"broker-a": {"orders"}, "broker-b": {"orders"}}
    assert admin.topic_order("orders").problems == ()


def test_different_layouts_are_repaired_only_to_a_chosen_one(cluster: FakeCluster, admin: Admin) -> None:
    cluster.create("orders", layout=FULL)
    cluster.layouts[1]["orders"] = "broker-a:4"
    assert any("different layouts" in each for each in admin.topic_order("orders").problems)
    with pytest.raises(UsageError, match="choose one"):
        admin.repair_order("orders")
    admin.repair_order("orders", layout=FULL)
    assert [table["orders"] for table in cluster.layouts] == [FULL, FULL]


def test_a_chosen_layout_must_be_readable(cluster: FakeCluster, admin: Admin) -> None:
    cluster.create("orders")
    with pytest.raises(InvalidOption, match="broker-a:4;broker-b:4"):
        admin.repair_order("orders", layout="broker-a=4")


def test_a_broker_that_is_away_is_described(cluster: FakeCluster, admin: Admin) -> None:
    admin.create_topic("orders", 4, ordered=True)
    cluster.kill("broker-a")
    found = admin.describe_topic("orders")
    assert (found.ordered, found.away, len(found.queues)) == (True, ("broker-a",), 4)
    assert "broker broker-a is away: messages of its keys wait for it" in admin.topic_order("orders").problems


def test_a_broker_with_other_queues_than_the_layout_is_a_problem(cluster: FakeCluster, admin: Admin) -> None:
    admin.create_topic("orders", 4, ordered=True)
    cluster.create("orders", 8, on=["broker-b"])
    assert "broker broker-b has 8 queues, and the layout gives it 4" in admin.topic_order("orders").problems


def test_a_declared_topic_is_found_ordered_at_the_second_start(cluster: FakeCluster) -> None:
    """Routes do not say so: the program compares with the layout."""
    for _ in range(2):
        with Producer(cluster.address, create=NewTopic("orders", 4)) as producer:
            producer.send("orders", 1, key="a")
    assert [table["orders"] for table in cluster.layouts] == [FULL, FULL]
    assert sum(map(len, cluster.stored("orders").values())) == 2


def test_a_deleted_topic_leaves_no_layout_behind(cluster: FakeCluster, admin: Admin) -> None:
    admin.create_topic("orders", 4, ordered=True)
    admin.delete_topic("orders")
    assert cluster.layouts == [{}, {}]
    admin.create_topic("orders", 8, ordered=True)
    assert len(admin.describe_topic("orders").queues) == 16
