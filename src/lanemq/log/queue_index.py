"""The queue indexes: for every offset of a queue, where its record is in the log.

An index is a cache of the log and can be rebuilt from it. An entry has 20 bytes:

    position 8 | size 4 | tag code 4 (signed, 0: none) | checksum of the entry and its offset 4

An entry of size 0 stands for a damaged record: its offset stays taken, and readers skip it with a report.

Published entries stay in memory (`QueueIndex.tail`) until a checkpoint writes them to the index files. Readers take
offsets below `filed_end` from files and the others from memory. Everything belongs to the loop, except
`IndexFiles.write`.

If index files are lost, the entries below `filed_end` are built again in a second index, `QueueIndex.rebuilt`
(`log/index_rebuild`). Until it reaches `filed_end`, readers of what it does not have are refused (`StillRebuilding`),
and the newer entries stay in memory. Then `QueueTable.take_parts` joins the two.
"""

import contextlib
import errno
import struct
import zlib
from collections import OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog
from lanemq.log.filesystem import NO_DESCRIPTORS, Disk, write_fully
from lanemq.log.state.database import QueueRow
from lanemq.model.errors import NoDescriptors, StillRebuilding, StorageError

ENTRY = struct.Struct(">qiiI")
ENTRY_BYTES = ENTRY.size
_FACTS = struct.Struct(">qii")
_CHECK = struct.Struct(">I")

CHUNK_ENTRIES = 1 << 18
_FILE_HEAD = struct.Struct(">8sIIqB127s")
_FILE_MAGIC = b"LANEIDX1"
FILE_HEAD_BYTES = 160
SYNCED_TOGETHER = 64
"""Index files that a checkpoint keeps open until it syncs them. Many: it takes descriptors that others need. Few: a
checkpoint of many queues takes longer, because each group waits for the disk."""

Entry = tuple[int, int, int, int]
"""Position, size, tag code, checksum. A plain tuple, because one pull reads up to a thousand of them."""


class QueueIndex:
    """The offsets of one queue: `first` ≤ `filed_end` ≤ `end` ≤ `staged_end`.

    `first` is the smallest offset still kept, `filed_end` the first one that is not in the index files, `end` the next
    one to become visible, `staged_end` the next one to assign. `checked_start` is the log start for which `first`
    holds.
    """

    __slots__ = (
        "checked_start",
        "dropped",
        "end",
        "filed_end",
        "first",
        "number",
        "queue_id",
        "rebuilt",
        "staged_end",
        "tail",
        "topic",
        "topic_bytes",
    )

    def __init__(self, number: int, topic: str, queue_id: int, first: int = 0, end: int = 0) -> None:
        self.number = number
        self.topic = topic
        self.topic_bytes = topic.encode()
        self.queue_id = queue_id
        self.first = first
        self.filed_end = self.end = self.staged_end = end
        self.tail = bytearray()
        self.checked_start = 0
        self.dropped = False
        self.rebuilt: QueueIndex | None = None
        """The entries below `filed_end`, as far as they are built again; None if the files have them."""

    def begin_at(self, offset: int) -> None:
        """Start an empty queue at an offset; the earlier ones were deleted."""
        self.first = self.filed_end = self.end = self.staged_end = offset

    def publish(self, entries: bytes) -> None:
        """Make staged entries visible to readers."""
        self.tail += entries
        self.end += len(entries) // ENTRY_BYTES

    def put(self, position: int, size: int, tag_code: int) -> None:
        """Add and publish one entry, during recovery."""
        self.publish(pack_entry(self.end, position, size, tag_code))
        self.staged_end = self.end

    def enter(self, first: int, entries: bytes, *, damage_at: int) -> None:
        """Add entries of consecutive records from an offset on, during recovery.

        Known ones are left out. Offsets in between are those of records lost to the damage at `damage_at`.
        """
        while self.end < first:
            self.put(damage_at, 0, 0)
        self.publish(entries[(self.end - first) * ENTRY_BYTES :])
        self.staged_end = self.end

    def from_tail(self, offset: int, count: int) -> bytes:
        """Entries from memory; the offset must be `filed_end` or more."""
        at = (offset - self.filed_end) * ENTRY_BYTES
        return bytes(self.tail[at : at + count * ENTRY_BYTES])

    def filed(self, count: int) -> None:
        """Drop the oldest `count` entries of the tail, which are in the files now."""
        del self.tail[: count * ENTRY_BYTES]
        self.filed_end += count


def pack_entry(offset: int, position: int, size: int, tag_code: int) -> bytes:
    facts = _FACTS.pack(position, size, tag_code)
    return facts + _CHECK.pack(zlib.crc32(facts, offset & 0xFFFFFFFF))


def unpack_entries(data: bytes) -> list[Entry]:
    return list(ENTRY.iter_unpack(data))


def broken_entries(data: bytes, offset: int) -> Iterator[int]:
    """Offsets whose entry does not match its checksum, for entries that start at `offset`."""
    for at in range(0, len(data), ENTRY_BYTES):
        check = zlib.crc32(data[at : at + 16], offset & 0xFFFFFFFF)
        if data[at + 16 : at + 20] != _CHECK.pack(check):
            yield offset
        offset += 1


class IndexLost(StorageError):
    """An index file is missing, short or damaged. No message is lost: a restart rebuilds the index from the log."""

    def __init__(self, queue: QueueIndex, problem: str) -> None:
        super().__init__(
            f"the index of queue {queue.queue_id} of topic {queue.topic!r} {problem}: "
            f"restart the broker, it rebuilds the index from the log"
        )


class IndexFiles:
    """The files behind the indexes: `index/<number>/<first offset of the chunk>`.

    A chunk holds a fixed number of entries, so the place of an offset follows from the offset, and old chunks can be
    deleted whole. No path contains a topic name; each file's head says which queue it belongs to, and a file with
    another head is never read. Reading shares at most `max_open` open files; `write` opens its own, so it may run on
    the row thread.
    """

    def __init__(self, folder: Path, disk: Disk, max_open: int, on_lost: Callable[[], None]) -> None:
        self._folder = folder
        self._disk = disk
        self._max_open = max_open
        self._on_lost = on_lost
        self._open: OrderedDict[tuple[int, int], int] = OrderedDict()
        self._dropped: deque[int] = deque()
        """Numbers of dropped queues whose files the next `write` deletes. No number is used twice in a process."""
        disk.make_dir(folder)

    def read(self, queue: QueueIndex, offset: int, count: int) -> bytes:
        """Entries from files; all of them must be below the queue's `filed_end`."""
        try:
            return self._read(queue, offset, count)
        except IndexLost:
            self._on_lost()
            raise

    def _read(self, queue: QueueIndex, offset: int, count: int) -> bytes:
        parts = []
        while count > 0:
            chunk, at = _chunk_of(offset), offset % CHUNK_ENTRIES
            here = min(count, CHUNK_ENTRIES - at)
            fd = self._descriptor(queue, chunk)
            data = self._disk.read_at(fd, here * ENTRY_BYTES, FILE_HEAD_BYTES + at * ENTRY_BYTES)
            if len(data) != here * ENTRY_BYTES:
                raise IndexLost(queue, f"ends before offset {offset + here}")
            parts.append(data)
            offset += here
            count -= here
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, parts: Iterable["IndexPart"]) -> None:
        """Write entries to their places and sync them. Before that, delete the files of dropped queues.

        Files are written in groups and synced after all of a group are written. The first sync of a group makes the
        file system write what it knows of all of them, and the others find little left to do.
        """
        written, new = list[int](), set[Path]()
        while self._dropped:
            self._delete_all(self._dropped.popleft())
        try:
            for part in parts:
                for fd in self._write(part, new):
                    written.append(fd)
                    if len(written) >= SYNCED_TOGETHER:
                        self._sync(written, new)
            self._sync(written, new)
        finally:
            for fd in written:
                self._disk.close(fd)

    def _write(self, part: "IndexPart", new: set[Path]) -> Iterator[int]:
        """Write the entries of one queue; yields the descriptor of each file, and notes the folders of new ones.

        `part.offset` is the end of the files so far and `part.first` the smallest offset still needed. A chunk with
        nothing between the two is created anew, whatever an earlier queue of that number left there.
        """
        offset, entries = part.offset, part.entries
        while entries:
            chunk, at = _chunk_of(offset), offset % CHUNK_ENTRIES
            here = entries[: (CHUNK_ENTRIES - at) * ENTRY_BYTES]
            fresh = offset <= max(chunk, part.first)
            fd = self._for_writing(part.source, chunk, fresh=fresh)
            if fresh:
                new.add(self._path(part.source.number, chunk).parent)
            try:
                write_fully(self._disk, fd, here, FILE_HEAD_BYTES + at * ENTRY_BYTES)
            except BaseException:
                self._disk.close(fd)
                raise
            yield fd
            entries = entries[len(here) :]
            offset += len(here) // ENTRY_BYTES

    def _sync(self, written: list[int], new: set[Path]) -> None:
        """Sync the names of new files and all files that were written, and close these."""
        if new:
            self._disk.fsync_dir(self._folder)
        for folder in sorted(new):
            self._disk.fsync_dir(folder)
        for fd in written:
            self._disk.fdatasync(fd)
        while written:
            self._disk.close(written.pop())
        new.clear()

    def complete(self, queue: QueueIndex) -> bool:
        """Whether the files are long enough for every entry from `first` to `filed_end`.

        Checks sizes only, to be fast.
        """
        for chunk in range(_chunk_of(queue.first), queue.filed_end, CHUNK_ENTRIES):
            entries = min(queue.filed_end - chunk, CHUNK_ENTRIES)
            try:
                size = self._path(queue.number, chunk).stat().st_size
            except OSError:
                return False
            if size < FILE_HEAD_BYTES + entries * ENTRY_BYTES:
                return False
        return True

    def delete_below(self, queue: QueueIndex, offset: int) -> None:
        """Delete chunks whose entries are all below `offset`."""
        folder = self._folder / str(queue.number)
        if not folder.exists():
            return
        try:
            names = self._disk.names(folder)
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                return  # the next deletion of log files takes these too
            raise
        for name in names:
            if name.isdigit() and int(name) + CHUNK_ENTRIES <= offset:
                self._close((queue.number, int(name)))
                self._disk.unlink(folder / name)

    def drop(self, numbers: Collection[int]) -> None:
        """Close the files of dropped queues; the next `write` deletes them, because a topic may have a thousand."""
        for key in [key for key in self._open if key[0] in numbers]:
            self._close(key)
        self._dropped.extend(numbers)

    def _delete_all(self, number: int) -> None:
        """On the row thread. What cannot be deleted stays without harm: it is never read, and a queue that gets the
        number after a restart begins with new files."""
        folder = self._folder / str(number)
        with contextlib.suppress(OSError):
            for name in self._disk.names(folder) if folder.exists() else ():
                self._disk.unlink(folder / name)

    def close(self) -> None:
        for key in list(self._open):
            self._close(key)

    def _descriptor(self, queue: QueueIndex, chunk: int) -> int:
        key = (queue.number, chunk)
        fd = self._open.get(key)
        if fd is not None:
            self._open.move_to_end(key)
            return fd
        try:
            fd = self._open_for_reading(self._path(queue.number, chunk))
        except OSError as error:
            if error.errno in NO_DESCRIPTORS:
                name = f"queue {queue.queue_id} of topic {queue.topic!r}"
                raise NoDescriptors(f"no descriptor for the index of {name}: {error}; try again") from error
            raise IndexLost(queue, f"cannot be opened ({error})") from error
        if self._disk.read_at(fd, FILE_HEAD_BYTES, 0) != _head(queue, chunk):
            self._disk.close(fd)
            raise IndexLost(queue, "has the head of another file")
        self._open[key] = fd
        if len(self._open) > self._max_open:
            self._close(next(iter(self._open)))
        return fd

    def _open_for_reading(self, path: Path) -> int:
        """Open a file; if no descriptor is left, in place of the file that was read longest ago."""
        try:
            return self._disk.open(path)
        except OSError as error:
            if error.errno not in NO_DESCRIPTORS or not self._open:
                raise
        self._close(next(iter(self._open)))
        return self._disk.open(path)

    def _for_writing(self, queue: QueueIndex, chunk: int, *, fresh: bool) -> int:
        path = self._path(queue.number, chunk)
        if not fresh:
            return self._disk.open(path)
        self._disk.make_dir(path.parent)
        try:
            fd = self._disk.create(path)
        except OSError as error:
            if error.errno != errno.EEXIST:
                raise
            fd = self._disk.open(path)
            self._disk.truncate(fd, 0)
        write_fully(self._disk, fd, _head(queue, chunk), 0)
        return fd

    def _close(self, key: tuple[int, int]) -> None:
        fd = self._open.pop(key, None)
        if fd is not None:
            self._disk.close(fd)

    def _path(self, number: int, chunk: int) -> Path:
        return self._folder / str(number) / f"{chunk:020d}"


def _chunk_of(offset: int) -> int:
    return offset - offset % CHUNK_ENTRIES


def _head(queue: QueueIndex, chunk: int) -> bytes:
    topic = queue.topic_bytes
    head = _FILE_HEAD.pack(_FILE_MAGIC, queue.number, queue.queue_id, chunk, len(topic), topic)
    head = head.ljust(FILE_HEAD_BYTES - _CHECK.size, b"\0")
    return head + _CHECK.pack(zlib.crc32(head))


class IndexPart(NamedTuple):
    """Entries of one queue that a checkpoint writes to its files.

    They come from the tail of `source`: the queue itself, or what is rebuilt of it.
    """

    queue: QueueIndex
    source: QueueIndex
    offset: int
    first: int
    entries: bytes
    row: QueueRow


class QueueTable:
    """All queues of the log, by topic and id.

    A queue's smallest offset follows from the start of the log and is computed when it is asked for, so that deleting
    a segment touches no queue.
    """

    def __init__(self, log: CommitLog, files: IndexFiles) -> None:
        self._log = log
        self._files = files
        self._queues: dict[tuple[str, int], QueueIndex] = {}
        self._dirty: dict[QueueIndex, None] = {}
        self._rebuilds = False
        """Whether a queue may be `incomplete`. Most brokers never rebuild an index, and there may be many queues."""
        self._next_number = 0

    def __iter__(self) -> Iterator[QueueIndex]:
        return iter(list(self._queues.values()))

    def load(self, rows: Iterable[QueueRow]) -> None:
        for row in rows:
            queue = QueueIndex(row.number, row.topic, row.queue_id, row.first, row.end)
            self._queues[row.topic, row.queue_id] = queue
            self._next_number = max(self._next_number, row.number + 1)

    def begin_rebuild(self) -> None:
        """Treat all entries in files as lost."""
        self._rebuilds = True
        for queue in self._queues.values():
            if queue.first < queue.filed_end:
                queue.rebuilt = QueueIndex(queue.number, queue.topic, queue.queue_id)
                queue.rebuilt.checked_start = self._log.start
            self._dirty[queue] = None

    def incomplete(self) -> list[QueueIndex]:
        """The queues of which entries are lost and not rebuilt."""
        if not self._rebuilds:
            return []
        return [queue for queue in self._queues.values() if queue.rebuilt is not None]

    def find(self, topic: str, queue_id: int) -> QueueIndex | None:
        return self._queues.get((topic, queue_id))

    def obtain(self, topic: str, queue_id: int) -> QueueIndex:
        """The queue, created on first use."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = QueueIndex(self._next_number, topic, queue_id)
            queue.checked_start = self._log.start
            self._next_number += 1
        return queue

    def drop(self, topic: str) -> None:
        """Remove a topic's queues; checkpoint work in progress skips them, and the next one deletes their files."""
        numbers: set[int] = set()
        for key in [key for key in self._queues if key[0] == topic]:
            queue = self._queues.pop(key)
            queue.dropped = True
            if queue.rebuilt is not None:
                queue.rebuilt.dropped = True
            self._dirty.pop(queue, None)
            numbers.add(queue.number)
        self._files.drop(numbers)

    def publish(self, queue: QueueIndex, entries: bytes) -> None:
        queue.publish(entries)
        self._dirty[queue] = None

    def touch(self, queue: QueueIndex) -> None:
        """Mark a queue whose entries changed outside `publish`."""
        self._dirty[queue] = None

    def first(self, queue: QueueIndex) -> int:
        """The queue's smallest offset whose record is still in the log."""
        start = self._log.start
        if queue.rebuilt is not None:
            # Before its first record is found, the saved value, which is not too large.
            return queue.rebuilt.first if queue.rebuilt.end > queue.rebuilt.first else queue.first
        if queue.checked_start != start:
            queue.first = self.first_from(queue, start)
            queue.checked_start = start
            self._files.delete_below(queue, min(queue.first, queue.filed_end))
        return queue.first

    def raw_entries(self, queue: QueueIndex, offset: int, count: int) -> bytes:
        """Packed entries from files and memory; the range must be inside the queue.

        Raises `StillRebuilding` if one of them is lost and not rebuilt yet.
        """
        if offset + count > self.readable_end(queue, offset):
            raise StillRebuilding(queue.topic, queue.queue_id, offset)
        if queue.rebuilt is not None and offset < queue.filed_end:
            queue = queue.rebuilt
        filed = min(count, queue.filed_end - offset)
        if filed <= 0:
            return queue.from_tail(offset, count)
        data = self._files.read(queue, offset, filed)
        return data if filed == count else data + queue.from_tail(queue.filed_end, count - filed)

    def readable_end(self, queue: QueueIndex, offset: int) -> int:
        """The end of the entries that can be read from an offset on; raises `StillRebuilding` if there are none."""
        if queue.rebuilt is None or offset >= queue.filed_end:
            return queue.end
        if offset >= queue.rebuilt.end:
            raise StillRebuilding(queue.topic, queue.queue_id, offset)
        return queue.rebuilt.end

    def entry(self, queue: QueueIndex, offset: int) -> Entry:
        return unpack_entries(self.raw_entries(queue, offset, 1))[0]

    def take_parts(self, parts: list[IndexPart]) -> Iterator[None]:
        """Add everything that is not in the files yet to `parts`, one queue in each step.

        A queue that changes after its step is dirty again. No earlier parts may be in the hands of a checkpoint.
        """
        for queue in self.incomplete():
            _join_rebuilt(queue)
            self._dirty[queue] = None
            yield
        for queue in tuple(self._dirty):
            if not queue.dropped:
                parts.append(self._part(queue))
                del self._dirty[queue]
            yield

    def finish_parts(self, parts: list[IndexPart]) -> Iterator[None]:
        """Free the memory of parts that are in the files now, and of the list, one part in each step."""
        while parts:
            part = parts.pop()
            if not part.queue.dropped:
                part.source.filed(len(part.entries) // ENTRY_BYTES)
            yield

    def give_back(self, parts: Iterable[IndexPart]) -> None:
        """Mark parts that could not be written, so that the next `take_parts` returns them again."""
        self._dirty.update(dict.fromkeys(part.queue for part in parts if not part.queue.dropped))

    def _part(self, queue: QueueIndex) -> IndexPart:
        first = self.first(queue)
        row = QueueRow(queue.number, queue.topic, queue.queue_id, first, queue.end)
        if queue.rebuilt is None:
            return IndexPart(queue, queue, queue.filed_end, first, bytes(queue.tail), row)
        source = queue.rebuilt
        return IndexPart(queue, source, source.filed_end, source.first, bytes(source.tail), row)

    def first_from(self, queue: QueueIndex, start: int) -> int:
        """The queue's smallest offset whose record is not below a log position."""
        low, high = queue.first, queue.end
        if low < high and self.entry(queue, low)[0] >= start:
            return low
        while low < high:
            middle = (low + high) // 2
            if self.entry(queue, middle)[0] < start:
                low = middle + 1
            else:
                high = middle
        return low


def _join_rebuilt(queue: QueueIndex) -> None:
    """Put what was rebuilt before the newer entries, if it is complete."""
    rebuilt = queue.rebuilt
    if rebuilt is None or rebuilt.end < queue.filed_end:
        return
    queue.first, queue.checked_start = rebuilt.first, rebuilt.checked_start
    queue.tail = rebuilt.tail + queue.tail
    queue.filed_end = rebuilt.filed_end
    queue.rebuilt = None
