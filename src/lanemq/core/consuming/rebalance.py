"""How a queue comes to this member and how it leaves.

`queue_changes` compares the queues that a member has with those that it should have. A `QueueLifecycle` then takes one
queue through its stages:

    LOCKING → LOCATING → OWNED → DRAINING → COMMITTING → UNLOCKING → GONE

Taking over: first the lease, then the offset, then the first pull. So a member pulls only its own queues, and reads the
offset that the former owner left. Handing over: the running handlers end, the offset is stored, and only then is the
lease released. So the next owner starts where this one stopped.

The wait for a handler is bounded in each round, the hand-over as a whole is not: after the bound the queue stays owned
and the caller tries again later. Invariant: a lease is never released while a handler runs.
"""

from collections.abc import Collection
from dataclasses import dataclass
from enum import Enum

from lanemq.model.errors import UsageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

HAND_OVER_WAIT = Millis(1_000)
"""RocketMQ's RebalancePushImpl: how long a removal waits for the consume lock in one round."""


@dataclass(frozen=True, slots=True)
class QueueChanges:
    """What one rebalance round changes. Queues in `keep` are left alone."""

    release: tuple[MessageQueue, ...]
    acquire: tuple[MessageQueue, ...]
    keep: tuple[MessageQueue, ...]

    @property
    def changes(self) -> bool:
        return bool(self.release or self.acquire)


def queue_changes(have: Collection[MessageQueue], want: Collection[MessageQueue]) -> QueueChanges:
    """The difference between two sets of queues. `have` includes queues that are on their way in or out."""
    have, want = set(have), set(want)
    return QueueChanges(tuple(sorted(have - want)), tuple(sorted(want - have)), tuple(sorted(have & want)))


class QueueStage(Enum):
    """A queue's stage in this member."""

    LOCKING = "asking the broker for the lease"
    LOCATING = "reading the offset to start at"
    OWNED = "pulling and running"
    DRAINING = "waiting for the running handlers"
    COMMITTING = "storing the last offset"
    UNLOCKING = "releasing the lease"
    GONE = "not ours"


class QueueEvent(Enum):
    """What the caller reports."""

    GRANTED = "lease granted"
    REFUSED = "lease refused, or no answer"
    LOCATED = "start offset known"
    NOT_LOCATED = "start offset unknown"
    UNWANTED = "allocation gave the queue to another member, or shutdown"
    WANTED = "allocation gave it back before it left"
    DRAINED = "no handler runs"
    COMMITTED = "broker has the offset"
    NOT_COMMITTED = "broker did not confirm the offset"
    UNLOCKED = "lease released, or left to expire"
    LEASE_LOST = "another member owns the queue"


class Step(Enum):
    """What the caller must do now."""

    LOCK = "ask for the lease"
    LOCATE = "forget the local offset, read the broker's"
    START = "add to the scheduler and start pulling"
    DRAIN = "stop pulling, drain in the scheduler, report when drained"
    REOPEN = "reopen in the scheduler and pull again"
    COMMIT = "store the offset at the broker and wait for its confirmation"
    COMMIT_LATER = "try to store the offset again in a moment"
    UNLOCK = "release the lease"
    FORGET = "drop from the scheduler and forget the offset"
    SKIP = "leave it; the next rebalance asks again"
    DROP = "drop from the scheduler, commit nothing, release nothing"
    STILL_RUNNING = "warn that a handler does not end; the queue stays owned, try again later"
    NOTHING = "nothing"


_TABLE: dict[tuple[QueueStage, QueueEvent], tuple[QueueStage, Step]] = {
    (QueueStage.LOCKING, QueueEvent.GRANTED): (QueueStage.LOCATING, Step.LOCATE),
    (QueueStage.LOCKING, QueueEvent.REFUSED): (QueueStage.GONE, Step.SKIP),
    (QueueStage.LOCATING, QueueEvent.LOCATED): (QueueStage.OWNED, Step.START),
    # Starting at a guessed offset could skip messages, so the lease goes back and a later round tries again.
    (QueueStage.LOCATING, QueueEvent.NOT_LOCATED): (QueueStage.UNLOCKING, Step.UNLOCK),
    (QueueStage.OWNED, QueueEvent.UNWANTED): (QueueStage.DRAINING, Step.DRAIN),
    (QueueStage.DRAINING, QueueEvent.WANTED): (QueueStage.OWNED, Step.REOPEN),
    (QueueStage.DRAINING, QueueEvent.DRAINED): (QueueStage.COMMITTING, Step.COMMIT),
    (QueueStage.COMMITTING, QueueEvent.COMMITTED): (QueueStage.UNLOCKING, Step.UNLOCK),
    # Without the offset the next owner would repeat messages; the lease ends by itself if the broker is gone.
    (QueueStage.COMMITTING, QueueEvent.NOT_COMMITTED): (QueueStage.COMMITTING, Step.COMMIT_LATER),
    (QueueStage.UNLOCKING, QueueEvent.UNLOCKED): (QueueStage.GONE, Step.FORGET),
    **{
        (stage, QueueEvent.LEASE_LOST): (QueueStage.GONE, Step.DROP)
        for stage in (
            QueueStage.LOCATING,
            QueueStage.OWNED,
            QueueStage.DRAINING,
            QueueStage.COMMITTING,
            QueueStage.UNLOCKING,
        )
    },
}


class QueueLifecycle:
    """The stages of one queue.

    A queue without a lease (broadcasting, concurrent) passes the same stages without the steps LOCK and UNLOCK.
    An `UNWANTED` event before the queue is `OWNED` is remembered and takes effect when it is.
    """

    def __init__(self, queue: MessageQueue, *, needs_lease: bool, wait: Millis = HAND_OVER_WAIT) -> None:
        self.queue = queue
        self._needs_lease = needs_lease
        self._wait = wait
        self._stage = QueueStage.LOCKING if needs_lease else QueueStage.LOCATING
        self._unwanted = False
        self._look_again_at: Millis | None = None
        self._late = 0

    @property
    def stage(self) -> QueueStage:
        return self._stage

    @property
    def late(self) -> int:
        """Number of hand-over rounds that ended with a handler still running."""
        return self._late

    def begin(self) -> Step:
        """The first step; the others follow from events."""
        return Step.LOCK if self._needs_lease else Step.LOCATE

    def happened(self, event: QueueEvent, *, now: Millis) -> Step:
        """Moves to the next stage and returns what to do.

        Raises:
            UsageError: the event is impossible at this stage; nothing was changed.
        """
        if event in (QueueEvent.UNWANTED, QueueEvent.WANTED) and (self._stage, event) not in _TABLE:
            return self._remember(event)
        if (self._stage, event) not in _TABLE:
            raise UsageError(f"{self.queue} is {self._stage.name}: {event.name} cannot happen here")
        self._stage, step = _TABLE[self._stage, event]
        return self._after(step, now)

    def next_deadline(self) -> Millis | None:
        return self._look_again_at

    def expire(self, *, now: Millis) -> Step:
        """Starts another round if the bound of this one has passed; the queue stays owned."""
        if self._look_again_at is None or now < self._look_again_at:
            return Step.NOTHING
        self._look_again_at = Millis(now + self._wait)
        self._late += 1
        return Step.STILL_RUNNING

    def _after(self, step: Step, now: Millis) -> Step:
        self._look_again_at = Millis(now + self._wait) if self._stage is QueueStage.DRAINING else None
        if step is Step.START and self._unwanted:
            # Nothing has run, so there is nothing to commit, but the lease must go back.
            self._stage, step = QueueStage.UNLOCKING, Step.UNLOCK
        if step is Step.UNLOCK and not self._needs_lease:
            self._stage, step = QueueStage.GONE, Step.FORGET
        return step

    def _remember(self, event: QueueEvent) -> Step:
        if self._stage in (QueueStage.LOCKING, QueueStage.LOCATING):
            self._unwanted = event is QueueEvent.UNWANTED
        return Step.NOTHING
