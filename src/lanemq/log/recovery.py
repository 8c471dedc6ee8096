"""Recovery: what a start reads before the store can be used.

Three layers, from the bottom: `scan` and `read_piece` tell intact records from damage; `Replay` enters the records
into the queue table; `Startup` decides how much of the log to scan and cuts off a torn end. After a clean stop nothing
is scanned, otherwise the log from the last checkpoint on, in windows that are indexed at once
(`record_bytes.index_runs`). Index entries below the checkpoint that are lost are not needed for a start:
`log/index_rebuild` makes them later.

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
from lanemq.log.queue_index import IndexFiles, QueueIndex, QueueTable, pack_entry
from lanemq.log.record_bytes import MAGIC_AT, MAGIC_BYTES, RecordRun, facts_of, index_runs, size_at
from lanemq.log.state.database import DamageRow, LogCheckpoint, State
from lanemq.model.errors import StorageError
from lanemq.wire.properties import tag_code_of
from lanemq.wire.record import PROOF, is_marked_synced

_WINDOW = 4 * 1024 * 1024
_MAX_HEAD = 1024 * 1024
_COPY_BYTES = 4 * 1024 * 1024
_MISSING = "missing: a segment file is lost or short"

OnRecords = Callable[[bytes, int], None]
"""Gets intact records back to back: a buffer, and how many bytes at its start they take."""


class IntactRecord(NamedTuple):
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


def scan(log: CommitLog, position: int, window: int = _WINDOW) -> Iterator[IntactRecord | Damaged]:
    """Every record and every damaged range from a position to the end of the log, in order."""
    for segment, end in _parts(log):
        if position < segment.start:
            yield Damaged(position, segment.start - position, b"", _MISSING)
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
    return any(
        isinstance(part, IntactRecord) and is_marked_synced(part.buffer, part.start) for part in scan(log, position)
    )


def _scan_part(log: CommitLog, position: int, end: int, at_once: int) -> Iterator[IntactRecord | Damaged]:
    window, base = b"", position
    while position < end:
        size = size_at(window, position - base, position)
        if size < 0 and base + len(window) < end:
            asked = min(max(at_once, -size), end - position)
            window, base = _read(log, position, asked), position
            continue
        if size > 0:
            yield IntactRecord(position, size, window, position - base)
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


class Piece(NamedTuple):
    """A stretch of the log: intact records, at the start of `buffer`, with their index entries; or damage."""

    position: int
    reached: int
    """The position after it."""
    runs: list[RecordRun]
    records: int
    newest: int
    """The newest store time."""
    buffer: bytes
    damaged: Damaged | None = None


def read_piece(
    log: CommitLog, position: int, until: int, dropped: Mapping[bytes, int], window: int = _WINDOW
) -> Piece | None:
    """What begins at a position, not beyond `until`; None if nothing does.

    `dropped` is as in `index_runs`.
    """
    end = min(_part_end(log, position), until)
    if position >= end:
        following = min((s.start for s in log.segments if s.start > position), default=position)
        if min(following, until) <= position:
            return None
        return _damaged_piece(Damaged(position, min(following, until) - position, b"", _MISSING))
    buffer = _read(log, position, min(window, end - position))
    runs, count, newest, used = index_runs(buffer, position, dropped)
    if used:
        return Piece(position, position + used, runs, count, newest, buffer)
    # Damage, or a record that is larger than the window.
    part = next(_scan_part(log, position, end, window))
    if isinstance(part, Damaged):
        return _damaged_piece(part)
    buffer = part.buffer[part.start : part.start + part.size]
    facts = facts_of(buffer, 0)
    runs = []
    if position >= dropped.get(facts.topic.encode(), 0):
        entry = pack_entry(facts.queue_offset, position, part.size, tag_code_of(facts.properties))
        runs.append((facts.topic.encode(), facts.queue_id, facts.queue_offset, entry))
    return Piece(position, position + part.size, runs, 1, facts.store_time, buffer)


def _damaged_piece(damaged: Damaged) -> Piece:
    return Piece(damaged.position, damaged.position + damaged.length, [], 0, 0, b"", damaged)


@dataclass(slots=True)
class Replayed:
    """The result of a replay. `torn_at` is the start of a torn end, or None."""

    records: int = 0
    last_store_time: int = 0
    damage: list[DamageRow] = field(default_factory=list)
    torn_at: int | None = None


class _Place(NamedTuple):
    topic: str
    queue_id: int
    offset: int
    position: int


class Replay:
    """Enters the records after the last checkpoint, which is at `known`, into the queue table.

    Bytes below the checkpoint were synced, so faults there are damage, never a torn end.
    """

    def __init__(self, log: CommitLog, queues: QueueTable, dropped: Mapping[str, int], known: int) -> None:
        self._log = log
        self._queues = queues
        self._dropped = dropped_bytes(dropped)
        self._known = known
        self._damage_at = 0
        self._guesses: list[_Place] = []
        self._result = Replayed()

    def run(self, on_records: OnRecords | None) -> Replayed:
        position = max(self._known, self._log.start)
        while (piece := read_piece(self._log, position, self._log.end, self._dropped)) is not None:
            if piece.damaged is None:
                self._enter(piece)
                if on_records is not None:
                    on_records(piece.buffer, piece.reached - position)
            elif not self._kept(piece.damaged):
                break
            position = piece.reached
        self._keep_guessed_places()
        return self._result

    def _enter(self, piece: Piece) -> None:
        self._result.records += piece.records
        self._result.last_store_time = max(self._result.last_store_time, piece.newest)
        for topic, queue_id, first, entries in piece.runs:
            queue = self._queue(topic.decode(), queue_id, first)
            queue.enter(first, entries, damage_at=self._damage_at)
            self._queues.touch(queue)

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
                queue.put(place.position, 0, 0)
                self._queues.touch(queue)


def dropped_bytes(dropped: Mapping[str, int]) -> dict[bytes, int]:
    """Dropped topics as `index_runs` wants them."""
    return {topic.encode(): position for topic, position in dropped.items()}


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
    """The result of recovery. `scanned` counts records; `torn_file` holds the bytes that were cut off the end.

    `indexes_lost`: entries of records before the last checkpoint are missing or damaged, and must be rebuilt.
    """

    clean: bool
    scanned: int
    torn_bytes: int
    torn_file: Path | None
    damage: list[DamageRow]
    last_store_time: int
    indexes_lost: bool = False


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

    def run(self, on_records: OnRecords | None) -> RecoveryReport:
        mark = self._state.checkpoint() or LogCheckpoint(0, 0, clean=False)
        self._queues.load(self._state.queues())
        lost = self._find_lost_indexes()
        if mark.clean and mark.position == self._log.end:
            return RecoveryReport(True, 0, 0, None, [], mark.last_store_time, lost)
        self._log.settle()
        if self._log.end < mark.position:
            self._log.begin_at(mark.position)
        result = Replay(self._log, self._queues, self._state.dropped_topics(), mark.position).run(on_records)
        torn, torn_file = self._cut_torn_end(result.torn_at)
        newest = max(mark.last_store_time, result.last_store_time)
        return RecoveryReport(False, result.records, torn, torn_file, result.damage, newest, lost)

    def _find_lost_indexes(self) -> bool:
        """Whether index entries are lost; the queues know then that theirs are rebuilt.

        The request for a rebuild is on disk before a queue's entries count as lost, and before the first checkpoint:
        until the rebuild is complete, checkpoints claim entries that are not in the files.
        """
        requested = self._state.rebuild_requested()
        if not requested and all(map(self._files.complete, self._queues)):
            return False
        if not requested:
            self._state.request_rebuild()
        self._queues.begin_rebuild()
        return True

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
