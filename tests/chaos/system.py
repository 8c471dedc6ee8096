"""Starts, kills, freezes and watches the processes of a test, and calls the checker at the end.

What happened is read from the histories that the processes write.
"""

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from tests.chaos.roles import GROUP, TOPIC

from lanemq.checker.checking import CheckOptions, check
from lanemq.checker.verdict import Report
from lanemq.clock import SystemClock
from lanemq.history import Place, open_history
from lanemq.log.store import Store
from lanemq.wire.record import RecordView, record_starts

ROOT = Path(__file__).parents[2]
TIMEOUT = 60.0
"""Seconds after which a wait fails; long enough for a busy machine."""
FORGETS_MS = 5_000
"""Age of commits that a crash may undo; on an idle machine 200 ms, which the simulation checks on virtual time."""
Event = dict[str, Any]


class Child:
    """One process of a test."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        self.name = name
        self.process = process

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    @property
    def catches_sigterm(self) -> bool:
        """Whether the process has started far enough to end well; before that, SIGTERM kills it."""
        status = Path(f"/proc/{self.process.pid}/status").read_text("ascii", "replace")
        caught = next(line for line in status.splitlines() if line.startswith("SigCgt:"))
        return bool(int(caught.split()[1], 16) >> (signal.SIGTERM - 1) & 1)

    def stop(self) -> None:
        """Sends SIGSTOP; returns when every thread is stopped."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def ended(self, seconds: float = TIMEOUT) -> int:
        return self.process.wait(seconds)


class SystemUnderTest:
    """The processes of one test, in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = folder / "history"
        self.history.mkdir()
        self.data = folder / "data"
        self.address = f"127.0.0.1:{lasting_port()}"
        self.events: list[Event] = []
        self._children: list[Child] = []
        self._queues = 4
        self._read: dict[Path, int] = {}
        self._operator = open_history(self.history, "operator", SystemClock().now_ns)

    # starting

    def broker(self, without: Sequence[str] = (), **options: Any) -> Child:
        """A broker on the folder's data, always on the same port."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        self._queues = options.get("default_queues", 4)
        settings = {"listen": self.address, "data": str(self.data), "ready": str(ready), "options": options}
        child = self._start("broker", "broker", settings, without)
        self.until("the broker listens", lambda: ready.exists() and ready.read_text(), alive=child)
        self.address = ready.read_text()
        return child

    def producer(self, name: str = "p", **settings: Any) -> Child:
        defaults = {"count": 0, "keys": 20, "ahead": 100, "pause_ms": 0, "options": {}, "queues": self._queues}
        return self._start("produce", name, {**defaults, **settings}, ())

    def consumer(self, name: str, without: Sequence[str] = (), prefix: Sequence[str] = (), **settings: Any) -> Child:
        """A member; `prefix` is a command that runs its process, such as one that enters a namespace."""
        defaults = {"work_ms": 1, "lanes": 8, "whole_queue": False, "stuck": None, "forks": False, "options": {}}
        return self._start("consume", name, {**defaults, **settings}, without, prefix)

    def _start(
        self, role: str, name: str, settings: dict[str, Any], without: Sequence[str], prefix: Sequence[str] = ()
    ) -> Child:
        common = {"name": name, "address": self.address, "history": str(self.history), "without": list(without)}
        command = [*prefix, sys.executable, "-m", "tests.chaos.roles", role, json.dumps({**common, **settings})]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        with (self.folder / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=self.folder)
        child = Child(name, process)
        self._children.append(child)
        return child

    # faults

    def kill(self, child: Child) -> None:
        """Sends SIGKILL; returns when the process is gone."""
        self._operator.fault("kill -9", child.name, "start")
        child.signal(signal.SIGKILL)
        child.ended()

    def fault(self, kind: str, child: Child, phase: str) -> None:
        """Records a fault of a child."""
        self._operator.fault(kind, child.name, phase)

    def end_children(self, child: Child) -> None:
        """Kills the children that a child has forked."""
        for file in self.folder.glob(f"{child.name}.child.*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.suffix[1:]), signal.SIGKILL)
            file.unlink()

    def freeze(self, child: Child) -> None:
        self.frozen(child)
        child.stop()

    def frozen(self, child: Child) -> None:
        """Records that `child` is stopped."""
        self._operator.fault("freeze", child.name, "start")

    def thaw(self, child: Child) -> None:
        self._operator.fault("freeze", child.name, "end")
        child.signal(signal.SIGCONT)

    def finish(self, *parts: Child) -> None:
        """Sends SIGTERM, and waits for a clean end of each."""
        for child in parts:
            self.until(f"{child.name} has started", lambda child=child: child.catches_sigterm, alive=child)
            child.signal(signal.SIGTERM)
        for child in parts:
            self.until(f"{child.name} ends", lambda child=child: not child.alive)
            assert child.ended() == 0, f"{child.name} did not end well: {self.log_of(child)}"

    def close(self) -> None:
        for child in self._children:
            if child.alive:
                child.signal(signal.SIGKILL)
                child.ended()
            self.end_children(child)
        self._operator.close()

    def children(self, *names: str) -> list[Child]:
        """The running children with these names."""
        return [child for child in self._children if child.name in names and child.alive]

    # events

    def look(self) -> list[Event]:
        """All events so far, file by file; in order within a file."""
        for path in sorted(self.history.glob("*.jsonl")):
            with path.open("rb") as file:
                file.seek(self._read.get(path, 0))
                data = file.read()
            whole = data.rpartition(b"\n")[0]
            if whole:
                self._read[path] = self._read.get(path, 0) + len(whole) + 1
                self.events += [json.loads(line) | {"by": path.stem} for line in whole.split(b"\n")]
        return self.events

    def seen(self, kind: str, by: str | None = None, after: int = 0) -> list[Event]:
        return [e for e in self.look() if e["e"] == kind and by in (None, e["by"]) and e["t"] > after]

    def is_drained(self) -> bool:
        """Whether everything acknowledged was finished by the group.

        A repeat whose offset the broker has lost in a crash has offset -1; the checker finds it by its id.
        """
        acked = {(e["queue"], e["offset"]) for e in self.seen("acked") if e["offset"] >= 0}
        commits = sorted((e for e in self.seen("committed") if e["topic"] == TOPIC), key=lambda e: int(e["t"]))
        passed = {e["queue"]: e["offset"] for e in commits}
        good = (e for e in self.seen("turn_end") if e["outcome"] == "ok" or e["offset"] < passed.get(e["queue"], 0))
        return acked <= {(e["queue"], e["offset"]) for e in good}

    def owners(self) -> dict[int, str]:
        """The last owner of each queue."""
        granted = sorted((e for e in self.seen("lease_granted") if e["topic"] == TOPIC), key=lambda e: e["t"])
        return {e["queue"]: e["member"] for e in granted}

    def until(
        self, what: str, true: Callable[[], object], seconds: float = TIMEOUT, alive: Child | None = None
    ) -> None:
        end = time.monotonic() + seconds
        while not true():
            if alive is not None and not alive.alive:
                pytest.fail(f"{alive.name} ended while waiting until {what}: {self.log_of(alive)}")
            if time.monotonic() > end:
                pytest.fail(f"waited {seconds:.0f} s until {what}\n{self._logs_and_stacks()}")
            time.sleep(0.02)

    def _logs_and_stacks(self) -> str:
        """The logs of all children, with the stacks of those that run."""
        living = [child for child in self._children if child.alive]
        for child in living:
            child.signal(signal.SIGCONT)
            child.signal(signal.SIGUSR1)
        time.sleep(0.5 if living else 0)
        return "\n".join(f"{child.name}: {self.log_of(child)}" for child in self._children)

    def log_of(self, child: Child) -> str:
        return (self.folder / f"{child.name}.log").read_text()[-9000:]

    # verdict

    def dump_log(self) -> None:
        """Records every message of the log for the checker. No broker may be running."""
        store = Store(self.data)
        store.recover()
        record = open_history(self.history, "dump", SystemClock().now_ns)
        for number in range(64):
            for view in stored_records(store, number):
                properties = view.properties
                record.stored(TOPIC, properties["__SHARDINGKEY"], properties["UNIQ_KEY"], number, view.queue_offset)
        record.close()
        store.close()

    def judge(self, *require: str, drained: bool = True) -> Report:
        self._operator.close()
        options = CheckOptions(require=("turns", *require), drained=drained, forgets_ns=FORGETS_MS * 1_000_000)
        return check([self.history], options)


def lasting_port() -> int:
    """A port outside the range of ephemeral ports, so that no other test gets it while the broker is down."""
    for port in random.sample(range(20_000, 32_000), 100):
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise AssertionError("no port is free")


def stored_records(store: Store, number: int) -> Iterator[RecordView]:
    offset, end = store.bounds(TOPIC, number)
    while offset < end:
        result = store.read(TOPIC, number, offset, 1000, 1 << 22)
        for start in record_starts(result.data):
            yield RecordView(result.data, start)
        offset = result.next_offset


def complaint(report: Report) -> str:
    """The checker's report in a few lines, for an assert."""
    found = [f"{each.invariant} {each.text}" for each in report.violations[:5]]
    return "\n".join([report.verdict.name, *report.reasons, str(report.counts), *found, *report.around[:20]])


@contextlib.contextmanager
def system_in(folder: Path) -> Iterator[SystemUnderTest]:
    system = SystemUnderTest(folder)
    try:
        yield system
    finally:
        system.close()


__all__ = ["GROUP", "TOPIC", "Child", "Event", "Place", "SystemUnderTest", "complaint", "stored_records", "system_in"]
