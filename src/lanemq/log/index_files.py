"""The files behind the queue indexes: `index/<number>/<first offset of the chunk>`.

A chunk holds a fixed count of entries, so the place of an offset follows from the offset alone and old chunks
can be deleted whole. No path is made from a topic name; each file's head says whose it is instead, and a file
that says something else is never read as ours.

`read` and `forget` belong to the loop (they share a bounded set of open files); `write` uses a descriptor of
its own, so it may run on another thread.
"""

import errno
import struct
import zlib
from collections import OrderedDict
from collections.abc import Callable
from pathlib import Path

from lanemq.log.filesystem import Disk, write_fully
from lanemq.log.queue_index import ENTRY_BYTES, QueueIndex
from lanemq.model.errors import StorageError

CHUNK_ENTRIES = 1 << 18
_HEAD = struct.Struct(">8sIIqB127s")
_CHECK = struct.Struct(">I")
_MAGIC = b"LANEIDX1"
HEAD_BYTES = 160


class IndexLost(StorageError):
    """An index file is missing, short or not ours. Nothing is lost: a restart rebuilds indexes from the log."""

    def __init__(self, queue: QueueIndex, problem: str) -> None:
        super().__init__(
            f"the index of queue {queue.queue_id} of topic {queue.topic!r} {problem}: "
            f"restart the broker, it rebuilds the index from the log"
        )


class IndexFiles:
    """Reads and writes chunks; keeps at most `most_open` of them open for reading."""

    def __init__(self, folder: Path, disk: Disk, most_open: int, on_lost: Callable[[], None]) -> None:
        self._folder = folder
        self._disk = disk
        self._most_open = most_open
        self._on_lost = on_lost
        self._open: OrderedDict[tuple[int, int], int] = OrderedDict()
        disk.make_dir(folder)

    def read(self, queue: QueueIndex, offset: int, count: int) -> bytes:
        """Entries from files; all of them must lie below the queue's `filed_end`."""
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
            data = self._disk.read_at(fd, here * ENTRY_BYTES, HEAD_BYTES + at * ENTRY_BYTES)
            if len(data) != here * ENTRY_BYTES:
                raise IndexLost(queue, f"ends before offset {offset + here}")
            parts.append(data)
            offset += here
            count -= here
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def write(self, queue: QueueIndex, offset: int, first: int, entries: bytes) -> None:
        """Puts entries in their places and syncs them.

        `offset` is where the files end so far and `first` the smallest offset still needed: a chunk with nothing
        between the two is begun anew, whatever an earlier owner of its number left there.
        """
        while entries:
            chunk, at = _chunk_of(offset), offset % CHUNK_ENTRIES
            part = entries[: (CHUNK_ENTRIES - at) * ENTRY_BYTES]
            fd = self._for_writing(queue, chunk, fresh=offset <= max(chunk, first))
            try:
                write_fully(self._disk, fd, part, HEAD_BYTES + at * ENTRY_BYTES)
                self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)
            entries = entries[len(part) :]
            offset += len(part) // ENTRY_BYTES

    def complete(self, queue: QueueIndex) -> bool:
        """Whether the files can hold every entry from `first` to `filed_end`; sizes only, so that start is quick."""
        for chunk in range(_chunk_of(queue.first), queue.filed_end, CHUNK_ENTRIES):
            entries = min(queue.filed_end - chunk, CHUNK_ENTRIES)
            try:
                size = self._path(queue.number, chunk).stat().st_size
            except OSError:
                return False
            if size < HEAD_BYTES + entries * ENTRY_BYTES:
                return False
        return True

    def delete_below(self, queue: QueueIndex, offset: int) -> None:
        """Deletes chunks that hold nothing from `offset` on."""
        folder = self._folder / str(queue.number)
        if not folder.exists():
            return
        for name in self._disk.names(folder):
            if name.isdigit() and int(name) + CHUNK_ENTRIES <= offset:
                self._close((queue.number, int(name)))
                self._disk.unlink(folder / name)

    def delete_all(self, number: int) -> None:
        """Deletes a queue's files; for dropped topics and before a rebuild."""
        for key in [key for key in self._open if key[0] == number]:
            self._close(key)
        folder = self._folder / str(number)
        if folder.exists():
            for name in self._disk.names(folder):
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
            fd = self._disk.open(self._path(queue.number, chunk))
        except OSError as error:
            raise IndexLost(queue, f"cannot be opened ({error})") from error
        if self._disk.read_at(fd, HEAD_BYTES, 0) != _head(queue, chunk):
            self._disk.close(fd)
            raise IndexLost(queue, "has the head of another file")
        self._open[key] = fd
        if len(self._open) > self._most_open:
            self._close(next(iter(self._open)))
        return fd

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
        self._disk.fsync_dir(path.parent)
        self._disk.fsync_dir(self._folder)
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
    head = _HEAD.pack(_MAGIC, queue.number, queue.queue_id, chunk, len(topic), topic)
    head = head.ljust(HEAD_BYTES - _CHECK.size, b"\0")
    return head + _CHECK.pack(zlib.crc32(head))
