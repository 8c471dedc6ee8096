"""The queues that are assigned to this member, from the lease to the release.

A queue that leaves and comes back is a new `AssignedQueue`, so nothing that belonged to the old one can reach the new
one. Pull loops and hand-overs belong to the `AssignedQueue`, not to the queue's name.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lanemq.background_log import ClientLog
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.client.consumer.turns.subscription import ActiveSubscription
from lanemq.client.message import MessageSource
from lanemq.core.consuming.lanes_at_broker import ParkedAtBroker
from lanemq.core.consuming.queue_lease import LeaseTimes, QueueLease
from lanemq.core.consuming.rebalance import QueueEvent, QueueLifecycle
from lanemq.core.consuming.repeats import SeenStamps
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, NOT_LEASED
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.history import RecordedLease
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset

log = ClientLog(__name__)

NANOS = 1_000_000
"""Nanoseconds in a millisecond."""


class StartPosition(NamedTuple):
    """Where an assigned queue starts."""

    offset: QueueOffset
    finished: FinishedRanges = NOTHING_FINISHED
    """What former owners finished above the offset; it is not run again."""
    parked: tuple[ParkedAtBroker, ...] = ()
    """Lanes of the queue that the broker has parked."""
    parked_serial: int = 0


class ReportedProgress(NamedTuple):
    """How far the group has come in a queue: its committable offset, and the finished ranges above it."""

    offset: QueueOffset
    finished: FinishedRanges = NOTHING_FINISHED


class AssignedQueue:
    """What the client knows of one assigned queue. Its messages and lanes are in the scheduler."""

    def __init__(
        self,
        queue: MessageQueue,
        active: ActiveSubscription,
        source: MessageSource,
        lease: QueueLease | None,
        times: LeaseTimes,
        *,
        is_lanemq: bool,
        coordinator: str | None = None,
        start: StartPosition,
    ) -> None:
        self.queue = queue
        self.subscription = active.subscription
        self.scheduler: Scheduler = active.scheduler
        self.source = source
        self.lease = lease
        self.times = times
        self.is_lanemq = is_lanemq
        """The messages are at a LaneMQ broker, which answers large pulls and stores no repeats."""
        self.coordinator = coordinator or queue.broker
        """The name of who grants leases and keeps offsets: the broker, or a coordinator."""
        self.moved_at = Millis(0)
        """When the last reset was obeyed."""
        self.released = False
        """Given back or lost; anything that still arrives for it is ignored."""
        self.lifecycle = QueueLifecycle(queue, needs_lease=lease is not None)
        self.wake = asyncio.Event()
        """Set when the pull loop should look again: the cache has room, or the lease was renewed."""
        self.puller: asyncio.Task[None] | None = None
        self.hand_over: asyncio.Task[None] | None = None
        self.last_pull: Millis = Millis(0)
        self.end: QueueOffset | None = None
        """The end of the queue as the last pull reported it; None before the first one."""
        self.moving: QueueOffset | None = None
        """The offset of a reset that is under way. Progress from before the reset is no longer reported."""
        self.start_at(ReportedProgress(start.offset, start.finished))
        self.keeps_parked = self.epoch > 0
        """The broker or coordinator stores parked lanes."""
        self.seen: SeenStamps | None = None
        """The stamps of what was pulled, if repeats are dropped; None before the first pull and after a reset."""
        self.parked_serial = start.parked_serial
        """The version of the broker's parked lanes that is known here."""

    def start_at(self, progress: ReportedProgress) -> None:
        """Starts at what the broker has stored: another member may have moved on since the queue was here before."""
        self.progress = progress
        self.confirmed: ReportedProgress | None = progress
        """What the broker confirmed last; None if it may have lost that."""
        self.check_end = False
        """An Apache broker was away, and may have lost messages: its queue may be shorter now than what was read."""

    def advance(self, progress: ReportedProgress) -> None:
        """Takes over the newest progress; ignores it if the queue is no longer ours."""
        if not self.released and progress.offset >= 0:
            self.progress = progress

    @property
    def must_report(self) -> bool:
        """Whether the broker has not confirmed the newest progress."""
        return self.progress != self.confirmed

    @property
    def leaves_messages(self) -> bool:
        """Whether messages may be unfinished when the queue is given up now.

        If none was ever finished, the broker has no offset of the group and would not count them as its lag.
        """
        return self.lease is not None and (self.end is None or self.progress.offset < self.end)

    @property
    def epoch(self) -> Epoch:
        """Names the lease to the broker; 0 without a lease, or if the broker has no epochs."""
        return self.lease.epoch if self.lease is not None else Epoch(0)

    @property
    def usable_until(self) -> Millis:
        """The first moment at which no turn may start any more, as the scheduler takes it."""
        if self.lease is None:
            return NO_LEASE_NEEDED
        return NOT_LEASED if self.lease.usable_until is None else self.lease.usable_until

    @property
    def asked_ns(self) -> int:
        """When the newest lease was requested, in nanoseconds: shows in a history that a line was written late."""
        return 0 if self.lease is None else self.lease.asked_at * NANOS

    def may_pull(self, *, now: Millis) -> bool:
        """A queue without a usable lease is not pulled: its messages may belong to another member."""
        return now < self.usable_until

    def __str__(self) -> str:
        return str(self.queue)


class Assignment:
    """All queues that are assigned to this member, and how one is lost."""

    def __init__(self, options: ConsumerOptions, client_id: str, on_lost: Callable[[], None]) -> None:
        self._options = options
        self._client_id = client_id
        self._on_lost = on_lost
        self._queues: dict[MessageQueue, AssignedQueue] = {}

    def __iter__(self) -> Iterator[AssignedQueue]:
        return iter(tuple(self._queues.values()))

    def __len__(self) -> int:
        return len(self._queues)

    def get(self, queue: MessageQueue) -> AssignedQueue | None:
        return self._queues.get(queue)

    def of_topic(self, topic: str) -> list[AssignedQueue]:
        return [assigned for assigned in self if assigned.queue.topic == topic]

    def leased_by(self, coordinator: str) -> list[AssignedQueue]:
        """Queues whose leases a broker or coordinator grants."""
        return self.by_coordinator().get(coordinator, [])

    def by_coordinator(self) -> dict[str, list[AssignedQueue]]:
        """Queues that need a lease, one list for each who grants them: a renewal is one request."""
        groups: dict[str, list[AssignedQueue]] = {}
        for assigned in self._queues.values():
            if assigned.lease is not None and not assigned.released:
                groups.setdefault(assigned.coordinator, []).append(assigned)
        return groups

    def add(self, assigned: AssignedQueue) -> None:
        assert assigned.queue not in self._queues, f"{assigned} is assigned already"
        self._queues[assigned.queue] = assigned

    def remove(self, assigned: AssignedQueue) -> bool:
        """Stops all work on a queue and forgets it; false if that happened before."""
        assigned.released = True
        if self._queues.get(assigned.queue) is not assigned:
            return False
        del self._queues[assigned.queue]
        if assigned.puller is not None and assigned.puller is not asyncio.current_task():
            assigned.puller.cancel()
        with assigned.scheduler as lanes:
            lanes.drop(assigned.queue)
        return True

    def lose(self, assigned: AssignedQueue, why: str) -> None:
        """Drops a queue that now belongs to another member, without a commit."""
        if self._queues.get(assigned.queue) is not assigned:
            assigned.released = True
            return
        log.warning("%s is lost: %s", assigned, why)
        assigned.lifecycle.happened(QueueEvent.LEASE_LOST, now=self._options.clock.now())
        if assigned.lease is not None:
            assigned.lease.lost()
            if self._options.history.on:
                self._options.history.lease_expired(self.lease_in_history(assigned))
        self.remove(assigned)
        self._on_lost()

    def lease_in_history(self, assigned: AssignedQueue) -> RecordedLease:
        queue = assigned.queue
        return RecordedLease(
            self._options.group, queue.topic, queue.queue_id, self._client_id, assigned.epoch, queue.broker
        )
