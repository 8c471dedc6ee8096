"""Running a pipeline as a program: a session of its own, signals, and an end that repeats nothing.

The rule guarded here: the first SIGTERM or SIGINT lets the running batch finish; the second ends the process at once,
which costs a repetition of the batch and nothing else.
"""

import contextlib
import logging
import os
import shutil
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lanemq.model.errors import CheckpointInUse, UsageError
from lanemq.pipelines.checkpoint import holder_of
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.reporting import Report
from lanemq.pipelines.runner import start
from lanemq.spark import recommended

log = logging.getLogger(__name__)

LOCAL = "local[*]"
QUIET: Mapping[str, str] = {
    "spark.ui.showConsoleProgress": "false",
    # Spark writes every error with its Java trace; ours are one sentence, and nothing is hidden with --traceback.
    "spark.log.level": "FATAL",
}


def run(
    pipeline: Pipeline,
    spark: SparkSession | None = None,
    *,
    once: bool = False,
    report: Report | None = None,
    master: str = LOCAL,
    conf: Mapping[str, str] | None = None,
) -> None:
    """Runs until it ends, fails (`PipelineFailed`), or a signal asks it to stop.

    Without a session one is made from `master`, the pipeline's own settings and `conf`, and stopped at the end.
    """
    asked = threading.Event()
    refuse_second(pipeline.folder)
    own = open_session(pipeline, master, conf or {}) if spark is None else None
    try:
        with stop_on_signals(asked):
            running = start(pipeline, own or _given(spark), once=once, report=report)
            with running:
                while not running.await_end(0.2) and not asked.is_set():
                    pass
            running.await_end(0)
    finally:
        if own is not None:
            own.stop()


def open_session(pipeline: Pipeline, master: str, conf: Mapping[str, str]) -> SparkSession:
    """A session with the recommended settings, then the pipeline's, then `conf`: the last one counts."""
    need_java()
    builder = recommended().master(master).appName(pipeline.name)
    for name, value in {**QUIET, **pipeline.spark, **conf}.items():
        builder = builder.config(name, value)
    try:
        return builder.getOrCreate()
    except PySparkException as error:
        raise UsageError(
            f"Spark did not start: {str(error).splitlines()[0]}; is JAVA_HOME a Java 17 or newer?"
        ) from error


def need_java() -> None:
    """Without Java, Spark's own error is a page about a gateway."""
    home = os.environ.get("JAVA_HOME")
    if (home and (Path(home) / "bin" / "java").exists()) or shutil.which("java"):
        return
    raise UsageError("Spark needs Java 17 or newer, and there is none: install one, or set JAVA_HOME to where it is")


def refuse_second(folder: Path) -> None:
    """The lock decides later; asked here so that nobody waits for Spark to hear it."""
    holder = holder_of(folder)
    if holder is not None:
        raise CheckpointInUse(
            f"checkpoint {folder} is used by another run ({holder}): stop that one, or choose another checkpoint"
        )


@contextlib.contextmanager
def stop_on_signals(asked: threading.Event) -> Iterator[None]:
    """Only the main thread may listen; elsewhere the caller stops the pipeline itself.

    Set after the session exists, since Spark puts a handler of its own on SIGINT that cancels the running batch.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def received(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if asked.is_set():
            log.warning("%s again: ending at once; the running batch will be repeated", name)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        log.warning("%s: finishing the running batch, then stopping; once more to stop at once", name)
        asked.set()

    before = {number: signal.signal(number, received) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _given(spark: SparkSession | None) -> SparkSession:
    assert spark is not None
    return spark
