"""All queues of the log: which exist, where their offsets begin and end, and where their entries are.

Everything here belongs to the loop. A queue's smallest offset follows from the start of the log and is looked
up when someone asks, so that deleting a segment touches no queue at all.
"""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog
from lanemq.log.index_files import IndexFiles
from lanemq.log.queue_index import Entry, QueueIndex, unpack_entries
from lanemq.log.state import QueueRow


class IndexPart(NamedTuple):
    """Entries of one queue on their way to its file."""

    queue: QueueIndex
    offset: int
    first: int
    entries: bytes
    row: QueueRow


class QueueTable:
    """The queues by topic and id."""

    def __init__(self, log: CommitLog, files: IndexFiles) -> None:
        self._log = log
        self._files = files
        self._queues: dict[tuple[str, int], QueueIndex] = {}
        self._dirty: dict[QueueIndex, None] = {}
        self._next_number = 0

    def __iter__(self) -> Iterator[QueueIndex]:
        return iter(list(self._queues.values()))

    def load(self, rows: Iterable[QueueRow]) -> None:
        for row in rows:
            queue = QueueIndex(row.number, row.topic, row.queue_id, row.first, row.end)
            self._queues[row.topic, row.queue_id] = queue
            self._next_number = max(self._next_number, row.number + 1)

    def clear(self) -> None:
        """Forgets every queue and its files, before a rebuild; numbers are not used again."""
        for queue in self._queues.values():
            self._files.delete_all(queue.number)
        self._queues.clear()
        self._dirty.clear()

    def find(self, topic: str, queue_id: int) -> QueueIndex | None:
        return self._queues.get((topic, queue_id))

    def obtain(self, topic: str, queue_id: int) -> QueueIndex:
        """The queue, made on first use."""
        queue = self._queues.get((topic, queue_id))
        if queue is None:
            queue = self._queues[topic, queue_id] = QueueIndex(self._next_number, topic, queue_id)
            queue.checked_start = self._log.start
            self._next_number += 1
        return queue

    def drop(self, topic: str) -> None:
        """Takes a topic's queues out; their files go too, and work under way for them is ignored."""
        for key in [key for key in self._queues if key[0] == topic]:
            queue = self._queues.pop(key)
            queue.dropped = True
            self._dirty.pop(queue, None)
            self._files.delete_all(queue.number)

    def publish(self, queue: QueueIndex, entries: bytes) -> None:
        queue.publish(entries)
        self._dirty[queue] = None

    def touch(self, queue: QueueIndex) -> None:
        """Marks a queue whose entries changed outside `publish`."""
        self._dirty[queue] = None

    def first(self, queue: QueueIndex) -> int:
        """The queue's smallest offset that still has a place in the log."""
        start = self._log.start
        if queue.checked_start != start:
            queue.first = self._first_from(queue, start)
            queue.checked_start = start
            self._files.delete_below(queue, min(queue.first, queue.filed_end))
        return queue.first

    def raw_entries(self, queue: QueueIndex, offset: int, count: int) -> bytes:
        """Packed entries from file and memory; the range must lie inside the queue."""
        filed = min(count, queue.filed_end - offset)
        if filed <= 0:
            return queue.from_tail(offset, count)
        data = self._files.read(queue, offset, filed)
        return data if filed == count else data + queue.from_tail(queue.filed_end, count - filed)

    def entry(self, queue: QueueIndex, offset: int) -> Entry:
        return unpack_entries(self.raw_entries(queue, offset, 1))[0]

    def take_parts(self) -> list[IndexPart]:
        """What is not in the files yet; a queue that changes meanwhile becomes dirty again."""
        parts = [self._part(queue) for queue in self._dirty]
        self._dirty = {}
        return parts

    def finish_parts(self, parts: Iterable[IndexPart]) -> None:
        """The parts are in the files: their memory is free."""
        for part in parts:
            if not part.queue.dropped:
                part.queue.filed(part.row.end - part.offset)

    def give_back(self, parts: Iterable[IndexPart]) -> None:
        """The parts could not be written; they are taken again next time."""
        self._dirty.update(dict.fromkeys(part.queue for part in parts if not part.queue.dropped))

    def _part(self, queue: QueueIndex) -> IndexPart:
        first = self.first(queue)
        row = QueueRow(queue.number, queue.topic, queue.queue_id, first, queue.end)
        return IndexPart(queue, queue.filed_end, first, bytes(queue.tail), row)

    def _first_from(self, queue: QueueIndex, start: int) -> int:
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
