"""The queues that have a lane that may run, in the order in which they are served, and the lanes on timers."""

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
    """The queues that have a lane that may run, in the order in which they are served.

    A queue is in the line at most once and goes to its end when it was served, so that no queue waits for the backlog
    of another. A queue that may not run now (without a lease, held, being handed over, with a run of a former
    assignment in progress) leaves the line; `enlist` puts it back when that may have changed. Held lanes are on timers.
    """

    def __init__(self) -> None:
        self._line: deque[LaneQueue[M]] = deque()
        # (when, serial, queue, lane): that lane, or the whole queue if None, may run again.
        self._timers: list[tuple[Millis, int, LaneQueue[M], Lane[M] | None]] = []
        self._serial = count(1)
        self.stale: Counter[MessageQueue] = Counter()
        """Number of runs in progress of assignments that were dropped."""
        self.to_fetch = False
        """The messages of a lane whose backoff has ended must be fetched from the broker."""

    def __bool__(self) -> bool:
        return bool(self._line)

    def enlist(self, lane_queue: LaneQueue[M]) -> None:
        """Adds a queue that may have become ready."""
        if lane_queue.ready and not lane_queue.listed:
            lane_queue.listed = True
            self._line.append(lane_queue)

    def next(self, now: Millis) -> LaneQueue[M] | None:
        """Removes and returns the first queue that may run; call `enlist` after taking lanes from it."""
        if self._timers and self._timers[0][0] <= now:
            self._fire(now)
        while self._line:
            lane_queue = self._line.popleft()
            lane_queue.listed = False
            if lane_queue.ready and self._may_run(lane_queue, now):
                return lane_queue
        return None

    def pause(self, lane_queue: LaneQueue[M], lane: Lane[M], hold: Again, now: Millis) -> Millis:
        """Holds the lane, or its whole queue; returns until when."""
        until = Millis(now + hold.delay)
        lane.slice_end = None
        if hold.whole_queue and lane_queue.order is not Order.QUEUE:
            lane_queue.held_until = max(lane_queue.held_until, until)
            lane_queue.ready.appendleft(lane)
            heapq.heappush(self._timers, (until, next(self._serial), lane_queue, None))
        else:
            lane_queue.aside.paused(lane)
            heapq.heappush(self._timers, (until, next(self._serial), lane_queue, lane))
        return until

    def next_timer(self) -> Millis | None:
        return self._timers[0][0] if self._timers else None

    def timers(self) -> Iterator[tuple[Millis, LaneQueue[M], Lane[M] | None]]:
        """All timers, the earliest first."""
        for until, _, lane_queue, lane in sorted(self._timers, key=lambda timer: timer[:2]):
            yield until, lane_queue, lane

    def stale_ended(self, queue: MessageQueue) -> bool:
        """Counts a run of a former assignment that ended; returns whether it was the last one."""
        self.stale[queue] -= 1
        if self.stale[queue]:
            return False
        del self.stale[queue]
        return True

    def _may_run(self, lane_queue: LaneQueue[M], now: Millis) -> bool:
        if lane_queue.withdrawn or not lane_queue.held_until <= now < lane_queue.usable_until:
            return False
        return not self.stale or lane_queue.order is Order.NONE or lane_queue.queue not in self.stale

    def _fire(self, now: Millis) -> None:
        while self._timers and self._timers[0][0] <= now:
            _, _, lane_queue, lane = heapq.heappop(self._timers)
            if lane is not None and not lane_queue.aside.timer_fired(lane):
                self.to_fetch = True
            self.enlist(lane_queue)
