"""How fast a consumer works through stored messages with a handler that does nothing.

    python -m benchmarks consume

The whole path: pull, lanes, workers, handler, offsets; 4 queues, 100 keys, one member. The clock runs from the
first call of the handler to the last.
"""

import threading
import time
from itertools import count
from typing import Any

from benchmarks.harness import TOPIC, BrokerProcess, Round, made_messages, report_rounds
from lanemq.client.app import App
from lanemq.client.message import Message
from lanemq.client.producer import Producer
from lanemq.core.retry_policy import HoldQueue

ROUNDS, MESSAGES = 5, 200_000
ORDERS = ("queue", "key", "none")


def main() -> None:
    for size in (100, 1000):
        with BrokerProcess() as broker:
            broker.create_topic()
            with Producer(broker.address, codec="bytes") as producer:
                producer.send_many(TOPIC, made_messages(MESSAGES, size))
            for order in ORDERS:
                rounds = [consume(broker, order, f"{order}-{number}") for number in range(ROUNDS)]
                report_rounds(f"consume/{order}_order", rounds, bytes=size)


def consume(broker: BrokerProcess, order: str, group: str) -> Round:
    app: Any = App(broker.address, group=group, codec="bytes")
    begun: list[tuple[float, float, float]] = []
    numbers, finished = count(1), threading.Event()

    def handler(message: Message) -> None:
        number = next(numbers)
        if number == 1:
            begun.append((broker.cpu_seconds(), time.process_time(), time.perf_counter()))
        elif number == MESSAGES:
            finished.set()

    if order == "none":
        app.concurrent(TOPIC)(handler)
    else:
        app.ordered(TOPIC, **({"on_fail": HoldQueue()} if order == "queue" else {}))(handler)
    with app:
        assert finished.wait(120), "the consumer did not finish"
        seconds, cpu = time.perf_counter() - begun[0][2], time.process_time() - begun[0][1]
        return Round(MESSAGES, seconds, cpu, broker.cpu_seconds() - begun[0][0])
