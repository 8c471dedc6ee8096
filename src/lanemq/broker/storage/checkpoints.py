"""Checkpoints: writes to disk, in the background, what a restart needs.

Delay cursors are written several times a second, indexes and producer stamps every few seconds, the ages of log files
every minute, and the key index while the log hardly grows.

The producer rows of a checkpoint must reflect exactly what is staged up to its log position. They are written only
after the records below it are on disk (`log/checkpoint`). There may be tens of thousands of them, and as many queues,
so the loop works in slices:

    _Copying rows ─▶ _Running: sync the log, take index entries ─▶ _Taken ─▶ _Running: write, free the entries

A row that changes before it is copied is copied first (`core/brokering/dedup`), so all of them are as they were when
the checkpoint began. A topic that is deleted in between is left out, and the checkpoint waits until the deletion is on
disk.
"""

import logging
from collections.abc import Iterator
from dataclasses import dataclass

import msgspec

from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.broker.storage.group_commit import GroupCommit
from lanemq.broker.storage.topic_keeper import TopicKeeper
from lanemq.clock import Clock
from lanemq.core.brokering.dedup import ProducerTable, SavedProducer, Saving, SequenceRange
from lanemq.core.brokering.delay import MAX_LEVEL, DelayQueueCursors
from lanemq.core.brokering.lock_table import SavedLease
from lanemq.log.checkpoint import IndexWork
from lanemq.log.state.database import ProducerRow, State
from lanemq.log.state.group_rows import LeaseRow
from lanemq.log.store import Store
from lanemq.model.errors import StorageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.net.serving.loop_slices import LoopSlices

log = logging.getLogger(__name__)

DELAY_CURSOR = "delay-cursor-"
KEY_INDEX_STEP_BYTES = 256 * 1024
MAX_POSTPONED_TICKS = 20
"""How many ticks in a row the key index waits for busy sends. Few: sends are slower. Many: the next query has more of
the log to index first."""
CURSORS_EVERY_MS = 200
"""How often delay cursors are written. Long: after a crash, more delayed messages are delivered again."""
INDEXES_EVERY_MS = 5_000
"""How often indexes and producer stamps are written. Long: after a crash, more of the log is scanned."""
AGES_EVERY_MS = 60_000
"""A crash makes log files seem newer by up to this time."""
AFTER_FAILURE_MS = 5_000
"""Pause after a failed write; without it, every tick would try again and log the same error."""


@dataclass(frozen=True, slots=True)
class _Copying:
    """A checkpoint whose producer rows are copied, in slices. A tick ends it, when the records below it are on disk."""

    position: int
    """Where the log ended when it began, with what was staged."""
    saving: Saving
    undone: int
    """How many groups of messages had been undone until then."""


@dataclass(frozen=True, slots=True)
class _Running:
    """A checkpoint for which a thread works, or these steps, in slices. Their end sets the next state."""

    steps: Iterator[None] | None = None


@dataclass(frozen=True, slots=True)
class _Taken:
    """A checkpoint whose rows and index entries are complete. A tick gives it to the row thread."""

    work: IndexWork
    saving: Saving


class Checkpoints:
    """Called at every tick of the housekeeping. At most one write of each kind is in progress."""

    def __init__(
        self,
        clock: Clock,
        *,
        store: Store,
        row_thread: DiskThread,
        search_thread: DiskThread,
        group_commit: GroupCommit,
        topic_keeper: TopicKeeper,
        producers: ProducerTable,
        delays: DelayQueueCursors,
        slices: LoopSlices,
    ) -> None:
        self._clock = clock
        self._store = store
        self._row_thread = row_thread
        self._search_thread = search_thread
        self._group_commit = group_commit
        self._topic_keeper = topic_keeper
        self._producers = producers
        self._delays = delays
        self._slices = slices
        self._failures = RateLimitedLog(log, clock)
        now = clock.now()
        self._cursors_at: Millis | None = Millis(now + CURSORS_EVERY_MS)
        """When delay cursors are written next; None while they are. The following two are alike."""
        self._ages_at: Millis | None = Millis(now + AGES_EVERY_MS)
        self._keys_at: Millis | None = now
        self._postponed_ticks = 0
        self._last_end = store.log_end
        self._index_at = Millis(now + INDEXES_EVERY_MS)
        """When the next checkpoint of the indexes may begin."""
        self._state: _Copying | _Running | _Taken | None = None
        """Of that checkpoint; None: there is none."""
        self._synced = 0
        """The log position up to which this object has synced the log; used without `durable`."""

    def tick(self, now: Millis) -> None:
        if self._cursors_at is not None and now >= self._cursors_at:
            self._save_cursors(now)
        if self._state is None and now >= self._index_at:
            self._index_at = Millis(now + INDEXES_EVERY_MS)
            self._begin()
        if isinstance(self._state, _Copying):
            self._take_if_on_disk(self._state)
        if isinstance(self._state, _Taken):
            self._write(self._state)
        if self._has_time_for_keys(now):
            self._index_keys()
        if self._ages_at is not None and now >= self._ages_at:
            self._save_ages(now)

    def stop(self) -> None:
        """At a clean stop, after the last tick and the last outcome of the row thread: nothing is left half done."""
        if isinstance(self._state, _Running):
            for _ in self._state.steps or ():
                pass
        if isinstance(self._state, _Taken):
            self._store.checkpoints.give_back(self._state.work)
        self._state = None

    def save_now(self) -> None:
        """At a clean stop: write delay cursors and ages, and wait for the disk."""
        self._write_cursors(dict(self._delays.dirty()))
        self._store.state.save_ages(self._store.retention.ages(self._clock.now()), self._clock.wall())

    # indexes and producer stamps

    def _begin(self) -> None:
        saving = self._producers.begin_saving()
        self._state = _Copying(self._store.appender.staged, saving, self._group_commit.undone)
        self._slices.begin(self._producers.copy(saving))

    def _take_if_on_disk(self, checkpoint: _Copying) -> None:
        """Take the index entries if the rows are copied and all records below the checkpoint are on disk."""
        position, saving, commit = checkpoint.position, checkpoint.saving, self._group_commit
        if commit.failure is not None or commit.undone != checkpoint.undone:
            # The records never reach the disk, or the rows contain messages that were undone since.
            self._producers.give_back(saving)
            self._state = None
        elif saving.left or self._topic_keeper.unfinished_deletions or not self._store.checkpoints.ready(position):
            pass  # the next tick tries again
        elif not self._store.options.durable and self._synced < position:
            self._sync(checkpoint)
        else:
            self._run(self._take_entries(position, saving))

    def _sync(self, checkpoint: _Copying) -> None:
        """Sync the log, then let the next tick try again."""
        end, self._state = self._store.log_end, _Running()

        def synced(error: StorageError | None) -> None:
            self._state = checkpoint
            if error is None:
                self._synced = end

        self._group_commit.sync(synced)

    def _run(self, steps: Iterator[None]) -> None:
        self._state = _Running(steps)
        self._slices.begin(steps)

    def _take_entries(self, position: int, saving: Saving) -> Iterator[None]:
        try:
            work = yield from self._store.checkpoints.take_steps(position)
        except Exception:
            self._state = None
            self._producers.give_back(saving)
            log.exception("a checkpoint could not be made, the next one comes in a few seconds")
        else:
            self._state = _Taken(work, saving)

    def _write(self, taken: _Taken) -> None:
        # With an unfinished deletion, a crash would bring a topic back, but without what the checkpoint leaves out.
        if self._topic_keeper.unfinished_deletions:
            return  # the next tick tries again
        self._state, work, saving = _Running(), taken.work, taken.saving

        def written(_: object, error: StorageError | None) -> None:
            if error is None:
                self._producers.saved(saving)
                self._run(self._free_entries(work))
            else:
                self._failures.warn("checkpoint", f"a checkpoint could not be written: {error}")
                self._store.checkpoints.give_back(work)
                self._producers.give_back(saving)
                self._state = None

        # Encoded on the thread: there may be thousands of producers.
        rows = map(producer_row, saving.take_rows())
        self._row_thread.submit(lambda: self._store.checkpoints.write(work, rows, saving.gone), written)

    def _free_entries(self, work: IndexWork) -> Iterator[None]:
        yield from self._store.checkpoints.finish_steps(work)
        self._state = None

    # delay cursors, ages, keys

    def _save_cursors(self, now: Millis) -> None:
        cursors = dict(self._delays.dirty())
        if not cursors:
            self._cursors_at = Millis(now + CURSORS_EVERY_MS)
            return
        self._cursors_at = None

        def written(_: object, error: StorageError | None) -> None:
            if error is None:
                self._delays.saved(cursors)
                self._cursors_at = Millis(now + CURSORS_EVERY_MS)
            else:
                self._cursors_at = Millis(self._clock.now() + AFTER_FAILURE_MS)
                self._failures.warn("delays", f"delay cursors could not be saved: {error}")

        self._row_thread.submit(lambda: self._write_cursors(cursors), written)

    def _write_cursors(self, cursors: dict[int, QueueOffset]) -> None:
        for level, offset in cursors.items():
            self._store.state.put(f"{DELAY_CURSOR}{level}", str(offset))

    def _save_ages(self, now: Millis) -> None:
        state, ages, wall = self._store.state, self._store.retention.ages(now), self._clock.wall()
        self._ages_at = None

        def written(_: object, error: StorageError | None) -> None:
            self._ages_at = Millis(now + AGES_EVERY_MS)
            if error is not None:
                self._failures.warn("ages", f"the ages of log files could not be saved: {error}")

        self._row_thread.submit_rows(state, lambda: state.save_ages(ages, wall), written)

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
        if self._keys_at is None or now < self._keys_at or self._group_commit.pending_bytes:
            return False
        self._postponed_ticks = 0
        return True

    def _index_keys(self) -> None:
        """Index one step of the log on the search thread."""
        if self._store.keys_indexed:
            return
        self._keys_at = None

        def done(_: bool | None, error: StorageError | None) -> None:
            self._keys_at = self._clock.now()
            if error is not None:
                self._keys_at = Millis(self._keys_at + AFTER_FAILURE_MS)
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
    epoch, next_sequence, last_stored, ranges, user = msgspec.json.decode(row.state)
    known = tuple(SequenceRange(sequence, QueueOffset(offset), count) for sequence, offset, count in ranges)
    return SavedProducer(row.topic, row.queue_id, row.producer, epoch, next_sequence, last_stored, known, user)


def lease_row(row: SavedLease) -> LeaseRow:
    """A row of the lock table as the state database stores it."""
    queue = row.queue
    return LeaseRow(row.group, queue.topic, queue.broker, queue.queue_id, row.owner, row.epoch, row.lease_ms, row.stock)


def restored_lease(row: LeaseRow) -> SavedLease:
    queue = MessageQueue(row.topic, row.broker, row.queue_id)
    return SavedLease(row.group, queue, row.owner, Epoch(row.epoch), Millis(row.lease_ms), row.stock)
