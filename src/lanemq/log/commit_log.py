"""The commit log: all records of all queues in order of arrival, in segment files.

A segment file is named by the log position of its first byte, as 20 digits, so that names sort by position and a
missing file shows as a hole. A record never spans two segments.

Invariants:

- `append` and `sync` never report success for bytes that the disk did not accept. A full disk, and a lack of
  descriptors, are undone to the last whole append. Any other failed write and any failed `fdatasync` is final:
  afterwards the content of the device is unknown, and a repeated `fdatasync` would report success for pages that were
  lost.
- The name of a new segment is on disk before anything in the segment counts. Its file is created ahead
  (`prepare_next`), so that the roll needs no new descriptor for it.

A power cut may keep any part of an append that was in progress. To let recovery tell such a torn append from damage, a
record that is written while everything before it is synced carries a mark (`mark_synced`). Bytes before a marked record
were intact once, so a fault in them is damage.

Threads: `append`, `sync` and `close_retired` run on the log thread, `retire` on the loop, `read` on any thread. The
list of segments is replaced, never changed in place. Without `durable`, the loop may append to the newest segment while
the log thread syncs: what is appended during a sync is left to the next one.
"""

import bisect
import contextlib
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from lanemq.log.filesystem import NO_DESCRIPTORS, NO_SPACE, Disk, write_fully
from lanemq.model.errors import DiskFull, NoDescriptors, StorageError, WriteFailed
from lanemq.wire.record import mark_synced

_NEXT = "next"
"""File of the segment that comes next, before its name is known."""
_DIGITS = 20
_SUFFIX = ".log"


@dataclass(slots=True, eq=False)
class Segment:
    """One open file of the log. `size` counts the bytes written as a whole; only `append` and `cut` change it."""

    start: int
    path: Path
    fd: int
    size: int

    @property
    def end(self) -> int:
        """The position after the last byte, where the next segment starts."""
        return self.start + self.size


class _View(NamedTuple):
    starts: list[int]
    segments: list[Segment]


class CommitLog:
    """The segment files of one data folder."""

    def __init__(self, folder: Path, disk: Disk) -> None:
        self.folder = folder
        self._disk = disk
        self._changing = threading.Lock()
        self._unsynced: list[Segment] = []
        self._next: int | None = None
        disk.make_dir(folder)
        disk.unlink(folder / _NEXT)
        starts = sorted(s for s in map(segment_start, disk.names(folder)) if s is not None)
        self._view = _View([], [])
        self._replace([self._open(start) for start in starts])
        # Everything below is on disk: after an unclean stop, recovery calls `settle` first.
        self._synced = self.end

    @property
    def segments(self) -> Sequence[Segment]:
        return self._view.segments

    @property
    def start(self) -> int:
        """The position of the oldest byte that is kept."""
        segments = self._view.segments
        return segments[0].start if segments else 0

    @property
    def end(self) -> int:
        """The position at which the next append must begin."""
        segments = self._view.segments
        return segments[-1].end if segments else 0

    @property
    def removed(self) -> Path | None:
        """The newest segment if its file was deleted, though it is open; else None."""
        segments = self._view.segments
        try:
            return segments[-1].path if segments and self._disk.is_removed(segments[-1].fd) else None
        except OSError:
            return None  # it was closed a moment ago

    def segment_at(self, position: int) -> Segment | None:
        """The segment that holds this position; None if it was deleted or never written."""
        view = self._view
        at = bisect.bisect_right(view.starts, position) - 1
        if at < 0 or position >= view.segments[at].end:
            return None
        return view.segments[at]

    def read(self, position: int, size: int) -> bytes:
        """The bytes from a position on; fewer at the end of the log or before a hole, none if they were deleted.

        Continues into the next segment: records of one queue may be adjacent across the boundary.
        """
        parts = []
        while size > 0 and (segment := self.segment_at(position)) is not None:
            data = self._disk.read_at(segment.fd, min(size, segment.end - position), position - segment.start)
            if not data:
                break
            parts.append(data)
            position += len(data)
            size -= len(data)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def append(self, position: int, parts: Sequence[tuple[int, Sequence[bytes]]]) -> int:
        """Write everything at the end of the log; returns the size of the newest segment.

        Each part is the start of a segment and its records; there is at least one. `DiskFull` leaves the log unchanged;
        after `WriteFailed` the log must not be written again.
        """
        if position != self.end:
            raise WriteFailed(f"append at {position}, but the log ends at {self.end}: appends were mixed up")
        try:
            for start, chunks in parts:
                self._append_part(start, bytearray().join(chunks))
        except OSError as error:
            raise self._refusal(position, error) from error
        return self._view.segments[-1].size

    def _refusal(self, position: int, error: OSError) -> StorageError:
        """The error of an append at `position` that failed. What can be undone is undone."""
        if error.errno in NO_SPACE:
            self.cut(position)
            return DiskFull(f"no space left in {self.folder}: free some, and sends continue by themselves")
        if error.errno in NO_DESCRIPTORS:
            self.cut(position)
            return NoDescriptors(f"no descriptor for the next file in {self.folder}: {error}; try again")
        return WriteFailed(f"writing to {self.folder} failed: {error}; replace the disk, restart")

    def prepare_next(self) -> None:
        """Create the file of the next segment ahead. If that fails, the roll tries again."""
        if self._next is None:
            with contextlib.suppress(OSError):
                self._next = self._disk.create(self.folder / _NEXT)

    def sync(self) -> None:
        """Make what was appended survive a power cut. Must not be called again after a failure."""
        try:
            # Taken first: what is appended while this sync runs is left to the next one.
            with self._changing:
                segments, self._unsynced, end = self._unsynced, [], self.end
            for segment in segments:
                self._disk.fdatasync(segment.fd)
            self._synced = end
        except OSError as error:
            raise WriteFailed(f"fdatasync in {self.folder} failed: {error}; check the disk, restart") from error

    def cut(self, position: int) -> None:
        """Remove every byte from a position on. The last segment may be empty afterwards."""
        try:
            with self._changing:
                keep = [s for s in self._view.segments if s.start <= position]
                for gone in self._view.segments[len(keep) :]:
                    self._disk.unlink(gone.path)
                    self._disk.close(gone.fd)
                self._replace(keep)
            self._unsynced = [s for s in self._unsynced if s in keep]
            self._synced = min(self._synced, position)
            if keep:
                self._disk.truncate(keep[-1].fd, position - keep[-1].start)
                keep[-1].size = position - keep[-1].start
        except OSError as error:
            raise WriteFailed(f"cannot cut {self.folder} back to {position}: {error}; restart") from error

    def begin_at(self, position: int) -> None:
        """Continue at a position beyond the end. The hole stays visible, because lost bytes keep their positions."""
        self._add_segment(position)
        self._synced = position

    def settle(self) -> None:
        """Write out cached pages and drop them, so that recovery reads what the device really holds."""
        try:
            for segment in self.segments[-2:]:
                self._disk.fdatasync(segment.fd)
                self._disk.drop_cache(segment.fd)
            self._synced = self.end
        except OSError as error:
            raise StorageError(f"cannot settle {self.folder}: {error}; the disk is failing") from error

    def retire(self, count: int) -> list[Segment]:
        """Remove the oldest segments from view; `close_retired` deletes their files."""
        with self._changing:
            segments = self._view.segments
            count = min(count, len(segments) - 1)
            self._replace(segments[count:])
        return segments[:count]

    def close_retired(self, retired: Sequence[Segment]) -> None:
        """Delete retired segments, oldest first, so that a crash in between leaves no hole."""
        for segment in retired:
            self._disk.close(segment.fd)
            self._disk.unlink(segment.path)
        self._disk.fsync_dir(self.folder)

    def close(self) -> None:
        """Close the files without changing anything on disk; the next start removes a segment that was made ahead."""
        for segment in self._view.segments:
            self._disk.close(segment.fd)
        self._view = _View([], [])
        if self._next is not None:
            self._disk.close(self._next)
            self._next = None

    def _append_part(self, start: int, data: bytearray) -> None:
        segments = self._view.segments
        last = segments[-1] if segments and segments[-1].start == start else self._roll(start)
        if self._synced == start + last.size:
            mark_synced(data)
        size, written = len(data), self._disk.write_at(last.fd, memoryview(data), last.size)
        if written != size:
            write_fully(self._disk, last.fd, data[max(0, written) :], last.size + max(0, written))
        with self._changing:
            last.size += size
            if last not in self._unsynced:
                self._unsynced.append(last)

    def _roll(self, start: int) -> Segment:
        if start != self.end:
            raise WriteFailed(f"segment {start} would leave a hole: the log ends at {self.end}")
        # Sync the full segment first: no later record may survive a power cut that an earlier one did not.
        self.sync()
        return self._add_segment(start)

    def _add_segment(self, start: int) -> Segment:
        path = self.folder / _segment_name(start)
        fd, self._next = self._next, None
        if fd is None:
            fd = self._disk.create(path)
        else:
            self._disk.rename(self.folder / _NEXT, path)
        try:
            self._disk.fsync_dir(self.folder)
        except OSError:
            self._disk.close(fd)
            self._disk.unlink(path)
            raise
        segment = Segment(start, path, fd, 0)
        with self._changing:
            self._replace([*self._view.segments, segment])
        return segment

    def _open(self, start: int) -> Segment:
        path = self.folder / _segment_name(start)
        fd = self._disk.open(path)
        return Segment(start, path, fd, self._disk.size(fd))

    def _replace(self, segments: list[Segment]) -> None:
        self._view = _View([s.start for s in segments], segments)


def _segment_name(start: int) -> str:
    return f"{start:0{_DIGITS}d}{_SUFFIX}"


def segment_start(name: str) -> int | None:
    """The position in a segment's file name; None for any other file."""
    digits = name.removesuffix(_SUFFIX)
    if len(name) != _DIGITS + len(_SUFFIX) or not digits.isdigit() or digits == name:
        return None
    return int(digits)
