"""Delivers delayed messages when their time has come.

Per delay level a cursor walks through the level's waiting room. A message is appended to its real topic first
and the cursor moves when that is on disk; the cursor is saved with the next flush of offsets. A crash between
the two delivers the messages of that moment again: a delay is at least once, as every delivery here.
"""

import logging

from lanemq.broker.appender import Done
from lanemq.broker.parts import Parts
from lanemq.core.delay import MAX_LEVEL, due
from lanemq.log.reading import ReadStatus
from lanemq.log.staging import NewRecord
from lanemq.model.errors import BrokerBusy, StorageError
from lanemq.model.java_hash import java_string_hash
from lanemq.model.names import SCHEDULE_TOPIC
from lanemq.model.units import Millis, QueueOffset
from lanemq.wire.hosts import NO_HOST
from lanemq.wire.properties import PropertyName, decode_properties
from lanemq.wire.record import RecordView, record_starts

log = logging.getLogger(__name__)

AT_A_TIME = 256


class DelayDelivery:
    """Called at every tick of the housekeeping; looks only at levels that hold something."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._under_way: set[int] = set()

    def tick(self) -> None:
        wall = self._parts.clock.wall()
        for level in range(1, MAX_LEVEL + 1):
            if level not in self._under_way:
                self._deliver(level, wall)

    def _deliver(self, level: int, wall: Millis) -> None:
        cursors, store = self._parts.delays, self._parts.store
        low, high = store.bounds(SCHEDULE_TOPIC, level - 1)
        cursors.skip_to(level, QueueOffset(low))
        offset = cursors.next_offset(level)
        if offset >= high:
            return
        result = store.read(SCHEDULE_TOPIC, level - 1, offset, AT_A_TIME, 4 * 1024 * 1024)
        if result.status is not ReadStatus.FOUND:
            cursors.skip_to(level, QueueOffset(result.next_offset))
            return
        ready = [
            record
            for record in (RecordView(result.data, start) for start in record_starts(result.data))
            if due(level, Millis(record.store_timestamp), wall)
        ]
        if ready:
            self._append(level, ready)

    def _append(self, level: int, ready: list[RecordView]) -> None:
        self._under_way.add(level)
        end = QueueOffset(ready[-1].queue_offset + 1)
        last = len(ready) - 1
        try:
            for number, record in enumerate(ready):
                self._append_one(record, self._finisher(level, end) if number == last else _nothing)
        except (BrokerBusy, StorageError) as error:
            self._under_way.discard(level)
            log.warning("delayed messages of level %s wait: %s", level, error)

    def _finisher(self, level: int, end: QueueOffset) -> Done:
        def finished(error: StorageError | None) -> None:
            self._under_way.discard(level)
            if error is None:
                self._parts.delays.skip_to(level, end)

        return finished

    def _append_one(self, record: RecordView, done: Done) -> None:
        properties = decode_properties(record.properties_text)
        topic = properties.get(PropertyName.REAL_TOPIC, "")
        queue_id = int(properties.get(PropertyName.REAL_QUEUE, "0"))
        if self._parts.topics.get(topic) is None:
            log.error("a delayed message for topic %r is dropped: the topic was deleted", topic)
            self._parts.appender.barrier(done)
            return
        tag = properties.get(PropertyName.TAGS)
        item = NewRecord(
            record.body,
            record.properties_text.encode(),
            java_string_hash(tag) if tag else 0,
            record.flag,
            record.sys_flag,
            record.born_timestamp,
            record.reconsume_times,
        )
        size = len(item.body) + len(item.properties) + 128
        self._parts.appender.append(topic, queue_id, [item], NO_HOST, size, done)


def _nothing(_: StorageError | None) -> None:
    return None
