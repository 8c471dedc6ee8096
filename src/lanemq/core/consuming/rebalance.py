"""How a queue comes to this member and how it leaves.

`plan` compares what is held with what is wanted; a `Holding` then walks one queue through its life:

    LOCKING → LOCATING → HELD → DRAINING → COMMITTING → UNLOCKING → GONE

Taking over: lease first, then the offset, then the first pull; so nobody pulls a queue that is not theirs, and the
offset read is the one the former owner left. Handing over: the running handler ends, its offset is stored, only then
is the lease released; so the next owner starts where this one stopped.

Waiting for a handler is bounded per round, the hand-over is not: when the bound passes, the queue stays owned and the
shell looks again later. A lease is never released under a running handler. Every transition is in one table.
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
class RebalancePlan:
    """What one round changes. Queues in `keep` must not notice it."""

    release: tuple[MessageQueue, ...]
    acquire: tuple[MessageQueue, ...]
    keep: tuple[MessageQueue, ...]

    @property
    def changes(self) -> bool:
        return bool(self.release or self.acquire)


def plan(held: Collection[MessageQueue], wanted: Collection[MessageQueue]) -> RebalancePlan:
    """The difference, sorted. `held` includes queues that are on their way in or out."""
    have, want = set(held), set(wanted)
    return RebalancePlan(tuple(sorted(have - want)), tuple(sorted(want - have)), tuple(sorted(have & want)))


class Stage(Enum):
    """Where a queue stands with this member."""

    LOCKING = "asking the broker for the lease"
    LOCATING = "reading the offset to start at"
    HELD = "pulling and running"
    DRAINING = "waiting for the running handlers"
    COMMITTING = "storing the last offset"
    UNLOCKING = "releasing the lease"
    GONE = "not ours"


class Event(Enum):
    """What the shell reports."""

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
    """What the shell must do now."""

    LOCK = "ask for the lease"
    LOCATE = "forget the local offset, read the broker's"
    START = "add to the scheduler and start pulling"
    DRAIN = "stop pulling, drain in the scheduler, report when drained"
    REOPEN = "reopen in the scheduler and pull again"
    COMMIT = "store the offset at the broker and wait for its yes"
    COMMIT_LATER = "try to store the offset again in a moment"
    UNLOCK = "release the lease"
    FORGET = "drop from the scheduler and forget the offset"
    SKIP = "leave it; the next rebalance asks again"
    DROP = "drop from the scheduler, commit nothing, release nothing"
    STILL_RUNNING = "warn that a handler does not end; the queue stays ours, look again later"
    NOTHING = "nothing"


_TABLE: dict[tuple[Stage, Event], tuple[Stage, Step]] = {
    (Stage.LOCKING, Event.GRANTED): (Stage.LOCATING, Step.LOCATE),
    (Stage.LOCKING, Event.REFUSED): (Stage.GONE, Step.SKIP),
    (Stage.LOCATING, Event.LOCATED): (Stage.HELD, Step.START),
    # Starting anywhere else could skip messages; give the lease back and let a later round try.
    (Stage.LOCATING, Event.NOT_LOCATED): (Stage.UNLOCKING, Step.UNLOCK),
    (Stage.HELD, Event.UNWANTED): (Stage.DRAINING, Step.DRAIN),
    (Stage.DRAINING, Event.WANTED): (Stage.HELD, Step.REOPEN),
    (Stage.DRAINING, Event.DRAINED): (Stage.COMMITTING, Step.COMMIT),
    (Stage.COMMITTING, Event.COMMITTED): (Stage.UNLOCKING, Step.UNLOCK),
    # Without the offset the next owner would repeat messages; the lease ends by itself if the broker is gone.
    (Stage.COMMITTING, Event.NOT_COMMITTED): (Stage.COMMITTING, Step.COMMIT_LATER),
    (Stage.UNLOCKING, Event.UNLOCKED): (Stage.GONE, Step.FORGET),
    **{
        (stage, Event.LEASE_LOST): (Stage.GONE, Step.DROP)
        for stage in (Stage.LOCATING, Stage.HELD, Stage.DRAINING, Stage.COMMITTING, Stage.UNLOCKING)
    },
}


class Holding:
    """One queue's way through the stages.

    Without a lease (broadcasting, concurrent) the same stages are passed; the shell is never told to lock or unlock.
    An `UNWANTED` that comes while the queue is still on its way in is remembered and acted on when it arrives.
    """

    def __init__(self, queue: MessageQueue, *, needs_lease: bool, wait: Millis = HAND_OVER_WAIT) -> None:
        self.queue = queue
        self._needs_lease = needs_lease
        self._wait = wait
        self._stage = Stage.LOCKING if needs_lease else Stage.LOCATING
        self._unwanted = False
        self._look_again_at: Millis | None = None
        self._late = 0

    @property
    def stage(self) -> Stage:
        return self._stage

    @property
    def late(self) -> int:
        """How often a hand-over round ended with a handler still running."""
        return self._late

    def begin(self) -> Step:
        """The first step; the rest follows from events."""
        return Step.LOCK if self._needs_lease else Step.LOCATE

    def happened(self, event: Event, *, now: Millis) -> Step:
        """Go on to the next stage.

        Raises:
            UsageError: the event cannot happen at this stage; nothing was changed.
        """
        if event in (Event.UNWANTED, Event.WANTED) and (self._stage, event) not in _TABLE:
            return self._remember(event)
        if (self._stage, event) not in _TABLE:
            raise UsageError(f"{self.queue} is {self._stage.name}: {event.name} cannot happen here")
        self._stage, step = _TABLE[self._stage, event]
        return self._after(step, now)

    def next_deadline(self) -> Millis | None:
        return self._look_again_at

    def expire(self, *, now: Millis) -> Step:
        """The bound of this round passed with a handler still running: the queue stays ours, another round begins."""
        if self._look_again_at is None or now < self._look_again_at:
            return Step.NOTHING
        self._look_again_at = Millis(now + self._wait)
        self._late += 1
        return Step.STILL_RUNNING

    def _after(self, step: Step, now: Millis) -> Step:
        self._look_again_at = Millis(now + self._wait) if self._stage is Stage.DRAINING else None
        if step is Step.START and self._unwanted:
            # Nothing has run and nothing is to commit, but the lease must go back.
            self._stage, step = Stage.UNLOCKING, Step.UNLOCK
        if step is Step.UNLOCK and not self._needs_lease:
            self._stage, step = Stage.GONE, Step.FORGET
        return step

    def _remember(self, event: Event) -> Step:
        if self._stage in (Stage.LOCKING, Stage.LOCATING):
            self._unwanted = event is Event.UNWANTED
        return Step.NOTHING
