"""The lane scheduler for many threads: one mutex, held for microseconds, and workers that sleep until there is work.

`core/consuming/scheduler` alone decides what may run. `with scheduler as lanes:` is the way to it: the mutex is
held inside the block; at its end, workers are woken and callbacks called as `LaneScheduler.take_changes` says. What
waits is here: workers wait for runs, and the event loop for a queue to be drained. No thread ever waits for a lane or a
queue. The two calls that a program makes on its main thread (`take_run`, `finish`) take the mutex itself: a signal
handler may raise inside `__enter__`, after the mutex is taken and before the block begins, and it would stay taken.
A signal handler or finalizer of the program may interrupt a thread that holds the mutex, and use the consumer. It gets
the mutex, which is reentrant, and finds `_inside` set: to wait would be to wait for itself. So `view` sees nothing, and
other calls raise.
A worker announces its sleep under the mutex, so that it misses no change, and sleeps without it.

Which workers are woken: a put wakes as many as its messages need. A worker that found work wakes one more while there
is more, because one event can free several lanes; a worker that ends a run asks for the next itself. While runs wait
behind others of a busy worker, one sleeping worker watches: it looks again after a few milliseconds (`busy_workers`).
If the watcher finds work or is interrupted, it wakes another in its place.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeAlias

from lanemq.client.bell import LOOK_AGAIN_SECONDS, Bell
from lanemq.client.message import Message
from lanemq.clock import Clock, nanoseconds_of
from lanemq.core.consuming.busy_workers import LATE_MS, Worker
from lanemq.core.consuming.lane_queue import MemberProgress
from lanemq.core.consuming.runs import Finished, LaneRun, Outcome
from lanemq.core.consuming.scheduler import LaneChanges, LaneScheduler
from lanemq.core.consuming.views import QueueView
from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, Seconds, to_millis
from lanemq.wire.lane_bodies import FrontClientsBody

MessageRun: TypeAlias = LaneRun[Message]
MessageFinished: TypeAlias = Finished[Message]
MessageWorker: TypeAlias = Worker[Message]
Callback: TypeAlias = Callable[[], None]

MAX_SLEEP_MS = 3_600_000
"""Longest sleep of a worker that waits for a held lane. The operating system refuses to wait for centuries, which a
handler may ask for."""


def _do_nothing() -> None:
    """What is called before `call_on_parked`."""


class Scheduler:
    """A lane scheduler that the event loop and the worker threads of one handler share."""

    def __init__(self, lanes: LaneScheduler[Message], clock: Clock) -> None:
        self._lanes = lanes
        self._clock = clock
        self._nanos = nanoseconds_of(clock)
        self._mutex = threading.RLock()
        # Whether the thread that has the mutex is changing the lanes.
        self._inside = False
        # Rings for workers that sleep. Those that were woken and do not run yet will look for work.
        self._changed = Bell()
        # Whether one of the sleeping workers watches the busy ones.
        self._watched = False
        self._closed = False
        self._ending = Bell()
        # Pull loops with a full cache: what to call once no more than so many messages are cached.
        self._waiting_for_room: dict[MessageQueue, tuple[int, Callback]] = {}
        # What to call whenever a run of a draining queue ends.
        self._on_run_end: dict[MessageQueue, Callback] = {}
        self._on_parked: Callback = _do_nothing

    def __enter__(self) -> LaneScheduler[Message]:
        """Holds the mutex: nothing inside may wait, log, or call code of the user."""
        self._mutex.acquire()
        if self._inside:
            self._mutex.release()
            raise interrupts_itself()
        self._inside = True
        return self._lanes

    def __exit__(self, *_: object) -> None:
        try:
            callbacks = self._act_on_changes()
        finally:
            self._inside = False
            self._mutex.release()
        for callback in callbacks:
            callback()

    # for workers

    def take_runs(self, worker: MessageWorker) -> bool:
        """Ends the worker's successful runs and gives it the next; waits for them. False if the scheduler is closed."""
        returned_ns = self._nanos()
        with self as lanes:
            lanes.worker_returned(worker, now=self._clock.now(), returned_ns=returned_ns)
            filled = not self._closed and self._fill(worker)
        while not (filled or self._closed):
            with self as lanes:
                filled = self._fill(worker)
                ready = filled or self._closed or lanes.has_changes
                sleep = None if ready else self._announce_sleep(None)
            if sleep is not None:
                self._sleep_until_changed(sleep)
        return filled

    def take_run(self, timeout: Seconds | None = None) -> MessageRun | None:
        """Waits for a single run. None if the scheduler is closed, or nothing came within `timeout` seconds."""
        slept, deadline = False, self._deadline(timeout)
        while not self._closed:
            with self._mutex:
                if self._inside:
                    raise interrupts_itself()
                self._inside = True
                try:
                    run = self._single_run(wake_another=slept)
                    ended = run is not None or (deadline is not None and self._clock.now() >= deadline)
                    ready = ended or self._closed or self._lanes.has_changes
                    sleep = None if ready else self._announce_sleep(self._look_again(deadline))
                    callbacks = self._act_on_changes()
                finally:
                    self._inside = False
            for callback in callbacks:
                callback()
            if ended:
                return run
            if sleep is not None:
                slept = True
                self._sleep_until_changed(sleep)
        return None

    def finish(
        self, run: MessageRun, outcome: Outcome, done: int = 0, reason: str = "", concerned: int | None = None
    ) -> MessageFinished:
        """Ends a run. The caller must do what the result asks for; a run that was taken over is ignored."""
        with self._mutex:
            if self._inside:
                raise interrupts_itself()
            self._inside = True
            try:
                now = self._clock.now()
                finished = self._lanes.finish(run, outcome, done=done, concerned=concerned, now=now, reason=reason)
                callbacks = self._act_on_changes()
            finally:
                self._inside = False
        for callback in callbacks:
            callback()
        return finished

    def sent_back(self, run: MessageRun, ok: Sequence[bool]) -> MessageFinished:
        """Reports which messages of `Finished.send_back` the broker has now."""
        with self as lanes:
            return lanes.sent_back(run, ok, now=self._clock.now())

    def leave(self, worker: MessageWorker) -> None:
        """Called by a worker that ends early: returns the runs that it has not ended to their lanes."""
        with self as lanes:
            lanes.leave(worker, now=self._clock.now(), now_ns=self._nanos())

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Makes every waiting worker return."""
        with self._mutex:
            self._closed = True
            self._ending.ring()
            self._wake_all()

    def wait_until_closed(self, timeout: float) -> bool:
        """Waits for `close`, for at most `timeout` seconds."""
        return self._ending.wait_until(lambda: self._closed, timeout)

    # for the event loop

    def progress(self, queue: MessageQueue) -> MemberProgress:
        """How far the handlers have come in an assigned queue, including what runs in progress have finished."""
        with self as lanes:
            lanes.catch_up(now=self._clock.now())
            return lanes[queue].progress()

    async def drained(self, queue: MessageQueue, timeout_ms: int) -> bool:
        """Waits until no handler of a draining queue runs; returns whether that is so."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._mutex:
            self._on_run_end[queue] = lambda: _set_from_thread(loop, event)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self._is_drained(queue):
                    await event.wait()  # set by every run that ends, not only by the last one
                    event.clear()
        except TimeoutError:
            pass
        with self._mutex:
            self._on_run_end.pop(queue, None)
        return self._is_drained(queue)

    def _is_drained(self, queue: MessageQueue) -> bool:
        with self as lanes:
            return lanes.is_drained(queue)

    def call_below(self, queue: MessageQueue, count: int, callback: Callback) -> None:
        """Calls back once, from a worker's thread, when no more than `count` messages are cached."""
        with self._mutex:
            self._waiting_for_room[queue] = count, callback

    def call_on_parked(self, callback: Callback) -> None:
        """Calls back, from any thread, whenever parked lanes have something to send to the broker."""
        with self._mutex:
            self._on_parked = callback

    def view(self, queue: MessageQueue) -> QueueView | None:
        """A queue at this moment; None if it was lost, or if this thread was interrupted in the middle of a change."""
        with self._mutex:
            return None if self._inside else self._lanes.view(queue)

    def client_of(self, queue: MessageQueue, key: str | None) -> str:
        """Who runs a lane that was handed out; empty if it runs here."""
        return ""

    def clients(self) -> FrontClientsBody | None:
        """The clients to which lanes are handed out; None if lanes run here."""
        return None

    # under the mutex

    def _act_on_changes(self) -> Sequence[Callback]:
        """Wakes workers as needed; returns the callbacks to call once the mutex is released."""
        return self._act_on(self._lanes.take_changes()) if self._lanes.has_changes else ()

    def _act_on(self, changes: LaneChanges) -> list[Callback]:
        workers = changes.workers
        if changes.arrived:
            # At least one, if no watcher looks again soon.
            workers += max(self._lanes.busy.workers_for(changes.arrived), 0 if self._watched else 1)
        if workers:
            self._wake(workers)
        callbacks, parked = [], changes.to_fetch
        for queue in changes.queues:
            if queue in self._waiting_for_room and self._has_room(queue):
                callbacks.append(self._waiting_for_room.pop(queue)[1])
            if queue in self._on_run_end:
                callbacks.append(self._on_run_end[queue])
            parked = parked or (queue in self._lanes and self._lanes[queue].aside.news)
        if parked:
            callbacks.append(self._on_parked)
        return callbacks

    def _has_room(self, queue: MessageQueue) -> bool:
        """Whether the pull loop of a queue should look again; also if the queue was lost."""
        return queue not in self._lanes or self._lanes[queue].cached().count <= self._waiting_for_room[queue][0]

    def _fill(self, worker: MessageWorker) -> bool:
        """Gives a worker runs; wakes another if there is more, because this one may have been the watcher."""
        filled = self._lanes.begin_runs(worker, now=self._clock.now(), now_ns=self._nanos())
        is_more = filled and not self._watched and (filled > 1 or self._lanes.has_work(besides=worker))
        if is_more and not self._changed.is_waking:
            self._wake(1)
        return filled > 0

    def _single_run(self, *, wake_another: bool) -> MessageRun | None:
        run = self._lanes.next_run(now=self._clock.now())
        if not isinstance(run, LaneRun):
            return None
        if wake_another:
            self._wake(1)
        return run

    def _deadline(self, timeout: Seconds | None) -> Millis | None:
        return None if timeout is None else Millis(self._clock.now() + to_millis(timeout))

    def _pause(self, deadline: Millis | None) -> float | None:
        """Seconds until there may be work, or until the caller should look again; None: until woken.

        Never 0: while a quick worker is enough, a held key whose time has come is left to it.
        """
        ends = [end for end in (self._lanes.wait().until, deadline) if end is not None]
        return max(1, min(min(ends) - self._clock.now(), MAX_SLEEP_MS)) / 1000 if ends else None

    def _must_watch(self) -> bool:
        """Whether a worker that goes to sleep must watch, because runs wait behind others, or for a worker."""
        return not self._watched and self._lanes.has_work()

    def _look_again(self, deadline: Millis | None) -> Millis:
        """When a thread of the program looks again: a signal handler may have ended the sleep of one that was woken."""
        soon = Millis(self._clock.now() + to_millis(LOOK_AGAIN_SECONDS))
        return soon if deadline is None else min(soon, deadline)

    def _announce_sleep(self, deadline: Millis | None) -> "_Sleep":
        pause, watches = self._pause(deadline), self._must_watch()
        self._watched |= watches
        return _Sleep(self._changed.sleeper(), watching(pause) if watches else pause, watches)

    # without the mutex

    def _sleep_until_changed(self, sleep: "_Sleep") -> None:
        try:
            self._changed.sleep(sleep.sleeper, sleep.seconds)
        except BaseException:
            self._wake(1)  # an interrupted worker may have been woken already: another one must look
            raise
        finally:
            if sleep.watches:
                self._watched = False

    def _wake(self, most: int) -> None:
        self._changed.ring(most)

    def _wake_all(self) -> None:
        self._changed.ring()


def was_asleep(error: BaseException) -> bool:
    """Whether an exception of a signal handler came while its thread slept, when nothing was half done."""
    trace = error.__traceback__
    while trace is not None:
        if trace.tb_frame.f_code is _ASLEEP:
            return True
        trace = trace.tb_next
    return False


_ASLEEP = Scheduler._sleep_until_changed.__code__  # noqa: SLF001


def interrupts_itself() -> UsageError:
    """The error for a signal handler or finalizer that has interrupted its own thread in the middle of a change."""
    return UsageError(
        "a signal handler or a finalizer has interrupted a call of this consumer, and this call would wait for it: let "
        "it set a flag or start a thread, and call this there"
    )


class _Sleep(NamedTuple):
    """An announced sleep of a worker."""

    sleeper: threading.Lock
    seconds: float | None
    watches: bool


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and its waiters are gone
        loop.call_soon_threadsafe(event.set)


def watching(pause: float | None) -> float:
    """Seconds that a watcher sleeps."""
    soon = LATE_MS / 1000
    return soon if pause is None else min(pause, soon)
