"""What a running pipeline shows about itself: metrics, and the monitor of `lanemq pipeline run --monitor`.

monitor = PipelineMonitor("orders")
run(pipeline, report=monitor.counting(report))
"""

import threading
from collections import Counter
from collections.abc import Iterator

from lanemq.model.figures import Distribution, Kind, Metric, MetricSample
from lanemq.pipelines.running.progress import LEVELS, Progress, Report

_NAME = ("pipeline",)
BATCH_LIMITS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)

BATCHES = Metric("lanemq_pipeline_batches_total", Kind.COUNTER, "Batches that the sink has.", _NAME)
RETRY_PASSES = Metric("lanemq_pipeline_retry_passes_total", Kind.COUNTER, "Retry passes over held keys.", _NAME)
MESSAGES = Metric("lanemq_pipeline_messages_total", Kind.COUNTER, "Messages that batches advanced over.", _NAME)
ROWS = Metric("lanemq_pipeline_rows_total", Kind.COUNTER, "Rows given to the sink.", _NAME)
DEAD_LETTERS = Metric("lanemq_pipeline_dead_letters_total", Kind.COUNTER, "Messages that became dead letters.", _NAME)
SECONDS = Metric("lanemq_pipeline_batch_seconds", Kind.HISTOGRAM, "Time from planning a batch until it is done.", _NAME)
LAG_MESSAGES = Metric("lanemq_pipeline_lag_messages", Kind.GAUGE, "Messages not done after the last batch.", _NAME)
LAG_SECONDS = Metric("lanemq_pipeline_lag_seconds", Kind.GAUGE, "Age of the oldest of them after that batch.", _NAME)
COUNTED = Metric(
    "lanemq_pipeline_counted_total", Kind.COUNTER, "What the stage counted, such as repeats and gaps.", (*_NAME, "what")
)
LEVEL = Metric(
    "lanemq_pipeline_level", Kind.GAUGE, "What the stage has after the last batch, such as held keys.", (*_NAME, "what")
)
PIPELINE_CATALOGUE = (
    BATCHES, RETRY_PASSES, MESSAGES, ROWS, DEAD_LETTERS, SECONDS, LAG_MESSAGES, LAG_SECONDS, COUNTED, LEVEL,
)  # fmt: skip


class PipelineMonitor:
    """Adds up the progress of a run. Batches report on one thread, the monitor reads on others."""

    def __init__(self, name: str) -> None:
        self._name = (name,)
        self._lock = threading.Lock()
        self._totals: Counter[Metric] = Counter()
        self._counted: Counter[str] = Counter()
        self._seconds = Distribution(BATCH_LIMITS)
        self._last: Progress | None = None

    def counting(self, report: Report) -> Report:
        """A callback that adds each progress, then calls `report`."""

        def count_and_report(progress: Progress) -> None:
            self.add(progress)
            report(progress)

        return count_and_report

    def add(self, progress: Progress) -> None:
        applied = progress.applied
        with self._lock:
            self._last = progress
            self._totals[RETRY_PASSES if applied.batch.is_retry_pass else BATCHES] += 1
            self._totals[MESSAGES] += progress.messages
            self._totals[ROWS] += applied.outputs
            self._totals[DEAD_LETTERS] += applied.dead_letters
            self._seconds.add(progress.seconds)
            self._counted.update({name: count for name, count in applied.counts.items() if name not in LEVELS})

    def live_problem(self) -> str | None:
        """A pipeline that fails ends by itself, so one that answers is alive."""
        return None

    def ready_problems(self) -> list[str]:
        return [] if self._last is not None else ["no batch is done yet"]

    def samples(self) -> list[MetricSample]:
        with self._lock:
            return list(self._samples())

    def _samples(self) -> Iterator[MetricSample]:
        for metric in (BATCHES, RETRY_PASSES, MESSAGES, ROWS, DEAD_LETTERS):
            yield MetricSample(metric, self._totals[metric], self._name)
        yield MetricSample(SECONDS, self._seconds, self._name)
        for what, count in self._counted.items():
            yield MetricSample(COUNTED, count, (*self._name, what))
        if self._last is None:
            return
        if self._last.lag_messages is not None:
            yield MetricSample(LAG_MESSAGES, self._last.lag_messages, self._name)
        if self._last.lag_seconds is not None:
            yield MetricSample(LAG_SECONDS, self._last.lag_seconds, self._name)
        for what, count in self._last.applied.counts.items():
            if what in LEVELS:
                yield MetricSample(LEVEL, count, (*self._name, what))
