"""What handlers did since the start: messages by outcome, runs, and how long their turns took.

Every worker counts for itself, so that it takes no lock; the figures are added up when they are asked for.
"""

from array import array
from bisect import bisect_left
from collections.abc import Callable
from typing import NamedTuple

from lanemq.core.consuming.runs import Outcome, Plain, Suspend
from lanemq.model.figures import Distribution
from lanemq.model.units import Millis

TURN_LIMITS = (
    0.0001, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0,
)  # fmt: skip
"""Upper limits of the ranges in which the times of turns are counted, in seconds: from a handler that only computes to
one that waits for a slow service."""

_FAILURES = (Plain.FAILED, Plain.HOPELESS, Plain.ROLL_BACK, Plain.ONE_BY_ONE)


class TopicCount(NamedTuple):
    """What handlers did for one topic since the start: messages and runs."""

    ok: int
    failed: int
    runs: int

    def __add__(self, other: tuple[object, ...]) -> "TopicCount":
        assert isinstance(other, TopicCount)
        return TopicCount(self.ok + other.ok, self.failed + other.failed, self.runs + other.runs)


NOTHING = TopicCount(0, 0, 0)


class TurnTimes:
    """How long the turns of one worker took. `run_waiting` adds to it for every turn, so it counts integers only."""

    __slots__ = ("counts", "sum_ns")

    limits_ns = array("q", [round(limit * 1e9) for limit in TURN_LIMITS])

    def __init__(self) -> None:
        self.counts = [0] * (len(TURN_LIMITS) + 1)
        """Turns in each range; the last one is above all limits."""
        self.sum_ns = 0

    def add(self, spent_ns: int) -> None:
        self.counts[bisect_left(self.limits_ns, spent_ns)] += 1
        self.sum_ns += spent_ns

    def add_to(self, total: Distribution) -> None:
        total.counts = [mine + all_ for mine, all_ in zip(self.counts, total.counts, strict=True)]
        total.sum += self.sum_ns / 1e9


class TurnClock:
    """Reads the clock where a turn begins, and adds the time of the turn before it."""

    __slots__ = ("_began", "_now", "_times")

    def __init__(self, now: Callable[[], int], times: TurnTimes) -> None:
        self._now = now
        self._times = times
        self._began: int | None = None

    def next_turn(self) -> Millis:
        """Ends a turn and begins one; the time."""
        time = self._now()
        if self._began is not None:
            self._times.add(time - self._began)
        self._began = time
        return Millis(time // 1_000_000)

    def no_turn(self) -> None:
        """The turn that was begun does not take place."""
        self._began = None

    def stop(self) -> None:
        """Ends a turn."""
        if self._began is not None:
            self._times.add(self._now() - self._began)


class WorkerCounts:
    """The counts of one worker of a topic. Only that worker writes them."""

    def __init__(self, topic: str) -> None:
        self.topic = topic
        self.times = TurnTimes()
        self._topics: dict[str, TopicCount] = {}

    def succeeded(self, runs: int, messages: int) -> None:
        """Counts runs that fully succeeded."""
        if runs:
            self._topics[self.topic] = self._topics.get(self.topic, NOTHING) + TopicCount(messages, 0, runs)

    def stopped(self, topic: str, outcome: Outcome, done: int) -> None:
        """Counts a run that did not fully succeed: `done` messages succeeded, then one ended with `outcome`."""
        failed = 1 if isinstance(outcome, Suspend) or outcome in _FAILURES else 0
        ok = done + (outcome is Plain.COMMIT)
        self._topics[topic] = self._topics.get(topic, NOTHING) + TopicCount(ok, failed, 1)

    def read(self) -> dict[str, TopicCount]:
        return dict(self._topics)


class ConsumerCounts:
    """The counts of all workers."""

    def __init__(self) -> None:
        self._all: list[WorkerCounts] = []

    def new(self, topic: str) -> WorkerCounts:
        """The counts of a new worker."""
        counts = WorkerCounts(topic)
        self._all.append(counts)
        return counts

    def total(self) -> dict[str, TopicCount]:
        """The sums per topic. A run that ends during the call is counted now or next time."""
        sums: dict[str, TopicCount] = {}
        for counts in tuple(self._all):
            for topic, count in counts.read().items():
                sums[topic] = sums.get(topic, NOTHING) + count
        return sums

    def turn_times(self) -> dict[str, Distribution]:
        """How long turns took, per topic: one call of the handler each, also of those that failed."""
        sums: dict[str, Distribution] = {}
        for counts in tuple(self._all):
            counts.times.add_to(sums.setdefault(counts.topic, Distribution(TURN_LIMITS)))
        return sums
