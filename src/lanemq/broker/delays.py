"""Delivers delayed messages when their time has come.

Per delay level a cursor walks through the level's waiting room. A message is appended to its real topic first
and the cursor moves when that is on disk; the cursor is saved with the next flush of offsets. A crash between
the two delivers the messages of that moment again: a delay is at least once, as every delivery here.
"""

import logging
from functools import partial

from lanemq.broker.parts import Parts
from lanemq.broker.storage.group_commit import Done
from lanemq.core.brokering.delay import MAX_LEVEL, due, due_at
from lanemq.log.appender import NewRecord
from lanemq.log.reading import ReadStatus
from lanemq.model.errors import BrokerBusy, StorageError
from lanemq.model.names import SCHEDULE_TOPIC
from lanemq.model.units import Millis, QueueOffset
from lanemq.wire.properties import LANE_STAMP, PropertyName, decode_properties, remove_property, tag_code_of
from lanemq.wire.record import RecordView, pack_host, record_starts

log = logging.getLogger(__name__)

AT_A_TIME = 256
AT_A_TIME_BYTES = 4 * 1024 * 1024


class DelayDelivery:
    """Called at every tick of the housekeeping; looks only at levels that hold something."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._under_way: dict[int, QueueOffset] = {}
        """Level → the offset behind the last message handed to the log and not yet on disk."""
        self._not_before: dict[int, tuple[QueueOffset, Millis]] = {}
        """Level → the message that waits there first, and the wall time until which nobody need look at it."""

    def tick(self) -> None:
        for level in range(1, MAX_LEVEL + 1):
            self._deliver(level)

    def _deliver(self, level: int) -> None:
        cursors, store = self._parts.delays, self._parts.store
        if level in self._under_way:
            return
        low, high = store.bounds(SCHEDULE_TOPIC, level - 1)
        cursors.skip_to(level, QueueOffset(low))
        offset = cursors.next_offset(level)
        if offset >= high:
            return
        wall = self._parts.clock.wall()
        waiting, until = self._not_before.get(level, (None, Millis(0)))
        if waiting == offset and wall < until:
            return
        # One first: most of the time a whole screen would be read only to learn that it is too early.
        for first in self._read(level, offset, 1):
            until = due_at(level, Millis(first.store_timestamp))
            self._not_before[level] = (offset, until)
            if wall >= until:
                records = self._read(level, offset, AT_A_TIME)
                self._append(level, [each for each in records if due(level, Millis(each.store_timestamp), wall)])

    def _read(self, level: int, offset: QueueOffset, most: int) -> list[RecordView]:
        """Messages of a level from an offset on; where none can be read the cursor moves past the place."""
        result = self._parts.store.read(SCHEDULE_TOPIC, level - 1, offset, most, AT_A_TIME_BYTES)
        for damaged in result.damaged:
            log.error("the delayed message %s of level %s is damaged and lost", damaged, level)
        if result.status is not ReadStatus.FOUND:
            self._parts.delays.skip_to(level, QueueOffset(result.next_offset))
        return [RecordView(result.data, start) for start in record_starts(result.data)]

    def _append(self, level: int, ready: list[RecordView]) -> None:
        """Hands over as many as the log takes now; the cursor follows each of them to the disk."""
        for record in ready:
            end = QueueOffset(record.queue_offset + 1)
            try:
                self._append_one(record, partial(self._stored, level, end))
            except (BrokerBusy, StorageError) as error:
                log.warning("delayed messages of level %s wait: %s", level, error)
                return
            self._under_way[level] = end

    def _stored(self, level: int, end: QueueOffset, error: StorageError | None) -> None:
        if error is None:
            self._parts.delays.skip_to(level, end)
        if self._under_way.get(level) == end:
            del self._under_way[level]
            if error is None:
                self._deliver(level)

    def _append_one(self, record: RecordView, done: Done) -> None:
        properties = decode_properties(record.properties_text)
        topic = self._parts.topics.get(properties.get(PropertyName.REAL_TOPIC, ""))
        if topic is None:
            log.error("a delayed message is dropped: its topic %r was deleted", properties.get("REAL_TOPIC"))
            self._parts.group_commit.barrier(done)
            return
        # The stamp counted when the message was sent; in the copy it would count again.
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
        self._parts.group_commit.append(topic.name, queue_id, [item], pack_host(host, int(port)), size, done)
