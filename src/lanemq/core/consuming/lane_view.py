"""One lane as people ask for it: what is the key doing at this moment, and what does it wait for?

Only the member that owns the queue knows. Nothing is stopped for the answer; it reads the
places in which a lane can be (`lane_queue`) in the order in which each of them would explain a wait.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from lanemq.core.consuming.runs import Lane, M, Order
from lanemq.model.units import Millis, QueueOffset


class LaneState(Enum):
    """Where a lane is. With order by queue, this speaks of the queue's one lane."""

    RUNNING = "running"
    HELD = "held"
    """After a failure, until its next attempt."""
    QUEUE_HELD = "queue held"
    """The whole queue waits after a failure, perhaps of another key."""
    PARKED = "parked"
    UNLEASED = "unleased"
    """The lease has run out here, or rests until it is renewed."""
    LEAVING = "leaving"
    """The queue is being handed over: what did not run is the next owner's."""
    READY = "ready"
    """Waits for a worker."""
    EMPTY = "empty"
    """No message of it is here: all done, or not fetched yet."""


@dataclass(frozen=True, slots=True)
class LaneView:
    """`head` is the first unfinished message here, `attempts` how often it failed, `until` the end of a hold."""

    state: LaneState
    order: Order
    committable: QueueOffset
    next_offset: QueueOffset
    head: QueueOffset | None = None
    attempts: int = 0
    until: Millis | None = None
    waiting: int = 0


class Home(Protocol[M]):
    """What is read of a queue."""

    order: Order
    usable_until: Millis
    held_until: Millis
    closed: bool
    failures: dict[int, int]

    @property
    def committable(self) -> QueueOffset: ...

    @property
    def next_offset(self) -> QueueOffset: ...

    def lane(self, key: str | None) -> Lane[M] | None: ...

    def waiting_in(self, lane: Lane[M]) -> tuple[QueueOffset | None, int]: ...

    def is_parked(self, lane: Lane[M]) -> bool: ...


def view_lane(home: Home[M], key: str | None, timers: Iterable[tuple[Millis, Lane[M] | None]], now: Millis) -> LaneView:
    """`timers` are those of this queue."""
    lane = home.lane(key)
    if lane is None:
        return LaneView(LaneState.EMPTY, home.order, home.committable, home.next_offset)
    head, waiting = home.waiting_in(lane)
    until = min((when for when, held in timers if held is lane and when > now), default=None)
    state = _state(home, lane, until, now, empty=head is None)
    return LaneView(
        state=state,
        order=home.order,
        committable=home.committable,
        next_offset=home.next_offset,
        head=head,
        attempts=0 if head is None else home.failures.get(head, 0),
        until=home.held_until if state is LaneState.QUEUE_HELD else until,
        waiting=waiting,
    )


def _state(home: Home[M], lane: Lane[M], until: Millis | None, now: Millis, *, empty: bool) -> LaneState:
    """The first that is true explains the wait: a turn that runs is under way whatever else was decided since."""
    reasons = (
        (LaneState.RUNNING, lane.run is not None),
        (LaneState.PARKED, home.is_parked(lane)),
        (LaneState.EMPTY, empty),
        (LaneState.LEAVING, home.closed),
        (LaneState.UNLEASED, now >= home.usable_until),
        (LaneState.QUEUE_HELD, now < home.held_until),
        (LaneState.HELD, until is not None),
    )
    return next((state for state, true in reasons if true), LaneState.READY)
