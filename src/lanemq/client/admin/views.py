"""What administration shows: plain values, ready to be printed."""

from collections.abc import Mapping
from dataclasses import dataclass

from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset


@dataclass(frozen=True, slots=True)
class QueueBounds:
    """What a queue holds: offsets from `first` up to, and not including, `end`."""

    queue: MessageQueue
    first: QueueOffset
    end: QueueOffset
    last_stored: Millis
    """Wall time; 0 if nothing was ever stored."""

    @property
    def messages(self) -> int:
        return self.end - self.first


@dataclass(frozen=True, slots=True)
class TopicDescription:
    topic: str
    ordered: bool
    queues: tuple[QueueBounds, ...]


@dataclass(frozen=True, slots=True)
class GroupMember:
    client_id: str
    address: str
    language: str
    version: int


@dataclass(frozen=True, slots=True)
class LeaseView:
    """Who owns a queue for a group right now."""

    group: str
    queue: MessageQueue
    owner: str
    epoch: Epoch
    remaining_ms: Millis
    stock: bool
    """Held by a client that knows nothing of epochs."""


@dataclass(frozen=True, slots=True)
class GroupQueue:
    """Where a group stands in one queue."""

    queue: MessageQueue
    offset: QueueOffset
    end: QueueOffset
    owner: str | None = None
    epoch: Epoch | None = None

    @property
    def lag(self) -> int:
        return max(0, self.end - self.offset)


@dataclass(frozen=True, slots=True)
class GroupDescription:
    group: str
    members: tuple[GroupMember, ...]
    subscriptions: Mapping[str, str]
    """Topic to tag expression; empty while nobody is online."""
    queues: tuple[GroupQueue, ...]
    note: str = ""
    """What could not be found out, and why."""

    @property
    def lag(self) -> int:
        return sum(each.lag for each in self.queues)


@dataclass(frozen=True, slots=True)
class OffsetChange:
    """A group's position in a queue before and after a reset; `before` is None if it had none."""

    queue: MessageQueue
    before: QueueOffset | None
    after: QueueOffset


@dataclass(frozen=True, slots=True)
class AtTime:
    """A place in a queue: the first message stored at or after this wall time."""

    millis: Millis


@dataclass(frozen=True, slots=True)
class AtOffset:
    """A place in a queue: this offset, or the nearest one that exists."""

    offset: QueueOffset
