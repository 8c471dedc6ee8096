"""A pipeline while it runs: Spark's query, the passes between its batches, and an end that repeats nothing.

The rules guarded here: a batch and a pass never run at once; a pass follows a batch that Spark has noted as done;
what a person decided is carried out before the first batch, which may be stuck for want of it; a pipeline that is
asked to stop ends between two batches, after Spark's note of the last one, because stopping a query inside a batch
would repeat it; whatever ends a pipeline, its checkpoint is free afterwards.
"""

import contextlib
import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql.streaming.query import StreamingQuery

from lanemq.clock import Clock, SystemClock
from lanemq.model.errors import Closed, LaneError
from lanemq.pipelines.checkpoint.checkpoint import Checkpoint
from lanemq.pipelines.checkpoint.effects import Effects
from lanemq.pipelines.pipeline import Pipeline
from lanemq.pipelines.running.failure import PipelineFailed
from lanemq.pipelines.running.progress import Done, Progress
from lanemq.pipelines.running.reporting import Report, Reporting
from lanemq.pipelines.running.work import Work
from lanemq.pipelines.sinks.parquet import ParquetSink
from lanemq.spark.options import ALL_TAGS
from lanemq.spark.read.brokers import Brokers

log = logging.getLogger(__name__)

TICK_SECONDS = 0.25
"""Between two looks at what is due. Longer: passes are late by as much; shorter: only more looks."""
NOTE_SECONDS = 60.0
"""How long Spark may take to note a batch as done before a stop goes on without it."""


class RunningPipeline:
    """What `start` returns. Safe to use from any thread."""

    def __init__(self, pipeline: Pipeline, work: Work, checkpoint: Checkpoint, report: Report, clock: Clock) -> None:
        self.name = pipeline.name
        self._pipeline = pipeline
        self._work = work
        self._checkpoint = checkpoint
        self._clock = clock
        source = pipeline.source.parsed
        self._reporting = Reporting(pipeline.name, source.servers, report, source.security)
        self._turn = threading.Lock()
        """Held by whoever works: a batch or a pass."""
        self._stopping = threading.Event()
        self._ended = threading.Event()
        self._last: int | None = None
        """The last batch of Spark that came through."""
        self._error: BaseException | None = None
        self._during = ""
        self._query: StreamingQuery
        self._once = False
        self._before: list[Done] = []
        self._keeper = threading.Thread(target=self._keep, name=f"lanemq-pipeline-{self.name}", daemon=True)

    def begin(
        self,
        query: Callable[[Callable[[DataFrame, int], None]], StreamingQuery],
        before: Sequence[Done | None],
        once: bool,
    ) -> None:
        """Spark's query, and the thread that looks after it. `before`: passes that ran already."""
        self._once = once
        self._before = [done for done in before if done is not None]
        self._query = query(self._on_batch)
        self._keeper.start()

    @property
    def progress(self) -> Progress | None:
        """The last batch or pass; None before the first."""
        return self._reporting.last

    @property
    def ended(self) -> bool:
        return self._ended.is_set()

    def await_end(self, timeout: float | None = None) -> bool:
        """Whether it has ended within `timeout` seconds; `PipelineFailed` if it ended with an error."""
        ended = self._ended.wait(timeout)
        if ended and self._error is not None:
            error, cause = self._error, self._error if isinstance(self._error, LaneError) else None
            raise PipelineFailed(self.name, error, self._during) from (cause or error)
        return ended

    def wait_idle(self, timeout: float) -> bool:
        """Whether everything that the topic holds now is done within `timeout` seconds, and nothing is due.

        For tests and scripts: in a group, queues that others own never count as done here.
        """
        with Brokers(self._pipeline.source.parsed) as brokers:
            ends = {queue: held.end for queue, held in brokers.bounds().items() if held.end > held.first}
        until = self._clock.now() + timeout * 1000
        while self._clock.now() < until and not self.await_end(0.02):
            done = self._checkpoint.log.done()
            at = self._checkpoint.log.end_of(done) if done is not None else {}
            if all(at.get(queue, -1) >= end for queue, end in ends.items()):
                with self._turn:
                    if self._work.due() != 0:
                        return True
        return False

    def stop(self) -> None:
        """Lets the batch that runs finish, Spark's note included, and ends; harmless when repeated."""
        self._stopping.set()
        with self._turn:
            last = self._last
        self._await_note(last)
        self._stop_query()
        if threading.current_thread() is not self._keeper:  # a report may ask for the end, and runs there
            self._ended.wait()

    def __enter__(self) -> "RunningPipeline":
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    def _on_batch(self, messages: DataFrame, spark_batch: int) -> None:
        """What Spark calls. Raising is the only way to leave without the batch being noted as done."""
        with self._turn:
            if self._stopping.is_set() or self._error is not None:
                raise Closed(f"pipeline {self.name!r} is stopping: batch {spark_batch} is left to its next start")
            prepare = self._pipeline.prepare
            try:
                done = self._work.run_batch(messages if prepare is None else prepare(messages), spark_batch)
            except BaseException as error:
                self._fail(error, f"batch {spark_batch}")
                raise
            self._last = spark_batch
        self._reporting.did(done)

    def _keep(self) -> None:
        try:
            for done in self._before:
                self._reporting.did(done)
            while not self._query.awaitTermination(TICK_SECONDS):  # type: ignore[arg-type]
                self._look()
            self._look_last()
        except Exception as error:  # noqa: BLE001
            if not self._stopping.is_set():
                self._fail(error, "")
            elif self._error is None:
                log.debug("pipeline %s was stopped: %s", self.name, error)
            self._stop_query()
        finally:
            self._end()

    def _look(self) -> None:
        self._see()
        if not self._once and not self._stopping.is_set():
            self._run_pass()

    def _see(self) -> None:
        """Short batches may have come and gone since the last look; then the older ones are asked for too."""
        last = self._query.lastProgress
        if last is not None and self._reporting.waits_before(int(last["batchId"])):
            for progress in self._query.recentProgress:
                self._reporting.seen(progress)
        self._reporting.seen(last)

    def _look_last(self) -> None:
        """The query has ended. With `once`, a person's requests are carried out before the end."""
        self._see()
        while self._once and not self._stopping.is_set() and self._run_pass():
            pass

    def _run_pass(self) -> bool:
        """Whether a pass was due and ran.

        Waits for its turn with the batches, and then for Spark's note of the last one: asking only when both happen
        to be there would find a busy pipeline always in the middle of something.
        """
        with self._turn:
            if self._stopping.is_set() or self._work.due() != 0 or not self._await_note(self._last):
                return False
            behind = self._checkpoint.log.done()
            if behind is None:
                return False
            try:
                done = self._work.run_retry_pass(behind)
            except BaseException as error:
                self._fail(error, f"a pass behind batch {behind}")
                raise
        if done is not None:
            self._reporting.did(done)
        return done is not None

    def _await_note(self, batch: int | None) -> bool:
        """Whether Spark has noted the batch as done; it does so a moment after our part of it."""
        until = self._clock.now() + NOTE_SECONDS * 1000
        while batch is not None and not self._checkpoint.log.is_committed(batch):
            if not self._query.isActive or self._clock.now() >= until:
                return self._checkpoint.log.is_committed(batch)
            self._ended.wait(0.005)
        return True

    def _fail(self, error: BaseException, during: str) -> None:
        if self._error is None:
            self._error, self._during = error, during

    def _stop_query(self) -> None:
        with contextlib.suppress(Exception):  # it is ending anyway; the JVM may be gone
            self._query.stop()

    def _end(self) -> None:
        """Everything is closed whatever fails, and whoever waits is woken."""
        for close in (self._reporting.close, self._work.close, self._checkpoint.close):
            try:
                close()
            except Exception as error:  # noqa: BLE001
                self._fail(error, "closing")
        self._ended.set()


def start(
    pipeline: Pipeline,
    spark: SparkSession,
    *,
    once: bool = False,
    report: Report | None = None,
    new_sink: bool = False,
) -> RunningPipeline:
    """Starts a pipeline. `once`: ends after everything that is there now. `report` is told each batch and pass.

    `new_sink`: a sink that lacks batches which are done goes on without them; else that is refused (`StateLost`).
    """
    clock = SystemClock()
    checkpoint = Checkpoint(pipeline.folder, pipeline.name, pipeline.source.telling_options, clock)
    history = Path(pipeline.history) if pipeline.history is not None else None
    effects = Effects(history, pipeline.name)
    dead = pipeline.dead_letters or ParquetSink(checkpoint.folder / "dead_letters")
    whole = pipeline.prepare is None and pipeline.source.parsed.tags == ALL_TAGS
    member = pipeline.source.parsed.is_member
    work = Work(
        pipeline.stage, pipeline.sink, dead, checkpoint, effects, clock, whole=whole, member=member, new_sink=new_sink
    )
    try:
        work.open(spark)
        running = RunningPipeline(pipeline, work, checkpoint, report or _nobody, clock)
        columns = () if pipeline.prepare else pipeline.stage.columns
        damaged = pipeline.stage.on_damaged
        frame = pipeline.source.stream(spark, columns, pipeline.folder, damaged)
        first = [work.finish_retry_pass(), work.run_due()]
        running.begin(lambda on_batch: _query(pipeline, frame, on_batch, once), first, once)
    except BaseException:
        work.close()
        checkpoint.close()
        raise
    return running


def _query(
    pipeline: Pipeline, frame: DataFrame, on_batch: Callable[[DataFrame, int], None], once: bool
) -> StreamingQuery:
    trigger: Mapping[str, Any] = (
        {"availableNow": True} if once else {"processingTime": f"{pipeline.trigger_ms} milliseconds"}
    )
    writer = frame.writeStream.foreachBatch(on_batch).queryName(pipeline.name)
    return writer.option("checkpointLocation", str(pipeline.folder)).trigger(**trigger).start()


def _nobody(progress: Progress) -> None:
    """Reports to nobody."""
