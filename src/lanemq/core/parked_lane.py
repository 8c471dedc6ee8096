"""The status of a parked lane and why it was parked; used by broker and consumer."""

from dataclasses import dataclass
from enum import Enum


class LaneStatus(Enum):
    """Whether a parked lane waits or runs again."""

    PARKED = "parked"
    """Waits until an operator redrives or discards it."""
    REDRIVING = "redriving"
    """An operator asked for another try: the queue's owner runs it, message by message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a lane was parked."""

    reason: str
    attempts: int
    """Failed calls of the handler for the lane's first message; 0 if the message that failed was discarded."""
