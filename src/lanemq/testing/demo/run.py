"""One run of the main job: its processes, files and times."""

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lanemq.clock import SystemClock
from lanemq.history import open_history
from lanemq.model.errors import LaneError

MAX_STEP_SECONDS = 300.0
"""Seconds after which a step that hangs ends with an error."""


@dataclass(slots=True)
class DemoRun:
    """The processes of a run and the times of what happened, both by name."""

    folder: Path
    orders: int
    address: str = ""
    processes: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)
    killed: set[str] = field(default_factory=set)
    marks: dict[str, float] = field(default_factory=dict)

    @property
    def history(self) -> Path:
        return self.folder / "history"

    def mark(self, what: str) -> None:
        self.marks.setdefault(what, time.perf_counter())

    def start(self, name: str, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a process; its output goes to a file of its name."""
        with self.log_of(name).open("wb") as out:
            process = subprocess.Popen([sys.executable, "-m", *arguments], stdout=out, stderr=out)
        self.processes[name] = process
        return process

    def log_of(self, name: str) -> Path:
        return self.folder / f"{name}.log"

    def kill(self, name: str, pid: int) -> None:
        """Kills a process with SIGKILL, and records it for the checker."""
        record = open_history(self.history, f"operator-{name}", SystemClock().now_ns)
        record.fault("kill -9", name, "start")
        os.kill(pid, signal.SIGKILL)
        record.fault("kill -9", name, "end")
        record.close()
        self.killed.add(name)
        self.mark(f"kill {name}")

    def check_alive(self) -> None:
        for name, process in self.processes.items():
            ended = process.poll()
            may_end = name == "console" or (name == "generator" and ended == 0)
            if ended is None or name in self.killed or may_end:
                continue
            raise LaneError(f"{name} ended with {ended}: {self.last_line(name)}")

    def last_line(self, name: str) -> str:
        lines = self.log_of(name).read_text(errors="replace").strip().splitlines()
        return lines[-1] if lines else f"no output, see {self.log_of(name)}"

    def end(self, *names: str) -> None:
        """Sends SIGTERM to processes whose names start with `names`, and waits until they end."""
        ending = [process for name, process in self.processes.items() if name.startswith(names)]
        for process in ending:
            if process.poll() is None:
                process.terminate()
        for process in ending:
            process.wait(timeout=MAX_STEP_SECONDS)

    def stop_all(self) -> None:
        for process in self.processes.values():
            if process.poll() is None:
                process.kill()
            process.wait()


def until(what: str) -> Iterator[None]:
    """Yields ten times per second, and raises an error when the time is over."""
    end = time.perf_counter() + MAX_STEP_SECONDS
    while time.perf_counter() < end:
        yield
        time.sleep(0.1)
    raise LaneError(f"waited {MAX_STEP_SECONDS:.0f} s for {what}")


BROKER_READY = re.compile(r"^LaneMQ \S+ on (\S+:\d+)", re.MULTILINE)
"""The line by which the broker says that it is ready. The address of its monitor may follow."""


def start_broker(run: DemoRun) -> str:
    """Starts the broker and returns its address."""
    run.start(
        "broker",
        "lanemq.cli.main", "broker", "--listen", "127.0.0.1:0",
        "--data", str(run.folder / "data"), "--history", str(run.history),
    )  # fmt: skip
    for _ in until("the broker to start"):
        run.check_alive()
        match = BROKER_READY.search(run.log_of("broker").read_text())
        if match:
            return match[1]
    raise AssertionError


def start_console(run: DemoRun, checkpoint: Path) -> str:
    """Starts the console and returns its address. It ends with the run.

    The run continues without a console: its packages may be missing.
    """
    run.start(
        "console",
        "lanemq.cli.main", "console", "--server", run.address, "--listen", "127.0.0.1:0", "--pipeline", str(checkpoint),
    )  # fmt: skip
    for _ in until("the console to start"):
        match = re.search(r"^LaneMQ console on (\S+)", run.log_of("console").read_text(), re.MULTILINE)
        if match:
            return match[1]
        if run.processes["console"].poll() is not None:
            del run.processes["console"]
            return f"no page ({run.last_line('console')})"
    raise AssertionError
