"""The lane scheduler as many threads may use it: one mutex, held for microseconds, and somebody to wake.

Workers wait here for turns and nowhere else; no thread ever waits for a lane or a queue (A69). What may run is
`core/lane_scheduler`'s rule alone.

Who is woken: a put wakes as many workers as it may have made lanes ready; a worker that slept wakes one more
when it found work, because one event can free several lanes; a worker that ends a turn asks for the next itself.
"""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Sequence
from typing import TypeAlias, TypeVar

from lanemq.client.lane_trouble import LaneLook, Trouble, note_trouble
from lanemq.client.message import Message
from lanemq.clock import Clock
from lanemq.core.flow_control import Cached
from lanemq.core.gap_map import NO_GAPS, GapMap
from lanemq.core.lane_queue import QueueView
from lanemq.core.lane_scheduler import LaneScheduler
from lanemq.core.shut_lanes import KeptLane, ShutLanes
from lanemq.core.turns import Finished, Order, Outcome, Turn, Wait, Why
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

MessageTurn: TypeAlias = Turn[Message]
MessageFinished: TypeAlias = Finished[Message]
R = TypeVar("R")


class LaneBoard:
    """A scheduler shared by the event loop and the worker threads of one handler."""

    def __init__(self, scheduler: LaneScheduler[Message], order: Order, clock: Clock) -> None:
        self._scheduler = scheduler
        self._order = order
        self._clock = clock
        self._mutex = threading.Lock()
        self._changed = threading.Condition(self._mutex)
        self._sleeping = 0
        self._closed = False
        # Pull loops that wait for room: below how many cached messages they want to be called, and how.
        self._hungry: dict[MessageQueue, tuple[int, Callable[[], None]]] = {}
        # Turns taken and not finished, with their begin.
        self._running: dict[int, tuple[MessageTurn, Millis]] = {}
        # Lanes that failed and did not get over it yet: since when, and the newest error.
        self._troubles: dict[tuple[MessageQueue, str | None], Trouble] = {}
        self._drained: dict[MessageQueue, Callable[[], None]] = {}
        self.on_shut: Callable[[], None] = _nobody
        """Called, from any thread, when parked lanes have something for the broker."""

    # for workers

    def take(self, timeout: float | None = None) -> MessageTurn | None:
        """The next turn; waits for one. None when the board is closed, or nothing came in time."""
        slept = False
        deadline = None if timeout is None else self._clock.now() + int(timeout * 1000)
        with self._mutex:
            while not self._closed:
                now = self._clock.now()
                found = self._scheduler.next_turn(now=now)
                if isinstance(found, Turn):
                    self._running[found.token] = found, now
                    if slept:
                        self._wake(1)
                    return found
                pause = _pause(found, deadline, now)
                if pause is not None and pause <= 0 and deadline is not None and now >= deadline:
                    return None
                slept = True
                self._sleep_on_it(pause)
        return None

    def finish(self, turn: MessageTurn, outcome: Outcome, done: int = 0, reason: str = "") -> MessageFinished:
        """Reports a turn. What it answers is to be done by the caller; a turn taken away meanwhile is ignored."""
        calls: list[Callable[[], None]] = []
        with self._mutex:
            if turn.token not in self._running:
                return Finished(Why.QUEUE_GONE)
            now = self._clock.now()
            finished = self._scheduler.finish(turn, outcome, done=done, now=now, reason=reason)
            if reason or self._troubles:
                note_trouble(self._troubles, turn, finished.why, reason, now)
            self._settled(turn, finished, calls)
        for call in calls:
            call()
        return finished

    def sent_back(self, turn: MessageTurn, ok: Sequence[bool]) -> MessageFinished:
        """Reports which of `Finished.send_back` the broker has now."""
        calls: list[Callable[[], None]] = []
        with self._mutex:
            finished = self._scheduler.sent_back(turn, ok, now=self._clock.now())
            self._settled(turn, finished, calls)
        for call in calls:
            call()
        return finished

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
        done: GapMap = NO_GAPS,
        kept: Iterable[KeptLane] = (),
    ) -> None:
        with self._mutex:
            self._scheduler.add(queue, start, self._order, usable_until=usable_until, done=done, kept=kept)

    def put(
        self, queue: MessageQueue, messages: Sequence[Message], next_offset: QueueOffset, pulled_from: QueueOffset
    ) -> bool:
        with self._mutex:
            wanted = self._scheduler.put(queue, messages, next_offset, pulled_from=pulled_from)
            if messages:
                self._wake(1 if self._order is Order.QUEUE else len(messages))
            news = self._has_news(queue)
        if news:
            self.on_shut()
        return wanted

    def set_usable_until(self, queue: MessageQueue, until: Millis) -> None:
        with self._mutex:
            self._scheduler.set_usable_until(queue, until)
            self._wake(1)

    def resume(self, queue: MessageQueue, key: str | None) -> bool:
        with self._mutex:
            resumed = self._scheduler.resume(queue, key)
            self._wake(1)
            news = self._has_news(queue)
        if news:
            self.on_shut()
        return resumed

    def shut(self, queue: MessageQueue, act: Callable[[ShutLanes[Message]], R]) -> R | None:
        """Does something with the queue's parked lanes; None where it is not held, or has no lanes by key."""
        calls: list[Callable[[], None]] = []
        with self._mutex:
            lanes = self._scheduler.shut(queue)
            if lanes is None:
                return None
            result = act(lanes)
            self._scheduler.offer(queue)
            self._wake(1)
            self._feed(queue, calls)
        for call in calls:
            call()
        return result

    def drain(self, queue: MessageQueue) -> None:
        with self._mutex:
            self._scheduler.drain(queue)

    def reopen(self, queue: MessageQueue) -> None:
        with self._mutex:
            self._scheduler.reopen(queue)
            self._wake(1)

    async def drained(self, queue: MessageQueue, timeout_ms: int) -> bool:
        """Waits until no handler of a draining queue runs, at most so long; whether that came true."""
        loop, event = asyncio.get_running_loop(), asyncio.Event()
        with self._mutex:
            self._drained[queue] = lambda: _set_from_thread(loop, event)
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                while not self._is_drained(queue):
                    await event.wait()  # every turn that ends calls, not only the last one
                    event.clear()
        except TimeoutError:
            pass
        with self._mutex:
            self._drained.pop(queue, None)
        return self._is_drained(queue)

    def _is_drained(self, queue: MessageQueue) -> bool:
        """A queue that was lost meanwhile has nothing left to wait for."""
        with self._mutex:
            return self._scheduler.committable(queue) is None or self._scheduler.is_drained(queue)

    def drop(self, queue: MessageQueue) -> None:
        with self._mutex:
            self._hungry.pop(queue, None)
            self._scheduler.drop(queue)
            for place in [place for place in self._troubles if place[0] == queue]:
                del self._troubles[place]
            if queue in self._drained:
                self._drained[queue]()

    def committable(self, queue: MessageQueue) -> QueueOffset | None:
        with self._mutex:
            return self._scheduler.committable(queue)

    def progress(self, queue: MessageQueue) -> tuple[QueueOffset, GapMap] | None:
        """The committable offset and what is finished above it, as of one moment; None if it is not held."""
        with self._mutex:
            offset = self._scheduler.committable(queue)
            return None if offset is None else (offset, self._scheduler.gaps(queue))

    def next_offset(self, queue: MessageQueue) -> QueueOffset | None:
        with self._mutex:
            return self._scheduler.next_offset(queue)

    def cached(self, queue: MessageQueue) -> Cached:
        with self._mutex:
            return self._scheduler.cached(queue)

    def call_below(self, queue: MessageQueue, count: int, call: Callable[[], None]) -> None:
        """Once: calls back, from a worker's thread, when no more than `count` messages are cached."""
        with self._mutex:
            self._hungry[queue] = count, call

    def overdue(self, before: Millis) -> list[MessageTurn]:
        """Turns that began earlier and still run."""
        with self._mutex:
            return [turn for turn, began in self._running.values() if began < before]

    def snapshot(self) -> dict[MessageQueue, QueueView]:
        with self._mutex:
            return self._scheduler.snapshot()

    def look(self, queue: MessageQueue, key: str | None) -> LaneLook | None:
        """What a lane is doing now; None for a queue that is not held."""
        with self._mutex:
            now = self._clock.now()
            view = self._scheduler.view(queue, key, now=now)
            if view is None:
                return None
            lane = None if view.order is Order.QUEUE else key
            began = next((at for turn, at in self._running.values() if (turn.queue, turn.key) == (queue, lane)), None)
            return LaneLook(view, now, began, self._troubles.get((queue, lane)))

    # under the mutex

    def _settled(self, turn: MessageTurn, finished: MessageFinished, calls: list[Callable[[], None]]) -> None:
        if finished.why is Why.GIVE:
            return
        self._running.pop(turn.token, None)
        queue = turn.queue
        if finished.until is not None or finished.why is Why.QUEUE_GONE:
            self._wake(1)  # somebody must sleep until then, or look at the queue's next holding
        self._feed(queue, calls, anyway=finished.why is Why.QUEUE_GONE)
        if self._drained and queue in self._drained:
            calls.append(self._drained[queue])
        if self._has_news(queue):
            calls.append(self.on_shut)

    def _feed(self, queue: MessageQueue, calls: list[Callable[[], None]], *, anyway: bool = False) -> None:
        """There may be room for a pull that waits."""
        if self._hungry and queue in self._hungry:
            count, call = self._hungry[queue]
            if anyway or self._scheduler.cached(queue).count <= count:
                del self._hungry[queue]
                calls.append(call)

    def _has_news(self, queue: MessageQueue) -> bool:
        lanes = self._scheduler.shut(queue)
        return lanes is not None and lanes.news

    def _sleep_on_it(self, pause: float | None) -> None:
        self._sleeping += 1
        try:
            self._changed.wait(pause)
        except BaseException:
            self._wake(1)  # an interrupted worker may have been called already: somebody else must look (A115)
            raise
        finally:
            self._sleeping -= 1

    def _wake(self, most: int) -> None:
        if self._sleeping:
            self._changed.notify(min(most, self._sleeping))

    def _wake_all(self) -> None:
        self._changed.notify_all()


def _nobody() -> None:
    """Nobody brings parked lanes to a broker."""


def _set_from_thread(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits any more
        loop.call_soon_threadsafe(event.set)


def _pause(wait: Wait, deadline: int | None, now: Millis) -> float | None:
    """Seconds until there is something to look at; None: until woken."""
    ends = [end for end in (wait.until, deadline) if end is not None]
    return max(0, min(ends) - now) / 1000 if ends else None


class LoopBoard(LaneBoard):
    """The same for workers that are tasks of the event loop; all calls then come from the loop."""

    def __init__(self, scheduler: LaneScheduler[Message], order: Order, clock: Clock) -> None:
        super().__init__(scheduler, order, clock)
        self._sleepers: list[asyncio.Future[None]] = []

    async def take_async(self, timeout: float | None = None) -> MessageTurn | None:
        """As `take`, without blocking the loop."""
        slept = False
        deadline = None if timeout is None else self._clock.now() + int(timeout * 1000)
        while not self._closed:
            now = self._clock.now()
            with self._mutex:
                found = self._scheduler.next_turn(now=now)
                if isinstance(found, Turn):
                    self._running[found.token] = found, now
                    if slept:
                        self._wake(1)
                    return found
            if deadline is not None and now >= deadline:
                return None
            slept = True
            await self._sleep(_pause(found, deadline, now))
        return None

    async def _sleep(self, pause: float | None) -> None:
        sleeper: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._sleepers.append(sleeper)
        try:
            # Not `wait_for`: before Python 3.12 it forgets a cancellation that comes together with the call.
            async with asyncio.timeout(pause):
                await sleeper
        except TimeoutError:
            pass
        except asyncio.CancelledError:
            if sleeper not in self._sleepers:  # called already: somebody else must look (A115)
                self._wake(1)
            raise
        finally:
            if sleeper in self._sleepers:
                self._sleepers.remove(sleeper)

    def _wake(self, most: int) -> None:
        for _ in range(min(most, len(self._sleepers))):
            sleeper = self._sleepers.pop(0)
            if not sleeper.done():
                sleeper.set_result(None)

    def _wake_all(self) -> None:
        self._wake(len(self._sleepers))
