"""Redis Streams with redis-py and hiredis: a stream per queue, chosen by the key; one consumer of a group reads all.

A group of streams has no owners: with two consumers, messages of a key run at once. So there is no ordered take-over.
"""

from typing import Any
from zlib import crc32

import msgspec
import redis
import redis.asyncio

from benchmarks.peers.clients.job import Job
from benchmarks.peers.order import Messages

BATCH = 1_000
CONNECTIONS = 50


def create(job: Job) -> None:
    server = _server(job)
    server.config_set("appendfsync", "always" if job.number("durable") else "everysec")


def _server(job: Job) -> Any:
    host, port = job.address.split(":")
    return redis.Redis(host=host, port=int(port))


class sender:  # noqa: N801 - a context manager, used as a function
    def __init__(self, job: Job) -> None:
        self._topic, self._queues = job.topic, job.queues
        self._redis = _server(job)

    def __enter__(self) -> "sender":
        return self

    def __exit__(self, *failure: Any) -> None:
        self._redis.close()

    def _stream(self, key: str) -> str:
        return f"{self._topic}-{crc32(key.encode()) % self._queues}"

    def send(self, key: str, value: bytes) -> None:
        self._redis.xadd(self._stream(key), {"k": key, "v": value})

    def batch(self, messages: Messages) -> None:
        for first in range(0, len(messages), BATCH):
            with self._redis.pipeline(transaction=False) as requests:
                for key, value in messages[first : first + BATCH]:
                    requests.xadd(self._stream(key), {"k": key, "v": value})
                requests.execute()

    offer = batch

    def settle(self) -> None:
        """`offer` has waited already: redis-py has no call that does not."""


class async_sender:  # noqa: N801
    def __init__(self, job: Job) -> None:
        self._topic, self._queues = job.topic, job.queues
        host, port = job.address.split(":")
        pool = redis.asyncio.BlockingConnectionPool(
            host=host, port=int(port), max_connections=CONNECTIONS, timeout=None
        )
        self._redis = redis.asyncio.Redis(connection_pool=pool)

    async def __aenter__(self) -> "async_sender":
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._redis.aclose()

    async def send(self, key: str, value: bytes) -> None:
        await self._redis.xadd(f"{self._topic}-{crc32(key.encode()) % self._queues}", {"k": key, "v": value})


def consume(job: Job, handle: Any) -> None:
    server, decode = _server(job), msgspec.json.decode
    streams = {f"{job.topic}-{number}": ">" for number in range(job.queues)}
    for stream in streams:
        server.xgroup_create(stream, job.group, id="0", mkstream=True)
    done = False
    while not done:
        for stream, entries in server.xreadgroup(job.group, "one", streams, count=BATCH, block=500) or ():
            for position, fields in entries:
                done = handle(fields[b"k"].decode(), decode(fields[b"v"]), position)
            server.xack(stream, job.group, *[position for position, _ in entries])
