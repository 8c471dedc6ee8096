"""Processes that run for a `with` block."""

import contextlib
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

STOP_SECONDS = 15


@contextlib.contextmanager
def running(
    command: list[str], output: Path, *, cwd: Path | None = None, env: Mapping[str, str] | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """Starts the command, writes what it prints to `output`, and terminates it at the end of the block."""
    with output.open("wb") as file:
        child = subprocess.Popen(
            command, cwd=cwd, env=env, stdin=subprocess.DEVNULL, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            yield child
        finally:
            child.terminate()
            try:
                child.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                child.kill()
                child.wait()
