"""A running pipeline: Spark's query, the retry passes between its batches, and an end that repeats nothing.

Invariants: a batch and a retry pass never run at once; a retry pass follows a batch that Spark has recorded as done; an
operator's requests are carried out before the first batch, which may not succeed without them; a pipeline stops between
two batches, after Spark has recorded the last one, because stopping a query inside a batch would repeat it; however a
pipeline ends, its checkpoint is released.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lanemq.clock import Clock, SystemClock
from lanemq.files import StorePath
from lanemq.model.errors import Closed, LaneError, UsageError
from lanemq.model.units import Millis, Seconds, to_millis, to_seconds
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint, CheckpointLock
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.ports import Sink
from lanemq.pipelines.running.batch_processor import BatchProcessor
from lanemq.pipelines.running.batch_trace import BatchTrace, BatchTracing
from lanemq.pipelines.running.effect_history import EffectHistory
from lanemq.pipelines.running.failure import PipelineFailed
from lanemq.pipelines.running.progress import AppliedBatch, Progress, ProgressReporter, Report
from lanemq.pipelines.running.queue_ends import SourceEnds
from lanemq.pipelines.sinks.delta import DeltaSink
from lanemq.pipelines.sinks.delta_files import delta_options
from lanemq.spark.options import ALL_TAGS
from lanemq.spark.read.brokers import Brokers
from lanemq.spark.session import is_connect

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""Time between two checks for a due retry pass. Longer delays retry passes; shorter only costs more checks."""
REMOTE_CHECK_SECONDS = 5.0
"""The same if the checkpoint is not on a local disk, where each check is five requests that list files. Longer delays
retry passes; shorter costs more requests: 86,000 a day with this value."""
RECORD_SECONDS = 60.0
"""How long Spark may take to record a batch as done before a stop continues without it."""
SLOW_PYTHON = "Python worker failed to connect back"
"""Spark's error if the Python process of a source took longer than 10 s to start. No setting changes the 10 s."""
MAX_STARTS = 5
"""How often a query is started that ends with this error. More only delays the error on a machine that is too busy."""

StartQuery: TypeAlias = Callable[[Callable[[DataFrame, int], None]], StreamingQuery]


def start(
    pipeline: Pipeline,
    spark: SparkSession,
    *,
    once: bool = False,
    report: Report | None = None,
    new_sink: bool = False,
    new_checkpoint: bool = False,
    trace: BatchTrace | None = None,
    lock: CheckpointLock | None = None,
) -> "RunningPipeline":
    """Start a pipeline.

    Args:
        once: End after everything that is in the topic now.
        report: Called with the progress of each batch and retry pass.
        new_sink: Let a sink that lacks batches which are done continue without them, instead of raising `StateLost`.
        new_checkpoint: Let a sink that another checkpoint of this pipeline wrote to continue with this checkpoint,
            instead of raising `StateLost`. Its rows stay, and rows of messages that are read again are added to them.
        trace: Makes a span for each batch and retry pass: `trace_batches()`.
        lock: The lock of the checkpoint, if the caller has taken it already.
    """
    _refuse_connect(pipeline, spark)
    clock, pipeline = SystemClock(), _with_settings(pipeline, spark)
    checkpoint = Checkpoint(pipeline.folder, pipeline.name, pipeline.source.public_options, clock, lock)
    processor = BatchProcessor(
        pipeline.stage,
        pipeline.sink,
        pipeline.dead_letters or dead_letter_sink(checkpoint.dead_letters_folder),
        checkpoint,
        EffectHistory(Path(pipeline.history) if pipeline.history is not None else None, pipeline.name),
        clock,
        whole=pipeline.prepare is None and pipeline.source.parsed.tags == ALL_TAGS,
        new_sink=new_sink,
        new_checkpoint=new_checkpoint,
        queue_ends=SourceEnds(pipeline.source.parsed, checkpoint.log),
        tracing=BatchTracing(trace, checkpoint.log),
        settings=pipeline.spark,
    )
    try:
        processor.open(spark)
        checkpoint.record_declaration(pipeline.fingerprint)
        columns = () if pipeline.prepare else pipeline.stage.columns
        frame = _load(pipeline, spark, columns)
        before = [each for each in (processor.finish_retry_pass(), processor.process_due()) if each is not None]
        return RunningPipeline(
            pipeline,
            processor,
            checkpoint,
            report or _no_report,
            clock,
            lambda on_batch: _start_query(pipeline, frame, on_batch, once),
            before,
            once=once,
        )
    except BaseException:
        processor.close()
        checkpoint.close()
        raise


def _with_settings(pipeline: Pipeline, spark: SparkSession) -> Pipeline:
    """The pipeline with all settings for file systems: those of the session, and above them its own."""
    return replace(pipeline, spark={**_hadoop_settings(spark), **pipeline.spark})


def _refuse_connect(pipeline: Pipeline, spark: SparkSession) -> None:
    if is_connect(spark):
        raise UsageError(
            f"pipeline {pipeline.name!r} cannot run in a session of Spark Connect: the driver's process decides what "
            f"a batch is, and this process is only a client; start it with `lanemq pipeline run --master ...` instead"
        )


def _hadoop_settings(spark: SparkSession) -> dict[str, str]:
    """Settings of the session that say how file systems are reached."""
    return {name: value for name, value in spark.conf.getAll.items() if name.startswith("spark.hadoop.fs.")}


def dead_letter_sink(folder: StorePath) -> Sink:
    """A Delta table in the checkpoint."""
    return DeltaSink(str(folder), storage_options=delta_options(folder))


def _load(pipeline: Pipeline, spark: SparkSession, columns: Sequence[str]) -> DataFrame:
    """The source as a data frame. Spark starts a Python process for it, which may be too slow like that of a query."""
    for attempt in range(1, MAX_STARTS):
        try:
            return pipeline.source.stream(spark, columns, pipeline.folder, pipeline.stage.on_damaged)
        except Exception as error:
            if SLOW_PYTHON not in str(error):
                raise
            _warn_slow_python(pipeline.name, "the source is loaded again", attempt + 1)
    return pipeline.source.stream(spark, columns, pipeline.folder, pipeline.stage.on_damaged)


def _warn_slow_python(name: str, what: str, attempt: int) -> None:
    log.warning(
        "pipeline %s: Spark gave up on a Python process that took more than 10 s to start, as on a busy machine; %s "
        "(%d of %d)", name, what, attempt, MAX_STARTS,
    )  # fmt: skip


def _start_query(
    pipeline: Pipeline, frame: DataFrame, on_batch: Callable[[DataFrame, int], None], once: bool
) -> StreamingQuery:
    trigger: Mapping[str, Any] = (
        {"availableNow": True} if once else {"processingTime": f"{pipeline.trigger_ms} milliseconds"}
    )
    writer = frame.writeStream.foreachBatch(on_batch).queryName(pipeline.name)
    return writer.option("checkpointLocation", str(pipeline.folder)).trigger(**trigger).start()


def _no_report(progress: Progress) -> None:
    """Default report callback: does nothing."""


class RunningPipeline:
    """A pipeline that `start` has started. May be used from any thread."""

    def __init__(
        self,
        pipeline: Pipeline,
        processor: BatchProcessor,
        checkpoint: Checkpoint,
        report: Report,
        clock: Clock,
        start_query: StartQuery,
        before: list[AppliedBatch],
        *,
        once: bool,
    ) -> None:
        """Starts the query and the thread that watches it. `before`: retry passes that ran before."""
        self.name = pipeline.name
        self._pipeline = pipeline
        self._processor = processor
        self._checkpoint = checkpoint
        self._clock = clock
        source = pipeline.source.parsed
        self._reporter = ProgressReporter(pipeline.name, source.servers, report, source.security)
        self._working = threading.Lock()
        """Held while a batch or a retry pass runs."""
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._last: int | None = None
        """The last Spark batch that was processed."""
        self._error: BaseException | None = None
        self._during = ""
        self._once = once
        self._before = before
        self._start_query = start_query
        self._starts = 1
        self._next_check = Millis(0)
        self._watcher = threading.Thread(target=self._watch, name=f"lanemq-pipeline-{self.name}", daemon=True)
        self._query = start_query(self._on_batch)
        self._watcher.start()

    @property
    def progress(self) -> Progress | None:
        """The progress of the last batch or retry pass; None before the first."""
        return self._reporter.last

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def await_end(self, timeout: Seconds | None = None) -> bool:
        """Wait for the end for at most `timeout` seconds; `PipelineFailed` if it ended with an error."""
        ended = self._ended.wait(None if timeout is None else to_seconds(timeout))
        if ended and self._error is not None:
            error, cause = self._error, self._error if isinstance(self._error, LaneError) else None
            raise PipelineFailed(self.name, error, self._during) from (cause or error)
        return ended

    def wait_idle(self, timeout: Seconds) -> bool:
        """Wait until everything that the topic holds now is done and no retry pass is due; False after `timeout`.

        For tests and scripts.
        """
        with Brokers(self._pipeline.source.parsed) as brokers:
            ends = {queue: held.end for queue, held in brokers.bounds().items() if held.end > held.first}
        until = self._clock.now() + to_millis(timeout)
        while self._clock.now() < until and not self.await_end(0.02):
            done = self._checkpoint.log.done()
            at = self._checkpoint.log.end_of(done) if done is not None else {}
            if all(at.get(queue, -1) >= end for queue, end in ends.items()):
                with self._working:
                    if self._processor.due() != 0:
                        return True
        return False

    def stop(self) -> None:
        """Finish the running batch, wait until Spark has recorded it, and end. May be called again."""
        self._stopping.set()
        with self._working:
            last = self._last
        self._await_record(last)
        self._stop_query()
        if threading.current_thread() is not self._watcher:  # a report runs there, and may call stop
            self._ended.wait()

    def __enter__(self) -> "RunningPipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _on_batch(self, messages: DataFrame, spark_batch: int) -> None:
        """Called by Spark for each batch. Only an exception keeps Spark from recording the batch as done."""
        with self._working:
            if self._stopping.is_set() or self._error is not None:
                raise Closed(f"pipeline {self.name!r} is stopping: batch {spark_batch} is left to its next start")
            prepare = self._pipeline.prepare
            try:
                applied = self._processor.process_batch(messages if prepare is None else prepare(messages), spark_batch)
            except BaseException as error:
                self._fail(error, f"batch {spark_batch}")
                raise
            self._last = spark_batch
        self._reporter.on_applied(applied)

    def _watch(self) -> None:
        try:
            for applied in self._before:
                self._reporter.on_applied(applied)
            while not self._await_query():
                self._read_progress()
                if not self._once and not self._stopping.is_set() and self._is_time_to_check():
                    self._process_retry_pass()
            self._read_progress()
            # With `once`, an operator's requests are carried out after the last batch, and timers that it set and that
            # are due are called. No later batch would call them, so they are not put off to spare retry passes.
            first = True
            while self._once and not self._stopping.is_set() and self._process_retry_pass(put_off=not first):
                first = False
        except Exception as error:  # noqa: BLE001
            if not self._stopping.is_set():
                self._fail(error, "")
            elif self._error is None:
                log.debug("pipeline %s was stopped: %s", self.name, error)
            self._stop_query()
        finally:
            self._close()

    def _await_query(self) -> bool:
        """Wait a tick for the end of the query; starts it again if its Python process was too slow to start."""
        try:
            return bool(self._query.awaitTermination(TICK_SECONDS))  # type: ignore[arg-type]
        except Exception as error:
            with self._working:
                if SLOW_PYTHON not in str(error) or self._starts == MAX_STARTS or self._stopping.is_set():
                    raise
                self._starts += 1
                _warn_slow_python(self.name, "the query is started again", self._starts)
                self._query = self._start_query(self._on_batch)
                return False

    def _is_time_to_check(self) -> bool:
        """Whether to look for a due retry pass now; looking costs requests if the checkpoint is remote."""
        if isinstance(self._checkpoint.folder, Path):
            return True
        now = self._clock.now()
        if now < self._next_check:
            return False
        self._next_check = Millis(now + int(REMOTE_CHECK_SECONDS * 1000))
        return True

    def _read_progress(self) -> None:
        """Give Spark's progress to the reporter; also older ones, since several short batches may have ended."""
        last = self._query.lastProgress
        if last is not None and self._reporter.waits_before(int(last["batchId"])):
            for progress in self._query.recentProgress:
                self._reporter.on_spark_progress(progress)
        self._reporter.on_spark_progress(last)

    def _process_retry_pass(self, *, put_off: bool = True) -> bool:
        """Process a retry pass if one is due; returns whether it did something.

        A stage may put off a retry pass although something is due, to spare passes; not with `put_off=False`.

        Waits for the running batch and then for Spark's record of it. If it only tried when neither is under way, it
        would never run in a busy pipeline.
        """
        with self._working:
            due = self._processor.due()
            if self._stopping.is_set() or due is None or (put_off and due) or not self._await_record(self._last):
                return False
            done = self._checkpoint.log.done()
            if done is None:
                return False
            try:
                applied = self._processor.process_retry_pass(done)
            except BaseException as error:
                self._fail(error, f"a retry pass after batch {done}")
                raise
        if applied is not None:
            self._reporter.on_applied(applied)
        return applied is not None

    def _await_record(self, batch: int | None) -> bool:
        """Wait until Spark has recorded the batch as done, shortly after our part of it; False if it does not."""
        until = self._clock.now() + RECORD_SECONDS * 1000
        while batch is not None and not self._checkpoint.log.is_done(batch):
            if not self._query.isActive or self._clock.now() >= until:
                return self._checkpoint.log.is_done(batch)
            self._ended.wait(0.005)
        return True

    def _fail(self, error: BaseException, during: str) -> None:
        if self._error is None:
            self._error, self._during = error, during

    def _stop_query(self) -> None:
        with contextlib.suppress(Exception):  # it is ending anyway; the JVM may be gone
            self._query.stop()

    def _close(self) -> None:
        """Close every part even if one fails, then wake callers that wait for the end."""
        for close in (self._reporter.close, self._processor.close, self._checkpoint.close):
            try:
                close()
            except Exception as error:  # noqa: BLE001
                self._fail(error, "closing")
        self._ended.set()
