"""Spark's own words: in a file beside the checkpoint instead of on the terminal, where one line of ours says it all.

The JVM and the Python workers that it starts write to the standard error that they inherit. The rule guarded here: what
a person must know is not hidden with the rest, so warnings of ours from those processes are told here again.
"""

import contextlib
import os
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import BinaryIO

from lanemq.pipelines.checkpoint.checkpoint import OURS
from lanemq.spark.worker_process import relog

LOOK_SECONDS = 0.25


def spark_words_of(checkpoint: Path) -> Path:
    """The file for what Spark says about the runs of a pipeline; the last run's is kept with `.1`."""
    return checkpoint / OURS / "spark.log"


@contextlib.contextmanager
def inherited_stderr(path: Path) -> Iterator[None]:
    """Processes that are started inside write their errors to this file, for as long as they live."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(FileNotFoundError):
        path.replace(path.with_name(f"{path.name}.1"))
    sys.stderr.flush()
    kept = os.dup(2)
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o640)
        os.dup2(file, 2)
        os.close(file)
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)


@contextlib.contextmanager
def overheard(path: Path, tell: Callable[[str], object] = relog) -> Iterator[None]:
    """Every line that the file gets meanwhile is given to `tell`."""
    done = threading.Event()

    def listen() -> None:
        with path.open("rb") as file:
            rest = b""
            while not done.wait(LOOK_SECONDS):
                rest = _told(file, rest, tell)
            _told(file, rest, tell)

    thread = threading.Thread(target=listen, name="lanemq-spark-words", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _told(file: BinaryIO, rest: bytes, tell: Callable[[str], object]) -> bytes:
    """Gives whole lines to `tell`, and back what may be the beginning of the next one."""
    *lines, rest = (rest + file.read()).split(b"\n")
    for line in lines:
        tell(line.decode("utf-8", "replace"))
    return rest
