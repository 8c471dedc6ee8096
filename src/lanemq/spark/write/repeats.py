"""What a broker kept of a task that is repeated, compared with the rows that the task has now.

A broker drops a message whose stamp it has, and a stamp only says: the same query, task, batch and place. The rule
guarded here: a row is dropped as a repeat only if it is one. Where a batch is repeated with other rows (a source in a
group begins behind what others did meanwhile, a shuffle deals rows out anew) the task ends with an error instead of
losing them. Only repeats are looked at, so a batch that runs once pays nothing.
"""

import logging
from collections.abc import Callable, Mapping, Sequence

from lanemq.client.producer.requests import Parcel
from lanemq.model.errors import NotAllowed, UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import QueueOffset
from lanemq.net.address import Address
from lanemq.net.security import Security
from lanemq.spark.options import DEFAULT_GROUP
from lanemq.spark.read.fetch import PULL_BYTES, DataLost, QueueRange, RangeReader
from lanemq.spark.read.waiting import Patience
from lanemq.wire.lane_fields import LANE_DUPLICATE, LANE_KNOWN_OFFSET, LANE_SKIPPED
from lanemq.wire.properties import PropertyName, find_stamp
from lanemq.wire.record import RecordView, record_starts

log = logging.getLogger(__name__)


class Repeats:
    """The repeats of one task. For one thread."""

    def __init__(self, producer: str, epoch: int, patience: Patience, security: Security) -> None:
        self._producer = producer
        self._epoch = epoch
        self._patience = patience
        self._security = security

    def compare(
        self,
        queue: MessageQueue,
        address: Address,
        parcels: Sequence[Parcel],
        sequence: int,
        answer: Mapping[str, str],
        ask_first: Callable[[], Mapping[str, str]],
    ) -> None:
        """`UsageError` if the broker's answer to these parcels, `sequence` and up, dropped one that it does not have.

        A broker tells no place for messages that do not lie together: `ask_first` sends the first one once more, alone.
        What lies there no more, or may not be read, cannot be compared: that is told in the log.
        """
        count, offset = kept(answer, len(parcels))
        if not count:
            return
        wanted = {sequence + at: parcel for at, parcel in enumerate(parcels[:count])}
        reader = RangeReader(self._patience, security=self._security)
        try:
            if offset < 0 and count > 1:
                _, offset = kept(ask_first(), 1)
            if offset < 0:
                raise DataLost("the broker does not know any more where they are")
            self._look(reader, queue, address, offset, wanted)
        except (DataLost, NotAllowed) as error:
            log.warning("%s: %d repeated rows are taken for the same, not compared: %s", queue, len(wanted), error)
        finally:
            reader.close()

    def _look(
        self, reader: RangeReader, queue: MessageQueue, address: Address, first: int, wanted: dict[int, Parcel]
    ) -> None:
        """Messages of others may lie between ours, so it takes as many looks as it takes."""
        while wanted:
            end = first + len(wanted)
            part = QueueRange(queue, QueueOffset(first), QueueOffset(end), address, DEFAULT_GROUP)
            for body in reader.chunks(part, PULL_BYTES):
                for start in record_starts(body):
                    self._judge(queue, RecordView(body, start), wanted)
            first = end

    def _judge(self, queue: MessageQueue, stored: RecordView, wanted: dict[int, Parcel]) -> None:
        stamp = find_stamp(stored.properties_text)
        if stamp is None or (stamp.producer, stamp.epoch) != (self._producer, self._epoch):
            return
        parcel = wanted.pop(stamp.sequence, None)
        if parcel is None or _same(stored, parcel):
            return
        raise UsageError(
            f"{queue}: batch {self._epoch} is repeated with other rows than before: offset {stored.queue_offset} holds "
            f"another message where this row belongs, so the broker would drop rows that it does not have. A source "
            f"with `group` does not repeat batches as they were: leave the group out, or use a pipeline with "
            f"TopicSink; behind a shuffle add sortWithinPartitions. Then begin with a new checkpoint"
        )


def kept(answer: Mapping[str, str], count: int) -> tuple[int, int]:
    """How many of the first messages of a request the broker had already, and where the first one lies, or -1."""
    if answer.get(LANE_DUPLICATE) == "true":
        return count, int(answer.get("queueOffset", -1))
    return int(answer.get(LANE_SKIPPED, 0)), int(answer.get(LANE_KNOWN_OFFSET, -1))


def _same(stored: RecordView, parcel: Parcel) -> bool:
    return stored.body == parcel.body and stored.properties.get(PropertyName.KEY) == parcel.key
