"""Recovery: what a start reads before the store can be used.

Three layers, from the bottom: `scan` tells intact records from damage; `Rebuilder` enters the records into the queue
table; `Startup` decides how much of the log to scan and cuts off a torn end. After a clean stop nothing is scanned,
otherwise the log from the last checkpoint on, and all of it if index files are missing. Below the checkpoint only the
index is needed, so whole windows are indexed at once (`record_bytes.index_runs`): 5 million messages take seconds.

Invariants:

- An intact acknowledged record is never lost because bytes before it are damaged: the scan searches for the next
  record.
- An assigned offset is never assigned again while any trace of it remains. A damaged record keeps its place in its
  queue. Its offset is known from the queue rows, from its neighbours or, for the last record of a queue, from the rest
  of its head.
- Only a torn end is cut, and it is copied to a side file first. The end is torn at the first damage after which no
  record was written with everything before it synced (`shows_synced`). A power cut may have kept the end of such an
  append without its middle. If that end counted as stored, the producer's repeat would be answered as a duplicate, and
  the middle would be lost although acknowledged.
- A file that has become shorter since it was opened stops the start: missing bytes are not proven to be damaged.
"""

import struct
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog, Segment
from lanemq.log.filesystem import Disk, write_fully
from lanemq.log.queue_index import ENTRY_BYTES, IndexFiles, QueueIndex, QueueTable
from lanemq.log.record_bytes import MAGIC_AT, MAGIC_BYTES, RecordFacts, facts_of, index_runs, size_at
from lanemq.log.state import DamageRow, LogCheckpoint, QueueRow, State
from lanemq.model.errors import StorageError
from lanemq.wire.properties import tag_code_of
from lanemq.wire.record import PROOF, RecordView, is_marked_synced

_WINDOW = 4 * 1024 * 1024
_MAX_HEAD = 1024 * 1024
_COPY_BYTES = 4 * 1024 * 1024

OnRecord = Callable[[RecordView], None]


class Found(NamedTuple):
    """An intact record, at `start` of `buffer`."""

    position: int
    size: int
    buffer: bytes
    start: int


class Damaged(NamedTuple):
    """Bytes that are not a record. `head` is their beginning, from which their queue may be guessed."""

    position: int
    length: int
    head: bytes
    reason: str


def scan(log: CommitLog, position: int, window: int = _WINDOW) -> Iterator[Found | Damaged]:
    """Every record and every damaged range from a position to the end of the log, in order."""
    for segment, end in _parts(log):
        if position < segment.start:
            yield Damaged(position, segment.start - position, b"", "missing: a segment file is lost or short")
            position = segment.start
        if position < end:
            yield from _scan_part(log, position, end, window)
            position = end


def _parts(log: CommitLog) -> Iterator[tuple[Segment, int]]:
    """The segments, each with the end of what belongs to it."""
    segments = list(log.segments)
    for segment, following in zip(segments, [*segments[1:], None], strict=False):
        yield segment, segment.end if following is None else min(segment.end, following.start)


def _part_end(log: CommitLog, position: int) -> int:
    """The end of the segment that contains a position; the position itself if none does."""
    return next((end for segment, end in _parts(log) if segment.start <= position < end), position)


def shows_synced(log: CommitLog, position: int) -> bool:
    """Whether everything before a position was on disk before something after it was written.

    A marked record after the position shows it, or a later segment: the log is synced before a segment is created.
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
        head = _read(log, position, min(after - position, _MAX_HEAD))
        yield Damaged(position, after - position, head, "no intact record")
        position = after


def _read(log: CommitLog, position: int, size: int) -> bytes:
    """All of these bytes, which were there when the file was opened."""
    data = log.read(position, size)
    if len(data) < size:
        raise StorageError(
            f"the log in {log.folder} ends at {position + len(data)}, but reached {position + size} when it was "
            f"opened: another program changes it, or the disk is failing. Nothing was cut; fix the cause, then restart"
        )
    return data


def _next_record(log: CommitLog, position: int, end: int) -> int:
    """The position of the next intact record, or `end`."""
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
        # Windows overlap, so that a magic number across a window's end is found in the next one.
        position += max(1, len(window) - MAGIC_AT - len(MAGIC_BYTES) + 1)
    return end


def _is_record(log: CommitLog, position: int, end: int) -> bool:
    head = _read(log, position, min(128, end - position))
    size = size_at(head, 0, position)
    if size >= 0:
        return size > 0
    whole = _read(log, position, min(-size, end - position))
    return size_at(whole, 0, position) > 0


@dataclass(slots=True)
class Rebuilt:
    """The result of a scan. `torn_at` is the start of a torn end, or None."""

    records: int = 0
    last_store_time: int = 0
    damage: list[DamageRow] = field(default_factory=list)
    torn_at: int | None = None


class _Place(NamedTuple):
    topic: str
    queue_id: int
    offset: int
    position: int


class Rebuilder:
    """Scans the log into the queue table.

    `known` is the position of the last checkpoint. The broker has the records below it in its tables, so `on_record`
    receives only later ones. Bytes below it were synced, so faults there are damage, never a torn end.
    """

    def __init__(self, log: CommitLog, queues: QueueTable, dropped: Mapping[str, int], known: int) -> None:
        self._log = log
        self._queues = queues
        self._dropped = dropped
        self._dropped_bytes = {topic.encode(): position for topic, position in dropped.items()}
        self._known = known
        self._damage_at = 0
        self._guesses: list[_Place] = []
        self._result = Rebuilt()

    def run(self, begin: int, on_record: OnRecord | None) -> Rebuilt:
        position = begin
        while position < self._known:
            if (reached := self._index_runs(position)) == position:
                # Damage, a missing segment, or a record that is larger than the window: a single step.
                part = next(iter(scan(self._log, position)), None)
                if part is None:
                    break
                reached = part.position + (part.size if isinstance(part, Found) else part.length)
                if not self._take(part, on_record):
                    self._keep_guessed_places()
                    return self._result
            position = reached
        for part in scan(self._log, position):
            if not self._take(part, on_record):
                break
        self._keep_guessed_places()
        return self._result

    def _take(self, part: Found | Damaged, on_record: OnRecord | None) -> bool:
        """Enter one part of the log; False if it is a torn end."""
        if isinstance(part, Found):
            self._add(part, on_record)
            return True
        return self._kept(part)

    def _index_runs(self, position: int) -> int:
        """Index a window of records below the checkpoint; returns where they end."""
        end = min(_part_end(self._log, position), self._known)
        window = _read(self._log, position, min(_WINDOW, end - position)) if position < end else b""
        runs, count, newest, used = index_runs(window, position, self._dropped_bytes)
        self._result.records += count
        self._result.last_store_time = max(self._result.last_store_time, newest)
        for topic, queue_id, first, entries in runs:
            queue = self._queue(topic.decode(), queue_id, first)
            while queue.end < first:
                self._put(queue, self._damage_at, 0, 0)
            queue.publish(entries[(queue.end - first) * ENTRY_BYTES :])
            queue.staged_end = queue.end
            self._queues.touch(queue)
        return position + used

    def _queue(self, topic: str, queue_id: int, offset: int) -> QueueIndex:
        """The queue, which begins at this offset if it is new and older records were deleted."""
        queue = self._queues.find(topic, queue_id)
        if queue is None:
            queue = self._queues.obtain(topic, queue_id)
            if self._log.start > 0:
                # The records before this one were deleted with their segments; they are not damaged.
                queue.begin_at(offset)
        return queue

    def _kept(self, part: Damaged) -> bool:
        """Note damage; False if it is a torn end."""
        end = part.position + part.length
        if end > self._known and not shows_synced(self._log, end):
            self._result.torn_at = max(part.position, self._known)
            part = part._replace(length=self._result.torn_at - part.position)
        if part.length:
            self._note(part)
        return self._result.torn_at is None

    def keep_known_ends(self, rows: list[QueueRow]) -> None:
        """After a full rebuild: extend every queue to the end that it had reached."""
        for row in rows:
            queue = self._queues.find(row.topic, row.queue_id)
            if queue is None:
                queue = self._queues.obtain(row.topic, row.queue_id)
                if self._log.start > 0:
                    queue.begin_at(row.end)
                self._queues.touch(queue)
            while queue.end < row.end:
                self._put(queue, self._damage_at, 0, 0)

    def _add(self, found: Found, on_record: OnRecord | None) -> None:
        facts = facts_of(found.buffer, found.start)
        self._result.records += 1
        self._result.last_store_time = max(self._result.last_store_time, facts.store_time)
        if found.position < self._dropped.get(facts.topic, 0):
            return
        self._index(found, facts)
        if on_record is not None and found.position >= self._known:
            on_record(RecordView(found.buffer, found.start))

    def _index(self, found: Found, facts: RecordFacts) -> None:
        queue = self._queue(facts.topic, facts.queue_id, facts.queue_offset)
        while queue.end < facts.queue_offset:
            self._put(queue, self._damage_at, 0, 0)
        if queue.end == facts.queue_offset:
            self._put(queue, found.position, found.size, tag_code_of(facts.properties))

    def _put(self, queue: QueueIndex, position: int, size: int, tag_code: int) -> None:
        queue.put(position, size, tag_code)
        self._queues.touch(queue)

    def _note(self, damaged: Damaged) -> None:
        self._damage_at = damaged.position
        self._result.damage.append(DamageRow(damaged.position, damaged.length, damaged.reason))
        place = _guess(damaged)
        if place is not None:
            self._guesses.append(place)

    def _keep_guessed_places(self) -> None:
        for place in self._guesses:
            queue = self._queues.find(place.topic, place.queue_id)
            if queue is not None and queue.end == place.offset:
                self._put(queue, place.position, 0, 0)


def _guess(damaged: Damaged) -> _Place | None:
    """The queue and offset of a damaged record, if its head still shows them.

    A wrong guess costs one reported offset.
    """
    try:
        claimed = PROOF.unpack_from(damaged.head, 0)[4]
        facts = facts_of(damaged.head, 0)
    except (struct.error, ValueError, IndexError):
        return None
    if claimed != damaged.position:
        return None
    return _Place(facts.topic, facts.queue_id, facts.queue_offset, damaged.position)


class RecoveryReport(NamedTuple):
    """The result of recovery. `scanned` counts records; `torn_file` holds the bytes that were cut off the end."""

    clean: bool
    scanned: int
    torn_bytes: int
    torn_file: Path | None
    damage: list[DamageRow]
    last_store_time: int


class Startup:
    """Recovers one data folder; runs once, before anything else uses the log."""

    def __init__(
        self, folder: Path, disk: Disk, log: CommitLog, queues: QueueTable, files: IndexFiles, state: State
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._log = log
        self._queues = queues
        self._files = files
        self._state = state

    def run(self, on_record: OnRecord | None) -> RecoveryReport:
        mark = self._state.checkpoint() or LogCheckpoint(0, 0, clean=False)
        self._queues.load(self._state.queues())
        whole = not self._state.rebuild_requested() and all(map(self._files.complete, self._queues))
        if mark.clean and whole and mark.position == self._log.end:
            return RecoveryReport(True, 0, 0, None, [], mark.last_store_time)
        self._log.settle()
        if self._log.end < mark.position:
            self._log.begin_at(mark.position)
        result = self._scan(mark, whole, on_record)
        torn, torn_file = self._cut_torn_end(result.torn_at)
        if not whole:
            self._state.request_rebuild(wanted=False)
        newest = max(mark.last_store_time, result.last_store_time)
        return RecoveryReport(False, result.records, torn, torn_file, result.damage, newest)

    def _scan(self, mark: LogCheckpoint, whole: bool, on_record: OnRecord | None) -> Rebuilt:
        rebuilder = Rebuilder(self._log, self._queues, self._state.dropped_topics(), mark.position)
        if whole:
            return rebuilder.run(max(mark.position, self._log.start), on_record)
        rows = self._state.queues()
        self._queues.clear()
        result = rebuilder.run(self._log.start, on_record)
        rebuilder.keep_known_ends(rows)
        return result

    def _cut_torn_end(self, position: int | None) -> tuple[int, Path | None]:
        if position is None or position >= self._log.end:
            return 0, None
        torn = self._log.end - position
        path = self._save_torn(position)
        self._log.cut(position)
        self._log.settle()
        return torn, path

    def _save_torn(self, position: int) -> Path:
        """Copy the bytes that will be cut, so that they can be examined later."""
        folder = self._folder / "torn"
        self._disk.make_dir(folder)
        path = folder / f"{position:020d}.torn"
        self._disk.unlink(path)
        try:
            fd = self._disk.create(path)
            try:
                self._copy(fd, position)
                self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)
            self._disk.fsync_dir(folder)
        except OSError as error:
            raise StorageError(f"cannot keep the torn end of the log in {path}: {error}; free some space") from error
        return path

    def _copy(self, fd: int, position: int) -> None:
        written = 0
        while position < self._log.end:
            data = self._log.read(position, _COPY_BYTES)
            if not data:
                return
            write_fully(self._disk, fd, data, written)
            written += len(data)
            position += len(data)
