"""The three steps of an append: stage (loop), flush (log thread), publish (loop).

Guards the promise "acknowledged is on disk": offsets and positions are given out in `stage`, bytes reach the
disk in `flush`, and only `publish`, after a flush that succeeded, lets anybody see them. A flush that failed
stops all further ones: what was staged behind it counts on positions that do not exist.

Every failure is final until a restart, a full disk too: what was staged and lost is known to others already, to
the table of producers for one, and only a start builds all of that from the log.
"""

from itertools import accumulate

from lanemq.log.commit_log import CommitLog
from lanemq.log.options import StoreOptions
from lanemq.log.queue_index import pack_entries, pack_entry
from lanemq.log.queue_table import QueueTable
from lanemq.log.staging import Arrival, NewRecords, Pending, QueueBatch, Staged
from lanemq.model.errors import DiskFull, StorageError, WriteFailed
from lanemq.model.units import Millis
from lanemq.wire.hosts import NO_HOST
from lanemq.wire.record import seal_records
from lanemq.wire.record_columns import RecordColumns, seal_columns


class Appender:
    """Owns the end of the log. `failed` is why nothing can be written any more, or None."""

    def __init__(self, log: CommitLog, queues: QueueTable, options: StoreOptions) -> None:
        self._log = log
        self._queues = queues
        self._options = options
        self.failed: StorageError | None = None
        self.last_store_time = 0
        self._last_sync: Millis | None = None
        self.reset()

    def reset(self) -> None:
        """Forgets everything staged; the next record goes to the end of the log."""
        segments = self._log.segments
        self.published = self._log.end
        self._segment = segments[-1].start if segments else 0
        self._pending = Pending(self.published, self.published)
        for queue in self._queues:
            queue.staged_end = queue.end

    @property
    def staged(self) -> int:
        """The position after the last staged record."""
        return self._pending.end

    def stage(
        self,
        topic: str,
        queue_id: int,
        items: NewRecords,
        *,
        store_time: int,
        born_host: bytes = NO_HOST,
        store_host: bytes = NO_HOST,
    ) -> Staged:
        """Gives the records their places; all or none. Store times never go back, even if the clock does."""
        self._refuse_if_failed()
        queue = self._queues.obtain(topic, queue_id)
        store_time = self.last_store_time = max(store_time, self.last_store_time)
        first, position = queue.staged_end, self._pending.end
        place = queue.topic_bytes, queue_id, first, position, born_host, store_time, store_host
        if isinstance(items, RecordColumns):
            records, tag_codes = seal_columns(items, *place), items.tag_codes
        else:
            records, tag_codes = seal_records(items, *place), [item[2] for item in items]
        batch = self._pending.queues.get(queue) or self._pending.queues.setdefault(queue, QueueBatch())
        if len(records) == 1:
            size, tag_code = len(records[0]), tag_codes[0]
            positions = [position]
            self._place(records[0], size)
            batch.entries.append(pack_entry(first, position, size, tag_code))
            batch.tag_codes.add(tag_code)
        else:
            sizes = list(map(len, records))
            positions = list(accumulate(sizes[:-1], initial=position))
            self._place_all(records, sizes)
            batch.entries.append(pack_entries(first, positions, sizes, tag_codes))
            batch.tag_codes.update(tag_codes)
        queue.staged_end += len(records)
        return Staged(first, positions, store_time)

    def take_pending(self) -> Pending:
        """Hands over what was staged; it must be flushed and published in the order taken."""
        pending = self._pending
        self._pending = Pending(pending.end, pending.end)
        return pending

    def flush(self, pending: Pending, now: Millis | None = None) -> None:
        """On the log thread: returns when the records are as safe as the options promise, or raises."""
        self._refuse_if_failed()
        try:
            if pending:
                self._log.append(pending.start, pending.parts)
            if self._options.durable or self._sync_is_due(now):
                self._log.sync()
        except (DiskFull, WriteFailed) as error:
            self.failed = error
            raise

    def sync(self) -> None:
        """On the log thread: makes everything flushed so far survive a power cut."""
        self._refuse_if_failed()
        try:
            self._log.sync()
        except WriteFailed as error:
            self.failed = error
            raise

    def publish(self, pending: Pending) -> list[Arrival]:
        """Makes flushed records visible; says which queues have news."""
        arrivals = []
        for queue, batch in pending.queues.items():
            if not queue.dropped:
                self._queues.publish(queue, b"".join(batch.entries))
                codes = frozenset(batch.tag_codes)
                arrivals.append(Arrival(queue.topic, queue.queue_id, queue.end, codes))
        self.published = pending.end
        return arrivals

    def _refuse_if_failed(self) -> None:
        # A new error each time: raising the kept one again would lengthen its traceback for ever.
        if self.failed is not None:
            raise type(self.failed)(*self.failed.args) from self.failed

    def _place_all(self, records: list[bytes], sizes: list[int]) -> None:
        """As `_place` for each of them; at once where they all fit."""
        end = self._pending.end + sum(sizes)
        if end - self._segment <= self._options.segment_bytes:
            self._part().extend(records)
            self._pending.end = end
        else:
            for record, size in zip(records, sizes, strict=True):
                self._place(record, size)

    def _place(self, record: bytes, size: int) -> None:
        """Puts a record behind the last one, in a new segment if the current one would grow too large."""
        pending = self._pending
        position = pending.end
        if position + size - self._segment > self._options.segment_bytes and position > self._segment:
            self._segment = position
        self._part().append(record)
        pending.end = position + size

    def _part(self) -> list[bytes]:
        """What is pending for the current segment."""
        parts = self._pending.parts
        if not parts or parts[-1][0] != self._segment:
            parts.append((self._segment, []))
        return parts[-1][1]

    def _sync_is_due(self, now: Millis | None) -> bool:
        if now is None:
            return False
        if self._last_sync is None:
            self._last_sync = now
        if now - self._last_sync < self._options.relaxed_sync_ms:
            return False
        self._last_sync = now
        return True
