"""Offsets that this member has consumed and the broker has not confirmed yet.

Handlers finish far more often than offsets are reported. The table has the newest committable offset of each assigned
queue and the last value that the broker confirmed. An offset that changed while its older value was being sent stays
dirty, and a queue that was released leaves nothing behind for the next time it is assigned.
"""

from collections.abc import Mapping

from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset


class OffsetTable:
    """Consumed offsets of the queues that are assigned to this member."""

    def __init__(self) -> None:
        self._consumed: dict[MessageQueue, QueueOffset] = {}
        # Subset of _consumed: last value the broker confirmed. Missing or different means dirty.
        self._persisted: dict[MessageQueue, QueueOffset] = {}

    def get(self, queue: MessageQueue) -> QueueOffset | None:
        return self._consumed.get(queue)

    def start(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Stores the offset that the broker returned when the queue was taken over; replaces what was here before."""
        self._consumed[queue] = self._persisted[queue] = offset

    def advance(self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = True) -> bool:
        """Stores an offset; false if it was ignored.

        Negative offsets are ignored, smaller ones unless `increase_only=False`: ordered consumption rewinds on
        purpose, while turns that end out of order must not move the offset back.
        """
        known = self._consumed.get(queue)
        if offset < 0 or (increase_only and known is not None and offset <= known):
            return False
        self._consumed[queue] = offset
        return True

    def dirty(self) -> dict[MessageQueue, QueueOffset]:
        """Offsets to report to the broker; pass the same mapping to `persisted` once it has confirmed them."""
        return {queue: at for queue, at in self._consumed.items() if self._persisted.get(queue) != at}

    def persisted(self, snapshot: Mapping[MessageQueue, QueueOffset]) -> None:
        """Records that the broker confirmed these values; queues that were removed in between stay removed."""
        self._persisted.update((queue, at) for queue, at in snapshot.items() if queue in self._consumed)

    def doubt(self, queue: MessageQueue) -> None:
        """Marks a queue as dirty: the broker may have lost in a crash what it had confirmed."""
        self._persisted.pop(queue, None)

    def remove(self, queue: MessageQueue) -> QueueOffset | None:
        """Removes a queue and returns its offset if the broker has not confirmed it."""
        offset = self._consumed.pop(queue, None)
        confirmed = self._persisted.pop(queue, None)
        return offset if offset != confirmed else None

    def snapshot(self) -> dict[MessageQueue, QueueOffset]:
        return dict(self._consumed)
