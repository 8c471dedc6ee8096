"""The job of a client process: `name=value` words on its command line, results as JSON lines on its output.

Only the standard library is used here and in `roles`: these modules run in every contender's environment.
"""

import json
import os
import time
from pathlib import Path
from typing import Any

_TICK = os.sysconf("SC_CLK_TCK")


class Job:
    """What a client process shall do. Missing words raise `KeyError` at their first use."""

    def __init__(self, words: list[str]) -> None:
        self._values = dict(word.split("=", 1) for word in words)

    def text(self, name: str, default: str | None = None) -> str:
        return self._values[name] if default is None else self._values.get(name, default)

    def number(self, name: str, default: int | None = None) -> int:
        return int(self.text(name, None if default is None else str(default)))

    @property
    def address(self) -> str:
        return self.text("address")

    @property
    def topic(self) -> str:
        return self.text("topic")

    @property
    def group(self) -> str:
        return self.text("group")

    @property
    def queues(self) -> int:
        return self.number("queues")

    @property
    def server_pids(self) -> list[int]:
        return [int(pid) for pid in self.text("pids").split(",") if pid]


def say(**line: Any) -> None:
    print(json.dumps(line), flush=True)


def cpu_seconds(pids: list[int]) -> float:
    """CPU time that these processes have used so far, in user and kernel mode, from /proc (Linux)."""
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        total += int(fields[11]) + int(fields[12])
    return total / _TICK


class Stopwatch:
    """Wall time and CPU time of this process and of the server, from `start` to `stop`."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    def start(self) -> None:
        self._server, self._client, self._wall = cpu_seconds(self._pids), time.process_time(), time.perf_counter()

    def stop(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._wall
        client = time.process_time() - self._client
        return {"seconds": seconds, "client_cpu": client, "server_cpu": cpu_seconds(self._pids) - self._server}
