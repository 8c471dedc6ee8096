"""Keeps the progress of groups: connects the table that decides with the store, and finds the records of lanes.

A change is decided on the loop immediately, so that every later request (above all of a new owner) sees it. Changes of
lanes, resets and deletions are answered only when they are on disk. Other offsets are written several times a second.
There is one write at a time, and changes that are decided during it share the next one. After a failed write the next
one repeats the failed changes first, so that the store receives all changes in the order of the decisions.

A record is read from the log, or from its copy in the store if retention has deleted it from the log.
"""

import asyncio
import logging
from collections.abc import Callable, Generator, Iterator, Sequence
from typing import TypeAlias

from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.clock import Clock
from lanemq.core.brokering.lane_offsets import ChunkRow
from lanemq.core.brokering.progress_store import (
    EndedLane,
    ForgottenProgress,
    ProgressChange,
    ProgressStore,
    QueueLog,
    SavedLane,
)
from lanemq.core.brokering.progress_table import Forgotten, ProgressTable
from lanemq.core.brokering.queue_progress import LaneName, ParkedLane
from lanemq.log.reading import Boundary, ReadStatus
from lanemq.log.store import Store
from lanemq.model.errors import StillRebuilding, StorageError
from lanemq.model.queue import MessageQueue
from lanemq.model.steps import in_one_piece
from lanemq.model.units import Millis
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.record import RecordView

log = logging.getLogger(__name__)

NEAR_BYTES = 1024 * 1024 * 1024
"""Size of the log behind a queue's first message up to which that is recent."""
OFFSETS_EVERY_MS = 200
"""How often committed offsets are written. Long: a crash forgets, and so redelivers, more."""
MAX_OFFSETS = 2_000
"""Offsets that one write takes; it takes about a microsecond to copy one. The next tick takes more."""
AFTER_FAILURE_MS = 5_000
"""Pause after a failed write; without it, every tick would try again and log the same error."""

Saved: TypeAlias = Callable[[StorageError | None], None]
Records: TypeAlias = dict[int, bytes]
"""Offset → record, ascending."""
RecordsRead: TypeAlias = Callable[[Records, StorageError | None], None]


def nothing(_: StorageError | None = None) -> None:
    """For callers that need not know when a change is on disk. A failed write is logged."""


class ProgressKeeper:
    """Saves what the `table` decides. Whoever changes a lane there calls `save_lane` afterwards, and `save` after a
    reset; `tick` finds and saves the offsets that were committed."""

    def __init__(
        self, table: ProgressTable, store: ProgressStore, queue_log: QueueLog, thread: DiskThread, clock: Clock
    ) -> None:
        self.table = table
        self._store = store
        self.queue_log = queue_log
        self._thread = thread
        self._clock = clock
        self._failures = RateLimitedLog(log, clock)
        # Decided and not on disk, in that order; the first ones may be being written.
        self._unsaved: list[tuple[ProgressChange, Callable[[], None]]] = []
        self._waiting: list[Saved] = []
        self._writing = False
        self._behind_since: Millis | None = None
        """When the first write began that has not succeeded since."""
        self._offsets_at = Millis(clock.now() + OFFSETS_EVERY_MS)
        """When offsets are written next."""

    def save(self, changes: Sequence[ProgressChange], then: Saved, *, stored: Callable[[], None] = nothing) -> None:
        """Save changes that must not be lost.

        `then` answers the request: it is called once, when they and everything before them are on disk, or with the
        error of the first attempt. `stored` is called once they are on disk, even if only a later attempt succeeded.
        Both are called on the loop.
        """
        self._unsaved += [(change, nothing) for change in changes[:-1]]
        self._unsaved += [(change, stored) for change in changes[-1:]]
        self.settled(then)

    async def saved(self, changes: Sequence[ProgressChange]) -> None:
        """Save changes, and wait until they are on disk; raises if they could not be written."""
        done: asyncio.Future[StorageError | None] = asyncio.get_running_loop().create_future()
        self.save(changes, done.set_result)
        if (error := await done) is not None:
            raise error

    def save_lane(
        self,
        name: LaneName,
        then: Saved,
        *,
        stored: Callable[[], None] = nothing,
        chunks: Sequence[ChunkRow] = (),
        copies: Records | None = None,
        before: Sequence[ProgressChange] = (),
    ) -> None:
        """Save the current state of a lane, which may have ended, in one write with other changes `before` it."""
        lane = self.lane(name)
        change = EndedLane(name) if lane is None else SavedLane.of(lane, chunks, tuple((copies or {}).items()))
        self.save((*before, change), then, stored=stored)

    def lane(self, name: LaneName) -> ParkedLane | None:
        return self.table.at(name.group, name.queue).lanes.get(name.key)

    def settled(self, then: Saved) -> None:
        """Call `then` when everything saved so far is on disk, immediately if it already is."""
        if not self._unsaved:
            then(None)
            return
        self._waiting.append(then)
        if not self._writing:
            self._write()

    def forget_group(self, group: str) -> Forgotten:
        """Forget a deleted group, in memory now and on disk soon."""
        return self._forgotten(self.table.forget_group(group), ForgottenProgress(group=group))

    def forget_topic(self, topic: str) -> Forgotten:
        """Forget what groups have in a deleted topic, in memory now and on disk soon."""
        return self._forgotten(self.table.forget_topic(topic), ForgottenProgress(topic=topic))

    def _forgotten(self, forgotten: Forgotten, change: ForgottenProgress) -> Forgotten:
        if forgotten.groups:
            self.save((change,), nothing)
        return forgotten

    def behind(self, now: Millis) -> Millis:
        """For how long the last write has not come to an end, or writes have failed; 0 if all is well."""
        return Millis(0 if self._behind_since is None else now - self._behind_since)

    def tick(self, now: Millis) -> None:
        if not self._writing and now >= self._offsets_at and (self._unsaved or self.table.has_unsaved):
            self._write()

    def save_now(self) -> None:
        """At a clean stop: write everything, and wait for the disk."""
        self._store.save([*(change for change, _ in self._unsaved), *self.table.take_unsaved()], synced=True)

    def _write(self) -> None:
        """Write all unsaved changes, and after them offsets, if it is time."""
        now, changes, waiting = self._clock.now(), [change for change, _ in self._unsaved], self._waiting
        rows = self.table.take_unsaved(MAX_OFFSETS) if now >= self._offsets_at else []
        self._waiting, self._writing = [], True
        self._behind_since = now if self._behind_since is None else self._behind_since

        def written(_: object, error: StorageError | None) -> None:
            self._writing = False
            if error is None:
                self._behind_since = None
                on_disk, self._unsaved = self._unsaved[: len(changes)], self._unsaved[len(changes) :]
                if rows and len(rows) < MAX_OFFSETS:
                    self._offsets_at = Millis(now + OFFSETS_EVERY_MS)
                for _, stored in on_disk:
                    stored()
            else:
                self.table.not_saved(rows)
                self._offsets_at = Millis(self._clock.now() + AFTER_FAILURE_MS)
                self._failures.warn("progress", f"offsets and lanes could not be saved, trying again: {error}")
            for then in waiting:
                then(error)
            if self._waiting and not self._writing:
                self._write()

        self._thread.submit(lambda: self._store.save([*changes, *rows], synced=bool(changes)), written)

    # records

    def find(self, name: LaneName, offsets: Sequence[int], max_bytes: int, then: RecordsRead) -> None:
        """Calls `then` with the records at these offsets of a lane, up to a size; the first one always fits.

        Stops before the first offset in the log if some are only in the store. An offset without an intact record is
        left out, with an error in the log.
        """
        below, _ = self.queue_log.bounds(name.queue)
        copied = [offset for offset in offsets if offset < below]
        if not copied:
            then(self.in_log(name, offsets, max_bytes), None)
            return

        def read(rows: list[tuple[int, bytes]] | None, error: StorageError | None) -> None:
            records = dict(rows or ())
            then({} if error is not None else in_one_piece(_fitting(name, copied, records.get, max_bytes)), error)

        self._thread.submit(lambda: self._store.copies(name, copied[0], len(copied)), read)

    def copies(self, lane: ParkedLane, offsets: Sequence[int], then: RecordsRead) -> None:
        """Calls `then` with the copies of records at these offsets of a lane, at once if there are none."""
        name, copied = lane.name, [offset for offset in offsets if offset <= lane.copied]
        if not copied:
            then({}, None)
            return

        def read(rows: list[tuple[int, bytes]] | None, error: StorageError | None) -> None:
            then({offset: record for offset, record in rows or () if offset in copied}, error)

        self._thread.submit(lambda: self._store.copies(name, copied[0], len(copied)), read)

    def in_log(self, name: LaneName, offsets: Sequence[int], max_bytes: int) -> Records:
        """The records at these offsets of the log, up to a size; damaged ones are left out."""
        return in_one_piece(self.log_steps(name, offsets, max_bytes))

    def log_steps(self, name: LaneName, offsets: Sequence[int], max_bytes: int) -> Generator[None, None, Records]:
        """As `in_log`; yields after each record."""
        return _fitting(name, offsets, lambda offset: self.queue_log.record(name.queue, offset), max_bytes)


def _fitting(
    name: LaneName, offsets: Sequence[int], read: Callable[[int], bytes | None], max_bytes: int
) -> Generator[None, None, Records]:
    """The records at these offsets, up to a size; yields after each."""
    records: Records = {}
    for offset in offsets:
        record = read(offset)
        if record is None:
            topic, _, queue_id = name.queue
            log.error("group %s: parked offset %d of %s/%s cannot be read", name.group, offset, topic, queue_id)
            continue
        max_bytes -= len(record)
        if max_bytes < 0 and records:
            break
        records[offset] = record
        yield
    return records


class StoredQueues:
    """The `QueueLog` of a broker: its own queues."""

    has_records = True

    def __init__(self, store: Store) -> None:
        self._store = store

    def bounds(self, queue: MessageQueue) -> tuple[int, int]:
        return self._store.bounds(queue.topic, queue.queue_id)

    def record(self, queue: MessageQueue, offset: int) -> bytes | None:
        result = self._store.read(queue.topic, queue.queue_id, offset, 1, 1, None)
        is_there = result.status is ReadStatus.FOUND and RecordView(result.data).queue_offset == offset
        return result.data if is_there else None

    def offset_at(self, queue: MessageQueue, time: int) -> int:
        if time < 0:
            return self.bounds(queue)[1]
        return self._store.times.find(queue.topic, queue.queue_id, time, Boundary.LOWER)

    def stored_before(self, queue: MessageQueue, offset: int) -> int:
        """Unknown is not an error: without the time, lists of progress are still right in messages while indexes are
        rebuilt."""
        try:
            return self._store.times.last_before(queue.topic, queue.queue_id, offset) or 0
        except StillRebuilding:
            return 0

    def left_out(self, queue: MessageQueue, start: int, end: int, tags: frozenset[int]) -> Iterator[list[int]]:
        return self._store.left_out(queue.topic, queue.queue_id, start, end, tags)

    def is_young(self, queue: MessageQueue) -> bool:
        store, (topic, _, queue_id) = self._store, queue
        return self.bounds(queue)[0] == 0 and not store.unread_below(topic, queue_id, 0, store.log_end - NEAR_BYTES)
