"""Progress of a running pipeline: one record per batch or retry pass, reported once, with the lag after it."""

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from lanemq.net.security import Security
from lanemq.pipelines.batches import Batch, start_of
from lanemq.spark.lag import LagAges, QueueLag, lag_of, offsets_advanced, oldest_age

log = logging.getLogger(__name__)

LEVELS = frozenset({"keys", "lanes_held", "lanes_parked"})
"""Counts that describe the state after a batch, not what the batch did."""
_PLURALS = frozenset(
    {
        "messages",
        "values",
        "rows",
        "events",
        "repeats",
        "gaps",
        "keys",
        "lanes",
        "deletes",
        "changes",
        "misfits",
        "letters",
    }
)


@dataclass(frozen=True, slots=True)
class AppliedBatch:
    """A batch or retry pass that the sinks have."""

    batch: Batch
    outputs: int = 0
    """Rows given to the sink."""
    dead_letters: int = 0
    repeated: bool = False
    """Whether the sink already had it, because of a crash before Spark recorded it."""
    seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the stage counted: events, repeats, gaps, held, parked, poison ... Those in `LEVELS` describe the state
    after the batch and must not be added up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """An applied batch, and how far behind the pipeline was after it."""

    pipeline: str
    applied: AppliedBatch
    messages: int = 0
    """Offsets that the batch advanced; 0 for retry passes. Messages that the stage read, if Spark did not report it."""
    seconds: float = 0.0
    """Seconds from planning the batch until Spark recorded it as done."""
    lag: tuple[QueueLag, ...] = ()
    """Empty if it is not known, as for a batch that an earlier run had planned."""

    @property
    def retry_pass(self) -> int:
        """0 for a batch, else the ordinal of the retry pass after it."""
        return self.applied.batch.retry_pass

    @property
    def lag_messages(self) -> int | None:
        """Messages that are not done; None if that is not known."""
        return sum(each.messages for each in self.lag) if self.lag else None

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest message that is not done; None if there is none, or if the broker does not say."""
        return oldest_age(self.lag)

    @property
    def rate(self) -> float:
        """Messages per second."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0

    def document(self) -> dict[str, object]:
        """For programs: a flat object, with a list of queues."""
        applied = self.applied
        return {
            "pipeline": self.pipeline,
            "batch": applied.batch.spark_batch,
            "retry_pass": self.retry_pass,
            "epoch": start_of(applied.batch.epoch),
            "messages": self.messages,
            "outputs": applied.outputs,
            "dead_letters": applied.dead_letters,
            "repeated": applied.repeated,
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate, 1),
            "lag": self.lag_messages,
            "lag_seconds": self.lag_seconds,
            "counts": dict(applied.counts),
            "queues": [each.document() for each in self.lag],
        }

    def line(self) -> str:
        """For people: a line of a log."""
        applied = self.applied
        unit = f"retry pass {self.retry_pass} after batch" if applied.batch.is_retry_pass else "batch"
        # 0 messages beside rows means that they were not counted.
        known = self.messages or not (applied.outputs or applied.repeated)
        facts = [counted(self.messages, "messages")] if known and not applied.batch.is_retry_pass else []
        facts += [counted(applied.outputs, "rows")] if not applied.repeated else ["repeated, the sink had it"]
        facts += [counted(count, name) for name, count in applied.counts.items() if count and name != "events"]
        facts += [f"{self.seconds:.1f} s"] + ([_per_second(self.rate)] if self.messages else [])
        age = self.lag_seconds
        if self.lag:
            facts += [f"lag {self.lag_messages}" + (f" (the oldest is {age:.1f} s old)" if age is not None else "")]
        return f"{self.pipeline} {unit} {applied.batch.spark_batch}: {', '.join(facts)}"


Report: TypeAlias = Callable[[Progress], object]


class ProgressReporter:
    """Combines what a run applied with Spark's progress, and calls the user's report once for each.

    A batch is reported when Spark's progress for it has come, since that has the offsets; a retry pass at once. No
    error here may fail the pipeline: a broker that does not return ages, or a report that raises, is only logged.
    Used from the thread of the batches and from the runner's own.
    """

    def __init__(self, name: str, servers: str, report: Report, security: Security | None = None) -> None:
        self.last: Progress | None = None
        self._name = name
        self._report = report
        self._ages = LagAges(servers, security=security)
        self._waiting: dict[int, AppliedBatch] = {}
        self._lag: tuple[QueueLag, ...] = ()
        self._lock = threading.Lock()

    def on_applied(self, applied: AppliedBatch) -> None:
        """Called when the sinks have a batch or retry pass."""
        if applied.batch.is_retry_pass:
            self._publish(Progress(self._name, applied, seconds=applied.seconds, lag=self._lag))
            return
        with self._lock:
            self._waiting[applied.batch.spark_batch] = applied

    def on_spark_progress(self, progress: Mapping[str, Any] | None) -> None:
        """Called with Spark's last progress. Earlier batches that still wait are reported without Spark's numbers."""
        if progress is None:
            return
        batch = int(progress["batchId"])
        with self._lock:
            ready = [self._waiting.pop(number) for number in sorted(self._waiting) if number <= batch]
        for applied in ready:
            if applied.batch.spark_batch < batch:
                self._publish(self._without_spark(applied))
                continue
            self._lag = self._ages.with_ages(lag_of(progress))
            seconds = progress["durationMs"].get("triggerExecution", 0) / 1000
            self._publish(
                Progress(self._name, applied, offsets_advanced(progress), seconds or applied.seconds, self._lag)
            )

    def waits_before(self, batch: int) -> bool:
        """Whether a batch before this one has not been reported yet."""
        with self._lock:
            return any(number < batch for number in self._waiting)

    def close(self) -> None:
        with self._lock:
            ready, self._waiting = list(self._waiting.values()), {}
        for applied in ready:
            self._publish(self._without_spark(applied))
        self._ages.close()

    def _without_spark(self, applied: AppliedBatch) -> Progress:
        """The progress of a batch that Spark did not report, such as the last one of a run that was stopped."""
        return Progress(self._name, applied, applied.counts.get("events", 0), applied.seconds, self._lag)

    def _publish(self, progress: Progress) -> None:
        self.last = progress
        try:
            self._report(progress)
        except Exception:
            log.exception("the report about %s raised; the pipeline continues", progress.applied.batch)


def counted(count: int, name: str) -> str:
    """A count with its name in the right number: `1 repeat`, `2 lanes parked`."""
    words = name.replace("_", " ").split(" ")
    plural = next((at for at, word in enumerate(words) if word in _PLURALS), None)
    if count == 1 and plural is not None:
        words[plural] = words[plural].removesuffix("s")
    return f"{count} {' '.join(words)}"


def _per_second(rate: float) -> str:
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"
