"""The queues that a query owns for its group, and which of them a batch is reading. Pure state, no I/O.

Invariants:

1. A batch reads only queues whose lease is usable when the batch is planned, each under the lease's epoch.
2. A queue that a batch reads is given back only after that batch is done and its offset is stored.
3. If a lease is lost while its batch runs, the query fails: another member may have processed the same messages.
4. A new grant starts at the group's stored offset: what another member has finished is not read again.
5. A queue whose topic was deleted is dropped without an error about its lease; it is reported as a data loss.
6. What was left to other members, and is still undone when the queue comes back, is read from the group's offset.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lanemq.core.consuming.queue_lease import Grant, LeaseTimes, QueueLease
from lanemq.model.errors import LeaseLost
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.spark.offsets import Positions


class BatchClaim(NamedTuple):
    """The right of one batch to read one queue, from the group's offset on."""

    epoch: Epoch
    group_offset: QueueOffset


@dataclass(slots=True)
class _Assigned:
    """One queue that the broker has granted at least once."""

    lease: QueueLease
    group_offset: QueueOffset
    """The group's offset when the lease was granted."""
    stored: QueueOffset
    """The offset that was last stored at the broker."""
    in_batch: bool = False
    """Whether the running batch reads it."""
    lost: bool = False
    """Whether the lease was lost while a batch read the queue."""
    wanted: bool = True
    """Whether the allocation still gives the queue to this member."""


class AssignedQueues:
    """All queues that a query owns. Not thread-safe."""

    def __init__(self) -> None:
        self._queues: dict[MessageQueue, _Assigned] = {}

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._queues

    def queues(self) -> list[MessageQueue]:
        return sorted(self._queues)

    def epoch(self, queue: MessageQueue) -> Epoch:
        return self._queues[queue].lease.epoch

    def granted(
        self, queue: MessageQueue, epoch: Epoch, group_offset: QueueOffset, times: LeaseTimes, *, asked_at: Millis
    ) -> Grant:
        """The broker has granted a request sent at `asked_at`; `group_offset` is used only if the grant is new."""
        assigned = self._queues.get(queue)
        if assigned is None:
            assigned = self._queues[queue] = _Assigned(QueueLease(times.client_lease_ms), group_offset, group_offset)
        grant = assigned.lease.granted(epoch, asked_at=asked_at)
        if grant is Grant.NEW:
            assigned.lost = assigned.lost or assigned.in_batch
            assigned.group_offset = assigned.stored = group_offset
        return grant

    def refused(self, queue: MessageQueue) -> None:
        """Another member owns the queue."""
        assigned = self._queues.get(queue)
        if assigned is None:
            return
        if assigned.in_batch:
            assigned.lease.lost()
            assigned.lost = True
        else:
            del self._queues[queue]

    def topic_deleted(self, topic: str) -> None:
        """Drops the queues of a deleted topic. A batch that reads them has lost messages, not a lease."""
        for queue in [queue for queue, each in self._queues.items() if queue.topic == topic and not each.lost]:
            del self._queues[queue]

    def want(self, queues: Collection[MessageQueue]) -> None:
        """Sets the queues that the allocation gives to this member; the others are to be given back."""
        for queue, assigned in self._queues.items():
            assigned.wanted = queue in queues

    def usable(self, *, now: Millis) -> Positions:
        """The queues that a batch may read, each with the group's offset."""
        return {
            queue: each.group_offset
            for queue, each in self._queues.items()
            if each.wanted and not each.lost and each.lease.usable(now=now)
        }

    def take(self, queues: Iterable[MessageQueue], *, now: Millis) -> dict[MessageQueue, BatchClaim]:
        """Marks those of the queues that the next batch may read, and returns them."""
        usable = self.usable(now=now)
        taken = {queue: BatchClaim(self.epoch(queue), usable[queue]) for queue in queues if queue in usable}
        for queue in taken:
            self._queues[queue].in_batch = True
        return taken

    def batch_finished(self) -> None:
        """Ends the batch; raises `LeaseLost` if the lease of one of its queues was lost before its end."""
        lost = sorted(queue for queue, each in self._queues.items() if each.in_batch and each.lost)
        for queue, assigned in list(self._queues.items()):
            assigned.in_batch = False
            if assigned.lost:
                del self._queues[queue]
        if lost:
            raise LeaseLost(
                f"{', '.join(map(str, lost))}: another member took over while a batch was running (or the topic was "
                f"deleted and created again), so this query stops. Start it again and it continues after the other "
                f"member's work"
            )

    def undone(self, positions: Positions, left: Positions) -> Positions:
        """The group's offset in queues whose position is past messages that were left to others and are undone."""
        return {
            queue: each.group_offset
            for queue, each in self._queues.items()
            if queue in positions and each.group_offset < min(positions[queue], left.get(queue, 0))
        }

    def to_store(self, positions: Positions) -> Positions:
        """The offsets that are not stored at the broker yet."""
        return {
            queue: positions[queue]
            for queue, each in self._queues.items()
            if queue in positions and not each.lost and positions[queue] > each.stored
        }

    def stored(self, queue: MessageQueue, offset: QueueOffset) -> None:
        """The broker has stored this offset."""
        if queue in self._queues:
            self._queues[queue].stored = offset

    def to_give_back(self) -> list[MessageQueue]:
        """The queues to give back now: no longer wanted, and not read by a batch."""
        return sorted(queue for queue, each in self._queues.items() if not each.wanted and not each.in_batch)

    def given_back(self, queue: MessageQueue) -> None:
        self._queues.pop(queue, None)
