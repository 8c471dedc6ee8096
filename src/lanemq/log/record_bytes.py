"""The record format as the log needs it: how long a record is, whether it is intact, and whose it is.

Bytes count as a record only if the magic, a plausible size, the position they claim and the checksum over the whole
record all agree, and if its parts fill it. Anything less may be garbage, or a copy at the wrong place. The layout is
defined in `wire/record`; this is the fast path for records that the log wrote itself.

Invariant: only the log writes such bytes. A client can compute all of them, so the log takes no message that contains
bytes with the magic and the position at which they would lie (`hides_record`). After damage, a search for the next
record therefore finds no record that a client made (decision 1).
"""

from collections.abc import Mapping
from itertools import pairwise
from struct import Struct
from typing import NamedTuple, TypeAlias

from lanemq._fast import compiled
from lanemq.log.queue_index import ENTRY_BYTES, pack_entry
from lanemq.wire.properties import tag_code_of
from lanemq.wire.record import (
    HEAD_BYTES,
    MAGIC_V1,
    MIN_RECORD_BYTES,
    PROOF,
    STORE_TIME_AT,
    checksum_of,
    proves,
    record_starts,
)

MAGIC_BYTES = MAGIC_V1.to_bytes(4, "big")
MAGIC_AT = 4
MAX_RECORD_BYTES = 64 * 1024 * 1024
"""More than any message that the broker accepts; a larger size field is damage."""

_MAGIC_TO_POSITION = 24
"""Bytes from the magic to the position of the same record."""
_POSITION = Struct(">q")
_STORE_TIME = Struct(">q")
_LENGTH = Struct(">i")
_SHORT = Struct(">h")


class RecordFacts(NamedTuple):
    """The fields needed to index a record."""

    size: int
    topic: str
    queue_id: int
    queue_offset: int
    store_time: int
    properties: str


def size_at(buffer: bytes, start: int, position: int) -> int:
    """The size of the intact record at `start` that belongs at log position `position`; 0 if there is none.

    If the buffer is too short to decide, the result is minus the number of bytes needed.
    """
    if start + HEAD_BYTES > len(buffer):
        return -MIN_RECORD_BYTES
    size, magic, _queue, _offset, claimed, check = PROOF.unpack_from(buffer, start)
    if magic != MAGIC_V1 or claimed != position or not MIN_RECORD_BYTES <= size <= MAX_RECORD_BYTES:
        return 0
    if start + size > len(buffer):
        return -int(size)
    if not proves(check, checksum_of(memoryview(buffer), start, start + size)):
        return 0
    return int(size) if _adds_up(buffer, start, start + size) else 0


def _adds_up(buffer: bytes, start: int, end: int) -> bool:
    """Whether body, topic and properties fill a record: the checksum does not prove it, a client can compute one."""
    (body,) = _LENGTH.unpack_from(buffer, start + HEAD_BYTES)
    topic_at = start + HEAD_BYTES + 4 + body
    if body < 0 or topic_at + 3 > end:
        return False
    topic_end = topic_at + 1 + buffer[topic_at]
    if topic_end + 2 > end:
        return False
    (properties,) = _SHORT.unpack_from(buffer, topic_end)
    return bool(topic_end + 2 + properties == end)


@compiled
def hides_record(records: bytes, position: int) -> bool:
    """Whether one of these records, which belong at a log position, contains bytes that may pass for another record.

    These are a magic behind the record's own, and after it the position at which that other record would begin. If the
    record ends before that position is complete, what there is of it must agree: the next record may complete it.
    """
    starts = record_starts(records)
    for start, end in pairwise((*starts, len(records))):
        at = records.find(MAGIC_BYTES, start + MAGIC_AT + 1, end)
        while at >= 0:
            claimed = records[at + _MAGIC_TO_POSITION : min(end, at + _MAGIC_TO_POSITION + _POSITION.size)]
            if _POSITION.pack(position + at - MAGIC_AT).startswith(claimed):
                return True
            at = records.find(MAGIC_BYTES, at + 1, end)
    return False


def store_time_at(buffer: bytes, start: int = 0) -> int:
    return int(_STORE_TIME.unpack_from(buffer, start + STORE_TIME_AT)[0])


def facts_of(buffer: bytes, start: int) -> RecordFacts:
    """Read the fields of a record that passed `size_at`."""
    size, _magic, queue_id, offset, _position, _check = PROOF.unpack_from(buffer, start)
    (body,) = _LENGTH.unpack_from(buffer, start + HEAD_BYTES)
    at = start + HEAD_BYTES + 4 + body
    topic_end = at + 1 + buffer[at]
    (length,) = _SHORT.unpack_from(buffer, topic_end)
    topic = buffer[at + 1 : topic_end].decode(errors="replace")
    properties = buffer[topic_end + 2 : topic_end + 2 + length].decode(errors="replace")
    return RecordFacts(size, topic, queue_id, offset, store_time_at(buffer, start), properties)


RecordRun: TypeAlias = tuple[bytes, int, int, bytes]
"""Topic, queue id, first offset and packed index entries (`log/queue_index`) of records with consecutive offsets."""


@compiled
def index_runs(buffer: bytes, position: int, dropped: Mapping[bytes, int]) -> tuple[list[RecordRun], int, int, int]:
    """The index entries of the intact records at the start of `buffer`, which belongs at a log position.

    Stops at the first bytes that are no whole intact record, and at a record that does not continue its queue's run.
    Records below the position at which their topic was dropped have no entry. Returns the runs, one for each queue,
    the number of records, their newest store time, and the number of bytes that they take.
    """
    runs: dict[tuple[bytes, int], tuple[int, bytearray]] = {}
    count = newest = at = 0
    while (size := size_at(buffer, at, position + at)) > 0:
        _size, _magic, queue_id, offset, _position, _check = PROOF.unpack_from(buffer, at)
        (body,) = _LENGTH.unpack_from(buffer, at + HEAD_BYTES)
        topic_at = at + HEAD_BYTES + 4 + body
        topic_end = topic_at + 1 + buffer[topic_at]
        (length,) = _SHORT.unpack_from(buffer, topic_end)
        topic = buffer[topic_at + 1 : topic_end]
        if position + at >= dropped.get(topic, 0):
            first, entries = runs.setdefault((topic, queue_id), (offset, bytearray()))
            if first + len(entries) // ENTRY_BYTES != offset:
                break
            properties = buffer[topic_end + 2 : topic_end + 2 + length].decode(errors="replace")
            entries += pack_entry(offset, position + at, size, tag_code_of(properties))
        newest = max(newest, store_time_at(buffer, at))
        count += 1
        at += size
    queues = [(topic, queue_id, first, bytes(entries)) for (topic, queue_id), (first, entries) in runs.items()]
    return queues, count, newest, at
