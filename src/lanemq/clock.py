"""The only module that reads time.

Leases, time-outs and retries are measured on a monotonic clock, so a jump of the wall clock does not affect them. Where
the system has such a clock, it keeps running while the machine sleeps: an owner that was suspended with its machine
must not find its lease still valid after another member has taken the queue. Wall time is data for messages and people;
it decides nothing about ownership.
"""

import platform
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from lanemq._fast import compiled
from lanemq.model.checks import check_kind
from lanemq.model.errors import InvalidOption
from lanemq.model.units import Millis, to_millis
from lanemq.model.wording import shown

if sys.platform == "linux":

    @compiled
    def running_ns() -> int:
        """`SystemClock.now_ns` for loops that read the clock for every message."""
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    class _Running:
        """Linux's CLOCK_MONOTONIC, which `time.monotonic` reads, stands still during a suspend."""

        def now(self) -> Millis:
            return time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000  # type: ignore[return-value]

        def now_ns(self) -> int:
            """The clock of `now`, as fine as the machine tells it; the same for all processes of a machine."""
            return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

else:

    @compiled
    def running_ns() -> int:
        return time.monotonic_ns()

    class _Running:
        """The only such clock elsewhere."""

        def now(self) -> Millis:
            return Millis(time.monotonic_ns() // 1_000_000)

        def now_ns(self) -> int:
            return time.monotonic_ns()


MAX_WHEN = 253402300800.0
"""Seconds from 1970 to the year 10000, where a `datetime` ends."""


class Clock(Protocol):
    """The source of time; tests and simulations use their own. Read with locks held, so it must not use a client."""

    def now(self) -> Millis:
        """Milliseconds that never go back; only differences mean anything."""
        ...

    def wall(self) -> Millis:
        """Milliseconds since 1970, as the machine believes right now."""
        ...


class SystemClock(_Running):
    """The machine's two clocks. Read for every message, so it avoids every extra call, even `Millis`."""

    def wall(self) -> Millis:
        return time.time_ns() // 1_000_000  # type: ignore[return-value]


def wall_time(wall: int) -> datetime:
    """A time in milliseconds since 1970, as brokers store it, as a `datetime` in UTC."""
    return datetime.fromtimestamp(wall / 1000, UTC)


def wall_ms(when: datetime | float) -> Millis:
    """A time as users give it, a `datetime` or seconds since 1970, in milliseconds since 1970."""
    if isinstance(when, datetime):
        return to_millis(when.timestamp())
    check_kind("when", when, (int, float), "a datetime, or seconds since 1970")
    if isinstance(when, bool) or not abs(when) <= MAX_WHEN:
        raise InvalidOption(f"when={shown(when)} must be a datetime, or seconds since 1970")
    return to_millis(when)


def time_text(time: datetime) -> str:
    """A time in tables, sentences and logs: local, to the millisecond, with the zone's offset."""
    return time.astimezone().isoformat(" ", "milliseconds")


def machine_of(clock: Clock) -> str:
    """The machine, since its last start, whose processes all read this clock; empty if that is not known."""
    if not isinstance(clock, SystemClock):
        return ""
    if sys.platform != "linux":
        return platform.node()
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def nanoseconds_of(clock: Clock) -> Callable[[], int]:
    """A clock's `now` in nanoseconds, as a fast function."""
    if type(clock) is SystemClock:
        return running_ns
    return clock.now_ns if isinstance(clock, SystemClock) else lambda: clock.now() * 1_000_000
