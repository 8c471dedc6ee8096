"""A broker that stops reading does not stop the deadlines of the blocking producer.

Its machine keeps the connection and accepts new ones, so a sender notices only that its bytes are not taken.
"""

import os
import threading
from collections.abc import Iterator

import pytest
from tests.client.consumer.with_broker import wait_for
from tests.client.fake_broker import FakeBroker
from tests.client.producer.producers import Blocking, sending

from lanemq.model.errors import RequestTimedOut
from lanemq.net.calling.blocking import DuplexConnection

QUEUES = 16
BODY = os.urandom(900_000)
"""`QUEUES` of them are more than the buffers of a connection hold."""


@pytest.fixture(params=[True, False], ids=["lane", "stock"])
def broker(request: pytest.FixtureRequest) -> Iterator[FakeBroker]:
    with FakeBroker(lane=request.param) as fake:
        fake.create("orders", queues=QUEUES)
        yield fake


def opened(broker: FakeBroker, **settings: float) -> Blocking:
    producer = Blocking(broker.address, codec="bytes", **settings)
    producer.send("orders", b"warm", queue=0)
    return producer


def test_the_maintenance_thread_keeps_deadlines_although_it_has_something_to_send(
    broker: FakeBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The maintenance thread sends heartbeats, and what was waiting for a connection. It leaves writing to another
    thread."""
    writers, flush = set[str](), DuplexConnection.flush

    def noted(link: DuplexConnection) -> None:
        writers.add(threading.current_thread().name)
        flush(link)

    monkeypatch.setattr(DuplexConnection, "flush", noted)
    with (
        sending(answer_timeout=500),
        opened(broker, timeout=1.0, delivery_timeout=1.0) as producer,
        broker.asleep(),
    ):
        producer.producer._next_heartbeat = 0  # a heartbeat is due
        producer.producer._wake_maintenance()
        wait_for(lambda: f"lanemq-writer-{broker.address}" in writers)
        futures = [producer.submit("orders", BODY, queue=queue) for queue in range(QUEUES)]
        for future in futures:
            with pytest.raises(RequestTimedOut):
                future.result(10)
        assert "lanemq-producer" not in writers


@pytest.mark.slow
@pytest.mark.parametrize("answer_timeout", [100, 60_000])
def test_a_caller_does_not_block_in_its_write(broker: FakeBroker, answer_timeout: int) -> None:
    """Neither for longer than an answer may take, nor for longer than `timeout`."""
    with (
        sending(answer_timeout=answer_timeout),
        opened(broker, timeout=1.0, delivery_timeout=1.0) as producer,
        broker.asleep(),
    ):
        futures = [producer.submit("orders", BODY, queue=queue) for queue in range(QUEUES)]
        for future in futures:
            with pytest.raises(RequestTimedOut):
                future.result(10)


def test_a_broker_that_recovers_gets_the_messages(broker: FakeBroker) -> None:
    with sending(answer_timeout=100), opened(broker, timeout=20.0, delivery_timeout=20.0) as producer:
        with broker.asleep():
            futures = [producer.submit("orders", BODY, queue=queue) for queue in range(QUEUES)]
        assert [future.result(20).queue.queue_id for future in futures] == list(range(QUEUES))
