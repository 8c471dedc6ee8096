"""The two sources: how each one is named in Spark, and the options that its users set."""

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.peers.contenders import OURS
from benchmarks.peers.race import Entrant

KAFKA = "Kafka source"
FILLED_BY = {OURS: OURS, KAFKA: "confluent-kafka"}
"""The contender of `make bench-peers` that starts the server of a source and fills its topics."""


@dataclass(frozen=True)
class SparkSource:
    """One of the sources, with its running server."""

    name: str
    entrant: Entrant

    @property
    def format(self) -> str:
        return "lanemq" if self.name == OURS else "kafka"

    def options(self, topic: str) -> dict[str, str]:
        """From the first message on, and nothing else that differs from the defaults."""
        address = self.entrant.server.address
        if self.name == OURS:
            return {"servers": address, "topic": topic, "startingOffsets": "earliest"}
        return {"kafka.bootstrap.servers": address, "subscribe": topic, "startingOffsets": "earliest"}


def sources_of(entrants: Sequence[Entrant]) -> list[SparkSource]:
    by_contender = {each.name: each for each in entrants}
    return [SparkSource(name, by_contender[other]) for name, other in FILLED_BY.items() if other in by_contender]
