"""What the lane scheduler and its shell say to each other: turns, outcomes, and what follows from them.

A turn is a *run*: up to `run_limit` messages of one lane, in order. The worker that got it calls the
handler for one batch after another (`batch_size` messages each, usually one), and before each asks
`turn.may_go_on(now=...)`. It ends the turn once, with `finish(turn, outcome, done=n)`: the first n messages
succeeded, the outcome speaks of the batch after them, and whatever lies behind goes back into the lane in
order. A run costs one visit to the scheduler instead of one per message, and gives up nothing: the lane
belongs to this turn until it is finished.
"""

from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from lanemq._fast import compiled
from lanemq.core.consuming.process_queue import Stored
from lanemq.core.consuming.retry_policy import DEFAULT_POLICY, FailurePolicy
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, QueueOffset

NO_LEASE_NEEDED: Final = Millis(2**62)
"""As a deadline: broadcasting and concurrent consumption compete with nobody."""
NOT_LEASED: Final = Millis(-(2**62))
"""As a deadline: no turn may start, at whatever time."""


MAX_CONTINUOUS = Millis(60_000)
"""RocketMQ's ConsumeMessageOrderlyService, MAX_TIME_CONSUME_CONTINUOUSLY."""
SLICE_PAUSE = Millis(10)
"""RocketMQ's ConsumeMessageOrderlyService: the pause of a queue that used up its slice."""


class Order(Enum):
    """How much of a queue is one lane."""

    QUEUE = "queue"
    """The whole queue is one lane; RocketMQ's orderly listener."""
    KEY = "key"
    """A lane per key; messages without a key share one."""
    NONE = "none"
    """No lanes: RocketMQ's concurrent listener."""


class LaneMessage(Stored, Protocol):
    """What the scheduler needs to know of a message."""

    @property
    def key(self) -> str | None: ...


M = TypeVar("M", bound=LaneMessage)


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """How turns are cut and what follows a failure."""

    policy: FailurePolicy = DEFAULT_POLICY
    batch_size: int = 1
    """Messages per call of the handler (RocketMQ: consumeMessageBatchMaxSize)."""
    run_limit: int = 32
    """Messages per turn at most, rounded down to whole batches. Concurrent queues give single batches."""
    auto_commit: bool = True
    max_continuous: Millis = MAX_CONTINUOUS

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.run_limit < 1 or self.max_continuous < 1:
            raise InvalidOption(
                f"batch_size={self.batch_size}, run_limit={self.run_limit} and "
                f"max_continuous={self.max_continuous} must all be at least 1"
            )


@compiled
class Gate:
    """A queue's permission to start turns. Workers read it without the scheduler's mutex, field by field."""

    def __init__(self, usable_until: Millis) -> None:
        self.usable_until = usable_until
        # Draining or dropped. Set under the mutex, never unset on a dropped queue.
        self.closed = False


@compiled
class LaneRun(Generic[M]):
    """The right to run these messages of one lane now. Read-only for everybody but the scheduler.

    Where keys are many, most lanes have one message and are gone when it has run. So a turn with that message stands
    for its lane from the moment it arrives (`lane` is None), and a lane is made when there is something for it to
    keep: a second message, or a failure (`lane_turns`).
    """

    __slots__ = (
        "attempt", "began", "gate", "given", "key", "lane", "messages", "queue", "running", "slice_end", "token"
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        key: str | None,
        messages: tuple[M, ...],
        attempt: int,
        token: int,
        gate: Gate,
        slice_end: int,
        lane: "Lane[M] | None" = None,
    ) -> None:
        self.queue = queue
        self.key = key
        self.messages = messages
        self.attempt = attempt
        """1 for a first try. It speaks of the first message: only the head of a lane can be a repeat."""
        self.token = token
        self.gate = gate
        self.slice_end = slice_end
        self.lane = lane
        self.running = False
        """Begun and not ended. A turn that ended never runs again."""
        self.began: Millis | None = None
        """When its first batch was about to run; None while it only waits for its worker."""
        # Messages handed to the shell for sending back, with the number done before them.
        self.given: tuple[int, tuple[M, ...]] | None = None

    @property
    def usable_until(self) -> Millis:
        """The lease as it is now, not as it was when the turn began: renewals lengthen a running turn."""
        return self.gate.usable_until

    def may_go_on(self, *, now: Millis) -> bool:
        """Whether another batch may start: lease alive, queue not given up, time slice not used up."""
        gate = self.gate
        return not gate.closed and now < gate.usable_until and now <= self.slice_end


@compiled
class Lane(Generic[M]):
    """The messages of one key that wait for their turn."""

    __slots__ = ("key", "pending", "redriven", "run", "slice_end")

    def __init__(self, key: str | None, pending: list[M]) -> None:
        self.key = key
        self.pending = pending
        self.run: LaneRun[M] | None = None
        # Until when turn may follow turn without a pause; None after a pause.
        self.slice_end: int | None = None
        # A parked message that the broker gave back: it runs before, and without, everything in `pending`.
        self.redriven: M | None = None


class Wait(NamedTuple):
    """No lane may run. Ask again at `until` (None: never), and after every put, finish or renewal."""

    until: Millis | None


class Plain(Enum):
    """Outcomes that need no figures."""

    DONE = "done"
    """The whole run succeeded."""
    STOPPED = "stopped"
    """`done` messages succeeded, the rest was not tried: `may_go_on` said no, or the worker must end."""
    COMMIT = "commit"
    """Manual commit: this batch succeeded, and everything since the last commit is final."""
    ROLL_BACK = "roll back"
    """Manual commit: everything since the last commit runs again."""
    FAILED = "failed"
    """The handler raised, or answered nothing. The policy decides."""
    HOPELESS = "hopeless"
    """It failed, and would fail the same way however often it is tried: the policy's end comes at once."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """The handler asks for another try later; `delay` None leaves the wait to the policy."""

    delay: Millis | None = None


Outcome: TypeAlias = Plain | Suspend
DONE, STOPPED, COMMIT, ROLL_BACK, FAILED, HOPELESS = Plain


class Why(Enum):
    """What the scheduler made of an outcome; for logs and metrics."""

    DONE = "done"
    STOPPED = "stopped"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    ILLEGAL = "commit or roll back in auto-commit mode, taken as success"
    HELD = "waits for another attempt"
    PARKED = "retries used up, waits for a person"
    GIVE = "send these messages back, then call sent_back"
    SENT_BACK = "handed to the broker, successors go on"
    QUEUE_GONE = "the queue was given up meanwhile: commit nothing"


class Finished(NamedTuple, Generic[M]):
    """What the shell must do after a turn.

    `committable` is set when the queue's committable offset moved. `send_back` is non-empty only with
    `Why.GIVE`: the turn stays open, its lane waits, until `sent_back` was called. `until` says when a held
    lane runs again.
    """

    why: Why
    committable: QueueOffset | None = None
    send_back: tuple[M, ...] = ()
    until: Millis | None = None
