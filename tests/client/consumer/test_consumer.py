"""`Consumer` and `AsyncConsumer` with a real broker."""

import asyncio
import threading

import pytest
from tests.client.consumer.with_broker import committed, send

from lanemq.client.consumer.async_consumer import AsyncConsumer
from lanemq.client.consumer.consumer import Consumer
from lanemq.client.consumer.options import StartFrom
from lanemq.client.message import Message
from lanemq.model.errors import UsageError
from lanemq.testing.embedded import EmbeddedBroker

FIRST = {"start": StartFrom.FIRST}


def test_an_iterator_gives_a_keys_next_message_only_after_done(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=3)
    with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
        first = consumer.poll(60)
        assert first is not None
        assert consumer.poll(0.05) is None
        assert consumer.done(first)
        second = consumer.poll(60)
        assert second is not None
        assert (first.value()["n"], second.value()["n"]) == (0, 1)
        with pytest.raises(UsageError):
            consumer.done(first)


def test_an_undecided_message_is_delivered_again_to_the_next_consumer(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=2)
    with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
        assert consumer.poll(60) is not None
    with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
        again = consumer.poll(60)
        assert again is not None
        assert again.value()["n"] == 0


def test_an_iterators_retry_and_dead_decide_about_the_message(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=2)
    seen = []
    with Consumer(broker.address, group=f"g-{topic}", topics=topic) as consumer:
        for message in consumer:
            seen.append((message.value()["n"], message.attempt))
            if message.value()["n"] == 1:
                consumer.done(message)
                break
            if message.attempt == 1:
                consumer.retry(message, after=0.01)
            else:
                assert consumer.dead(message, "enough")
    assert seen == [(0, 1), (0, 2), (1, 1)]
    assert committed(broker, topic) == 2


def test_closing_ends_a_waiting_iteration(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=1, each=1)
    consumer = Consumer(broker.address, group=f"g-{topic}", topics=topic)
    consumer.start()
    seen: list[Message] = []
    ended = threading.Event()

    def iterate() -> None:
        for message in consumer:
            seen.append(message)
            consumer.done(message)
        ended.set()

    thread = threading.Thread(target=iterate)
    thread.start()
    while not seen:
        ended.wait(0.01)
    consumer.close()
    assert ended.wait(60)
    thread.join()


def test_the_async_iterator_has_the_same_methods(broker: EmbeddedBroker, topic: str) -> None:
    send(broker, topic, keys=2, each=5)

    async def main() -> list[tuple[str | None, int]]:
        seen = []
        async with AsyncConsumer(broker.address, group=f"g-{topic}", topics=[topic]) as consumer:
            async for message in consumer:
                seen.append((message.key, message.value()["n"]))
                if message.attempt == 1 and message.value()["n"] == 2:
                    seen.pop()
                    await consumer.retry(message, after=0.01)
                    continue
                await consumer.done(message)
                if len(seen) == 10:
                    break
            assert consumer.snapshot().group == f"g-{topic}"
        return seen

    seen = asyncio.run(main())
    for key in ("k0", "k1"):
        assert [n for k, n in seen if k == key] == list(range(5))
    assert committed(broker, topic) == 10
