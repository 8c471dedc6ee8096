"""Where a sent message really goes: its topic, a retry, the dead letters, or the waiting room of a delay level.

A stamp counts in the queue the sender asked for, wherever the message waits meanwhile. A message on its way to a
retry or to the dead letters is a copy: the stamp of the original would make it a repeat or a gap, so it goes.
"""

import random
import re
from typing import NamedTuple

from lanemq.broker.parts import Parts
from lanemq.core.brokering.delay import ToDeadLetter, capped, route_retry_send
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
"""Of a delay level. Python calls more a digit than it can read as a number."""


class Placed(NamedTuple):
    """A decision about one send. `asked` is the queue its sender knows; it differs while a message waits."""

    topic: str
    queue_id: int
    properties: str
    asked: int


def place(parts: Parts, header: SendHeader) -> Placed:
    """The topic a message is stored in, created if need be; raises what the sender is answered."""
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
        return _place_retry(parts, header, topic)
    queue_id = header.queue_id if header.queue_id >= 0 else random.randrange(topic.write_queues)
    if header.batch:
        refuse_delay(header.properties)
    elif wants_delay(header.properties):
        return place_delayed(name, queue_id, header.properties)
    return Placed(name, queue_id, header.properties, queue_id)


def place_delayed(topic: str, queue_id: int, properties: str) -> Placed:
    """Into the waiting room of its delay level, with the real topic and queue in its properties."""
    level = _level(properties)
    if level == 0:
        return Placed(topic, queue_id, properties, queue_id)
    real = {PropertyName.REAL_TOPIC: topic, PropertyName.REAL_QUEUE: str(queue_id)}
    for name in real:
        properties = remove_property(properties, name)
    return Placed(SCHEDULE_TOPIC, level - 1, append_properties(properties, real), queue_id)


def wants_delay(properties: str) -> bool:
    """Whether it is worth looking closer; a quick test for the common case."""
    return _DELAY in properties or _TIMER in properties


def refuse_delay(properties: str) -> None:
    """For a batch and its messages: they are stored together, so none of them can wait."""
    if wants_delay(properties) and _level(properties):
        raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "messages of a batch cannot be delayed; send them singly")


def _topic_of(parts: Parts, header: SendHeader, name: str) -> TopicConfig:
    known = parts.topics.get(name)
    if known is not None:
        return known
    check_topic(name)
    if not parts.options.auto_create_topics and not name.startswith(RETRY_PREFIX):
        return parts.topics.existing(name)
    if not header.default_topic and not name.startswith(RETRY_PREFIX):
        # Its sender knows the topic and was promised its queues and its order: another one would break both.
        return parts.topics.existing(name)
    queues = min(max(header.default_topic_queue_nums, 1), parts.options.default_queues)
    template = header.default_topic or DEFAULT_TOPIC
    return parts.topics.take(parts.topics.table.auto_create(name, template, queues))


def _place_retry(parts: Parts, header: SendHeader, topic: TopicConfig) -> Placed:
    """A consumer gave up on a message for now, or for good."""
    if header.batch:
        raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, "a retry topic takes no batches")
    group = check_group(topic.name.removeprefix(RETRY_PREFIX))
    settings = parts.groups.get(group)
    limit = header.max_reconsume_times
    if limit is None or limit < 0:
        limit = None if settings is None else settings.retry_max_times
    route = route_retry_send(
        header.reconsume_times,
        limit,
        requested=_level(header.properties),
        group_holds_lock=parts.locks.holds_any(group, now=parts.clock.now()),
    )
    properties = remove_property(remove_property(header.properties, PropertyName.DELAY), LANE_STAMP)
    if isinstance(route, ToDeadLetter):
        dead = parts.topics.take(parts.topics.table.ensure_dead_letter(group))
        return Placed(dead.name, 0, properties, 0)
    delayed = append_properties(properties, {PropertyName.DELAY: str(route.level)})
    return place_delayed(topic.name, 0, delayed)


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
