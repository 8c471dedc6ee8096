"""Delayed messages: how a message is marked for its delay level, stored there, and delivered when it is due.

A cursor per delay level moves through the level's queue. A message is appended to its real topic first, and the cursor
moves once that is on disk; cursors are saved together with the offsets. A crash in between delivers the last messages
again: delayed delivery is at least once. Delays are elapsed time (`core/brokering/delay`).
"""

import logging
import re
from functools import partial

from msgspec import Struct

from lanemq.broker.storage.group_commit import Done, GroupCommit
from lanemq.clock import Clock
from lanemq.core.brokering.delay import MAX_LEVEL, DelayQueueCursors, DueTimes, capped
from lanemq.core.brokering.topic_table import TopicTable
from lanemq.log.appender import NewRecord, NewRecords, Staged
from lanemq.log.reading import ReadStatus
from lanemq.log.store import Store
from lanemq.model.errors import BrokerRefused, MessageRefused, StillRebuilding, StorageError
from lanemq.model.names import SCHEDULE_TOPIC
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.codes import ResponseCode
from lanemq.wire.properties import (
    LANE_STAMP,
    PropertyName,
    append_properties,
    decode_properties,
    find_property,
    remove_property,
    tag_code_of,
)
from lanemq.wire.record import RecordView, pack_host, record_starts

log = logging.getLogger(__name__)

MAX_MESSAGES = 256
MAX_BYTES = 4 * 1024 * 1024

DELAY_LEVEL = PropertyName.DELAY + "\x01"
TIMER = "TIMER_"
"""Where properties contain neither of these, they ask for no delay."""
_NUMBER = re.compile("-?[0-9]{1,9}")
"""A delay level. `str.isdigit` accepts characters that `int` does not."""


class SendRoute(Struct, frozen=True):
    """Where one message is stored. `requested` is the queue that its sender chose; it differs for a delayed message."""

    topic: str
    queue_id: int
    properties: str
    requested: int


def route_delayed(topic: str, queue_id: int, properties: str) -> SendRoute:
    """Route to the queue of the delay level, with the real topic and queue in the properties; no level: as it is."""
    level = delay_level(properties)
    if level == 0:
        return SendRoute(topic, queue_id, properties, queue_id)
    real = {PropertyName.REAL_TOPIC: topic, PropertyName.REAL_QUEUE: str(queue_id)}
    for name in real:
        properties = remove_property(properties, name)
    return SendRoute(SCHEDULE_TOPIC, level - 1, append_properties(properties, real), queue_id)


def delay_level(properties: str) -> int:
    """The delay level that the properties ask for; 0 for none."""
    if TIMER in properties and any(
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


class DelayDelivery:
    """Appends delayed messages; delivers them when the housekeeping calls, several times a second."""

    def __init__(
        self, cursors: DelayQueueCursors, store: Store, clock: Clock, topics: TopicTable, group_commit: GroupCommit
    ) -> None:
        self._cursors = cursors
        self._store = store
        self._clock = clock
        self._topics = topics
        self._group_commit = group_commit
        self._rate_limited = RateLimitedLog(log, clock)
        ends = {level: QueueOffset(store.bounds(SCHEDULE_TOPIC, level - 1)[1]) for level in range(1, MAX_LEVEL + 1)}
        self._due_times = DueTimes(ends, now=clock.now(), wall=clock.wall())
        self._in_progress: dict[int, QueueOffset] = {}
        """Level → the offset after the last message that was appended and is not on disk yet."""
        self._not_before: dict[int, tuple[QueueOffset, Millis]] = {}
        """Level → the offset of its first message, and the monotonic time at which that is due."""

    def append(self, queue_id: int, items: NewRecords, born_host: bytes, size: int, done: Done) -> Staged:
        """Append messages to the queue of a delay level, and note when they are stored. As `GroupCommit.append`."""
        staged: Staged

        def stored(error: StorageError | None) -> None:
            if error is None:
                end = QueueOffset(staged.first_offset + len(items))
                self._due_times.stored(queue_id + 1, end, now=self._clock.now())
            done(error)

        staged = self._group_commit.append(SCHEDULE_TOPIC, queue_id, items, born_host, size, stored)
        return staged

    def tick(self) -> None:
        for level in range(1, MAX_LEVEL + 1):
            self._deliver(level)

    def _deliver(self, level: int) -> None:
        if level in self._in_progress:
            return
        self._cursors.advance(level, QueueOffset(self._store.bounds(SCHEDULE_TOPIC, level - 1)[0]))
        offset = self._cursors.next_offset(level)
        self._due_times.forget(level, offset)
        count = self._due_times.end(level) - offset
        if count <= 0:
            return
        now = self._clock.now()
        waiting, until = self._not_before.get(level, (None, Millis(0)))
        if waiting == offset and now < until:
            return
        # Read only the first message before more: usually it is not due yet.
        for first in self._read(level, offset, 1):
            until = self._due_at(level, first)
            self._not_before[level] = (offset, until)
            if now >= until:
                records = self._read(level, offset, min(count, MAX_MESSAGES))
                self._append(level, [each for each in records if self._due_at(level, each) <= now])

    def _due_at(self, level: int, record: RecordView) -> Millis:
        return self._due_times.due_at(level, QueueOffset(record.queue_offset), Millis(record.store_timestamp))

    def _read(self, level: int, offset: QueueOffset, limit: int) -> list[RecordView]:
        """Up to `limit` messages of a level; if none can be read, the cursor moves past the damage."""
        try:
            result = self._store.read(SCHEDULE_TOPIC, level - 1, offset, limit, MAX_BYTES)
        except StillRebuilding:
            return []  # the next tick looks again
        for damaged in result.damaged:
            log.error("the delayed message %s of level %s is damaged and lost", damaged, level)
        if result.status is not ReadStatus.FOUND:
            self._cursors.advance(level, QueueOffset(result.next_offset))
        return [RecordView(result.data, start) for start in record_starts(result.data)]

    def _append(self, level: int, ready: list[RecordView]) -> None:
        """Append as many as the log accepts now; the cursor follows as they reach the disk."""
        for record in ready:
            end = QueueOffset(record.queue_offset + 1)
            try:
                self._append_one(record, partial(self._stored, level, end))
            except (BrokerRefused, StorageError) as error:
                self._rate_limited.warn("", f"delayed messages of level {level} wait: {error}")
                return
            self._in_progress[level] = end

    def _stored(self, level: int, end: QueueOffset, error: StorageError | None) -> None:
        if error is None:
            self._cursors.advance(level, end)
        if self._in_progress.get(level) == end:
            del self._in_progress[level]
            if error is None:
                self._deliver(level)

    def _append_one(self, record: RecordView, done: Done) -> None:
        properties = decode_properties(record.properties_text)
        topic = self._topics.get(properties.get(PropertyName.REAL_TOPIC, ""))
        if topic is None:
            log.error("a delayed message is dropped: its topic %r was deleted", properties.get("REAL_TOPIC"))
            self._group_commit.barrier(done)
            return
        # The stamp was counted when the message was sent; in this copy it would count again.
        item = NewRecord(
            record.body,
            remove_property(record.properties_text, LANE_STAMP).encode(),
            tag_code_of(record.properties_text),
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.reconsume_times,
        )
        queue_id = int(properties.get(PropertyName.REAL_QUEUE, "0")) % topic.write_queues
        host, _, port = record.born_host.rpartition(":")
        size = len(item.body) + len(item.properties) + 128
        self._group_commit.append(topic.name, queue_id, [item], pack_host(host, int(port)), size, done)
