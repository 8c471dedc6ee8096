"""Apache Kafka with confluent-kafka: idempotent producer (the setting that keeps order), `consume(1000)` loop."""

import asyncio
import functools
from typing import Any

import msgspec
from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient, NewTopic
from confluent_kafka.aio import AIOProducer

from benchmarks.peers.clients.job import Job, parts
from benchmarks.peers.order import Messages

BATCH = 1_000
OWN_SENDERS = True
"""`flush` waits for the messages of all threads, so each thread has a producer of its own."""
POLL_EVERY = 100
"""Messages between two calls of `poll`, which runs the delivery callbacks: fewer calls, less CPU time."""


def create(job: Job) -> None:
    config = {"flush.messages": "1"} if job.number("durable") else {}
    admin = AdminClient({"bootstrap.servers": job.address})
    for done in admin.create_topics([NewTopic(job.topic, job.queues, 1, config=config)]).values():
        done.result()


def _settings(job: Job, **more: Any) -> dict[str, Any]:
    """The queue holds all messages of a round, so that the producer never has to wait for room."""
    common = {"bootstrap.servers": job.address, "enable.idempotence": True}
    return {**common, "queue.buffering.max.messages": 4_000_000, "queue.buffering.max.kbytes": 4_194_304, **more}


class sender:  # noqa: N801 - a context manager, used as a function
    """`linger.ms` is 0 for single sends and for latency. In bulk it is the default (5), or what the job says: a longer
    one, with more messages in a request."""

    def __init__(self, job: Job) -> None:
        self._topic = job.topic
        self._single = Producer(_settings(job, **{"linger.ms": 0}))
        self._linger, self._job = job.number("linger_ms", 0), job
        self._failed: list[Any] = []

    @functools.cached_property
    def _bulk(self) -> Any:
        larger = {"linger.ms": self._linger, "batch.num.messages": 100_000} if self._linger else {}
        return Producer(_settings(self._job, **larger))

    def __enter__(self) -> "sender":
        return self

    def __exit__(self, *failure: Any) -> None:
        pass

    def _delivered(self, error: Any, message: Any) -> None:
        if error is not None:
            self._failed.append(error)

    def _flush(self, producer: Any) -> None:
        producer.flush()
        if self._failed:
            raise RuntimeError(f"not stored: {self._failed[0]}")

    def send(self, key: str, value: bytes) -> None:
        self._single.produce(self._topic, value, key, on_delivery=self._delivered)
        self._flush(self._single)

    def pipelined(self, messages: Messages) -> None:
        produce, poll, topic, delivered = self._bulk.produce, self._bulk.poll, self._topic, self._delivered
        for part in parts(messages, POLL_EVERY):
            for key, value in part:
                produce(topic, value, key, on_delivery=delivered)
            poll(0)
        self._flush(self._bulk)

    def batch(self, messages: Messages) -> None:
        for part in parts(messages, BATCH):
            rows = [{"key": key, "value": value} for key, value in part]
            if self._bulk.produce_batch(self._topic, rows, on_delivery=self._delivered) != len(rows):
                raise RuntimeError("the queue of the producer is full")
            self._bulk.poll(0)
        self._flush(self._bulk)

    def offer(self, messages: Messages) -> None:
        for key, value in messages:
            self._single.produce(self._topic, value, key, on_delivery=self._delivered)
        self._single.poll(0)

    def settle(self) -> None:
        self._flush(self._single)


class async_sender:  # noqa: N801
    """`AIOProducer` with its defaults: it collects 1,000 messages, or waits a second."""

    def __init__(self, job: Job) -> None:
        self._topic, self._job = job.topic, job

    async def __aenter__(self) -> "async_sender":
        self._producer = AIOProducer(_settings(self._job))
        return self

    async def __aexit__(self, *failure: Any) -> None:
        await self._producer.close()

    async def pipelined(self, messages: Messages) -> None:
        produce, topic, before = self._producer.produce, self._topic, list[Any]()
        for part in parts(messages):  # while one part is on its way, the next one is produced
            futures = [await produce(topic, value=value, key=key) for key, value in part]
            await asyncio.gather(*before)
            before = futures
        await self._producer.flush()
        await asyncio.gather(*before)


def consume(job: Job, handle: Any) -> None:
    settings: dict[str, Any] = {
        "bootstrap.servers": job.address,
        "group.id": job.group,
        "auto.offset.reset": "earliest",
    }
    settings["fetch.queue.backoff.ms"] = 10  # by default a reader that caught up with its own queue pauses for a second
    if session := job.number("session_ms", 0):
        settings |= {"session.timeout.ms": session, "heartbeat.interval.ms": session // 3}
    if prefetch := job.number("prefetch", 0):
        settings |= {"queued.min.messages": prefetch, "queued.max.messages.kbytes": 1_048_576}
    # `consume(n)` waits for n messages or its timeout, which suits a backlog; `consume(1)` suits messages as they come.
    many = BATCH if job.text("do") == "read" and not job.number("handler_ms", 0) else 1
    decode = msgspec.json.decode
    consumer = Consumer(settings)
    consumer.subscribe([job.topic])
    done = False
    while not done:
        for message in consumer.consume(many, 0.5):
            if message.error() is not None:
                raise RuntimeError(str(message.error()))
            done = handle(message.key().decode(), decode(message.value()), message.offset())
    consumer.close()
