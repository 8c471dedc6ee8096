"""The only module that reads time.

Leases, time-outs and retries are measured on the monotonic clock, so a wall clock that jumps changes none of
them. Wall time is data: it goes into messages and in front of people, and decides nothing about ownership.
"""

import time
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
