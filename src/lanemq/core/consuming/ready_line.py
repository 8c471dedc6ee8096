"""Which queue is served next: those with a lane that may run, in line, and those that wait for a moment.

A queue stands in the line at most once, and goes to its end when it was served: no queue waits for another one's
backlog. One that may not run now (without a lease, held, being handed over, with a turn of its former holding still
running) leaves the line; whatever may have changed that puts it back. A lane that waits after a failure is on a timer.
"""

import heapq
from collections import Counter, deque
from collections.abc import Iterator
from itertools import count
from typing import Generic

from lanemq.core.consuming.lane_queue import LaneQueue
from lanemq.core.consuming.retry_policy import Again
from lanemq.core.consuming.runs import Lane, M, Order
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis


class ReadyLine(Generic[M]):
    """All queues of a scheduler, as far as they have something to run."""

    def __init__(self) -> None:
        self._homes: deque[LaneQueue[M]] = deque()
        # (when, serial, queue, lane): that lane, or with None the whole queue, may run again.
        self._timers: list[tuple[Millis, int, LaneQueue[M], Lane[M] | None]] = []
        self._serial = count(1)
        self.ghosts: Counter[MessageQueue] = Counter()
        """Turns still running of holdings that were dropped."""

    def __bool__(self) -> bool:
        return bool(self._homes)

    def enlist(self, home: LaneQueue[M]) -> None:
        """The queue may have become ready."""
        if home.ready and not home.listed:
            home.listed = True
            self._homes.append(home)

    def next(self, now: Millis) -> LaneQueue[M] | None:
        """The first queue that may run, out of the line; `enlist` it when lanes were taken from it."""
        if self._timers and self._timers[0][0] <= now:
            self._fire(now)
        while self._homes:
            home = self._homes.popleft()
            home.listed = False
            if home.ready and self._may_run(home, now):
                return home
        return None

    def pause(self, home: LaneQueue[M], lane: Lane[M], hold: Again, now: Millis) -> Millis:
        """The lane, or its whole queue, waits; until when."""
        until = Millis(now + hold.delay)
        lane.slice_end = None
        if hold.whole_queue and home.order is not Order.QUEUE:
            home.held_until = max(home.held_until, until)
            home.ready.appendleft(lane)
            heapq.heappush(self._timers, (until, next(self._serial), home, None))
        else:
            heapq.heappush(self._timers, (until, next(self._serial), home, lane))
        return until

    def next_timer(self) -> Millis | None:
        return self._timers[0][0] if self._timers else None

    def timers(self) -> Iterator[tuple[Millis, LaneQueue[M], Lane[M] | None]]:
        """The earliest first."""
        for until, _, home, lane in sorted(self._timers, key=lambda timer: timer[:2]):
            yield until, home, lane

    def ghost_ended(self, queue: MessageQueue) -> bool:
        """A turn of a former holding ended; whether it was the last one."""
        self.ghosts[queue] -= 1
        if self.ghosts[queue]:
            return False
        del self.ghosts[queue]
        return True

    def _may_run(self, home: LaneQueue[M], now: Millis) -> bool:
        if home.closed or not home.held_until <= now < home.usable_until:
            return False
        return not self.ghosts or home.order is Order.NONE or home.queue not in self.ghosts

    def _fire(self, now: Millis) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, home, lane = heapq.heappop(self._timers)
            if lane is not None:
                home.ready.append(lane)
            self.enlist(home)
