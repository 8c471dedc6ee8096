"""A group's progress in its queues: offset, lag in messages and in time, owner and lease."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.admin.views import GroupDescription, GroupQueue, LeaseView
from lanemq.model.errors import BrokerBusy
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, to_millis

QueuePosition: TypeAlias = tuple[MessageQueue, int]
"""A queue and an offset in it."""


@dataclass(frozen=True, slots=True)
class QueueBacklog:
    """A group's progress in one queue."""

    at: GroupQueue
    lag_ms: int | None
    """Age of the oldest unfinished message; None if there is none, or if `age_unknown`."""
    lease_ms: int | None
    """Time left of the owner's lease; None if the queue has no owner."""
    age_unknown: bool = False
    """Whether the broker could not read the oldest unfinished message, because it rebuilds its index."""
    backlog_ms: int | None = None
    """How late the queue is without keys that are held: the age of the message from which on as many are stored as are
    not finished. None if `lag_ms` is the same, or if it is not known."""

    @property
    def worth_showing(self) -> bool:
        """False for a retry topic that was never used."""
        return self.at.end > 0 or not self.at.queue.topic.startswith(RETRY_PREFIX)

    def document(self) -> dict[str, object]:
        return {
            "topic": self.at.queue.topic,
            "broker": self.at.queue.broker,
            "queue": self.at.queue.queue_id,
            "offset": self.at.offset,
            "end": self.at.end,
            "lag": self.at.lag,
            "lag_ms": self.lag_ms,
            "owner": self.at.owner,
            "epoch": self.at.epoch,
            "lease_ms": self.lease_ms,
        }


def queue_progress(
    group: GroupDescription, leases: Mapping[MessageQueue, LeaseView], server: str, wall: Millis
) -> Iterator[QueueBacklog]:
    """The progress in every queue of the group, sorted.

    The broker does not report the age of the oldest unfinished message, so that message is read in each queue that is
    behind.
    """
    times = store_times({(at.queue, at.offset): at.end for at in group.queues if at.lag > 0}, server)
    for at in group.queues:
        lease = leases.get(at.queue)
        yield progress_at(at, times, None if lease is None else to_millis(lease.remaining), wall)


def progress_at(
    at: GroupQueue, stored: Mapping[QueuePosition, int | None], lease_ms: int | None, wall: Millis
) -> QueueBacklog:
    """The progress in one queue; `stored` has the answers of `store_times`."""
    time = stored.get((at.queue, at.offset), NO_MESSAGE)
    if time is None:
        return QueueBacklog(at, None, lease_ms, age_unknown=True)
    backlog = stored.get(backlog_start(at))
    return QueueBacklog(
        at,
        _age(time, wall),
        lease_ms,
        backlog_ms=None if backlog is None else _age(backlog, wall),
    )


def _age(stored: int, wall: Millis) -> int | None:
    return None if stored == NO_MESSAGE else max(0, wall - stored)


def backlog_start(at: GroupQueue) -> QueuePosition:
    """From where on as many messages are stored as the group has not finished."""
    return at.queue, at.end - at.lag


NO_MESSAGE = -1
"""The store time for a position after which nothing is kept."""


def store_times(behind: Mapping[QueuePosition, int], server: str) -> dict[QueuePosition, int | None]:
    """When the first message from each position on was stored. `behind` has the end of each queue by position.

    None is a time that the broker does not know while it rebuilds the index of that message. It answers only after two
    seconds then, so no further queue of that broker is asked.
    """
    by_topic: dict[str, list[QueuePosition]] = {}
    for position in behind:
        by_topic.setdefault(position[0].topic, []).append(position)
    times: dict[QueuePosition, int | None] = {}
    busy: set[str] = set()
    for topic, positions in by_topic.items():
        with TopicReader(server, topic) as reader:
            for queue, offset in positions:
                stored = None
                if queue.broker not in busy:
                    try:
                        first = reader.first(queue, offset, behind[queue, offset])
                        stored = NO_MESSAGE if first is None else first.record.store_timestamp
                    except BrokerBusy:
                        busy.add(queue.broker)
                times[queue, offset] = stored
    return times
