"""A Spark session for one command: quiet, and gone when the command is done.

A session that is there already, because a notebook or a test called the command, is used and left running.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from pyspark.sql import SparkSession

from lanemq.spark.session import recommended

_QUIET = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.log.level": "ERROR",
}


@contextmanager
def spark_session(master: str, name: str) -> Iterator[SparkSession]:
    """`master` counts only where spark-submit has not decided it."""
    running = SparkSession.getActiveSession()
    if running is not None:
        yield running
        return
    builder = recommended().appName(name)
    for setting, value in _QUIET.items():
        builder = builder.config(setting, value)
    session = builder.master(master).getOrCreate()
    try:
        yield session
    finally:
        session.stop()
