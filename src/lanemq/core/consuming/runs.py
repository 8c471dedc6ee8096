"""Runs: the messages of a lane that a worker takes at once, and how a run ends.

A run has up to `run_limit` messages of one lane, in order. It consists of turns: a turn is one call of the handler,
with a batch of `batch_size` messages, usually one. Before each turn the worker checks `run.may_continue(now=...)`, and
after it notes in `run.done` how many messages succeeded, so that a long run is reported while it runs. The worker ends
the run once, with `finish(run, outcome, done=n)`: the first n messages succeeded, the outcome applies to the batch
after them, and the rest returns to the lane in order. Until then the lane belongs to this run.

The functions at the end run for every message. They are not methods, because each has a compiled twin.

Invariant: the messages of a key are in one place. Either a lane holds them, or one run with its only message stands for
the lane. When `grow` makes a lane for such a run, the lane takes its place, and the run refers to its lane from then
on.
"""

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import groupby
from operator import attrgetter
from typing import Final, Generic, NamedTuple, Protocol, TypeAlias, TypeVar

from lanemq._fast import compiled
from lanemq.core.consuming.retry_policy import DEFAULT_POLICY, KEPT_MESSAGES, DeadLetter, FailurePolicy, HoldKey
from lanemq.core.consuming.unfinished import OffsetMessage
from lanemq.model.errors import InvalidOption
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis

NO_LEASE_NEEDED: Final = Millis(2**62)
"""Lease deadline of queues without a single owner: broadcasting and concurrent consumption."""
NOT_LEASED: Final = Millis(-(2**62))
"""Lease deadline that lets no run start."""

MAX_CONTINUOUS = Millis(60_000)
"""RocketMQ's ConsumeMessageOrderlyService, MAX_TIME_CONSUME_CONTINUOUSLY."""
SLICE_PAUSE = Millis(10)
"""RocketMQ's ConsumeMessageOrderlyService: the pause of a queue that used up its time slice."""


class Order(Enum):
    """How much of a queue is one lane."""

    QUEUE = "queue"
    """The whole queue is one lane; RocketMQ's orderly listener."""
    KEY = "key"
    """One lane per key; messages without a key share one."""
    NONE = "none"
    """No lanes; RocketMQ's concurrent listener."""


class LaneMessage(OffsetMessage, Protocol):
    """What the scheduler needs to know of a message."""

    @property
    def key(self) -> str | None: ...


M = TypeVar("M", bound=LaneMessage)
_permit_of = attrgetter("permit")


@dataclass(frozen=True, slots=True)
class LaneOptions:
    """How lanes are cut into runs, and what follows a failure."""

    policy: FailurePolicy = DEFAULT_POLICY
    order: Order = Order.KEY
    batch_size: int = 1
    """Maximum number of messages per call of the handler (RocketMQ: consumeMessageBatchMaxSize)."""
    run_limit: int = 32
    """Maximum number of messages per run, rounded down to whole batches. Without order, a run is one batch."""
    auto_commit: bool = True
    max_continuous: Millis = MAX_CONTINUOUS

    def __post_init__(self) -> None:
        if self.batch_size < 1 or self.run_limit < 1 or self.max_continuous < 1:
            raise InvalidOption(
                f"batch_size={self.batch_size}, run_limit={self.run_limit} and "
                f"max_continuous={self.max_continuous} must all be at least 1"
            )
        if not self.auto_commit and self.order is not Order.QUEUE:
            raise InvalidOption(f"manual commit needs the whole queue in order, not order by {self.order.value}")

    @property
    def parks_at_broker(self) -> bool:
        """Whether lanes are set aside at the broker, if it can keep them."""
        hold = self._hold
        return hold is not None and hold.then.at_broker

    @property
    def keep(self) -> int:
        """Messages of a held lane that wait in the member."""
        return KEPT_MESSAGES if self._hold is None else self._hold.keep

    @property
    def _hold(self) -> HoldKey | None:
        hold = self.policy.hold if isinstance(self.policy, DeadLetter) else self.policy
        return hold if isinstance(hold, HoldKey) else None


@compiled
class RunPermit:
    """A queue's permission to call handlers. Workers read it without the scheduler's mutex, field by field.

    It is the base class of `LaneQueue`: the permit of a run is the queue that the run was taken from.
    """

    def __init__(self, usable_until: Millis) -> None:
        self.usable_until = usable_until
        # Draining or dropped. Set under the mutex, never reset for a dropped queue.
        self.withdrawn = False
        self.dropped = False


@compiled
class LaneRun(Generic[M]):
    """The right to run these messages of one lane now. Only the scheduler changes it.

    Where keys are many, most lanes have one message and disappear after it. Such a message waits in a run from its
    arrival (`lane` is None); a lane is made only once there is more to hold: a second message, or a failure.
    """

    __slots__ = (
        "attempt", "began", "done", "key", "lane", "messages", "permit", "queue", "running", "sending_back", "settled",
        "slice_end", "token",
    )  # fmt: skip

    def __init__(
        self,
        queue: MessageQueue,
        key: str | None,
        messages: tuple[M, ...],
        attempt: int,
        token: int,
        permit: RunPermit,
        slice_end: int,
        lane: "Lane[M] | None" = None,
    ) -> None:
        self.queue = queue
        self.key = key
        self.messages = messages
        self.attempt = attempt
        """1 for a first attempt. Applies to the first message: only the first message of a lane can be a repeat."""
        self.token = token
        self.permit = permit
        self.slice_end = slice_end
        self.lane = lane
        self.running = False
        """Taken and not ended. A run that has ended never runs again."""
        self.began: Millis | None = None
        """When its first batch was about to be handled; None while it waits for its worker."""
        self.done = 0
        """How many messages the worker has finished so far, for reports inside the run. Only its worker writes it."""
        self.settled = 0
        """How many messages the scheduler has counted as finished before the end of the run."""
        # While the caller sends messages back: how many were done before, how many failed, and those that are sent.
        self.sending_back: tuple[int, int, tuple[M, ...]] | None = None

    @property
    def usable_until(self) -> Millis:
        """The current end of the lease: a renewal extends a run in progress."""
        return self.permit.usable_until

    def may_continue(self, *, now: Millis) -> bool:
        """Whether another batch may start: lease valid, queue not given up, time slice not used up."""
        permit = self.permit
        return not permit.withdrawn and now < permit.usable_until and now <= self.slice_end


@compiled
class Lane(Generic[M]):
    """The waiting messages of one key."""

    __slots__ = ("key", "pending", "redriven", "run", "slice_end", "watched")

    def __init__(self, key: str | None, pending: list[M]) -> None:
        self.key = key
        self.pending = pending
        self.run: LaneRun[M] | None = None
        # Until then its runs may follow each other without a pause; None after a pause.
        self.slice_end: int | None = None
        # Messages of the lane that the broker returned: they run before, and without, everything in `pending`.
        self.redriven: list[M] | None = None
        # The lane is held or set aside at the broker: the queue must know when a message of it arrives.
        self.watched = False


LaneOrRun: TypeAlias = Lane[M] | LaneRun[M]
"""What holds the messages of a key: its lane, or the run that stands for it."""


class Wait(NamedTuple):
    """No lane may run. Ask again at `until` (None: never), and after every put, finish or renewal."""

    until: Millis | None


class Plain(Enum):
    """Outcomes without further data."""

    DONE = "done"
    """The whole run succeeded."""
    STOPPED = "stopped"
    """`done` messages succeeded and the rest was not tried: `may_continue` was False, or the worker must end."""
    COMMIT = "commit"
    """Manual commit: this batch succeeded, and everything since the last commit is final."""
    ROLL_BACK = "roll back"
    """Manual commit: everything since the last commit runs again."""
    FAILED = "failed"
    """The handler raised, or returned no status. The policy decides."""
    HOPELESS = "hopeless"
    """The handler failed, and would fail the same way every time: the retries count as used up."""
    ONE_BY_ONE = "one by one"
    """A batch failed as a whole: its messages run again, each in a batch of its own. Counts as no attempt."""


@dataclass(frozen=True, slots=True)
class Suspend:
    """The handler asks for another attempt after `delay`; None leaves the wait to the policy."""

    delay: Millis | None = None


Outcome: TypeAlias = Plain | Suspend
DONE, STOPPED, COMMIT, ROLL_BACK, FAILED, HOPELESS, ONE_BY_ONE = Plain


class Why(Enum):
    """What the scheduler made of an outcome: what its caller must do (`SEND_BACK`), and what logs and metrics say."""

    DONE = "done"
    STOPPED = "stopped"
    COMMITTED = "committed"
    ROLLED_BACK = "rolled back"
    ILLEGAL = "commit or roll back in auto-commit mode, taken as success"
    HELD = "waits for another attempt"
    DIVIDED = "a batch runs again, one message at a time"
    PARKED = "retries used up, waits for an operator"
    SEND_BACK = "send these messages back, then call sent_back"
    SENT_BACK = "the broker has them, successors continue"
    QUEUE_GONE = "the queue is no longer assigned: commit nothing"


class Finished(NamedTuple, Generic[M]):
    """What the caller must do after a run.

    `send_back` is non-empty only with `Why.SEND_BACK`: then the run has not ended, and its lane waits for the call of
    `sent_back`. `until` says when a held lane runs again.
    """

    why: Why
    send_back: tuple[M, ...] = ()
    until: Millis | None = None


# from messages to runs


@compiled
def lay_in_lanes(
    lanes: dict[str | None, LaneOrRun[M]],
    ready: deque[LaneOrRun[M]],
    messages: Sequence[M],
    queue: MessageQueue,
    permit: RunPermit,
) -> list[Lane[M]]:
    """Puts every message into the lane of its key; a key that is new gets a run and joins `ready`.

    Returns the watched lanes that got messages; a lane may be in the list more than once.
    """
    watched: list[Lane[M]] = []
    for message in messages:
        key = message.key
        place = lanes.get(key)
        if place is None:
            lanes[key] = place = LaneRun(queue, key, (message,), 1, 0, permit, 0)
            ready.append(place)
            continue
        if isinstance(place, LaneRun):
            lanes[key] = place = grow(place)
        place.pending.append(message)
        if place.watched and (not watched or watched[-1] is not place):
            watched.append(place)
    return watched


def grow(run: LaneRun[M]) -> Lane[M]:
    """Makes the lane that the run stood for. A waiting run keeps its place in `ready` for the lane."""
    lane: Lane[M] = Lane(run.key, [] if run.running else list(run.messages))
    run.lane = lane
    if run.running:
        lane.run, lane.slice_end = run, run.slice_end
    return lane


@compiled
def cut_runs(messages: Sequence[M], size: int, queue: MessageQueue, permit: RunPermit) -> list[LaneRun[M]]:
    """Without order: cuts messages into runs of `size`, which may run at the same time."""
    starts = range(0, len(messages), size)
    return [LaneRun(queue, None, tuple(messages[at : at + size]), 1, 0, permit, 0) for at in starts]


class RunSource(Protocol[M]):
    """What `take_runs` needs of a queue."""

    queue: MessageQueue
    ready: deque[LaneOrRun[M]]
    failures: dict[int, int]
    running: int

    def take(self, lane: Lane[M], limit: int) -> list[M]: ...


@compiled
def take_runs(
    source: RunSource[M], max_messages: int, limit: int, slice_end: int, tokens: Iterator[int]
) -> list[LaneRun[M]]:
    """Takes runs of the ready lanes, of at most `limit` messages each, until `max_messages` or more are taken.

    `slice_end` applies to lanes that are new or come from a pause.
    """
    ready, runs = source.ready, []
    while max_messages > 0 and ready:
        place = ready.popleft()
        if isinstance(place, Lane) or place.lane is not None:
            lane = place if isinstance(place, Lane) else place.lane
            assert lane is not None
            taken = source.take(lane, limit)
            if not taken:
                continue
            run = _run_of(source, lane, taken, slice_end)
        else:
            run = place
            run.slice_end = slice_end
        run.token = next(tokens)
        run.running = True
        runs.append(run)
        max_messages -= len(run.messages)
    source.running += len(runs)
    return runs


def _run_of(source: RunSource[M], lane: Lane[M], taken: list[M], slice_end: int) -> LaneRun[M]:
    if lane.slice_end is None:
        lane.slice_end = slice_end
    failures = source.failures
    attempt = failures.get(taken[0].queue_offset, 0) + 1 if failures else 1
    assert isinstance(source, RunPermit)
    run = lane.run = LaneRun(source.queue, lane.key, tuple(taken), attempt, 0, source, lane.slice_end, lane)
    return run


@compiled
def count_messages(runs: list[LaneRun[M]]) -> int:
    return sum([len(run.messages) for run in runs])


# and back


@compiled
def by_permit(runs: Iterable[LaneRun[M]]) -> list[tuple[RunPermit, list[LaneRun[M]]]]:
    """Groups successive runs of one queue; leaves out those that have ended."""
    running = [run for run in runs if run.running]
    return [(permit, list(group)) for permit, group in groupby(running, _permit_of)]


@compiled
def end_runs(
    runs: Sequence[LaneRun[M]], lanes: dict[str | None, LaneOrRun[M]] | None
) -> tuple[list[M], list[Lane[M]], list[LaneRun[M]]]:
    """Ends runs that succeeded; returns their messages, the lanes with more, and the runs of redriven messages.

    Removes empty lanes from `lanes`, where there are any.
    """
    done: list[M] = []
    more: list[Lane[M]] = []
    redriven: list[LaneRun[M]] = []
    for run in runs:
        run.running = False
        lane = run.lane
        if lane is not None:
            lane.run = None
            if lane.redriven is not None:
                redriven.append(run)
                continue
            if lane.pending:
                more.append(lane)
                done += run.messages[run.settled :]
                continue
        if lanes is not None:
            del lanes[run.key]
        done += run.messages[run.settled :]
    return done, more, redriven
