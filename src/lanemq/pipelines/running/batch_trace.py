"""What a trace learns about a batch: the queue ranges that Spark planned for it.

`trace_batches` (`running/tracing.py`) makes a trace of OpenTelemetry; this module knows nothing of it. A run without a
trace reads nothing for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from lanemq.model.queue import MessageQueue
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.checkpoint.checkpoint import SparkLog
from lanemq.pipelines.running.progress import AppliedBatch

ProcessBatch = Callable[[], AppliedBatch | None]


@dataclass(frozen=True, slots=True)
class BatchRange:
    """What a batch reads of one queue."""

    queue: MessageQueue
    start: int | None
    """None for the first batch of a checkpoint: Spark records only where a batch ends."""
    end: int

    def __str__(self) -> str:
        start = "" if self.start is None else self.start
        return f"{self.queue.topic}/{self.queue.broker}/{self.queue.queue_id}:{start}-{self.end}"


@dataclass(frozen=True, slots=True)
class PlannedBatch:
    """A batch or retry pass that is about to be processed."""

    batch: Batch
    ranges: tuple[BatchRange, ...] = ()
    """The queues with new messages; empty for a retry pass."""

    @property
    def messages(self) -> int | None:
        """How many offsets it advances; None if the starts are unknown."""
        known = [each.end - each.start for each in self.ranges if each.start is not None]
        return sum(known) if len(known) == len(self.ranges) else None


class BatchTrace(Protocol):
    """Is called instead of the processing of each batch and retry pass; must call `process` once."""

    def __call__(self, planned: PlannedBatch, process: ProcessBatch) -> AppliedBatch | None: ...


class BatchTracing:
    """Processes batches inside a trace, or without one if there is none."""

    def __init__(self, trace: BatchTrace | None = None, log: SparkLog | None = None) -> None:
        self._trace = trace
        self._log = log

    def run(self, batch: Batch, process: ProcessBatch) -> AppliedBatch | None:
        return process() if self._trace is None else self._trace(self._plan(batch), process)

    def _plan(self, batch: Batch) -> PlannedBatch:
        if batch.is_retry_pass or self._log is None:
            return PlannedBatch(batch)
        number = batch.spark_batch
        before = self._log.end_of(number - 1) if number else {}
        return PlannedBatch(batch, ranges_between(before, self._log.end_of(number)))


def ranges_between(before: Mapping[MessageQueue, int], end: Mapping[MessageQueue, int]) -> tuple[BatchRange, ...]:
    """The ranges between the ends of two batches, without empty ones, sorted by queue."""
    return tuple(
        BatchRange(queue, before.get(queue, 0) if before else None, end[queue])
        for queue in sorted(end)
        if end[queue] > before.get(queue, 0)
    )
