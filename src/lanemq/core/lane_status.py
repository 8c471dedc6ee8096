"""Lanes that are set aside at the broker, as broker and consumer both know them: status, reason, and limits."""

from dataclasses import dataclass
from enum import Enum

MAX_PARKED = 1_000
"""Messages of a lane that are parked with one request."""
MAX_GIVEN = 32
"""Messages of a lane that its owner gets at once. Many: more of them run again after a crash, and more that an operator
discards may already be on their way. Few: a redrive takes longer, because each answer waits for the disk."""


class LaneStatus(Enum):
    """What a lane at the broker waits for."""

    HELD = "held"
    """Its first message failed and has retries left: the queue's owner runs it again by itself, after the backoff."""
    PARKED = "parked"
    """Waits until an operator redrives or discards it."""
    REDRIVING = "redriving"
    """The queue's owner runs it, in order: an operator redrives it, or the message that failed has succeeded."""

    @property
    def runs(self) -> bool:
        """Whether the queue's owner runs the lane."""
        return self is not LaneStatus.PARKED


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a lane was set aside."""

    reason: str
    attempts: int
    """Failed calls of the handler for the lane's first message; 0 if the message that failed was discarded."""
