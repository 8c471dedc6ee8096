"""Which messages of clients are the same, and what is remembered of them."""

import asyncio
import gc
import weakref
from types import SimpleNamespace
from typing import Any

from lanemq.clock import SystemClock
from lanemq.grpc_front.sending import MessageSender
from lanemq.model.errors import BrokerBusy, LaneError
from lanemq.wire.grpc import messages as m
from lanemq.wire.grpc.messages import Code


class SomeProducer:
    def __init__(self) -> None:
        self.stored: list[bytes] = []
        self.error: LaneError | None = None

    async def send(self, topic: str, body: bytes, **_: Any) -> Any:
        if self.error is not None:
            raise self.error
        self.stored.append(body)
        return SimpleNamespace(offset=len(self.stored) - 1)


def message(body: bytes) -> m.WireMessage:
    return m.WireMessage(m.Resource(name="orders"), {}, m.SystemProperties(message_id="SAME", message_group="k"), body)


def made() -> tuple[SomeProducer, MessageSender]:
    producer: Any = SomeProducer()
    return producer, MessageSender(producer, SystemClock())


def test_an_id_is_that_of_its_client() -> None:
    async def play() -> None:
        producer, sender = made()
        for client, body in (("a", b"first"), ("a", b"first"), ("b", b"other")):
            await sender.send(client, [message(body)])
        assert producer.stored == [b"first", b"other"]

    asyncio.run(play())


def test_a_message_that_was_not_stored_is_forgotten_and_may_be_sent_again() -> None:
    async def play() -> None:
        producer, sender = made()
        producer.error = BrokerBusy(2, "busy")
        answer = await sender.send("a", [message(b"0")])
        assert answer.entries[0].status is not None
        assert answer.entries[0].status.code == Code.TOO_MANY_REQUESTS
        error, producer.error = weakref.ref(producer.error), None
        await asyncio.sleep(0)  # the loop refers to what it has just done
        gc.collect()
        assert error() is None, "the error refers to the body, and would keep it for minutes"
        await sender.send("a", [message(b"0")])
        assert producer.stored == [b"0"]

    asyncio.run(play())
