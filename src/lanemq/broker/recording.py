"""What the broker writes down for the checker: leases as they change hands, offsets as they are accepted.

A broker's word about a lease is exact, so a line is written where the lock table or the offset table has just
decided, before anybody is answered. Callers ask `on` first: without a history that is all it costs.

A reset is written here only while the group is away. A member at work still ends what runs before it goes
elsewhere, and only the member knows when that is.
"""

from collections.abc import Iterable, Mapping

from lanemq.core.group_offsets import Commit, Committed, Ignored, OffsetRow, WhyIgnored
from lanemq.core.lock_table import Lease, LeaseRow
from lanemq.core.parked_lanes import LaneName
from lanemq.history import History, Place
from lanemq.history import Lease as LeaseLine
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch

NANOS = 1_000_000
"""In a millisecond."""


class Recording:
    """The history of one broker, in the broker's own words."""

    def __init__(self, history: History) -> None:
        self.on = history.on
        self._history = history

    def close(self) -> None:
        self._history.close()

    def locked(self, group: str, leases: Iterable[Lease]) -> None:
        """The granted ones of a lock request; also leases whose end was moved for another reason."""
        for lease in leases:
            tell = self._history.lease_granted if lease.changed else self._history.lease_renewed
            tell(_line(group, lease.queue, lease.owner, lease.epoch), until=lease.expires_at * NANOS)

    def unlocked(self, rows: Iterable[LeaseRow], owner: str) -> None:
        for row in rows:
            self._history.lease_released(_line(row.group, row.queue, owner, row.epoch))

    def withdrawn(self, rows: Iterable[LeaseRow]) -> None:
        """The leases of a topic that was deleted."""
        for row in rows:
            self._history.lease_released(_line(row.group, row.queue, row.owner, row.epoch))

    def deleted(self, topic: str) -> None:
        """After what was told of its leases: from here on the name may stand for another topic."""
        self._history.topic_deleted(topic)

    def expired(self, leases: Iterable[tuple[str, Lease]]) -> None:
        for group, lease in leases:
            self._history.lease_expired(_line(group, lease.queue, lease.owner, lease.epoch))

    def commit(self, place: Place, epoch: int | None, outcome: Commit) -> None:
        """Only what changed something or was refused; a stock owner that goes back has set its place by name."""
        match outcome:
            case Committed(before) if before is not None and place.offset < before:
                self._history.reset(place, f"a stock client went back from {before}")
            case Committed():
                self._history.committed(place, epoch=epoch or 0)
            case Ignored(WhyIgnored.FENCED):
                self._history.commit_refused(place, WhyIgnored.FENCED.value, epoch=epoch or 0)

    def parked(self, name: LaneName, offsets: Iterable[int]) -> None:
        """On disk, and not yet answered."""
        for offset in offsets:
            self._history.parked(Place(*name.place, offset), name.key or "")

    def redriven(self, name: LaneName, first: int) -> None:
        self._history.redriven(Place(*name.place, first), name.key or "")

    def discarded(self, name: LaneName, offsets: Iterable[int]) -> None:
        for offset in offsets:
            self._history.discarded(Place(*name.place, offset), name.key or "")

    def moved(self, group: str, queues: Mapping[MessageQueue, int]) -> None:
        """A reset of a group that is away."""
        for queue, offset in queues.items():
            self._history.reset(Place(group, queue.topic, queue.queue_id, offset), "reset by name")

    def restarted(self, leases: Mapping[str, Iterable[Lease]], offsets: Iterable[OffsetRow], *, clean: bool) -> None:
        """Leases got their full length again. Offsets are promised to survive a clean stop; of a crash only that
        what was not written yet is delivered again, which is nothing a checker could hold against them."""
        for group, held in leases.items():
            self.locked(group, held)
        if clean:
            for row in offsets:
                self._history.recovered(Place(row.group, row.topic, row.queue_id, row.offset))


def _line(group: str, queue: MessageQueue, owner: str, epoch: Epoch) -> LeaseLine:
    return LeaseLine(group, queue.topic, queue.queue_id, owner, epoch)
