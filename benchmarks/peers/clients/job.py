"""The job of a client process: `name=value` words on its command line, results as JSON lines on its output.

Only the standard library is used here and in `roles`: these modules run in every contender's environment.
"""

import json
import time
from collections.abc import Iterator, Sequence
from typing import Any, TypeVar

_CPU_CLOCK_SCHED = 2
PART = 50_000
Item = TypeVar("Item")


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
    """CPU time that these processes have used so far, of all their threads, in user and kernel mode.

    Read from the CPU clock of each process (Linux), which counts nanoseconds; `/proc` counts hundredths of a second,
    which is too coarse for a round of a tenth of a second.
    """
    return sum(time.clock_gettime((~pid << 3) | _CPU_CLOCK_SCHED) for pid in pids)


def parts(items: Sequence[Item], size: int = PART) -> Iterator[Sequence[Item]]:
    """The items in parts of this size, so that a client need not keep a future for each of millions of messages."""
    return (items[first : first + size] for first in range(0, len(items), size))


class Stopwatch:
    """Wall time and CPU time of this process and of the server, from `start` to `stop`."""

    def __init__(self, pids: list[int]) -> None:
        self._pids = pids

    def start(self) -> None:
        self._server, self._client, self._wall = cpu_seconds(self._pids), time.process_time(), time.perf_counter()

    def stop(self) -> dict[str, float]:
        seconds = time.perf_counter() - self._wall
        client = time.process_time() - self._client
        server = cpu_seconds(self._pids) - self._server
        return {"began": self._wall, "seconds": seconds, "client_cpu": client, "server_cpu": server}
