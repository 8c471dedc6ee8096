"""Commands that say what an Apache broker does not report, instead of that there is nothing."""

from collections.abc import Iterator

import pytest
from click.testing import CliRunner
from tests.client.fake_cluster import FakeCluster

from lanemq.cli.main import main
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.route_bodies import KVTable, TopicList


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(["broker-a"]) as found:
        found.create("orders")
        found.servers[0].answers |= {
            RequestCode.GET_ALL_TOPIC_LIST_FROM_NAMESERVER: lambda _: (
                0,
                {},
                TopicList(topic_list=["orders"]).encode(),
            ),
            RequestCode.GET_SYSTEM_TOPIC_LIST_FROM_NS: lambda _: (0, {}, TopicList().encode()),
        }
        found.brokers["broker-a"].answers |= {
            RequestCode.QUERY_MESSAGE: lambda _: (ResponseCode.QUERY_NOT_FOUND, {}, b""),
            RequestCode.GET_BROKER_RUNTIME_INFO: lambda _: (0, {}, KVTable().encode()),
        }
        yield found


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["locks"], "reports no leases: lanemq group describe NAME shows the owners that members report"),
        (["why", "order-7"], "an Apache broker does not index keys: name the topic of 'order-7' with --topic TOPIC"),
    ],
)
def test_what_the_broker_does_not_report_is_not_said_to_be_absent(
    cluster: FakeCluster, words: list[str], said: str
) -> None:
    done = CliRunner().invoke(main, [*words, "--server", cluster.address])
    assert said in done.output
