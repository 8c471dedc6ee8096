"""JSON bodies of LANE_STATE, the question what a lane is doing; LaneMQ's own.

The rule guarded here: every time is a span in milliseconds, never a moment. Asker and member have different clocks.
"""

from lanemq.wire.bodies import Body

UNKNOWN = -1


class LaneStateBody(Body):
    """LANE_STATE (4208), relayed by the broker to a member as 307 is: the header names group and member."""

    topic: str = ""
    broker: str = ""
    queue_id: int = 0
    key: str | None = None


class LaneStateAnswer(Body):
    """The member's answer. -1 stands for "does not apply"."""

    state: str = ""
    order: str = ""
    head: int = UNKNOWN
    """First unfinished offset of the lane here."""
    attempts: int = 0
    """How often the head failed so far."""
    retry_in: int = UNKNOWN
    running_for: int = UNKNOWN
    blocked_for: int = UNKNOWN
    """Since the first failure of the lane that no success followed."""
    reason: str = ""
    """The newest error."""
    waiting: int = 0
    """Messages of the lane here that are not finished."""
    committable: int = 0
    next_offset: int = 0
    """From here on nothing is fetched yet."""
    lease: int = UNKNOWN
    """What the member believes is left of its lease."""
