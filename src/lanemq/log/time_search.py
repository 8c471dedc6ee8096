"""Finding an offset by time: a binary search over store times, which never go back within a log."""

import enum

from lanemq.log.commit_log import CommitLog
from lanemq.log.queue_index import QueueIndex
from lanemq.log.queue_table import QueueTable
from lanemq.log.record_bytes import store_time_at
from lanemq.wire.record import HEAD_BYTES


class Boundary(enum.Enum):
    """Which neighbour of a time is meant; values are RocketMQ's `BoundaryType`."""

    LOWER = "LOWER"
    """The first message stored at that time or later; the end of the queue if there is none."""
    UPPER = "UPPER"
    """The last message stored at that time or before; the first one kept if there is none."""


class TimeSearch:
    """Looks only at heads of records, a few dozen per search."""

    def __init__(self, log: CommitLog, queues: QueueTable) -> None:
        self._log = log
        self._queues = queues

    def find(self, queue: QueueIndex, timestamp: int, boundary: Boundary) -> int:
        first = self._queues.first(queue)
        if boundary is Boundary.LOWER:
            return self._first_not_before(queue, timestamp)
        return max(first, self._first_not_before(queue, timestamp + 1) - 1)

    def earliest(self, queue: QueueIndex) -> int | None:
        """The store time of the first readable record."""
        for offset in range(self._queues.first(queue), queue.end):
            time = self._time_of(queue, offset)
            if time is not None:
                return time
        return None

    def latest(self, queue: QueueIndex) -> int | None:
        """The store time of the last readable record."""
        for offset in range(queue.end - 1, self._queues.first(queue) - 1, -1):
            time = self._time_of(queue, offset)
            if time is not None:
                return time
        return None

    def _first_not_before(self, queue: QueueIndex, timestamp: int) -> int:
        low, high = self._queues.first(queue), queue.end
        while low < high:
            middle = (low + high) // 2
            # A damaged record has no time: the next readable one below `high` speaks for it.
            probe = middle
            time = self._time_of(queue, probe)
            while time is None and probe + 1 < high:
                probe += 1
                time = self._time_of(queue, probe)
            if time is not None and time < timestamp:
                low = probe + 1
            else:
                high = middle
        return low

    def _time_of(self, queue: QueueIndex, offset: int) -> int | None:
        position, size, _tag, _check = self._queues.entry(queue, offset)
        head = self._log.read(position, HEAD_BYTES) if size else b""
        return store_time_at(head) if len(head) == HEAD_BYTES else None
