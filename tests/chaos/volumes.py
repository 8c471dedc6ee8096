"""File systems for tests: a small one in memory, and one in an image file that can be copied.

Both need root and a kernel that mounts; where that is not given, the test is skipped and says why. What they show is
shown on the simulated disk as well (`tests/faulty_disk.py`, `lanemq.testing.sim.disk`), on any machine.
"""

import contextlib
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest


def _run(*command: object) -> None:
    try:
        subprocess.run([str(part) for part in command], check=True, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.CalledProcessError) as error:
        why = getattr(error, "stderr", "") or error
        pytest.skip(f"no file system of our own here: {' '.join(map(str, command))}: {why}")


@contextlib.contextmanager
def _mounted(at: Path, *how: object) -> Iterator[Path]:
    at.mkdir(exist_ok=True)
    _run("mount", *how, at)
    try:
        yield at
    finally:
        subprocess.run(["umount", "--lazy", str(at)], check=False, capture_output=True, timeout=60)


def in_memory(at: Path, mebibytes: int) -> "contextlib.AbstractContextManager[Path]":
    """A tmpfs of this size."""
    return _mounted(at, "-t", "tmpfs", "-o", f"size={mebibytes}m", "tmpfs")


def make_image(path: Path, mebibytes: int) -> Path:
    with path.open("wb") as file:
        file.truncate(mebibytes << 20)
    _run("mkfs.ext4", "-q", "-E", "lazy_itable_init=0,lazy_journal_init=0", path)
    return path


def image(path: Path, at: Path) -> "contextlib.AbstractContextManager[Path]":
    """An ext4 in a file. What was written and not synced is not in the file."""
    return _mounted(at, "-o", "loop", path)


@contextlib.contextmanager
def filled(at: Path, left: int = 0) -> Iterator[None]:
    """Another program takes all space of a file system but so many bytes, until the end of the block."""
    path = at / "filler"
    with path.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while (size := min(1 << 16, free_space(at) - left)) > 0:
            file.write(bytes(size))
    try:
        yield
    finally:
        path.unlink()


def free_space(at: Path) -> int:
    found = os.statvfs(at)
    return found.f_bavail * found.f_frsize
