"""Marks of stored messages."""

from lanemq.model.log_marks import LogMark
from lanemq.wire.properties import PropertyName, find_property
from lanemq.wire.record import RecordView


def log_mark(record: RecordView) -> LogMark:
    id = find_property(record.properties_text, PropertyName.UNIQUE_ID) or ""
    return LogMark(record.queue_offset, record.position, record.store_timestamp, id)


def mark_in(data: bytes) -> LogMark | None:
    """The mark of a message that was read; None if there was none."""
    return log_mark(RecordView(data)) if data else None
