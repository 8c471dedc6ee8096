"""What a producer has accepted and not settled yet."""

from collections.abc import Iterable, Sequence

from lanemq.client.producer.batches import PendingMessage, delay_of, total_size
from lanemq.client.producer.outcomes import Stored
from lanemq.core.sending.sent_window import Failed
from lanemq.history import History
from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import PropertyName, find_property


class Unsettled:
    """The messages that a producer has accepted and not settled: their bytes, and their lines in the history.

    Every message is added once when it is accepted, and removed once when it is stored, refused, given up or dropped.
    Called under the lock that decides the order of messages, so that the history has the same order.
    """

    def __init__(self, history: History) -> None:
        self._records = history.on
        self._history = history
        self.bytes = 0
        self.stored_messages = 0
        self.failed_messages = 0

    def accepted(self, queue: MessageQueue, messages: Sequence[PendingMessage]) -> None:
        self.bytes += total_size(messages)
        if self._records:
            for message in messages:
                key, delay = message.key or "", delay_of(message)
                tag = find_property(message.properties, PropertyName.TAGS) or ""
                self._history.send(queue.topic, key, message.message_id, delay=delay, tag=tag)

    def stored(self, outcome: Stored) -> None:
        """Records offset -1 for a message whose place is not known; it comes alone."""
        self.bytes -= total_size(outcome.messages)
        self.stored_messages += len(outcome.messages)
        if self._records:
            queue = outcome.queue
            for offset, message in enumerate(outcome.messages, outcome.first_offset):
                key, id = message.key or "", message.message_id
                self._history.acked(queue.topic, key, id, queue.queue_id, offset, broker=queue.broker)

    def given_up(self, queue: MessageQueue, failed: Failed[PendingMessage]) -> None:
        self.bytes -= total_size(failed.everything)
        self.failed_messages += len(failed.everything)
        if self._records:
            for message in (*failed.unknown, *failed.behind):
                self._history.send_unknown(queue.topic, message.key or "", message.message_id)
            self._failed(queue, (*failed.refused, *failed.unsent, *failed.blocked))

    def dropped(self, queue: MessageQueue, messages: Sequence[PendingMessage]) -> None:
        self.bytes -= total_size(messages)
        self.failed_messages += len(messages)
        if self._records:
            self._failed(queue, messages)

    def _failed(self, queue: MessageQueue, messages: Iterable[PendingMessage]) -> None:
        for message in messages:
            self._history.send_failed(queue.topic, message.key or "", message.message_id)
