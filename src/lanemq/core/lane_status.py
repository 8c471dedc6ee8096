"""The status of a lane that is set aside at the broker, and why; used by broker and consumer."""

from dataclasses import dataclass
from enum import Enum


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
