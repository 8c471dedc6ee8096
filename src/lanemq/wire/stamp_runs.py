"""The producer stamps of stored records, gathered into runs: what a start needs of the records after a checkpoint."""

from typing import NamedTuple

from lanemq._fast import compiled
from lanemq.model.names import SCHEDULE_TOPIC
from lanemq.model.stamp import Stamp
from lanemq.wire.properties import PropertyName, find_stamp
from lanemq.wire.record import RecordView


class StampRun(NamedTuple):
    """Records of one queue with consecutive offsets and consecutive stamps of one producer."""

    topic: str
    queue_id: int
    first: Stamp
    length: int
    offset: int
    """Of the first record."""
    position: int
    """Of the first record, in the log."""
    stored_at: int
    """The newest store time."""


def asked_queue(record: RecordView) -> tuple[str, int]:
    """The queue in which a record's stamp counts: the one it was sent to, even while it is delayed."""
    if record.topic != SCHEDULE_TOPIC:
        return record.topic, record.queue_id
    properties = record.properties
    return properties.get(PropertyName.REAL_TOPIC, ""), int(properties.get(PropertyName.REAL_QUEUE, "0"))


@compiled
def stamp_runs(buffer: bytes, start: int, end: int) -> list[StampRun]:
    """The stamps of the intact records from `start` to `end` of a buffer, in the order in which the runs begin.

    Within one queue and producer that is the order of their sequences. Records without a stamp are left out.
    """
    runs: list[StampRun] = []
    newest: dict[tuple[str, int], int] = {}
    while start < end:
        record = RecordView(buffer, start)
        start += record.size
        stamp = find_stamp(record.properties_text)
        if stamp is None:
            continue
        run = StampRun(*asked_queue(record), stamp, 1, record.queue_offset, record.position, record.store_timestamp)
        at = newest.get((record.topic, record.queue_id))
        if at is not None and _continues(runs[at], run):
            before = runs[at]
            runs[at] = before._replace(length=before.length + 1, stored_at=max(before.stored_at, run.stored_at))
        else:
            newest[record.topic, record.queue_id] = len(runs)
            runs.append(run)
    return runs


def _continues(before: StampRun, run: StampRun) -> bool:
    producer, epoch, sequence = before.first
    return (
        run[:2] == before[:2]
        and run.first == (producer, epoch, sequence + before.length)
        and run.offset == before.offset + before.length
    )
