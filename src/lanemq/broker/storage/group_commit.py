"""Group commit: many appends share one write and one fdatasync.

Handlers append on the event loop and know positions and offsets immediately. At the end of the loop iteration
everything staged goes to the log thread as one group; while that is written, the next group gathers. If only one peer
sends, no other records can join, so its group is committed at the end of its read.

Invariant: `done` is called when the group is on disk, in the order of appending. A later record is never acknowledged
before an earlier one, and nothing is acknowledged that was not flushed.

A full disk, and a lack of descriptors, pause the sends (`pause`): the group is undone with everything behind it, its
senders are asked to try again, and the housekeeping lets sends continue (`resume`). Any other failed write is final.

A message may rely on rows of `state.db`, above all on that of its topic. The row thread writes those; a group whose
messages rely on rows that are not on disk yet waits for them before it goes to the log thread (`RowsFirst`).
"""

import asyncio
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Protocol

from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.clock import Clock, nanoseconds_of
from lanemq.core.brokering.refusals import RefusalCounts, RefusalReason
from lanemq.log.appender import Arrival, HiddenRecord, NewRecords, Pending, Staged
from lanemq.log.queue_index import QueueIndex
from lanemq.log.store import Store
from lanemq.model.errors import BrokerBusy, DiskFull, MessageRefused, NoDescriptors, StorageError
from lanemq.model.figures import Distribution
from lanemq.model.units import Millis
from lanemq.net.rate_limited_log import FaultLog
from lanemq.net.serving.outbox import Outbox
from lanemq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

BARRIER_BYTES = 512
"""What a barrier counts as, so that callers that store nothing are bounded too."""

MAX_PENDING_BYTES = 256 * 1024 * 1024
"""Accepted and not yet on disk; beyond it senders are answered "busy". It bounds the memory of a broker whose disk is
slower than its producers. Less: a disk that pauses for a second turns senders away."""

RECORD_OVERHEAD_BYTES = 128
"""Approximate memory of a record beside its body and properties."""

WAITED_FOR = 10
"""Without `durable`, writes continue during a sync. Behind one of so many, a second one follows that writes wait for:
only a record that is written while all before it is synced carries the mark by which recovery tells damage from a torn
end (`commit_log`). Large: after a crash, damage in the records of more seconds is taken for a torn end. Small: more
sends wait for a sync."""

Done = Callable[[StorageError | None], None]
"""Called with None when the group is on disk, or with the error that prevented it."""


class RowsFirst(Protocol):
    """Rows that messages rely on, and that are not on disk yet. On the loop."""

    def needed_by(self, queues: Iterable[QueueIndex]) -> bool:
        """Whether messages of these queues must wait for rows."""

    def save_first(self, done: Done) -> None:
        """Call `done` once all rows decided so far are on disk, or with the error that prevents it."""

    def cut_dropped(self, end: int) -> None:
        """Lower the positions of dropped topics to `end`, before the next message is written."""


class CommitTimes:
    """How long groups took, in seconds, one value for each."""

    def __init__(self) -> None:
        self.commit = Distribution()
        """From the first append of a group to its records on disk."""
        self.flush = Distribution()
        """Write and sync."""


class GroupCommit:
    """The only writer of messages. While more than `MAX_PENDING_BYTES` are not on disk, it refuses with "busy"."""

    refusing = False
    """Whether messages are refused, for now or for good."""

    def __init__(
        self,
        store: Store,
        thread: DiskThread,
        clock: Clock,
        store_host: bytes,
        *,
        rows: RowsFirst,
        refusals: RefusalCounts,
        outbox: Outbox,
        on_arrivals: Callable[[Sequence[Arrival]], None],
        on_undone: Callable[[Sequence[bytes]], None],
    ) -> None:
        """`store_host` is the broker's address in every record: RocketMQ's clients find a message by it.

        The answers to the senders of a group are written before those to the pulls that waited for its messages.
        `on_arrivals` is called with what can be read from now on, after the senders are answered.
        `on_undone` is called with the records of an undone group, before their senders are answered.
        """
        self.undone = 0
        """How many groups were undone; what was copied before may contain what they had staged."""
        self.paused: StorageError | None = None
        """Why sends are refused for now, as busy; see `pause`."""
        self._rows = rows
        self._refusals = refusals
        self._on_undone = on_undone
        self._store = store
        self.pending_bytes = 0
        self.appended = 0
        self.failure: StorageError | None = None
        """The failed write after which the broker is read-only until a restart."""
        self.times = CommitTimes()
        self._options, self._appender = store.options, store.appender
        self._thread = thread
        self._clock, self._nanoseconds = clock, nanoseconds_of(clock)
        self._faults = FaultLog(log, clock)
        self._outbox = outbox
        self._on_arrivals = on_arrivals
        self._store_host = store_host
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Done, int]] = []
        self._waiting_since: int | None = None
        self._flushing_since: int | None = None
        """When the first record was appended of the group that gathers, and of the one that is written; nanoseconds."""
        self._flushing = self._scheduled = self._reading = False
        self._waiting_before = 0
        self._last_sender = 0
        self._idle: asyncio.Event | None = None
        """Set once nothing is pending; None while no caller waits for that."""
        self._unsynced_since: Millis | None = None
        self._syncs = self._shared_syncs = 0
        """How many syncs there were, and during how many of those in progress the loop may write."""

    def append(self, topic: str, queue_id: int, items: NewRecords, born_host: bytes, size: int, done: Done) -> Staged:
        """Stage records and return where they will be, which holds once `done(None)` is called."""
        if self.refusing:
            self.refuse_sends()
        if self.pending_bytes:
            self._refuse_if_full(size)
        wall = self._clock.wall()
        try:
            staged = self._appender.stage(
                topic, queue_id, items, store_time=wall, born_host=born_host, store_host=self._store_host
            )
        except HiddenRecord as error:
            self._refusals.add(RefusalReason.BODY)
            if error.anywhere:
                raise MessageRefused(ResponseCode.MESSAGE_ILLEGAL, str(error)) from error
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST] {error}") from error
        self.pending_bytes += size
        self.appended += len(items)
        self._wait(done, size)
        return staged

    def barrier(self, done: Done) -> None:
        """Call `done` once everything appended so far is on disk."""
        self.refuse_if_failed()
        self._refuse_if_full(BARRIER_BYTES)
        self.pending_bytes += BARRIER_BYTES
        self._wait(done, BARRIER_BYTES)

    def longest_wait(self, now: Millis) -> int:
        """For how many milliseconds the oldest append has waited for the disk; 0 if none does."""
        since = self._waiting_since if self._flushing_since is None else self._flushing_since
        return 0 if since is None else now - since // 1_000_000

    def refuse_if_failed(self) -> None:
        """Raise if nothing can be stored any more; callers check it before they change anything else."""
        # A new error each time: raising the kept one again would lengthen its traceback with every call.
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    def refuse_sends(self) -> None:
        """Raise if no message can be stored now, or any more."""
        self.refuse_if_failed()
        if self.paused is not None:
            low = isinstance(self.paused, DiskFull)
            self._refusals.add(RefusalReason.LOW_SPACE if low else RefusalReason.NO_DESCRIPTORS)
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, f"[REJECTREQUEST] {self.paused}")

    def pause(self, why: StorageError) -> None:
        """Refuse sends as busy until `resume`. Reads, commits, leases and deletions continue."""
        if self.paused is None:
            log.error("sends are refused for now: %s", why)
        self.paused = why
        self.refusing = True

    def resume(self) -> None:
        """Accept sends again."""
        if self.paused is not None:
            log.warning("sends are accepted again")
            self.paused = None
            self.refusing = self.failure is not None

    def _refuse_if_full(self, size: int) -> None:
        if self.pending_bytes > 0 and self.pending_bytes + size > MAX_PENDING_BYTES:
            self._refusals.add(RefusalReason.BUSY)
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST] too much waits for the disk; try again")

    def _wait(self, done: Done, size: int) -> None:
        if self._waiting_since is None:
            self._waiting_since = self._nanoseconds()
        self._waiting.append((done, size))
        if not self._flushing and not self._scheduled and not self._reading:
            self._commit_soon()

    def begin(self) -> None:
        """Called before the server handles the requests of one socket read (`net.peer.Reads`)."""
        self._reading = True
        self._waiting_before = len(self._waiting)

    def end(self, sender: int) -> None:
        """Called after the server handled the requests of one socket read.

        Commits immediately if this peer was also the last one that stored something: no others are likely to join.
        """
        self._reading = False
        if len(self._waiting) == self._waiting_before:
            return
        alone, self._last_sender = sender == self._last_sender, sender
        if self._flushing or self._scheduled:
            return
        if alone:
            self._commit_group()
        else:
            self._commit_soon()

    def _commit_soon(self) -> None:
        """Start the next group commit at the end of this loop iteration, so that more appends can join."""
        self._scheduled = True
        self._loop.call_soon(self._commit_group)

    def _commit_group(self) -> None:
        """Commit everything staged as one group, unless a group is being written: then `_flushed` starts the next."""
        self._scheduled = False
        if self._flushing or not self._waiting:
            return
        self._flushing = True
        waiting, self._waiting = self._waiting, []
        self._flushing_since, self._waiting_since = self._waiting_since, None
        pending = self._appender.take_pending()
        if self._rows.needed_by(pending.queues):
            self._rows.save_first(partial(self._rows_saved, pending, waiting))
        else:
            self._write_group(pending, waiting)

    def _rows_saved(self, pending: Pending, waiting: list[tuple[Done, int]], error: StorageError | None) -> None:
        """Write the group whose rows are on disk now. Without them it is not written: it could outlive its topic."""
        error = error or self.failure
        if error is None:
            self._write_group(pending, waiting)
        else:
            self._flushed(pending, waiting, error)

    def _write_group(self, pending: Pending, waiting: list[tuple[Done, int]]) -> None:
        if not self._options.durable and self._may_write_here(pending):
            # A copy into the page cache is cheaper than a change of thread.
            problem: StorageError | None = None
            try:
                self._write(pending)
            except StorageError as error:
                problem = error
            self._flushed(pending, waiting, problem)
            return

        def flushed(_: object, error: StorageError | None) -> None:
            self._flushed(pending, waiting, error)

        now = self._clock.now()
        self._thread.submit(lambda: self._write(pending, now), flushed, urgent=True)

    def _write(self, pending: Pending, now: Millis | None = None) -> None:
        """On the log thread, or on the loop in its place; one at a time."""
        began = self._nanoseconds()
        self._appender.flush(pending, now)
        self.times.flush.add((self._nanoseconds() - began) / 1e9)

    def _may_write_here(self, pending: Pending) -> bool:
        """Whether the loop may write while the log thread continues with its work.

        A sync does not delay a write behind the bytes that it syncs. A group that begins a new file belongs to the
        log thread: the file before must be synced first.
        """
        return self._thread.in_progress == self._shared_syncs and self._appender.extends_newest(pending)

    def _flushed(self, pending: Pending, waiting: list[tuple[Done, int]], error: StorageError | None) -> None:
        began, self._flushing_since, self._flushing = self._flushing_since, None, False
        if isinstance(error, (DiskFull, NoDescriptors)) and self.failure is None:
            self._undo(pending, waiting, error)
            return
        arrivals: Sequence[Arrival] = ()
        if error is not None:
            self.stop_writing(error)
        else:
            if began is not None:
                self.times.commit.add((self._nanoseconds() - began) / 1e9)
            arrivals = self._appender.publish(pending)
            if self._unsynced_since is None and pending:
                self._unsynced_since = self._clock.now()
        # The failure may also be an earlier one, such as that of saving the topic's row.
        error = self.failure
        with self._outbox:
            self._answer(waiting, error)
            self._outbox.write()
            if arrivals:
                self._on_arrivals(arrivals)
            if self._waiting:
                self._commit_group()  # on its way to the disk before what the pulls are answered is written
            elif self._idle is not None:
                self._idle.set()

    def _undo(self, pending: Pending, waiting: list[tuple[Done, int]], error: StorageError) -> None:
        """Discard a group of which nothing was stored, and everything staged behind it; ask all senders to repeat."""
        waiting, self._waiting = waiting + self._waiting, []
        self._waiting_since = None
        self.undone += 1
        self._on_undone(self._store.undo(pending))
        self._rows.cut_dropped(self._store.log_end)
        self.pause(error)
        self._answer(waiting, error)
        if self._idle is not None:
            self._idle.set()

    def stop_writing(self, error: StorageError) -> None:
        """Refuse all further appends: what was not flushed may or may not be on disk, so nothing may follow it."""
        if self.failure is not None:
            return
        self.failure = error
        self.refusing = True
        log.critical("the broker is read-only from now on: %s; reads continue, sends are refused", error)

    def sync_if_due(self, now: Millis) -> None:
        """Sync without waiting for the next append; needed without `durable` only."""
        relaxed_sync_ms = self._options.relaxed_sync_ms
        if self._unsynced_since is None or now - self._unsynced_since < relaxed_sync_ms or self.failure is not None:
            return
        self._unsynced_since = None

        self.sync(lambda _: None)

    def sync(self, done: Done) -> None:
        """Let the log thread sync what was written, then call `done`.

        Without `durable`, the event loop continues writing meanwhile. Every so often (`WAITED_FOR`) a second sync
        follows that writes wait for. It is short: the first one has taken everything else to the disk.
        """
        self._syncs += 1
        if self._options.durable or self._syncs % WAITED_FOR:
            self._sync(done, shared=1)
        else:
            self._sync(lambda error: self._sync(done, shared=0) if error is None else done(error), shared=1)

    def _sync(self, done: Done, shared: int) -> None:
        def synced(_: object, error: StorageError | None) -> None:
            self._shared_syncs -= shared
            if error is not None:
                self.stop_writing(error)
            done(error)

        self._shared_syncs += shared
        self._thread.submit(self._appender.sync, synced)

    async def drained(self) -> None:
        """Wait until nothing is pending."""
        if self._waiting or self._flushing:
            self._idle = self._idle or asyncio.Event()
            await self._idle.wait()
            self._idle = None

    def _answer(self, waiting: Sequence[tuple[Done, int]], error: StorageError | None) -> None:
        """Call all of them. One that fails does not keep the others from being called."""
        for done, size in waiting:
            self.pending_bytes -= size
            try:
                done(error)
            except Exception as fault:  # noqa: BLE001 - it is logged
                self._faults.write("an answer could not be sent", fault)
