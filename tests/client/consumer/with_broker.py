"""Helpers of tests with a real broker: a handler that records what it got, and sends."""

import threading
from collections.abc import Callable
from typing import Any

from lanemq.client.consumer.pull_consumer import PullConsumer
from lanemq.client.producer.producer import Producer
from lanemq.client.topics import NewTopic
from lanemq.testing.embedded import EmbeddedBroker

WAIT = 60.0


class Inbox:
    """What a handler got, and a way to wait for it."""

    def __init__(self) -> None:
        self.items: list[Any] = []
        self._changed = threading.Condition()

    def add(self, item: Any) -> None:
        with self._changed:
            self.items.append(item)
            self._changed.notify_all()

    def wait(self, count: int) -> list[Any]:
        with self._changed:
            assert self._changed.wait_for(lambda: len(self.items) >= count, WAIT), f"only {self.items}"
            return list(self.items)


def wait_for(condition: Callable[[], object]) -> None:
    pause = threading.Event()
    for _ in range(int(WAIT * 100)):
        if condition():
            return
        pause.wait(0.01)
    raise AssertionError("it did not come true in time")


def send(broker: EmbeddedBroker, topic: str, keys: int, each: int, tags: str = "") -> None:
    with Producer(broker.address, create=NewTopic(topic, ordered=False)) as producer:
        for n in range(each):
            for key in range(keys):
                tag = tags[n % len(tags)] if tags else None
                producer.send(topic, {"n": n}, key=f"k{key}", tag=tag)


def committed(broker: EmbeddedBroker, topic: str) -> int:
    with PullConsumer(broker.address, group=f"g-{topic}") as reader:
        return sum(reader.committed(queue) or 0 for queue in reader.queues(topic))
