"""Finding messages by key or unique id, behind the log and never in its way.

Belongs to the log thread: `advance` when it has nothing better to do, `query` when somebody asks (it catches up
first). The segment being written is kept in memory; finished ones are files. All of it can be rebuilt.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path

from lanemq.log.commit_log import CommitLog
from lanemq.log.filesystem import Disk, write_fully
from lanemq.log.key_arrays import KeyArrays, load_arrays
from lanemq.log.key_scan import key_hash, keys_of, scan_keys
from lanemq.log.record_bytes import facts_of, size_at, store_time_at
from lanemq.log.recovery import Found, scan
from lanemq.log.segment import Segment
from lanemq.wire.record import HEAD_BYTES


class KeyIndex:
    """Hash arrays per segment, the newest one growing."""

    def __init__(self, folder: Path, disk: Disk, log: CommitLog) -> None:
        self._folder = folder
        self._disk = disk
        self._log = log
        self._growing: KeyArrays | None = None
        disk.make_dir(folder)

    @property
    def complete(self) -> bool:
        """Whether the end of the log is reached."""
        if self._growing is None:
            return not self._log.segments
        return self._growing.end >= self._log.end

    def advance(self, most_bytes: int) -> bool:
        """Indexes about so many bytes more of the log; False when it has reached the end."""
        growing = self._growing or self._begin()
        if growing is None or growing.end >= self._log.end:
            return False
        segment = self._segment_of(growing)
        if segment is None:
            self._growing = None
            return True
        limit = min(segment.end, growing.end + max(1, most_bytes))
        if self._take_records(growing, limit):
            self._finish_if_full(growing, segment)
            return True
        for part in scan(self._log, growing.end, window=min(max(most_bytes, 1 << 16), 1 << 22)):
            if part.position >= limit:
                break
            if isinstance(part, Found):
                self._add(growing, part)
            growing.end = part.position + (part.size if isinstance(part, Found) else part.length)
        self._finish_if_full(growing, segment)
        return True

    def _take_records(self, growing: KeyArrays, limit: int) -> bool:
        """The usual case: intact records one behind the other. False if the next one is damaged, or too long."""
        hashes, positions, size = scan_keys(self._log.read(growing.end, limit - growing.end), growing.end)
        growing.extend(hashes, positions)
        growing.end += size
        return size > 0

    def query(self, topic: str, key: str, limit: int, begin: int, end: int, *, oldest: int = 0) -> list[bytes]:
        """The newest `limit` records with this key, stored from `begin` to `end`, not below position `oldest`."""
        while self.advance(64 * 1024 * 1024):
            pass
        found: list[bytes] = []
        for position in self._candidates(key_hash(topic, key), begin, end):
            if len(found) >= limit:
                break
            record = self._matching(position, topic, key, begin, end) if position >= oldest else None
            if record is not None and record not in found[-1:]:
                found.append(record)
        return found

    def forget(self, segments: Sequence[Segment]) -> None:
        """Drops what is known about deleted segments."""
        for segment in segments:
            self._disk.unlink(self._path(segment.start))
            if self._growing is not None and self._growing.start == segment.start:
                self._growing = None

    def _begin(self) -> KeyArrays | None:
        """The first segment that has no file yet; the last one is always built in memory."""
        segments = self._log.segments
        have = set(self._disk.names(self._folder))
        for segment in segments:
            if segment is segments[-1] or self._path(segment.start).name not in have:
                self._growing = KeyArrays(segment.start, segment.start)
                return self._growing
        return None

    def _segment_of(self, arrays: KeyArrays) -> Segment | None:
        return next((s for s in self._log.segments if s.start == arrays.start), None)

    def _finish_if_full(self, growing: KeyArrays, segment: Segment) -> None:
        if segment is self._log.segments[-1] or growing.end < segment.end:
            return
        growing.end = segment.end
        self._save(growing)
        self._growing = None

    def _add(self, arrays: KeyArrays, found: Found) -> None:
        facts = facts_of(found.buffer, found.start)
        arrays.add(facts.topic, keys_of(facts.properties), found.position)

    def _save(self, arrays: KeyArrays) -> None:
        path = self._path(arrays.start)
        draft = path.with_suffix(".draft")
        self._disk.unlink(draft)
        fd = self._disk.create(draft)
        try:
            write_fully(self._disk, fd, arrays.to_bytes(), 0)
            self._disk.fdatasync(fd)
        finally:
            self._disk.close(fd)
        self._disk.rename(draft, path)
        self._disk.fsync_dir(self._folder)

    def _candidates(self, wanted: int, begin: int, end: int) -> Iterator[int]:
        newest_time: int | None = None
        for segment in reversed(self._log.segments):
            head = self._log.read(segment.start, HEAD_BYTES)
            first_time = store_time_at(head) if size_at(head, 0, segment.start) else None
            too_new = first_time is not None and first_time > end
            too_old = newest_time is not None and newest_time < begin
            newest_time = first_time
            if too_old or too_new:
                continue
            arrays = self._arrays(segment)
            if arrays is not None:
                yield from arrays.newest_first(wanted)

    def _arrays(self, segment: Segment) -> KeyArrays | None:
        if self._growing is not None and self._growing.start == segment.start:
            return self._growing
        try:
            fd = self._disk.open(self._path(segment.start))
        except FileNotFoundError:
            return None
        try:
            data = self._disk.read_at(fd, self._disk.size(fd), 0)
        finally:
            self._disk.close(fd)
        return load_arrays(data, segment.start, segment.end) or self._remake(segment)

    def _remake(self, segment: Segment) -> KeyArrays:
        """The file was damaged: the segment itself still knows."""
        arrays = KeyArrays(segment.start, segment.start)
        for part in scan(self._log, segment.start):
            if part.position >= segment.end:
                break
            if isinstance(part, Found):
                self._add(arrays, part)
        arrays.end = segment.end
        self._save(arrays)
        return arrays

    def _matching(self, position: int, topic: str, key: str, begin: int, end: int) -> bytes | None:
        head = self._log.read(position, HEAD_BYTES)
        record = self._log.read(position, abs(size_at(head, 0, position)))
        if size_at(record, 0, position) <= 0:
            return None
        facts = facts_of(record, 0)
        fits = facts.topic == topic and begin <= facts.store_time <= end and key in keys_of(facts.properties)
        return record if fits else None

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:020d}.keys"
