"""Set-up of the Python processes that Spark starts for a data source: log lines, SIGTERM, and how they end.

Only processes started by Spark are changed; in any other process logging and signals belong to the application.
"""

import atexit
import contextlib
import gc
import logging
import os
import re
import signal
import sys
import threading
from functools import cache
from types import FrameType
from typing import Final

from lanemq.net.serving.freed_memory import keep_freed_memory

LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_LANEMQ_LINE: Final = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ (WARNING|ERROR|CRITICAL) (lanemq[\w.]*): (.*)")


@cache
def prepare_task_process() -> None:
    """Sets up log lines and memory of a process that runs tasks. Every task calls it; only the first call counts."""
    configure_worker_logging()
    keep_freed_memory()
    shorten_collections()


@cache
def shorten_collections() -> None:
    """Takes what is imported by now out of garbage collections, in a process that Spark started.

    Spark makes a full collection after every task and every planning step. It looks at all objects of PySpark, Arrow
    and LaneMQ, and finds nothing: 15 to 20 ms of CPU time, most of a small task. Objects made later are not affected.
    """
    if _in_worker():
        gc.freeze()


def configure_worker_logging() -> None:
    """Gives log lines a time, level and logger name. Spark configures no logging in its Python workers."""
    if _in_worker():
        logging.basicConfig(format=LINE, level=logging.WARNING)


def exit_on_sigterm() -> None:
    """Turns SIGTERM, with which Spark ends a worker, into a normal exit, so that the reader's `stop()` runs first."""
    if _in_worker() and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


def skip_teardown() -> None:
    """Ends this process without taking the interpreter apart, which costs 0.1 s of CPU time at the end of every stream.

    The reader's `stop()` and what was registered with `atexit` later than this have run by then. The exit code is 0;
    Spark does not read it.
    """
    if _in_worker():
        atexit.register(_end)


def relog(line: str) -> None:
    """Logs a line that a worker has written again in this process, if a lanemq logger wrote it."""
    found = _LANEMQ_LINE.match(line)
    if found is not None:
        logging.getLogger(found[2]).log(logging.getLevelNamesMapping()[found[1]], found[3])


def _in_worker() -> bool:
    started_as = getattr(sys.modules.get("__main__"), "__spec__", None)
    return started_as is not None and started_as.name.startswith("pyspark.")


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # a second signal must not interrupt the clean-up, which has time limits
    sys.exit(0)


def _end() -> None:
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):  # closed
            stream.flush()
    os._exit(0)
