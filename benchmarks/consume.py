"""How fast a consumer works through stored messages with a handler that does nothing.

    python -m benchmarks consume

The whole path: pull, lanes, workers, handler, offsets; 4 queues, one member; 100 keys, and with order by key also
10,000 of them, where hardly any lane has a second message. The clock runs from the first call of the handler to the
last. `verdict` is the checker's verdict on a shorter run of the same kind.
"""

import threading
import time
from itertools import count
from typing import Any

from benchmarks.harness import KEYS, TOPIC, BrokerProcess, Messages, Round, report_rounds
from benchmarks.judged import verdict
from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.client.producer.producer import Producer
from lanemq.core.consuming.retry_policy import HoldQueue
from lanemq.history import History

ROUNDS, MESSAGES, JUDGED = 5, 200_000, 20_000
FEW, MANY = KEYS, 10_000
CASES = (("queue", FEW), ("key", FEW), ("key", MANY), ("none", FEW))


def main() -> None:
    for size in (100, 1000):
        with BrokerProcess() as broker:
            with Producer(broker.address, codec="bytes") as producer:
                for keys in (FEW, MANY):
                    broker.create_topic(_topic(keys))
                    producer.send_many(_topic(keys), _messages(MESSAGES, keys, size))
            for order, keys in CASES:
                rounds = [consume(broker, order, keys, f"{order}-{keys}-{number}") for number in range(ROUNDS)]
                more = {"keys": keys, "bytes": size, "verdict": judged(order, keys)}
                report_rounds(f"consume/{order}_order", rounds, **more)


def consume(broker: BrokerProcess, order: str, keys: int, group: str) -> Round:
    begun: list[tuple[float, float, float]] = []
    numbers, finished = count(1), threading.Event()

    def handler(message: Message) -> None:
        number = next(numbers)
        if number == 1:
            begun.append((broker.cpu_seconds(), time.process_time(), time.perf_counter()))
        elif number == MESSAGES:
            finished.set()

    with _app(broker.address, group, order, _topic(keys), handler):
        assert finished.wait(120), "the consumer did not finish"
        seconds, cpu = time.perf_counter() - begun[0][2], time.process_time() - begun[0][1]
        return Round(MESSAGES, seconds, cpu, broker.cpu_seconds() - begun[0][0])


def judged(order: str, keys: int) -> str:
    def to_the_end(address: str, history: History) -> None:
        numbers, finished = count(1), threading.Event()

        def handler(message: Message) -> None:
            if next(numbers) == JUDGED:
                finished.set()

        with _app(address, "judged", order, TOPIC, handler, history=history):
            assert finished.wait(120), "the consumer did not finish"

    return verdict(_messages(JUDGED, keys, 100), to_the_end)


def _app(address: str, group: str, order: str, topic: str, handler: Any, **options: Any) -> Any:
    app: Any = App(address, group=group, codec="bytes", **options)
    if order == "none":
        app.concurrent(topic)(handler)
    else:
        app.ordered(topic, **({"on_fail": HoldQueue()} if order == "queue" else {}))(handler)
    return app


def _topic(keys: int) -> str:
    return f"{TOPIC}-{keys}"


def _messages(count: int, keys: int, size: int) -> Messages:
    return [(f"key-{number % keys}", b"x" * size) for number in range(count)]
