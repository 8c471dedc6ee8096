"""Topics: all of them, one with its queues and readers, and the preview of a new one."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from lanemq.client.admin.views import BrokerFigures, TopicDescription
from lanemq.client.topics import NewTopic, Order
from lanemq.console.snapshot import GroupNow, Snapshot, oldest_age
from lanemq.console.trends import Trends
from lanemq.model.errors import InvalidOption
from lanemq.model.wording import plural

MAX_QUEUES = 4096
"""Queues per broker that the form accepts. Each costs the broker files and the members leases."""
ORDERS: dict[str, Order] = {"key": True, "global": "global", "none": False}
"""What the form calls each order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicRow:
    """A topic in the list."""

    name: str
    ordered: bool
    queues: int
    messages: int
    size: float | None
    """About how many bytes its messages take: their number times the mean size of those that the brokers counted."""
    rate: float | None
    newest: datetime | None
    readers: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class TopicReaderRow:
    """A group that reads the topic, with its progress in this topic alone."""

    name: str
    members: int
    lag: int
    lag_seconds: float | None
    """None while a broker rebuilds the index of the oldest message."""
    done: float
    """Share of the kept messages that are finished, 0 to 1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicQueueRow:
    """A queue of a topic."""

    number: int
    broker: str
    first: int
    end: int
    messages: int
    newest: datetime | None
    owners: tuple[tuple[str, str], ...]
    """Group and owner."""


@dataclass(frozen=True, slots=True)
class TopicView:
    """One topic."""

    row: TopicRow
    queues: tuple[TopicQueueRow, ...]
    readers: tuple[TopicReaderRow, ...]
    away: tuple[str, ...]


def topic_rows(now: Snapshot, trends: Trends) -> tuple[TopicRow, ...]:
    means = mean_sizes(now)
    return tuple(_row(each, now, trends, means) for each in now.topics)


def mean_sizes(now: Snapshot) -> dict[str, float]:
    """The mean size of a stored message, by topic, from the counters of LaneMQ brokers."""
    sent, stored = Counter[str](), Counter[str]()
    for broker in now.brokers:
        figures = BrokerFigures(broker.name, broker.address, broker.lane, broker.info)
        sent.update({topic: int(count) for (topic,), count in figures.series("lanemq_messages_in_total").items()})
        stored.update({topic: int(count) for (topic,), count in figures.series("lanemq_bytes_in_total").items()})
    return {topic: stored[topic] / count for topic, count in sent.items() if count}


def topic_view(name: str, now: Snapshot, trends: Trends) -> TopicView | None:
    """None if there is no such topic."""
    topic = now.topic(name)
    if topic is None:
        return None
    groups = [group for group in now.groups if name in group.topics]
    queues = tuple(
        TopicQueueRow(
            number=each.queue.queue_id,
            broker=each.queue.broker,
            first=each.first,
            end=each.end,
            messages=each.messages,
            newest=each.last_stored_at,
            owners=tuple(
                (group.name, at.at.owner)
                for group in groups
                for at in group.queues
                if at.at.queue == each.queue and at.at.owner is not None
            ),
        )
        for each in topic.queues
    )
    return TopicView(
        _row(topic, now, trends, mean_sizes(now)), queues, tuple(_reader(group, topic) for group in groups), topic.away
    )


def _row(topic: TopicDescription, now: Snapshot, trends: Trends, means: Mapping[str, float]) -> TopicRow:
    kept = sum(each.messages for each in topic.queues)
    return TopicRow(
        name=topic.topic,
        ordered=topic.ordered,
        queues=len(topic.queues),
        messages=kept,
        size=means[topic.topic] * kept if topic.topic in means else None,
        rate=trends.stored_rate(topic.topic),
        newest=max((each.last_stored_at for each in topic.queues if each.last_stored_at is not None), default=None),
        readers=tuple(group.name for group in now.groups if topic.topic in group.topics),
    )


def _reader(group: GroupNow, topic: TopicDescription) -> TopicReaderRow:
    here = [each for each in group.queues if each.at.queue.topic == topic.topic]
    lag = sum(each.at.lag for each in here)
    kept = sum(each.messages for each in topic.queues)
    done = 1.0 if not kept else max(0.0, 1 - lag / kept)
    return TopicReaderRow(group.name, len(group.members), lag, oldest_age(here), done)


def kept_for(settings: Mapping[str, str]) -> tuple[str, str]:
    """For how many seconds, and how many bytes, a broker with these options keeps messages; empty if it does not say.

    An Apache broker has hours, and no limit of bytes.
    """
    hours = settings.get("fileReservedTime", "")
    seconds = str(int(hours) * 3600) if hours.isdecimal() else ""
    return settings.get("retention", seconds), settings.get("retention_bytes", "")


@dataclass(frozen=True, slots=True, kw_only=True)
class NewTopicView:
    """What creating a topic will do, before it is done."""

    topic: NewTopic
    brokers: tuple[tuple[str, str], ...]
    """Name and address of each broker that gets the topic."""
    away: tuple[str, ...]
    """Brokers that do not answer, so that nothing can be created now."""
    problem: str
    """Why the topic cannot be created; empty if it can."""
    exists: bool
    """Whether the topic is there already as asked for, so that nothing will change."""
    order: str
    fixed: tuple[str, ...]
    """What cannot be changed later."""
    open: tuple[str, ...]
    """What can."""

    @property
    def queues(self) -> int:
        """Queues on all brokers."""
        return self.topic.count * len(self.brokers)

    @property
    def possible(self) -> bool:
        return not (self.problem or self.exists or self.away) and bool(self.brokers)


def parse_new_topic(name: str, queues: str, order: str) -> NewTopic:
    """The topic that a form asks for. Raises `InvalidOption` or `InvalidName`."""
    if order not in ORDERS:
        raise InvalidOption(f"{order[:40]!r} is not an order: write key, global or none")
    if ORDERS[order] == "global":
        return NewTopic(name.strip(), None, "global")
    if not queues.strip().isdecimal() or not 1 <= int(queues) <= MAX_QUEUES:
        raise InvalidOption(f"{queues[:40]!r} is not a number of queues: write 1 to {MAX_QUEUES}")
    return NewTopic(name.strip(), int(queues), ORDERS[order])


def new_topic_view(topic: NewTopic, now: Snapshot) -> NewTopicView:
    found = now.topic(topic.name)
    fixed, rest = _later(topic)
    return NewTopicView(
        topic=topic,
        brokers=tuple((each.name, each.address) for each in now.brokers),
        away=tuple(each.name for each in now.brokers if each.error),
        problem=_problem(topic, found, len(now.brokers)),
        exists=found is not None,
        order={True: "by key", False: "not fixed", "global": "all messages in one order"}[topic.ordered],
        fixed=fixed,
        open=rest,
    )


def _problem(topic: NewTopic, found: TopicDescription | None, brokers: int) -> str:
    if found is not None:
        per_broker = max(Counter(each.queue.broker for each in found.queues).values(), default=0)
        if (found.ordered, per_broker) != (bool(topic.ordered), topic.count):
            order = "ordered" if found.ordered else "not ordered"
            return f"Topic {topic.name} exists with {plural(per_broker, 'queue')} per broker and is {order}."
    if topic.ordered == "global" and brokers > 1:
        return f"One order of all messages needs one queue, and there are {brokers} brokers: order by key."
    return ""


def _later(topic: NewTopic) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """What is fixed once the topic exists, and what is not."""
    name = "its name: a topic is not renamed"
    kept = "how long messages are kept: the option retention of each broker"
    if topic.ordered == "global":
        order = "one queue, and one message at a time: more members do not make it faster"
        return (name, order, "that it is ordered"), (kept,)
    if topic.ordered:
        queues = "the number of queues: another one would move keys away from their messages"
        members = "how many keys run at once: an option of each member"
        return (name, "that it is ordered", queues), (kept, members)
    queues = f"the number of queues: lanemq topic create {topic.name} --queues N"
    order = f"that it is not ordered, while it has no messages: lanemq topic create {topic.name} --ordered"
    return (name,), (queues, order, kept)
