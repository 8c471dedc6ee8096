"""Reading: pulls by offset, and offsets by time.

Invariant: no byte leaves the log unverified, and a damaged record is reported by its offset, never skipped silently.
Adjacent records are read in one piece, which makes a pull cheap.
"""

import enum
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Protocol
from zlib import crc32

from lanemq._fast import compiled
from lanemq.log.commit_log import CommitLog
from lanemq.log.queue_index import ENTRY, ENTRY_BYTES, Entry, QueueIndex, QueueTable, unpack_entries
from lanemq.log.record_bytes import store_time_at
from lanemq.wire.record import CHECKSUM_AT, HEAD_BYTES, MAGIC_V1, PROOF, SYNCED_MARK

_LOOKED_AT = 16
"""Records that are looked at to find a readable one near an offset."""

_NEAR_BYTES = 4096
"""Reading this much between two records of a queue costs less than a second read."""

_WORTH_A_READ = 8
"""Adjacent records on average from which on one read for each place costs less than fewer, larger reads."""

_MAX_POSITION = 1 << 62
"""No log is this long: a larger position is damage."""


class ReadStatus(enum.Enum):
    """The outcomes of a pull; values are the names in RocketMQ's `GetMessageStatus`."""

    FOUND = "FOUND"
    NO_MATCH = "NO_MATCHED_MESSAGE"
    """Every message scanned was filtered out or damaged; the reader continues at `next_offset`."""
    EMPTY = "NO_MESSAGE_IN_QUEUE"
    """The queue never held a message, and the pull asked for offset 0: it may wait there."""
    EMPTY_ILLEGAL = "NO_MATCHED_LOGIC_QUEUE"
    """The queue never held a message, and the pull asked for another offset."""
    TOO_SMALL = "OFFSET_TOO_SMALL"
    AT_END = "OFFSET_OVERFLOW_ONE"
    """The next message does not exist yet: the pull may wait."""
    BEYOND_END = "OFFSET_OVERFLOW_BADLY"


@dataclass(frozen=True, slots=True)
class ReadResult:
    """`data` is records back to back; `damaged` are the offsets below `next_offset` that cannot be read."""

    status: ReadStatus
    data: bytes
    count: int
    next_offset: int
    min_offset: int
    max_offset: int
    damaged: list[int]


class Bytes(Protocol):
    """A source of bytes by log position."""

    def read(self, position: int, size: int) -> bytes: ...


@dataclass(frozen=True, slots=True)
class Gathered:
    """Records read and verified, out of `scanned` entries."""

    data: bytes
    count: int
    scanned: int
    damaged: list[int]


def nothing_to_read(offset: int, first: int, end: int) -> ReadResult | None:
    """The result if the offset alone decides it, else None."""
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


def read_adjacent(
    log: Bytes, queue_id: int, offset: int, raw: bytes, runs: Sequence[tuple[int, int, int]]
) -> Gathered | None:
    """As `gather`, for records that lie next to each other in few places of the log; None if `gather` must read them.

    `raw` are packed entries from an offset on, and `runs` those of them to read, from `adjacent_runs`.
    """
    count = sum([run[2] for run in runs])
    if len(runs) > 1 + count // _WORTH_A_READ:
        return None
    parts: list[bytes] = []
    first = 0
    for position, size, length in runs:
        data = log.read(position, size)
        if not is_intact(data, queue_id, offset, raw, first, length):
            return None  # it finds out what is damaged
        parts.append(data)
        first += length
    return Gathered(parts[0] if len(parts) == 1 else b"".join(parts), count, count, [])


@compiled
def adjacent_runs(raw: bytes, max_bytes: int) -> list[tuple[int, int, int]] | None:
    """The places in the log of as many records as fit into `max_bytes`, and at least of the first one.

    Each place is a position, the bytes there, and the number of records. None if an entry has no record.
    """
    runs: list[tuple[int, int, int]] = []
    total, start, end, length = 0, 0, -1, 0
    for position, size, _tag, _check in ENTRY.iter_unpack(raw):
        if size <= 0 or not 0 <= position < _MAX_POSITION:
            return None
        total += size
        if total > max_bytes and length:
            break
        if position == end:
            length += 1
        else:
            if length:
                runs.append((start, end - start, length))
            start, length = position, 1
        end = position + size
    if length:
        runs.append((start, end - start, length))
    return runs


@compiled
def is_intact(data: bytes, queue_id: int, offset: int, raw: bytes, first: int, count: int) -> bool:
    """Whether `data` is exactly the records of `count` entries in `raw` from the one at index `first` on.

    `raw` begins with the entry of `offset`, and the records are adjacent.
    """
    entries = unpack_entries(raw[first * ENTRY_BYTES : (first + count) * ENTRY_BYTES])
    if len(entries) != count or len(data) != sum([entry[1] for entry in entries]):
        return False
    return not verify(data, queue_id, entries, [offset + first + i for i in range(count)])


def gather(
    log: Bytes, queue_id: int, offset: int, entries: Sequence[Entry], wanted: Sequence[int], max_bytes: int
) -> Gathered:
    """Read as many `wanted` entries (indexes into `entries`) as fit into `max_bytes`, and at least the first one."""
    chosen = entries if len(wanted) == len(entries) else [entries[i] for i in wanted]
    scanned = len(entries)
    room = bisect_right(list(accumulate([entry[1] for entry in chosen])), max_bytes) or 1
    if room < len(chosen):
        chosen = chosen[:room]
        scanned = wanted[room - 1] + 1
    offsets = [offset + i for i in wanted[:room]]
    parts: list[bytes] = []
    damaged: list[int] = []
    for first, end in stretches(chosen):
        stretch = chosen[first:end] if end - first < len(chosen) else chosen
        data = log.read(stretch[0][0], stretch[-1][0] + stretch[-1][1] - stretch[0][0])
        bad = verify(data, queue_id, stretch, offsets[first:end])
        if not bad and len(data) == sum([entry[1] for entry in stretch]):
            parts.append(data)
            continue
        for i, entry in enumerate(stretch):
            start = entry[0] - stretch[0][0]
            record = data[start : start + entry[1]]
            if i in bad:
                # A hole may have cut the stretch short: read and verify the record alone.
                record = log.read(entry[0], entry[1])
                if verify(record, queue_id, [entry], [offsets[first + i]]):
                    damaged.append(offsets[first + i])
                    continue
            parts.append(record)
    data = parts[0] if len(parts) == 1 else b"".join(parts)
    return Gathered(data, len(chosen) - len(damaged), scanned, damaged)


def stretches(entries: Sequence[Entry]) -> list[tuple[int, int]]:
    """Index ranges of entries to read in one piece, because they are adjacent in the log or nearly so."""
    if not entries:
        return []
    first, last = entries[0], entries[-1]
    if last[0] + last[1] - first[0] == sum([entry[1] for entry in entries]):
        return [(0, len(entries))]
    ranges = []
    begin, reach = 0, first[0] + _NEAR_BYTES
    for i, (position, size, _tag, _check) in enumerate(entries):
        if position > reach:
            ranges.append((begin, i))
            begin = i
        reach = position + size + _NEAR_BYTES
    return [*ranges, (begin, len(entries))]


@compiled
def verify(data: bytes, queue_id: int, entries: Sequence[Entry], offsets: Sequence[int]) -> list[int]:
    """Indexes of records that are not exactly what was stored at this place of the queue and the log."""
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
        # The head is copied and the rest viewed in place: each is the cheaper way for its length.
        crc = crc32(whole[start + HEAD_BYTES : end], crc32(data[start : start + CHECKSUM_AT]))
        proof, place = unpack(data, start), (size, MAGIC_V1, queue_id, offsets[i], position)
        if proof != (*place, crc) and proof != (*place, crc ^ SYNCED_MARK):
            bad.append(i)
    return bad


class Boundary(enum.Enum):
    """Which neighbour of a time to find; values are RocketMQ's `BoundaryType`."""

    LOWER = "LOWER"
    """The first message stored at that time or later; the end of the queue if there is none."""
    UPPER = "UPPER"
    """The last message stored at that time or before; the first one kept if there is none."""


class TimeSearch:
    """Finds offsets by store time, with a binary search: store times never go back within a log."""

    def __init__(self, log: CommitLog, queues: QueueTable) -> None:
        self._log = log
        self._queues = queues

    def find(self, topic: str, queue_id: int, timestamp: int, boundary: Boundary) -> int:
        """The offset next to a time; 0 for a queue that never held a message."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return 0
        if boundary is Boundary.LOWER:
            return self._first_not_before(queue, timestamp)
        return max(self._queues.first(queue), self._first_not_before(queue, timestamp + 1) - 1)

    def earliest(self, topic: str, queue_id: int) -> int | None:
        """The store time of the queue's first readable record; None if there is none."""
        queue = self._queues.find(topic, queue_id)
        return None if queue is None else self._first_time(queue, range(self._queues.first(queue), queue.end))

    def last_before(self, topic: str, queue_id: int, offset: int) -> int | None:
        """The store time of the last readable record before an offset; None if there is none near it."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return None
        end = min(offset, queue.end)
        return self._first_time(queue, range(max(self._queues.first(queue), end - _LOOKED_AT), end)[::-1])

    def first_from(self, topic: str, queue_id: int, offset: int) -> int | None:
        """The store time of the first readable record from an offset on; None if there is none near it."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            return None
        begin = max(offset, self._queues.first(queue))
        return self._first_time(queue, range(begin, min(begin + _LOOKED_AT, queue.end)))

    def _first_time(self, queue: QueueIndex, offsets: Iterable[int]) -> int | None:
        times = (self._time_of(queue, offset) for offset in offsets)
        return next((time for time in times if time is not None), None)

    def _first_not_before(self, queue: QueueIndex, timestamp: int) -> int:
        low, high = self._queues.first(queue), queue.end
        while low < high:
            middle = (low + high) // 2
            # A damaged record has no time: use that of the next readable one below `high`.
            probe = middle
            time = self._time_of(queue, probe)
            while time is None and probe + 1 < high:
                probe += 1
                time = self._time_of(queue, probe)
            if time is not None and time < timestamp:
                low = probe + 1
            else:
                high = middle
        return low

    def _time_of(self, queue: QueueIndex, offset: int) -> int | None:
        position, size, _tag, _check = self._queues.entry(queue, offset)
        head = self._log.read(position, HEAD_BYTES) if size else b""
        return store_time_at(head) if len(head) == HEAD_BYTES else None
