"""Producers on a cluster whose brokers come and go: a key never moves, and other keys continue."""

from collections.abc import Iterator
from typing import Any

import pytest
from tests.client.fake_cluster import FakeCluster
from tests.client.producer.producers import Blocking, OnALoop, Open, sending

from lanemq.client import routing
from lanemq.core.sending.layout import KeyQueues, parse_layout
from lanemq.core.sending.sharding import by_hash, pick_queue
from lanemq.model.errors import MissingKey, OrderError
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command

FULL = "broker-a:4;broker-b:4"
KEYS = [f"key-{number}" for number in range(40)]
HOME = {key: pick_queue(key, parse_layout("orders", FULL) or ()) for key in KEYS}
AT_A = [key for key in KEYS if HOME[key].broker == "broker-a"]
AT_B = [key for key in KEYS if HOME[key].broker == "broker-b"]


@pytest.fixture
def cluster() -> Iterator[FakeCluster]:
    with FakeCluster() as fake:
        yield fake


def moved(cluster: FakeCluster) -> list[str]:
    """Keys that are in more than one queue, or in another than their own."""
    return [key for key, queues in cluster.queues_of_keys("orders").items() if queues != {HOME[key]}]


def kill_one_of_two(cluster: FakeCluster, kind: Open) -> None:
    """Sends all keys before, during and after an outage of broker-a."""
    with kind(cluster.address) as producer:
        for key in KEYS:
            producer.send("orders", 1, key=key)
        cluster.kill("broker-a")
        waiting = [producer.submit("orders", 2, key=key) for key in AT_A]
        for key in AT_B:
            producer.send("orders", 2, key=key)
        assert not any(future.done() for future in waiting)
        cluster.restart("broker-a")
        for future in waiting:
            future.result(60)
        for key in KEYS:
            producer.send("orders", 3, key=key)


@pytest.mark.parametrize("layout", [FULL, None])
def test_keys_of_a_broker_that_is_away_wait_and_others_go_on(
    cluster: FakeCluster, kind: Open, layout: str | None
) -> None:
    """With a layout, and with the first route, which had all brokers."""
    cluster.create("orders", layout=layout)
    kill_one_of_two(cluster, kind)
    assert moved(cluster) == []
    sent = [stored.text for messages in cluster.stored("orders").values() for stored in messages]
    assert sorted(sent) == sorted(["1", "2", "3"] * len(KEYS))


def test_without_the_guard_keys_move(cluster: FakeCluster, kind: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    """The negative control: producers that follow every route, as RocketMQ's do."""

    def follow(known: object, layout: object, writable: Any, *, may_move: bool) -> KeyQueues:
        return KeyQueues(writable, from_layout=False)

    monkeypatch.setattr(routing, "key_queues", follow)
    cluster.create("orders", layout=FULL)
    with kind(cluster.address) as producer:
        for key in KEYS:
            producer.send("orders", 1, key=key)
        cluster.kill("broker-a")
        producer.submit("orders", 2, key=AT_A[0])
        while not moved(cluster):
            for key in KEYS:
                producer.submit("orders", 2, key=key)
            producer.send("orders", 2, key=AT_B[0])
        cluster.restart("broker-a")


def test_a_producer_that_starts_while_a_broker_is_away_uses_the_full_layout(cluster: FakeCluster, kind: Open) -> None:
    cluster.create("orders", layout=FULL)
    cluster.kill("broker-a")
    with kind(cluster.address) as producer:
        waiting = [producer.submit("orders", 1, key=key) for key in AT_A]
        for key in AT_B:
            producer.send("orders", 1, key=key)
        assert not any(future.done() for future in waiting)
        cluster.restart("broker-a")
        for future in waiting:
            future.result(60)
    assert moved(cluster) == []


def test_a_message_with_a_key_is_refused_after_the_queues_changed(cluster: FakeCluster, kind: Open) -> None:
    """Without a layout, on a cluster that got another broker."""
    cluster.create("orders", on=["broker-a"])
    with kind(cluster.address) as producer:
        producer.send("orders", 1, key="a")
        cluster.create("orders", on=["broker-b"])
        see_the_change(producer)
        for refused in (
            lambda: producer.send("orders", 2, key="a"),
            lambda: producer.submit("orders", 2, key="a"),
            lambda: producer.send_many("orders", [("a", 2)]),
            lambda: producer.send("orders", 2, selector=by_hash, arg="a"),
        ):
            with pytest.raises(OrderError, match="on_queue_change='continue'"):
                refused()
        assert producer.send("orders", 2).queue.broker in cluster.brokers
        assert producer.frozen_keys() == []


def test_keys_follow_the_queues_if_the_program_allows_it(cluster: FakeCluster, kind: Open) -> None:
    cluster.create("orders", on=["broker-a"])
    with kind(cluster.address, on_queue_change="continue") as producer:
        producer.send("orders", 1, key=AT_B[0])
        cluster.create("orders", on=["broker-b"])
        see_the_change(producer)
        assert producer.send("orders", 2, key=AT_B[0]).queue == HOME[AT_B[0]]


def test_messages_without_a_key_go_to_brokers_that_are_up(cluster: FakeCluster, kind: Open) -> None:
    cluster.create("orders")
    with kind(cluster.address) as producer:
        producer.send("orders", 1, key=AT_A[0])
        cluster.kill("broker-a")
        see_the_change(producer)
        assert {producer.send("orders", 2).queue.broker for _ in range(8)} == {"broker-b"}
        cluster.restart("broker-a")


def test_a_topic_with_a_layout_is_ordered(cluster: FakeCluster, kind: Open) -> None:
    cluster.create("orders", layout=FULL)
    with kind(cluster.address) as producer, pytest.raises(MissingKey):
        producer.send("orders", 1)


def test_a_message_that_a_frozen_master_does_not_answer_goes_to_the_new_one(cluster: FakeCluster, kind: Open) -> None:
    """The connection to a frozen master stays open; that another replica is the master shows in the route only."""
    cluster.create("orders", layout=FULL)
    with sending(answer_timeout=200), kind(cluster.address) as producer:
        producer.send("orders", 1, key=AT_A[0])
        with cluster.brokers["broker-a"].asleep():
            waiting = producer.submit("orders", 2, key=AT_A[0])
            cluster.promote("broker-a")
            waiting.result(60)
        producer.send("orders", 3, key=AT_A[0])
    assert moved(cluster) == []


@pytest.mark.parametrize("code", [ResponseCode.SERVICE_NOT_AVAILABLE, ResponseCode.SYSTEM_ERROR])
def test_a_message_waits_for_a_broker_that_is_not_yet_the_master(
    cluster: FakeCluster, kind: Open, code: ResponseCode
) -> None:
    """A replica refuses messages until it is the master, and a master until enough replicas are in sync."""
    cluster.create("orders", layout=FULL)
    remarks = {
        ResponseCode.SERVICE_NOT_AVAILABLE: "service not available now. It may be caused by one of the following",
        ResponseCode.SYSTEM_ERROR: "in-sync replicas not enough",
    }
    broker = cluster.brokers["broker-a"]
    refusals = iter(range(3))

    def refuse(command: Command) -> tuple[int, dict[str, str], bytes]:
        if next(refusals, None) is None:
            del broker.answers[RequestCode.SEND_MESSAGE_V2]
        return code, {}, b""

    broker.remarks[code] = remarks[code]
    broker.answers[RequestCode.SEND_MESSAGE_V2] = refuse
    with kind(cluster.address) as producer:
        producer.send("orders", 1, key=AT_A[0])
        assert producer.frozen_keys() == []


def see_the_change(producer: Blocking | OnALoop) -> None:
    """The next call asks for the route again, as after a broker that refused a message."""
    producer.producer._routes.stale("orders")
    producer.producer._inbox.forget("orders")
