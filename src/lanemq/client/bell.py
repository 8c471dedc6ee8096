"""How threads of a client wait for each other, whatever a signal handler or a finalizer does in between.

`threading.Condition` and `Event` are Python code around a lock of their own. A signal handler that raises in that code
leaves the lock taken, or free where it must be taken; a finalizer that uses the same object from there waits for its
own thread. `Bell` has no lock: each step is one operation of a deque or of a bare lock, and a thread that waits holds
nothing.
"""

import math
import threading
from collections import deque
from collections.abc import Callable

from lanemq.clock import SystemClock
from lanemq.model.units import to_millis

LOOK_AGAIN_SECONDS = 1.0
"""Longest sleep of `wait_until`: a signal handler may have raised between a change and its ring."""

_REAL_CLOCK = SystemClock()


class Bell:
    """Wakes threads that wait for a change. The thread that makes the change rings afterwards."""

    def __init__(self) -> None:
        # A lock that is taken: its thread sleeps. Threads remove their own locks.
        self._sleepers: deque[threading.Lock] = deque()

    def __len__(self) -> int:
        """How many threads wait."""
        return len(self._sleepers)

    @property
    def is_waking(self) -> bool:
        """Whether a thread was woken and does not run yet."""
        return not all([sleeper.locked() for sleeper in [*self._sleepers]])

    def ring(self, most: float = math.inf) -> int:
        """Wakes threads that sleep, all or so many; returns how many. Any thread, finalizer or signal handler may."""
        rung = 0
        for sleeper in [*self._sleepers]:
            if rung >= most:
                break
            if sleeper.locked():
                try:
                    sleeper.release()
                    rung += 1
                except RuntimeError:
                    pass  # another thread has just woken it
        return rung

    def sleeper(self) -> threading.Lock:
        """Announces a `sleep`, which is over at once if the bell rings before it begins."""
        sleeper = threading.Lock()
        sleeper.acquire()
        self._sleepers.append(sleeper)
        return sleeper

    def sleep(self, sleeper: threading.Lock, seconds: float | None) -> None:
        """Sleeps until the bell rings, at most `seconds`."""
        try:
            sleeper.acquire(timeout=-1 if seconds is None else seconds)
        finally:
            self._sleepers.remove(sleeper)

    def wait_until(self, true: Callable[[], bool], seconds: float | None = None) -> bool:
        """Waits until `true()`, at most `seconds`; returns whether it is. Not to be called with a lock held."""
        until = math.inf if seconds is None else _REAL_CLOCK.now() + to_millis(seconds)
        while not true():
            left = min(LOOK_AGAIN_SECONDS, (until - _REAL_CLOCK.now()) / 1000)
            if left <= 0:
                return False
            sleeper = self.sleeper()
            self.sleep(sleeper, 0 if true() else left)  # it may have become true before there was a sleeper
        return True
