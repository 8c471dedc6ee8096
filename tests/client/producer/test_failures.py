"""What senders get when a message cannot be stored, and that nothing of its key is stored behind it."""

from collections.abc import Callable, Iterator

import pytest
from tests.client.fake_broker import FakeBroker, Fault, serving
from tests.client.producer.producers import Open, sending

from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import Receipt
from lanemq.model.errors import (
    BrokerRefused,
    LaneFrozen,
    MessageRefused,
    RequestTimedOut,
    TopicNotFound,
)
from lanemq.wire.headers import SendHeader

broker = serving()


def once(fault: Fault, *numbers: int) -> Callable[[SendHeader, int], Fault | None]:
    return lambda header, number: fault if number in numbers else None


def texts(broker: FakeBroker, topic: str, receipt: Receipt) -> list[str]:
    return broker.stored(topic, receipt.queue.queue_id)


def test_a_refused_submit_freezes_its_key_until_resume(broker: FakeBroker, kind: Open) -> None:
    broker.faults = lambda header, number: Fault.REFUSE if number == 1 else None
    with sending(window=1, max_count=1), kind(broker.address) as producer:
        pending = [producer.submit("orders", number, key="k") for number in range(3)]
        with pytest.raises(MessageRefused):
            pending[0].result(30)
        for each in pending[1:]:
            with pytest.raises(LaneFrozen, match="earlier message"):
                each.result(30)
        with pytest.raises(LaneFrozen, match=r"then call resume\('orders', key=...\)"):
            producer.send("orders", 3, key="k")
        producer.send("orders", 4, key="order-1")  # another queue is not concerned
        producer.resume("orders", key="k")
        receipt = producer.send("orders", 5, key="k")
    assert texts(broker, "orders", receipt) == ["5"]


def test_a_refused_send_freezes_nothing(broker: FakeBroker, kind: Open) -> None:
    """Its caller knows of the failure before it can send anything else."""
    broker.faults = once(Fault.REFUSE, 1)
    with kind(broker.address) as producer:
        with pytest.raises(MessageRefused):
            producer.send("orders", 1, key="k")
        receipt = producer.send("orders", 2, key="k")
    assert texts(broker, "orders", receipt) == ["2"]


def test_a_refused_message_without_a_key_freezes_nothing(broker: FakeBroker, kind: Open) -> None:
    broker.faults = once(Fault.REFUSE, 1)
    broker.create("metrics", queues=1)
    with kind(broker.address) as producer:
        first = producer.submit("metrics", 1)
        with pytest.raises(BrokerRefused):
            first.result(30)
        producer.submit("metrics", 2).result(30)


def test_a_send_does_not_recreate_a_deleted_topic(broker: FakeBroker, kind: Open) -> None:
    """The topic would come back with other queues and unordered; the send fails instead."""
    with kind(broker.address) as producer:
        producer.send("orders", 1, key="k")
        del broker.topics["orders"]
        with pytest.raises(TopicNotFound):
            producer.send("orders", 2, key="k")
        assert "orders" not in broker.topics
        broker.create("orders", queues=1, ordered=True)
        assert producer.send("orders", 3, key="k").queue.queue_id == 0  # the route was asked for again


def test_a_contradicted_route_is_not_used_by_whoever_learns_of_it(broker: FakeBroker) -> None:
    """A program may create the topic again and send, as soon as its future has failed."""
    usable = []
    with Producer(str(broker.address)) as producer:
        producer.send("orders", 1, key="k")
        del broker.topics["orders"]
        future = producer.submit("orders", 2, key="k")
        future.add_done_callback(lambda _: usable.append(producer._routes.usable("orders")))
        with pytest.raises(TopicNotFound):
            future.result(10)
    assert usable == [None]


def test_unknown_topic_is_created_by_its_first_messages_without_a_key(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address) as producer:
        producer.send("fresh", 1)
        producer.send_many("fresh", [(None, 2)])
    assert {header.default_topic for header in broker.requests} == {"TBW102"}


@pytest.mark.parametrize("bad", [0, 2500])
def test_send_many_stores_nothing_of_a_key_behind_a_failure_and_stops_reading(
    broker: FakeBroker, kind: Open, bad: int
) -> None:
    """The caller learns of the failure only when the call ends: messages read until then must not overtake it."""
    read = []

    def source() -> Iterator[tuple[str, int]]:
        for value in range(50_000):
            read.append(value)
            yield "k", value

    broker.refuses = lambda body: body == str(bad).encode()
    with kind(broker.address, buffer_bytes=1_000_000, max_body_bytes=10_000) as producer:
        with pytest.raises(MessageRefused):
            producer.send_many("orders", source())
        stored = [message.text for message in broker.everything("orders")]
        assert stored == [str(value) for value in range(bad)]
        assert len(read) < 50_000
        receipts = producer.send_many("orders", [("k", b"later")])
    assert texts(broker, "orders", receipts[0])[-1] == "later"


def test_send_many_sends_nothing_of_a_run_with_a_frozen_key(broker: FakeBroker, kind: Open) -> None:
    broker.faults = once(Fault.REFUSE, 1)
    with kind(broker.address) as producer:
        with pytest.raises(MessageRefused):
            producer.submit("orders", 1, key="k").result(30)
        with pytest.raises(LaneFrozen):
            producer.send_many("orders", [("order-1", 2), ("k", 3)])
        producer.flush()
        assert broker.everything("orders") == []
        with pytest.raises(LaneFrozen):
            producer.send("orders", 4, key="k")


@pytest.mark.slow
def test_unanswered_send_ends_with_a_time_out(broker: FakeBroker, kind: Open) -> None:
    broker.faults = lambda header, number: Fault.LOSE_REQUEST
    with kind(broker.address, delivery_timeout=2.0) as producer:
        with pytest.raises(RequestTimedOut, match="may be stored or not"):
            producer.send("orders", 1, key="k")
        broker.faults = once(Fault.BUSY)
        producer.send("orders", 2, key="k")


@pytest.mark.slow
def test_a_time_out_names_the_last_problem(broker: FakeBroker, kind: Open) -> None:
    with kind(broker.address, delivery_timeout=2.0) as producer:
        producer.send("orders", 1, key="k")
        broker.stop()
        with pytest.raises(RequestTimedOut, match="last problem was"):
            producer.send("orders", 2, key="k")
    broker.start()
