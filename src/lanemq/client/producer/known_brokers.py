"""What a producer knows of its connections: which are there, which are being made, when to try again.

The rule guarded here: per broker there is at most one attempt to connect, and after failures in a row the next one
waits longer. The shell makes and ends connections and says so here.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from lanemq.model.units import Millis

DIAL_BACKOFF_MILLIS = (0, 50, 100, 200, 500, 1000)
"""How long to wait before the next attempt to connect, by failures in a row; the last one repeats."""


@dataclass(slots=True)
class KnownBroker:
    """One broker, by name."""

    topic: str
    """One whose route knows the broker."""
    connected: bool = False
    failures: int = 0
    dialing: bool = False
    dial_at: int = 0

    def has_connected(self) -> None:
        self.connected, self.dialing, self.failures = True, False, 0

    def has_failed(self, now: Millis) -> None:
        self.failures += 1
        self.dialing = False
        self.dial_at = now + DIAL_BACKOFF_MILLIS[min(self.failures, len(DIAL_BACKOFF_MILLIS) - 1)]


class KnownBrokers(dict[str, KnownBroker]):
    """All brokers that lanes of the producer lead to."""

    def to_dial(self, names: Iterable[str], now: Millis) -> list[tuple[str, str]]:
        """Those of them to connect to now, each with a topic; they count as being dialled from here on."""
        dial: list[tuple[str, str]] = []
        for name in names:
            broker = self[name]
            if not broker.connected and not broker.dialing and broker.dial_at <= now:
                broker.dialing = True
                dial.append((name, broker.topic))
        return dial
