"""Asking name servers, blocking and on a loop: both must behave alike."""

import asyncio
import threading
from collections.abc import Callable, Iterator

import pytest
from tests.client.fake_broker import FakeBroker
from tests.client.virtual_time import ManualClock

from lanemq.client.routing import AsyncRoutes, BlockingRoutes
from lanemq.client.topic_route import REFRESH_MILLIS, TopicRoute
from lanemq.model.errors import ConnectFailed, TopicNotFound, TransportError
from lanemq.net.address import Address
from lanemq.net.calling.connection import ConnectionPool
from lanemq.wire.codes import RequestCode

NOT_LISTENING = Address("127.0.0.1", 1)


Steps = list[Callable[[], object]]
Lookup = Callable[..., list[TopicRoute]]


def blocking(
    servers: list[Address], clock: ManualClock, topics: list[tuple[str, bool]], between: Steps
) -> list[TopicRoute]:
    routes = BlockingRoutes(servers, clock)
    found = []
    try:
        for (topic, provisional), step in zip(topics, [*between, lambda: None], strict=True):
            found.append(routes.get(topic, provisional=provisional))
            step()
    finally:
        routes.close()
    return found


def on_a_loop(
    servers: list[Address], clock: ManualClock, topics: list[tuple[str, bool]], between: Steps
) -> list[TopicRoute]:
    async def main() -> list[TopicRoute]:
        pool = ConnectionPool()
        routes = AsyncRoutes(servers, pool, clock)
        found = []
        try:
            for (topic, provisional), step in zip(topics, [*between, lambda: None], strict=True):
                found.append(await routes.get(topic, provisional=provisional))
                step()
        finally:
            pool.close()
            await asyncio.sleep(0.01)
        return found

    return asyncio.run(main())


@pytest.fixture(params=[blocking, on_a_loop])
def lookup(request: pytest.FixtureRequest) -> Lookup:
    return request.param  # type: ignore[no-any-return]


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as fake:
        fake.create("orders", ordered=True)
        yield fake


def test_a_route_is_asked_for_once_and_then_cached(broker: FakeBroker, lookup: Lookup) -> None:
    first, second = lookup([broker.address], ManualClock(), [("orders", False)] * 2, [lambda: None])
    assert first is second
    assert len(first.publish) == 4
    assert broker.codes[RequestCode.GET_ROUTEINFO_BY_TOPIC] == 1


def test_route_is_asked_again_after_thirty_seconds(broker: FakeBroker, lookup: Lookup) -> None:
    clock = ManualClock()

    def change() -> None:
        broker.create("orders", queues=6)
        clock.at += REFRESH_MILLIS

    first, second = lookup([broker.address], clock, [("orders", False)] * 2, [change])
    assert (len(first.publish), len(second.publish)) == (4, 6)


def test_a_dead_name_server_is_skipped(broker: FakeBroker, lookup: Lookup) -> None:
    (route,) = lookup([NOT_LISTENING, broker.address], ManualClock(), [("orders", False)], [])
    assert route.ordered


def test_a_known_route_stays_in_use_without_name_servers(broker: FakeBroker, lookup: Lookup) -> None:
    """Brokers keep working while all name servers are down."""
    clock = ManualClock()

    def silence() -> None:
        broker.stop()
        clock.at += REFRESH_MILLIS

    first, second = lookup([broker.address], clock, [("orders", False)] * 2, [silence])
    broker.start()
    assert second is first


def test_without_any_name_server_the_error_names_those_tried(lookup: Lookup) -> None:
    with pytest.raises(ConnectFailed, match=r"no name server answered \(tried 127\.0\.0\.1:1\)"):
        lookup([NOT_LISTENING], ManualClock(), [("orders", False)], [])


def test_unknown_topic_is_refused_with_advice(broker: FakeBroker, lookup: Lookup) -> None:
    with pytest.raises(TopicNotFound, match="lanemq topic create nope"):
        lookup([broker.address], ManualClock(), [("nope", False)], [])


def test_unknown_topic_may_get_a_provisional_route(broker: FakeBroker, lookup: Lookup) -> None:
    (route,) = lookup([broker.address], ManualClock(), [("nope", True)], [])
    assert route.provisional
    assert [queue.queue_id for queue in route.publish] == [0, 1, 2, 3]


def test_a_cached_provisional_route_does_not_answer_a_strict_request(broker: FakeBroker, lookup: Lookup) -> None:
    with pytest.raises(TopicNotFound):
        lookup([broker.address], ManualClock(), [("nope", True), ("nope", False)], [lambda: None])


def test_idle_connection_closed_by_the_server_is_replaced(broker: FakeBroker, lookup: Lookup) -> None:
    clock = ManualClock()

    def idle() -> None:
        broker.hang_up()
        clock.at += REFRESH_MILLIS

    _, second = lookup([broker.address], clock, [("orders", False)] * 2, [idle])
    assert second.ordered


def test_a_question_asked_while_the_last_one_fails_is_answered_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a producer that connects again at this moment waits for its route for ever."""
    routes = BlockingRoutes([NOT_LISTENING], ManualClock())
    usual, asked_again = routes._none_answered, []

    def fails(error: TransportError) -> None:
        usual(error)
        if not asked_again:
            asked_again.append(routes.refresh("orders"))

    monkeypatch.setattr(routes, "_none_answered", fails)
    with pytest.raises(ConnectFailed):
        routes.get("orders", timeout=60)
    (question,) = asked_again
    assert question.wait(60)
    routes.close()


def test_a_question_whose_thread_was_not_started_does_not_stop_later_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    class SignalRaised(Exception):
        """What a signal handler raises."""

    def interrupted(_: threading.Thread) -> None:
        raise SignalRaised

    with FakeBroker() as broker:
        broker.create("orders", queues=2)
        routes = BlockingRoutes([broker.address])
        with monkeypatch.context() as patch:
            patch.setattr(threading.Thread, "start", interrupted)
            with pytest.raises(SignalRaised):
                routes.get("orders", timeout=10)
        assert len(routes.get("orders", timeout=10).publish) == 2
        routes.close()
