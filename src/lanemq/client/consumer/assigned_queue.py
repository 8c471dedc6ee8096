"""One queue in this member's hands, from the lease to the release.

A queue that leaves and comes back is a new holding: nothing that belonged to the old one can reach the new one.
Loops are tied to the holding, not to the queue's name, so two of them never serve one queue.
"""

import asyncio
from collections.abc import Iterator
from typing import NamedTuple

from lanemq.client.consumer.subscription import Station
from lanemq.client.message import Source
from lanemq.core.consuming.queue_lease import LeaseTimes, QueueLease
from lanemq.core.consuming.rebalance import QueueLifecycle
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, NOT_LEASED
from lanemq.core.consuming.shut_lanes import KeptLane
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset


class Start(NamedTuple):
    """Where a queue is taken up."""

    offset: QueueOffset
    finished: FinishedRanges = NOTHING_FINISHED
    """What former owners finished above the offset; it is not run again."""
    kept: tuple[KeptLane, ...] = ()
    """Lanes that the broker keeps parked."""
    parked_serial: int = 0


class Holding:
    """What the shells know of one held queue; what of it may run is the scheduler's knowledge."""

    def __init__(
        self, queue: MessageQueue, station: Station, source: Source, lease: QueueLease | None, times: LeaseTimes
    ) -> None:
        self.queue = queue
        self.station = station
        self.source = source
        self.lease = lease
        self.times = times
        self.lane = False
        """The broker knows epochs and gives large pulls."""
        self.released = False
        """Given back or lost; whatever still arrives for it is ignored."""
        self.life = QueueLifecycle(queue, needs_lease=lease is not None)
        """Where it stands between coming and going, and what that asks for next."""
        self.wake = asyncio.Event()
        """Set when the pull loop should look again: room in the cache, or a lease."""
        self.puller: asyncio.Task[None] | None = None
        self.hand_over: asyncio.Task[None] | None = None
        self.last_pull: Millis = Millis(0)
        self.moving: QueueOffset | None = None
        """Where a reset sends it, until it has arrived; what it did at the old place is not reported any more."""
        self.finished = NOTHING_FINISHED
        """What is finished above the committable offset, as of the last look."""
        self.finished_reported = NOTHING_FINISHED
        """The same, as the broker knows it."""
        self.keeps_parked = False
        """The broker takes parked lanes."""
        self.parked_serial = 0
        """Names the state of the broker's parked lanes that is known here."""

    @property
    def epoch(self) -> Epoch:
        """Names the lease to the broker; 0 where there is none, or none with a number."""
        return self.lease.epoch if self.lease is not None else Epoch(0)

    @property
    def usable_until(self) -> Millis:
        """The lease's end as the scheduler wants it."""
        if self.lease is None:
            return NO_LEASE_NEEDED
        return NOT_LEASED if self.lease.usable_until is None else self.lease.usable_until

    def may_pull(self, *, now: Millis) -> bool:
        """A queue without a usable lease is not read: what comes would be another member's (A47, A56)."""
        return self.lease is None or self.lease.usable(now=now)

    def __str__(self) -> str:
        return str(self.queue)


class Holdings:
    """Everything this member holds."""

    def __init__(self) -> None:
        self._held: dict[MessageQueue, Holding] = {}

    def __iter__(self) -> Iterator[Holding]:
        return iter(tuple(self._held.values()))

    def __len__(self) -> int:
        return len(self._held)

    def get(self, queue: MessageQueue) -> Holding | None:
        return self._held.get(queue)

    def of_topic(self, topic: str) -> list[Holding]:
        return [holding for holding in self if holding.queue.topic == topic]

    def add(self, holding: Holding) -> None:
        assert holding.queue not in self._held, f"{holding} is held already"
        self._held[holding.queue] = holding

    def forget(self, holding: Holding) -> bool:
        """Ends a holding; false if it had ended already."""
        holding.released = True
        if self._held.get(holding.queue) is not holding:
            return False
        del self._held[holding.queue]
        return True

    def at_broker(self, broker: str) -> list[Holding]:
        """Holdings of a broker that need a lease."""
        return [
            each
            for each in self._held.values()
            if each.queue.broker == broker and each.lease is not None and not each.released
        ]

    def by_broker(self) -> dict[str, list[Holding]]:
        """Holdings that need a lease, one list per broker: a renewal is one request each (A26)."""
        groups: dict[str, list[Holding]] = {}
        for holding in self:
            if holding.lease is not None and not holding.released:
                groups.setdefault(holding.queue.broker, []).append(holding)
        return groups
