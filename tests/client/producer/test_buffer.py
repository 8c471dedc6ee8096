"""A full buffer makes senders wait, and a small one accepts every message in the end."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from tests.client.fake_broker import FakeBroker, Fault, serving
from tests.client.producer.producers import Open

from lanemq.client.admin.admin import Admin
from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.batches import Packer
from lanemq.client.producer.options import ProducerOptions
from lanemq.client.producer.producer import Producer
from lanemq.client.producer.waiters import ThreadBatchWaiter
from lanemq.model.errors import LaneFrozen, RequestTimedOut
from lanemq.testing.embedded import EmbeddedBroker

broker = serving()


def test_full_buffer_makes_senders_wait_and_loses_nothing(broker: FakeBroker, kind: Open) -> None:
    settings = {"buffer_bytes": 20_000, "max_body_bytes": 10_000}
    with kind(broker.address, **settings) as producer:
        pending = [producer.submit("orders", str(number).encode() * 100, key="k") for number in range(500)]
        assert [each.result(10).offset for each in pending] == list(range(500))


class Counted(Producer):
    """Counts the messages that do not use the inbox."""

    accepted = 0

    def _accept(self, *given: Any, **named: Any) -> None:
        self.accepted += 1
        super()._accept(*given, **named)


class CountedOnALoop(AsyncProducer):
    accepted = 0

    async def _accept(self, *given: Any, **named: Any) -> None:
        self.accepted += 1
        await super()._accept(*given, **named)


@pytest.fixture
def stored_at() -> Iterator[str]:
    """A real broker with the topic `orders`."""
    with EmbeddedBroker() as real:
        with Admin(real.address) as admin:
            admin.create_topic("orders", 4, ordered=True)
        yield real.address


def test_messages_use_the_inbox_while_the_default_buffer_is_full(stored_at: str) -> None:
    with Counted(stored_at, codec="bytes") as producer:
        producer.send("orders", b"", key="first")  # until the producer is connected, messages cannot use the inbox
        for number in range(25_000):
            producer.submit("orders", b"x" * 4000, key=str(number % 9))
    assert producer.accepted < 2_500, "with a buffer that is filled to its end it is more than 15,000"


def test_messages_use_the_inbox_while_the_default_buffer_is_full_on_a_loop(stored_at: str) -> None:
    async def submit_all() -> int:
        async with CountedOnALoop(stored_at, codec="bytes") as producer:
            await producer.send("orders", b"", key="first")
            for number in range(25_000):
                await producer.submit("orders", b"x" * 4000, key=str(number % 9))
        return producer.accepted

    assert asyncio.run(submit_all()) < 2_500


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
