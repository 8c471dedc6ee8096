"""Histories in memory with one clock, on which no two lines have the same time, and rules checked while they grow.

The clocks of processes run at different speeds, as on real machines. What a process records about its leases is
translated to the simulation's clock, because the checker merges all lines by time.
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
    """All lines of a run. `listeners` are called with each line as it is written."""

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
        earlier = [each.lines for each in self._written if each.process == process and len(each.lines) > 1]
        return max((lines[-1]["t"] for lines in earlier), default=0)

    def save(self, folder: Path) -> None:
        """Writes one file per run of a process, for the checker."""
        for number, history in enumerate(self._written):
            numbered = [line | {"n": n} for n, line in enumerate(history.lines)]
            (folder / f"{number:03d}-{history.process}.jsonl").write_bytes(_ENCODE_LINES(numbered))


class SimHistory(History):
    """The history of one run of a process; ignores what is recorded after it ended."""

    def __init__(self, histories: Histories, host: Host, process: str, role: Role) -> None:
        self.now = histories.next_ns
        self.process = process
        self.role: Role = role
        self.lines: list[dict[str, Any]] = []
        self._all = histories
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
        if self.role != "other":  # the recorded log would fill the trace
            self._all.trace.note(self.process, f"{event} {fields}")
        for listen in self._all.listeners:
            listen(self.process, event, line)


_Owned = tuple[str, str, int, int]
"""Group, topic, queue and epoch."""


class RunWatch:
    """Checks three rules that the histories alone do not show, and calls `problem` for each violation.

    1. No turn starts under a lease whose successor was granted. The checker must allow for a pause between the last
       check of the lease and the call; here there is none.
    2. A member releases a queue after its handlers have ended. The checker takes a turn that ends too late for a
       zombie turn, because it cannot know that the member had a choice.
    3. What an owner has reported as finished does not run again. The checker would count it as a redelivery.
    """

    def __init__(self, problem: Callable[[str], None], is_finished: Callable[[str, str, int, int, int], bool]) -> None:
        """`is_finished`: whether the broker knows that group, topic, queue, epoch and offset are finished."""
        self._problem = problem
        self._is_finished = is_finished
        self._parked: set[tuple[str, str, int, int]] = set()
        self._running: dict[tuple[str, _Owned], int] = {}
        self._granted: dict[tuple[str, str, int], int] = {}

    def check(self, process: str, event: str, line: dict[str, Any]) -> None:
        if event in ("lease_granted", "turn", "topic_deleted"):
            self._check_epoch(process, event, line)
        if event in ("parked", "turn"):
            self._check_finished(process, event, (line["group"], line["topic"], line["queue"], line["offset"]), line)
        if event not in ("turn", "turn_end", "lease_released"):
            return
        owned = process, (line["group"], line["topic"], line["queue"], line["epoch"])
        if event == "lease_released":
            if self._running.get(owned):
                self._problem(f"{process} gave queue {line['topic']}/{line['queue']} away while a handler was running")
        else:
            self._running[owned] = self._running.get(owned, 0) + (1 if event == "turn" else -1)

    def _check_finished(self, process: str, event: str, place: tuple[str, str, int, int], line: dict[str, Any]) -> None:
        """Parked messages count as finished, and run when they are redriven."""
        if event == "parked":
            self._parked.add(place)
        elif place not in self._parked and self._is_finished(*place[:3], line["epoch"], place[3]):
            self._problem(f"{process} ran {place[1]}/{place[2]} offset {place[3]} again, known to be finished")

    def _check_epoch(self, process: str, event: str, line: dict[str, Any]) -> None:
        """Owners in a deleted topic notice at their next renewal; no other member gets the messages they have."""
        if event == "topic_deleted":
            self._granted = {place: epoch for place, epoch in self._granted.items() if place[1] != line["topic"]}
            return
        place, epoch = (line["group"], line["topic"], line["queue"]), line["epoch"]
        newest = self._granted.get(place, 0)
        if event == "lease_granted":
            self._granted[place] = max(newest, epoch)
        elif 0 < epoch < newest:
            self._problem(f"{process} started {place[1]}/{place[2]} with epoch {epoch}, and {newest} was granted")
