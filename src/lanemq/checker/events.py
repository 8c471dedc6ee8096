"""What a history may contain.

One JSON object per line, one file per process. The line format is a contract between the system under test
and its judge, so it is written down a second time here and shared by no import: a mistake in the writer is
then a mistake the judge sees, not one it repeats.

Times are nanoseconds of the machine's monotonic clock. `asked` is when the request behind an answer left, so
the thing itself happened somewhere in `asked .. t`; an event that knows better leaves it out.
"""

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """Who wrote a file; a broker's word about leases is exact, a member's is what the member believed."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    BROKER = "broker"
    OTHER = "other"


class Outcome(StrEnum):
    """How a turn ended."""

    OK = "ok"
    RETRY = "retry"
    """The message stays unfinished and must run again before its successors."""
    ABANDONED = "abandoned"
    """The member noticed that its lease had ended; the result was thrown away and not committed."""
    LATE = "late"
    """It ended well, but its lease was over by then: it counts only if nobody else has the queue meanwhile."""


class Process(msgspec.Struct, frozen=True):
    """One life of one process; a restart is another one."""

    name: str
    role: Role = Role.OTHER


NOBODY = Process("?")


class Event(msgspec.Struct, kw_only=True, tag_field="e", gc=False):
    """`n` counts the lines of one process without a gap; the reader fills in `process`."""

    n: int
    t: int
    process: Process = NOBODY


class Begin(Event, tag="begin"):
    """First line of every life of a process."""

    name: str
    role: Role = Role.OTHER
    run: str = ""


class Fault(Event, tag="fault"):
    """Something was broken on purpose, or healed."""

    kind: str
    target: str = ""
    phase: str = "start"


class Send(Event, tag="send"):
    """The producer took the message in. The order of these lines is the order the producer promised."""

    topic: str
    key: str
    id: str


class SendFailed(Event, tag="send_failed"):
    """Certainly not stored."""

    topic: str
    key: str
    id: str


class SendUnknown(Event, tag="send_unknown"):
    """Nobody knows: time-out, lost connection, flush time-out."""

    topic: str
    key: str
    id: str


class QueueEvent(Event, kw_only=True):
    topic: str
    queue: int
    offset: int


class Acked(QueueEvent, tag="acked"):
    id: str
    key: str = ""


class Stored(QueueEvent, tag="stored"):
    """A record found by reading the log itself at the end of a run."""

    id: str
    key: str = ""


class Trimmed(QueueEvent, tag="trimmed"):
    """Retention removed everything below `offset`."""


class TopicDeleted(Event, tag="topic_deleted"):
    """Everything of the topic is gone. Another one of this name begins again at offset 0."""

    topic: str


class GroupEvent(QueueEvent, kw_only=True):
    group: str


class Turn(GroupEvent, tag="turn"):
    """The handler is about to be called. Messages of one call share a `batch` that is not 0."""

    key: str
    id: str = ""
    epoch: int = 0
    attempt: int = 0
    batch: int = 0


class TurnEnd(GroupEvent, tag="turn_end"):
    key: str
    outcome: Outcome
    epoch: int = 0


class DeadLettered(GroupEvent, tag="dead_lettered"):
    """Written when the dead letter is on disk, not before."""

    key: str
    id: str = ""
    attempts: int = 0


class Skipped(GroupEvent, tag="skipped"):
    """Left out on purpose: by a tag filter, by a person, or sent back to the retry topic."""

    key: str = ""
    reason: str = ""


class Parked(GroupEvent, tag="parked"):
    """Set aside durably, with everything behind it in its lane. Member and broker may both say so."""

    key: str = ""


class Redriven(GroupEvent, tag="redriven"):
    """A person lets the parked lane run again; `offset` is its first message then."""

    key: str = ""


class Discarded(GroupEvent, tag="discarded"):
    """A person gave a parked message up."""

    key: str = ""


class Committed(GroupEvent, tag="committed"):
    """`offset` is the next one to read."""

    epoch: int = 0
    asked: int = 0


class CommitRefused(GroupEvent, tag="commit_refused"):
    epoch: int = 0
    asked: int = 0
    reason: str = ""


class Reset(GroupEvent, tag="reset"):
    """The group's position was set by name: at its start, or by a person. From there all may run again.

    `kept` is 1 where members hold no leases: one of them is behind another, and what was finished stays finished.
    A member names its `epoch`: one that has lost the queue and does not know it moves nobody.
    """

    reason: str = ""
    kept: int = 0
    epoch: int = 0


class Recovered(GroupEvent, tag="recovered"):
    """The committed offset a broker found when it started; -1: none at all.

    `clean` is 1 if the broker before it was stopped in order. `alive` is when that one was last known to live.
    """

    epoch: int = 0
    clean: int = 1
    alive: int = 0


class LeaseEvent(Event, kw_only=True):
    group: str
    topic: str
    queue: int
    member: str
    epoch: int = 0


class LeaseGranted(LeaseEvent, tag="lease_granted"):
    """`until` is when the writer stops using the lease; 0 when it does not say."""

    until: int = 0
    asked: int = 0


class LeaseRenewed(LeaseEvent, tag="lease_renewed"):
    until: int = 0
    asked: int = 0


class LeaseReleased(LeaseEvent, tag="lease_released"):
    pass


class LeaseExpired(LeaseEvent, tag="lease_expired"):
    pass


class Effect(GroupEvent, tag="effect"):
    """A sink took the result of a message."""

    key: str
    sink: str = ""
    epoch: int = 0
    asked: int = 0


AnyEvent = (
    Begin | Fault | Send | SendFailed | SendUnknown | Acked | Stored | Trimmed | TopicDeleted | Turn | TurnEnd
    | DeadLettered | Skipped | Parked | Redriven | Discarded | Committed | CommitRefused | Reset | Recovered
    | LeaseGranted | LeaseRenewed | LeaseReleased | LeaseExpired | Effect
)  # fmt: skip
