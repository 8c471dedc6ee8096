"""What a producer writes down for the checker: taken in, stored, refused, or nobody knows."""

from collections.abc import Sequence

from lanemq.client.send_requests import Parcel
from lanemq.core.send_batch import Failed
from lanemq.history import History
from lanemq.model.queue import MessageQueue


class SendHistory:
    """Called under the lock that decides the order of a lane, so that lines and lane agree."""

    def __init__(self, history: History) -> None:
        self.on = history.on
        self._history = history

    def taken(self, queue: MessageQueue, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            self._history.send(queue.topic, parcel.key or "", parcel.message_id)

    def stored(self, queue: MessageQueue, parcels: Sequence[Parcel], first_offset: int) -> None:
        """-1 for a repeat whose place the broker has forgotten; it comes alone."""
        for offset, parcel in enumerate(parcels, first_offset):
            self._history.acked(queue.topic, parcel.key or "", parcel.message_id, queue.queue_id, offset)

    def given_up(self, queue: MessageQueue, failed: Failed[Parcel]) -> None:
        for parcel in (*failed.unknown, *failed.behind):
            self._history.send_unknown(queue.topic, parcel.key or "", parcel.message_id)
        for parcel in (*failed.refused, *failed.unsent, *failed.blocked):
            self._failed(queue, parcel)

    def dropped(self, queue: MessageQueue, parcels: Sequence[Parcel]) -> None:
        for parcel in parcels:
            self._failed(queue, parcel)

    def _failed(self, queue: MessageQueue, parcel: Parcel) -> None:
        self._history.send_failed(queue.topic, parcel.key or "", parcel.message_id)
