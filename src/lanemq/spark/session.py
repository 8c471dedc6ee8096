"""Session settings that make micro-batches short.

A batch with defaults spends most of its time on the checkpoint's files and on talking to Python workers. These
settings changed the time of an empty micro-batch from about 300 ms to about 130 ms on a small machine.
"""

import os
import shutil
import sys
from pathlib import Path
from typing import Final

from pyspark.sql import SparkSession

SETTINGS: Final = {
    # Renames instead of permission calls that fork a process for every file of the checkpoint.
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    # No .crc files beside those of the checkpoint; for file:// only, other file systems are untouched.
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    # JVM and Python workers of one machine talk over Unix sockets instead of TCP.
    "spark.python.unix.domain.socket.enabled": "true",
}


def recommended(builder: SparkSession.Builder | None = None) -> SparkSession.Builder:
    """A session builder with the settings, and with workers that run this very Python.

    Workers of another Python would not find lanemq. On a cluster, set PYSPARK_PYTHON to where it is installed.
    """
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    chosen = builder if builder is not None else SparkSession.Builder()
    for name, value in SETTINGS.items():
        chosen = chosen.config(name, value)
    return chosen


def other_python(workers: str, here: str) -> str | None:
    """What to say when workers run another Python than the driver; None if they run the same."""
    found = shutil.which(workers)
    # Folders, not files: every virtual environment links to the same interpreter.
    if found is not None and Path(found).absolute().parent == Path(here).absolute().parent:
        return None
    return (
        f"Spark's workers run {workers!r}, the driver runs {here}: if workers do not find lanemq, "
        f"set PYSPARK_PYTHON to a Python that has it before the session starts, or use lanemq.spark.recommended()"
    )
