"""Finds processes that our processes started.

Spark's executors are grandchildren of the driver, and nobody says their numbers.
"""

import subprocess
from pathlib import Path
from typing import NamedTuple


class Process(NamedTuple):
    """One running process."""

    pid: int
    parent: int
    command: str


def descendants(root: int) -> list[Process]:
    """Every process below `root`, nearest first."""
    children: dict[int, list[Process]] = {}
    for process in _running():
        children.setdefault(process.parent, []).append(process)
    found: list[Process] = []
    level = children.get(root, [])
    while level:
        found += level
        level = [below for process in level for below in children.get(process.pid, [])]
    return found


def executors(driver: int) -> list[int]:
    """The process numbers of the executors of a Spark driver."""
    return [
        process.pid
        for process in descendants(driver)
        if "CoarseGrainedExecutorBackend" in process.command and "java" in process.command.split(" ")[0]
    ]


def _running() -> list[Process]:
    if not Path("/proc/self/stat").exists():
        return _by_ps()
    return [found for folder in Path("/proc").iterdir() if folder.name.isdigit() and (found := _by_proc(folder))]


def _by_proc(folder: Path) -> Process | None:
    try:
        # The name in brackets may hold blanks; what follows the last bracket does not.
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (OSError, ValueError):
        return None
    return Process(int(folder.name), parent, command)


def _by_ps() -> list[Process]:
    listed = subprocess.run(["ps", "-axo", "pid=,ppid=,command="], capture_output=True, text=True, check=True).stdout
    found = (line.split(None, 2) for line in listed.splitlines())
    return [Process(int(pid), int(parent), command) for pid, parent, command in found]
