"""Apache Kafka with aiokafka: idempotent producer, `getmany` loop."""

import asyncio
from typing import Any

import msgspec
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer

from benchmarks.peers.clients.job import Job, parts
from benchmarks.peers.order import Messages

BATCH_BYTES = 1_000_000
"""Instead of 16 KB, which holds 16 messages of 1 KB; it is what confluent-kafka has by default."""
LINGER_MS = 50
"""For messages with a future each; single sends and messages at a pace do not wait."""


class async_sender:  # noqa: N801 - a context manager, used as a function
    def __init__(self, job: Job) -> None:
        self._topic, self._address = job.topic, job.address
        self._offered: list[Any] = []

    async def __aenter__(self) -> "async_sender":
        common = {"bootstrap_servers": self._address, "enable_idempotence": True, "max_batch_size": BATCH_BYTES}
        self._producer, self._bulk = AIOKafkaProducer(**common), AIOKafkaProducer(**common, linger_ms=LINGER_MS)
        await self._producer.start()
        await self._bulk.start()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._producer.stop()
        await self._bulk.stop()

    async def send(self, key: str, value: bytes) -> None:
        await self._producer.send_and_wait(self._topic, value, key.encode())

    async def pipelined(self, messages: Messages) -> None:
        send, topic, before = self._bulk.send, self._topic, list[Any]()
        for part in parts(messages):  # while one part is on its way, the next one is sent
            futures = [await send(topic, value, key.encode()) for key, value in part]
            await asyncio.gather(*before)
            before = futures
        await asyncio.gather(*before)

    async def offer(self, messages: Messages) -> None:
        for key, value in messages:
            self._offered.append(await self._producer.send(self._topic, value, key.encode()))

    async def settle(self) -> None:
        await asyncio.gather(*self._offered)


def consume(job: Job, handle: Any) -> None:
    asyncio.run(_consume(job, handle))


async def _consume(job: Job, handle: Any) -> None:
    decode = msgspec.json.decode
    consumer = AIOKafkaConsumer(
        job.topic, bootstrap_servers=job.address, group_id=job.group, auto_offset_reset="earliest"
    )
    await consumer.start()
    done = False
    while not done:
        for messages in (await consumer.getmany(timeout_ms=500, max_records=1_000)).values():
            for message in messages:
                done = handle(message.key.decode(), decode(message.value), message.offset)
            await asyncio.sleep(0)
    await consumer.stop()
