"""The end of a query as its source sees it: what is done is told to the broker, and the leases are given back.

Spark ends the process of a Python source with SIGTERM and says nothing about the last batch. The rules guarded here:
the process says goodbye before it goes; a batch counts as done only if Spark's own checkpoint says so, and only then
its queues may be given back as read to its end.
"""

import json
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

from lanemq.model.errors import UsageError
from lanemq.spark.offsets import Positions, from_json


def leave_on_sigterm() -> None:
    """Ends this process like any other exit, if it is one of Spark's: `stop()` of the reader runs first."""
    started_as = getattr(sys.modules.get("__main__"), "__spec__", None)
    in_worker = started_as is not None and started_as.name.startswith("pyspark.")
    if in_worker and threading.current_thread() is threading.main_thread():
        signal.signal(signal.SIGTERM, _exit)


def is_done(checkpoint: str | None, end: Positions) -> bool:
    """Whether the last batch that Spark has noted as done ends here. Unreadable counts as no: nothing is lost by it."""
    if checkpoint is None:
        return False
    folder = Path(checkpoint.removeprefix("file://").removeprefix("file:"))
    try:
        last = max(int(path.name) for path in (folder / "commits").iterdir() if path.name.isdecimal())
        lines = (folder / "offsets" / str(last)).read_text("utf-8").splitlines()[2:]
    except (OSError, ValueError):
        return False
    topics = {queue.topic for queue in end}
    ours = [each for each in map(_positions, lines) if {queue.topic for queue in each} == topics]
    # Nothing says which line is whose; two sources of the same topics must agree, or one would answer for the other.
    return bool(ours) and all(each == end for each in ours)


def _positions(line: str) -> Positions:
    """One source's end; none for a source of another kind."""
    try:
        return from_json(json.loads(line))
    except (ValueError, UsageError):
        return {}


def _exit(number: int, frame: FrameType | None) -> None:
    signal.signal(number, signal.SIG_IGN)  # once is enough: what is left to do has time limits of its own
    sys.exit(0)
