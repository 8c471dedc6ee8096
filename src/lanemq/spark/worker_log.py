"""Warnings from Python processes that Spark starts: with a time, a level and a name, as the driver's have.

Nobody sets logging up in those processes, so that a warning there is a bare sentence among Spark's own lines. The rule
guarded here: only processes of Spark's are touched; in an application's own process logging is the application's.
"""

import logging
import re
import sys
from typing import Final

LINE: Final = "%(asctime)s %(levelname)s %(name)s: %(message)s"

_OURS: Final = re.compile(r"\d{4}-\d\d-\d\d [\d:,]+ (WARNING|ERROR|CRITICAL) (lanemq[\w.]*): (.*)")


def log_in_worker() -> None:
    """Gives this process log lines of a known form, if it is one of Spark's and has none."""
    started_as = getattr(sys.modules.get("__main__"), "__spec__", None)
    if started_as is not None and started_as.name.startswith("pyspark."):
        logging.basicConfig(format=LINE, level=logging.WARNING)


def repeat(line: str) -> None:
    """A line of a worker's, logged again here if it is one of ours."""
    found = _OURS.match(line)
    if found is not None:
        logging.getLogger(found[2]).log(logging.getLevelNamesMapping()[found[1]], found[3])
