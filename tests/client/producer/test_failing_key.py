"""A message that only the broker finds illegal, among a thousand keys, over a real socket."""

import json
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, TypeAlias

import pytest
from tests.client.fake_broker import FakeBroker, Fault
from tests.client.producer.producers import Blocking, OnALoop, sending

from lanemq.broker.config import BrokerOptions
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.model.errors import LaneFrozen, MessageRefused, RequestTimedOut
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

KEYS = 1000
STEPS = 3
BAD = "k500"
LARGE = "x" * 2000

Kind: TypeAlias = Callable[..., AbstractContextManager[Any]]


@pytest.fixture
def narrow(tmp_path: Path) -> Iterator[EmbeddedBroker]:
    """A broker with a limit of a kilobyte per body, which its clients do not know."""
    options = BrokerOptions(tmp_path, listen=Address("127.0.0.1", 0), max_body_bytes=1024, durable=False)
    with EmbeddedBroker(options) as running:
        with Admin(running.address) as admin:
            admin.create_topic("orders", 2)
        yield running


def stored(broker: EmbeddedBroker) -> dict[str | None, list[str]]:
    """The stored values of each key, in order."""
    found: dict[str | None, list[str]] = defaultdict(list)
    with TopicReader(broker.address, "orders") as reader:
        for queue in reader.queues:
            for message in reader.read(queue, *reader.bounds(queue)):
                found[message.key].append(json.loads(message.body))
    return found


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Blocking, OnALoop])
def test_one_illegal_message_among_a_thousand_keys_freezes_only_its_key(narrow: EmbeddedBroker, kind: Kind) -> None:
    steps = [f"step {number}" for number in range(STEPS)]
    with kind(narrow.address) as producer:
        pending = {}
        for number, step in enumerate(steps):
            for key in [f"k{key}" for key in range(KEYS)]:
                value = LARGE if key == BAD and number == 1 else step
                pending[key, number] = producer.submit("orders", value, key=key)
        with pytest.raises(MessageRefused, match="the limit is 1024"):
            pending[BAD, 1].result(30)
        with pytest.raises(LaneFrozen, match=f"earlier message of key '{BAD}'"):
            pending[BAD, 2].result(30)
        for place, future in pending.items():
            if place not in ((BAD, 1), (BAD, 2)):
                future.result(30)
        (frozen,) = producer.frozen_keys("orders")
        assert (frozen.topic, frozen.key) == ("orders", BAD)
        assert isinstance(frozen.why, MessageRefused)
        with pytest.raises(LaneFrozen, match=rf"resume\('orders', key='{BAD}'\)"):
            producer.send("orders", "too early", key=BAD)
        producer.resume("orders", key=BAD)
        producer.send("orders", "again", key=BAD)
        assert producer.frozen_keys() == []
    log = stored(narrow)
    assert len(log) == KEYS
    assert log.pop(BAD) == ["step 0", "again"]
    assert [key for key, values in log.items() if values != steps] == []


@pytest.mark.parametrize("kind", [Blocking, OnALoop])
def test_a_dropped_key_accepts_the_next_message(narrow: EmbeddedBroker, kind: Kind) -> None:
    with kind(narrow.address) as producer:
        with pytest.raises(MessageRefused):
            producer.submit("orders", LARGE, key=BAD).result(30)
        assert producer.drop("orders", BAD) == 0, "messages behind it had failed with it"
        producer.submit("orders", "next", key=BAD).result(30)
    assert stored(narrow) == {BAD: ["next"]}


def test_send_many_stores_the_other_keys_and_raises_for_the_illegal_message(narrow: EmbeddedBroker) -> None:
    with Blocking(narrow.address) as producer:
        messages = [(f"k{number % 50}", LARGE if number == 120 else str(number)) for number in range(400)]
        with pytest.raises(MessageRefused):
            producer.send_many("orders", messages)
        assert producer.frozen_keys() == [], "its caller knows of the failure"
        producer.send_many("orders", [("k20", "later")])
    log = stored(narrow)
    assert log.pop("k20") == ["20", "70", "later"]
    assert all(values == [value for key, value in messages if key == name] for name, values in log.items())


@pytest.mark.parametrize("kind", [Blocking, OnALoop])
def test_one_illegal_message_costs_few_requests(kind: Kind) -> None:
    with FakeBroker() as broker:
        broker.create("orders", queues=1)
        broker.refuses = lambda body: body == b"500"
        with kind(broker.address) as producer, pytest.raises(MessageRefused):
            producer.send_many("orders", [(f"k{number}", number) for number in range(KEYS)])
        assert len(broker.stored("orders", 0)) == KEYS - 1
        assert len(broker.requests) < 60


@pytest.mark.parametrize("kind", [Blocking, OnALoop])
def test_an_illegal_message_at_a_stock_broker_freezes_only_its_key(kind: Kind) -> None:
    """It checks no sequences: only the window of one request keeps the order."""
    with FakeBroker(lane=False) as stock:
        stock.create("orders", queues=1)
        stock.refuses = lambda body: body == b"150"
        with sending(max_count=40), kind(stock.address) as producer:
            pending = [producer.submit("orders", number, key=f"k{number % 30}") for number in range(300)]
            producer.flush()
            failed = [number for number, future in enumerate(pending) if future.exception(30) is not None]
            assert failed == [150, 180, 210, 240, 270]
            assert [frozen.key for frozen in producer.frozen_keys()] == ["k0"]
        assert [int(text) for text in stock.stored("orders", 0)] == [n for n in range(300) if n not in failed]


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Blocking, OnALoop])
def test_a_time_out_at_a_stock_broker_freezes_only_the_key_in_flight(kind: Kind) -> None:
    with FakeBroker(lane=False) as stock:
        stock.create("orders", queues=1)
        with sending(max_count=1), kind(stock.address, delivery_timeout=2.0) as producer:
            producer.send("orders", 0, key="other")
            stock.faults = lambda header, number: Fault.LOSE_REPLY if number == 2 else None
            late = producer.submit("orders", 1, key="late")
            with pytest.raises(RequestTimedOut, match="may be stored or not"):
                late.result(30)
            producer.submit("orders", 2, key="other").result(30)
            with pytest.raises(LaneFrozen):
                producer.submit("orders", 3, key="late").result(30)
        assert stock.stored("orders", 0) == ["0", "1", "2"]
