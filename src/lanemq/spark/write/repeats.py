"""Compares the rows of a repeated task with the messages that the broker stored at the first attempt.

A broker drops a message whose stamp it already has, and the stamp only identifies query, task, batch and position. If a
batch is repeated with other rows, as after a shuffle that distributes rows differently, the broker would drop rows that
it does not have; then the task fails instead. Only repeats are compared, so a batch that runs once costs nothing.

Invariant: a row is dropped as a repeat only if the same row is stored.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from lanemq.client.producer.batches import PendingMessage
from lanemq.model.errors import NotAllowed, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.net.security import Security
from lanemq.spark.options import DEFAULT_GROUP
from lanemq.spark.read.range_reader import PULL_BYTES, DataLost, QueueRange, RangeReader
from lanemq.spark.retrying import Retrying
from lanemq.wire.lane_fields import LANE_DUPLICATE, LANE_KNOWN_OFFSET, LANE_SKIPPED
from lanemq.wire.properties import PropertyName, find_stamp
from lanemq.wire.record import RecordView, record_starts

log = logging.getLogger(__name__)


class RepeatCheck:
    """Compares the repeated rows of one task. Not thread-safe."""

    def __init__(self, producer: str, epoch: int, retrying: Retrying, security: Security) -> None:
        self._producer = producer
        self._epoch = epoch
        self._retrying = retrying
        self._security = security

    def compare(
        self,
        queue: MessageQueue,
        address: Address,
        messages: Sequence[PendingMessage],
        sequence: int,
        answer: Mapping[str, str],
        ask_first: Callable[[], Mapping[str, str]],
    ) -> None:
        """Raises `UsageError` if the broker dropped a message that it does not have. `sequence` is that of the first.

        A broker returns no offset for messages that are not stored together; `ask_first` then sends the first one
        again, alone, to get its offset. Messages that were deleted, or that may not be read, are not compared; this is
        logged.
        """
        count, offset = kept(answer, len(messages))
        if not count:
            return
        wanted = {sequence + at: message for at, message in enumerate(messages[:count])}
        reader = RangeReader(self._retrying, security=self._security)
        try:
            if offset < 0 and count > 1:
                _, offset = kept(ask_first(), 1)
            if offset < 0:
                raise DataLost("the broker no longer knows their offsets")
            self._compare_stored(reader, queue, address, offset, wanted)
        except (DataLost, NotAllowed) as error:
            log.warning(
                "%s: %d repeated rows could not be compared and are assumed to be equal: %s", queue, len(wanted), error
            )
        finally:
            reader.close()

    def _compare_stored(
        self, reader: RangeReader, queue: MessageQueue, address: Address, first: int, wanted: dict[int, PendingMessage]
    ) -> None:
        """Keeps reading until all of the task's messages are found; messages of other producers may be between them."""
        while wanted:
            end = first + len(wanted)
            part = QueueRange(queue, QueueOffset(first), QueueOffset(end), address, DEFAULT_GROUP)
            for body in reader.chunks(part, PULL_BYTES):
                for start in record_starts(body):
                    self._compare_one(queue, RecordView(body, start), wanted)
            first = end

    def _compare_one(self, queue: MessageQueue, stored: RecordView, wanted: dict[int, PendingMessage]) -> None:
        stamp = find_stamp(stored.properties_text)
        if stamp is None or (stamp.producer, stamp.epoch) != (self._producer, self._epoch):
            return
        message = wanted.pop(stamp.sequence, None)
        if message is None or _same(stored, message):
            return
        raise UsageError(
            f"{queue}: batch {self._epoch} is repeated with other rows than before: offset {stored.queue_offset} holds "
            f"a different message, so the broker would drop rows that it does not have. A source with `group` does "
            f"not repeat batches exactly: leave the group out, or use a pipeline with TopicSink; after a shuffle add "
            f"sortWithinPartitions. Then start with a new checkpoint"
        )


def kept(answer: Mapping[str, str], count: int) -> tuple[int, int]:
    """How many of the first messages of a request the broker already had, and the offset of the first, or -1."""
    if answer.get(LANE_DUPLICATE) == "true":
        return count, int(answer.get("queueOffset", -1))
    return int(answer.get(LANE_SKIPPED, 0)), int(answer.get(LANE_KNOWN_OFFSET, -1))


def _same(stored: RecordView, message: PendingMessage) -> bool:
    return stored.body == message.body and stored.properties.get(PropertyName.KEY) == message.key
