"""A full buffer makes senders wait, and a small one accepts every message in the end."""

import pytest
from tests.client.fake_broker import FakeBroker, Fault, serving
from tests.client.producer.producers import Open

from lanemq.client.producer.batches import Packer
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.waiters import ThreadBatchWaiter
from lanemq.model.errors import LaneFrozen, RequestTimedOut

broker = serving()


def test_full_buffer_makes_senders_wait_and_loses_nothing(broker: FakeBroker, kind: Open) -> None:
    settings = {"buffer_bytes": 20_000, "max_body_bytes": 10_000}
    with kind(broker.address, **settings) as producer:
        pending = [producer.submit("orders", str(number).encode() * 100, key="k") for number in range(500)]
        assert [each.result(10).offset for each in pending] == list(range(500))


def test_buffer_that_stays_full_ends_with_a_time_out(broker: FakeBroker, kind: Open) -> None:
    broker.faults = lambda header, number: Fault.LOSE_REQUEST
    settings = {"buffer_bytes": 4000, "max_body_bytes": 3000, "timeout": 0.5, "delivery_timeout": 0.5}
    with kind(broker.address, **settings) as producer:
        first = producer.submit("orders", b"x" * 3000, key="k")
        with pytest.raises((RequestTimedOut, LaneFrozen)):
            producer.submit("orders", b"x" * 3000, key="k").result(30)
        with pytest.raises(RequestTimedOut):
            first.result(30)


def test_a_run_that_weighs_more_than_the_buffer_is_sent(broker: FakeBroker, kind: Open) -> None:
    """Overhead included it is larger than the whole buffer, and must not wait indefinitely."""
    with kind(broker.address, buffer_bytes=4000, max_body_bytes=3000, timeout=5.0) as producer:
        receipts = producer.send_many("orders", [("k", number) for number in range(1200)])
    assert [each.offset for each in receipts] == list(range(1200))


def test_a_body_as_large_as_the_buffer_is_sent(broker: FakeBroker, kind: Open) -> None:
    body = b"x" * 4000
    with kind(broker.address, codec="bytes", buffer_bytes=4000, max_body_bytes=4000, timeout=5.0) as producer:
        producer.send("orders", body, key="k")
        producer.send_many("orders", [("k", body)] * 3)
        assert [producer.submit("orders", body, key="k").result(30).offset for _ in range(2)] == [4, 5]


def test_a_run_takes_at_most_a_quarter_of_the_buffer() -> None:
    packer = Packer(ProducerOptions(codec="bytes", buffer_bytes=4000, max_body_bytes=4000))
    chunks = packer.chunks([("k", b"x" * 400)] * 6 + [("k", b"y" * 4000)], ThreadBatchWaiter())
    assert [len(chunk) for chunk in chunks] == [2, 2, 2, 1]
