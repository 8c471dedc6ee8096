"""The sources: how each one is named in Spark, and the options that its users set."""

from collections.abc import Sequence
from typing import TypeAlias

from benchmarks.peers.contenders import OURS
from benchmarks.peers.race import Entrant

KAFKA = "Kafka source"
LIMIT = "prebuilt rows"
"""A Python source that has its rows already: what Spark itself costs, see `limit`."""
FILLED_BY = {OURS: OURS, KAFKA: "confluent-kafka"}
"""The contender of `make bench-peers` that starts the server of a source and fills its topics."""


class SparkSource:
    """One of the sources, with its running server."""

    def __init__(self, name: str, entrant: Entrant) -> None:
        self.name, self.entrant = name, entrant
        self.format = "lanemq" if name == OURS else "kafka"
        self._topics: dict[int, str] = {}

    @property
    def pids(self) -> Sequence[int]:
        """Of its server."""
        return self.entrant.server.pids

    def server_cpu_seconds(self) -> float:
        return self.entrant.server.cpu_seconds()

    def full(self, size: int, count: int, keys: int) -> dict[str, str]:
        """Options to read so many messages of this size. Their topic is filled when it is first asked for."""
        if size not in self._topics:
            topic = self.entrant.topic()
            self.entrant.fill(topic, count, size, keys)
            self._topics[size] = topic
        return self.options(self._topics[size])

    def options(self, topic: str) -> dict[str, str]:
        """From the first message on, and nothing else that differs from the defaults."""
        address = self.entrant.server.address
        if self.name == OURS:
            return {"servers": address, "topic": topic, "startingOffsets": "earliest"}
        return {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}


class Prebuilt:
    """The source without a server."""

    name = LIMIT
    format = "prebuilt"
    pids: Sequence[int] = ()

    def server_cpu_seconds(self) -> float:
        return 0.0

    def full(self, size: int, count: int, keys: int) -> dict[str, str]:
        return {"rows": str(count), "size": str(size)}


AnySource: TypeAlias = SparkSource | Prebuilt


def sources_of(entrants: Sequence[Entrant]) -> list[AnySource]:
    by_contender = {each.name: each for each in entrants}
    served = [SparkSource(name, by_contender[other]) for name, other in FILLED_BY.items() if other in by_contender]
    return [*served, Prebuilt()]
