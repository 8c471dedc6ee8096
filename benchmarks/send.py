"""How fast producers send: one by one, with a future per message, and many in one call.

    python -m benchmarks send

One producer, 100 keys over 4 queues. `sync` waits for every receipt before the next send; `sync_clients` are 50 such
producers at the same time, each in a thread. `verdict` is the checker's result for the last round: all messages were
read back, complete and in the order of each key.
"""

import asyncio
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

from benchmarks.audit import verdict
from benchmarks.harness import TOPIC, BrokerProcess, Messages, Round, made_messages, report_rounds, timed
from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import Receipt

ROUNDS, SINGLE, MANY, CLIENTS = 5, 3_000, 100_000, 50


def main() -> None:
    for durable in (False, True):
        for size in (100, 1000):
            with BrokerProcess(durable=durable) as broker:
                broker.create_topic()
                blocking(broker, size)
                many_clients(broker, size)
                if not durable:
                    asyncio.run(on_a_loop(broker, size))


def blocking(broker: BrokerProcess, size: int) -> None:
    few, many = made_messages(SINGLE, size), made_messages(MANY, size)
    more: dict[str, Any] = {"mode": broker.mode, "bytes": size}
    kept: list[Receipt] = []
    with Producer(broker.address, codec="bytes") as producer:

        def sync() -> None:
            kept[:] = [producer.send(TOPIC, value, key=key) for key, value in few]

        def submit() -> None:
            kept[:] = [each.result() for each in [producer.submit(TOPIC, value, key=key) for key, value in many]]

        def send_many() -> None:
            kept[:] = producer.send_many(TOPIC, many)

        producer.send(TOPIC, b"warm", key="k")
        for work, count in ((sync, SINGLE), (submit, MANY), (send_many, MANY)):
            rounds = [timed(broker, count, work) for _ in range(ROUNDS)]
            report_rounds(f"send/{work.__name__}", rounds, **more, verdict=verdict(broker, kept))


def many_clients(broker: BrokerProcess, size: int) -> None:
    """Keys of their own: the order of a key is that of one producer."""
    with ExitStack() as stack:
        opened = [stack.enter_context(Producer(broker.address, codec="bytes")) for _ in range(CLIENTS)]
        threads = stack.enter_context(ThreadPoolExecutor(CLIENTS))
        kept: list[Receipt] = []

        def one(number: int) -> list[Receipt]:
            keys = [f"key-{number}-{each % 2}" for each in range(SINGLE // CLIENTS)]
            return [opened[number].send(TOPIC, b"x" * size, key=key) for key in keys]

        def sync_clients() -> None:
            kept[:] = [receipt for receipts in threads.map(one, range(CLIENTS)) for receipt in receipts]

        sync_clients()
        rounds = [timed(broker, SINGLE, sync_clients) for _ in range(ROUNDS)]
        more: dict[str, Any] = {"mode": broker.mode, "bytes": size}
        report_rounds("send/sync_clients", rounds, **more, verdict=verdict(broker, kept))


async def on_a_loop(broker: BrokerProcess, size: int) -> None:
    many = made_messages(MANY, size)
    more: dict[str, Any] = {"mode": broker.mode, "bytes": size}
    async with AsyncProducer(broker.address, codec="bytes") as producer:
        await producer.send(TOPIC, b"warm", key="k")
        for work in (submit, send_many):
            done = [await work(broker, producer, many) for _ in range(ROUNDS)]
            word = verdict(broker, done[-1][1])
            report_rounds(f"send/async_{work.__name__}", [each for each, _ in done], **more, verdict=word)


async def submit(broker: BrokerProcess, producer: AsyncProducer, messages: Messages) -> tuple[Round, Sequence[Receipt]]:
    begun = broker.cpu_seconds(), time.process_time(), time.perf_counter()
    futures = [await producer.submit(TOPIC, value, key=key) for key, value in messages]
    receipts = await asyncio.gather(*futures)
    return _ended(broker, begun, len(messages)), receipts


async def send_many(
    broker: BrokerProcess, producer: AsyncProducer, messages: Messages
) -> tuple[Round, Sequence[Receipt]]:
    begun = broker.cpu_seconds(), time.process_time(), time.perf_counter()
    receipts = await producer.send_many(TOPIC, messages)
    return _ended(broker, begun, len(messages)), receipts


def _ended(broker: BrokerProcess, begun: tuple[float, float, float], count: int) -> Round:
    seconds, cpu = time.perf_counter() - begun[2], time.process_time() - begun[1]
    return Round(count, seconds, cpu, broker.cpu_seconds() - begun[0])
