"""How fast a consumer works through stored messages.

    python -m benchmarks consume

The whole path: pull, lanes, workers, decoding, handler, offsets; 4 queues, one member; 100 keys, and with order by key
also 10,000 of them, where hardly any lane has a second message. With `handler` "event" (the published figure) the
handler takes a decoded event and reads key, offset and one property; with "empty" it reads nothing. The clock runs from
the first call of the handler to the last. `verdict` is the checker's verdict on a shorter run of the same kind.
"""

import threading
import time
from collections.abc import Callable
from functools import cache
from itertools import count
from typing import Any

from benchmarks.events import HANDLERS, made_events
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
            for keys in (FEW, MANY):
                store(broker, keys, MESSAGES, size)
            for order, keys in CASES:
                for handler in HANDLERS:
                    names = (f"{handler}-{order}-{keys}-{number}" for number in range(ROUNDS))
                    rounds = [consume(broker, order, keys, MESSAGES, name, handler) for name in names]
                    more = {"handler": handler, "keys": keys, "bytes": size, "verdict": judged(order, keys)}
                    report_rounds(f"consume/{order}_order", rounds, **more)


def store(broker: BrokerProcess, keys: int, messages: int, size: int, topic: str = "") -> None:
    """Fills the topic, by default that of this number of keys."""
    broker.create_topic(topic or _topic(keys))
    with Producer(broker.address) as producer:
        producer.send_many(topic or _topic(keys), made_events(messages, keys, size))


def consume(
    broker: BrokerProcess, order: str, keys: int, messages: int, group: str, handler: str, topic: str = ""
) -> Round:
    """One member of a new group reads everything that `store` sent."""
    begun: list[tuple[float, float, float]] = []
    finished = threading.Event()

    def start() -> None:
        begun.append((broker.cpu_seconds(), time.process_time(), time.perf_counter()))

    counted = HANDLERS[handler](_counter(start, messages, finished.set))
    with _app(broker.address, group, order, topic or _topic(keys), counted):
        assert finished.wait(240), "the consumer did not finish"
        seconds, cpu = time.perf_counter() - begun[0][2], time.process_time() - begun[0][1]
        return Round(messages, seconds, cpu, broker.cpu_seconds() - begun[0][0])


def _counter(first: Callable[[], None], messages: int, last: Callable[[], None]) -> Callable[[], None]:
    """Calls `first` with the first message and `last` with the last one."""
    numbers = count(1)

    def counted() -> None:
        number = next(numbers)
        if number == 1:
            first()
        elif number == messages:
            last()

    return counted


@cache
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
    app: Any = App(address, group=group, **options)
    if order == "none":
        app.concurrent(topic)(handler)
    else:
        app.ordered(topic, **({"on_fail": HoldQueue()} if order == "queue" else {}))(handler)
    return app


def _topic(keys: int) -> str:
    return f"{TOPIC}-{keys}"


def _messages(count: int, keys: int, size: int) -> Messages:
    return [(f"key-{number % keys}", b"x" * size) for number in range(count)]
