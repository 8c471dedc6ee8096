"""Routes: deriving queues, so that a key has the same queue in every producer, and asking name servers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lanemq.client.routing import log, report_change
from lanemq.client.topic_route import (
    REFRESH_MILLIS,
    RETRY_MILLIS,
    UNREACHABLE_MILLIS,
    RouteCache,
    TopicRoute,
    provisional_route,
    topic_route,
)
from lanemq.model.errors import ConnectFailed, RemoteProtocolError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.address import Address
from lanemq.wire.route_bodies import BrokerData, QueueData, TopicRouteData


def broker(name: str, *, ids: tuple[int, ...] = (0,), lane: int = 0) -> BrokerData:
    return BrokerData(
        broker_name=name,
        broker_addrs={number: f"10.0.0.{number + 1}:10911" for number in ids},
        lane_features=lane,
    )


def queues(name: str, *, read: int = 2, write: int = 2, perm: int = 6) -> QueueData:
    return QueueData(broker_name=name, read_queue_nums=read, write_queue_nums=write, perm=perm)


def names(route_queues: tuple[MessageQueue, ...]) -> list[str]:
    return [f"{queue.broker}{queue.queue_id}" for queue in route_queues]


def test_publish_queues_are_sorted_by_broker_whatever_the_name_server_says() -> None:
    """The hash selector indexes into this list; Java sorts it too."""
    data = TopicRouteData(broker_datas=[broker("b"), broker("a")], queue_datas=[queues("b"), queues("a")])
    assert names(topic_route("t", data).publish) == ["a0", "a1", "b0", "b1"]


@given(st.permutations(["a", "b", "c", "d"]))
def test_the_order_of_the_reply_does_not_matter(order: list[str]) -> None:
    data = TopicRouteData(broker_datas=[broker(n) for n in order], queue_datas=[queues(n) for n in order])
    assert names(topic_route("t", data).publish) == [f"{n}{i}" for n in "abcd" for i in range(2)]


def test_queue_without_write_permission_takes_no_messages_but_is_read() -> None:
    data = TopicRouteData(broker_datas=[broker("a")], queue_datas=[queues("a", perm=4)])
    route = topic_route("t", data)
    assert route.publish == ()
    assert names(route.subscribe) == ["a0", "a1"]


def test_queue_without_read_permission_is_not_read() -> None:
    data = TopicRouteData(broker_datas=[broker("a")], queue_datas=[queues("a", perm=2)])
    route = topic_route("t", data)
    assert names(route.publish) == ["a0", "a1"]
    assert route.subscribe == ()


def test_broker_without_master_takes_no_messages() -> None:
    data = TopicRouteData(broker_datas=[broker("a", ids=(1,))], queue_datas=[queues("a"), queues("ghost")])
    route = topic_route("t", data)
    assert route.publish == ()
    assert names(route.subscribe) == ["a0", "a1", "ghost0", "ghost1"]
    with pytest.raises(ConnectFailed, match="'a' of topic 't' has no master"):
        route.master("a")


def test_order_configuration_fixes_the_list_even_while_a_broker_is_away() -> None:
    """Otherwise the loss of a broker would move keys."""
    data = TopicRouteData(broker_datas=[broker("b")], queue_datas=[queues("b", write=9)], order_topic_conf="b:2;a:1")
    route = topic_route("t", data)
    assert names(route.publish) == ["b0", "b1", "a0"]
    assert route.ordered


@pytest.mark.parametrize("conf", ["b", "b:x", ":2", "b:2;;a:1"])
def test_an_unreadable_order_configuration_is_refused(conf: str) -> None:
    with pytest.raises(RemoteProtocolError, match="order configuration"):
        topic_route("t", TopicRouteData(order_topic_conf=conf))


def test_lane_features_and_order_configuration_are_read_from_the_reply() -> None:
    data = TopicRouteData(broker_datas=[broker("a", lane=3), broker("b")], order_topic_conf="a:1")
    route = topic_route("t", TopicRouteData.decode(data.encode()))
    assert route.ordered
    assert route.is_lanemq("a")
    assert not route.is_lanemq("b")
    assert not route.is_lanemq("absent")
    assert route.master("a") == Address("10.0.0.1", 10911)


def test_stock_route_is_neither_lane_nor_ordered() -> None:
    body = (
        b'{"brokerDatas":[{"brokerAddrs":{0:"10.0.0.1:10911"},"brokerName":"a","cluster":"c"}],'
        b'"filterServerTable":{},"queueDatas":[{"brokerName":"a","perm":6,"readQueueNums":1,'
        b'"topicSynFlag":0,"writeQueueNums":1}]}'
    )
    route = topic_route("t", TopicRouteData.decode(body))
    assert (route.ordered, route.is_lanemq("a"), names(route.publish)) == (False, False, ["a0"])


def test_provisional_route_has_at_most_four_queues_per_broker() -> None:
    """RocketMQ's defaultTopicQueueNums; the broker creates no more."""
    default = TopicRouteData(
        broker_datas=[broker("a"), broker("b")],
        queue_datas=[queues("b", read=8, perm=7), queues("a", read=3, perm=7)],
    )
    route = provisional_route("new", default)
    assert names(route.publish) == ["a0", "a1", "a2", "b0", "b1", "b2", "b3"]
    assert {queue.topic for queue in route.publish} == {"new"}
    assert route.provisional


def test_route_is_fresh_for_thirty_seconds() -> None:
    book, route = RouteCache(), TopicRoute("t", (), (), {})
    assert book.put(route, now=Millis(1000))
    assert book.fresh("t", now=Millis(1000 + REFRESH_MILLIS - 1)) is route
    assert book.fresh("t", now=Millis(1000 + REFRESH_MILLIS)) is None
    assert book.known("t") is route


def test_a_provisional_route_is_refreshed_soon() -> None:
    book = RouteCache()
    book.put(TopicRoute("t", (), (), {}, provisional=True), now=Millis(0))
    assert book.fresh("t", now=Millis(RETRY_MILLIS)) is None


def test_a_route_with_a_broker_that_has_no_master_is_refreshed_soon() -> None:
    """Its replica becomes the master within a second or two, and the broker's queues wait until clients know."""
    data = TopicRouteData(broker_datas=[broker("a"), broker("b", ids=(1,))], queue_datas=[queues("a"), queues("b")])
    book, route = RouteCache(), topic_route("t", data)
    book.put(route, now=Millis(0))
    assert route.away == {"b"}
    assert book.fresh("t", now=Millis(UNREACHABLE_MILLIS)) is None


def test_a_contradicted_route_is_known_but_not_fresh() -> None:
    book, route = RouteCache(), TopicRoute("t", (), (), {})
    book.put(route, now=Millis(0))
    book.stale("t")
    assert book.fresh("t", now=Millis(1)) is None
    assert book.known("t") is route


def test_after_a_failed_refresh_the_known_route_stays_fresh_for_a_while() -> None:
    book, route = RouteCache(), TopicRoute("t", (), (), {})
    book.put(route, now=Millis(0))
    book.unanswered("t", now=Millis(REFRESH_MILLIS))
    assert book.fresh("t", now=Millis(REFRESH_MILLIS + RETRY_MILLIS - 1)) is route
    assert book.fresh("t", now=Millis(REFRESH_MILLIS + RETRY_MILLIS)) is None


def test_an_equal_route_is_not_a_change() -> None:
    book = RouteCache()
    assert book.put(TopicRoute("t", (), (), {}), now=Millis(0))
    assert not book.put(TopicRoute("t", (), (), {}), now=Millis(1))
    assert book.put(TopicRoute("t", (), (), {}, ordered=True), now=Millis(2))


def test_a_route_with_an_unreachable_broker_is_asked_for_again_after_a_second() -> None:
    cache = RouteCache()
    route = TopicRoute("t", (), (), {})
    cache.put(route, now=Millis(1_000))
    cache.unreachable("t")
    assert cache.fresh("t", now=Millis(1_999)) is route
    assert cache.fresh("t", now=Millis(2_000)) is None
    cache.unanswered("t", now=Millis(2_000))
    cache.unreachable("t")
    assert cache.fresh("t", now=Millis(4_999)) is route, "no name server answers, which needs a longer pause"
    cache.put(route, now=Millis(5_000))
    assert cache.fresh("t", now=Millis(30_000)) is route
    cache.unreachable("unknown")
    assert cache.fresh("unknown", now=Millis(0)) is None


@pytest.mark.parametrize(
    ("now", "logged"),
    [
        ([broker("a"), broker("b", ids=(1,))], "topic t: messages of keys at b wait for it, others continue"),
        ([broker("a")], "the queues of topic t changed from 4 to 2: keys may have moved to other queues"),
    ],
    ids=["its replica is there", "it is gone"],
)
def test_only_a_changed_list_of_queues_is_reported_as_a_move(
    now: list[BrokerData], logged: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A broker between two masters moves no key."""
    both = TopicRouteData(broker_datas=[broker("a"), broker("b")], queue_datas=[queues("a"), queues("b")])
    fewer = TopicRouteData(broker_datas=now, queue_datas=[queues(each.broker_name) for each in now])
    report_change(log, topic_route("t", both), topic_route("t", fewer))
    assert caplog.messages == [logged]
    caplog.clear()
    report_change(log, topic_route("t", fewer), topic_route("t", both))
    assert bool(caplog.messages) == (len(now) == 1)
