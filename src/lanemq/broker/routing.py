"""Routes a sent message to the queue that stores it: in its topic, in a retry or dead-letter topic, or delayed.

A stamp counts in the queue that the sender chose, even while the message is delayed. A message sent to a retry or
dead-letter topic is a copy: with the stamp of the original it would count as a repeat or a gap, so the stamp is
removed.
"""

import random
import re
from typing import NamedTuple

from lanemq.broker.parts import Parts
from lanemq.core.brokering.delay import RouteToDeadLetter, capped, route_retry_send
from lanemq.core.brokering.topic_table import TopicConfig
from lanemq.model.errors import BrokerRefused, MessageRefused, NotAllowed
from lanemq.model.names import (
    DEFAULT_TOPIC,
    NOT_SENDABLE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    check_group,
    check_topic,
)
from lanemq.wire.codes import ResponseCode
from lanemq.wire.headers import SendHeader
from lanemq.wire.properties import LANE_STAMP, PropertyName, append_properties, find_property, remove_property

_DELAY = PropertyName.DELAY + "\x01"
_TIMER = "TIMER_"
_NUMBER = re.compile("-?[0-9]{1,9}")
"""A delay level. `str.isdigit` accepts characters that `int` does not."""


class SendRoute(NamedTuple):
    """The route of one message. `asked` is the queue that its sender chose; it differs for a delayed message."""

    topic: str
    queue_id: int
    properties: str
    asked: int


def route(parts: Parts, header: SendHeader) -> SendRoute:
    """Route a send. Creates the topic if it may; raises the refusal that the sender is answered."""
    name = header.topic
    if name in NOT_SENDABLE:
        raise NotAllowed(ResponseCode.NO_PERMISSION, f"topic {name} belongs to the broker; send to another")
    topic = _topic_of(parts, header, name)
    if not topic.writable:
        raise NotAllowed(ResponseCode.NO_PERMISSION, f"topic {name} may not be written")
    if header.queue_id >= max(topic.read_queues, topic.write_queues):
        raise BrokerRefused(
            ResponseCode.INVALID_PARAMETER,
            f"queue {header.queue_id} of topic {name} does not exist: it has {topic.write_queues}",
        )
    if name.startswith(RETRY_PREFIX):
        return _route_retry(parts, header, topic)
    queue_id = header.queue_id if header.queue_id >= 0 else random.randrange(topic.write_queues)
    if header.batch:
        refuse_delay(header.properties)
    elif wants_delay(header.properties):
        return route_delayed(name, queue_id, header.properties)
    return SendRoute(name, queue_id, header.properties, queue_id)


def route_delayed(topic: str, queue_id: int, properties: str) -> SendRoute:
    """Route to the queue of the delay level, with the real topic and queue in the properties; no level: as it is."""
    level = _level(properties)
    if level == 0:
        return SendRoute(topic, queue_id, properties, queue_id)
    real = {PropertyName.REAL_TOPIC: topic, PropertyName.REAL_QUEUE: str(queue_id)}
    for name in real:
        properties = remove_property(properties, name)
    return SendRoute(SCHEDULE_TOPIC, level - 1, append_properties(properties, real), queue_id)


def wants_delay(properties: str) -> bool:
    """Whether the properties may ask for a delay; a fast check for the common case."""
    return _DELAY in properties or _TIMER in properties


def refuse_delay(properties: str) -> None:
    """Refuse delays in a batch, whose messages are stored together."""
    if wants_delay(properties) and _level(properties):
        raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "messages of a batch cannot be delayed; send them singly")


def _topic_of(parts: Parts, header: SendHeader, name: str) -> TopicConfig:
    known = parts.topics.get(name)
    if known is not None:
        return known
    check_topic(name)
    if not parts.options.auto_create_topics and not name.startswith(RETRY_PREFIX):
        return parts.topic_keeper.existing(name)
    if not header.default_topic and not name.startswith(RETRY_PREFIX):
        # The sender knew the topic, with its queues and its order: a new one could break both.
        return parts.topic_keeper.existing(name)
    queues = min(max(header.default_topic_queue_nums, 1), parts.options.default_queues)
    template = header.default_topic or DEFAULT_TOPIC
    return parts.topic_keeper.take(parts.topics.auto_create(name, template, queues))


def _route_retry(parts: Parts, header: SendHeader, topic: TopicConfig) -> SendRoute:
    """Route a message that a client sends to a retry topic itself."""
    if header.batch:
        raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "a retry topic takes no batches")
    group = check_group(topic.name.removeprefix(RETRY_PREFIX))
    next_stop = route_retry_send(
        header.reconsume_times,
        parts.max_retries(group, header.max_reconsume_times),
        requested=_level(header.properties),
        group_holds_lock=parts.locks.holds_any(group, now=parts.clock.now()),
    )
    properties = remove_property(remove_property(header.properties, PropertyName.DELAY), LANE_STAMP)
    if isinstance(next_stop, RouteToDeadLetter):
        dead = parts.topic_keeper.take(parts.topics.ensure_dead_letter(group))
        return SendRoute(dead.name, 0, properties, 0)
    delayed = append_properties(properties, {PropertyName.DELAY: str(next_stop.level)})
    return route_delayed(topic.name, 0, delayed)


def _level(properties: str) -> int:
    if _TIMER in properties and any(
        find_property(properties, name)
        for name in (
            PropertyName.TIMER_DELAY_SECONDS,
            PropertyName.TIMER_DELAY_MILLIS,
            PropertyName.TIMER_DELIVER_MILLIS,
        )
    ):
        raise MessageRefused(
            ResponseCode.MESSAGE_ILLEGAL,
            "timer messages are not supported by LaneMQ; use a delay level (1 to 18)",
        )
    text = find_property(properties, PropertyName.DELAY)
    return capped(int(text)) if text is not None and _NUMBER.fullmatch(text) else 0
