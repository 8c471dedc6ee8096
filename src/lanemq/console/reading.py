"""How the console reads from the brokers: few requests at a time, each answer shared by all pages that ask for it.

Two limits keep the console from slowing the brokers, however many pages are open: `MAX_READS` threads read, and an
answer newer than its `max_age` is used again. Searches, which may take seconds, have as many threads of their own, so
that they do not delay other pages. A further thread takes snapshots. After each one it pauses ten times as long, up to
ten seconds (`Watch`). So the brokers never have more than five requests of a console at once, except while a snapshot
asks members for their held lanes, four at a time.

Looking needs no sign-in, so one client may ask for more than the console can read. Each address has a share of the
reads that may wait, and addresses take turns.
"""

import asyncio
import contextlib
import logging
from collections import Counter, deque
from collections.abc import AsyncIterator, Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from contextvars import ContextVar
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast

from lanemq.clock import Clock
from lanemq.console.snapshot import Snapshot, SnapshotReader
from lanemq.console.trends import Trends
from lanemq.model.errors import LaneError
from lanemq.model.units import Millis

T = TypeVar("T")
log = logging.getLogger(__name__)

MAX_READS = 2
"""Threads that read for pages. More would answer many pages sooner and load the brokers more."""
MAX_WAITING = 64
"""Reads and changes that wait for a thread or have one; further ones are refused, so that a burst of requests does not
pile up. A page that is refused says so, and nothing was changed."""
MAX_WAITING_PER_CLIENT = 32
"""Those of one address. Few: people behind a proxy that hides their addresses are refused. Many: one client can take
those of all."""
MAX_SEARCHES = 16
"""Searches that wait or run; a search reads for up to five seconds."""
MAX_SEARCHES_PER_CLIENT = 4
MAX_ANSWERS = 256
"""Answers that are kept."""
SHARE_OF_TIME = 10
"""The pause between two snapshots is so many times as long as the last one took, up to `MAX_PAUSE`."""
MAX_PAUSE = 10.0
"""Seconds that a slow snapshot may delay the next one. One slow member makes a snapshot wait for its answer, and would
otherwise leave pages a minute old."""
SILENT_SECONDS = 2.0
"""A snapshot that takes longer is reported to the pages while it is being taken: a frozen broker does not refuse, and a
request to it fails only after seconds."""
NO_ANSWER = "no answer for some seconds"
SLOW_FACTOR = 3
"""Unless the last one took long, too: then so many times as long as that one. Many groups take their time."""
IDLE_FACTOR = 5
"""While no page is open, snapshots are taken so much less often."""


CLIENT: ContextVar[str] = ContextVar("client", default="")
"""The address for which the current task reads, which `Protection` sets; empty: the console itself."""


class ConsoleBusy(LaneError):
    """Too many pages ask at once; asking again later helps."""

    retriable = True


@dataclass(slots=True)
class _Answer:
    read_at: Millis
    value: asyncio.Future[Any]


@dataclass(slots=True)
class _Work:
    """A read or a change that waits for a thread."""

    run: Callable[[], Any]
    result: asyncio.Future[Any]


class ConsoleReads:
    """Runs blocking reads on a few threads. Used from one event loop."""

    def __init__(
        self,
        clock: Clock,
        *,
        threads: int = MAX_READS,
        most: int = MAX_WAITING,
        per_client: int = MAX_WAITING_PER_CLIENT,
    ) -> None:
        """`most`: how many may wait or run, and `per_client` how many of one address."""
        self._clock = clock
        self._idle = threads
        self._most = most
        self._per_client = per_client
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="console-read")
        self._answers: dict[Hashable, _Answer] = {}
        self._taken = Counter[str]()
        """What waits or runs, by address."""
        self._waiting: dict[str, deque[_Work]] = {}
        """What waits, by address; the first address is the next to get a thread."""

    async def ask(self, question: Hashable, read: Callable[[], T], *, max_age: float = 1.0) -> T:
        """The answer to a question: one that is not older than `max_age` seconds, or a new one.

        Pages that ask the same at the same time share one read. A read that fails is not kept.
        """
        known = self._answers.get(question)
        if known is not None and (not known.value.done() or self._clock.now() - known.read_at < max_age * 1000):
            return cast(T, await asyncio.shield(known.value))
        running = self._begin(read)
        self._answers[question] = _Answer(self._clock.now(), running)
        running.add_done_callback(lambda done: self._ended(question, done))
        self._forget_old()
        return await asyncio.shield(running)

    async def read(self, read: Callable[[], T]) -> T:
        """Runs a read whose answer is for one page only, such as whether a broker accepts a user."""
        return await self._begin(read)

    async def do(self, change: Callable[[], T]) -> T:
        """Runs a change. What was read before it is forgotten."""
        try:
            return await self._begin(change)
        finally:
            self._answers.clear()

    def _begin(self, run: Callable[[], T]) -> "asyncio.Future[T]":
        """Gives the work to a thread. It counts until the thread is done with it, even if its page was closed."""
        client = CLIENT.get()
        if self._taken.total() >= self._most:
            raise ConsoleBusy(f"{self._taken.total()} pages wait for the brokers: try again in a few seconds")
        if client and self._taken[client] >= self._per_client:
            raise ConsoleBusy(
                f"{self._taken[client]} pages of {client} wait for the brokers, the limit for one address: try again "
                f"in a few seconds"
            )
        work = _Work(run, asyncio.get_running_loop().create_future())
        self._taken[client] += 1
        self._waiting.setdefault(client, deque()).append(work)
        self._start_waiting()
        return work.result

    def _start_waiting(self) -> None:
        """Gives idle threads to what waits, one read of each address in turn."""
        loop = asyncio.get_running_loop()
        while self._idle and self._waiting:
            client = next(iter(self._waiting))
            waiting = self._waiting.pop(client)
            work = waiting.popleft()
            if waiting:
                self._waiting[client] = waiting
            if work.result.cancelled():
                self._left(client)
                continue
            self._idle -= 1
            running = self._threads.submit(work.run)
            ended = partial(self._done, client, work)
            running.add_done_callback(partial(loop.call_soon_threadsafe, ended))

    def _done(self, client: str, work: _Work, done: "Future[Any]") -> None:
        self._idle += 1
        self._left(client)
        if done.cancelled():
            work.result.cancel()
        elif not work.result.done():  # its page may be closed
            error = done.exception()
            work.result.set_result(done.result()) if error is None else work.result.set_exception(error)
        self._start_waiting()

    def _left(self, client: str) -> None:
        self._taken[client] -= 1
        if not self._taken[client]:
            del self._taken[client]

    def _ended(self, question: Hashable, done: asyncio.Future[Any]) -> None:
        known = self._answers.get(question)
        if known is None or known.value is not done:
            return
        known.read_at = self._clock.now()
        if done.cancelled() or done.exception() is not None:
            del self._answers[question]

    def _forget_old(self) -> None:
        while len(self._answers) > MAX_ANSWERS:
            del self._answers[next(iter(self._answers))]

    def close(self) -> None:
        for waiting in self._waiting.values():
            for work in waiting:
                work.result.cancel()
        self._waiting.clear()
        self._threads.shutdown(wait=True, cancel_futures=True)


class Watch:
    """Takes snapshots at intervals and wakes the pages that wait for the next one."""

    def __init__(self, reader: SnapshotReader, clock: Clock, *, every: float) -> None:
        """`every`: seconds between two snapshots while a page is open."""
        self._reader = reader
        self._clock = clock
        self._every = every
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="console-watch")
        self._next = asyncio.Event()
        self._hurry = asyncio.Event()
        self._watchers = 0
        self._begun = self._taken = 0
        self.trends = Trends()
        self.now = Snapshot(clock.wall(), error="the brokers have not been read yet")
        """The newest snapshot; while the brokers do not answer the last one that they did, with an error."""
        self._last_good: Snapshot | None = None
        self.last_read: Millis | None = None
        """When the newest snapshot without an error was taken; None before the first."""

    async def run(self) -> None:
        """Takes snapshots until it is cancelled."""
        loop = asyncio.get_running_loop()
        try:
            while True:
                self._hurry.clear()
                self._begun += 1
                taking = loop.run_in_executor(self._thread, self._reader.take)
                await asyncio.wait([taking], timeout=self._patience())
                if not taking.done():
                    self._publish(self._kept(Snapshot(self._clock.wall(), self.now.took, error=NO_ANSWER)))
                found = await taking
                if not found.error:
                    self.last_read = found.taken
                    self._last_good = found
                self.trends.add(found)
                self._taken = self._begun
                self._publish(self._kept(found) if found.error else found)
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._hurry.wait(), self.pause())
        finally:
            self._thread.shutdown(wait=True, cancel_futures=True)
            self._reader.close()

    def _patience(self) -> float:
        last = 0.0 if self._last_good is None else self._last_good.took
        return max(SILENT_SECONDS, last * SLOW_FACTOR)

    def _kept(self, failed: Snapshot) -> Snapshot:
        """What was read last, with the reason why it could not be read again."""
        if self._last_good is None:
            return failed
        return replace(
            self._last_good, taken=failed.taken, took=failed.took, error=failed.error, refused=failed.refused
        )

    def _publish(self, found: Snapshot) -> None:
        """Shows it to the pages that wait for the next snapshot."""
        self.now = found
        woken, self._next = self._next, asyncio.Event()
        woken.set()

    def pause(self) -> float:
        """Seconds until the next snapshot, unless a page asks for one."""
        wanted = self._every if self._watchers else self._every * IDLE_FACTOR
        return max(wanted, min(self.now.took * SHARE_OF_TIME, MAX_PAUSE))

    async def fresh(self) -> Snapshot:
        """The newest snapshot; takes one now if the last is older than an open page would see."""
        if self._clock.wall() - self.now.taken > self._every * 1000 or self.now.error:
            following = self._next
            self._hurry.set()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(following.wait(), SILENT_SECONDS if self.now.error and self._last_good else 5)
        return self.now

    async def changed(self) -> None:
        """Takes a snapshot now, because something was changed, and waits for it.

        One that is being taken may have been read before the change, so the one after it is waited for.
        """
        wanted = self._begun + 1
        self._hurry.set()
        while self._taken < wanted:
            await self._next.wait()

    @contextlib.asynccontextmanager
    async def open_page(self) -> AsyncIterator[None]:
        """While a page is open, snapshots are taken more often."""
        self._watchers += 1
        self._hurry.set()
        try:
            yield
        finally:
            self._watchers -= 1

    async def next(self) -> Snapshot:
        """Waits for the next snapshot."""
        await self._next.wait()
        return self.now
