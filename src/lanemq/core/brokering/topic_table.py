"""Topics: which exist, with how many queues, and how they are created.

Invariants: a globally ordered topic has exactly one queue, since queues have no order among each other; and the queue
count of an ordered topic does not change, since a key's queue is its hash modulo that count, and keys with unread
messages would move.

Topics are created by an administrator (`put`), by the first send to an unknown name (`auto_create`, through RocketMQ's
template topic TBW102), and because a group needs them (`ensure_retry`, `ensure_dead_letter`).
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum, IntFlag
from typing import NamedTuple, TypeAlias

from lanemq.model.names import (
    DEFAULT_TOPIC,
    NOT_SENDABLE,
    RETRY_PREFIX,
    SCHEDULE_TOPIC,
    TRACE_PREFIX,
    TRACE_TOPIC,
    check_topic,
    dead_letter_topic,
    retry_topic,
)

MAX_TOPICS = 50_000
MAX_QUEUES = 1_024
TEMPLATE_QUEUES = 8
"""RocketMQ: `BrokerConfig.defaultTopicQueueNums`."""
SCHEDULE_QUEUES = 18
"""One queue per delay level; see `delay`."""
SYSTEM_PREFIX = "rmq_sys_"
"""RocketMQ: `TopicValidator.SYSTEM_TOPIC_PREFIX`."""
OTHER_SYSTEM_TOPICS = frozenset({DEFAULT_TOPIC, TRACE_TOPIC, "BenchmarkTest"}) | NOT_SENDABLE
"""RocketMQ: `TopicValidator`."""


class Permission(IntFlag):
    """RocketMQ: `PermName`."""

    INHERIT = 1
    """The topic may be a template for automatic creation."""
    WRITE = 2
    READ = 4


class TopicOrder(Enum):
    """The order that a topic promises."""

    NONE = "none"
    BY_KEY = "by key"
    """Messages of one key stay in order; the usual meaning of "ordered"."""
    GLOBAL = "global"
    """All messages stay in order, without any parallelism."""


class TopicConfig(NamedTuple):
    name: str
    read_queues: int
    write_queues: int
    permission: Permission = Permission.READ | Permission.WRITE
    order: TopicOrder = TopicOrder.NONE
    sys_flag: int = 0
    created_ms: int = 0
    """When the topic was created, in milliseconds since 1970. It tells a topic from an earlier one of the same name; 0
    if unknown, as for the broker's own topics."""

    @property
    def queues(self) -> int:
        """How many queues it has, whether they can be read, written, or both."""
        return max(self.read_queues, self.write_queues)

    @property
    def writable(self) -> bool:
        # Plain integers, because every send asks this, and flags are slow to combine.
        return int.__and__(self.permission, 2) != 0

    def takes(self, queue_id: int) -> bool:
        """Whether messages may be sent to this queue. Every send asks this, so it calls nothing of Python."""
        exists = queue_id < self.write_queues or queue_id < self.read_queues
        return exists and int.__and__(self.permission, 2) != 0

    @property
    def ordered(self) -> bool:
        return self.order is not TopicOrder.NONE


class WhyRefused(Enum):
    """Why a topic was refused. The text is the remark in the answer, and says what to do."""

    GLOBAL_NEEDS_ONE_QUEUE = "a globally ordered topic has exactly one queue: ask for 1, or for order by key"
    QUEUE_COUNT_IS_FIXED = (
        "the queue count of an ordered topic cannot change, its keys would move: create another topic"
    )
    ORDER_KEEPS_QUEUES = (
        "the topic exists with another number of queues and is not ordered; with another number, keys would leave "
        "their messages behind: ask for the number that it has, or delete it first"
    )
    ORDER_IS_FIXED = "an ordered topic stays ordered, its consumers rely on it: create another topic"
    BAD_QUEUE_COUNT = f"a topic has 1 to {MAX_QUEUES} queues"
    SYSTEM_TOPIC = "the name belongs to the broker: choose another"
    NO_TEMPLATE = "the topic does not exist and topics are not created automatically here: create it first"
    TOO_MANY = f"the broker has {MAX_TOPICS} topics, and may not have more: delete some"
    UNKNOWN = "the topic does not exist"


@dataclass(frozen=True, slots=True)
class Created:
    topic: TopicConfig


@dataclass(frozen=True, slots=True)
class Changed:
    before: TopicConfig
    topic: TopicConfig


@dataclass(frozen=True, slots=True)
class Existing:
    """The topic existed as requested; nothing to save."""

    topic: TopicConfig


@dataclass(frozen=True, slots=True)
class Deleted:
    topic: TopicConfig


@dataclass(frozen=True, slots=True)
class TopicRefused:
    name: str
    why: WhyRefused


Put: TypeAlias = Created | Changed | Existing | TopicRefused


class TopicTable:
    """All topics of one broker. Its system topics always exist and are never saved."""

    def __init__(
        self,
        *,
        auto_create: bool = True,
        template_queues: int = TEMPLATE_QUEUES,
        max_topics: int = MAX_TOPICS,
        own_names: Iterable[str] = (),
    ) -> None:
        """`own_names` are the broker and cluster name, which RocketMQ's tools use as topics, and the reply topic.

        `template_queues` are the queues among which a producer chooses before a topic exists, so no more than a new
        topic has.
        """
        self._max_topics = max_topics
        self._system = OTHER_SYSTEM_TOPICS | frozenset(own_names)
        self._topics = {
            config.name: config
            for config in (
                TopicConfig(SCHEDULE_TOPIC, SCHEDULE_QUEUES, SCHEDULE_QUEUES),
                *(TopicConfig(name, 1, 1) for name in sorted({"SELF_TEST_TOPIC", TRACE_TOPIC, *own_names})),
            )
        }
        if auto_create:
            every = Permission.INHERIT | Permission.READ | Permission.WRITE
            self._topics[DEFAULT_TOPIC] = TopicConfig(DEFAULT_TOPIC, template_queues, template_queues, every)

    def get(self, name: str) -> TopicConfig | None:
        return self._topics.get(name)

    def topics(self) -> tuple[TopicConfig, ...]:
        """All topics, sorted by name."""
        return tuple(self._topics[name] for name in sorted(self._topics))

    def is_system(self, name: str) -> bool:
        """Whether the name belongs to the broker; users cannot list, change or delete such topics."""
        return name.startswith(SYSTEM_PREFIX) or name in self._system

    def put(self, config: TopicConfig) -> Put:
        """Create or change a topic for an administrator; raises `InvalidName` if the name is not allowed."""
        check_topic(config.name)
        before = self._topics.get(config.name)
        if before is not None:
            config = config._replace(created_ms=before.created_ms)
        why = self._objection(before, config)
        if why is not None:
            return TopicRefused(config.name, why)
        if before == config:
            return Existing(config)
        self._store(config)
        return Created(config) if before is None else Changed(before, config)

    def auto_create(self, name: str, template: str, asked_queues: int) -> Created | Existing | TopicRefused:
        """The topic of a send: the existing one, or a new one made from the template.

        A new topic has no more queues than the template and is not a template itself (RocketMQ:
        `TopicConfigManager.createTopicInSendMessageMethod`). The broker's own topics accept no sends, except those for
        message trace.
        """
        if name in NOT_SENDABLE:
            return TopicRefused(name, WhyRefused.SYSTEM_TOPIC)
        known = self._topics.get(name)
        if known is not None:
            return Existing(known)
        if name.startswith(RETRY_PREFIX):
            return self._ensure(name, 1, Permission.READ | Permission.WRITE)
        source = self._topics.get(template)
        if source is None or not source.permission & Permission.INHERIT:
            return TopicRefused(name, WhyRefused.NO_TEMPLATE)
        queues = min(asked_queues, source.write_queues)
        return self._ensure(name, queues, source.permission & ~Permission.INHERIT)

    def ensure_retry(self, group: str, queues: int = 1) -> Created | Changed | Existing | TopicRefused:
        """The topic in which a group's messages wait for another attempt, with at least so many queues."""
        known = self._topics.get(retry_topic(group))
        queues = min(queues, MAX_QUEUES)
        if known is None:
            return self._ensure(retry_topic(group), queues, Permission.READ | Permission.WRITE)
        if min(known.read_queues, known.write_queues) >= queues:
            return Existing(known)
        grown = known._replace(read_queues=max(known.read_queues, queues), write_queues=max(known.write_queues, queues))
        self._store(grown)
        return Changed(known, grown)

    def ensure_dead_letter(self, group: str) -> Created | Existing | TopicRefused:
        return self._ensure(dead_letter_topic(group), 1, Permission.READ | Permission.WRITE)

    def delete(self, name: str) -> Deleted | TopicRefused:
        """Remove a topic; the caller deletes its row, its queues and its rows in other tables."""
        if self.is_system(name):
            return TopicRefused(name, WhyRefused.SYSTEM_TOPIC)
        known = self._topics.pop(name, None)
        if known is None:
            return TopicRefused(name, WhyRefused.UNKNOWN)
        return Deleted(known)

    def created_at(self, name: str, created_ms: int) -> TopicConfig:
        """Record when a new topic was created."""
        topic = self._topics[name] = self._topics[name]._replace(created_ms=created_ms)
        return topic

    def restore(self, topics: Iterable[TopicConfig]) -> None:
        self._topics.update((topic.name, topic) for topic in topics)

    def _ensure(self, name: str, queues: int, permission: Permission) -> Created | Existing | TopicRefused:
        known = self._topics.get(name)
        if known is not None:
            return Existing(known)
        config = TopicConfig(check_topic(name), queues, queues, permission)
        why = self._objection(None, config)
        if why is not None:
            return TopicRefused(name, why)
        self._store(config)
        return Created(config)

    def _objection(self, before: TopicConfig | None, wanted: TopicConfig) -> WhyRefused | None:
        counts = (wanted.read_queues, wanted.write_queues)
        if self.is_system(wanted.name) and not wanted.name.startswith(TRACE_PREFIX):
            return WhyRefused.SYSTEM_TOPIC
        if not all(1 <= count <= MAX_QUEUES for count in counts):
            return WhyRefused.BAD_QUEUE_COUNT
        if wanted.order is TopicOrder.GLOBAL and counts != (1, 1):
            return WhyRefused.GLOBAL_NEEDS_ONE_QUEUE
        if before is None:
            return WhyRefused.TOO_MANY if len(self._topics) >= self._max_topics else None
        same_counts = counts == (before.read_queues, before.write_queues)
        if before.ordered and not wanted.ordered:
            return WhyRefused.ORDER_IS_FIXED
        if wanted.ordered and not same_counts:
            return WhyRefused.QUEUE_COUNT_IS_FIXED if before.ordered else WhyRefused.ORDER_KEEPS_QUEUES
        return None

    def _store(self, config: TopicConfig) -> None:
        self._topics[config.name] = config
