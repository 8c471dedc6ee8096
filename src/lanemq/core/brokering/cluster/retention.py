"""Which parked messages are copied, because the broker that has them may delete them soon.

An Apache broker deletes log files that are older than its retention, and any file when its disk is nearly full. Neither
knows of parked lanes. So what has half of the retention behind it is copied, and everything while the disk is filling.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lanemq.core.brokering.queue_progress import ParkedLane

HOUR_MS = 3_600_000
RESERVED_HOURS = 72
"""Of brokers that do not say (RocketMQ: fileReservedTime)."""
FULL_RATIO = 0.7
"""From this share of a broker's disk on, everything that is parked there is copied. By default RocketMQ deletes expired
files at any time of the day from 0.75 on, and others from 0.85 on."""


class BrokerRetention(NamedTuple):
    """What a broker says of its log."""

    reserved_ms: int = RESERVED_HOURS * HOUR_MS
    disk_ratio: float = 0.0

    def copied_before(self, now: int) -> int:
        """Messages that were stored before this time are copied."""
        return now if self.disk_ratio >= FULL_RATIO else now - self.reserved_ms // 2


class ToCopy(NamedTuple):
    lane: ParkedLane
    offsets: list[int]


def to_copy(lanes: Iterable[ParkedLane], below: int, first: int, limit: int) -> Iterator[ToCopy]:
    """The offsets of lanes to copy, up to `limit` in all: those below an offset that the broker still has."""
    for lane in lanes:
        if limit <= 0:
            return
        start = max(lane.copied + 1, first)
        offsets = [offset for offset in lane.offsets.from_offset(start, limit) if offset < below]
        limit -= len(offsets)
        if offsets:
            yield ToCopy(lane, offsets)


def deleted(lane: ParkedLane, first: int, limit: int) -> list[int]:
    """The first parked offsets that the broker has deleted and that were not copied."""
    if lane.offsets and lane.first >= first:
        return []
    return [offset for offset in lane.offsets.from_offset(lane.copied + 1, limit) if offset < first]
