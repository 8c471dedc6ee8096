"""Topics: all of them, and one with its queues and readers."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime

from lanemq.client.admin.views import BrokerFigures, TopicDescription
from lanemq.console.snapshot import GroupNow, Snapshot
from lanemq.console.trends import Trends


@dataclass(frozen=True, slots=True)
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
    lag_seconds: float
    done: float
    """Share of the kept messages that are finished, 0 to 1."""


@dataclass(frozen=True, slots=True)
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
            each.queue.queue_id,
            each.queue.broker,
            each.first,
            each.end,
            each.messages,
            each.last_stored_at,
            tuple(
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
        topic.topic,
        topic.ordered,
        len(topic.queues),
        kept,
        means[topic.topic] * kept if topic.topic in means else None,
        trends.stored_rate(topic.topic),
        max((each.last_stored_at for each in topic.queues if each.last_stored_at is not None), default=None),
        tuple(group.name for group in now.groups if topic.topic in group.topics),
    )


def _reader(group: GroupNow, topic: TopicDescription) -> TopicReaderRow:
    here = [each for each in group.queues if each.at.queue.topic == topic.topic]
    lag = sum(each.at.unfinished for each in here)
    kept = sum(each.messages for each in topic.queues)
    late = max((each.lag_ms for each in here if each.lag_ms is not None), default=0) / 1000
    return TopicReaderRow(group.name, len(group.members), lag, late, 1.0 if not kept else max(0.0, 1 - lag / kept))
