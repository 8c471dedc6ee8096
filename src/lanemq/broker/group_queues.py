"""The port through which handlers of groups know queues: those of a broker, or those of a cluster."""

from collections.abc import Sequence
from typing import Protocol

from lanemq.broker.storage.topic_keeper import TopicKeeper
from lanemq.core.brokering.topic_table import TopicTable
from lanemq.model.errors import BrokerRefused
from lanemq.model.names import retry_topic
from lanemq.model.queue import MessageQueue
from lanemq.wire.codes import ResponseCode


class GroupQueues(Protocol):
    """Which queues exist. A request names the broker of a queue; a broker takes every name for its own."""

    def named(self, topic: str, broker: str | None, queue_id: int) -> MessageQueue:
        """The queue of this name, whether or not it exists."""

    def existing(self, topic: str, broker: str | None, queue_id: int) -> MessageQueue:
        """The queue of this name; raises `BrokerRefused` if it does not exist."""

    def has(self, queue: MessageQueue) -> bool:
        """Whether the queue exists, at exactly this broker."""

    def of_topic(self, topic: str) -> Sequence[MessageQueue]:
        """All queues of a topic; none if it does not exist."""

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        """The queues of a topic that groups read; raises `TopicNotFound` if it does not exist."""

    def grantable(self, group: str, queue: MessageQueue) -> bool:
        """Whether a queue may get a new owner now."""

    def lacks_retry_topic(self, group: str) -> bool:
        """Whether the group's first heartbeat has to create its retry topic."""

    def ensure_retry_topic(self, group: str, queues: int = 1) -> None: ...


class OwnQueues:
    """The `GroupQueues` of a broker."""

    def __init__(self, broker: str, topics: TopicTable, keeper: TopicKeeper) -> None:
        self._broker = broker
        self._topics = topics
        self._keeper = keeper

    def named(self, topic: str, broker: str | None, queue_id: int) -> MessageQueue:
        return MessageQueue(topic, self._broker, queue_id)

    def existing(self, topic: str, broker: str | None, queue_id: int) -> MessageQueue:
        count = self._keeper.existing(topic).queues
        if not 0 <= queue_id < count:
            raise no_such_queue(topic, queue_id, count)
        return MessageQueue(topic, self._broker, queue_id)

    def has(self, queue: MessageQueue) -> bool:
        known = self._topics.get(queue.topic)
        return known is not None and queue.broker == self._broker and 0 <= queue.queue_id < known.queues

    def of_topic(self, topic: str) -> Sequence[MessageQueue]:
        known = self._topics.get(topic)
        return self._first(topic, 0 if known is None else known.queues)

    def readable(self, topic: str) -> Sequence[MessageQueue]:
        return self._first(topic, self._keeper.existing(topic).read_queues)

    def _first(self, topic: str, count: int) -> list[MessageQueue]:
        return [MessageQueue(topic, self._broker, number) for number in range(count)]

    def grantable(self, group: str, queue: MessageQueue) -> bool:
        return True

    def lacks_retry_topic(self, group: str) -> bool:
        return self._topics.get(retry_topic(group)) is None

    def ensure_retry_topic(self, group: str, queues: int = 1) -> None:
        self._keeper.take(self._topics.ensure_retry(group, queues))


def no_such_queue(topic: str, queue_id: int, count: int) -> BrokerRefused:
    text = f"queue {queue_id} of topic {topic} does not exist: it has {count}"
    return BrokerRefused(ResponseCode.INVALID_PARAMETER, text)
