"""JSON bodies of LaneMQ's own requests about lanes: parked lanes, and what a lane is doing."""

from msgspec import field

from lanemq.wire.bodies import Body


class ParkBody(Body):
    """LANE_PARK: set these messages of a lane aside.

    `failed`: the lane's first message has used up its attempts. Without it they belong behind a parked lane.
    """

    key: str | None = None
    offsets: list[int] = field(default_factory=list)
    failed: bool = False
    again: int = -1
    """With `failed`: the redriven message that failed; it is in the lane already."""
    reason: str = ""
    attempts: int = 0


class ParkAnswer(Body):
    """Answers LANE_PARK: so many of the offsets are settled. `status` is empty if the lane does not exist."""

    settled: int = 0
    status: str = ""
    remark: str = ""


class NextBody(Body):
    """LANE_PARK_NEXT: a redriven message is done (-1: none yet), give the one after it."""

    key: str | None = None
    done: int = -1


class LaneBody(Body):
    """Which lanes are meant: LANE_PARKED (4204), LANE_PARKED_SHOW (4205), LANE_PARKED_REDRIVE (4206),
    LANE_PARKED_DISCARD (4207). What is empty, or -1, is not asked for."""

    group: str = ""
    topic: str = ""
    queue_id: int = -1
    any_key: bool = True
    key: str | None = None
    after: str = ""
    """LANE_PARKED: go on where an earlier answer ended; its `more`."""
    start: int = 0
    """LANE_PARKED_SHOW: from this offset on."""
    through: int = -1
    """LANE_PARKED_DISCARD: up to and including this offset."""


class ParkedLaneBody(Body):
    """One parked lane."""

    group: str = ""
    topic: str = ""
    queue_id: int = 0
    key: str | None = None
    status: str = ""
    reason: str = ""
    attempts: int = 0
    since: int = 0
    messages: int = 0
    size: int = 0
    first: int = 0
    last: int = 0
    through: int = -1
    """The last offset ever parked in it; up to here the queue's owner runs nothing of the key that it pulls."""


class ParkedTable(Body):
    """Answers LANE_PARKED. If lanes were left out at the end, `more` names the last one here: a number would point
    elsewhere as soon as one of them is emptied, and an owner that misses a lane runs what is parked."""

    lanes: list[ParkedLaneBody] = field(default_factory=list)
    more: str = ""


class ParkedResult(Body):
    """Answers LANE_PARKED_REDRIVE and LANE_PARKED_DISCARD."""

    changed: int = 0
    """Lanes that are redriven from now on, or messages that were discarded."""
    left: int = 0
    """Messages that the lane holds now."""


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
