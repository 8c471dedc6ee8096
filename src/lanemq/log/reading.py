"""How a pull is answered from index and log.

Guards: no byte leaves the log unverified, and a damaged record is told to the reader by its offset instead of
being skipped in silence. Neighbouring records are read in one piece, which is what makes a pull cheap.
"""

import enum
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol
from zlib import crc32

from lanemq._fast import compiled
from lanemq.log.queue_index import Entry
from lanemq.wire.record import CHECKSUM_AT, HEAD_BYTES, MAGIC_V1, PROOF, SYNCED_MARK

_NEAR_BYTES = 4096
"""Reading this much between two records of a queue costs less than asking the disk twice."""


class ReadStatus(enum.Enum):
    """The situations of a pull; values are the names in RocketMQ's `GetMessageStatus`."""

    FOUND = "FOUND"
    NO_MATCH = "NO_MATCHED_MESSAGE"
    """Scanned, nothing to give: filtered out, or damaged. Ask again at `next_offset`."""
    EMPTY = "NO_MESSAGE_IN_QUEUE"
    """Nothing was ever stored, and offset 0 was asked: wait there."""
    EMPTY_ILLEGAL = "NO_MATCHED_LOGIC_QUEUE"
    """Nothing was ever stored, and another offset was asked."""
    TOO_SMALL = "OFFSET_TOO_SMALL"
    AT_END = "OFFSET_OVERFLOW_ONE"
    """The next message is not there yet: wait."""
    BEYOND_END = "OFFSET_OVERFLOW_BADLY"


@dataclass(frozen=True, slots=True)
class ReadResult:
    """`data` is records back to back; `damaged` are offsets below `next_offset` that cannot be read."""

    status: ReadStatus
    data: bytes
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    damaged: list[int]


class Bytes(Protocol):
    """Where bytes at a log position come from."""

    def read(self, position: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records read and verified; `scanned` entries were looked at."""

    data: bytes
    count: int
    scanned: int
    damaged: list[int]


def nothing_to_read(offset: int, first: int, end: int) -> ReadResult | None:
    """The answer when the offset itself decides it, else None."""
    if end == 0:
        status = ReadStatus.EMPTY if offset == 0 else ReadStatus.EMPTY_ILLEGAL
        return ReadResult(status, b"", 0, 0, first, end, [])
    if offset < first:
        return ReadResult(ReadStatus.TOO_SMALL, b"", 0, first, first, end, [])
    if offset == end:
        return ReadResult(ReadStatus.AT_END, b"", 0, end, first, end, [])
    if offset > end:
        return ReadResult(ReadStatus.BEYOND_END, b"", 0, end, first, end, [])
    return None


def gather(
    log: Bytes, queue_id: int, offset: int, entries: Sequence[Entry], wanted: Sequence[int], max_bytes: int
) -> Gathered:
    """Reads the `wanted` of the entries (indexes into them) that fit in `max_bytes`; the first always fits."""
    chosen = entries if len(wanted) == len(entries) else [entries[i] for i in wanted]
    scanned = len(entries)
    room = bisect_right(list(accumulate([entry[1] for entry in chosen])), max_bytes) or 1
    if room < len(chosen):
        chosen = chosen[:room]
        scanned = wanted[room - 1] + 1
    offsets = [offset + i for i in wanted[:room]]
    parts: list[bytes] = []
    damaged: list[int] = []
    for first, end in runs(chosen):
        run = chosen[first:end] if end - first < len(chosen) else chosen
        data = log.read(run[0][0], run[-1][0] + run[-1][1] - run[0][0])
        bad = verify(data, queue_id, run, offsets[first:end])
        if not bad and len(data) == sum([entry[1] for entry in run]):
            parts.append(data)
            continue
        for i, entry in enumerate(run):
            start = entry[0] - run[0][0]
            record = data[start : start + entry[1]]
            if i in bad:
                # Perhaps the run was cut short by a hole: the record alone decides.
                record = log.read(entry[0], entry[1])
                if verify(record, queue_id, [entry], [offsets[first + i]]):
                    damaged.append(offsets[first + i])
                    continue
            parts.append(record)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return Gathered(data, len(chosen) - len(damaged), scanned, damaged)


def runs(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """Index ranges of entries to read in one piece: back to back in the log, or nearly so."""
    if not entries:
        return []
    first, last = entries[0], entries[-1]
    if last[0] + last[1] - first[0] == sum([entry[1] for entry in entries]):
        return [(0, len(entries))]
    found = []
    begin, reach = 0, first[0] + _NEAR_BYTES
    for i, (position, size, _tag, _check) in enumerate(entries):
        if position > reach:
            found.append((begin, i))
            begin = i
        reach = position + size + _NEAR_BYTES
    return [*found, (begin, len(entries))]


@compiled
def verify(data: bytes, queue_id: int, entries: Sequence[Entry], offsets: Sequence[int]) -> list[int]:
    """Indexes of records that are not exactly what was stored at this place in queue and log."""
    bad = []
    base, length = entries[0][0], len(data)
    whole = memoryview(data)
    unpack = PROOF.unpack_from
    for i, (position, size, _tag, _check) in enumerate(entries):
        start = position - base
        end = start + size
        if start < 0 or end > length or size < HEAD_BYTES:
            bad.append(i)
            continue
        # The head is copied, the rest looked at in place: each is the cheaper way for its length.
        crc = crc32(whole[start + HEAD_BYTES : end], crc32(data[start : start + CHECKSUM_AT]))
        proof, place = unpack(data, start), (size, MAGIC_V1, queue_id, offsets[i], position)
        if proof != (*place, crc) and proof != (*place, crc ^ SYNCED_MARK):
            bad.append(i)
    return bad
