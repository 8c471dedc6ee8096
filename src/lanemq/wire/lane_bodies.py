"""JSON bodies of LaneMQ's own requests about lanes: parked lanes, and what a lane is doing."""

from msgspec import field

from lanemq.model.log_marks import LogMark, SeenLog
from lanemq.wire.bodies import Body
from lanemq.wire.prepared import prepare_structs


class ParkBody(Body):
    """LANE_PARK: park these messages of a lane.

    `failed`: the first message failed. Without it, the messages belong behind a parked lane.
    """

    key: str | None = None
    offsets: list[int] = field(default_factory=list)
    failed: bool = False
    held: bool = False
    """With `failed`: retries are left, and the owner continues with the lane by itself."""
    again: int = -1
    """With `failed`: the offset of a message of the lane that failed; everything before it is finished."""
    reason: str = ""
    attempts: int = 0
    last: LogMark | None = None
    """The last of these messages, for a coordinator, which compares logs."""


class ParkAnswer(Body):
    """Answers LANE_PARK: how many offsets are parked or finished. `status` is empty if there is no such lane."""

    settled: int = 0
    status: str = ""
    remark: str = ""


class NextBody(Body):
    """LANE_PARK_NEXT: reports messages of a lane as finished, and asks for the next ones."""

    key: str | None = None
    done: int = -1
    """Everything up to this offset is finished; -1: nothing yet."""
    wanted: int = 1
    """How many messages to return at most; 0: only a report."""


class NextOffsets(Body):
    """Answers LANE_PARK_NEXT and LANE_PARKED_SHOW of a coordinator, which has no messages: where the next ones are."""

    left_out = ("copied",)
    offsets: list[int] = field(default_factory=list)
    copied: dict[int, bytes] = field(default_factory=dict)
    """Messages that were copied, because their broker may delete them."""


class LaneBody(Body):
    """Selects lanes: LANE_PARKED (4204), LANE_PARKED_SHOW (4205), LANE_PARKED_REDRIVE (4206),
    LANE_PARKED_DISCARD (4207). Empty or -1: any."""

    group: str = ""
    topic: str = ""
    broker: str = ""
    queue_id: int = -1
    any_key: bool = True
    key: str | None = None
    after: str = ""
    """LANE_PARKED: continue after an earlier answer, with its `more`."""
    start: int = 0
    """LANE_PARKED_SHOW: from this offset on."""
    through: int = -1
    """LANE_PARKED_DISCARD: up to and including this offset."""


class ParkedLaneBody(Body):
    """One parked lane."""

    group: str = ""
    topic: str = ""
    broker: str = ""
    queue_id: int = 0
    key: str | None = None
    status: str = ""
    reason: str = ""
    attempts: int = 0
    since: int = 0
    messages: int = 0
    first: int = 0
    last: int = 0
    through: int = -1
    """The last offset ever parked in it; the queue's owner does not run messages of the key up to here."""
    overtaken: bool = False
    """An owner that does not know lanes had the queue, and may have run newer messages of the key."""


class ParkedTable(Body):
    """Answers LANE_PARKED. If the answer is not complete, `more` names its last lane. A count would be wrong as soon as
    a lane is emptied, and an owner that misses a lane would run parked messages.
    """

    lanes: list[ParkedLaneBody] = field(default_factory=list)
    more: str = ""


class ParkedResult(Body):
    """Answers LANE_PARKED_REDRIVE and LANE_PARKED_DISCARD."""

    changed: int = 0
    """How many lanes are redriven, or how many messages were discarded."""
    left: int = 0
    """How many messages the lane holds now."""


UNKNOWN = -1


class LaneStateBody(Body):
    """LANE_STATE (4208), relayed by the broker to a member as 307 is: the header names group and member."""

    topic: str = ""
    broker: str = ""
    queue_id: int = 0
    key: str | None = None


class LaneStateAnswer(Body):
    """The member's answer; -1 means "does not apply"."""

    state: str = ""
    order: str = ""
    head: int = UNKNOWN
    """First unfinished offset of the lane in this member."""
    attempts: int = 0
    """How often the first message has failed."""
    retry_in: int = UNKNOWN
    running_for: int = UNKNOWN
    blocked_for: int = UNKNOWN
    """Milliseconds since the first failure after the last success."""
    reason: str = ""
    """The newest error."""
    waiting: int = 0
    """Unfinished messages of the lane in this member."""
    committable: int = 0
    next_offset: int = 0
    """Offset from which nothing has been fetched yet."""
    lease: int = UNKNOWN
    """Remaining lease time as the member sees it."""
    client: str = ""
    """Who runs it, if the member has handed it to a client of its own."""


class FrontClientBody(Body):
    """A client of a member that is a front."""

    id: str = ""
    language: str = ""
    version: str = ""
    held: int = 0
    """Messages that it has and has not decided about."""


class FrontClientsBody(Body):
    """The clients of a front in one group."""

    clients: list[FrontClientBody] = field(default_factory=list)


class HeldLaneBody(Body):
    """A lane that a member holds after a failure."""

    topic: str = ""
    broker: str = ""
    queue_id: int = 0
    key: str | None = None
    state: LaneStateAnswer = field(default_factory=LaneStateAnswer)


class HeldLanesBody(Body):
    """Answers LANE_HELD (4209), relayed by the broker to a member as 307 is."""

    lanes: list[HeldLaneBody] = field(default_factory=list)
    more: int = 0
    """How many further lanes the member holds."""


class CoordinateBody(Body):
    """LANE_COORDINATE (4210): moves a group to a coordinator, or back to the brokers."""

    group: str = ""
    out: bool = False
    """From the coordinator back to the brokers."""
    apply: bool = False
    """False: only say what would happen."""
    confirm: bool = False
    """Nothing is moved: the new queues of the group's topics are confirmed. Without `apply`, they are only named."""


class CoordinatedQueue(Body):
    """The place of a group in one queue, with which it moves."""

    topic: str = ""
    broker: str = ""
    queue_id: int = 0
    offset: int = 0
    finished: int = 0
    """Messages that are finished above the offset; brokers do not keep that, so they are delivered again after a move
    back."""


class CoordinateAnswer(Body):
    """Answers LANE_COORDINATE."""

    queues: list[CoordinatedQueue] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Why the group cannot be moved now; nothing was changed then."""
    moved: bool = False


class StandbyBody(Body):
    """A copy of the database of a coordinator."""

    name: str = ""
    confirms: bool = False
    """Whether each change waits for it."""
    lag_bytes: int = -1
    """What it has not applied yet; -1: the database does not say so to this user."""


class LeaderAnswer(Body):
    """Answers LANE_LEADER (4213): who leads, and how its state does."""

    address: str = ""
    term: int = 0
    leads_millis: int = 0
    """How long it has led."""
    store: str = ""
    """Its folder or database, for people."""
    shared: bool = False
    """Whether other coordinators may take over."""
    write_millis: int = 0
    """How long its last change took; 0 for a folder."""
    standbys: list[StandbyBody] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """What may lose changes when the database fails over."""


class SeenBody(Body):
    """Answers LANE_SEEN (4211), which names a queue in a `LaneBody`: what the group has seen of the queue's log."""

    seen: SeenLog = field(default_factory=SeenLog)


class CompareBody(Body):
    """LANE_COMPARE (4212): compares what a group has seen with what the brokers have."""

    group: str = ""
    apply: bool = False
    """Drop what lies above the last message that is the same. False: only say what would be dropped."""


class OtherLogBody(Body):
    """A queue in which a broker has other messages than the group has read."""

    topic: str = ""
    broker: str = ""
    queue_id: int = 0
    offset: int = 0
    same_below: int = 0
    """Below this offset, the log is the one that the group has read."""
    finished: int = 0
    """Messages above that which are counted as finished above the offset."""
    parked: int = 0
    """Parked messages above that."""


class CompareAnswer(Body):
    """Answers LANE_COMPARE."""

    compared: int = 0
    """How many queues were compared."""
    others: list[OtherLogBody] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    """Queues that could not be compared, and why."""


prepare_structs(__name__)
