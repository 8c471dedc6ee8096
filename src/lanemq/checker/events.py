"""The events of a history.

One JSON object per line, one file per process. The format is a contract between the system under test and the checker.
It is written down here a second time, and not imported, so that the checker notices a mistake of the writer instead of
repeating it.

Times are nanoseconds of the machine's monotonic clock. `asked` is the time at which the request was sent: what the
event reports happened between `asked` and `t`. It is 0 where `t` is exact.
"""

from enum import StrEnum

import msgspec


class Role(StrEnum):
    """What wrote a file. A broker's lines about leases are exact, a member's say what the member believed."""

    PRODUCER = "producer"
    CONSUMER = "consumer"
    BROKER = "broker"
    OTHER = "other"


class Outcome(StrEnum):
    """How a turn ended."""

    OK = "ok"
    RETRY = "retry"
    """The message is unfinished and must run again before its successors."""
    ABANDONED = "abandoned"
    """The member noticed that its lease had ended, and threw the result away."""
    LATE = "late"
    """It succeeded after its lease had ended. It counts only if no other member was granted the queue."""


class Process(msgspec.Struct, frozen=True):
    """One run of a process; after a restart it is another one."""

    name: str
    role: Role = Role.OTHER


UNKNOWN_PROCESS = Process("?")
DEFAULT_BROKER = "lanemq"


QueueName = tuple[str, str, int]
"""Topic, broker and number: queues of two brokers may have the same number."""


class HistoryEvent(msgspec.Struct, kw_only=True, tag_field="e", gc=False):
    """`n` numbers the lines of a process without gaps; the reader sets `process`."""

    n: int
    t: int
    process: Process = UNKNOWN_PROCESS


class Begin(HistoryEvent, tag="begin"):
    """The first line of every run of a process."""

    name: str
    role: Role = Role.OTHER
    run: str = ""
    machine: str = ""
    """Whose clock the times are of: a machine since its last start. Empty if that is not known."""


class Fault(HistoryEvent, tag="fault"):
    """A test broke something on purpose, or repaired it."""

    kind: str
    target: str = ""
    phase: str = "start"


class Send(HistoryEvent, tag="send"):
    """The producer accepted the message. The order of these lines is the order that must be stored.

    `delay` is not 0 for a message that the broker stores later: it has no place in that order.
    """

    topic: str
    key: str
    id: str
    delay: int = 0
    tag: str = ""


class SendFailed(HistoryEvent, tag="send_failed"):
    """The message is certainly not stored."""

    topic: str
    key: str
    id: str


class SendUnknown(HistoryEvent, tag="send_unknown"):
    """The message may be stored: time-out, lost connection, flush time-out."""

    topic: str
    key: str
    id: str


class QueueLineEvent(HistoryEvent, kw_only=True):
    """An event about a queue. `broker` is left out if it has the default name."""

    topic: str
    broker: str = DEFAULT_BROKER
    queue: int


class OffsetEvent(QueueLineEvent, kw_only=True):
    """An event about an offset of a queue."""

    offset: int


class Acked(OffsetEvent, tag="acked"):
    """The broker acknowledged the message; `offset` is -1 for a repeat whose offset it no longer knows."""

    id: str
    key: str = ""


class LogRecord(OffsetEvent, tag="stored"):
    """A record that was found by reading the log at the end of a run."""

    id: str
    key: str = ""


class Trimmed(OffsetEvent, tag="trimmed"):
    """Retention deleted everything below `offset`."""


class TopicDeleted(HistoryEvent, tag="topic_deleted"):
    """The topic was deleted. A new one of this name begins at offset 0."""

    topic: str


class GroupEvent(OffsetEvent, kw_only=True):
    """An event about an offset of a queue, as a group sees it."""

    group: str


class Turn(GroupEvent, tag="turn"):
    """The handler is about to be called. The messages of one call share a `batch` other than 0.

    `copy` is 1 for a message that an operator or a mirror sent as a copy: its send is in no history.
    """

    key: str
    id: str = ""
    epoch: int = 0
    attempt: int = 0
    batch: int = 0
    copy: int = 0


class TurnEnd(GroupEvent, tag="turn_end"):
    """The handler has returned, at the time `ended`; 0 if the writer does not say.

    `why` is the error of a turn that failed. It is for people; no invariant depends on it.
    """

    key: str
    outcome: Outcome
    epoch: int = 0
    ended: int = 0
    why: str = ""


class TagsFiltered(GroupEvent, tag="filtered"):
    """From `offset` on, the member gets only messages with one of the `tags`, which are joined by `||`."""

    tags: str


class TagsSubscribed(QueueLineEvent, tag="subscribed"):
    """From now on a member of the group selects these `tags`, joined by `||`, or `*`; empty if none is left.

    A broker writes it for every queue of a topic that members of the group filter differently: members with fewer tags
    must not commit past messages that these select. `lost` is the member that selected more until now, if the broker
    has given it up: it did not say that it leaves.
    """

    group: str
    tags: str
    lost: str = ""


class DeadLettered(GroupEvent, tag="dead_lettered"):
    """The dead letter is on disk."""

    key: str
    id: str = ""
    attempts: int = 0


class Skipped(GroupEvent, tag="skipped"):
    """Left out on purpose: by a tag filter, by an operator, or because it was sent back to the retry topic."""

    key: str = ""
    reason: str = ""


class MessageParked(GroupEvent, tag="parked"):
    """The message was parked durably, with everything behind it in its lane. Member and broker may both report it."""

    key: str = ""


class Redriven(GroupEvent, tag="redriven"):
    """Messages of a parked lane, from `offset` to `last`, go to the queue's owner, to run again."""

    key: str = ""
    last: int = -1


class Discarded(GroupEvent, tag="discarded"):
    """An operator gave a parked message up."""

    key: str = ""


class OffsetCommitted(GroupEvent, tag="committed"):
    """`offset` is the next one to read."""

    epoch: int = 0
    asked: int = 0


class CommitRefused(GroupEvent, tag="commit_refused"):
    """The broker refused a commit."""

    epoch: int = 0
    asked: int = 0
    reason: str = ""


class Reset(GroupEvent, tag="reset"):
    """The group's offset was set explicitly, at its start or by an operator. From there everything may run again.

    `kept` is 1 in a group without leases: the offset goes back, but what was finished stays finished.
    A member names its `epoch`: the line of one that has lost the queue has no effect.
    """

    reason: str = ""
    kept: int = 0
    epoch: int = 0


class BrokerCrashed(QueueLineEvent, tag="crashed"):
    """Written at a start for every queue: the broker's previous run, whose last line is of `alive`, was not stopped."""

    alive: int


class Recovered(GroupEvent, tag="recovered"):
    """The committed offset that a broker found when it started; -1 if there was none.

    `clean` is 1 if the broker's previous run was stopped cleanly. `alive` is the time of the last line of that run.
    A member that takes a queue of an Apache broker writes what the broker answered, with the time of its question.
    """

    epoch: int = 0
    clean: int = 1
    alive: int = 0


class LeaseEvent(QueueLineEvent, kw_only=True):
    """An event about the lease of a member on a queue."""

    group: str
    member: str
    epoch: int = 0


class LeaseGranted(LeaseEvent, tag="lease_granted"):
    """`until` is the time at which the writer stops using the lease; 0 if it does not say."""

    until: int = 0
    asked: int = 0


class LeaseRenewed(LeaseEvent, tag="lease_renewed"):
    """As `LeaseGranted`. The broker also writes it when it shortens a lease."""

    until: int = 0
    asked: int = 0


class LeaseReleased(LeaseEvent, tag="lease_released"):
    """The member gave the lease back."""


class LeaseExpired(LeaseEvent, tag="lease_expired"):
    """The lease ended without a release."""


class Effect(GroupEvent, tag="effect"):
    """A sink stored the result of a message."""

    key: str
    sink: str = ""
    epoch: int = 0
    asked: int = 0


AnyEvent = (
    Begin | Fault | Send | SendFailed | SendUnknown | Acked | LogRecord | Trimmed | TopicDeleted | Turn | TurnEnd
    | TagsFiltered | TagsSubscribed | DeadLettered | Skipped | MessageParked | Redriven | Discarded | OffsetCommitted
    | CommitRefused | Reset | BrokerCrashed | Recovered | LeaseGranted | LeaseRenewed | LeaseReleased | LeaseExpired
    | Effect
)  # fmt: skip
