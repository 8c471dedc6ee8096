"""Starts, hurts and watches the processes of a test, and asks the checker in the end.

What happened is read from the histories the processes write, never from their own opinion. Nothing waits by
sleeping: `until` polls a condition and fails with a sentence when its time is over.
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
PATIENCE = 60.0
"""Seconds. Only a run that fails waits this long; a busy machine may need much of it."""
FORGETS_MS = 5_000
"""A crash may take the commits of 200 ms; where the machine or its disk is busy with other things, their writer comes
late. That it comes at all, and every moment, is shown on virtual time (`sim`)."""
Event = dict[str, Any]


class Part:
    """One process of a test."""

    def __init__(self, name: str, process: "subprocess.Popen[bytes]") -> None:
        self.name = name
        self.process = process

    @property
    def alive(self) -> bool:
        return self.process.poll() is None

    def signal(self, number: int) -> None:
        os.kill(self.process.pid, number)

    def stop(self) -> None:
        """SIGSTOP; returns when every thread stands still, which is a moment after the signal was sent."""
        self.signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED)

    def ended(self, seconds: float = PATIENCE) -> int:
        return self.process.wait(seconds)


class Stage:
    """The processes of one test, all in one folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.history = folder / "history"
        self.history.mkdir()
        self.data = folder / "data"
        self.address = f"127.0.0.1:{lasting_port()}"
        self.events: list[Event] = []
        self._parts: list[Part] = []
        self._read: dict[Path, int] = {}
        self._operator = open_history(self.history, "operator", SystemClock().now_ns)

    # who plays

    def broker(self, without: Sequence[str] = (), **options: Any) -> Part:
        """A broker on the folder's data, always on the same port."""
        ready = self.folder / "ready"
        ready.unlink(missing_ok=True)
        settings = {"listen": self.address, "data": str(self.data), "ready": str(ready), "options": options}
        part = self._start("broker", "broker", settings, without)
        self.until("the broker listens", lambda: ready.exists() and ready.read_text(), alive=part)
        self.address = ready.read_text()
        return part

    def producer(self, name: str = "p", **settings: Any) -> Part:
        defaults = {"count": 0, "keys": 20, "ahead": 100, "pause_ms": 0, "options": {}}
        return self._start("produce", name, {**defaults, **settings}, ())

    def consumer(self, name: str, without: Sequence[str] = (), prefix: Sequence[str] = (), **settings: Any) -> Part:
        """A member; `prefix` is a command that runs its process, such as one that enters a namespace."""
        defaults = {"work_ms": 1, "lanes": 8, "whole_queue": False, "stuck": None, "forks": False, "options": {}}
        return self._start("consume", name, {**defaults, **settings}, without, prefix)

    def _start(
        self, role: str, name: str, settings: dict[str, Any], without: Sequence[str], prefix: Sequence[str] = ()
    ) -> Part:
        common = {"name": name, "address": self.address, "history": str(self.history), "without": list(without)}
        command = [*prefix, sys.executable, "-m", "tests.chaos.roles", role, json.dumps({**common, **settings})]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), str(ROOT / "src")])}
        with (self.folder / f"{name}.log").open("ab") as out:
            process = subprocess.Popen(command, stdout=out, stderr=out, env=environment, cwd=self.folder)
        part = Part(name, process)
        self._parts.append(part)
        return part

    # what is done to them

    def kill(self, part: Part) -> None:
        """SIGKILL; returns when the process is gone."""
        self._operator.fault("kill -9", part.name, "start")
        part.signal(signal.SIGKILL)
        part.ended()

    def fault(self, kind: str, part: Part, phase: str) -> None:
        """Writes down that something happens to a part."""
        self._operator.fault(kind, part.name, phase)

    def end_children(self, part: Part) -> None:
        """Kills the children that a part has forked."""
        for file in self.folder.glob(f"{part.name}.child.*"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(file.suffix[1:]), signal.SIGKILL)
            file.unlink()

    def freeze(self, part: Part) -> None:
        self.frozen(part)
        part.stop()

    def frozen(self, part: Part) -> None:
        """Writes down that `part` was stopped already."""
        self._operator.fault("freeze", part.name, "start")

    def thaw(self, part: Part) -> None:
        self._operator.fault("freeze", part.name, "end")
        part.signal(signal.SIGCONT)

    def finish(self, *parts: Part) -> None:
        """SIGTERM, and a clean end of each."""
        for part in parts:
            part.signal(signal.SIGTERM)
        for part in parts:
            self.until(f"{part.name} ends", lambda part=part: not part.alive)
            assert part.ended() == 0, f"{part.name} did not end well: {self.said_by(part)}"

    def close(self) -> None:
        for part in self._parts:
            if part.alive:
                part.signal(signal.SIGKILL)
                part.ended()
            self.end_children(part)
        self._operator.close()

    def parts(self, *names: str) -> list[Part]:
        """Those of these names that still run."""
        return [part for part in self._parts if part.name in names and part.alive]

    # what is seen of them

    def look(self) -> list[Event]:
        """All events so far, file by file; within a file in order."""
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

        A repeat whose place a crash made the broker forget has offset -1: that it ran, the checker finds by its id.
        """
        acked = {(e["queue"], e["offset"]) for e in self.seen("acked") if e["offset"] >= 0}
        commits = sorted((e for e in self.seen("committed") if e["topic"] == TOPIC), key=lambda e: int(e["t"]))
        passed = {e["queue"]: e["offset"] for e in commits}
        good = (e for e in self.seen("turn_end") if e["outcome"] == "ok" or e["offset"] < passed.get(e["queue"], 0))
        return acked <= {(e["queue"], e["offset"]) for e in good}

    def owners(self) -> dict[int, str]:
        """Who was granted each queue last."""
        granted = sorted((e for e in self.seen("lease_granted") if e["topic"] == TOPIC), key=lambda e: e["t"])
        return {e["queue"]: e["member"] for e in granted}

    def until(
        self, what: str, true: Callable[[], object], seconds: float = PATIENCE, alive: Part | None = None
    ) -> None:
        end = time.monotonic() + seconds
        while not true():
            if alive is not None and not alive.alive:
                pytest.fail(f"{alive.name} ended while waiting until {what}: {self.said_by(alive)}")
            if time.monotonic() > end:
                pytest.fail(f"waited {seconds:.0f} s until {what}\n{self._where_everybody_is()}")
            time.sleep(0.02)

    def _where_everybody_is(self) -> str:
        """Everybody's log, with the stacks of those who still live."""
        living = [part for part in self._parts if part.alive]
        for part in living:
            part.signal(signal.SIGCONT)
            part.signal(signal.SIGUSR1)
        time.sleep(0.5 if living else 0)
        return "\n".join(f"{part.name}: {self.said_by(part)}" for part in self._parts)

    def said_by(self, part: Part) -> str:
        return (self.folder / f"{part.name}.log").read_text()[-9000:]

    # how it is judged

    def dump_log(self) -> None:
        """Writes down every record of the log, for the checker. No broker may run."""
        store = Store(self.data)
        store.recover()
        record = open_history(self.history, "dump", SystemClock().now_ns)
        for number in range(64):
            for view in stored_records(store, number):
                names = view.properties
                record.stored(TOPIC, names["__SHARDINGKEY"], names["UNIQ_KEY"], number, view.queue_offset)
        record.close()
        store.close()

    def judge(self, *require: str, drained: bool = True) -> Report:
        self._operator.close()
        options = CheckOptions(require=("turns", *require), drained=drained, forgets_ns=FORGETS_MS * 1_000_000)
        return check([self.history], options)


def lasting_port() -> int:
    """One that the system gives to nobody who asks for any: another test may do so while the broker is down."""
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
    """For an assert: what the checker says, in a few lines."""
    found = [f"{each.invariant} {each.text}" for each in report.violations[:5]]
    return "\n".join([report.verdict.name, *report.reasons, str(report.counts), *found, *report.around[:20]])


@contextlib.contextmanager
def stage_in(folder: Path) -> Iterator[Stage]:
    stage = Stage(folder)
    try:
        yield stage
    finally:
        stage.close()


__all__ = ["GROUP", "TOPIC", "Event", "Part", "Place", "Stage", "complaint", "stage_in", "stored_records"]
