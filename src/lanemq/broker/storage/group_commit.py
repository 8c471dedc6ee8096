"""The one way into the log: group commit, and who waits for which write.

Handlers append on the event loop; positions and offsets are theirs at once. At the end of the loop turn
everything staged goes to the log thread as one write and one fdatasync; while that runs, the next group gathers.
Where one peer alone sends, nobody else's records would come in that turn: then the end of the read is the end.
`done` is called when the group is on disk, in the order of appending: a later record is never acknowledged
before an earlier one, and nothing is acknowledged that was not flushed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from lanemq.broker.storage.log_thread import LogThread
from lanemq.clock import Clock
from lanemq.log.appender import Arrival, NewRecords, Pending, Staged
from lanemq.log.store import Store
from lanemq.model.errors import BrokerBusy, StorageError
from lanemq.model.units import Millis
from lanemq.wire.codes import ResponseCode
from lanemq.wire.record import NO_HOST

log = logging.getLogger(__name__)

WAITING_BYTES = 512
"""What somebody who waits without storing anything is counted for, so that waiting is bounded too."""

Done = Callable[[StorageError | None], None]
"""Told when the group is on disk (None), or why it is not."""
OnArrivals = Callable[[Sequence[Arrival]], None]


class GroupCommit:
    """Bounded by bytes: above `max_pending_bytes` not yet on disk, an append is answered busy."""

    def __init__(
        self, store: Store, thread: LogThread, clock: Clock, on_arrivals: OnArrivals, max_pending_bytes: int
    ) -> None:
        self.pending_bytes = 0
        self.appended = 0
        self.failure: StorageError | None = None
        self.store_host = NO_HOST
        """Goes into every record: RocketMQ's clients find a message by it."""
        self._options = store.options
        self._log = store.appender
        self._thread = thread
        self._clock = clock
        self._on_arrivals = on_arrivals
        self._max_pending_bytes = max_pending_bytes
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Done, int]] = []
        self._flushing = False
        self._kicked = False
        self._reading = False
        self._waiting_before = 0
        self._last_sender = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._unsynced_since: Millis | None = None

    def append(self, topic: str, queue_id: int, items: NewRecords, born_host: bytes, size: int, done: Done) -> Staged:
        """Stages the records and says where they will be; true once `done(None)` was called."""
        self.refuse_if_failed()
        self._refuse_if_full(size)
        staged = self._log.stage(
            topic,
            queue_id,
            items,
            store_time=self._clock.wall(),
            born_host=born_host,
            store_host=self.store_host,
        )
        self.pending_bytes += size
        self.appended += len(items)
        self._wait(done, size)
        return staged

    def barrier(self, done: Done) -> None:
        """Calls `done` once everything appended so far is on disk."""
        self.refuse_if_failed()
        self._refuse_if_full(WAITING_BYTES)
        self.pending_bytes += WAITING_BYTES
        self._wait(done, WAITING_BYTES)

    def begin(self) -> None:
        """Requests of one read follow; `end` will say when all of them were handled."""
        self._reading = True
        self._waiting_before = len(self._waiting)

    def end(self, sender: int) -> None:
        """Commits at once if this peer was also the last one that stored something: there is no company to wait for."""
        self._reading = False
        if len(self._waiting) == self._waiting_before:
            return
        alone, self._last_sender = sender == self._last_sender, sender
        if self._flushing or self._kicked:
            return
        if alone:
            self._kick()
        else:
            self._kick_soon()

    def refuse_if_failed(self) -> None:
        """Raises why nothing can be stored any more; to be asked before anything else is changed."""
        # A new error each time: raising the kept one again would lengthen its traceback for ever.
        if self.failure is not None:
            raise type(self.failure)(*self.failure.args)

    async def drained(self) -> None:
        """Waits until nothing waits for the disk."""
        await self._idle.wait()

    def sync_if_due(self, now: Millis) -> None:
        """Relaxed mode: what was written last must not wait for the next append to be synced."""
        relaxed_sync_ms = self._options.relaxed_sync_ms
        if self._unsynced_since is None or now - self._unsynced_since < relaxed_sync_ms or self.failure is not None:
            return
        self._unsynced_since = None

        def synced(_: object, error: StorageError | None) -> None:
            if error is not None:
                self.stop_writing(error)

        self._thread.submit(self._log.sync, synced)

    def stop_writing(self, error: StorageError) -> None:
        """What was not flushed may or may not be on disk: nobody is told it is, and nothing follows it."""
        if self.failure is not None:
            return
        self.failure = error
        log.critical("the broker is read-only from now on: %s; reads go on, sends are refused", error)

    def _refuse_if_full(self, size: int) -> None:
        if self.pending_bytes and self.pending_bytes + size > self._max_pending_bytes:
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST] too much waits for the disk; try again")

    def _wait(self, done: Done, size: int) -> None:
        self._waiting.append((done, size))
        self._idle.clear()
        if not self._flushing and not self._kicked and not self._reading:
            self._kick_soon()

    def _kick_soon(self) -> None:
        self._kicked = True
        self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._kicked = False
        if self._flushing or not self._waiting:
            return
        self._flushing = True
        waiting, self._waiting = self._waiting, []
        pending, now = self._log.take_pending(), self._clock.now()
        if not self._options.durable and self._thread.idle:
            self._flushed(pending, waiting, self._write_here(pending))
            return

        def flushed(_: object, error: StorageError | None) -> None:
            self._flushed(pending, waiting, error)

        self._thread.submit(lambda: self._log.flush(pending, now), flushed)

    def _write_here(self, pending: Pending) -> StorageError | None:
        """Relaxed mode: a copy into the page cache is cheaper than a trip to the other thread; it syncs later.

        Only while that thread has nothing to do: what it was given before, a new topic's row say, comes first.
        """
        try:
            self._log.flush(pending)
        except StorageError as error:
            return error
        return None

    def _flushed(self, pending: Pending, waiting: list[tuple[Done, int]], error: StorageError | None) -> None:
        self._flushing = False
        arrivals: Sequence[Arrival] = ()
        if error is not None:
            self.stop_writing(error)
        else:
            arrivals = self._log.publish(pending)
            if self._unsynced_since is None and pending:
                self._unsynced_since = self._clock.now()
        # Or something the group counts on has failed before it: its topic's row.
        error = self.failure
        for done, size in waiting:
            self.pending_bytes -= size
            _tell(done, error)
        if arrivals:
            self._on_arrivals(arrivals)
        if self._waiting:
            self._kick()
        else:
            self._idle.set()


def _tell(done: Done, error: StorageError | None) -> None:
    """One listener that fails may not keep the others from their answer."""
    try:
        done(error)
    except Exception:
        log.exception("an answer could not be given")
