"""What several handlers ask or do about groups."""

from collections.abc import Collection
from typing import Protocol

from lanemq.broker.context import BrokerContext
from lanemq.core.brokering.lock_table import ForgottenLeases, Verdict
from lanemq.core.brokering.lost_members import LostFilter
from lanemq.core.brokering.membership import ConnectionId
from lanemq.core.brokering.progress_table import Forgotten
from lanemq.core.brokering.quotas import Quota
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.net.peer import Peer


class Claim(Protocol):
    """The header fields by which a LaneMQ client names its lease; both are None from a stock client."""

    @property
    def lane_client(self) -> str | None: ...

    @property
    def lane_epoch(self) -> int | None: ...


class OfQueue(Protocol):
    """The header fields that name a queue of this broker."""

    @property
    def topic(self) -> str: ...

    @property
    def queue_id(self) -> int: ...


def queue_of(context: BrokerContext, header: OfQueue) -> MessageQueue:
    """The queue that a request names."""
    return MessageQueue(header.topic, context.options.name, header.queue_id)


def ownership(context: BrokerContext, peer: Peer, group: str, queue: MessageQueue, claim: Claim) -> Verdict:
    """Whether the sender of a request owns the queue.

    A LaneMQ client names its lease in the request; a stock client is known by the heartbeat of its connection.
    """
    owner = claim.lane_client or context.members.client_of(ConnectionId(peer.number)) or ""
    epoch = None if claim.lane_epoch is None else Epoch(claim.lane_epoch)
    return context.locks.verdict(group, queue, owner, epoch, now=context.clock.now())


def members_changed(context: BrokerContext, groups: Collection[str], given_up: Collection[LostFilter] = ()) -> None:
    """Record what the members of changed groups select, and which lost members are given up, then notify them."""
    for group in groups if context.recording.on else ():
        lost = {each.topic: each for each in given_up if each.group == group}
        context.recording.selected(group, context.members.selections(group), context.topics, lost)
    context.notices.group_changed(groups)


def max_retries(context: BrokerContext, group: str, requested: int | None) -> int | None:
    """How often a group's message is retried: as the request says, else as the group's settings say."""
    if requested is not None and requested >= 0:
        return requested
    settings = context.groups.get(group)
    return None if settings is None else settings.retry_max_times


def free_progress(context: BrokerContext, forgotten: Forgotten) -> None:
    """Free the memory of the progress of a deleted group or topic, and what it was charged with."""
    context.charges.shrink(Quota.OFFSETS, forgotten.groups)
    context.slices.begin_later(forgotten.steps)


def free_leases(context: BrokerContext, forgotten: ForgottenLeases) -> Epoch:
    """Free the memory of the leases of a deleted group or topic, and what they were charged with.

    Returns the floor of the epochs, which must be saved before their rows are deleted.
    """
    context.charges.shrink(Quota.LEASES, forgotten.groups)
    if context.recording.on:  # at once: in the history, the end of a lease is before the next owner's
        context.recording.withdrawn(row for row in forgotten.steps if row is not None)
    else:
        context.slices.begin_later(forgotten.steps)
    return context.locks.floor
