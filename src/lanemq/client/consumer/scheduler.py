"""The lane scheduler as many threads may use it: one mutex, held for microseconds, and somebody to wake.

Workers wait here for turns and nowhere else; no thread ever waits for a lane or a queue (A69). What may run is
`core/consuming/scheduler`'s rule alone.

Who is woken: a put wakes as many workers as its messages want, and a worker that found work wakes one more while there
is more of it, because one event can free several lanes; a worker that ends a turn asks for the next itself. While
turns wait behind others in a visit, one of the sleepers looks again after a few milliseconds (`visits`); if that one
finds work or is interrupted, it wakes another in its place.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeVar

from lanemq.client.consumer.in_progress import Call, InProgress, MessageFinished, MessageRun
from lanemq.client.consumer.lane_trouble import LaneStatus
from lanemq.client.consumer.visits import LATE_MS, Worker
from lanemq.client.message import Message
from lanemq.clock import Clock, nanoseconds_of
from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.lane_queue import QueueView
from lanemq.core.consuming.parked_lanes import LocalParkedLanes, ParkedAtBroker
from lanemq.core.consuming.runs import LaneRun, Order, Outcome, Wait
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

R = TypeVar("R")


class _Effects:
    """The mutex, and when it is free again the calls that follow from what was done under it."""

    def __init__(self, mutex: threading.Lock, outcome: Callable[[], Sequence[Call]]) -> None:
        self._mutex = mutex
        self._outcome = outcome

    def __enter__(self) -> None:
        self._mutex.acquire()

    def __exit__(self, *_: object) -> None:
        try:
            calls = self._outcome()
        finally:
            self._mutex.release()
        for call in calls:
            call()


class Scheduler:
    """A scheduler shared by the event loop and the worker threads of one handler."""

    def __init__(self, scheduler: LaneScheduler[Message], order: Order, clock: Clock) -> None:
        self._lanes = scheduler
        self._order = order
        self._clock = clock
        self._in_progress = InProgress(scheduler, nanoseconds_of(clock))
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._effects = _Effects(self._mutex, self._outcome)
        self._sleeping = 0
        # Those among them that were called and did not get here yet: each of them will look.
        self._called = 0
        # Whether one of those that sleep looks after the visits of the others.
        self._watched = False
        self._closed = False

    @property
    def on_parked(self) -> Call:
        """Called, from any thread, when parked lanes have something for the broker."""
        return self._in_progress.on_parked

    @on_parked.setter
    def on_parked(self, call: Call) -> None:
        self._in_progress.on_parked = call

    # for workers

    def take_runs(self, worker: Worker) -> bool:
        """Reports what went well in a visit and fills it again; waits for turns. False when the board is closed."""
        with self._effects:
            now = self._clock.now()
            self._in_progress.end(worker, now)
            filled = not self._closed and self._fill(worker, now)
        return filled or self._wait_to_fill(worker)

    def leave(self, worker: Worker) -> None:
        """A worker ends in the middle of a visit: what it did not begin is for others."""
        with self._effects:
            now = self._clock.now()
            self._in_progress.take_back(worker, now)
            self._in_progress.end(worker, now)

    def take_run(self, timeout: float | None = None) -> MessageRun | None:
        """The next turn by itself; waits for one. None when the board is closed, or nothing came in time."""
        slept = False
        deadline = None if timeout is None else self._clock.now() + int(timeout * 1000)
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
                self._sleep_on_it(pause)
        return None

    def finish(self, run: MessageRun, outcome: Outcome, done: int = 0, reason: str = "") -> MessageFinished:
        """Reports a turn. What it answers is to be done by the caller; a turn taken away meanwhile is ignored."""
        with self._effects:
            return self._in_progress.finish(run, outcome, done, reason, self._clock.now())

    def sent_back(self, run: MessageRun, ok: Sequence[bool]) -> MessageFinished:
        """Reports which of `Finished.send_back` the broker has now."""
        with self._effects:
            return self._in_progress.sent_back(run, ok, self._clock.now())

    def close(self) -> None:
        """Sends every waiting worker home."""
        with self._mutex:
            self._closed = True
            self._wake_all()

    # for the event loop

    def add(
        self,
        queue: MessageQueue,
        start: QueueOffset,
        usable_until: Millis,
        done: FinishedRanges = NOTHING_FINISHED,
        kept: Iterable[ParkedAtBroker] = (),
    ) -> None:
        with self._mutex:
            self._lanes.add(queue, start, self._order, usable_until=usable_until, done=done, kept=kept)

    def put(
        self, queue: MessageQueue, messages: Sequence[Message], next_offset: QueueOffset, pulled_from: QueueOffset
    ) -> bool:
        with self._effects:
            wanted = self._lanes.put(queue, messages, next_offset, pulled_from=pulled_from)
            if messages:
                self._call_workers(1 if self._order is Order.QUEUE else len(messages))
            self._in_progress.look_at_parked(queue)
        return wanted

    def set_usable_until(self, queue: MessageQueue, until: Millis) -> None:
        with self._mutex:
            self._lanes.set_usable_until(queue, until)
            self._wake(1)

    def resume(self, queue: MessageQueue, key: str | None) -> bool:
        with self._effects:
            resumed = self._lanes.resume(queue, key)
            self._wake(1)
            self._in_progress.look_at_parked(queue)
        return resumed

    def with_parked_lanes(self, queue: MessageQueue, act: Callable[[LocalParkedLanes[Message]], R]) -> R | None:
        """Does something with the queue's parked lanes; None where it is not held, or has no lanes by key."""
        with self._effects:
            lanes = self._lanes.parked_lanes(queue)
            if lanes is None:
                return None
            result = act(lanes)
            self._lanes.offer(queue)
            self._wake(1)
            self._in_progress.feed(queue)
        return result

    def drain(self, queue: MessageQueue) -> None:
        with self._effects:
            self._in_progress.drain(queue, self._clock.now())

    def reopen(self, queue: MessageQueue) -> None:
        with self._mutex:
            self._lanes.reopen(queue)
            self._wake(1)

    async def drained(self, queue: MessageQueue, timeout_ms: int) -> bool:
        """Waits until no handler of a draining queue runs, at most so long; whether that came true."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._mutex:
            self._in_progress.drained[queue] = lambda: _set_from_thread(loop, event)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self._is_drained(queue):
                    await event.wait()  # every turn that ends calls, not only the last one
                    event.clear()
        except TimeoutError:
            pass
        with self._mutex:
            self._in_progress.drained.pop(queue, None)
        return self._is_drained(queue)

    def _is_drained(self, queue: MessageQueue) -> bool:
        """A queue that was lost meanwhile has nothing left to wait for."""
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
        """The committable offset and what is finished above it, as of one moment; None if it is not held."""
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

    def call_below(self, queue: MessageQueue, count: int, call: Call) -> None:
        """Once: calls back, from a worker's thread, when no more than `count` messages are cached."""
        with self._mutex:
            self._in_progress.hungry[queue] = count, call

    def overdue(self, before: Millis) -> list[MessageRun]:
        """Turns that began earlier, still run, and may be taken over."""
        with self._mutex:
            return self._in_progress.overdue(before)

    def take_over(self, run: MessageRun) -> bool:
        """Ends an overdue turn whose messages the broker has; False if its handler came back meanwhile."""
        with self._effects:
            return self._in_progress.take_over(run, self._clock.now())

    def snapshot(self) -> dict[MessageQueue, QueueView]:
        with self._mutex:
            return self._lanes.snapshot()

    def look(self, queue: MessageQueue, key: str | None) -> LaneStatus | None:
        """What a lane is doing now; None for a queue that is not held."""
        with self._mutex:
            return self._in_progress.look(queue, key, self._clock.now())

    # under the mutex

    def _outcome(self) -> Sequence[Call]:
        """Wakes whom the desk wants; what it wants called when the mutex is free."""
        if self._in_progress.wanted:
            self._wake(self._in_progress.wanted)
            self._in_progress.wanted = 0
        return self._in_progress.take_calls()

    def _fill(self, worker: Worker, now: Millis) -> bool:
        filled = self._in_progress.fill(worker, now)
        if filled and not (self._watched or self._called) and (filled > 1 or self._is_more_for_others(worker)):
            self._wake(1)
        return filled > 0

    def _is_more_for_others(self, worker: Worker) -> bool:
        """Whoever begins a visit may have been the one who looked after the others': somebody must follow."""
        return self._lanes.has_ready or self._in_progress.busy.something_waits(besides=worker)

    def _wait_to_fill(self, worker: Worker) -> bool:
        filled = False
        while not (filled or self._closed):
            with self._effects:
                now = self._clock.now()
                filled = self._fill(worker, now)
                if not (filled or self._closed or self._in_progress.calls):
                    self._sleep_on_it(pause_of(self._lanes.wait(), None, now))
        return filled

    def _call_workers(self, messages: int) -> None:
        """New messages: call those they want, and at least one if no sleeper looks again soon anyway."""
        self._wake(max(self._in_progress.busy.workers_for(messages), 0 if self._watched else 1))

    def _must_watch(self) -> bool:
        """Whether somebody who goes to sleep must look again soon, because turns wait behind others, or for them."""
        return not self._watched and (self._lanes.has_ready or self._in_progress.busy.something_waits())

    def _sleep_on_it(self, pause: float | None) -> None:
        watch = self._must_watch()
        self._watched |= watch
        self._sleeping += 1
        try:
            self._changed.wait(watching(pause) if watch else pause)
        except BaseException:
            self._wake(1)  # an interrupted worker may have been called already: somebody else must look (A115)
            raise
        finally:
            self._sleeping -= 1
            self._called = max(self._called - 1, 0)
            if watch:
                self._watched = False

    def _wake(self, most: int) -> None:
        calls = min(most, self._sleeping - self._called)
        if calls:
            self._called += calls
            self._changed.notify(calls)

    def _wake_all(self) -> None:
        self._changed.notify_all()


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(event.set)


def pause_of(wait: Wait, deadline: int | None, now: Millis) -> float | None:
    """Seconds until there is something to look at; None: until woken."""
    ends = [end for end in (wait.until, deadline) if end is not None]
    return max(0, min(ends) - now) / 1000 if ends else None


def watching(pause: float | None) -> float:
    """A sleep from which one looks again soon."""
    soon = LATE_MS / 1000
    return soon if pause is None else min(pause, soon)
