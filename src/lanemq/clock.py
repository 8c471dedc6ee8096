"""The only module that reads time.

Leases, time-outs and retries are measured on the monotonic clock, so a wall clock that jumps changes none of
them. Wall time is data: it goes into messages and in front of people, and decides nothing about ownership.
"""

import time
from collections.abc import Callable
from typing import Protocol

from lanemq.model.units import Millis


class Clock(Protocol):
    """Where shells get `now` from; tests and simulations bring their own."""

    def now(self) -> Millis:
        """Milliseconds that never go back; only differences mean anything."""
        ...

    def wall(self) -> Millis:
        """Milliseconds since 1970, as the machine believes right now."""
        ...


class SystemClock:
    """The machine's two clocks."""

    def now(self) -> Millis:
        return Millis(time.monotonic_ns() // 1_000_000)

    def wall(self) -> Millis:
        return Millis(time.time_ns() // 1_000_000)

    def now_ns(self) -> int:
        """The clock of `now`, as fine as the machine tells it; the same for all processes of a machine."""
        return time.monotonic_ns()


def nanoseconds_of(clock: Clock) -> Callable[[], int]:
    """A clock's `now` in nanoseconds, as a history wants it."""
    return clock.now_ns if isinstance(clock, SystemClock) else lambda: clock.now() * 1_000_000
