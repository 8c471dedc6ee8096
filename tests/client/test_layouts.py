"""Routes with layouts, blocking and on a loop: the queues that keys are spread over, on a cluster."""

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from tests.client.fake_cluster import FakeCluster
from tests.client.virtual_time import ManualClock

from lanemq.client.routing import AsyncRoutes, BlockingRoutes
from lanemq.client.topic_route import REFRESH_MILLIS, TopicRoute
from lanemq.model.errors import RemoteProtocolError, TopicNotFound
from lanemq.net.address import parse_addresses
from lanemq.net.calling.connection import ConnectionPool
from lanemq.wire.codes import RequestCode

FULL = "broker-a:4;broker-b:4"
Change = Callable[[], object]
Lookup = Callable[..., list[TopicRoute]]


def blocking(cluster: FakeCluster, *between: Change, **options: Any) -> list[TopicRoute]:
    """The route of `orders`, and again after each change."""
    clock = ManualClock()
    routes = BlockingRoutes(parse_addresses(cluster.address), clock, **options)
    found = []
    try:
        found.append(routes.get("orders"))
        for change in between:
            change()
            clock.at += REFRESH_MILLIS
            found.append(routes.get("orders"))
    finally:
        routes.close()
    return found


def on_a_loop(cluster: FakeCluster, *between: Change, **options: Any) -> list[TopicRoute]:
    async def main() -> list[TopicRoute]:
        clock, pool = ManualClock(), ConnectionPool()
        routes = AsyncRoutes(parse_addresses(cluster.address), pool, clock, **options)
        try:
            found = [await routes.get("orders")]
            for change in between:
                change()
                clock.at += REFRESH_MILLIS
                found.append(await routes.get("orders"))
        finally:
            pool.close()
            await asyncio.sleep(0.01)
        return found

    return asyncio.run(main())


@pytest.fixture(params=[blocking, on_a_loop])
def lookup(request: pytest.FixtureRequest) -> Lookup:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster(servers=2) as fake:
        yield fake


def text(route: TopicRoute) -> str:
    counts: dict[str, int] = {}
    for queue in route.publish:
        counts[queue.broker] = counts.get(queue.broker, 0) + 1
    return ";".join(f"{broker}:{count}" for broker, count in counts.items())


def test_the_layout_is_read_although_routes_do_not_have_it(cluster: FakeCluster, lookup: Lookup) -> None:
    cluster.create("orders", layout=FULL)
    (route,) = lookup(cluster)
    assert (route.ordered, text(route), route.moved) == (True, FULL, "")


def test_a_process_that_starts_while_a_broker_is_away_gets_the_full_list(cluster: FakeCluster, lookup: Lookup) -> None:
    cluster.create("orders", layout=FULL)
    cluster.kill("broker-a")
    (route,) = lookup(cluster)
    assert text(route) == FULL
    assert {queue.broker for queue in route.writable} == {"broker-b"}
    assert route.away == {"broker-a"}


def test_a_process_that_starts_while_all_brokers_are_away_gets_the_full_list(
    cluster: FakeCluster, lookup: Lookup
) -> None:
    """Name servers then say that the topic does not exist."""
    cluster.create("orders", layout=FULL)
    cluster.kill("broker-a")
    cluster.kill("broker-b")
    (route,) = lookup(cluster)
    assert (text(route), route.writable) == (FULL, ())


def test_the_list_stays_while_brokers_come_and_go(cluster: FakeCluster, lookup: Lookup) -> None:
    cluster.create("orders", layout=FULL)
    routes = lookup(
        cluster,
        lambda: cluster.kill("broker-a"),
        lambda: cluster.kill("broker-b"),
        lambda: cluster.restart("broker-a"),
        lambda: cluster.restart("broker-b"),
    )
    assert {text(route) for route in routes} == {FULL}
    assert not any(route.moved for route in routes)


def test_without_a_layout_the_first_list_stays(cluster: FakeCluster, lookup: Lookup) -> None:
    cluster.create("orders")
    routes = lookup(
        cluster,
        lambda: cluster.kill("broker-a"),
        lambda: cluster.kill("broker-b"),
        lambda: cluster.restart("broker-b"),
    )
    assert {(text(route), route.moved, route.ordered) for route in routes} == {(FULL, "", False)}


def test_a_broker_that_is_added_to_a_topic_without_a_layout_is_a_change(cluster: FakeCluster, lookup: Lookup) -> None:
    cluster.create("orders", on=["broker-a"])
    first, second = lookup(cluster, lambda: cluster.create("orders"))
    assert (text(first), first.moved) == ("broker-a:4", "")
    assert (text(second), second.moved) == ("broker-a:4", f"its brokers have the queues {FULL} now")


def test_keys_follow_a_change_if_the_program_allows_it(cluster: FakeCluster, lookup: Lookup) -> None:
    cluster.create("orders", on=["broker-a"])
    _, second = lookup(cluster, lambda: cluster.create("orders"), may_move=True)
    assert (text(second), second.moved) == (FULL, "")


def test_one_name_server_with_the_layout_is_enough(cluster: FakeCluster, lookup: Lookup) -> None:
    """The other was away when the layout was set."""
    cluster.create("orders", layout=FULL)
    del cluster.layouts[0]["orders"]
    cluster.kill("broker-a")
    (route,) = lookup(cluster)
    assert text(route) == FULL


def test_a_dead_name_server_does_not_keep_the_layout_from_clients(cluster: FakeCluster, lookup: Lookup) -> None:
    cluster.create("orders", layout=FULL)
    cluster.kill("broker-a")
    cluster.servers[0].stop()
    try:
        (route,) = lookup(cluster)
    finally:
        cluster.servers[0].start()
    assert text(route) == FULL


def test_a_layout_in_the_route_is_not_asked_for(cluster: FakeCluster, lookup: Lookup) -> None:
    cluster.layouts_in_routes = True
    cluster.create("orders", layout=FULL)
    (route,) = lookup(cluster)
    assert text(route) == FULL
    assert sum(server.codes[RequestCode.GET_KV_CONFIG] for server in cluster.servers) == 0


def test_clients_that_only_read_do_not_ask_for_layouts(cluster: FakeCluster, lookup: Lookup) -> None:
    cluster.create("orders", layout=FULL)
    cluster.kill("broker-a")
    (route,) = lookup(cluster, layouts=False)
    assert text(route) == "broker-b:4"
    assert sum(server.codes[RequestCode.GET_KV_CONFIG] for server in cluster.servers) == 0


def said(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the client logged: a broker that other tests keep in this process may log that the machine is busy."""
    return [record.getMessage() for record in caplog.records if record.name.startswith("lanemq.client")]


MOVED = "the queues of topic orders changed from 8 to 12: keys may have moved to other queues"


@pytest.mark.parametrize("layouts", [True, False])
def test_a_broker_that_leaves_and_comes_back_moves_no_key_of_a_topic_with_a_layout(
    cluster: FakeCluster, lookup: Lookup, layouts: bool, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("orders", layout=FULL)
    before, away, still, back = lookup(
        cluster,
        lambda: cluster.kill("broker-a"),
        lambda: None,
        lambda: cluster.restart("broker-a"),
        layouts=layouts,
    )
    assert [set(route.publish) for route in (away, still, back)] == 3 * [set(before.publish)]
    assert [route.away for route in (away, still, back)] == [{"broker-a"}, {"broker-a"}, set()]
    assert said(caplog) == ["topic orders: messages of keys at broker-a wait for it, others continue"]


def test_a_broker_that_was_away_at_the_start_moves_no_key_of_a_topic_with_a_layout(
    cluster: FakeCluster, lookup: Lookup, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("orders", layout=FULL)
    cluster.kill("broker-a")
    lookup(cluster, lambda: cluster.restart("broker-a"), layouts=False)
    assert said(caplog) == []


def test_a_client_that_only_reads_reports_keys_that_moved(
    cluster: FakeCluster, lookup: Lookup, caplog: pytest.LogCaptureFixture
) -> None:
    cluster.create("orders", layout=FULL)
    lookup(cluster, lambda: cluster.create("orders", 6, layout="broker-a:6;broker-b:6"), layouts=False)
    assert said(caplog) == [MOVED]


def test_a_deleted_topic_does_not_exist_although_it_was_in_use(cluster: FakeCluster, lookup: Lookup) -> None:
    """All its brokers are up, and none has it: it is not merely away."""
    cluster.create("orders", layout=FULL)

    def delete() -> None:
        for broker in cluster.brokers.values():
            del broker.topics["orders"]

    with pytest.raises(TopicNotFound):
        lookup(cluster, delete)


def test_a_layout_that_cannot_be_read_is_an_error(cluster: FakeCluster, lookup: Lookup) -> None:
    """To ignore it would spread keys over whatever is up."""
    cluster.create("orders", layout="broker-a=4")
    with pytest.raises(RemoteProtocolError, match="broker-a=4"):
        lookup(cluster)
