"""What a consumer counts about its handlers, per topic: how many went well, how many did not, how long turns took.

Workers on many threads count here; each has its own line of the book, so counting takes no lock.
"""

from typing import NamedTuple


class TopicCount(NamedTuple):
    """One topic's numbers since the start."""

    ok: int
    failed: int
    runs: int
    turn_ms: int

    def __add__(self, other: tuple[object, ...]) -> "TopicCount":
        assert isinstance(other, TopicCount)
        return TopicCount(
            self.ok + other.ok, self.failed + other.failed, self.runs + other.runs, self.turn_ms + other.turn_ms
        )


NOTHING = TopicCount(0, 0, 0, 0)


class WorkerCounts:
    """One worker's counts. Written by that worker alone."""

    def __init__(self) -> None:
        self._topics: dict[str, TopicCount] = {}

    def run(self, topic: str, *, ok: int, failed: int, took_ms: int) -> None:
        self._topics[topic] = self._topics.get(topic, NOTHING) + TopicCount(ok, failed, 1, took_ms)

    def went_well(self, topic: str, runs: int, messages: int, took_ms: int) -> None:
        """Many turns at once."""
        if runs:
            self._topics[topic] = self._topics.get(topic, NOTHING) + TopicCount(messages, 0, runs, took_ms)

    def read(self) -> dict[str, TopicCount]:
        return dict(self._topics)


class ConsumerCounts:
    """All workers' counts together."""

    def __init__(self) -> None:
        self._all: list[WorkerCounts] = []

    def new(self) -> WorkerCounts:
        counts = WorkerCounts()
        self._all.append(counts)
        return counts

    def total(self) -> dict[str, TopicCount]:
        """Sums of this moment; a turn that ends meanwhile is counted here or next time."""
        sums: dict[str, TopicCount] = {}
        for counts in tuple(self._all):
            for topic, count in counts.read().items():
                sums[topic] = sums.get(topic, NOTHING) + count
        return sums
