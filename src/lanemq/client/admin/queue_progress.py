"""A group's progress in its queues: offset, lag in messages and in time, owner and lease."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lanemq.client.admin.topic_reader import TopicReader
from lanemq.client.admin.views import GroupDescription, GroupQueue, LeaseView
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis, to_millis


@dataclass(frozen=True, slots=True)
class QueueProgress:
    """A group's progress in one queue."""

    at: GroupQueue
    lag_ms: int | None
    """Age of the oldest unfinished message; None if there is none."""
    lease_ms: int | None
    """Time left of the owner's lease; None if the queue has no owner."""

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
) -> Iterator[QueueProgress]:
    """The progress in every queue of the group, sorted.

    The broker does not report the age of the oldest unfinished message, so that message is read in each queue that is
    behind.
    """
    ages = _ages(group, server, wall)
    for at in group.queues:
        lease = leases.get(at.queue)
        yield QueueProgress(at, ages.get(at.queue), to_millis(lease.remaining) if lease is not None else None)


def _ages(group: GroupDescription, server: str, wall: Millis) -> dict[MessageQueue, int]:
    behind: dict[str, list[GroupQueue]] = defaultdict(list)
    for at in group.queues:
        if at.lag > 0:
            behind[at.queue.topic].append(at)
    ages: dict[MessageQueue, int] = {}
    for topic, queues in behind.items():
        with TopicReader(server, topic) as reader:
            for at in queues:
                oldest = reader.first(at.queue, at.offset, at.end)
                if oldest is not None:
                    ages[at.queue] = max(0, wall - oldest.record.store_timestamp)
    return ages
