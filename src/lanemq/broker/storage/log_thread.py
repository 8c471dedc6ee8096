"""The log thread: runs every write, one after the other, and returns results to the event loop."""

import asyncio
import logging
import queue
import threading
from collections.abc import Callable
from typing import TypeVar

from lanemq.model.errors import StorageError, WriteFailed

log = logging.getLogger(__name__)

G = TypeVar("G")


class LogThread:
    """One thread for all disk writes: a slow disk does not block the event loop, and writes keep their order."""

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self._loop = loop
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._in_progress = 0
        self._thread = threading.Thread(target=self._run, name="lanemq-log", daemon=True)
        self._thread.start()

    def submit(self, job: Callable[[], G], done: Callable[[G | None, StorageError | None], None]) -> None:
        """Run `job` on the log thread, then `done` on the loop with its result or its storage error."""

        def run() -> None:
            result, error = outcome_of(job)
            self._loop.call_soon_threadsafe(finished, result, error)

        def finished(result: G | None, error: StorageError | None) -> None:
            self._in_progress -= 1
            done(result, error)

        self._in_progress += 1
        self._jobs.put(run)

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
        while (job := self._jobs.get()) is not None:
            job()


def outcome_of(job: Callable[[], G]) -> tuple[G | None, StorageError | None]:
    """The result of a job, or its error; an unexpected exception counts as a failed write."""
    try:
        return job(), None
    except StorageError as error:
        return None, error
    except Exception as error:  # must stop the writes, not the thread
        log.exception("the log thread failed")
        return None, WriteFailed(f"the log thread failed: {error!r}")
