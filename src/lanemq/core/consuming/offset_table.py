"""What this member has consumed, before the broker knows it.

Handlers finish much more often than offsets are reported. The table remembers the newest committable
offset of each held queue and which of them the broker has not confirmed. Two rules: an offset that
changed while its older value was on the way stays dirty, and a queue that was given up leaves nothing
behind that its next holding could mistake for the truth.
"""

from collections.abc import Mapping

from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset


class OffsetTable:
    """Consumed offsets of the queues this member holds."""

    def __init__(self) -> None:
        self._consumed: dict[MessageQueue, QueueOffset] = {}
        # Subset of _consumed: last value the broker confirmed. Missing or different means dirty.
        self._persisted: dict[MessageQueue, QueueOffset] = {}

    def get(self, queue: MessageQueue) -> QueueOffset | None:
        return self._consumed.get(queue)

    def start(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """Remember the broker's answer when the queue was taken over; clean, whatever was here before."""
        self._consumed[queue] = self._persisted[queue] = offset

    def advance(self, queue: MessageQueue, offset: QueueOffset, *, increase_only: bool = True) -> bool:
        """Whether the offset was stored.

        A negative one never is. A smaller one is stored only with `increase_only=False`: orderly consumption
        rewinds on purpose, while turns that end out of order must not.
        """
        known = self._consumed.get(queue)
        if offset < 0 or (increase_only and known is not None and offset <= known):
            return False
        self._consumed[queue] = offset
        return True

    def dirty(self) -> dict[MessageQueue, QueueOffset]:
        """What the broker must be told; hand the same mapping to `persisted` once it confirmed."""
        return {queue: at for queue, at in self._consumed.items() if self._persisted.get(queue) != at}

    def persisted(self, snapshot: Mapping[MessageQueue, QueueOffset]) -> None:
        """The broker confirmed these values; a queue given up meanwhile stays forgotten."""
        self._persisted.update((queue, at) for queue, at in snapshot.items() if queue in self._consumed)

    def doubt(self, queue: MessageQueue) -> None:
        """The broker may have lost what it confirmed, in a crash: it is to be told again."""
        self._persisted.pop(queue, None)

    def remove(self, queue: MessageQueue) -> QueueOffset | None:
        """Forget a queue; returns what was never confirmed, so that a careless release is noticed."""
        offset = self._consumed.pop(queue, None)
        confirmed = self._persisted.pop(queue, None)
        return offset if offset != confirmed else None

    def snapshot(self) -> dict[MessageQueue, QueueOffset]:
        return dict(self._consumed)
