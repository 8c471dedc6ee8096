"""A producer that has never reached a broker waits for one as long as a producer that has."""

import asyncio
import threading
from collections import deque
from typing import Any

import pytest
from tests.client.fake_broker import FakeBroker, serving
from tests.client.producer.producers import Open

from lanemq import AsyncProducer, ConnectFailed, Producer
from lanemq.model.errors import Closed, LaneError
from lanemq.net.address import Address
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Frame, decode_command

broker = serving()

WAIT = 30.0
CALLS = {
    "send": lambda producer: producer.send("orders", 1, key="k"),
    "submit": lambda producer: producer.submit("orders", 1, key="k").result(WAIT),
    "send_many": lambda producer: producer.send_many("orders", [("k", 1)])[0],
}


@pytest.mark.parametrize("call", CALLS)
def test_the_first_message_waits_for_a_broker_that_starts_later(broker: FakeBroker, kind: Open, call: str) -> None:
    receipts: list[Any] = []
    with kind(broker.address) as producer:
        with broker.stopped():
            sender = threading.Thread(target=lambda: receipts.append(CALLS[call](producer)), daemon=True)
            sender.start()
            sender.join(0.1)
            assert sender.is_alive()
        sender.join(WAIT)
    assert [receipt.offset for receipt in receipts] == [0]


def test_a_wrong_address_is_named_with_the_reason_when_the_time_is_over(kind: Open) -> None:
    why = r"within 0.1 s: where topic 'orders' is stored is not known.* cannot connect to 127\.0\.0\.1:1: .+"
    with kind("127.0.0.1:1", delivery_timeout=0.1) as producer, pytest.raises(ConnectFailed, match=why):
        producer.send("orders", 1, key="k")


def test_a_name_that_is_unknown_is_named_with_the_reason(kind: Open) -> None:
    with (
        kind("no-such-host.invalid:9876", delivery_timeout=0.1) as producer,
        pytest.raises(LaneError, match=r"within 0.1 s.*no-such-host\.invalid:9876"),
    ):
        producer.send("orders", 1, key="k")


def test_timeout_limits_the_wait_if_it_is_shorter(kind: Open) -> None:
    with kind("127.0.0.1:1", timeout=0.1) as producer, pytest.raises(ConnectFailed, match=r"within 0.1 s"):
        producer.submit("orders", 1, key="k")


def test_closing_the_producer_ends_a_call_that_waits_for_the_first_connection(kind: Open) -> None:
    errors: list[BaseException] = []
    producer = kind("127.0.0.1:1")

    def send() -> None:
        try:
            producer.send("orders", 1, key="k")
        except LaneError as error:
            errors.append(error)

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    sender.join(0.1)
    with producer:
        producer.close()
        sender.join(WAIT)
    assert [type(error) for error in errors] == [Closed]


def test_a_callback_does_not_wait_for_a_route(broker: FakeBroker) -> None:
    """It runs on the thread that settles the messages of all others."""
    failed: list[BaseException | None] = []
    settled = threading.Event()
    with Producer(str(broker.address)) as producer:
        future = producer.submit("orders", 1, key="k")
        future.result(WAIT)

        def callback(_: object) -> None:
            try:
                producer.submit("other", 1, key="k")
            except ConnectFailed as error:
                failed.append(error)
            settled.set()

        with broker.stopped():
            future = producer.submit("orders", 2, key="k")
            future.add_done_callback(callback)
            producer._routes._servers._addresses = [Address("127.0.0.1", 1)]
        future.result(WAIT)
        assert settled.wait(WAIT)
    assert len(failed) == 1


def test_messages_do_not_wait_behind_one_whose_topic_is_not_known(broker: FakeBroker) -> None:
    """The name servers are away, and the brokers are not."""
    usual = broker.received

    def received(peer: Peer, frames: deque[Frame]) -> None:
        command = decode_command(frames[0])
        if command.code == RequestCode.GET_ROUTEINFO_BY_TOPIC and command.ext.get("topic") != "orders":
            peer.abort()
        else:
            usual(peer, frames)

    async def main() -> int:
        async with AsyncProducer(str(broker.address)) as producer:
            await producer.send("orders", 1, key="k")
            broker.received = received  # type: ignore[method-assign]
            waiting = asyncio.create_task(producer.send("other", 1, key="k"))
            await asyncio.sleep(0)
            async with asyncio.timeout(WAIT):
                receipt = await producer.send("orders", 2, key="k")
            assert not waiting.done()
            waiting.cancel()
            await asyncio.gather(waiting, return_exceptions=True)
            return receipt.offset

    assert asyncio.run(main()) == 1
