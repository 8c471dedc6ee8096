"""The figures of a coordinator: who leads, how its store does, and those of the groups while it leads itself."""

from collections.abc import Callable

from lanemq.broker.monitor.catalogue import READY
from lanemq.coordinator.election import Election
from lanemq.coordinator.reign import Reign
from lanemq.coordinator.store import StateStore
from lanemq.model.figures import Kind, Metric, MetricSample
from lanemq.model.units import Millis

COUNTER, GAUGE = Kind.COUNTER, Kind.GAUGE
LEADS = Metric("lanemq_coordinator_leads", GAUGE, "1 if this coordinator leads, 0 if it waits for another one.")
LEADER_KNOWN = Metric(
    "lanemq_coordinator_leader_known", GAUGE, "1 if this coordinator leads or knows which one does, else 0."
)
TERM = Metric("lanemq_coordinator_term", GAUGE, "The term of the coordinator that leads, as this one knows it.")
TERMS = Metric("lanemq_coordinator_terms_total", COUNTER, "How often this coordinator began to lead.")
STORE_UP = Metric("lanemq_coordinator_store_up", GAUGE, "1 if the coordinator reaches its state, 0 if not.")
STORE_WRITE = Metric(
    "lanemq_coordinator_store_write_seconds",
    GAUGE,
    "How long the last change of a PostgreSQL state took; 0 for a folder.",
)
COORDINATOR_CATALOGUE = (LEADS, LEADER_KNOWN, TERM, TERMS, STORE_UP, STORE_WRITE)
"""What a coordinator shows beside the figures that a broker has too."""


class CoordinatorFigures:
    """What the monitor of one process shows."""

    def __init__(self, store: StateStore, election: Election, reign: Callable[[], Reign | None]) -> None:
        self._store = store
        self._election = election
        self._reign = reign

    @property
    def last_tick(self) -> Millis:
        """When the event loop did its periodic work last."""
        reign = self._reign()
        return self._election.last_tick if reign is None else reign.housekeeping.last_tick

    def problems(self) -> list[str]:
        """Why this process cannot do its work now. One that waits can take over if it reaches the store."""
        reign = self._reign()
        if reign is not None:
            return reign.figures.problems()
        return [self._election.problem] if self._election.problem else []

    async def read(self) -> list[MetricSample]:
        """All samples."""
        reign, election = self._reign(), self._election
        term = 0 if election.leader is None else election.leader.term
        samples = [
            MetricSample(LEADS, 0 if reign is None else 1),
            MetricSample(LEADER_KNOWN, 0 if election.leader is None else 1),
            MetricSample(TERM, term),
            MetricSample(TERMS, election.terms),
            MetricSample(STORE_WRITE, self._store.last_write_ms / 1000),
            MetricSample(STORE_UP, 0 if election.problem else 1),
        ]
        if reign is None:
            return [*samples, MetricSample(READY, 0 if election.problem else 1)]
        return [*samples, *(await reign.figures.read())]
