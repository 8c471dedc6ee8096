"""What the broker writes down for the checker: leases as they change hands, offsets as they are accepted.

A broker's word about a lease is exact, so a line is written where the lock table or the offset table has just
decided, before anybody is answered. Callers ask `on` first: without a history that is all it costs.

A reset is written here only while the group is away. A member at work still ends what runs before it goes
elsewhere, and only the member knows when that is.
"""

from collections.abc import Iterable, Mapping

from lanemq.core.brokering.group_offsets import Commit, Committed, Ignored, OffsetRow, WhyIgnored
from lanemq.core.brokering.lock_table import Lease, LeaseRow
from lanemq.core.brokering.parked_lanes import LaneName
from lanemq.history import History, Place
from lanemq.history import Lease as LeaseLine
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch

NANOS = 1_000_000
"""In a millisecond."""
_FIRST = Committed(None)


class Recording:
    """The history of one broker, in the broker's own words. `alive`: when its former life was last heard, or 0."""

    def __init__(self, history: History, alive: int = 0) -> None:
        self.on = history.on
        self._history = history
        self._alive = alive
        self._crashed = False
        self._known: set[tuple[str, str, int]] = set()
        """Group, topic and queue of which was told, since a crash, what is left of their offsets."""

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

    def commit(self, place: Place, epoch: int | None, outcome: Commit, *, owned: bool = True) -> None:
        """Only what changed something or was refused; a stock owner that goes back has set its place by name.

        `owned`: somebody holds the queue's lease. Where nobody does, members may be behind each other.
        """
        if outcome == _FIRST:
            self.nothing_found(place.group, place.topic, place.queue)
        match outcome:
            case Committed(before) if before is not None and place.offset < before:
                self._history.reset(place, f"a stock client went back from {before}", kept=not owned)
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

    def arrived(self, group: str, topic: str, queue_id: int, offset: int) -> None:
        """Somebody pulls from where a reset sent the group: from here on nothing of the old place is begun."""
        self._history.reset(Place(group, topic, queue_id, offset), "reset by name, and obeyed")

    def restarted(self, leases: Mapping[str, Iterable[Lease]], offsets: Iterable[OffsetRow], *, clean: bool) -> None:
        """Leases got their full length again. Offsets are promised to survive a clean stop; a crash may take the
        newest, so whoever judges must know that it was one, and what is left; of what is owned also that nothing is:
        its owner will not ask before the next life."""
        owned = {group: tuple(held) for group, held in leases.items()}
        for group, held in owned.items():
            self.locked(group, held)
        self._crashed = not clean and self._alive > 0
        for row in offsets:
            self._known.add(row[:3])
            if clean and row.reset_pending:
                continue  # where a reset will send the group: told when somebody has obeyed
            place = Place(row.group, row.topic, row.queue_id, row.offset)
            self._history.recovered(place, clean=clean, alive=self._alive)
        for group, held in owned.items():
            for lease in held:
                self.nothing_found(group, lease.queue.topic, lease.queue.queue_id)

    def nothing_found(self, group: str, topic: str, queue_id: int) -> None:
        """Somebody asks for an offset that is not there: a crash may have taken all that ever was committed."""
        spot = (group, topic, queue_id)
        if self._crashed and spot not in self._known:
            self._known.add(spot)
            self._history.recovered(Place(*spot, -1), clean=False, alive=self._alive)


def _line(group: str, queue: MessageQueue, owner: str, epoch: Epoch) -> LeaseLine:
    return LeaseLine(group, queue.topic, queue.queue_id, owner, epoch)
