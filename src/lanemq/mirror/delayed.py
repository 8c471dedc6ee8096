"""Delayed messages that wait at the source: no queue of their topic has them yet, so nothing copies or counts them."""

from collections.abc import Collection, Iterator
from dataclasses import dataclass

from lanemq.core.brokering.delay import delay_of
from lanemq.mirror.ends import Side
from lanemq.model.errors import BrokerRefused
from lanemq.model.names import RETRY_PREFIX, SCHEDULE_TOPIC
from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import PropertyName, find_property

_FIGURE = "scheduleMessageOffset_"
"""A broker's figure for each delay level: the next message to deliver, and the end of the level's queue."""


@dataclass(frozen=True, slots=True)
class DelayedMessage:
    """A message that is not due yet."""

    topic: str
    """Where it goes: its topic, or the retry topic of a group."""
    retried: str
    """For a retry, the topic where the group first got it; otherwise empty."""
    due_ms: int
    """About when, in ms since 1970."""

    def concerns(self, topics: Collection[str]) -> bool:
        return self.topic in topics or self.retried in topics


def delayed_messages(source: Side, topics: Collection[str]) -> list[DelayedMessage]:
    """The delayed messages and retries of these topics. Timer messages of an Apache broker are not among them.

    If the user may not read the broker's queues of delayed messages, all of them count.
    """
    brokers = {broker for topic in topics for broker in source.full_route(topic).broker_names}
    delayed: list[DelayedMessage] = []
    for figures in source.admin.figures():
        for name, value in figures.table.items():
            if figures.broker in brokers and name.startswith(_FIGURE):
                level = int(name.removeprefix(_FIGURE))
                first, end = (int(part) for part in value.split(","))
                delayed += _of_level(
                    source, MessageQueue(SCHEDULE_TOPIC, figures.broker, level - 1), first, end, topics
                )
    return [each for each in delayed if each.concerns(topics)]


def _of_level(
    source: Side, queue: MessageQueue, first: int, end: int, topics: Collection[str]
) -> Iterator[DelayedMessage]:
    if first >= end:
        return
    level = queue.queue_id + 1
    try:
        for message in source.read_range(queue, first, end):
            text = message.properties_text
            topic = find_property(text, PropertyName.REAL_TOPIC) or ""
            retried = find_property(text, PropertyName.RETRY_TOPIC) or "" if topic.startswith(RETRY_PREFIX) else ""
            yield DelayedMessage(topic, retried, message.record.store_timestamp + delay_of(level))
    except BrokerRefused:
        for _ in range(first, end):
            yield DelayedMessage(min(topics), "", 0)
