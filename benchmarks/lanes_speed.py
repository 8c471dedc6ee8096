"""How much faster lanes are than the order of a whole queue, when the handler takes its time.

    python -m benchmarks lanes_speed

One queue, 1,000 keys, a handler that waits 5 ms. Once the whole queue in order, as RocketMQ works, and once by key
with 32 lanes; both in one run, the ratio counts. The rate is that of the handler's calls from first to last.
"""

import asyncio
import threading
import time
from itertools import count
from typing import Any

from benchmarks.harness import TOPIC, BrokerProcess, report
from lanemq.client.app import App
from lanemq.client.message import Message
from lanemq.client.producer import Producer
from lanemq.core.retry_policy import HoldQueue

KEYS, LANES, HANDLER_SECONDS = 1_000, 32, 0.005
IN_QUEUE_ORDER, BY_KEY = 600, 20_000
TARGET = 25


def main() -> None:
    with BrokerProcess() as broker:
        broker.create_topic(queues=1)
        with Producer(broker.address, codec="bytes") as producer:
            producer.send_many(TOPIC, [(f"key-{number % KEYS}", b"x" * 100) for number in range(BY_KEY)])
        slow = rate(broker, "queue-order", IN_QUEUE_ORDER, on_fail=HoldQueue())
        fast = rate(broker, "key-order", BY_KEY, lanes=LANES)
        tasks = rate(broker, "key-order-tasks", BY_KEY, lanes=LANES, tasks=True)
    more = {"queue_order": round(slow), "lanes": LANES, "keys": KEYS, "handler_ms": 5, "target": TARGET}
    report("lanes/speed_up", fast / slow, "x", by_key=round(fast), **more)
    report("lanes/speed_up_tasks", tasks / slow, "x", by_key=round(tasks), **more)


def rate(broker: BrokerProcess, group: str, messages: int, *, tasks: bool = False, **options: Any) -> float:
    """Messages per second."""
    app: Any = App(broker.address, group=group, codec="bytes")
    begun: list[float] = []
    numbers, finished = count(1), threading.Event()

    def counted() -> None:
        number = next(numbers)
        if number == 1:
            begun.append(time.perf_counter())
        elif number == messages:
            finished.set()

    def handler(message: Message) -> None:
        time.sleep(HANDLER_SECONDS)
        counted()

    async def task(message: Message) -> None:
        await asyncio.sleep(HANDLER_SECONDS)
        counted()

    app.ordered(TOPIC, **options)(task if tasks else handler)
    app.start()
    assert finished.wait(120), "the consumer did not finish"
    seconds = time.perf_counter() - begun[0]
    app.stop(now=True)
    return (messages - 1) / seconds
