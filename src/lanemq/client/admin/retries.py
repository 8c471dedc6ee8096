"""Messages that a concurrent group failed to process and will get again.

Such a message is finished in its own queue. The broker stores a copy with a delay level, and appends it to the group's
retry topic when it is due; there it counts as lag like any other message. Until then no queue of the group has it.

The copies are read like other messages: by key with the brokers' index, or all of them from the queues of the delay
levels. Brokers report up to where they have delivered each of these queues. RocketMQ 4 does so only once it has
delivered a message of that level: until then all messages of the queue wait.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TypeAlias

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.admin.views import GroupDescription
from lanemq.client.message import Message
from lanemq.core.brokering.delay import MAX_LEVEL, delay_of
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.errors import BrokerRefused
from lanemq.model.names import RETRY_PREFIX, SCHEDULE_TOPIC, retry_topic
from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import PropertyName

MAX_READ = 1_000
"""Delayed messages that one reading looks at, those of the shortest delays first. The others are counted only."""
MAX_READ_BYTES = 16 * 1024 * 1024
"""Stored bytes after which a reading stops; the next one continues there."""
_OPEN_END = 1 << 62
"""The end of a queue of which the broker reports nothing."""
_FIGURE = "scheduleMessageOffset_"
"""A broker's figure for each delay level: the next message to deliver, and the end of the level's queue."""

Progress: TypeAlias = Mapping[MessageQueue, tuple[int, FinishedRanges]]
"""The committed offset of each queue, and what is finished above it."""


@dataclass(frozen=True, slots=True)
class GroupRetry:
    """A message that a group will get again."""

    group: str
    topic: str
    """The topic that the message was sent to."""
    key: str | None
    attempts: int
    """How often it failed."""
    since: datetime
    """When it failed last."""
    due: datetime | None
    """When it is delivered again, to about a second; None if it is in the group's retry topic already."""


def retry_progress(admin: Admin, group: GroupDescription) -> Progress:
    """The group's progress in its retry topic."""
    progress: dict[MessageQueue, tuple[int, FinishedRanges]] = {}
    for at in group.queues:
        if at.queue.topic == retry_topic(group.group):
            offset, finished = admin.progress(group.group, at.queue) if at.finished else (None, NOTHING_FINISHED)
            progress[at.queue] = (at.offset if offset is None else offset, finished)
    return progress


class RetrySearch:
    """Finds the retries of messages, which have one key and one queue.

    Read the progress in retry topics (`retry_progress`) before you create this. If the broker moves a message from the
    delay topic to the retry topic in between, the search still finds it in one of the two, and nothing takes it for
    finished.
    """

    def __init__(self, admin: Admin, messages: Sequence[Message]) -> None:
        self._admin = admin
        self._messages = messages
        self.unknown = ""
        """Why delayed retries are not known; empty if they are."""
        self._delayed: list[Message] = []
        try:
            positions = dict(_positions((each.broker, each.table) for each in admin.figures()))
            if any(start < end for start, end in positions.values()):
                copies = admin.find_copies(SCHEDULE_TOPIC, messages)
                self._delayed = [one for one in copies if one.queue_offset >= positions.get(one.queue, (0, 0))[0]]
        except BrokerRefused as error:
            self.unknown = str(error)

    def of(self, group: str, progress: Progress) -> tuple[dict[int, GroupRetry], str]:
        """The group's retries by the offset of the message that failed, and why others may be missing."""
        topic, unknown = retry_topic(group), self.unknown
        copies = [each for each in self._delayed if each.properties.get(PropertyName.REAL_TOPIC) == topic]
        try:
            if progress:
                copies += [one for one in self._admin.find_copies(topic, self._messages) if _is_open(one, progress)]
        except BrokerRefused as error:  # such as a user without a right to this group
            unknown = str(error)
        by_origin = {copy.properties.get(PropertyName.ORIGIN_ID): _retry(group, copy) for copy in copies}
        retries = (
            (one.queue_offset, by_origin.get(one.message_id) or by_origin.get(one.stored_id)) for one in self._messages
        )
        return {offset: retry for offset, retry in retries if retry is not None}, unknown


def _is_open(copy: Message, progress: Progress) -> bool:
    offset, finished = progress.get(copy.queue, (0, NOTHING_FINISHED))
    return copy.queue_offset >= offset and copy.queue_offset not in finished


def _retry(group: str, copy: Message) -> GroupRetry:
    due = None
    if copy.queue.topic == SCHEDULE_TOPIC:
        due = copy.stored_at + timedelta(milliseconds=delay_of(copy.queue.queue_id + 1))
    topic = copy.properties.get(PropertyName.RETRY_TOPIC, "")
    return GroupRetry(group, topic, copy.key, copy.reconsume_times, copy.stored_at, due)


def _positions(figures: Iterable[tuple[str, Mapping[str, str]]]) -> Iterator[tuple[MessageQueue, tuple[int, int]]]:
    """The queue of each delay level, its next message to deliver, and its end."""
    for broker, table in figures:
        if table.get("brokerVersionDesc", "").startswith("V4"):
            for level in range(1, MAX_LEVEL + 1):
                if f"{_FIGURE}{level}" not in table:
                    yield MessageQueue(SCHEDULE_TOPIC, broker, level - 1), (0, _OPEN_END)
        for name, value in table.items():
            number = name.removeprefix(_FIGURE)
            if number != name and number.isdecimal():
                start, _, end = value.partition(",")
                yield MessageQueue(SCHEDULE_TOPIC, broker, int(number) - 1), (int(start), int(end))


@dataclass(frozen=True, slots=True)
class RetriesNow:
    """The delayed retries of all groups."""

    retries: tuple[GroupRetry, ...] = ()
    left_out: int = 0
    """Delayed messages that were not read; some may be retries."""
    unknown: str = ""
    """Why none were read; empty if they were."""

    @property
    def note(self) -> str:
        """What is missing, as a sentence; empty if nothing is."""
        if self.unknown:
            return f"Messages that wait for a retry are missing: {self.unknown}."
        return f"{self.left_out:,} delayed messages were not read; some may wait for a retry." if self.left_out else ""


@dataclass(slots=True)
class DelayedRetries:
    """Reads the delayed retries of all groups. A stored message never changes, so each is read once."""

    server: str
    _known: dict[MessageQueue, dict[int, GroupRetry | None]] = field(default_factory=dict)
    """By queue of a delay level and offset; None for a delayed message that is no retry."""

    def read(self, figures: Iterable[tuple[str, Mapping[str, str]]]) -> RetriesNow:
        """`figures`: every broker's name and what it reports about itself."""
        waiting = {queue: span for queue, span in sorted(_positions(figures)) if span[0] < span[1]}
        self._known = {
            queue: {offset: retry for offset, retry in self._known.get(queue, {}).items() if offset >= start}
            for queue, (start, _) in waiting.items()
        }
        try:
            if waiting:
                self._read(waiting)
        except BrokerRefused as error:
            return RetriesNow(unknown=str(error))
        known = [retry for queue in self._known.values() for retry in queue.values()]
        left_out = sum(
            max(0, end - start - len(self._known[queue])) for queue, (start, end) in waiting.items() if end < _OPEN_END
        )
        return RetriesNow(tuple(each for each in known if each is not None), left_out)

    def _read(self, waiting: Mapping[MessageQueue, tuple[int, int]]) -> None:
        room, size = MAX_READ, 0
        with TopicReader(self.server, SCHEDULE_TOPIC) as reader:
            for queue, (start, end) in waiting.items():
                known = self._known[queue]
                begin, stop = max(known, default=start - 1) + 1, min(end, start + room)
                for message in reader.read(queue, begin, stop):
                    topic = message.properties.get(PropertyName.REAL_TOPIC, "")
                    group = topic.removeprefix(RETRY_PREFIX)
                    known[message.queue_offset] = _retry(group, message) if group != topic else None
                    size += message.size
                    if size > MAX_READ_BYTES:
                        return
                room -= min(room, len(known))
