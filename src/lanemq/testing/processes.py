"""Finds the descendants of a process, such as the executors of a Spark driver."""

import subprocess
from pathlib import Path
from typing import NamedTuple


class RunningProcess(NamedTuple):
    """One running process."""

    pid: int
    parent: int
    command: str


def descendants(root: int) -> list[RunningProcess]:
    """Every process below `root`, nearest first."""
    children: dict[int, list[RunningProcess]] = {}
    for process in _running():
        children.setdefault(process.parent, []).append(process)
    processes: list[RunningProcess] = []
    level = children.get(root, [])
    while level:
        processes += level
        level = [below for process in level for below in children.get(process.pid, [])]
    return processes


def executors(driver: int) -> list[int]:
    """The process numbers of the executors of a Spark driver."""
    return [
        process.pid
        for process in descendants(driver)
        if "CoarseGrainedExecutorBackend" in process.command and "java" in process.command.split(" ")[0]
    ]


def _running() -> list[RunningProcess]:
    if not Path("/proc/self/stat").exists():
        return _by_ps()
    return [found for folder in Path("/proc").iterdir() if folder.name.isdigit() and (found := _by_proc(folder))]


def _by_proc(folder: Path) -> RunningProcess | None:
    try:
        # The name in parentheses may contain blanks; what follows the last parenthesis does not.
        parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        command = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    except (OSError, ValueError):
        return None
    return RunningProcess(int(folder.name), parent, command)


def _by_ps() -> list[RunningProcess]:
    listed = subprocess.run(["ps", "-axo", "pid=,ppid=,command="], capture_output=True, text=True, check=True).stdout
    rows = (line.split(None, 2) for line in listed.splitlines())
    return [RunningProcess(int(pid), int(parent), command) for pid, parent, command in rows]
