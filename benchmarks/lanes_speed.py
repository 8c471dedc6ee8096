"""How much faster lanes are than the order of a whole queue, when the handler takes its time.

    python -m benchmarks lanes_speed

One queue, 1,000 keys. The handler takes a decoded event, reads key, offset and one property, and waits 5 ms. Once the
whole queue is consumed in order, as RocketMQ does, and once by key with 32 lanes; both in one run, the ratio counts.
The rate is that of the handler's calls from first to last. `verdict` is the checker's verdict on a shorter run by key.
"""

import asyncio
import threading
import time
from itertools import count
from typing import Any

from benchmarks.events import OrderPaid, made_events, read
from benchmarks.harness import TOPIC, BrokerProcess, report
from benchmarks.judged import verdict
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.retry_policy import HoldQueue
from lanemq.history import NO_HISTORY, History

KEYS, LANES, HANDLER_SECONDS = 1_000, 32, 0.005
IN_QUEUE_ORDER, BY_KEY, JUDGED = 600, 20_000, 4_000
TARGET = 25


def main() -> None:
    with BrokerProcess() as broker:
        broker.create_topic(queues=1)
        with Producer(broker.address) as producer:
            producer.send_many(TOPIC, made_events(BY_KEY, KEYS, 100))
        slow = rate(broker.address, "queue-order", IN_QUEUE_ORDER, on_fail=HoldQueue())
        fast = rate(broker.address, "key-order", BY_KEY, lanes=LANES)
        tasks = rate(broker.address, "key-order-tasks", BY_KEY, lanes=LANES, tasks=True)
    more = {"queue_order": round(slow), "lanes": LANES, "keys": KEYS, "handler_ms": 5, "target": TARGET}
    report("lanes/speed_up", fast / slow, "x", by_key=round(fast), **more, verdict=judged(tasks=False))
    report("lanes/speed_up_tasks", tasks / slow, "x", by_key=round(tasks), **more, verdict=judged(tasks=True))


def judged(*, tasks: bool) -> str:
    def to_the_end(address: str, history: History) -> None:
        rate(address, "judged", JUDGED, tasks=tasks, history=history, lanes=LANES)

    return verdict(made_events(JUDGED, KEYS, 100), to_the_end, queues=1)


def rate(
    address: str, group: str, messages: int, *, tasks: bool = False, history: History = NO_HISTORY, **options: Any
) -> float:
    """Messages per second."""
    app: Any = App(address, group=group, history=history)
    begun: list[float] = []
    numbers, finished = count(1), threading.Event()

    def counted() -> None:
        number = next(numbers)
        if number == 1:
            begun.append(time.perf_counter())
        elif number == messages:
            finished.set()

    def handler(event: OrderPaid, message: Message) -> None:
        read(event, message)
        time.sleep(HANDLER_SECONDS)
        counted()

    async def task(event: OrderPaid, message: Message) -> None:
        read(event, message)
        await asyncio.sleep(HANDLER_SECONDS)
        counted()

    app.ordered(TOPIC, **options)(task if tasks else handler)
    app.start()
    assert finished.wait(120), "the consumer did not finish"
    seconds = time.perf_counter() - begun[0]
    app.stop(now=history is NO_HISTORY)
    return (messages - 1) / seconds
