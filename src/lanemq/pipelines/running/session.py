"""The Spark session of a program: its settings, its process group, and where its output goes.

`timeout`, shells and supervisors signal whole process groups. Spark's JVM gets a group of its own, because the first
SIGTERM lets the running batch finish, which needs a living JVM. The JVM still ends with this process, whose end closes
its standard input.

The JVM and its Python workers write to the standard error that they inherit: a file beside the checkpoint, so that the
terminal shows only one line per batch. LaneMQ's own warnings from those processes are logged here again.
"""

import contextlib
import logging
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from pathlib import Path
from typing import BinaryIO, Final

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lanemq.files import StorePath
from lanemq.model.errors import UsageError
from lanemq.pipelines.checkpoint.checkpoint import OWN_FOLDER
from lanemq.pipelines.pipeline import Pipeline
from lanemq.spark import recommended
from lanemq.spark.worker_process import relog

log = logging.getLogger(__name__)

READ_SECONDS = 0.25
ON_TERMINAL, IN_FILE = "FATAL", "ERROR"
"""Levels of Spark's log. Spark logs every error with its Java trace, which a terminal does not need: the pipeline
reports it in one sentence, and `PipelineFailed.trace` has the rest."""

REMOTE_SETTINGS: Final = {"spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.LocalFileSystem"}
"""Settings for a checkpoint that is not on a local disk: Hadoop's S3 file system needs this class for its buffers."""

_NOT_DOWNLOADED: Final = re.compile(r"(?:unresolved dependency|download failed): ([^\s\]]+)")

_leave_group = False
_hooked = False


def open_session(pipeline: Pipeline, master: str, conf: Mapping[str, str], output: Path | None = None) -> SparkSession:
    """A session with the recommended settings, overridden by the pipeline's, overridden by `conf`.

    `output` is the file for Spark's output, if that does not go to the terminal.
    """
    level = ON_TERMINAL if output is None else IN_FILE
    quiet = {"spark.ui.showConsoleProgress": "false", "spark.log.level": level}
    elsewhere = {} if isinstance(pipeline.folder, Path) else REMOTE_SETTINGS
    settings = {**quiet, **elsewhere, **pipeline.spark, **conf}
    if python := settings.get("spark.pyspark.python"):
        os.environ["PYSPARK_PYTHON"] = python  # PySpark reads the setting only in programs that spark-submit started
    builder = recommended().master(master).appName(pipeline.name)
    for name, value in settings.items():
        builder = builder.config(name, value)
    try:
        with children_in_own_group():
            return builder.getOrCreate()
    except PySparkException as error:
        said = "" if output is None else output.read_text("utf-8", "replace")
        raise UsageError(not_started(str(error), said, output)) from error


def not_started(error: str, said: str, output: Path | None) -> str:
    """Why Spark did not start, by its error and its output. Java itself was checked before."""
    where = "" if output is None else f" (Spark's output: {output})"
    missing = list(dict.fromkeys(_NOT_DOWNLOADED.findall(said)))
    if missing:
        return f"Spark could not download {', '.join(missing)}: check spark.jars.packages and the network{where}"
    return f"Spark did not start: {error.splitlines()[0]}{where}"


def stop_session(session: SparkSession) -> None:
    try:
        session.stop()
    except Exception as error:  # noqa: BLE001
        # The JVM is dead; the error that this caused was raised before.
        log.debug("Spark could not be stopped: %s", error)


@contextlib.contextmanager
def children_in_own_group() -> Iterator[None]:
    """Let the JVM that pyspark starts inside this context leave our process group.

    Pyspark has no option for that. It runs Python code between fork and exec, so a fork hook is called there.
    """
    global _leave_group, _hooked
    if not _hooked:
        os.register_at_fork(after_in_child=_after_fork)
        _hooked = True
    _leave_group = True
    try:
        yield
    finally:
        _leave_group = False


def _after_fork() -> None:
    if _leave_group:
        with contextlib.suppress(OSError):
            os.setpgid(0, 0)


def spark_output_file(checkpoint: StorePath) -> Path:
    """The file for Spark's output about a pipeline; that of the run before is kept with `.1`.

    It is always local: in the checkpoint, or in the folder for temporary files if the checkpoint is elsewhere.
    """
    if isinstance(checkpoint, Path):
        return checkpoint / OWN_FOLDER / "spark.log"
    digest = sha256(str(checkpoint).encode()).hexdigest()[:8]
    return Path(tempfile.gettempdir()) / f"lanemq-{checkpoint.name}-{digest}-spark.log"


@contextlib.contextmanager
def inherited_stderr(path: Path) -> Iterator[None]:
    """Let processes that are started inside this context write their standard error to a file."""
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
def repeat_warnings(path: Path, on_line: Callable[[str], object] = relog) -> Iterator[None]:
    """Call `on_line` with every line that is added to the file inside this context."""
    done = threading.Event()

    def read() -> None:
        with path.open("rb") as file:
            rest = b""
            while not done.wait(READ_SECONDS):
                rest = _read_lines(file, rest, on_line)
            _read_lines(file, rest, on_line)

    thread = threading.Thread(target=read, name="lanemq-spark-output", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _read_lines(file: BinaryIO, rest: bytes, on_line: Callable[[str], object]) -> bytes:
    """Call `on_line` with each complete line; returns the incomplete last one."""
    *lines, rest = (rest + file.read()).split(b"\n")
    for line in lines:
        on_line(line.decode("utf-8", "replace"))
    return rest
