"""A broker that comes back at another address, with default settings."""

import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from tests.client.consumer.with_broker import Inbox

from lanemq.broker.config import BrokerOptions
from lanemq.client.consumer.app import App
from lanemq.client.consumer.options import Sharing, StartFrom
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.client.routing import AsyncRoutes
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

FEW_SECONDS = 8.0
"""Enough for one unanswered question to the name servers (3 s) and a busy machine; far below a refresh (30 s)."""


class MovingBroker:
    """A broker that uses one of two addresses."""

    def __init__(self, data: Path) -> None:
        self._options = BrokerOptions(data, listen=Address("127.0.0.1", 0))
        self._broker = EmbeddedBroker(self._options).start()
        with EmbeddedBroker() as other:  # an address that is free from now on
            self._elsewhere = other.options.listen
        self.addresses = f"{self._broker.address};{self._elsewhere}"

    def move(self) -> None:
        self._broker.stop()
        self._broker = EmbeddedBroker(replace(self._options, listen=self._elsewhere)).start()

    def stop(self) -> None:
        self._broker.stop()


@pytest.fixture
def broker(tmp_path: Path) -> Iterator[MovingBroker]:
    broker = MovingBroker(tmp_path / "data")
    yield broker
    broker.stop()


def seconds_to_find(broker: MovingBroker, sharing: Sharing = Sharing.CLUSTERING) -> float:
    """From the move until a consumer gets what a producer sends."""
    inbox, app = Inbox(), App(broker.addresses, group="g", sharing=sharing, start=StartFrom.FIRST)

    @app.ordered("T")
    def on_event(event: int, message: Message) -> None:
        inbox.add(event)

    with Producer(broker.addresses, create="T") as producer:
        producer.send("T", 1, key="k")
        with app:
            inbox.wait(1)
            broker.move()
            moved_at = time.monotonic()
            producer.send("T", 2, key="k")
            inbox.wait(2)
            return time.monotonic() - moved_at


@pytest.mark.parametrize("sharing", Sharing)
def test_producers_and_consumers_find_a_moved_broker_in_a_few_seconds(broker: MovingBroker, sharing: Sharing) -> None:
    assert seconds_to_find(broker, sharing) < FEW_SECONDS


@pytest.mark.extended
def test_a_consumer_that_keeps_its_route_would_take_half_a_minute(
    broker: MovingBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: a broker that cannot be reached does not make the route old."""
    monkeypatch.setattr(AsyncRoutes, "unreachable", lambda self, topic: None)
    assert seconds_to_find(broker) > FEW_SECONDS
