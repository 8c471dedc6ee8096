"""Offsets of a query: its positions in all queues, and where its options tell it to start and end.

Positions are stored in Spark's checkpoint as JSON:

    {
        "@created": {"orders/broker-a": 1793000000000},
        "@stored": {"orders/broker-a/0/18": 1793000007000, "orders/broker-a/1/3": 1793000004000},
        "@tasks": {"least": 8},
        "orders": {"broker-a/0": 17, "broker-a/1": 4}
    }

`@created` says when each broker created the topic: offsets of a topic that was deleted and created again stand for
other messages, even if they exist. Apache brokers do not tell, so their topics are missing there.

`@stored` says of each queue when its newest message was stored, at the time when the position was chosen: above, the
queue ended at 19. Brokers report it with the bounds, so it costs no request. A broker that was restored from an older
backup, and a log that was truncated, give the same offsets to other messages, which were stored at other times.

`@tasks` says among how many tasks at least the batch that ends here was divided. A batch that is repeated has the same
tasks, although the session may have other cores by then: a sink that numbers rows by task must find them again. If it
is missing, every queue had a task of its own.

An offset is always the next one to read: "starting at 5" reads the message at 5, and "ending at 9" does not read the
message at 9. `startingOffsets` and `endingOffsets` accept the same JSON, so a position from a query's progress can be
pasted into an option.

Invariant: equal positions give equal text, because Spark compares texts to decide whether there is new data.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple, TypeAlias

from lanemq.model.errors import InvalidOption, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

Positions: TypeAlias = dict[MessageQueue, QueueOffset]
OffsetJson: TypeAlias = dict[str, dict[str, int]]
Created: TypeAlias = dict[str, int]
"""By `topic/broker`, when the broker created the topic, in milliseconds since 1970."""


class NewestMessage(NamedTuple):
    """A message of a queue, as the broker reports it."""

    offset: QueueOffset
    stored: int
    """Milliseconds since 1970, by the broker's clock."""


Stored: TypeAlias = dict[MessageQueue, NewestMessage]
"""The newest message of each queue, where it is known."""

CREATED = "@created"
"""The member of the JSON for `Created`; no topic can have this name."""
STORED = "@stored"
"""The member of the JSON for `Stored`."""
TASKS, LEAST = "@tasks", "least"
"""The member of the JSON for the least number of tasks, and its only entry."""
_MEMBERS = (CREATED, STORED, TASKS)

LATEST, EARLIEST = -1, -2
"""Values in the JSON of `startingOffsets` and `endingOffsets`, as in Spark's Kafka source."""


def creation_key(queue: MessageQueue) -> str:
    """The queue's key in `Created`."""
    return f"{queue.topic}/{queue.broker}"


def to_json(
    positions: Mapping[MessageQueue, QueueOffset],
    created: Mapping[str, int] | None = None,
    least_tasks: int | None = None,
    stored: Mapping[MessageQueue, NewestMessage] | None = None,
) -> OffsetJson:
    """The checkpoint's form of these positions, sorted."""
    known = {key: number for key, number in sorted((created or {}).items()) if number}
    topics: OffsetJson = {CREATED: known} if known else {}
    newest = {
        f"{creation_key(queue)}/{queue.queue_id}/{last.offset}": last.stored
        for queue, last in sorted((stored or {}).items())
        if 0 < positions.get(queue, 0) <= last.offset + 1  # an older message than the last one read shows nothing
    }
    if newest:
        topics[STORED] = newest
    if least_tasks is not None:
        topics[TASKS] = {LEAST: least_tasks}
    for queue in sorted(positions):
        topics.setdefault(queue.topic, {})[f"{queue.broker}/{queue.queue_id}"] = int(positions[queue])
    return topics


def from_json(offset: Mapping[str, Mapping[str, int]]) -> Positions:
    """The positions in a checkpoint; `UsageError` if this source did not write it."""
    positions: Positions = {}
    try:
        for topic, queues in offset.items():
            for name, number in queues.items() if topic not in _MEMBERS else ():
                broker, _, queue_id = name.rpartition("/")
                positions[MessageQueue(topic, broker, int(queue_id))] = QueueOffset(int(number))
    except (AttributeError, TypeError, ValueError):
        raise UsageError(
            f"the checkpoint contains {str(offset)[:200]}, which is not a position of a lanemq source: "
            f"use another checkpoint location"
        ) from None
    return positions


def created_in(offset: Mapping[str, Mapping[str, int]]) -> Created:
    """When the topics of a position were created, as far as the position says."""
    return dict(offset.get(CREATED, {}))


def stored_in(offset: Mapping[str, Mapping[str, int]]) -> Stored:
    """The newest messages of the queues when a position was chosen, as far as the position says."""
    found: Stored = {}
    for name, stored in offset.get(STORED, {}).items():
        topic_and_broker, queue_id, number = name.rsplit("/", 2)
        topic, _, broker = topic_and_broker.partition("/")
        found[MessageQueue(topic, broker, int(queue_id))] = NewestMessage(QueueOffset(int(number)), stored)
    return found


def least_tasks_in(offset: Mapping[str, Mapping[str, int]]) -> int | None:
    """Among how many tasks at least the batch that ends here was divided; None if every queue had its own."""
    return offset.get(TASKS, {}).get(LEAST)


class Bounds(NamedTuple):
    """The offsets that a queue holds: from `first` up to, but not including, `end`."""

    first: QueueOffset
    end: QueueOffset


class LimitKind(Enum):
    """How an option gives the start or end of a query."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    """The group's committed offset; the earliest message of a queue for which the group has none."""
    OFFSETS = "offsets per queue"
    TIME = "a time"
    TIMES = "times per queue"


@dataclass(frozen=True, slots=True)
class RangeLimit:
    """The start or the end of a query in all its queues, as an option gives it."""

    kind: LimitKind
    millis: int = 0
    """Milliseconds since 1970, for `LimitKind.TIME`."""
    per_queue: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By topic, then by `broker/queue`, or by queue number alone if only one broker holds the topic."""

    def given_for(self, queue: MessageQueue) -> int | None:
        """The number that the option gives for this queue; None if it gives none."""
        queues = self.per_queue.get(queue.topic, {})
        return queues.get(f"{queue.broker}/{queue.queue_id}", queues.get(str(queue.queue_id)))

    def unknown_queues(self, queues: Iterable[MessageQueue]) -> list[str]:
        """Names in the option that match none of these queues."""
        known: dict[str, set[str]] = {}
        for queue in queues:
            known.setdefault(queue.topic, set()).update((f"{queue.broker}/{queue.queue_id}", str(queue.queue_id)))
        return [
            f"{topic} {name}" if topic in known else topic
            for topic, names in self.per_queue.items()
            for name in names or ("",)
            if name not in known.get(topic, ()) and (name or topic not in known)
        ]

    def past_the_end(self, held: Mapping[MessageQueue, Bounds]) -> list[str]:
        """A sentence for each offset in the option that is greater than the end of its queue."""
        if self.kind is not LimitKind.OFFSETS:
            return []
        given = ((queue, self.given_for(queue), bounds) for queue, bounds in held.items())
        return [
            f"{queue} has no offset {number}: it holds {first} up to, not including, {end}"
            for queue, number, (first, end) in given
            if number is not None and number > end
        ]


def resolve_offset(number: int, bounds: Bounds) -> QueueOffset:
    """An offset from JSON, where -1 means the end of the queue and -2 its first message."""
    if number == LATEST:
        return bounds.end
    return bounds.first if number == EARLIEST else QueueOffset(number)


def parse_offsets(option: str, text: str) -> RangeLimit:
    """Parses `earliest`, `latest`, `committed`, or JSON such as `{"orders": {"0": 17, "1": -2}}`."""
    word = text.strip().lower()
    if word in ("earliest", "latest", "committed"):
        return RangeLimit(LimitKind(word))
    if not text.strip().startswith("{"):
        raise InvalidOption(f"{option}: {text!r} is not earliest, latest, committed, or JSON with offsets per queue")
    return RangeLimit(LimitKind.OFFSETS, per_queue=_per_queue(option, text, least=EARLIEST))


def parse_timestamps(option: str, text: str) -> RangeLimit:
    """Parses JSON with milliseconds since 1970 per queue."""
    return RangeLimit(LimitKind.TIMES, per_queue=_per_queue(option, text, least=0))


def _per_queue(option: str, text: str, *, least: int) -> dict[str, dict[str, int]]:
    try:
        topics = json.loads(text)
    except ValueError as error:
        raise InvalidOption(f"{option}: {text!r} is not valid JSON: {error}") from None
    if not isinstance(topics, dict) or not all(isinstance(each, dict) for each in topics.values()):
        raise InvalidOption(f'{option}: {text!r} should look like {{"topic": {{"0": 17, "1": {least}}}}}')
    for member in _MEMBERS:
        topics.pop(member, None)
    for topic, queues in topics.items():
        for queue, number in queues.items():
            if not queue.rpartition("/")[2].isdigit():
                raise InvalidOption(f"{option}: {topic} has no queue {queue!r}: write 0 or broker/0")
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise InvalidOption(f"{option}: {topic} queue {queue} is {number!r}; it must be an integer >= {least}")
    return topics
