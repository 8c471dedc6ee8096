"""How a broker writes: the log thread, and group commit, in which many appends share one write and one fdatasync.

Handlers append on the event loop and know positions and offsets immediately. At the end of the loop iteration
everything staged goes to the log thread as one group; while that is written, the next group gathers. If only one peer
sends, no other records can join, so its group is committed at the end of its read.

Invariant: `done` is called when the group is on disk, in the order of appending. A later record is never acknowledged
before an earlier one, and nothing is acknowledged that was not flushed.

A full disk, and a lack of descriptors, pause the sends (`pause`): the group is undone with everything behind it, its
senders are asked to try again, and the housekeeping lets sends go on (`resume`). Any other failed write is final.

Jobs that only change `state.db` are committed in groups too (`submit_rows`): a flood of them costs the sends between
them one transaction, not hundreds. Their outcomes are handled on the loop in turns, so that a large group of them does
not delay other clients.
"""

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from lanemq.clock import Clock, SystemClock, nanoseconds_of
from lanemq.core.brokering.long_poll import LongPolls
from lanemq.core.brokering.refusals import RefusalCounts, RefusalReason
from lanemq.log.appender import Arrival, NewRecords, Pending, Staged
from lanemq.log.store import Store
from lanemq.model.errors import BrokerBusy, DiskFull, NoDescriptors, StorageError, WriteFailed
from lanemq.model.figures import Distribution
from lanemq.model.units import Millis, QueueOffset
from lanemq.net.turns import Turns
from lanemq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

G = TypeVar("G")

MAX_ROW_JOBS = 500
"""Jobs of one transaction. Many: the sends behind it wait longer. Few: more transactions, each with its own sync."""

BARRIER_BYTES = 512
"""What a barrier counts as, so that callers that store nothing are bounded too."""

Done = Callable[[StorageError | None], None]
"""Called with None when the group is on disk, or with the error that prevented it."""


class HeldPull(Hashable, Protocol):
    """A pull that waits for messages."""

    def wake(self) -> None:
        """Answer the pull."""


class RowTransactions(Protocol):
    """A database whose changes can be joined into one transaction."""

    def together(self) -> AbstractContextManager[None]: ...


class _RowJob(NamedTuple):
    rows: RowTransactions
    job: Callable[[], Any]
    finished: Callable[[Any, StorageError | None], None]


_Job: TypeAlias = Callable[[], None] | _RowJob | None


_Outcome: TypeAlias = tuple[Any, StorageError | None]
_Finished: TypeAlias = Callable[[Any, StorageError | None], None]


class LogThread:
    """One thread for all disk writes: a slow disk does not block the event loop, and writes keep their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self._in_progress = 0
        self._turns = Turns(loop, SystemClock().now_ns)
        self._outcomes: deque[tuple[_Finished, _Outcome]] = deque()
        """Outcomes that wait for a turn on the loop, in the order of their jobs."""
        self._thread = threading.Thread(target=self._run, name="lanemq-log", daemon=True)
        self._thread.start()

    def submit(
        self, job: Callable[[], G], done: Callable[[G | None, StorageError | None], None], *, urgent: bool = False
    ) -> None:
        """Run `job` on the log thread, then `done` on the loop with its result or its storage error.

        `done` is called in the order of the jobs. If it is `urgent`, it does not wait for outcomes of earlier jobs that
        succeeded.
        """

        def run() -> None:
            self._loop.call_soon_threadsafe(self._one_finished, finished, outcome_of(job), urgent)

        def finished(result: G | None, error: StorageError | None) -> None:
            self._in_progress -= 1
            done(result, error)

        self._in_progress += 1
        self._jobs.put(run)

    def submit_rows(
        self, rows: RowTransactions, job: Callable[[], G], done: Callable[[G | None, StorageError | None], None]
    ) -> None:
        """As `submit`, for a job that only changes these rows: consecutive ones share a transaction.

        If one of them fails, they are repeated one by one, so that each has its own outcome.
        """

        def finished(result: G | None, error: StorageError | None) -> None:
            self._in_progress -= 1
            done(result, error)

        self._in_progress += 1
        self._jobs.put(_RowJob(rows, job, finished))

    def _one_finished(self, finished: _Finished, outcome: _Outcome, urgent: bool) -> None:
        if urgent or not self._outcomes:
            finished(*outcome)
        else:
            self._outcomes.append((finished, outcome))

    def _rows_finished(self, outcomes: Sequence[tuple[_Finished, _Outcome]]) -> None:
        """On the loop: handle outcomes in turns. An error may stop the writes, so nothing is answered before it."""
        waited = bool(self._outcomes)
        self._outcomes.extend(outcomes)
        if any(error is not None for _, (_, error) in outcomes):
            self._handle_outcomes(None)
        elif not waited and self._handle_outcomes(self._turns.end()):
            self._turns.add(self._handle_outcomes)

    def _handle_outcomes(self, end: int | None) -> bool:
        """Handle outcomes until a time, or all of them; whether there are more."""
        while self._outcomes:
            finished, outcome = self._outcomes.popleft()
            try:
                finished(*outcome)
            except Exception:
                log.exception("the outcome of a write could not be handled")
            if end is not None and self._turns.nanoseconds() >= end:
                break
        return bool(self._outcomes)

    @property
    def idle(self) -> bool:
        """On the loop: whether every submitted job has run and its `done` was called."""
        return self._in_progress == 0

    async def call(self, job: Callable[[], G]) -> G:
        """Run `job` on the log thread and return its result."""
        future: asyncio.Future[G] = self._loop.create_future()

        def done(result: G | None, error: StorageError | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)  # type: ignore[arg-type]

        self.submit(job, done)
        return await future

    def stop(self) -> None:
        """End the thread after every submitted job has run."""
        self._jobs.put(None)
        self._thread.join()

    def _run(self) -> None:
        job: _Job = self._jobs.get()
        while job is not None:
            if isinstance(job, _RowJob):
                job = self._run_rows(job)
            else:
                job()
                job = self._jobs.get()

    def _run_rows(self, first: _RowJob) -> _Job:
        """Run a job together with those of its kind behind it; returns the job that follows them."""
        jobs, following = [first], None
        while len(jobs) < MAX_ROW_JOBS and not self._jobs.empty():
            following = self._jobs.get()
            if not (isinstance(following, _RowJob) and following.rows is first.rows):
                break
            jobs.append(following)
        else:
            following = _NONE_YET
        outcomes = _outcomes_together(jobs) if len(jobs) > 1 else [outcome_of(first.job)]
        finished = [(each.finished, outcome) for each, outcome in zip(jobs, outcomes, strict=True)]
        self._loop.call_soon_threadsafe(self._rows_finished, finished)
        return self._jobs.get() if following is _NONE_YET else following


def _nothing_yet() -> None:
    """Stands for a job that was not taken yet."""


_NONE_YET: _Job = _nothing_yet


def _outcomes_together(jobs: Sequence[_RowJob]) -> list[tuple[Any, StorageError | None]]:
    try:
        with jobs[0].rows.together():
            return [(each.job(), None) for each in jobs]
    except Exception:  # noqa: BLE001 - each job shows its own error when it is repeated
        return [outcome_of(each.job) for each in jobs]


def outcome_of(job: Callable[[], G]) -> tuple[G | None, StorageError | None]:
    """The result of a job, or its error; an unexpected exception counts as a failed write."""
    try:
        return job(), None
    except StorageError as error:
        return None, error
    except Exception as error:  # must stop the writes, not the thread
        log.exception("the log thread failed")
        return None, WriteFailed(f"the log thread failed: {error!r}")


class LateRows(Protocol):
    """Rows that must be on disk before the next message, and could not be written yet."""

    def save_late(self) -> None:
        """On the log thread: write them; raises if that fails again."""

    def cut_dropped(self, end: int) -> None:
        """Lower the positions of dropped topics to `end`, before the next message is written."""


class CommitTimes:
    """How long groups took, in seconds, one value for each."""

    def __init__(self, nanoseconds: Callable[[], int]) -> None:
        self.nanoseconds = nanoseconds
        self.commit = Distribution()
        """From the first append of a group to its records on disk."""
        self.flush = Distribution()
        """Write and sync."""
        self._first_append = self._of_group = 0

    def first_append(self) -> None:
        self._first_append = self.nanoseconds()

    def group_taken(self) -> None:
        self._of_group = self._first_append

    def flushed(self, began: int) -> None:
        self.flush.add((self.nanoseconds() - began) / 1e9)

    def on_disk(self) -> None:
        self.commit.add((self.nanoseconds() - self._of_group) / 1e9)


class GroupCommit:
    """The only writer of messages. While more than `max_pending_bytes` are not on disk, it refuses with "busy"."""

    def __init__(
        self,
        store: Store,
        thread: LogThread,
        clock: Clock,
        polls: "LongPolls[HeldPull]",
        store_host: bytes,
        max_pending_bytes: int,
        *,
        rows: LateRows,
        refusals: RefusalCounts,
        on_undone: Callable[[Sequence[bytes]], None],
    ) -> None:
        """`store_host` is the broker's address in every record: RocketMQ's clients find a message by it.

        `on_undone` is called with the records of an undone group, before their senders are answered.
        """
        self.undone = 0
        """How many groups were undone; what was copied before may contain what they had staged."""
        self.paused: StorageError | None = None
        """Why sends are refused for now, as busy; see `pause`."""
        self._refusing = False
        self._rows = rows
        self._refusals = refusals
        self._on_undone = on_undone
        self._store = store
        self.pending_bytes = 0
        self.appended = 0
        self.failure: StorageError | None = None
        """The failed write after which the broker is read-only until a restart."""
        self.times = CommitTimes(nanoseconds_of(clock))
        self._options = store.options
        self._log = store.appender
        self._thread = thread
        self._clock = clock
        self._polls = polls
        self._store_host = store_host
        self._max_pending_bytes = max_pending_bytes
        self._loop = asyncio.get_running_loop()
        self._waiting: list[tuple[Done, int]] = []
        self._waiting_since: Millis | None = None
        self._flushing_since: Millis | None = None
        self._flushing = False
        self._kicked = False
        self._reading = False
        self._waiting_before = 0
        self._last_sender = 0
        self._idle = asyncio.Event()
        self._idle.set()
        self._unsynced_since: Millis | None = None

    def append(self, topic: str, queue_id: int, items: NewRecords, born_host: bytes, size: int, done: Done) -> Staged:
        """Stage records and return where they will be, which holds once `done(None)` is called."""
        if self._refusing:
            self.refuse_sends()
        self._refuse_if_full(size)
        staged = self._log.stage(
            topic,
            queue_id,
            items,
            store_time=self._clock.wall(),
            born_host=born_host,
            store_host=self._store_host,
        )
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
        return 0 if since is None else now - since

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

    @property
    def refusing(self) -> bool:
        """Whether messages are refused, for now or for good."""
        return self._refusing

    def pause(self, why: StorageError) -> None:
        """Refuse sends as busy until `resume`. Reads, commits, leases and deletions go on."""
        if self.paused is None:
            log.error("sends are refused for now: %s", why)
        self.paused = why
        self._refusing = True

    def resume(self) -> None:
        """Accept sends again."""
        if self.paused is not None:
            log.warning("sends are accepted again")
            self.paused = None
            self._refusing = self.failure is not None

    def _refuse_if_full(self, size: int) -> None:
        if self.pending_bytes and self.pending_bytes + size > self._max_pending_bytes:
            self._refusals.add(RefusalReason.BUSY)
            raise BrokerBusy(ResponseCode.SYSTEM_BUSY, "[REJECTREQUEST] too much waits for the disk; try again")

    def _wait(self, done: Done, size: int) -> None:
        if self._waiting_since is None:
            self._waiting_since = self._clock.now()
            self.times.first_append()
        self._waiting.append((done, size))
        self._idle.clear()
        if not self._flushing and not self._kicked and not self._reading:
            self._kick_soon()

    def begin(self) -> None:
        """Called before the server handles the requests of one socket read."""
        self._reading = True
        self._waiting_before = len(self._waiting)

    def end(self, sender: int) -> None:
        """Called after the server handled one socket read.

        Commits immediately if this peer was also the last one that stored something: no others are likely to join.
        """
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

    def _kick_soon(self) -> None:
        """Start the next group commit at the end of this loop iteration, so that more appends can join."""
        self._kicked = True
        self._loop.call_soon(self._kick)

    def _kick(self) -> None:
        """Commit everything staged as one group, unless a group is being written: then `_flushed` starts the next."""
        self._kicked = False
        if self._flushing or not self._waiting:
            return
        self._flushing = True
        waiting, self._waiting = self._waiting, []
        self._flushing_since, self._waiting_since = self._waiting_since, None
        self.times.group_taken()
        pending, now = self._log.take_pending(), self._clock.now()
        if not self._options.durable and self._thread.idle:
            self._flushed(pending, waiting, self._write_here(pending))
            return

        def flushed(_: object, error: StorageError | None) -> None:
            self._flushed(pending, waiting, error)

        self._thread.submit(lambda: self._write(pending, now), flushed, urgent=True)

    def _write(self, pending: Pending, now: Millis | None = None) -> None:
        """On the log thread, or on the loop in its place; one at a time. Rows that messages rely on come first."""
        began = self.times.nanoseconds()
        self._rows.save_late()
        self._log.flush(pending, now)
        self.times.flushed(began)

    def _write_here(self, pending: Pending) -> StorageError | None:
        """Write on the loop, without `durable`: a copy into the page cache is cheaper than a change of thread.

        Only while the log thread is idle: earlier jobs, such as saving the row of a new topic, come first.
        """
        try:
            self._write(pending)
        except StorageError as error:
            return error
        return None

    def _flushed(self, pending: Pending, waiting: list[tuple[Done, int]], error: StorageError | None) -> None:
        self._flushing = False
        self._flushing_since = None
        if isinstance(error, (DiskFull, NoDescriptors)) and self.failure is None:
            self._undo(pending, waiting, error)
            return
        arrivals: Sequence[Arrival] = ()
        if error is not None:
            self.stop_writing(error)
        else:
            self.times.on_disk()
            arrivals = self._log.publish(pending)
            if self._unsynced_since is None and pending:
                self._unsynced_since = self._clock.now()
        # The failure may also be an earlier one, such as that of saving the topic's row.
        error = self.failure
        for done, size in waiting:
            self.pending_bytes -= size
            _call(done, error)
        for arrival in arrivals:
            end = QueueOffset(arrival.max_offset)
            for held in self._polls.arrived(arrival.topic, arrival.queue_id, end, arrival.tag_codes):
                held.wake()
        if self._waiting:
            self._kick()
        else:
            self._idle.set()

    def _undo(self, pending: Pending, waiting: list[tuple[Done, int]], error: StorageError) -> None:
        """Discard a group of which nothing was stored, and everything staged behind it; ask all senders to repeat."""
        waiting, self._waiting = waiting + self._waiting, []
        self._waiting_since = None
        self.undone += 1
        self._on_undone(self._store.undo(pending))
        self._rows.cut_dropped(self._store.log_end)
        self.pause(error)
        for done, size in waiting:
            self.pending_bytes -= size
            _call(done, error)
        self._idle.set()

    def stop_writing(self, error: StorageError) -> None:
        """Refuse all further appends: what was not flushed may or may not be on disk, so nothing may follow it."""
        if self.failure is not None:
            return
        self.failure = error
        self._refusing = True
        log.critical("the broker is read-only from now on: %s; reads go on, sends are refused", error)

    def sync_if_due(self, now: Millis) -> None:
        """Sync without waiting for the next append; needed without `durable` only."""
        relaxed_sync_ms = self._options.relaxed_sync_ms
        if self._unsynced_since is None or now - self._unsynced_since < relaxed_sync_ms or self.failure is not None:
            return
        self._unsynced_since = None

        def synced(_: object, error: StorageError | None) -> None:
            if error is not None:
                self.stop_writing(error)

        self._thread.submit(self._log.sync, synced)

    async def drained(self) -> None:
        """Wait until nothing is pending."""
        await self._idle.wait()


def _call(done: Done, error: StorageError | None) -> None:
    """A callback that fails must not keep the others from being called."""
    try:
        done(error)
    except Exception:
        log.exception("an answer could not be sent")
