"""Runs a pipeline as a program: checks before Spark starts, a session of its own, signals.

The first SIGTERM or SIGINT lets the running batch finish; the second ends the process at once, which costs a repetition
of the batch and nothing else.
"""

import _thread
import contextlib
import logging
import os
import signal
import threading
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import FrameType

from pyspark.sql import SparkSession

from lanemq.model.errors import LaneError, TopicNotFound
from lanemq.pipelines.checkpoint.checkpoint import CheckpointLock, SparkLog, holder_of, in_use, own_identity
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.running.batch_trace import BatchTrace
from lanemq.pipelines.running.failure import PipelineFailed
from lanemq.pipelines.running.nothing_new import is_nothing_new
from lanemq.pipelines.running.preflight import check_archives, check_java, check_packages
from lanemq.pipelines.running.progress import Report
from lanemq.pipelines.running.runner import start
from lanemq.pipelines.running.session import (
    inherited_stderr,
    open_session,
    repeat_warnings,
    stop_session,
)
from lanemq.signals import handled
from lanemq.spark.read.brokers import Brokers
from lanemq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

LOCAL = "local[*]"


def run(
    pipeline: Pipeline,
    spark: SparkSession | None = None,
    *,
    once: bool = False,
    report: Report | None = None,
    master: str = LOCAL,
    conf: Mapping[str, str] | None = None,
    spark_output: Path | None = None,
    new_sink: bool = False,
    new_checkpoint: bool = False,
    trace: BatchTrace | None = None,
) -> None:
    """Run a pipeline until it ends, fails (`PipelineFailed`), or a signal stops it.

    Args:
        spark: The session. Without one, a session is made from `master`, the pipeline's settings and `conf`, and
            stopped at the end.
        once: End after everything that is in the topic now. If there is nothing new, Spark is not started and the sink
            is not opened, unless that cannot be known before.
        report: Called with the progress of each batch and retry pass.
        spark_output: A file for what Spark and its workers write to standard error. Default: standard error.
        new_sink, new_checkpoint, trace: As for `start`.
    """
    pipeline = replace(pipeline, spark={**pipeline.spark, **(conf or {})})
    check_checkpoint(pipeline)
    may_skip = once and not new_sink and not new_checkpoint
    if spark is not None:
        if may_skip and is_nothing_new(pipeline):
            return
        _run_in(spark, pipeline, once, report, new_sink, new_checkpoint, trace)
        return
    check_packages(pipeline)
    check_archives(pipeline.spark)
    check_java()
    check_topic(pipeline)
    if may_skip and is_nothing_new(pipeline):
        return
    with contextlib.ExitStack() as ends:
        lock = CheckpointLock(pipeline.folder)
        ends.callback(lock.release)
        if spark_output is None:
            own = open_session(pipeline, master, conf or {})
        else:
            with inherited_stderr(spark_output):
                own = open_session(pipeline, master, conf or {}, spark_output)
            ends.enter_context(repeat_warnings(spark_output))
        ends.callback(stop_session, own)
        _run_in(own, pipeline, once, report, new_sink, new_checkpoint, trace, lock)


def _run_in(
    spark: SparkSession,
    pipeline: Pipeline,
    once: bool,
    report: Report | None,
    new_sink: bool,
    new_checkpoint: bool,
    trace: BatchTrace | None,
    lock: CheckpointLock | None = None,
) -> None:
    asked = threading.Event()
    with stop_on_signals(asked):
        try:
            running = start(
                pipeline,
                spark,
                once=once,
                report=report,
                new_sink=new_sink,
                new_checkpoint=new_checkpoint,
                trace=trace,
                lock=lock,
            )
        except LaneError:
            raise
        except Exception as error:
            raise PipelineFailed(pipeline.name, error, "its start") from error
        with running:
            while not running.await_end(0.2) and not asked.is_set():
                pass
        running.await_end(0)


# These checks only report the usual mistakes early, before the user waits for Spark. Everything is checked again where
# it matters: a lock or a topic may come and go in between.


def check_checkpoint(pipeline: Pipeline) -> None:
    """Refuse a checkpoint that another run uses, or that belongs to another pipeline."""
    holder = holder_of(pipeline.folder)
    if holder is not None:
        raise in_use(pipeline.folder, holder)
    own_identity(pipeline.folder, pipeline.name)


def check_topic(pipeline: Pipeline) -> None:
    """Wait for the broker as the query would; for a first start the topic must exist.

    Later a missing topic is a loss of data, about which `failOnDataLoss` decides.
    """
    options = pipeline.source.parsed
    with Brokers(options) as brokers:
        there = {queue.topic for queue in brokers.bounds()}
    if SparkLog(pipeline.folder).planned() is not None:
        return
    missing = [name for name in options.topics if name not in there]
    if missing:
        raise TopicNotFound(
            ResponseCode.TOPIC_NOT_EXIST,
            f"topic {missing[0]!r} does not exist at {options.servers}: create it with `lanemq topic create "
            f"{missing[0]} --queues 8 --ordered --server '{options.servers}'`, or correct the source's topic",
        )
    if not there:
        raise TopicNotFound(
            ResponseCode.TOPIC_NOT_EXIST,
            f"no topic at {options.servers} matches topicPattern {options.topic_pattern!r}; "
            f"`lanemq topic list --server '{options.servers}'` shows the topics",
        )


@contextlib.contextmanager
def stop_on_signals(asked: threading.Event) -> Iterator[None]:
    """Set the event at the first SIGINT or SIGTERM. Does nothing outside the main thread, which gets all signals.

    Must be entered after the session exists, since Spark installs a SIGINT handler that cancels the running batch.
    """
    came: list[int] = []

    def received(number: int, frame: FrameType | None) -> None:
        name = signal.Signals(number).name
        if came:
            log.warning("%s again: ending at once; the running batch will be repeated", name)
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
        log.warning("%s: finishing the running batch, then stopping; once more to stop at once", name)
        came.append(number)
        # In a thread, because the interrupted code may hold the event's own lock.
        _thread.start_new_thread(asked.set, ())

    with handled(received):
        yield
