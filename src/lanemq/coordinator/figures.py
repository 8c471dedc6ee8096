"""The figures of a coordinator: who leads, how its store does, and those of the groups while it leads itself."""

from collections.abc import Callable

from lanemq.broker.monitor import catalogue as names
from lanemq.coordinator.election import Election
from lanemq.coordinator.reign import Reign
from lanemq.coordinator.store import Store
from lanemq.model.figures import MetricSample
from lanemq.model.units import Millis


class CoordinatorFigures:
    """What the monitor of one process shows."""

    def __init__(self, store: Store, election: Election, reign: Callable[[], Reign | None]) -> None:
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
            MetricSample(names.LEADS, 0 if reign is None else 1),
            MetricSample(names.LEADER_KNOWN, 0 if election.leader is None else 1),
            MetricSample(names.TERM, term),
            MetricSample(names.TERMS, election.terms),
            MetricSample(names.STORE_WRITE, self._store.last_write_ms / 1000),
            MetricSample(names.STORE_UP, 0 if election.problem else 1),
        ]
        if reign is None:
            return [*samples, MetricSample(names.READY, 0 if election.problem else 1)]
        return [*samples, *(await reign.figures.read())]
