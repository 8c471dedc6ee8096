"""How fast producers send: one by one, with a future per message, and many in one call.

    python -m benchmarks send

One producer, 100 keys over 4 queues. `sync` waits for every receipt before the next send.
"""

import asyncio
import time

from benchmarks.harness import TOPIC, BrokerProcess, Messages, Round, made_messages, report_rounds, timed
from lanemq.client.async_producer import AsyncProducer
from lanemq.client.producer import Producer

ROUNDS, SINGLE, MANY = 5, 3_000, 100_000


def main() -> None:
    for durable in (False, True):
        for size in (100, 1000):
            with BrokerProcess(durable=durable) as broker:
                broker.create_topic()
                blocking(broker, size)
                if not durable:
                    asyncio.run(on_a_loop(broker, size))


def blocking(broker: BrokerProcess, size: int) -> None:
    few, many = made_messages(SINGLE, size), made_messages(MANY, size)
    more = {"mode": broker.mode, "bytes": size}
    with Producer(broker.address, codec="bytes") as producer:

        def sync() -> None:
            for key, value in few:
                producer.send(TOPIC, value, key=key)

        def submit() -> None:
            for future in [producer.submit(TOPIC, value, key=key) for key, value in many]:
                future.result()

        producer.send(TOPIC, b"warm", key="k")
        report_rounds("send/sync", [timed(broker, SINGLE, sync) for _ in range(ROUNDS)], **more)
        report_rounds("send/submit", [timed(broker, MANY, submit) for _ in range(ROUNDS)], **more)
        rounds = [timed(broker, MANY, lambda: producer.send_many(TOPIC, many)) for _ in range(ROUNDS)]
        report_rounds("send/send_many", rounds, **more)


async def on_a_loop(broker: BrokerProcess, size: int) -> None:
    many = made_messages(MANY, size)
    async with AsyncProducer(broker.address, codec="bytes") as producer:
        await producer.send(TOPIC, b"warm", key="k")
        more = {"mode": broker.mode, "bytes": size}
        report_rounds("send/async_submit", [await _submit(broker, producer, many) for _ in range(ROUNDS)], **more)
        report_rounds("send/async_send_many", [await _many(broker, producer, many) for _ in range(ROUNDS)], **more)


async def _submit(broker: BrokerProcess, producer: AsyncProducer, messages: Messages) -> Round:
    begun = broker.cpu_seconds(), time.process_time(), time.perf_counter()
    futures = [await producer.submit(TOPIC, value, key=key) for key, value in messages]
    await asyncio.gather(*futures)
    return _ended(broker, begun, len(messages))


async def _many(broker: BrokerProcess, producer: AsyncProducer, messages: Messages) -> Round:
    begun = broker.cpu_seconds(), time.process_time(), time.perf_counter()
    await producer.send_many(TOPIC, messages)
    return _ended(broker, begun, len(messages))


def _ended(broker: BrokerProcess, begun: tuple[float, float, float], count: int) -> Round:
    seconds, cpu = time.perf_counter() - begun[2], time.process_time() - begun[1]
    return Round(count, seconds, cpu, broker.cpu_seconds() - begun[0])
