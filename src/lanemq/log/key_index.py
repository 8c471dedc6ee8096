"""The key index: finds messages by key, unique id or sharding key.

Three layers, from the bottom: `scan_keys` extracts hashes of keys from records; `KeyArrays` holds those of one segment,
as two packed arrays, in which a search is one `bytes.find`; `KeyIndex` has one such array per segment. A hash only
proposes a record; the record itself decides. The arrays of the segment being written are in memory and saved from time
to time, those of finished segments in files. All of them can be rebuilt from the log.

Everything belongs to one thread, which is not the log thread: a search must not delay a send. It reads the log only up
to what is visible, which is never undone, and in small steps, because the event loop waits for the interpreter lock.
"""

import re
from array import array
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from struct import Struct
from sys import byteorder
from zlib import crc32

from lanemq._fast import compiled
from lanemq.log.commit_log import CommitLog, Segment
from lanemq.log.filesystem import NO_SPACE, Disk, write_fully
from lanemq.log.record_bytes import RecordFacts, facts_of, size_at, store_time_at
from lanemq.log.recovery import IntactRecord, scan
from lanemq.model.errors import DiskFull, StorageError
from lanemq.wire.properties import PropertyName, find_property
from lanemq.wire.record import HEAD_BYTES

HASH_BYTES = 4
STEP_BYTES = 64 * 1024
"""Bytes of the log that a search indexes at once."""
SAVE_EVERY_BYTES = 32 * 1024 * 1024
"""Bytes of the log after which the arrays of the newest segment are saved again. Large: a crash makes the next search
read as much of the log. Small: the arrays are written more often."""
MAX_CANDIDATES = 10_000
"""Records that one search reads at most; with more of the same hash, the newest ones are looked at."""

_LENGTH = Struct(">i")
_USUAL = re.compile(b"(?:__SHARDINGKEY\x01([^\x01\x02]+)\x02)?UNIQ_KEY\x01([^\x01\x02]+)\x02").match
"""How the properties of LaneMQ's producers begin."""
_FILE_HEAD = Struct(">8sQQQI")
_GROWING = ".growing"
"""Files with the arrays of a segment that is being written."""
_FILE_MAGIC = b"LANEKEY1" if byteorder == "big" else b"LANEKEYL"


@compiled
def scan_keys(buffer: bytes, position: int) -> tuple[bytes, bytes, int]:
    """The hashes and positions (native, 8 bytes each) of the keys of the records at the start of `buffer`.

    `position` is the log position of the buffer. The last value is the size of these records: the scan stops before
    anything that is not an intact record.
    """
    hashes, positions, at = array("I"), array("Q"), 0
    scopes: dict[bytes, int] = {}
    while (size := size_at(buffer, at, position + at)) > 0:
        of_record = _usual_hashes(buffer, at, size, scopes) or _hashes_of(facts_of(buffer, at))
        hashes.extend(of_record)
        positions.extend([position + at] * len(of_record))
        at += size
    if byteorder == "little":
        hashes.byteswap()
    return hashes.tobytes(), positions.tobytes(), at


def _hashes_of(facts: RecordFacts) -> list[int]:
    return [key_hash(facts.topic, key) for key in keys_of(facts.properties)]


def _usual_hashes(buffer: bytes, start: int, size: int, scopes: dict[bytes, int]) -> list[int] | None:
    """The hashes of a record as LaneMQ's producers write it, without decoding; None for any other record."""
    (length,) = _LENGTH.unpack_from(buffer, start + HEAD_BYTES)
    at = start + HEAD_BYTES + _LENGTH.size + length
    topic_end = at + 1 + buffer[at]
    topic, text = buffer[at + 1 : topic_end], buffer[topic_end + 2 : start + size]
    scope = scopes.get(topic)
    if scope is None:
        scope = scopes[topic] = crc32(topic + b"#")
    usual = _USUAL(text)
    if usual is None or not text.isascii():
        return None
    end = usual.end()
    if text.find(b"KEY\x01", end) >= 0 or text.find(b"KEYS\x01", end) >= 0:
        return None  # a later property of the same name takes precedence
    key, unique = usual.groups()
    return [crc32(unique, scope)] if key is None or key == unique else [crc32(unique, scope), crc32(key, scope)]


def keys_of(properties: str) -> Collection[str]:
    """The keys of a message, each once: every word of its KEYS property, its unique id, its sharding key."""
    words = (find_property(properties, PropertyName.KEYS) or "").split()
    others = find_property(properties, PropertyName.UNIQUE_ID), find_property(properties, PropertyName.KEY)
    return dict.fromkeys([*words, *filter(None, others)])


def key_hash(topic: str, key: str) -> int:
    """The hash of a key, scoped by topic so that equal keys of different topics differ."""
    return crc32(f"{topic}#{key}".encode())


class KeyArrays:
    """The key hashes of the log from `start` to `end`, with positions in log order."""

    def __init__(self, start: int, end: int, hashes: bytes = b"", positions: bytes = b"") -> None:
        self.start = start
        self.end = end
        self._hashes = bytearray(hashes)
        self._positions = array("Q", positions)

    def add(self, topic: str, keys: Iterable[str], position: int) -> None:
        for key in keys:
            self._hashes += key_hash(topic, key).to_bytes(HASH_BYTES, "big")
            self._positions.append(position)

    def extend(self, hashes: bytes, positions: bytes) -> None:
        """Add the result of `scan_keys`."""
        self._hashes += hashes
        self._positions.frombytes(positions)

    def newest_first(self, wanted: int) -> Iterator[int]:
        """Positions of records that may have the key, newest first."""
        needle = wanted.to_bytes(HASH_BYTES, "big")
        at = self._hashes.rfind(needle)
        while at >= 0:
            if at % HASH_BYTES == 0:
                yield self._positions[at // HASH_BYTES]
            at = self._hashes.rfind(needle, 0, at + HASH_BYTES - 1)

    def to_bytes(self) -> bytes:
        body = bytes(self._hashes) + self._positions.tobytes()
        return _FILE_HEAD.pack(_FILE_MAGIC, self.start, self.end, len(self._positions), crc32(body)) + body


def load_arrays(data: bytes, start: int, end: int) -> KeyArrays | None:
    """The arrays from a file; None if the file is damaged or covers another part of the log."""
    arrays = _parse_arrays(data)
    return arrays if arrays is not None and (arrays.start, arrays.end) == (start, end) else None


def _parse_arrays(data: bytes) -> KeyArrays | None:
    body = data[_FILE_HEAD.size :]
    if len(data) < _FILE_HEAD.size:
        return None
    magic, start, end, count, check = _FILE_HEAD.unpack_from(data)
    if magic != _FILE_MAGIC or check != crc32(body):
        return None
    return KeyArrays(start, end, body[: count * HASH_BYTES], body[count * HASH_BYTES :])


class KeyIndex:
    """Key hashes of the whole log, one array per segment."""

    def __init__(self, folder: Path, disk: Disk, log: CommitLog, visible_end: Callable[[], int]) -> None:
        """`visible_end` is the position after the last visible record."""
        self._folder = folder
        self._disk = disk
        self._log = log
        self._visible_end = visible_end
        self._growing: KeyArrays | None = None
        self._saved_end = 0
        disk.make_dir(folder)

    def open(self, end: int) -> None:
        """Called once, after recovery, with the end of the log: continue the arrays of the newest segment.

        If they cover more than the log has, the log lost records, and others will take their positions.
        """
        newest = self._log.segments[-1] if self._log.segments else None
        for name in self._disk.names(self._folder):
            if newest is None or name != self._growing_path(newest.start).name:
                if name.endswith(_GROWING):
                    self._disk.unlink(self._folder / name)
                continue
            arrays = _parse_arrays(self._read_file(self._folder / name))
            if arrays is not None and arrays.start == newest.start and arrays.end <= end:
                self._growing, self._saved_end = arrays, arrays.end
            else:
                self._disk.unlink(self._folder / name)

    def save(self) -> None:
        """Save the arrays of the newest segment, so that a restart continues from here."""
        if self._growing is not None and self._growing.end > self._saved_end:
            self._write(self._growing_path(self._growing.start), self._growing)
            self._saved_end = self._growing.end

    @property
    def complete(self) -> bool:
        """Whether everything up to the last visible record is indexed."""
        if self._growing is None:
            return not self._log.segments
        return self._growing.end >= self._visible_end()

    def advance(self, max_bytes: int) -> bool:
        """Index about `max_bytes` more of the log; False at its visible end."""
        growing, visible_end = self._growing or self._begin(), self._visible_end()
        if growing is None or growing.end >= visible_end:
            return False
        segment = self._segment_of(growing)
        if segment is None:
            self._growing = None
            return True
        limit = min(segment.end, visible_end, growing.end + max(1, max_bytes))
        if self._take_records(growing, limit):
            self._finish_if_full(growing, segment)
            if growing.end - self._saved_end >= SAVE_EVERY_BYTES:
                self.save()
            return True
        for part in scan(self._log, growing.end, window=min(max(max_bytes, 1 << 16), 1 << 22)):
            if part.position >= limit:
                break
            if isinstance(part, IntactRecord):
                self._add(growing, part)
            growing.end = part.position + (part.size if isinstance(part, IntactRecord) else part.length)
        self._finish_if_full(growing, segment)
        return True

    def _take_records(self, growing: KeyArrays, limit: int) -> bool:
        """Index the intact records that come next; False if the very next one is damaged or longer than the limit."""
        hashes, positions, size = scan_keys(self._log.read(growing.end, limit - growing.end), growing.end)
        growing.extend(hashes, positions)
        growing.end += size
        return size > 0

    def query(self, topic: str, key: str, limit: int, begin: int, end: int, *, oldest: int = 0) -> list[bytes]:
        """The newest `limit` records with this key, stored between two times and not below position `oldest`.

        Indexes the rest of the log first, up to what was visible when it began.
        """
        until = self._visible_end()
        while (self._growing is None or self._growing.end < until) and self.advance(STEP_BYTES):
            pass
        records: list[bytes] = []
        for position in islice(self._candidates(key_hash(topic, key), begin, end), MAX_CANDIDATES):
            if len(records) >= limit:
                break
            record = self._matching(position, topic, key, begin, end) if position >= oldest else None
            if record is not None and record not in records[-1:]:
                records.append(record)
        return records

    def forget(self, segments: Sequence[Segment]) -> None:
        """Drop the arrays of deleted segments."""
        for segment in segments:
            self._disk.unlink(self._path(segment.start))
            self._disk.unlink(self._growing_path(segment.start))
            if self._growing is not None and self._growing.start == segment.start:
                self._growing = None

    def _begin(self) -> KeyArrays | None:
        """Start the arrays of the first segment without a file.

        Those of the last segment are always built in memory.
        """
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
        self._disk.unlink(self._growing_path(growing.start))
        self._growing = None
        self._saved_end = 0

    def _add(self, arrays: KeyArrays, record: IntactRecord) -> None:
        facts = facts_of(record.buffer, record.start)
        arrays.add(facts.topic, keys_of(facts.properties), record.position)

    def _save(self, arrays: KeyArrays) -> None:
        self._write(self._path(arrays.start), arrays)

    def _write(self, path: Path, arrays: KeyArrays) -> None:
        draft = path.with_suffix(".draft")
        try:
            self._disk.unlink(draft)
            fd = self._disk.create(draft)
            try:
                write_fully(self._disk, fd, arrays.to_bytes(), 0)
                self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)
            self._disk.rename(draft, path)
            self._disk.fsync_dir(self._folder)
        except OSError as error:
            self._disk.unlink(draft)
            kind = DiskFull if error.errno in NO_SPACE else StorageError
            raise kind(f"{path} cannot be written: {error}; it is tried again, and the log is not affected") from error

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
            data = self._read_file(self._path(segment.start))
        except FileNotFoundError:
            return None
        return load_arrays(data, segment.start, segment.end) or self._remake(segment)

    def _read_file(self, path: Path) -> bytes:
        fd = self._disk.open(path)
        try:
            return self._disk.read_at(fd, self._disk.size(fd), 0)
        finally:
            self._disk.close(fd)

    def _remake(self, segment: Segment) -> KeyArrays:
        """Build the arrays again from the segment, because their file is damaged."""
        arrays = KeyArrays(segment.start, segment.start)
        for part in scan(self._log, segment.start):
            if part.position >= segment.end:
                break
            if isinstance(part, IntactRecord):
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

    def _growing_path(self, start: int) -> Path:
        return self._folder / f"{start:020d}{_GROWING}"

    def _path(self, start: int) -> Path:
        return self._folder / f"{start:020d}.keys"
