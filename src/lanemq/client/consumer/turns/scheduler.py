"""The lane scheduler for many threads: one mutex, held for microseconds, and workers that sleep until there is work.

Workers wait here and nowhere else; no thread ever waits for a lane or a queue. `core/consuming/scheduler` alone
decides what may run.

Which workers are woken: a put wakes as many as its messages need. A worker that found work wakes one more while there
is more, because one event can free several lanes; a worker that ends a run asks for the next itself. While runs wait
behind others of a busy worker, one sleeping worker watches: it looks again after a few milliseconds (`in_progress`). If
the watcher finds work or is interrupted, it wakes another in its place.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from lanemq.client.consumer.turns.in_progress import (
    LATE_MS,
    Callback,
    InProgress,
    LaneReport,
    MessageFinished,
    MessageRun,
    Worker,
)
from lanemq.client.message import Message
from lanemq.clock import Clock, nanoseconds_of
from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.lanes_at_broker import LanesAtBroker, ParkedAtBroker
from lanemq.core.consuming.runs import STOPPED, LaneRun, Order, Outcome, Wait
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.consuming.views import QueueView
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset, Seconds, to_millis

R = TypeVar("R")

MAX_SLEEP_MS = 3_600_000
"""Longest sleep of a worker that waits for a held lane. The operating system refuses to wait for centuries, which a
handler may ask for."""


class Scheduler:
    """A lane scheduler that the event loop and the worker threads of one handler share."""

    def __init__(self, lanes: LaneScheduler[Message], order: Order, clock: Clock) -> None:
        self._lanes = lanes
        self._order = order
        self._clock = clock
        self._in_progress = InProgress(lanes, nanoseconds_of(clock))
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._effects = _Effects(self._mutex, self._take_effects)
        self._sleeping = 0
        # How many of the sleeping workers were woken and do not run yet: each of them will look for work.
        self._woken = 0
        # Whether one of the sleeping workers watches the busy ones.
        self._watched = False
        self._closed = False
        self._ending = threading.Event()

    # for workers

    def take_runs(self, worker: Worker) -> bool:
        """Ends the worker's successful runs and gives it the next; waits for them. False if the scheduler is closed."""
        returned_ns = self._in_progress.nanos()
        with self._effects:
            now = self._clock.now()
            self._in_progress.end(worker, now, returned_ns)
            filled = not self._closed and self._fill(worker, now)
            if not (filled or self._closed or self._has_effects()):
                self._sleep_until_changed(pause_of(self._lanes.wait(), None, now))
        return filled or self._wait_to_fill(worker)

    def leave(self, worker: Worker) -> None:
        """Called by a worker that ends early: returns the runs that it has not ended to their lanes."""
        with self._effects:
            now = self._clock.now()
            self._in_progress.take_back(worker, now)
            run, worker.run = worker.run, None
            if run is not None and run.given is not None:
                self._in_progress.sent_back(run, [False] * len(run.given[2]), now)
            elif run is not None and run not in worker.ended:
                self._in_progress.finish(run, STOPPED, run.done, "", now)
            self._in_progress.end(worker, now)

    def take_run(self, timeout: Seconds | None = None) -> MessageRun | None:
        """Waits for a single run. None if the scheduler is closed, or nothing came within `timeout` seconds."""
        slept = False
        deadline = None if timeout is None else self._clock.now() + to_millis(timeout)
        with self._mutex:
            while not self._closed:
                now = self._clock.now()
                found = self._in_progress.take_run(now)
                if isinstance(found, LaneRun):
                    if slept:
                        self._wake(1)
                    return found
                pause = pause_of(found, deadline, now)
                if pause is not None and pause <= 0 and deadline is not None and now >= deadline:
                    return None
                slept = True
                self._sleep_until_changed(pause)
        return None

    def finish(
        self, run: MessageRun, outcome: Outcome, done: int = 0, reason: str = "", concerned: int | None = None
    ) -> MessageFinished:
        """Ends a run. The caller must do what the result asks for; a run that was taken over is ignored."""
        with self._effects:
            return self._in_progress.finish(run, outcome, done, reason, self._clock.now(), concerned)

    def sent_back(self, run: MessageRun, ok: Sequence[bool]) -> MessageFinished:
        """Reports which messages of `Finished.send_back` the broker has now."""
        with self._effects:
            return self._in_progress.sent_back(run, ok, self._clock.now())

    @property
    def closed(self) -> bool:
        return self._closed

    def close(self) -> None:
        """Makes every waiting worker return."""
        with self._mutex:
            self._closed = True
            self._ending.set()
            self._wake_all()

    def wait_until_closed(self, timeout: float) -> bool:
        """Waits for `close`, for at most `timeout` seconds."""
        return self._ending.wait(timeout)

    # for the event loop

    def add(
        self,
        queue: MessageQueue,
        start: QueueOffset,
        usable_until: Millis,
        finished: FinishedRanges = NOTHING_FINISHED,
        parked: Iterable[ParkedAtBroker] = (),
        *,
        broker_parks: bool = False,
    ) -> None:
        with self._mutex:
            self._lanes.add(
                queue,
                start,
                self._order,
                usable_until=usable_until,
                finished=finished,
                parked=parked,
                broker_parks=broker_parks,
            )

    def put(
        self, queue: MessageQueue, messages: Sequence[Message], next_offset: QueueOffset, pulled_from: QueueOffset
    ) -> bool:
        with self._effects:
            accepted = self._lanes.put(queue, messages, next_offset, pulled_from=pulled_from)
            if messages:
                self._wake_for(1 if self._order is Order.QUEUE else len(messages))
            self._in_progress.announce_parked(queue)
        return accepted

    def set_usable_until(self, queue: MessageQueue, until: Millis) -> None:
        with self._mutex:
            self._lanes.set_usable_until(queue, until)
            self._wake(1)

    def resume(self, queue: MessageQueue, key: str | None) -> bool:
        with self._effects:
            resumed = self._lanes.resume(queue, key)
            self._wake(1)
            self._in_progress.announce_parked(queue)
        return resumed

    def with_parked_lanes(self, queue: MessageQueue, act: Callable[[LanesAtBroker[Message]], R]) -> R | None:
        """Calls `act` with the queue's parked lanes; None if the queue is not assigned or has no lanes by key."""
        with self._effects:
            lanes = self._lanes.parked_lanes(queue)
            if lanes is None:
                return None
            result = act(lanes)
            self._lanes.offer(queue)
            self._wake(1)
            self._in_progress.announce_room(queue)
        return result

    def drain(self, queue: MessageQueue) -> None:
        with self._effects:
            self._in_progress.drain(queue, self._clock.now())

    def reopen(self, queue: MessageQueue) -> None:
        with self._mutex:
            self._lanes.reopen(queue)
            self._wake(1)

    async def drained(self, queue: MessageQueue, timeout_ms: int) -> bool:
        """Waits until no handler of a draining queue runs; returns whether that is so."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._mutex:
            self._in_progress.on_run_end[queue] = lambda: _set_from_thread(loop, event)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self._is_drained(queue):
                    await event.wait()  # set by every run that ends, not only by the last one
                    event.clear()
        except TimeoutError:
            pass
        with self._mutex:
            self._in_progress.on_run_end.pop(queue, None)
        return self._is_drained(queue)

    def _is_drained(self, queue: MessageQueue) -> bool:
        """True for a queue that was lost: there is nothing left to wait for."""
        with self._mutex:
            return self._lanes.committable(queue) is None or self._lanes.is_drained(queue)

    def drop(self, queue: MessageQueue) -> None:
        with self._effects:
            self._in_progress.drop(queue)

    def committable(self, queue: MessageQueue) -> QueueOffset | None:
        with self._effects:
            self._in_progress.catch_up(self._clock.now())
            return self._lanes.committable(queue)

    def progress(self, queue: MessageQueue) -> tuple[QueueOffset, FinishedRanges] | None:
        """The committable offset and the finished ranges above it, at one moment; None if the queue is not assigned."""
        with self._effects:
            self._in_progress.catch_up(self._clock.now())
            offset = self._lanes.committable(queue)
            return None if offset is None else (offset, self._lanes.finished_ranges(queue))

    def next_offset(self, queue: MessageQueue) -> QueueOffset | None:
        with self._mutex:
            return self._lanes.next_offset(queue)

    def cached(self, queue: MessageQueue) -> Cached:
        with self._mutex:
            return self._lanes.cached(queue)

    def call_below(self, queue: MessageQueue, count: int, callback: Callback) -> None:
        """Calls back once, from a worker's thread, when no more than `count` messages are cached."""
        with self._mutex:
            self._in_progress.waiting_for_room[queue] = count, callback

    def call_on_parked(self, callback: Callback) -> None:
        """Calls back, from any thread, whenever parked lanes have something to send to the broker."""
        with self._mutex:
            self._in_progress.on_parked = callback

    def overdue(self, before: Millis) -> list[MessageRun]:
        """Runs that began before that time, are still in progress, and may be taken over."""
        with self._mutex:
            return self._in_progress.overdue(before)

    def take_over(self, run: MessageRun) -> bool:
        """Ends an overdue run whose messages the broker has; False if its handler has returned."""
        with self._effects:
            return self._in_progress.take_over(run, self._clock.now())

    def next_retry(self) -> Millis | None:
        """When a held lane may run again, if nothing else happens; None if none waits."""
        with self._mutex:
            return self._lanes.wait().until

    def snapshot(self) -> dict[MessageQueue, QueueView]:
        with self._mutex:
            return self._lanes.snapshot()

    def lane_report(self, queue: MessageQueue, key: str | None) -> LaneReport | None:
        """What a lane is doing now; None if the queue is not assigned."""
        with self._mutex:
            return self._in_progress.lane_report(queue, key, self._clock.now())

    # under the mutex

    def _take_effects(self) -> Sequence[Callback]:
        """Wakes workers as needed; returns the callbacks to call once the mutex is released."""
        if self._in_progress.to_wake:
            self._wake(self._in_progress.to_wake)
            self._in_progress.to_wake = 0
        return self._in_progress.take_callbacks()

    def _has_effects(self) -> bool:
        """Whether workers must be woken, or callbacks called, before this worker sleeps."""
        return bool(self._in_progress.to_wake or self._in_progress.callbacks)

    def _fill(self, worker: Worker, now: Millis) -> bool:
        filled = self._in_progress.fill(worker, now)
        if filled and not (self._watched or self._woken) and (filled > 1 or self._is_more_for_others(worker)):
            self._wake(1)
        return filled > 0

    def _is_more_for_others(self, worker: Worker) -> bool:
        """Whether another worker is needed; this one may have been the watcher."""
        return self._lanes.has_ready or self._in_progress.busy.have_work_for_others(besides=worker)

    def _wait_to_fill(self, worker: Worker) -> bool:
        filled = False
        while not (filled or self._closed):
            with self._effects:
                now = self._clock.now()
                filled = self._fill(worker, now)
                if not (filled or self._closed or self._has_effects()):
                    self._sleep_until_changed(pause_of(self._lanes.wait(), None, now))
        return filled

    def _wake_for(self, messages: int) -> None:
        """Wakes the workers that new messages need, and at least one if no watcher looks again soon."""
        self._wake(max(self._in_progress.busy.workers_for(messages), 0 if self._watched else 1))

    def _must_watch(self) -> bool:
        """Whether a worker that goes to sleep must watch, because runs wait behind others, or for a worker."""
        return not self._watched and (self._lanes.has_ready or self._in_progress.busy.have_work_for_others())

    def _sleep_until_changed(self, pause: float | None) -> None:
        watch = self._must_watch()
        self._watched |= watch
        self._sleeping += 1
        try:
            self._changed.wait(watching(pause) if watch else pause)
        except BaseException:
            self._wake(1)  # an interrupted worker may have been woken already: another one must look
            raise
        finally:
            self._sleeping -= 1
            self._woken = max(self._woken - 1, 0)
            if watch:
                self._watched = False

    def _wake(self, most: int) -> None:
        count = min(most, self._sleeping - self._woken)
        if count:
            self._woken += count
            self._changed.notify(count)

    def _wake_all(self) -> None:
        self._changed.notify_all()


class _Effects:
    """Holds the mutex, and afterwards calls the callbacks that follow from what was done under it."""

    def __init__(self, mutex: threading.Lock, take_effects: Callable[[], Sequence[Callback]]) -> None:
        self._mutex = mutex
        self._take_effects = take_effects

    def __enter__(self) -> None:
        self._mutex.acquire()

    def __exit__(self, *_: object) -> None:
        try:
            callbacks = self._take_effects()
        finally:
            self._mutex.release()
        for callback in callbacks:
            callback()


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed, and its waiters are gone
        loop.call_soon_threadsafe(event.set)


def pause_of(wait: Wait, deadline: int | None, now: Millis) -> float | None:
    """Seconds until there may be work, or until the caller should look again; None: until woken."""
    ends = [end for end in (wait.until, deadline) if end is not None]
    return max(0, min(min(ends) - now, MAX_SLEEP_MS)) / 1000 if ends else None


def watching(pause: float | None) -> float:
    """Seconds that a watcher sleeps."""
    soon = LATE_MS / 1000
    return soon if pause is None else min(pause, soon)
