"""A thread for the disk: jobs run on it one after the other, and their outcomes come back to the event loop.

A broker has three of them. The log thread writes messages, the row thread writes `state.db`, the recovery file and the
indexes, the search thread reads. None of them waits for another: where a message relies on a row, its group is given to
the log thread once the row is on disk (`GroupCommit`).

Jobs that only change `state.db` are committed in groups (`submit_rows`): consecutive ones share one transaction. Their
outcomes are handled on the loop in slices, so that a large group of them does not delay other clients.
"""

import asyncio
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar

from lanemq.clock import SystemClock
from lanemq.model.errors import DiskFull, StorageError, WriteFailed
from lanemq.net.serving.loop_slices import LoopSlices

log = logging.getLogger(__name__)

G = TypeVar("G")

MAX_ROW_JOBS = 500
"""Jobs of one transaction. Many: the first of them waits longer. Few: more transactions, each with its own sync."""


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


class DiskThread:
    """One thread for jobs of one kind: a slow disk does not block the event loop, and jobs keep their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop, name: str, on_full: Callable[[], bool] = lambda: False) -> None:
        """`on_full` is called on the thread if a job meets a full disk; if it made room, the job runs again."""
        self._loop = loop
        self._on_full = on_full
        self._jobs: queue.SimpleQueue[Any] = queue.SimpleQueue()
        self.in_progress = 0
        """On the loop: jobs that were submitted and whose `done` was not called yet."""
        self._slices = LoopSlices(loop, SystemClock().now_ns)
        self._outcomes: deque[tuple[_Finished, _Outcome]] = deque()
        """Outcomes that wait for a slice on the loop, in the order of their jobs."""
        self._thread = threading.Thread(target=self._run, name=f"lanemq-{name}", daemon=True)
        self._thread.start()

    def submit(
        self, job: Callable[[], G], done: Callable[[G | None, StorageError | None], None], *, urgent: bool = False
    ) -> None:
        """Run `job` on the thread, then `done` on the loop with its result or its storage error.

        `done` is called in the order of the jobs. If it is `urgent`, it does not wait for outcomes of earlier jobs that
        succeeded.
        """

        def run() -> None:
            self._loop.call_soon_threadsafe(self._one_finished, finished, self._outcome_of(job), urgent)

        def finished(result: G | None, error: StorageError | None) -> None:
            self.in_progress -= 1
            done(result, error)

        self.in_progress += 1
        self._jobs.put(run)

    def submit_rows(
        self, rows: RowTransactions, job: Callable[[], G], done: Callable[[G | None, StorageError | None], None]
    ) -> None:
        """As `submit`, for a job that only changes these rows: consecutive ones share a transaction.

        If one of them fails, they are repeated one by one, so that each has its own outcome.
        """

        def finished(result: G | None, error: StorageError | None) -> None:
            self.in_progress -= 1
            done(result, error)

        self.in_progress += 1
        self._jobs.put(_RowJob(rows, job, finished))

    def _one_finished(self, finished: _Finished, outcome: _Outcome, urgent: bool) -> None:
        if urgent or not self._outcomes:
            finished(*outcome)
        else:
            self._outcomes.append((finished, outcome))

    def _rows_finished(self, outcomes: Sequence[tuple[_Finished, _Outcome]]) -> None:
        """On the loop: handle outcomes in slices. An error may stop the writes, so nothing is answered before it."""
        waited = bool(self._outcomes)
        self._outcomes.extend(outcomes)
        if any(error is not None for _, (_, error) in outcomes):
            for _ in self._handle_outcomes():
                pass
        elif not waited:
            self._slices.begin(self._handle_outcomes())

    def _handle_outcomes(self) -> Iterator[None]:
        while self._outcomes:
            finished, outcome = self._outcomes.popleft()
            try:
                finished(*outcome)
            except Exception:
                log.exception("the outcome of a write could not be handled")
            yield

    async def call(self, job: Callable[[], G]) -> G:
        """Run `job` on the thread and return its result."""
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
        outcomes = self._outcomes_together(jobs) if len(jobs) > 1 else [self._outcome_of(first.job)]
        finished = [(each.finished, outcome) for each, outcome in zip(jobs, outcomes, strict=True)]
        self._loop.call_soon_threadsafe(self._rows_finished, finished)
        return self._jobs.get() if following is _NONE_YET else following

    def _outcomes_together(self, jobs: Sequence[_RowJob]) -> list[_Outcome]:
        try:
            with jobs[0].rows.together():
                return [(each.job(), None) for each in jobs]
        except Exception:  # noqa: BLE001 - each job shows its own error when it is repeated
            return [self._outcome_of(each.job) for each in jobs]

    def _outcome_of(self, job: Callable[[], Any]) -> _Outcome:
        outcome = outcome_of(job)
        return outcome_of(job) if isinstance(outcome[1], DiskFull) and self._on_full() else outcome


def _nothing_yet() -> None:
    """Stands for a job that was not taken yet."""


_NONE_YET: _Job = _nothing_yet


def outcome_of(job: Callable[[], G]) -> tuple[G | None, StorageError | None]:
    """The result of a job, or its error; an unexpected exception counts as a failed write."""
    try:
        return job(), None
    except StorageError as error:
        return None, error
    except Exception as error:  # must stop the writes, not the thread
        log.exception("a disk thread failed")
        return None, WriteFailed(f"a disk thread failed: {error!r}")
