"""The queues that are assigned to this member, from the lease to the release.

A queue that leaves and comes back is a new `AssignedQueue`, so nothing that belonged to the old one can reach the new
one. Pull loops and hand-overs belong to the `AssignedQueue`, not to the queue's name.
"""

import asyncio
from collections.abc import Callable, Iterator
from typing import NamedTuple

from lanemq.background_log import ClientLog
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.queues.read_log import ReadLog
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.client.consumer.turns.subscription import ActiveSubscription
from lanemq.client.message import MessageSource
from lanemq.core.consuming.lane_queue import MemberProgress
from lanemq.core.consuming.lanes_aside import ParkedAtBroker
from lanemq.core.consuming.queue_lease import LeaseTimes, QueueLease
from lanemq.core.consuming.rebalance import QueueEvent, QueueLifecycle
from lanemq.core.consuming.repeats import MAX_REPORTED
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, NOT_LEASED, Order
from lanemq.core.finished_ranges import MAX_RANGES, NOTHING_FINISHED
from lanemq.history import RecordedLease
from lanemq.model.log_marks import SeenLog
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.wire.log_marks import log_mark

log = ClientLog(__name__)

NANOS = 1_000_000
"""Nanoseconds in a millisecond."""


class StartPosition(NamedTuple):
    """Where an assigned queue starts."""

    progress: MemberProgress
    """As the broker has it. What former owners finished above the offset is not run again."""
    read_log: ReadLog
    """What former owners have read of the log."""
    parked: tuple[ParkedAtBroker, ...] = ()
    """Lanes of the queue that the broker has parked."""
    parked_serial: int = 0


class QueueReport(NamedTuple):
    """What is reported of a queue: both as of the same moment."""

    progress: MemberProgress
    seen: SeenLog | None = None


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
        self.moved_at = Millis(0)  # when the last reset was obeyed
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
        self.moving_to: QueueOffset | None = None
        """The offset of a reset that is under way. Progress from before the reset is no longer reported."""
        self.confirmed: MemberProgress | None = None
        """The progress that the broker confirmed last; None if it may have lost that."""
        self.check_end = False
        """An Apache broker was away, and may have lost messages: its queue may be shorter now than what was read."""
        self.parked_serial = 0
        """The version of the broker's parked lanes that is known here."""
        self.changed_serial: int | None = None
        """A newer version, which is to be read."""
        self.lane_tasks: set[asyncio.Task[None]] = set()
        """Requests about lanes that are under way."""
        self.read_log = ReadLog()
        """What was read of the log since the queue started at an offset."""

    def start_at(self, start: StartPosition) -> None:
        """Starts at what the broker has stored, with nothing of what was here before.

        Another member may have moved on since the queue was here, or the group was reset.
        """
        with self.scheduler as lanes:
            lanes.drop(self.queue)
            lanes.add(
                self.queue,
                start.progress.offset,
                usable_until=self.usable_until,
                finished=start.progress.finished,
                parked=start.parked,
                broker_parks=self.keeps_parked,
                keeps_newest=start.read_log.is_compared,
            )
        self.confirmed, self.check_end = start.progress, False
        self.parked_serial = start.parked_serial
        self.read_log = start.read_log

    def progress(self) -> MemberProgress:
        """What may be committed now. Finished ranges are only for brokers with epochs, which store them."""
        offset, finished = self.scheduler.progress(self.queue)
        return MemberProgress(offset, finished.lowest(MAX_RANGES) if self.epoch else NOTHING_FINISHED)

    def unconfirmed(self) -> QueueReport | None:
        """What must be reported; None if the broker has it, or if the queue leaves its position or is not ours."""
        if self.released or self.moving_to is not None:
            return None
        report = self.report()
        return None if report.progress == self.confirmed else report

    def report(self) -> QueueReport:
        progress = self.progress()
        if not self.read_log.is_compared:
            return QueueReport(progress)
        with self.scheduler as lanes:
            newest = lanes[self.queue].newest_finished
        done = None if newest is None else log_mark(newest.record)
        return QueueReport(progress, self.read_log.report(done, by_key=self.subscription.order is Order.KEY))

    def reported(self, report: QueueReport) -> None:
        """The broker or coordinator has a report."""
        self.confirmed = report.progress
        if report.seen is not None:
            self.read_log.reported(report.seen)
            if len(report.seen.stamps) == MAX_REPORTED:
                self.confirmed = None  # the others come with the next report

    def report_again(self) -> None:
        """What was reported may be lost."""
        self.confirmed = None
        self.check_end = not self.is_lanemq
        self.read_log.report_again()

    def leaves_messages(self, offset: QueueOffset) -> bool:
        """Whether messages may be unfinished when the queue is given up at an offset.

        If none was ever finished, the broker has no offset of the group and would not count them as its lag.
        """
        return self.lease is not None and (self.end is None or offset < self.end)

    @property
    def keeps_parked(self) -> bool:
        """Whether the broker or coordinator stores parked lanes."""
        return self.epoch > 0

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

    def take_again(self, assigned: AssignedQueue, why: str) -> None:
        """Gives a queue up, as at a rebalance, and takes it again from the committed offset."""
        log.warning("%s is given up and taken again: %s", assigned, why)
        assigned.read_log.is_other = True
        self._on_lost()

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
