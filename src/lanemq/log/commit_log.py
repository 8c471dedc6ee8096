"""All records of all queues in the order of arrival, in segment files.

Guards two rules. First: nothing is reported written that the disk did not take. A full disk is undone to the
last whole append and may be tried again; any other failed write, and any failed `fdatasync`, is final, because
after it nobody knows what the device holds (a repeated `fdatasync` would report success over lost pages).
Second: a record never spans two segments, and a new segment's name is on disk before anything in it counts.

What a power cut leaves of an append that was under way is any part of it. So that a start can tell this from damage,
a record that is written when everything in front of it is synced says so (`mark_synced`): bytes in front of such a
record were whole once, and what is wrong with them now is damage.

`append`, `sync` and `close_retired` belong to the log thread; `read` may be called from any thread;
`retire` belongs to the loop. The list of segments is replaced, never changed in place.
"""

import bisect
import errno
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from lanemq.log.filesystem import Disk, write_fully
from lanemq.log.segment import Segment, segment_name, segment_start
from lanemq.model.errors import DiskFull, StorageError, WriteFailed
from lanemq.wire.record import mark_synced

_NO_SPACE = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


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
        disk.make_dir(folder)
        starts = sorted(s for s in map(segment_start, disk.names(folder)) if s is not None)
        self._view = _View([], [])
        self._replace([self._open(start) for start in starts])
        # Up to here everything is on disk: a start after anything but a clean stop calls `settle` first.
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

    def segment_at(self, position: int) -> Segment | None:
        """The segment that holds this position, if it is still there."""
        view = self._view
        at = bisect.bisect_right(view.starts, position) - 1
        if at < 0 or position >= view.segments[at].end:
            return None
        return view.segments[at]

    def read(self, position: int, size: int) -> bytes:
        """The bytes from a position on; fewer at the end of the log or before a hole, none if it is gone.

        Goes on into the next segment: records of one queue may lie back to back across the boundary.
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

    def append(self, position: int, parts: Sequence[tuple[int, Sequence[bytes]]]) -> None:
        """Writes everything at the end, or leaves the log as it was (`DiskFull`), or gives up (`WriteFailed`).

        Each part is the start of a segment and the records for it.
        """
        if position != self.end:
            raise WriteFailed(f"append at {position}, but the log ends at {self.end}: appends were mixed up")
        try:
            for start, chunks in parts:
                self._append_part(start, bytearray().join(chunks))
        except OSError as error:
            if error.errno in _NO_SPACE:
                self.cut(position)
                raise DiskFull(f"no space left in {self.folder}: free some, then restart the broker") from error
            raise WriteFailed(f"writing to {self.folder} failed: {error}; replace the disk, restart") from error

    def sync(self) -> None:
        """Makes what was appended survive a power cut. Never called again after it failed once."""
        try:
            # Taken first: what is appended while the sync runs must be synced by the next one.
            segments, self._unsynced, end = self._unsynced, [], self.end
            for segment in segments:
                self._disk.fdatasync(segment.fd)
            self._synced = end
        except OSError as error:
            raise WriteFailed(f"fdatasync in {self.folder} failed: {error}; check the disk, restart") from error

    def cut(self, position: int) -> None:
        """Removes every byte from a position on; the log ends there, perhaps with an empty segment."""
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
        """Goes on at a position behind the end, leaving a visible hole: lost bytes keep their positions."""
        self._add_segment(position)
        self._synced = position

    def settle(self) -> None:
        """Writes cached pages out and forgets them, so that recovery reads what the device really holds."""
        try:
            for segment in self.segments[-2:]:
                self._disk.fdatasync(segment.fd)
                self._disk.drop_cache(segment.fd)
            self._synced = self.end
        except OSError as error:
            raise StorageError(f"cannot settle {self.folder}: {error}; the disk is failing") from error

    def total_bytes(self) -> int:
        return sum(segment.size for segment in self.segments)

    def retire(self, count: int) -> list[Segment]:
        """Takes the oldest segments out of sight; `close_retired` deletes them."""
        with self._changing:
            segments = self._view.segments
            count = min(count, len(segments) - 1)
            self._replace(segments[count:])
        return segments[:count]

    def close_retired(self, retired: Sequence[Segment]) -> None:
        """Deletes what `retire` took out, oldest first, so that a crash in between leaves no hole."""
        for segment in retired:
            self._disk.close(segment.fd)
            self._disk.unlink(segment.path)
        self._disk.fsync_dir(self.folder)

    def close(self) -> None:
        for segment in self._view.segments:
            self._disk.close(segment.fd)
        self._view = _View([], [])

    def _append_part(self, start: int, data: bytearray) -> None:
        segments = self._view.segments
        last = segments[-1] if segments and segments[-1].start == start else self._roll(start)
        if self._synced == last.end:
            mark_synced(data)
        write_fully(self._disk, last.fd, data, last.size)
        last.size += len(data)
        if last not in self._unsynced:
            self._unsynced.append(last)

    def _roll(self, start: int) -> Segment:
        if start != self.end:
            raise WriteFailed(f"segment {start} would leave a hole: the log ends at {self.end}")
        # The full segment is synced first, so that no later record survives a power cut that an earlier did not.
        self.sync()
        return self._add_segment(start)

    def _add_segment(self, start: int) -> Segment:
        path = self.folder / segment_name(start)
        segment = Segment(start, path, self._disk.create(path), 0)
        with self._changing:
            self._replace([*self._view.segments, segment])
        self._disk.fsync_dir(self.folder)
        return segment

    def _open(self, start: int) -> Segment:
        path = self.folder / segment_name(start)
        fd = self._disk.open(path)
        return Segment(start, path, fd, self._disk.size(fd))

    def _replace(self, segments: list[Segment]) -> None:
        self._view = _View([s.start for s in segments], segments)
