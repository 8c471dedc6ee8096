"""What every measurement shares: a broker in a process of its own, rounds, and one JSON line per figure.

Wall time on a shared machine says little, so each line also has the CPU time per message of both sides, whether the
compiled twins ran (`variant`) and the load average. `value` is the median; the best round is listed beside it.
"""

import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple, Self

from lanemq._fast import VARIANT
from lanemq.client.admin.admin import Admin

KEYS, QUEUES, TOPIC = 100, 4, "bench"
Messages = list[tuple[str, bytes]]

_CPU_CLOCK_SCHED = 2
_PAGE_MIB = os.sysconf("SC_PAGE_SIZE") / 2**20


class BrokerProcess:
    """`lanemq broker` on a free port with an empty data folder, both removed at the end."""

    def __init__(self, *, durable: bool = False) -> None:
        self.mode = "durable" if durable else "relaxed"
        self.address = ""
        self.start_seconds = 0.0
        self._folder = tempfile.TemporaryDirectory(prefix="lanemq-bench-")

    def __enter__(self) -> Self:
        command = [sys.executable, "-m", "lanemq.cli.main", "broker", "--listen", "127.0.0.1:0"]
        command += ["--data", self._folder.name, *(["--relaxed"] if self.mode == "relaxed" else [])]
        began = time.perf_counter()
        self._process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        assert self._process.stderr is not None
        found = re.search(r" on (\S+:\d+),", self._process.stderr.readline())
        self.start_seconds = time.perf_counter() - began
        assert found is not None, "the broker did not start"
        self.address = found[1]
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.communicate()
        self._folder.cleanup()

    def create_topic(self, name: str = TOPIC, queues: int = QUEUES) -> None:
        with Admin(self.address) as admin:
            admin.create_topic(name, queues, ordered=True)

    @property
    def pid(self) -> int:
        return self._process.pid

    def cpu_seconds(self) -> float:
        return process_cpu_seconds(self._process.pid)

    def resident_mib(self) -> float:
        return int(Path(f"/proc/{self._process.pid}/statm").read_text().split()[1]) * _PAGE_MIB


def process_cpu_seconds(pid: int) -> float:
    """CPU time of a process so far, of all its threads, from its CPU clock (Linux), which counts nanoseconds."""
    return time.clock_gettime((~pid << 3) | _CPU_CLOCK_SCHED)


class Round(NamedTuple):
    """One run of one measurement."""

    count: int
    seconds: float
    client_cpu: float
    broker_cpu: float


def timed(broker: BrokerProcess, count: int, work: Callable[[], object]) -> Round:
    broker_cpu, client_cpu, began = broker.cpu_seconds(), time.process_time(), time.perf_counter()
    work()
    seconds = time.perf_counter() - began
    return Round(count, seconds, time.process_time() - client_cpu, broker.cpu_seconds() - broker_cpu)


def report_rounds(name: str, rounds: list[Round], *, unit: str = "msg/s", scale: float = 1.0, **more: Any) -> None:
    """A rate: median and best round, CPU microseconds per message of both sides."""
    rates = [each.count * scale / each.seconds for each in rounds]
    count = sum(each.count for each in rounds)
    report(
        name,
        statistics.median(rates),
        unit,
        best=_rounded(max(rates)),
        rounds=len(rounds),
        messages=rounds[0].count,
        client_cpu_us=round(sum(each.client_cpu for each in rounds) / count * 1e6, 2),
        broker_cpu_us=round(sum(each.broker_cpu for each in rounds) / count * 1e6, 2),
        **more,
    )


def report(name: str, value: float, unit: str, **more: Any) -> None:
    line = {"name": name, "value": _rounded(value), "unit": unit, **more, "variant": VARIANT}
    print(json.dumps({**line, "commit": commit(), "load": round(os.getloadavg()[0], 1)}), flush=True)


def made_messages(count: int, size: int) -> Messages:
    return [(f"key-{number % KEYS}", b"x" * size) for number in range(count)]


@cache
def commit() -> str:
    """The version measured; a plus says that files differ from it."""
    here = Path(__file__).parent
    described = ["git", "describe", "--always", "--dirty=+", "--exclude=*"]
    done = subprocess.run(described, cwd=here, capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def _rounded(value: float) -> float:
    return round(value) if value >= 100 else round(value, 2)
