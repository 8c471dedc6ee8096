"""Queues and lanes as a user sees them: what a key is doing at this moment, and what it waits for."""

from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple

from lanemq.core.consuming.flow_control import Cached
from lanemq.core.consuming.runs import Order
from lanemq.model.units import Millis, QueueOffset


@dataclass(frozen=True, slots=True)
class QueueView:
    """One assigned queue. `held` has the keys that wait for a retry and until when; None is the whole queue."""

    order: Order
    committable: QueueOffset
    next_offset: QueueOffset
    cached: Cached
    running: int
    usable_until: Millis
    draining: bool
    held: tuple[tuple[str | None, Millis], ...]
    parked: tuple[str | None, ...]
    parked_here: tuple[str | None, ...] = ()
    """Those of `parked` whose messages are in this member's memory. A broker knows the others."""


class LaneActivity(Enum):
    """What a lane is doing. With order by queue, the queue's one lane."""

    RUNNING = "running"
    HELD = "held"
    """Waits for its next attempt after a failure."""
    QUEUE_HELD = "queue held"
    """The whole queue waits after a failure, perhaps of another key."""
    PARKED = "parked"
    UNLEASED = "unleased"
    """The member has no valid lease at the moment."""
    LEAVING = "leaving"
    """The queue is being handed over; the next owner runs what has not run."""
    READY = "ready"
    """Waits for a worker."""
    EMPTY = "empty"
    """The member has no message of it: all are done, or not pulled yet."""


class Failing(NamedTuple):
    """A lane that failed and has not succeeded since: when it first failed, the last message to fail, and why."""

    since: Millis
    offset: int
    reason: str


@dataclass(frozen=True, slots=True)
class LaneView:
    """One lane: `head` is its first unfinished offset, `attempts` how often that failed, `until` the end of a hold,
    `began` when its current run began. All times are on the member's clock."""

    state: LaneActivity
    order: Order
    committable: QueueOffset
    next_offset: QueueOffset
    head: QueueOffset | None = None
    attempts: int = 0
    until: Millis | None = None
    waiting: int = 0
    began: Millis | None = None
    failing: Failing | None = None
