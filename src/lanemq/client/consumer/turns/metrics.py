"""Counts what handlers did, per topic: messages that succeeded and failed, runs, and their duration.

Every worker counts for itself, so that counting takes no lock.
"""

from typing import NamedTuple


class TopicCount(NamedTuple):
    """The numbers of one topic since the start."""

    ok: int
    failed: int
    runs: int
    run_ms: int

    def __add__(self, other: tuple[object, ...]) -> "TopicCount":
        assert isinstance(other, TopicCount)
        return TopicCount(
            self.ok + other.ok, self.failed + other.failed, self.runs + other.runs, self.run_ms + other.run_ms
        )


NOTHING = TopicCount(0, 0, 0, 0)


class WorkerCounts:
    """The counts of one worker. Only that worker writes them."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicCount] = {}

    def succeeded(self, topic: str, runs: int, messages: int, took_ms: int) -> None:
        """Counts runs that fully succeeded."""
        if runs:
            self._topics[topic] = self._topics.get(topic, NOTHING) + TopicCount(messages, 0, runs, took_ms)

    def run(self, topic: str, *, ok: int, failed: int, took_ms: int) -> None:
        """Counts one run."""
        self._topics[topic] = self._topics.get(topic, NOTHING) + TopicCount(ok, failed, 1, took_ms)

    def read(self) -> dict[str, TopicCount]:
        return dict(self._topics)


class ConsumerCounts:
    """The counts of all workers."""

    def __init__(self) -> None:
        self._all: list[WorkerCounts] = []

    def new(self) -> WorkerCounts:
        counts = WorkerCounts()
        self._all.append(counts)
        return counts

    def total(self) -> dict[str, TopicCount]:
        """The sums per topic. A run that ends during the call is counted now or next time."""
        sums: dict[str, TopicCount] = {}
        for counts in tuple(self._all):
            for topic, count in counts.read().items():
                sums[topic] = sums.get(topic, NOTHING) + count
        return sums
