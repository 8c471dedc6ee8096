"""Checkpoints: writes to disk, in the background, what a restart needs.

Committed offsets and delay cursors are written several times a second, indexes and producer stamps every few seconds,
the ages of log files every minute, and the key index while the log hardly grows.

The producer rows of a checkpoint must reflect exactly what is staged up to its log position, its mark. They are written
only after the records below it are on disk (`log/checkpoint`). There may be tens of thousands of them, and as many
queues, so the loop works in turns:

    mark ─▶ copy the rows ─▶ records below the mark are on disk ─▶ take the index entries ─▶ row thread ─▶ free them

A row that changes before it is copied is copied first (`core/brokering/dedup`), so all of them are as they were at the
mark. A topic that is deleted in between is left out, and the checkpoint waits until the deletion is on disk.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from lanemq.broker.config import BrokerOptions
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.broker.storage.group_commit import GroupCommit
from lanemq.broker.storage.topic_keeper import TopicKeeper
from lanemq.clock import Clock
from lanemq.core.brokering.dedup import ProducerTable, SavedProducer, Saving, SequenceRange
from lanemq.core.brokering.delay import MAX_LEVEL, DelayQueueCursors
from lanemq.core.brokering.group_offsets import GroupOffsets, SavedOffset
from lanemq.core.brokering.lock_table import SavedLease
from lanemq.log.checkpoint import IndexWork
from lanemq.log.state.database import LeaseRow, OffsetRow, ProducerRow, State, Sync
from lanemq.log.store import Store
from lanemq.model.errors import StorageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset, to_millis
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.turns import Turns

log = logging.getLogger(__name__)

DELAY_CURSOR = "delay-cursor-"
KEY_INDEX_STEP_BYTES = 256 * 1024
MAX_POSTPONED_TICKS = 20
"""How many ticks in a row the key index waits for busy sends. Few: sends are slower. Many: the next query has more of
the log to index first."""
AGES_EVERY_MS = 60_000
"""A crash makes log files younger by up to this time."""
MAX_OFFSETS = 2_000
"""Offsets that one write takes; it takes about a microsecond to copy one. The next tick takes more."""
AFTER_FAILURE_MS = 5_000
"""Pause after a failed write; without it, every tick would try again and log the same error."""


@dataclass(slots=True, eq=False)
class _Mark:
    """A checkpoint that is being prepared."""

    position: int
    """Where the log ended when it began, with what was staged."""
    saving: Saving
    undone: int
    """How many messages had been undone until then."""
    copied: bool = False
    """Whether all producer rows are copied."""


class Checkpoints:
    """Called at every tick of the housekeeping. At most one write of each kind is in progress."""

    def __init__(
        self,
        options: BrokerOptions,
        clock: Clock,
        *,
        store: Store,
        row_thread: DiskThread,
        search_thread: DiskThread,
        group_commit: GroupCommit,
        topic_keeper: TopicKeeper,
        producers: ProducerTable,
        offsets: GroupOffsets,
        delays: DelayQueueCursors,
        turns: Turns,
    ) -> None:
        self._clock = clock
        self._store = store
        self._row_thread = row_thread
        self._search_thread = search_thread
        self._group_commit = group_commit
        self._topic_keeper = topic_keeper
        self._producers = producers
        self._offsets = offsets
        self._delays = delays
        self._turns = turns
        self._failures = RateLimitedLog(log, clock)
        self._saving_offsets = False
        self._saving_index = False
        """From the first index entry that is taken until all of them are freed."""
        self._syncing = False
        self._synced = 0
        """The log position up to which this object has synced the log; used without `durable`."""
        self._indexing_keys = False
        self._mark: _Mark | None = None
        """From the first row that is copied until index entries are taken."""
        self._unwritten: tuple[IndexWork, Saving] | None = None
        """What the row thread is to write."""
        self._steps: Iterator[None] = iter(())
        """Index entries that are taken or freed at the moment."""
        self._stopped = False
        self._keys_not_before = Millis(0)
        self._postponed_ticks = 0
        self._offsets_every = to_millis(options.save_offsets_every)
        self._index_every = to_millis(options.checkpoint_every)
        self._last_end = store.log_end
        self._last_index = self._last_offsets = self._last_ages = clock.now()
        self._saving_ages = False

    def tick(self, now: Millis) -> None:
        if now - self._last_offsets >= self._offsets_every and not self._saving_offsets:
            self._last_offsets = now
            self._save_offsets()
        if self._mark is not None and self._mark.undone != self._group_commit.undone:
            self._take_mark()  # the old rows contain messages that were undone since
        elif now - self._last_index >= self._index_every and self._mark is None and not self._saving_index:
            self._last_index = now
            self._take_mark()
        if self._mark is not None:
            self._save_index(self._mark)
        elif self._unwritten is not None:
            self._write_index(*self._unwritten)
        if self._has_time_for_keys(now):
            self._index_keys()
        if now - self._last_ages >= AGES_EVERY_MS and not self._saving_ages:
            self._last_ages = now
            self._save_ages(now)

    def _save_ages(self, now: Millis) -> None:
        state, ages, wall = self._store.state, self._store.retention.ages(now), self._clock.wall()
        self._saving_ages = True

        def written(_: object, error: StorageError | None) -> None:
            self._saving_ages = False
            if error is not None:
                self._failures.warn("ages", f"the ages of log files could not be saved: {error}")

        self._row_thread.submit_rows(state, lambda: state.save_ages(ages, wall), written)

    def save_now(self) -> None:
        """At a clean stop: write committed offsets, delay cursors and ages, and wait for the disk."""
        self._write_offsets(self._offsets.dirty(), dict(self._delays.dirty()), Sync.FULL)
        self._store.state.save_ages(self._store.retention.ages(self._clock.now()), self._clock.wall())

    def _save_offsets(self) -> None:
        rows = self._offsets.dirty(MAX_OFFSETS)
        cursors = dict(self._delays.dirty())
        if not rows and not cursors:
            return
        self._saving_offsets = True

        def written(_: object, error: StorageError | None) -> None:
            self._saving_offsets = False
            if error is None:
                self._offsets.saved(rows)
                self._delays.saved(cursors)
                if len(rows) == MAX_OFFSETS:
                    self._last_offsets = Millis(self._last_offsets - self._offsets_every)
            else:
                self._last_offsets = Millis(self._clock.now() + AFTER_FAILURE_MS)
                self._failures.warn("offsets", f"offsets could not be saved: {error}")

        self._row_thread.submit(lambda: self._write_offsets(rows, cursors, Sync.NORMAL), written)

    def _write_offsets(self, rows: tuple[SavedOffset, ...], cursors: dict[int, QueueOffset], sync: Sync) -> None:
        self._store.state.save_offsets([OffsetRow(*row) for row in rows], sync)
        for level, offset in cursors.items():
            self._store.state.put(f"{DELAY_CURSOR}{level}", str(offset))

    def stop(self) -> None:
        """At a clean stop: begin no checkpoint any more. What is not written is dirty again.

        Called before the last outcomes of the row thread are handled.
        """
        self._stopped = True
        for _ in self._steps:
            pass
        if self._unwritten is not None:
            self._store.checkpoints.give_back(self._unwritten[0])
            self._unwritten = None

    def _take_mark(self) -> None:
        if self._mark is not None:
            self._producers.give_back(self._mark.saving)
        position, undone = self._store.appender.staged, self._group_commit.undone
        self._mark = _Mark(position, self._producers.begin_saving(), undone)
        self._turns.begin(self._copy(self._mark))

    def _copy(self, mark: _Mark) -> Iterator[None]:
        yield from self._producers.copy(mark.saving)
        mark.copied = True

    def _save_index(self, mark: _Mark) -> None:
        """Go on with a checkpoint whose rows are copied, if all records below its mark are on disk."""
        if self._group_commit.failure is not None:
            self._mark = None
            self._producers.give_back(mark.saving)
            return
        if not mark.copied or self._topic_keeper.unfinished_deletions:
            return
        if not (self._is_synced(mark.position) and self._store.checkpoints.ready(mark.position)):
            return  # the next tick tries again
        self._mark = None
        self._saving_index = True
        self._begin(self._take_entries(mark))

    def _begin(self, steps: Iterator[None]) -> None:
        self._steps = steps
        if self._stopped:
            for _ in steps:
                pass
        else:
            self._turns.begin(steps)

    def _take_entries(self, mark: _Mark) -> Iterator[None]:
        try:
            work = yield from self._store.checkpoints.take_steps(mark.position)
        except Exception:
            self._saving_index = False
            self._producers.give_back(mark.saving)
            log.exception("a checkpoint could not be made, the next one comes in a few seconds")
            return
        self._unwritten = (work, mark.saving)
        self._write_index(work, mark.saving)

    def _write_index(self, work: IndexWork, saving: Saving) -> None:
        # With an unfinished deletion, a crash would bring a topic back, but without what the checkpoint leaves out.
        if self._stopped or self._topic_keeper.unfinished_deletions:
            return  # the next tick tries again
        self._unwritten = None

        def written(_: object, error: StorageError | None) -> None:
            self._index_written(work, saving, error)

        # Encoded on the thread: there may be thousands of producers.
        rows = map(producer_row, saving.take_rows())
        self._row_thread.submit(lambda: self._store.checkpoints.write(work, rows, saving.gone), written)

    def _is_synced(self, mark: int) -> bool:
        """Whether what is published below a mark is synced. Without `durable`, starts the sync for a later call."""
        end = self._store.log_end
        if self._store.options.durable or self._synced >= min(mark, end):
            return True
        if not self._syncing:
            self._syncing = True

            def synced(error: StorageError | None) -> None:
                self._syncing = False
                if error is None:
                    self._synced = end

            self._group_commit.sync(synced)
        return False

    def _index_written(self, work: IndexWork, saving: Saving, error: StorageError | None) -> None:
        if error is not None:
            self._saving_index = False
            self._failures.warn("checkpoint", f"a checkpoint could not be written: {error}")
            self._store.checkpoints.give_back(work)
            self._producers.give_back(saving)
            return
        self._producers.saved(saving)
        self._begin(self._free_entries(work))

    def _free_entries(self, work: IndexWork) -> Iterator[None]:
        yield from self._store.checkpoints.finish_steps(work)
        self._saving_index = False

    def _has_time_for_keys(self, now: Millis) -> bool:
        """Whether to index keys in this tick.

        Not while the log grows by more than one step per tick: the index could not keep up, and would slow down sends.
        After `MAX_POSTPONED_TICKS` a step runs anyway, so that under constant load the index does not fall behind for
        ever.
        """
        before, self._last_end = self._last_end, self._store.log_end
        if self._last_end - before > KEY_INDEX_STEP_BYTES and self._postponed_ticks < MAX_POSTPONED_TICKS:
            self._postponed_ticks += 1
            return False
        if self._indexing_keys or now < self._keys_not_before or self._group_commit.pending_bytes:
            return False
        self._postponed_ticks = 0
        return True

    def _index_keys(self) -> None:
        """Index one step of the log on the search thread."""
        if self._store.keys_indexed:
            return
        self._indexing_keys = True

        def done(_: bool | None, error: StorageError | None) -> None:
            self._indexing_keys = False
            if error is not None:
                self._keys_not_before = Millis(self._clock.now() + AFTER_FAILURE_MS)
                self._failures.warn("keys", f"the key index could not be written: {error}")

        self._search_thread.submit(lambda: self._store.index_keys(KEY_INDEX_STEP_BYTES), done)


def restored_cursors(rows: State) -> list[tuple[int, QueueOffset]]:
    """The saved delay cursors: level and next offset."""
    saved = [(level, rows.get(f"{DELAY_CURSOR}{level}")) for level in range(1, MAX_LEVEL + 1)]
    return [(level, QueueOffset(int(offset))) for level, offset in saved if offset is not None]


def unsaved_stamps(producers: ProducerTable) -> list[ProducerRow]:
    """The rows of the producers that changed since the last checkpoint."""
    return list(map(producer_row, producers.dirty().rows))


def producer_row(row: SavedProducer) -> ProducerRow:
    """A row of the producer table as the state database stores it."""
    text = msgspec.json.encode((row.epoch, row.next_sequence, row.last_stored, row.ranges, row.user)).decode()
    return ProducerRow(row.topic, row.queue_id, row.producer, text)


def restored_producer(row: ProducerRow) -> SavedProducer:
    epoch, next_sequence, last_stored, ranges, *more = msgspec.json.decode(row.state)
    known = tuple(SequenceRange(sequence, QueueOffset(offset), count) for sequence, offset, count in ranges)
    user = more[0] if more else None  # folders of earlier versions have none
    return SavedProducer(row.topic, row.queue_id, row.producer, epoch, next_sequence, last_stored, known, user)


def lease_row(row: SavedLease) -> LeaseRow:
    """A row of the lock table as the state database stores it."""
    queue = row.queue
    return LeaseRow(row.group, queue.topic, queue.broker, queue.queue_id, row.owner, row.epoch, row.lease_ms, row.stock)


def restored_lease(row: LeaseRow) -> SavedLease:
    queue = MessageQueue(row.topic, row.broker, row.queue_id)
    return SavedLease(row.group, queue, row.owner, Epoch(row.epoch), Millis(row.lease_ms), row.stock)


def restored_offset(row: OffsetRow) -> SavedOffset:
    return SavedOffset(row.group, row.topic, row.queue_id, QueueOffset(row.offset), row.reset_pending, row.finished)
