"""How far a group is behind: in messages, and in time.

A count alone says little: ten messages may be a second or a week. The age of the oldest message that is not done
is what people wait for, and the broker does not tell it, so that one message is read.
"""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from lanemq.cli.options import Failed
from lanemq.cli.reading import Reader
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.views import GroupDescription, GroupQueue, LeaseView
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis


def known_group(admin: Admin, name: str) -> GroupDescription:
    """The group, or an error: brokers describe groups they have never heard of as empty ones."""
    found = admin.describe_group(name)
    if not found.members and not found.queues and name not in admin.groups():
        raise Failed(f"group {name!r} is not known: no member is online and it has no offsets; see lanemq group list")
    return found


@dataclass(frozen=True, slots=True)
class Progress:
    """One queue of a group."""

    at: GroupQueue
    lag_ms: int | None
    """Age of the oldest message that is not done; None if all are."""
    lease_ms: int | None

    @property
    def worth_showing(self) -> bool:
        """A retry topic that was never used is noise."""
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


def progress_of(
    group: GroupDescription, leases: Mapping[MessageQueue, LeaseView], server: str, wall: Millis
) -> Iterator[Progress]:
    """Every queue of the group, sorted."""
    ages = _ages(group, server, wall)
    for at in group.queues:
        lease = leases.get(at.queue)
        yield Progress(at, ages.get(at.queue), lease.remaining_ms if lease is not None else None)


def _ages(group: GroupDescription, server: str, wall: Millis) -> dict[MessageQueue, int]:
    behind: dict[str, list[GroupQueue]] = defaultdict(list)
    for at in group.queues:
        if at.lag > 0:
            behind[at.queue.topic].append(at)
    ages: dict[MessageQueue, int] = {}
    for topic, queues in behind.items():
        with Reader(server, topic) as reader:
            for at in queues:
                oldest = next(reader.read(at.queue, at.offset, at.end), None)
                if oldest is not None:
                    ages[at.queue] = max(0, wall - oldest.record.store_timestamp)
    return ages
