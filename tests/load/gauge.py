"""Memory, descriptors, threads and processor time of a process, as the operating system counts them."""

import os
from pathlib import Path
from typing import NamedTuple

MIB = 1024 * 1024


class Reading(NamedTuple):
    memory: int
    """Bytes in memory (VmRSS)."""
    files: int
    threads: int
    cpu: float
    """Seconds of processor time so far."""


def read(pid: int) -> Reading:
    fields = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    memory = int(fields["VmRSS"].split()[0]) * 1024
    ticks = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[11:13]
    cpu = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
    return Reading(memory, sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir()), int(fields["Threads"]), cpu)
