"""A consumer at one moment, as people see it."""

from dataclasses import dataclass

from lanemq.client.consumer.member import Member
from lanemq.client.consumer.metrics import TopicCount
from lanemq.core.consuming.lane_queue import QueueView
from lanemq.core.consuming.runs import NO_LEASE_NEEDED
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, QueueOffset


@dataclass(frozen=True, slots=True)
class HeldQueue:
    """One held queue. `lease_ms`: for how long turns may still start unless the broker answers again;
    None where it needs no lease."""

    epoch: Epoch
    stage: str
    committed: QueueOffset | None
    lease_ms: int | None
    lanes: QueueView


@dataclass(frozen=True, slots=True)
class ConsumerSnapshot:
    """What a member holds, and what it has done since its start."""

    client_id: str
    group: str
    queues: dict[MessageQueue, HeldQueue]
    topics: dict[str, TopicCount]


def take_snapshot(member: Member) -> ConsumerSnapshot:
    """Consistent per queue, not across queues: nothing is stopped for it."""
    now = member.options.clock.now()
    queues = {}
    for holding in member.holdings:
        view = holding.station.scheduler.snapshot().get(holding.queue)
        if view is not None:
            left = None if view.usable_until == NO_LEASE_NEEDED else max(0, view.usable_until - now)
            committed = member.offsets.get(holding.queue)
            queues[holding.queue] = HeldQueue(holding.epoch, holding.life.stage.name, committed, left, view)
    return ConsumerSnapshot(member.client_id, member.options.group, queues, member.counts.total())
