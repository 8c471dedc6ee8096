"""What a producer has taken in and not settled: its bytes in the buffer, and its lines in the history for the checker.

Rule: every message is entered once when it is taken in, and struck once when it is stored, refused, given up or
dropped. Called under the lock that decides the order of a lane, so that lines and lane agree.
"""

from collections.abc import Iterable, Sequence

from lanemq.client.producer.outcomes import Stored
from lanemq.client.producer.requests import Parcel, total_size
from lanemq.core.sending.batch import Failed
from lanemq.history import History
from lanemq.model.queue import MessageQueue


class SendLedger:
    """Of one producer, all queues together."""

    def __init__(self, history: History) -> None:
        self._on = history.on
        self._history = history
        self.buffered_bytes = 0

    def taken(self, queue: MessageQueue, parcels: Sequence[Parcel], size: int) -> None:
        self.buffered_bytes += size
        if self._on:
            for parcel in parcels:
                self._history.send(queue.topic, parcel.key or "", parcel.message_id)

    def stored(self, outcome: Stored) -> None:
        """With the offset -1 for a repeat whose place the broker has forgotten; it comes alone."""
        self.buffered_bytes -= total_size(outcome.parcels)
        if self._on:
            queue = outcome.queue
            for offset, parcel in enumerate(outcome.parcels, outcome.first_offset):
                self._history.acked(queue.topic, parcel.key or "", parcel.message_id, queue.queue_id, offset)

    def given_up(self, queue: MessageQueue, failed: Failed[Parcel]) -> None:
        self.buffered_bytes -= total_size(failed.everything)
        if self._on:
            for parcel in (*failed.unknown, *failed.behind):
                self._history.send_unknown(queue.topic, parcel.key or "", parcel.message_id)
            self._failed(queue, (*failed.refused, *failed.unsent, *failed.blocked))

    def dropped(self, queue: MessageQueue, parcels: Sequence[Parcel]) -> None:
        self.buffered_bytes -= total_size(parcels)
        if self._on:
            self._failed(queue, parcels)

    def _failed(self, queue: MessageQueue, parcels: Iterable[Parcel]) -> None:
        for parcel in parcels:
            self._history.send_failed(queue.topic, parcel.key or "", parcel.message_id)
