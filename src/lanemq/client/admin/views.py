"""The values that administrative calls return, and the positions that they take."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from lanemq.clock import wall_ms
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.checks import check_whole
from lanemq.model.figures import labels_of
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, QueueOffset
from lanemq.wire.lane_bodies import LeaderAnswer

FIRST_OFFSET: Final = QueueOffset(0)


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """The offsets that a queue holds: from `first` up to, and not including, `end`."""

    queue: MessageQueue
    first: QueueOffset
    end: QueueOffset
    last_stored_at: datetime | None
    """Store time of the newest message; None if the queue never had one."""

    @property
    def messages(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class TopicDescription:
    """A topic and its queues on all brokers."""

    topic: str
    ordered: bool
    queues: tuple[QueueBounds, ...]
    away: tuple[str, ...] = ()
    """Brokers without a master at the moment; their queues are not among `queues`."""
    created_ms: Mapping[str, int] = field(default_factory=dict)
    """By broker, when it created the topic, in milliseconds since 1970. Another value than before means that the topic
    was deleted and created again. Apache brokers do not tell."""


@dataclass(frozen=True, slots=True)
class GroupMember:
    """A connected client of a group."""

    client_id: str
    address: str
    language: str
    version: int
    broker: str = ""
    """A broker that it is connected to."""


@dataclass(frozen=True, slots=True)
class LeaseView:
    """The current owner of a queue for a group."""

    group: str
    queue: MessageQueue
    owner: str
    epoch: Epoch
    remaining: float
    """Seconds until the lease ends unless it is renewed."""
    stock: bool
    """The owner is a RocketMQ client, which has no epochs."""


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """A group's progress in one queue."""

    queue: MessageQueue
    offset: QueueOffset
    end: QueueOffset
    owner: str | None = None
    epoch: Epoch | None = None
    finished: int = 0
    """Messages above `offset` that are finished already. An Apache broker does not report them."""

    @property
    def lag(self) -> int:
        """Messages that are not finished. Those above `offset` that wait only for the commit do not count."""
        return max(0, self.end - self.offset - self.finished)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    """A group: its members, subscriptions and progress."""

    group: str
    members: tuple[GroupMember, ...]
    subscriptions: Mapping[str, str]
    """Tag expression by topic; empty while no member is connected."""
    queues: tuple[GroupQueue, ...]
    note: str = ""
    """What could not be determined, and why; and topics that members filter differently."""
    broadcasting: bool = False
    """Each member gets all messages and keeps its own offsets, so the group has no lag and no owners. Known while a
    member is online."""
    owners_unknown: str = ""
    """Why a queue without an owner may have one; empty if it has none."""
    coordinator: str = ""
    """The coordinator that keeps its leases, offsets and lanes; empty if the brokers do."""
    leader: LeaderAnswer | None = None
    """What that coordinator says of its term and its state; None if this user may not know."""
    reported: bool = False
    """A program that is no member, such as a Spark query, reports how far it has read. Known from LaneMQ brokers."""

    @property
    def lag(self) -> int:
        """Messages that the group has not finished, in all queues."""
        return sum(each.lag for each in self.queues)


@dataclass(frozen=True, slots=True)
class BrokerFigures:
    """What one broker reports about itself."""

    broker: str
    address: str
    lane: bool
    """Whether it is a LaneMQ broker. Others report RocketMQ's names only."""
    table: Mapping[str, str]
    """RocketMQ's runtime info. A LaneMQ broker adds every metric of docs/reference/metrics.md under its name."""
    replicas: int = 0
    """Replicas that the name servers know beside the master. They forget one that is away after two minutes."""

    def number(self, name: str, **labels: str) -> float | None:
        """The value of a metric, summed over all series with these labels; None if the broker does not report it."""
        series = self.series(name, **labels)
        return sum(series.values()) if series else None

    def series(self, name: str, **labels: str) -> dict[tuple[str, ...], float]:
        """All series of a metric with these labels, by the values of their labels."""
        series = {}
        for title, text in self.table.items():
            if title.partition("{")[0] == name and labels.items() <= (all_labels := labels_of(title)).items():
                series[tuple(all_labels.values())] = float(text)
        return series


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A group's position in a queue before and after a reset; `before` is None if it had none."""

    queue: MessageQueue
    before: QueueOffset | None
    after: QueueOffset
    finished: FinishedRanges = NOTHING_FINISHED
    """What the group has finished above `before`. A reset forgets it. An Apache broker does not report it."""

    @property
    def repeats(self) -> int:
        """Finished messages that the group will process again."""
        if self.before is None:
            return 0
        return max(0, self.before - self.after) + self.finished.above(self.after - 1).count

    @property
    def skips(self) -> int:
        """Unfinished messages that the group will never process."""
        if self.before is None:
            return 0
        return max(0, self.after - self.before) - self.finished.below(self.after).count


@dataclass(frozen=True, slots=True)
class AtTime:
    """A position in a queue: the first message stored at or after this time."""

    when: datetime | float
    """A `datetime`, or seconds since 1970. A `datetime` without a time zone is local time."""

    def __post_init__(self) -> None:
        wall_ms(self.when)  # refuses what is no time


@dataclass(frozen=True, slots=True)
class AtOffset:
    """A position in a queue: this offset, or the nearest one that exists."""

    offset: QueueOffset

    def __post_init__(self) -> None:
        check_whole("offset", self.offset)


@dataclass(frozen=True, slots=True)
class LaneStateView:
    """What the owner of a queue reports about one lane. Spans are seconds; None means that it does not apply."""

    state: str
    """`empty`, `ready`, `running`, `held`, `queue held`, `parked`, `unleased` or `leaving`."""
    order: str
    """`key`, `queue` or `none`: what the lane is ordered by."""
    head: QueueOffset | None = None
    """First unfinished offset of the lane in this member."""
    attempts: int = 0
    """How often the first message has failed."""
    retry_in: float | None = None
    running_for: float | None = None
    blocked_for: float | None = None
    """Seconds since the first failure after the last success."""
    reason: str = ""
    """The newest error."""
    waiting: int = 0
    """Unfinished messages of the lane in this member."""
    committable: QueueOffset = FIRST_OFFSET
    """First unfinished offset of the queue."""
    next_offset: QueueOffset = FIRST_OFFSET
    """Offset from which nothing has been fetched yet."""
    lease: float | None = None
    """Remaining lease time as the member sees it."""
    client: str = ""
    """Who runs it, if its owner is a front that has handed it to a client of its own."""


@dataclass(frozen=True, slots=True)
class NoAnswer:
    """Why the owner's own view of a lane is missing."""

    why: str
    silent: bool = False
    """The owner was asked and did not answer in time."""
