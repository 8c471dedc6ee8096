"""The name of a queue, and the order in which queues are sorted."""

from typing import NamedTuple


class MessageQueue(NamedTuple):
    """One queue of one topic on one broker.

    Tuples compare by topic, then broker, then queue id. That is RocketMQ's order too, and every member of a
    group must sort alike: allocation is computed by each member for itself.
    """

    topic: str
    broker: str
    queue_id: int

    def __str__(self) -> str:
        return f"{self.topic}/{self.broker}/{self.queue_id}"
