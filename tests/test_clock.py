"""The clock that leases are measured by."""

import subprocess
import sys
import time

import pytest

from lanemq.clock import SystemClock, machine_of
from lanemq.model.units import Millis


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux has a clock that counts time in suspend")
def test_leases_run_on_while_the_machine_sleeps(monkeypatch: pytest.MonkeyPatch) -> None:
    """An owner that wakes from a suspend must see that its lease is over; CLOCK_MONOTONIC stands still."""
    hours = {time.CLOCK_BOOTTIME: 0}
    monkeypatch.setattr(time, "clock_gettime_ns", lambda clock: hours[clock] * 3_600 * 10**9)
    monkeypatch.setattr(time, "monotonic_ns", lambda: 0)
    clock = SystemClock()
    before, before_ns = clock.now(), clock.now_ns()
    hours[time.CLOCK_BOOTTIME] += 8
    assert clock.now() - before == 8 * 3_600_000
    assert clock.now_ns() - before_ns == 8 * 3_600 * 10**9


class HandClock:
    def now(self) -> Millis:
        return Millis(0)

    def wall(self) -> Millis:
        return Millis(0)


def test_only_the_clock_of_the_machine_has_a_machine() -> None:
    """Processes of one machine name the same one, so that their times can be compared."""
    assert machine_of(HandClock()) == ""
    named = machine_of(SystemClock())
    program = "from lanemq.clock import SystemClock, machine_of; print(machine_of(SystemClock()))"
    other = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert named == other.stdout.strip() != ""
