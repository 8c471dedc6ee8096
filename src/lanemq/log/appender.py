"""The end of the log: records are staged (loop), flushed (log thread), then published (loop).

`stage` assigns offsets and positions, `flush` brings the bytes to the disk, and only `publish` after a successful flush
makes them visible. Invariant: nothing is visible or acknowledged that was not flushed.

A full disk and a lack of descriptors leave the log as it was. Records staged behind such a flush rely on positions that
do not exist, so they are undone together with it (`undo`); the caller undoes what other tables know of them, producer
stamps above all. Any other failed flush is final until a restart, which rebuilds those tables from the log.

The loop fills one `Pending` and then replaces it by a new one. From then on only the log thread touches it (`flush`),
and afterwards only the loop (`publish`), so the hot path needs no lock. Without `durable`, the loop may flush in place
of the log thread.
"""

from collections.abc import Iterator, Sequence
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple, TypeAlias, overload

from msgspec import Struct

from lanemq._fast import compiled
from lanemq.log.commit_log import CommitLog
from lanemq.log.options import StoreOptions
from lanemq.log.queue_index import QueueIndex, QueueTable, pack_entry
from lanemq.log.record_bytes import hides_record
from lanemq.model.errors import StorageError, WriteFailed
from lanemq.model.units import Millis
from lanemq.wire.batch import PlainBatch, seal_batch
from lanemq.wire.record import NO_HOST, record_starts, seal_records

RecordParts: TypeAlias = tuple[bytes, bytes, int, int, int, int, int]
"""The fields of a `NewRecord` as a plain tuple, which is cheaper: a broker makes hundreds of thousands a second."""

NewRecords: TypeAlias = Sequence[RecordParts] | PlainBatch
"""The records of one `stage` call: one by one, or as a batch arrived."""


class NewRecord(NamedTuple):
    """One message to store. `properties` is RocketMQ's properties text in UTF-8; `tag_code` 0 means no tag."""

    body: bytes
    properties: bytes = b""
    tag_code: int = 0
    flag: int = 0
    sys_flag: int = 0
    born_timestamp: int = 0
    reconsume_times: int = 0


class Staged(Struct, frozen=True):
    """Where the records of one `stage` call will be once they are flushed."""

    first_offset: int
    positions: Sequence[int]
    store_time: int
    size: int
    """Bytes of all records together."""


class Arrival(Struct, frozen=True):
    """New visible messages of one queue; wakes long polls."""

    topic: str
    queue_id: int
    max_offset: int
    tag_codes: frozenset[int]


_TAG_CODE = itemgetter(2)
_FIRST = slice(None, 1)
_UNTAGGED = (0,)


class Positions(Sequence[int]):
    """The positions of records that are in one piece. A reply to a sender usually needs only the first one, so this
    class computes each position when a caller reads it."""

    __slots__ = ("_count", "_first", "_records")

    def __init__(self, records: bytes, first: int, count: int) -> None:
        self._records = records
        self._first = first
        self._count = count

    def __len__(self) -> int:
        return self._count

    @overload
    def __getitem__(self, index: int) -> int: ...
    @overload
    def __getitem__(self, index: slice) -> list[int]: ...
    def __getitem__(self, index: int | slice) -> int | list[int]:
        if isinstance(index, slice):
            return [self._first] if index == _FIRST else self._all()[index]
        return self._all()[index]

    def __iter__(self) -> Iterator[int]:
        return iter(self._all())

    def _all(self) -> list[int]:
        return [self._first + start for start in record_starts(self._records)]


def records_in(piece: bytes) -> list[bytes]:
    """The records of a piece, one by one."""
    starts = record_starts(piece)
    return [piece[start:end] for start, end in pairwise((*starts, len(piece)))] if len(starts) > 1 else [piece]


@compiled
def entries_of(records: bytes, offset: int, position: int, tag_codes: list[int] | None) -> bytes:
    """The index entries of records in one piece. `tag_codes` has one for each; None: no record has a tag."""
    starts = record_starts(records)
    ends = (*starts[1:], len(records))
    codes = tag_codes or [0] * len(starts)
    facts = zip(starts, ends, codes, strict=True)
    return b"".join(
        [pack_entry(at, position + start, end - start, code) for at, (start, end, code) in enumerate(facts, offset)]
    )


class HiddenRecord(StorageError):
    """A message of which a part would pass for a record in the log.

    `anywhere`: another position does not help. The message ends soon after a magic, so the record behind it would be
    read as the position that follows the magic, and that record is not known yet.
    """

    def __init__(self, position: int, *, anywhere: bool) -> None:
        self.anywhere = anywhere
        if anywhere:
            text = (
                "the end of the message would look like the beginning of a stored record; "
                "add 28 bytes to the end of the body, or properties of that length"
            )
        else:
            text = (
                f"at position {position} of the log, a part of the message would look like a stored record; "
                f"send it again"
            )
        super().__init__(text)


class QueueBatch(Struct):
    """One queue's share of a `Pending`."""

    entries: list[bytes] = []
    tag_codes: set[int] = set()


class Pending(Struct):
    """Everything staged for one group commit. Each of `parts` is a segment's start and the records for it, in pieces of
    one or more."""

    start: int
    end: int
    parts: list[tuple[int, list[bytes]]] = []
    queues: dict[QueueIndex, QueueBatch] = {}

    def __bool__(self) -> bool:
        return self.end > self.start


class Appender:
    """Appends to the log. `failed` is the error after which nothing can be written, or None; reads still work."""

    def __init__(self, log: CommitLog, queues: QueueTable, options: StoreOptions) -> None:
        self._log = log
        self._queues = queues
        self._options = options
        self.failed: StorageError | None = None
        self._last_sync: Millis | None = None
        self.reset()

    def reset(self, last_store_time: int = 0) -> None:
        """Discard everything staged; the next record goes to the end of the log, at this store time or later."""
        self.last_store_time = last_store_time
        segments = self._log.segments
        self.published = self._log.end
        """The position after the last visible record."""
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
        """Assign offsets and positions to all of the records, or raise. Store times never go back with the clock."""
        if self.failed is not None:
            self._refuse()
        queue = self._queues.obtain(topic, queue_id)
        store_time = self.last_store_time = max(store_time, self.last_store_time)
        first, position = queue.staged_end, self._pending.end
        place = queue.topic_bytes, queue_id, first, position, born_host, store_time, store_host
        if isinstance(items, PlainBatch):
            piece, tag_codes = seal_batch(items, *place), None
        else:
            records, tag_codes = seal_records(items, *place), list(map(_TAG_CODE, items))
            piece = records[0] if len(records) == 1 else b"".join(records)
        if hides_record(piece, position):
            raise HiddenRecord(position, anywhere=hides_record(piece, position + 1))
        self._place(piece)
        batch = self._pending.queues.get(queue) or self._pending.queues.setdefault(queue, QueueBatch())
        batch.entries.append(entries_of(piece, first, position, tag_codes))
        batch.tag_codes.update(tag_codes or _UNTAGGED)
        count = len(items)
        queue.staged_end += count
        positions = [position] if count == 1 else Positions(piece, position, count)
        return Staged(first, positions, store_time, len(piece))

    def _place(self, piece: bytes) -> None:
        """Put records after the last one; start a new segment where the current one would grow too large."""
        pending, parts, limit = self._pending, self._pending.parts, self._options.segment_bytes
        fits = pending.end + len(piece) - self._segment <= limit
        for record in (piece,) if fits else records_in(piece):
            if pending.end + len(record) - self._segment > limit and pending.end > self._segment:
                self._segment = pending.end
            if not parts or parts[-1][0] != self._segment:
                parts.append((self._segment, []))
            parts[-1][1].append(record)
            pending.end += len(record)

    def take_pending(self) -> Pending:
        """Hand over what was staged. The caller flushes and publishes in the order of taking."""
        pending = self._pending
        self._pending = Pending(pending.end, pending.end)
        return pending

    def extends_newest(self, pending: Pending) -> bool:
        """Whether the records go to the newest file, or to the first. If so, they may be flushed while another thread
        syncs: no file has to be synced before."""
        segments, parts = self._log.segments, pending.parts
        return len(parts) <= 1 and (not parts or not segments or segments[-1].start == parts[0][0])

    def flush(self, pending: Pending, now: Millis | None = None) -> None:
        """On the log thread, or on the loop (`extends_newest`): return when the records are as safe as the options
        promise, or raise.

        `now` (monotonic) is needed without `durable` only, to sync from time to time.
        """
        if self.failed is not None:
            self._refuse()
        try:
            newest = self._log.append(pending.start, pending.parts) if pending.parts else 0
            if self._options.durable or (now is not None and self._sync_is_due(now)):
                self._log.sync()
            if newest > self._options.segment_bytes // 2:
                self._log.prepare_next()
        except WriteFailed as error:
            self.failed = error
            raise

    def undo(self, pending: Pending) -> list[bytes]:
        """On the loop, after `flush` raised `DiskFull` or `NoDescriptors`: discard these records and all staged since.

        Returns all of them, in the order of staging.
        """
        pieces = [piece for each in (pending, self._pending) for _, pieces in each.parts for piece in pieces]
        self.reset(self.last_store_time)
        return [record for piece in pieces for record in records_in(piece)]

    def sync(self) -> None:
        """On the log thread: make everything flushed so far survive a power cut."""
        if self.failed is not None:
            self._refuse()
        try:
            self._log.sync()
        except WriteFailed as error:
            self.failed = error
            raise

    def publish(self, pending: Pending) -> list[Arrival]:
        """Make flushed records visible; returns the queues that received some."""
        arrivals = []
        for queue, batch in pending.queues.items():
            if not queue.dropped:
                self._queues.publish(queue, b"".join(batch.entries))
                codes = frozenset(batch.tag_codes)
                arrivals.append(Arrival(queue.topic, queue.queue_id, queue.end, codes))
        self.published = pending.end
        return arrivals

    def _refuse(self) -> None:
        # A new error each time: raising the kept one again would lengthen its traceback with every call.
        assert self.failed is not None
        raise type(self.failed)(*self.failed.args) from self.failed

    def _sync_is_due(self, now: Millis) -> bool:
        if self._last_sync is None:
            self._last_sync = now
        if now - self._last_sync < self._options.relaxed_sync_ms:
            return False
        self._last_sync = now
        return True
