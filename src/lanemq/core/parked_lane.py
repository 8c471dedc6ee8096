"""What broker and consumer both say about a parked lane: its status, and why it was parked."""

from dataclasses import dataclass
from enum import Enum


class LaneStatus(Enum):
    PARKED = "parked"
    """Waits for a person."""
    REDRIVING = "redriving"
    """A person asked for another try: the queue's owner runs it, message by message."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a lane was parked."""

    reason: str
    attempts: int
    """Calls of the handler that failed, before the lane was given up."""
