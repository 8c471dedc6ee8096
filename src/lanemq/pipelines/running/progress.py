"""What a running pipeline has done: one record per batch or pass, for people, logs and programs."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from lanemq.pipelines.batch import NUMBERS_PER_BATCH, Batch, start_of
from lanemq.spark.lag import QueueLag, oldest_age

LEVELS = frozenset({"keys", "lanes_held", "lanes_parked"})
"""Counts of the state behind a batch, not of what the batch did."""


@dataclass(frozen=True, slots=True)
class Done:
    """One unit of work that the sinks have."""

    batch: Batch
    outputs: int = 0
    """Rows handed to the sink."""
    dead_letters: int = 0
    repeated: bool = False
    """The sink had it already: a crash came between the sink and Spark's note."""
    seconds: float = 0.0
    counts: Mapping[str, int] = field(default_factory=dict)
    """What the stage counted: events, repeats, gaps, held, parked, poison ... Those in `LEVELS` say how it stands
    after the batch and are not to be added up."""


@dataclass(frozen=True, slots=True)
class Progress:
    """A unit of work as the outside sees it, and how far behind the pipeline was after it."""

    pipeline: str
    done: Done
    messages: int = 0
    """Offsets that the batch went forward; 0 for passes."""
    seconds: float = 0.0
    """From planning the batch to Spark's note that it is done."""
    lag: tuple[QueueLag, ...] = ()

    @property
    def retry_pass(self) -> int:
        """0 for a batch, else the how-manieth pass behind it."""
        return self.done.batch.number % NUMBERS_PER_BATCH

    @property
    def lag_messages(self) -> int:
        return sum(each.messages for each in self.lag)

    @property
    def lag_seconds(self) -> float | None:
        """The age of the oldest message that is not done; None if all are, or if the broker does not say."""
        return oldest_age(self.lag)

    @property
    def rate(self) -> float:
        """Messages a second."""
        return self.messages / self.seconds if self.seconds > 0 else 0.0

    def document(self) -> dict[str, object]:
        """For programs: one flat object, and one per queue in it."""
        done = self.done
        return {
            "pipeline": self.pipeline,
            "batch": done.batch.spark_batch,
            "retry_pass": self.retry_pass,
            "epoch": start_of(done.batch.epoch),
            "messages": self.messages,
            "outputs": done.outputs,
            "dead_letters": done.dead_letters,
            "repeated": done.repeated,
            "seconds": round(self.seconds, 3),
            "rate": round(self.rate, 1),
            "lag": self.lag_messages,
            "lag_seconds": self.lag_seconds,
            "counts": dict(done.counts),
            "queues": [each.document() for each in self.lag],
        }

    def line(self) -> str:
        """For people who read a log."""
        done = self.done
        unit = f"pass {self.retry_pass} behind batch" if done.batch.is_retry_pass else "batch"
        facts = [counted(self.messages, "messages")] if not done.batch.is_retry_pass else []
        facts += [counted(done.outputs, "rows")] if not done.repeated else ["repeated, the sink had it"]
        facts += [counted(count, name) for name, count in done.counts.items() if count and name != "events"]
        facts += [f"{self.seconds:.1f} s"] + ([_per_second(self.rate)] if self.messages else [])
        behind = self.lag_seconds
        facts += [f"lag {self.lag_messages}" + (f" ({behind:.1f} s)" if behind is not None else "")]
        return f"{self.pipeline} {unit} {done.batch.spark_batch}: {', '.join(facts)}"


def _per_second(rate: float) -> str:
    return f"{rate:.0f}/s" if rate >= 10 else f"{rate:.1f}/s"


def counted(count: int, name: str) -> str:
    """A count of a stage as people say it: `1 repeat`, `2 lanes parked`."""
    words = name.replace("_", " ").split(" ")
    plural = next((at for at, word in enumerate(words) if word in _PLURALS), None)
    if count == 1 and plural is not None:
        words[plural] = words[plural].removesuffix("s")
    return f"{count} {' '.join(words)}"


_PLURALS = frozenset(
    {"messages", "rows", "events", "repeats", "gaps", "keys", "lanes", "deletes", "changes", "misfits"}
)
