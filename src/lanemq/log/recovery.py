"""Reading the log back after a crash: which bytes are records, which are damage.

Guards two rules. An intact record that was acknowledged is never lost because something before it is damaged: after
damage the scan searches on for the next bytes that prove to be a record. And only a torn end is cut, that is, damage
with no record behind it that was written after it had been synced; what is cut is kept in a side file. A file that
has become shorter since it was opened stops the start instead: what is missing is not known to be damaged, and
nothing may be cut on such a word.
"""

from collections.abc import Iterator
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog
from lanemq.log.record_bytes import MAGIC_AT, MAGIC_BYTES, size_at
from lanemq.model.errors import StorageError
from lanemq.wire.record import is_marked_synced

_WINDOW = 4 * 1024 * 1024
_MOST_HEAD = 1024 * 1024


class Found(NamedTuple):
    """An intact record: it begins at `start` of `buffer`."""

    position: int
    size: int
    buffer: bytes
    start: int


class Damaged(NamedTuple):
    """Bytes that are no record. `head` is their beginning, for guessing whose place it was."""

    position: int
    length: int
    head: bytes
    reason: str


def scan(log: CommitLog, position: int, window: int = _WINDOW) -> Iterator[Found | Damaged]:
    """Everything from a position to the end of the log, in order, without gaps; read in windows."""
    segments = list(log.segments)
    for segment, following in zip(segments, [*segments[1:], None], strict=False):
        end = segment.end if following is None else min(segment.end, following.start)
        if position < segment.start:
            yield Damaged(position, segment.start - position, b"", "missing: a segment file is lost or short")
            position = segment.start
        if position < end:
            yield from _scan_part(log, position, end, window)
            position = end


def shows_synced(log: CommitLog, position: int) -> bool:
    """Whether everything in front of a position was on disk before something behind it was written.

    A record behind it says so, or there is a later segment: what is in front of one is synced before it begins.
    """
    if log.segments and position <= log.segments[-1].start:
        return True
    return any(isinstance(part, Found) and is_marked_synced(part.buffer, part.start) for part in scan(log, position))


def _scan_part(log: CommitLog, position: int, end: int, at_once: int) -> Iterator[Found | Damaged]:
    window, base = b"", position
    while position < end:
        size = size_at(window, position - base, position)
        if size < 0 and base + len(window) < end:
            asked = min(max(at_once, -size), end - position)
            window, base = _read(log, position, asked), position
            continue
        if size > 0:
            yield Found(position, size, window, position - base)
            position += size
            continue
        after = _next_record(log, position + 1, end)
        head = _read(log, position, min(after - position, _MOST_HEAD))
        yield Damaged(position, after - position, head, "no intact record")
        position = after


def _read(log: CommitLog, position: int, size: int) -> bytes:
    """All of these bytes: each is below the end that its file had when it was opened."""
    data = log.read(position, size)
    if len(data) < size:
        raise StorageError(
            f"the log in {log.folder} ends at {position + len(data)}, and when it was opened it reached "
            f"{position + size}: another program changes it, or the disk is failing. Nothing was cut; see to "
            f"that, then start again"
        )
    return data


def _next_record(log: CommitLog, position: int, end: int) -> int:
    """The next position at which an intact record begins, or `end`."""
    while position < end:
        window = _read(log, position, min(_WINDOW, end - position))
        at = window.find(MAGIC_BYTES, MAGIC_AT)
        while at >= 0:
            candidate = position + at - MAGIC_AT
            if _is_record(log, candidate, end):
                return candidate
            at = window.find(MAGIC_BYTES, at + 1)
        if position + len(window) >= end:
            return end
        # Windows overlap, so that a magic cut in two by a window's end is found in the next one.
        position += max(1, len(window) - MAGIC_AT - len(MAGIC_BYTES) + 1)
    return end


def _is_record(log: CommitLog, position: int, end: int) -> bool:
    head = _read(log, position, min(128, end - position))
    size = size_at(head, 0, position)
    if size >= 0:
        return size > 0
    whole = _read(log, position, min(-size, end - position))
    return size_at(whole, 0, position) > 0
