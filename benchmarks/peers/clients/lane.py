"""LaneMQ's own client: `Producer`, `AsyncProducer`, `App`."""

import asyncio
import threading
from collections import deque
from typing import Any

from benchmarks.peers.clients.job import Job, parts
from benchmarks.peers.order import Messages
from lanemq import Admin, App, AsyncProducer, Message, Producer
from lanemq.client.consumer.options import StartFrom


def create(job: Job) -> None:
    with Admin(job.address) as admin:
        admin.create_topic(job.topic, job.queues, ordered=True)


class sender:  # noqa: N801 - a context manager, used as a function
    def __init__(self, job: Job) -> None:
        self._topic = job.topic
        self._producer = Producer(job.address, codec="bytes")
        self._offered: deque[Any] = deque(maxlen=1)

    def __enter__(self) -> "sender":
        self._producer.__enter__()
        return self

    def __exit__(self, *failure: Any) -> None:
        self._producer.__exit__(*failure)

    def send(self, key: str, value: bytes) -> None:
        self._producer.send(self._topic, value, key=key)

    def pipelined(self, messages: Messages) -> None:
        submit, topic, before = self._producer.submit, self._topic, list[Any]()
        for part in parts(messages):  # while one part is on its way, the next one is submitted
            futures = [submit(topic, value, key=key) for key, value in part]
            for future in before:
                future.result()
            before = futures
        for future in before:
            future.result()

    def batch(self, messages: Messages) -> None:
        self._producer.send_many(self._topic, messages)

    def offer(self, messages: Messages) -> None:
        for key, value in messages:
            self._offered.append(self._producer.submit(self._topic, value, key=key))

    def settle(self) -> None:
        self._producer.flush()


class async_sender:  # noqa: N801
    def __init__(self, job: Job) -> None:
        self._topic = job.topic
        self._producer = AsyncProducer(job.address, codec="bytes")

    async def __aenter__(self) -> "async_sender":
        await self._producer.__aenter__()
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._producer.__aexit__(*failure)

    async def send(self, key: str, value: bytes) -> None:
        await self._producer.send(self._topic, value, key=key)

    async def pipelined(self, messages: Messages) -> None:
        submit, topic, before = self._producer.submit, self._topic, list[Any]()
        for part in parts(messages):
            futures = [await submit(topic, value, key=key) for key, value in part]
            await asyncio.gather(*before)
            before = futures
        await asyncio.gather(*before)

    async def batch(self, messages: Messages) -> None:
        await self._producer.send_many(self._topic, messages)


def consume(job: Job, handle: Any) -> None:
    finished = threading.Event()
    app = App(job.address, group=job.group, start=StartFrom.FIRST)

    @app.ordered(job.topic, **({"lanes": job.number("lanes")} if job.number("lanes", 0) else {}))
    def handler(event: dict[str, Any], message: Message) -> None:
        if handle(message.key, event, message.offset):
            finished.set()

    with app:
        finished.wait()
