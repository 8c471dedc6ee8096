"""The console's reading of a cluster of Apache brokers, some of which do not answer."""

from collections.abc import Iterator

import pytest
from tests.broker.running import ManualClock
from tests.client.fake_cluster import FakeCluster

from lanemq.console.snapshot import Snapshot, SnapshotReader
from lanemq.console.trends import Trends
from lanemq.console.views.home import home_view
from lanemq.console.views.settings import broker_rows
from lanemq.console.views.topics import kept_for
from lanemq.console.views.waiting import waiting_view
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import KVTable, SubscriptionGroupConfig, SubscriptionGroupTable, TopicList
from lanemq.wire.stats_bodies import ConsumeStats

Answer = tuple[int, dict[str, str], bytes]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    """Two brokers with the topic `orders` and the group `billing`."""
    groups = SubscriptionGroupTable(subscription_group_table={"billing": SubscriptionGroupConfig()})
    with FakeCluster() as found:
        found.create("orders", 2)
        found.servers[0].answers |= {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda _: _body(TopicList(topic_list=["gone", "orders"])),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda _: _body(TopicList()),
        }
        for broker in found.brokers.values():
            broker.answers |= {
                RequestCode.GET_BROKER_RUNTIME_INFO: lambda _: _body(KVTable(table={"brokerVersionDesc": "V5_3_3"})),
                RequestCode.GET_ALL_SUBSCRIPTIONGROUP_CONFIG: lambda _: _body(groups),
                RequestCode.GET_CONSUMER_CONNECTION_LIST: lambda _: (ResponseCode.CONSUMER_NOT_ONLINE, {}, b""),
                RequestCode.GET_CONSUME_STATS: lambda _: _body(ConsumeStats()),
            }
        yield found


def _body(body: TopicList | KVTable | SubscriptionGroupTable | ConsumeStats) -> Answer:
    return 0, {}, body.encode()


def taken(cluster: FakeCluster) -> Snapshot:
    reader = SnapshotReader(cluster.address, ManualClock())
    try:
        return reader.take()
    finally:
        reader.close()


def tile(now: Snapshot) -> tuple[str, str]:
    found = home_view(now, Trends(), None).tiles[0]
    return found.answer, found.detail


def test_a_topic_that_only_the_name_server_has_is_left_out(cluster: FakeCluster) -> None:
    """It was deleted while the console read, or a name server missed that it was."""
    now = taken(cluster)
    assert (now.error, [each.topic for each in now.topics]) == ("", ["orders"])
    assert tile(now) == ("Up", "2 brokers, 1 topic")

    def refuses(command: Command) -> Answer:
        return ResponseCode.TOPIC_NOT_EXIST, {}, b""

    for broker in cluster.brokers.values():
        broker.answers[RequestCode.GET_TOPIC_STATS_INFO] = refuses
    assert (taken(cluster).error, taken(cluster).topics) == ("", ())


def test_a_broker_that_does_not_answer_hides_only_its_own_queues(cluster: FakeCluster) -> None:
    cluster.brokers["broker-b"].stop()
    now = taken(cluster)
    cluster.brokers["broker-b"].start()
    assert now.error == ""
    assert [(each.name, bool(each.error)) for each in now.brokers] == [("broker-a", False), ("broker-b", True)]
    assert [(each.away, len(each.queues)) for each in now.topics] == [(("broker-b",), 2)]
    assert [each.name for each in now.groups] == ["billing"]
    assert tile(now) == ("In part", "broker-b does not answer")
    assert tile(taken(cluster)) == ("Up", "2 brokers, 1 topic"), "it is asked again"


def test_a_broker_without_a_master_is_not_called_up(cluster: FakeCluster) -> None:
    """The name server lists its replica only, so that it is not among the brokers."""
    cluster.add_replica("broker-b")
    cluster.kill("broker-b")
    assert tile(taken(cluster)) == ("In part", "broker-b does not answer")


def test_a_broker_that_has_just_started_is_up_without_figures(cluster: FakeCluster) -> None:
    """An Apache broker answers with an error until it has figures, for some seconds."""
    for broker in cluster.brokers.values():
        broker.answers[RequestCode.GET_BROKER_RUNTIME_INFO] = lambda _: (ResponseCode.SYSTEM_ERROR, {}, b"")
    now = taken(cluster)
    assert tile(now) == ("Up", "2 brokers, 1 topic")
    assert broker_rows(now.brokers)[0].kind == "RocketMQ"


def test_what_waits_says_where_an_apache_broker_parks_keys(cluster: FakeCluster) -> None:
    assert waiting_view(taken(cluster)).notes == (
        "broker-a, broker-b are not LaneMQ brokers: parked keys wait in the memory of their members, and are let go "
        "there with App.resume.",
    )


@pytest.mark.parametrize(
    ("settings", "kept"),
    [
        ({"retention": "60.0", "retention_bytes": "9"}, ("60.0", "9")),
        ({"fileReservedTime": "72"}, ("259200", "")),
        ({"fileReservedTime": "?"}, ("", "")),
        ({}, ("", "")),
    ],
)
def test_how_long_messages_are_kept_is_read_from_either_kind_of_broker(
    settings: dict[str, str], kept: tuple[str, str]
) -> None:
    assert kept_for(settings) == kept
