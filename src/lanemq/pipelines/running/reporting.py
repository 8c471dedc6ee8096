"""From what a run did to what people are told: each batch and pass once, with the lag after it.

A batch is told when Spark's own progress about it has come, because that has the offsets; a pass at once. Nothing
here may fail the pipeline: a broker that does not tell ages, or a report that raises, costs a line in the log.
"""

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from lanemq.net.security import Security
from lanemq.pipelines.running.progress import Done, Progress
from lanemq.spark.lag import LagAges, QueueLag, lag_of, offsets_advanced

log = logging.getLogger(__name__)

Report: TypeAlias = Callable[[Progress], object]


class Reporting:
    """Told from the thread of the batches and from the keeper's."""

    def __init__(self, name: str, servers: str, report: Report, security: Security | None = None) -> None:
        self.last: Progress | None = None
        self._name = name
        self._report = report
        self._times = LagAges(servers, security=security)
        self._waiting: dict[int, Done] = {}
        self._lag: tuple[QueueLag, ...] = ()
        self._lock = threading.Lock()

    def did(self, done: Done) -> None:
        """A unit of work is in the sinks."""
        if done.batch.is_retry_pass:
            self._tell(Progress(self._name, done, seconds=done.seconds, lag=self._lag))
            return
        with self._lock:
            self._waiting[done.batch.spark_batch] = done

    def seen(self, progress: Mapping[str, Any] | None) -> None:
        """Spark's last progress. Batches before it that were never seen are told without numbers of Spark's."""
        if progress is None:
            return
        batch = int(progress["batchId"])
        with self._lock:
            ready = [self._waiting.pop(number) for number in sorted(self._waiting) if number <= batch]
        for done in ready:
            if done.batch.spark_batch < batch:
                self._tell(Progress(self._name, done, seconds=done.seconds, lag=self._lag))
                continue
            self._lag = self._times.with_ages(lag_of(progress))
            seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
            self._tell(Progress(self._name, done, offsets_advanced(progress), seconds or done.seconds, self._lag))

    def waits_before(self, batch: int) -> bool:
        """Whether a batch before this one is not told yet."""
        with self._lock:
            return any(number < batch for number in self._waiting)

    def close(self) -> None:
        with self._lock:
            ready, self._waiting = list(self._waiting.values()), {}
        for done in ready:
            self._tell(Progress(self._name, done, seconds=done.seconds, lag=self._lag))
        self._times.close()

    def _tell(self, progress: Progress) -> None:
        self.last = progress
        try:
            self._report(progress)
        except Exception:
            log.exception("the report about %s raised; the pipeline goes on", progress.done.batch)
