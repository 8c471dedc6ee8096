"""NATS JetStream with nats-py: one stream in a file, the key in the subject, one durable pull consumer.

A pull consumer that several members share keeps order only with one message outstanding (`max_ack_pending=1`): the
take-over is measured like that. One reader by itself fetches 1,000 at a time and
acknowledges the last (`AckPolicy.ALL`).
"""

import asyncio
from typing import Any

import msgspec
import nats
from nats.errors import TimeoutError as NothingThere
from nats.js.api import AckPolicy, ConsumerConfig, StorageType, StreamConfig

from benchmarks.peers.clients.job import Job, parts
from benchmarks.peers.order import Messages

BATCH = 1_000


def create(job: Job) -> None:
    asyncio.run(_create(job))


async def _create(job: Job) -> None:
    server = await nats.connect(job.address)
    stream = StreamConfig(name=job.topic, subjects=[f"{job.topic}.*"], storage=StorageType.FILE)
    await server.jetstream().add_stream(stream)
    await server.close()


class async_sender:  # noqa: N801 - a context manager, used as a function
    def __init__(self, job: Job) -> None:
        self._topic, self._address = job.topic, job.address

    async def __aenter__(self) -> "async_sender":
        self._server = await nats.connect(self._address)
        self._stream = self._server.jetstream()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._server.close()

    async def send(self, key: str, value: bytes) -> None:
        await self._stream.publish(f"{self._topic}.{key}", value)

    async def pipelined(self, messages: Messages) -> None:
        publish, topic, before = self._stream.publish_async, self._topic, list[Any]()
        for part in parts(messages):
            futures = [await publish(f"{topic}.{key}", value) for key, value in part]
            await asyncio.gather(*before)
            before = futures
        await asyncio.gather(*before)

    async def offer(self, messages: Messages) -> None:
        for key, value in messages:
            await self._stream.publish_async(f"{self._topic}.{key}", value)

    async def settle(self) -> None:
        await self._stream.publish_async_completed()


def consume(job: Job, handle: Any) -> None:
    asyncio.run(_consume(job, handle))


async def _consume(job: Job, handle: Any) -> None:
    decode, shared = msgspec.json.decode, job.text("do") == "member"
    server = await nats.connect(job.address)
    config = ConsumerConfig(ack_policy=AckPolicy.EXPLICIT, max_ack_pending=1) if shared else None
    config = config or ConsumerConfig(ack_policy=AckPolicy.ALL, max_ack_pending=10 * BATCH)
    durable = await server.jetstream().pull_subscribe(f"{job.topic}.*", durable=job.group, config=config)
    done = False
    while not done:
        try:
            messages = await durable.fetch(1 if shared else BATCH, timeout=0.5)
        except NothingThere:
            continue
        if not messages:
            continue
        for message in messages:
            key = message.subject.rpartition(".")[2]
            done = handle(key, decode(message.data), message.metadata.sequence.stream)
        await messages[-1].ack()
    await server.close()
