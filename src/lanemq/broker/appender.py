"""The one way into the log: group commit, and who waits for which write.

Handlers append on the event loop; positions and offsets are theirs at once. At the end of the loop turn
everything staged goes to the log thread as one write and one fdatasync; while that runs, the next group gathers.
`done` is called when the group is on disk, in the order of appending: a later record is never acknowledged
before an earlier one, and nothing is acknowledged that was not flushed.
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from lanemq.broker.log_thread import LogThread
from lanemq.clock import Clock
from lanemq.log.staging import Arrival, NewRecord, Pending, Staged
from lanemq.log.store import Store
from lanemq.model.errors import BrokerBusy, StorageError
from lanemq.wire.codes import ResponseCode
from lanemq.wire.hosts import NO_HOST

log = logging.getLogger(__name__)

Done = Callable[[StorageError | None], None]
OnArrivals = Callable[[Sequence[Arrival]], None]


class Appender:
    """Bounded by bytes: above `max_pending_bytes` not yet on disk, an append is answered busy."""

    def __init__(
        self, store: Store, thread: LogThread, clock: Clock, on_arrivals: OnArrivals, max_pending_bytes: int
    ) -> None:
        self.pending_bytes = 0
        self.appended = 0
        self.failure: StorageError | None = None
        self.store_host = NO_HOST
        """Goes into every record: RocketMQ's clients find a message by it."""
        self._store = store
        self._thread = thread
        self._clock = clock
        self._on_arrivals = on_arrivals
        self._max_pending_bytes = max_pending_bytes
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Done, int]] = []
        self._flushing = False
        self._kicked = False
        self._idle = asyncio.Event()
        self._idle.set()

    def append(
        self, topic: str, queue_id: int, items: Sequence[NewRecord], born_host: bytes, size: int, done: Done
    ) -> Staged:
        """Stages the records and says where they will be; true once `done(None)` was called."""
        if self.failure is not None:
            raise self.failure
        if self.pending_bytes + size > self._max_pending_bytes and self.pending_bytes:
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST] too much waits for the disk; try again")
        staged = self._store.stage(
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
        if self.failure is not None:
            raise self.failure
        self._wait(done, 0)

    async def drained(self) -> None:
        """Waits until nothing waits for the disk."""
        await self._idle.wait()

    def _wait(self, done: Done, size: int) -> None:
        self._waiting.append((done, size))
        self._idle.clear()
        if not self._flushing and not self._kicked:
            self._kicked = True
            self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        self._kicked = False
        if self._flushing or not self._waiting:
            return
        self._flushing = True
        waiting, self._waiting = self._waiting, []
        pending = self._store.take_pending()

        def flushed(_: object, error: StorageError | None) -> None:
            self._flushed(pending, waiting, error)

        self._thread.submit(lambda: self._store.flush(pending), flushed)

    def _flushed(self, pending: Pending, waiting: list[tuple[Done, int]], error: StorageError | None) -> None:
        self._flushing = False
        if error is not None:
            self._stop_writing(error)
        arrivals = self._store.publish(pending) if error is None else ()
        for done, size in waiting:
            self.pending_bytes -= size
            done(error)
        if arrivals:
            self._on_arrivals(arrivals)
        if self._waiting:
            self._kick()
        else:
            self._idle.set()

    def _stop_writing(self, error: StorageError) -> None:
        """What was not flushed may or may not be on disk: nobody is told it is, and nothing follows it."""
        self.failure = error
        log.critical("the broker is read-only from now on: %s; reads go on, sends are refused", error)
        waiting, self._waiting = self._waiting, []
        for done, size in waiting:
            self.pending_bytes -= size
            done(error)
