"""Histories in memory: one clock for all of them, and no two lines at one time.

Processes have clocks that run apart, as machines do. What they write down about their own leases is translated to
the simulation's clock, since the checker merges the lines of all of them by time.
"""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import msgspec

from lanemq.history import History, Role
from lanemq.testing.sim.host import Host
from lanemq.testing.sim.trace import Trace

_ENCODE_LINES = msgspec.json.Encoder().encode_lines
Listener = Callable[[str, str, dict[str, Any]], None]
_Spot = tuple[str, str, int]
"""Group, topic and queue."""
_LEASES = ("lease_granted", "lease_renewed", "lease_released", "lease_expired")


class Histories:
    """Every line of a run; `listeners` hear of each as it is written."""

    def __init__(self, now: Callable[[], float], trace: Trace) -> None:
        self.listeners: list[Listener] = []
        self.trace = trace
        self._now = now
        self._last = 0
        self._written: list[SimHistory] = []
        self._given_away: dict[tuple[_Spot, int], None] = {}
        self._epochs: dict[_Spot, int] = {}
        self._committed: dict[_Spot, None] = {}
        self._taken_back: dict[_Spot, list[tuple[int, int]]] = {}

    def next_ns(self) -> int:
        self._last = max(self._last + 1, int(self._now() * 1_000_000_000))
        return self._last

    def open(self, host: Host, process: str, role: Role) -> "SimHistory":
        history = SimHistory(self, host, process, role)
        self._written.append(history)
        return history

    def look(self, event: str, fields: dict[str, Any], role: Role) -> None:
        """Keeps what is needed to tell later which lines have become void.

        A turn that ends after its queue was given to another is void, whatever its member believes: its epoch
        cannot commit it any more, which the checker sees to. The member may learn of that only later, and writes
        down what it believes.
        """
        if "group" not in fields:
            return
        spot = fields["group"], fields["topic"], fields["queue"]
        if event == "committed":
            self._committed[spot] = None
        elif event == "lease_granted" and role == "broker":
            self._epochs[spot] = max(self._epochs.get(spot, 0), fields["epoch"])
        elif event == "lease_released" and role == "consumer":
            self._given_away[spot, fields["epoch"]] = None
        elif event == "turn_end" and self._is_void(spot, fields["epoch"]):
            fields["outcome"] = "abandoned"
            self.trace.count("turn that outlived its lease")

    def _is_void(self, spot: _Spot, epoch: int) -> bool:
        """Another has it, and not because its member gave it away: then nothing of its own may have run any more."""
        return epoch < self._epochs.get(spot, 0) and (spot, epoch) not in self._given_away

    def crashed(self, found: Mapping[_Spot, int]) -> None:
        """A broker came back after a crash with these committed offsets.

        What it had accepted beyond them, and not yet written, is delivered again: that is the promise. So those
        commits are taken out of the histories of everybody who heard of them.
        """
        for spot in self._committed:
            self._taken_back.setdefault(spot, []).append((self._last, found.get(spot, 0)))

    def _is_taken_back(self, line: dict[str, Any]) -> bool:
        if line["e"] != "committed":
            return False
        asked = line["asked"] or line["t"]
        crashes = self._taken_back.get((line["group"], line["topic"], line["queue"]), ())
        return any(asked <= when and line["offset"] > found for when, found in crashes)

    def save(self, folder: Path) -> None:
        """As files, one per life of a process, for the checker."""
        for number, history in enumerate(self._written):
            lines = [line for line in history.lines if not self._is_taken_back(line)]
            numbered = [line | {"n": n} for n, line in enumerate(lines)]
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
        self._all.look(event, fields, self.role)
        line = {"e": event, "t": self.now(), **fields}
        self.lines.append(line)
        if self.role != "other":  # who reads the log at the end would fill the trace with it
            self._all.trace.note(self.process, f"{event} {fields}")
        for listen in self._all.listeners:
            listen(self.process, event, line)
