"""Which queues a query owns for its group, and which of them a batch is working on. Pure.

The rules guarded here:

1. A batch reads only queues whose lease is usable when the batch is planned, each under the lease's epoch.
2. A queue that a batch works on is given back only after that batch is done and its offset stored.
3. A lease that was lost while its batch ran ends the query: somebody else may have processed the same messages,
   so this driver is the stale one.
4. On a new grant the group's stored offset counts: what another member finished meanwhile is not read again.
5. A queue whose topic was deleted leaves without a word about leases: it is a loss of messages, told as one.
6. What was left to others, and is not done by anybody when the queue comes back, is read from the group's offset.
"""

from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import NamedTuple

from lanemq.core.consuming.queue_lease import Grant, LeaseTimes, QueueLease
from lanemq.model.errors import LeaseLost
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.spark.offsets import Positions


class Claim(NamedTuple):
    """The right of one batch to read one queue, from `floor` on."""

    epoch: Epoch
    floor: QueueOffset


@dataclass(slots=True)
class Holding:
    """One queue that the broker granted at least once."""

    lease: QueueLease
    floor: QueueOffset
    """Where the group stood when the lease was granted."""
    stored: QueueOffset
    """What the broker was last told."""
    busy: bool = False
    """The running batch reads it."""
    broken: bool = False
    """Lost while busy."""
    wanted: bool = True


class Holdings:
    """All queues of one query. Not for use by two threads at once."""

    def __init__(self) -> None:
        self._held: dict[MessageQueue, Holding] = {}

    def __contains__(self, queue: MessageQueue) -> bool:
        return queue in self._held

    def queues(self) -> list[MessageQueue]:
        return sorted(self._held)

    def epoch(self, queue: MessageQueue) -> Epoch:
        return self._held[queue].lease.epoch

    def granted(
        self, queue: MessageQueue, epoch: Epoch, floor: QueueOffset, times: LeaseTimes, *, asked_at: Millis
    ) -> Grant:
        """The broker's yes to a request sent at `asked_at`; `floor` counts only if the grant is new."""
        held = self._held.get(queue)
        if held is None:
            held = self._held[queue] = Holding(QueueLease(times.client_lease_ms), floor, floor)
        grant = held.lease.granted(epoch, asked_at=asked_at)
        if grant is Grant.NEW:
            held.broken = held.broken or held.busy
            held.floor = held.stored = floor
        return grant

    def refused(self, queue: MessageQueue) -> None:
        """Another member owns it."""
        held = self._held.get(queue)
        if held is None:
            return
        if held.busy:
            held.lease.refused()
            held.broken = True
        else:
            del self._held[queue]

    def gone(self, topic: str) -> None:
        """The topic was deleted: nobody owns its queues, so a batch that reads them lost messages, not a lease."""
        for queue in [queue for queue, held in self._held.items() if queue.topic == topic and not held.broken]:
            del self._held[queue]

    def want(self, queues: Collection[MessageQueue]) -> None:
        """What the allocation gives to this member; the others are to be given back."""
        for queue, held in self._held.items():
            held.wanted = queue in queues

    def usable(self, *, now: Millis) -> Positions:
        """Queues that a batch may read, each with the offset before which nothing is to be read."""
        return {
            queue: held.floor
            for queue, held in self._held.items()
            if held.wanted and not held.broken and held.lease.usable(now=now)
        }

    def take(self, queues: Iterable[MessageQueue], *, now: Millis) -> dict[MessageQueue, Claim]:
        """Those of the queues that the batch may read now; they are busy from here on."""
        usable = self.usable(now=now)
        taken = {queue: Claim(self.epoch(queue), usable[queue]) for queue in queues if queue in usable}
        for queue in taken:
            self._held[queue].busy = True
        return taken

    def finished(self) -> None:
        """The batch is done. `LeaseLost` if a queue of it was not ours to the end."""
        broken = sorted(queue for queue, held in self._held.items() if held.busy and held.broken)
        for queue, held in list(self._held.items()):
            held.busy = False
            if held.broken:
                del self._held[queue]
        if broken:
            raise LeaseLost(
                f"{', '.join(map(str, broken))}: another member took over while a batch was running "
                f"(or the topic was deleted and created again); this query is the stale one. Start it again and it "
                f"goes on behind the other's work"
            )

    def behind(self, positions: Positions, left: Positions) -> Positions:
        """Queues whose position is past messages that were left to others and that nobody has done: where to begin."""
        return {
            queue: held.floor
            for queue, held in self._held.items()
            if queue in positions and held.floor < min(positions[queue], left.get(queue, 0))
        }

    def to_store(self, positions: Positions) -> Positions:
        """Offsets that the broker does not know yet."""
        return {
            queue: positions[queue]
            for queue, held in self._held.items()
            if queue in positions and not held.broken and positions[queue] > held.stored
        }

    def stored(self, queue: MessageQueue, offset: QueueOffset) -> None:
        if queue in self._held:
            self._held[queue].stored = offset

    def leaving(self) -> list[MessageQueue]:
        """Queues to give back now: not wanted, and no batch works on them."""
        return sorted(queue for queue, held in self._held.items() if not held.wanted and not held.busy)

    def drop(self, queue: MessageQueue) -> None:
        """Given back."""
        self._held.pop(queue, None)
