"""Writes out what a restart needs, in the background.

Offsets and delay cursors every moment, indexes and producer stamps every few seconds. The rule for the latter:
the rows of a checkpoint must reflect everything staged up to its log position, and are taken on the loop in the
same step as that position; the records themselves are on disk before the rows are.
"""

import logging

import msgspec

from lanemq.broker.parts import Parts
from lanemq.core.brokering.dedup import ProducerRow, Run, Unsaved
from lanemq.core.brokering.group_offsets import OffsetRow
from lanemq.core.brokering.lock_table import LeaseRow
from lanemq.log import state
from lanemq.log.checkpoint import IndexWork
from lanemq.model.errors import StorageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset, to_millis

log = logging.getLogger(__name__)

DELAY_CURSOR = "delay-cursor-"
KEY_INDEX_STEP_BYTES = 256 * 1024
KEYS_PUT_OFF_TICKS = 20
"""How many ticks in a row the key index waits for busy sends: fewer cost them time, more leave queries a longer way."""
AFTER_FAILURE_MS = 5_000
"""How long a write that failed is left alone: trying at every tick would fill the log with the same line."""


class Checkpoints:
    """Called at every tick of the housekeeping; at most one of each kind of write is under way."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self._offsets_under_way = False
        self._index_under_way = False
        self._keys_under_way = False
        self._mark: tuple[int, Unsaved] | None = None
        self._mark_deletions = 0
        self._keys_not_before = Millis(0)
        self._keys_put_off = 0
        self._offsets_every = to_millis(parts.options.save_offsets_every)
        self._index_every = to_millis(parts.options.checkpoint_every)
        self._last_end = parts.store.log_end
        self._last_index = parts.clock.now()
        self._last_offsets = parts.clock.now()

    def tick(self, now: Millis) -> None:
        if now - self._last_offsets >= self._offsets_every and not self._offsets_under_way:
            self._last_offsets = now
            self._save_offsets()
        if now - self._last_index >= self._index_every and not self._index_under_way:
            self._last_index = now
            self._take_mark()
        if self._mark is not None:
            if self._mark_deletions != self._parts.topics.deletions:
                self._take_mark()  # its rows would bring back the producers of a topic that was deleted since
            self._save_index(*self._mark)
        if self._has_time_for_keys(now):
            self._index_keys()

    def _take_mark(self) -> None:
        self._mark = (self._parts.store.appender.staged, self._parts.producers.dirty())
        self._mark_deletions = self._parts.topics.deletions

    def _save_offsets(self) -> None:
        rows = self._parts.offsets.dirty()
        cursors = dict(self._parts.delays.dirty())
        if not rows and not cursors:
            return
        self._offsets_under_way = True

        def write() -> None:
            self._parts.state.save_offsets([state.OffsetRow(*row) for row in rows])
            for level, offset in cursors.items():
                self._parts.state.put(f"{DELAY_CURSOR}{level}", str(offset))

        def written(_: object, error: StorageError | None) -> None:
            self._offsets_under_way = False
            if error is None:
                self._parts.offsets.saved(rows)
                self._parts.delays.saved(cursors)
            else:
                self._last_offsets = Millis(self._parts.clock.now() + AFTER_FAILURE_MS)
                log.error("offsets could not be saved: %s", error)

        self._parts.thread.submit(write, written)

    def _save_index(self, mark: int, unsaved: Unsaved) -> None:
        if self._parts.group_commit.failure is not None:
            self._mark = None
            return
        work = self._parts.store.checkpoints.take(mark)
        if work is None:
            return  # records below the mark are not on disk yet; the next tick tries again
        self._mark = None
        self._index_under_way = True
        rows = [producer_row(row) for row in unsaved.rows]

        def written(_: object, error: StorageError | None) -> None:
            self._index_written(work, unsaved, error)

        self._parts.thread.submit(lambda: self._parts.store.checkpoints.write(work, rows, unsaved.gone), written)

    def _index_written(self, work: IndexWork, unsaved: Unsaved, error: StorageError | None) -> None:
        self._index_under_way = False
        if error is not None:
            log.error("a checkpoint could not be written: %s", error)
            self._parts.store.checkpoints.give_back(work)
            return
        self._parts.store.checkpoints.finish(work)
        self._parts.producers.saved(unsaved)

    def _has_time_for_keys(self, now: Millis) -> bool:
        """Not while the log grows by more than a slice per tick: the index could not keep up, only slow the sends down.

        Now and then even so, because a load that never ends would leave all of it to the first who asks.
        """
        before, self._last_end = self._last_end, self._parts.store.log_end
        if self._last_end - before > KEY_INDEX_STEP_BYTES and self._keys_put_off < KEYS_PUT_OFF_TICKS:
            self._keys_put_off += 1
            return False
        if self._keys_under_way or now < self._keys_not_before or self._parts.group_commit.pending_bytes:
            return False
        self._keys_put_off = 0
        return True

    def _index_keys(self) -> None:
        """A slice of the key index while the log thread has nothing better to do."""
        if self._parts.store.keys_indexed:
            return
        self._keys_under_way = True

        def done(_: bool | None, error: StorageError | None) -> None:
            self._keys_under_way = False
            if error is not None:
                self._keys_not_before = Millis(self._parts.clock.now() + AFTER_FAILURE_MS)
                log.error("the key index could not be written: %s", error)

        self._parts.thread.submit(lambda: self._parts.store.index_keys(KEY_INDEX_STEP_BYTES), done)


def producer_row(row: ProducerRow) -> state.ProducerRow:
    """As the state database keeps it."""
    text = msgspec.json.encode((row.epoch, row.next_sequence, row.last_stored, row.runs)).decode()
    return state.ProducerRow(row.topic, row.queue_id, row.producer, text)


def restored_producer(row: state.ProducerRow) -> ProducerRow:
    epoch, next_sequence, last_stored, runs = msgspec.json.decode(row.state)
    known = tuple(Run(sequence, QueueOffset(offset), count) for sequence, offset, count in runs)
    return ProducerRow(row.topic, row.queue_id, row.producer, epoch, next_sequence, last_stored, known)


def lease_row(row: LeaseRow) -> state.LeaseRow:
    """As the state database keeps it."""
    queue = row.queue
    return state.LeaseRow(
        row.group, queue.topic, queue.broker, queue.queue_id, row.owner, row.epoch, row.lease_ms, row.stock
    )


def restored_lease(row: state.LeaseRow) -> LeaseRow:
    queue = MessageQueue(row.topic, row.broker, row.queue_id)
    return LeaseRow(row.group, queue, row.owner, Epoch(row.epoch), Millis(row.lease_ms), row.stock)


def restored_offset(row: state.OffsetRow) -> OffsetRow:
    return OffsetRow(row.group, row.topic, row.queue_id, QueueOffset(row.offset), row.reset_pending, row.finished)
