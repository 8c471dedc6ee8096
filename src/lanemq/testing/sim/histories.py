"""Histories in memory: one clock for all of them, and no two lines at one time.

Processes have clocks that run apart, as machines do. What they write down about their own leases is translated to
the simulation's clock, since the checker merges the lines of all of them by time.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from lanemq.history import History, Role
from lanemq.testing.sim.host import Host
from lanemq.testing.sim.trace import Trace

_ENCODE_LINES = msgspec.json.Encoder().encode_lines
Listener = Callable[[str, str, dict[str, Any]], None]
_LEASES = ("lease_granted", "lease_renewed", "lease_released", "lease_expired")


class Histories:
    """Every line of a run; `listeners` hear of each as it is written."""

    def __init__(self, now: Callable[[], float], trace: Trace) -> None:
        self.listeners: list[Listener] = []
        self.trace = trace
        self._now = now
        self._last = 0
        self._written: list[SimHistory] = []

    def next_ns(self) -> int:
        self._last = max(self._last + 1, int(self._now() * 1_000_000_000))
        return self._last

    def open(self, host: Host, process: str, role: Role) -> "SimHistory":
        history = SimHistory(self, host, process, role)
        self._written.append(history)
        return history

    def last_of(self, process: str) -> int:
        """As `lanemq.history.last_time`."""
        lives = [each.lines for each in self._written if each.process == process and len(each.lines) > 1]
        return max((lines[-1]["t"] for lines in lives), default=0)

    def save(self, folder: Path) -> None:
        """As files, one per life of a process, for the checker."""
        for number, history in enumerate(self._written):
            numbered = [line | {"n": n} for n, line in enumerate(history.lines)]
            (folder / f"{number:03d}-{history.process}.jsonl").write_bytes(_ENCODE_LINES(numbered))


class SimHistory(History):
    """The history of one life of one process; silent when that life is over."""

    def __init__(self, all_of_them: Histories, host: Host, process: str, role: Role) -> None:
        self.now = all_of_them.next_ns
        self.process = process
        self.role: Role = role
        self.lines: list[dict[str, Any]] = []
        self._all = all_of_them
        self.host = host
        self._open = True
        self._write("begin", {"name": process, "role": role, "run": ""})

    def close(self) -> None:
        self._open = False

    def _write(self, event: str, fields: dict[str, Any]) -> None:
        if not self._open or self.host.dead:
            return
        if event in _LEASES:
            for name in ("until", "asked"):
                if fields.get(name):
                    fields[name] = max(1, self.host.clock.true_ns(fields[name]))
        if event == "turn_end" and fields["outcome"] in ("late", "abandoned"):
            self._all.trace.count("turn that outlived its lease")
        line = {"e": event, "t": self.now(), **fields}
        self.lines.append(line)
        if self.role != "other":  # who reads the log at the end would fill the trace with it
            self._all.trace.note(self.process, f"{event} {fields}")
        for listen in self._all.listeners:
            listen(self.process, event, line)
