"""Running a pipeline as a program: a session of its own, signals, and an end that repeats nothing.

The rule guarded here: the first SIGTERM or SIGINT lets the running batch finish; the second ends the process at once,
which costs a repetition of the batch and nothing else.
"""

import _thread
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import FrameType

from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from lanemq.model.errors import UsageError
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.running.preflight import need_checkpoint, need_java, need_topic
from lanemq.pipelines.running.process_group import children_in_own_group
from lanemq.pipelines.running.reporting import Report
from lanemq.pipelines.running.runner import start
from lanemq.pipelines.running.spark_output import inherited_stderr, overheard
from lanemq.spark import recommended

log = logging.getLogger(__name__)

LOCAL = "local[*]"
ON_TERMINAL, IN_FILE = "FATAL", "ERROR"
"""Levels of Spark's log. It writes every error with its Java trace, of which a terminal needs none: ours are one
sentence, and what was raised is in `PipelineFailed.trace`."""


def run(
    pipeline: Pipeline,
    spark: SparkSession | None = None,
    *,
    once: bool = False,
    report: Report | None = None,
    master: str = LOCAL,
    conf: Mapping[str, str] | None = None,
    spark_words: Path | None = None,
    new_sink: bool = False,
) -> None:
    """Runs until it ends, fails (`PipelineFailed`), or a signal asks it to stop.

    Without a session one is made from `master`, the pipeline's own settings and `conf`, and stopped at the end.
    `spark_words`: a file for what Spark and its workers write to standard error; None: they write it there.
    `new_sink`: as for `start`.
    """
    need_checkpoint(pipeline)
    if spark is not None:
        _run_in(spark, pipeline, once, report, new_sink)
        return
    need_java()
    need_topic(pipeline)
    with contextlib.ExitStack() as ends:
        if spark_words is None:
            own = open_session(pipeline, master, conf or {}, ON_TERMINAL)
        else:
            with inherited_stderr(spark_words):
                own = open_session(pipeline, master, conf or {}, IN_FILE)
            ends.enter_context(overheard(spark_words))
        ends.callback(_stop, own)
        _run_in(own, pipeline, once, report, new_sink)


def _run_in(spark: SparkSession, pipeline: Pipeline, once: bool, report: Report | None, new_sink: bool) -> None:
    asked = threading.Event()
    with stop_on_signals(asked):
        running = start(pipeline, spark, once=once, report=report, new_sink=new_sink)
        with running:
            while not running.await_end(0.2) and not asked.is_set():
                pass
        running.await_end(0)


def open_session(pipeline: Pipeline, master: str, conf: Mapping[str, str], level: str = ON_TERMINAL) -> SparkSession:
    """A session with the recommended settings, then the pipeline's, then `conf`: the last one counts."""
    builder = recommended().master(master).appName(pipeline.name)
    quiet = {"spark.ui.showConsoleProgress": "false", "spark.log.level": level}
    for name, value in {**quiet, **pipeline.spark, **conf}.items():
        builder = builder.config(name, value)
    try:
        with children_in_own_group():
            return builder.getOrCreate()
    except PySparkException as error:
        raise UsageError(
            f"Spark did not start: {str(error).splitlines()[0]}; is JAVA_HOME a Java 17 or newer?"
        ) from error


def _stop(session: SparkSession) -> None:
    try:
        session.stop()
    except Exception as error:  # noqa: BLE001
        # The JVM was killed, or died first; what it was asked for is told already, and nothing of it is left to stop.
        log.debug("Spark could not be stopped: %s", error)


@contextlib.contextmanager
def stop_on_signals(asked: threading.Event) -> Iterator[None]:
    """Only the main thread may listen; elsewhere the caller stops the pipeline itself.

    Set after the session exists, since Spark puts a handler of its own on SIGINT that cancels the running batch.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    came: list[int] = []

    def received(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if came:
            log.warning("%s again: ending at once; the running batch will be repeated", name)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        log.warning("%s: finishing the running batch, then stopping; once more to stop at once", name)
        came.append(number)
        # On a thread: the signal may have come while this one holds the event's own lock.
        _thread.start_new_thread(asked.set, ())

    before = {number: signal.signal(number, received) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
