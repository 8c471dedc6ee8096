"""Where a query begins and ends: what the options say, and what that means for a queue.

One convention everywhere: an offset is the next one to read. So "starting at 5" reads the message at 5, and
"ending at 9" does not read the one at 9. The JSON form is the one that a query's progress shows, so a position
seen there can be pasted back.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import NamedTuple

from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset

LATEST, EARLIEST = -1, -2
"""In JSON per queue, as in Spark's Kafka source."""


class Kind(Enum):
    """How a place is described."""

    EARLIEST = "earliest"
    LATEST = "latest"
    COMMITTED = "committed"
    """Where the group stands; a queue it has never been in begins at its earliest message."""
    OFFSETS = "offsets per queue"
    TIME = "a time"
    TIMES = "times per queue"


class Bounds(NamedTuple):
    """What a queue holds: from `first` up to, and not including, `end`."""

    first: QueueOffset
    end: QueueOffset


@dataclass(frozen=True, slots=True)
class Place:
    """A position in every queue of a query."""

    kind: Kind
    millis: int = 0
    """Wall time, for a place in time."""
    per_queue: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    """By topic, then by `broker/number` or by number alone where one broker holds the topic."""

    def named(self, queue: MessageQueue) -> int | None:
        """The number given for this queue, if one was."""
        queues = self.per_queue.get(queue.topic, {})
        return queues.get(f"{queue.broker}/{queue.queue_id}", queues.get(str(queue.queue_id)))

    def unmatched(self, queues: Iterable[MessageQueue]) -> list[str]:
        """Names that are given and belong to none of these queues."""
        known: dict[str, set[str]] = {}
        for queue in queues:
            known.setdefault(queue.topic, set()).update((f"{queue.broker}/{queue.queue_id}", str(queue.queue_id)))
        return [
            f"{topic} {name}" if topic in known else topic
            for topic, names in self.per_queue.items()
            for name in names or ("",)
            if name not in known.get(topic, ()) and (name or topic not in known)
        ]

    def beyond(self, held: Mapping[MessageQueue, Bounds]) -> list[str]:
        """Offsets that are given and lie behind the end of their queue, each with what the queue holds."""
        if self.kind is not Kind.OFFSETS:
            return []
        named = ((queue, self.named(queue), bounds) for queue, bounds in held.items())
        return [
            f"{queue} has no {number}, it holds {first} up to, not including, {end}"
            for queue, number, (first, end) in named
            if number is not None and number > end
        ]


def named_offset(number: int, bounds: Bounds) -> QueueOffset:
    """A number from JSON: -1 and -2 stand for the ends of the queue."""
    if number == LATEST:
        return bounds.end
    return bounds.first if number == EARLIEST else QueueOffset(number)


def parse_place(option: str, text: str) -> Place:
    """`earliest`, `latest`, `committed`, or JSON such as `{"orders": {"0": 17, "1": -2}}`."""
    word = text.strip().lower()
    if word in ("earliest", "latest", "committed"):
        return Place(Kind(word))
    if not text.strip().startswith("{"):
        raise InvalidOption(f"{option}: {text!r} is none of earliest, latest, committed or JSON per queue")
    return Place(Kind.OFFSETS, per_queue=_per_queue(option, text, least=EARLIEST))


def parse_times(option: str, text: str) -> Place:
    """JSON of milliseconds since 1970 per queue."""
    return Place(Kind.TIMES, per_queue=_per_queue(option, text, least=0))


def _per_queue(option: str, text: str, *, least: int) -> dict[str, dict[str, int]]:
    try:
        topics = json.loads(text)
    except ValueError as error:
        raise InvalidOption(f"{option}: {text!r} is no JSON: {error}") from None
    if not isinstance(topics, dict) or not all(isinstance(each, dict) for each in topics.values()):
        raise InvalidOption(f'{option}: {text!r} should look like {{"topic": {{"0": 17, "1": {least}}}}}')
    for topic, queues in topics.items():
        for queue, number in queues.items():
            if not queue.rpartition("/")[2].isdigit():
                raise InvalidOption(f"{option}: {topic} has no queue {queue!r}: write 0 or broker/0")
            if isinstance(number, bool) or not isinstance(number, int) or number < least:
                raise InvalidOption(f"{option}: {topic} queue {queue} is {number!r}, not a number from {least} up")
    return topics
