"""Work that would block the console, or fill its memory, in a process of its own at a low priority."""

import shutil
import subprocess
import sys
from dataclasses import dataclass

NICE = 10
"""The priority of child processes; brokers and consumers on the same machine come first."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How a child process ended."""

    code: int
    out: bytes
    error: str


def run_module(*arguments: str, seconds: float) -> Ended:
    """Runs `python -m …` and returns what it printed. A process that takes too long is ended."""
    lower = ["nice", "-n", str(NICE)] if shutil.which("nice") else []
    command = [*lower, sys.executable, "-m", *arguments]
    try:
        done = subprocess.run(command, capture_output=True, timeout=seconds, check=False)
    except subprocess.TimeoutExpired:
        return Ended(-1, b"", f"it took longer than {seconds:.0f} s, and was ended")
    return Ended(done.returncode, done.stdout, done.stderr.decode("utf-8", "replace").strip())
