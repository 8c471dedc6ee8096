"""What several handlers ask or do about groups."""

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from lanemq.broker.context import GroupContext
from lanemq.broker.dispatch import answer, answer_code, answer_error
from lanemq.core.brokering.lock_table import ForgottenLeases, Verdict
from lanemq.core.brokering.members.group import ConnectionId
from lanemq.core.brokering.members.lost_members import LostFilter
from lanemq.core.brokering.progress_table import Forgotten
from lanemq.core.brokering.quotas import Quota
from lanemq.model.errors import BrokerRefused, StorageError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.net.serving.peer import Peer
from lanemq.wire.codes import ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import NextOffsets
from lanemq.wire.lane_fields import REPORTED

MAX_COPIED_BYTES = 1024 * 1024
"""Of copied messages in one answer, unless the first one is larger."""


class Claim(Protocol):
    """The header fields by which a LaneMQ client names its lease; both are None from a stock client."""

    @property
    def lane_client(self) -> str | None: ...

    @property
    def lane_epoch(self) -> int | None: ...


def use_groups(context: GroupContext, peer: Peer, request: Command, groups: Collection[str]) -> None:
    """Note that groups are used; raises if one of them is not served here, or if the client uses too many."""
    for group in groups:
        context.admit(group)
    context.charges.use_groups(peer, request, groups)


def ownership(context: GroupContext, peer: Peer, group: str, queue: MessageQueue, claim: Claim) -> Verdict:
    """Whether the sender of a request owns the queue.

    A LaneMQ client names its lease in the request; a stock client is known by the heartbeat of its connection.
    """
    owner = claim.lane_client or context.members.client_of(ConnectionId(peer.number)) or ""
    epoch = None if claim.lane_epoch is None else Epoch(claim.lane_epoch)
    return context.locks.verdict(group, queue, owner, epoch, now=context.clock.now())


def is_reported(context: GroupContext, group: str) -> bool:
    """Whether the group's offsets come from a program that is no member, such as a Spark query."""
    settings = context.groups.get(group)
    return settings is not None and REPORTED in settings.attributes


def is_consumed(context: GroupContext, group: str) -> bool:
    """Whether the group has members, or has what only members leave behind."""
    if is_reported(context, group):
        return False
    return bool(context.members.members(group)) or context.locks.has_owner(group) or context.progress.has_group(group)


def members_changed(context: GroupContext, groups: Collection[str], given_up: Collection[LostFilter] = ()) -> None:
    """Record what the members of changed groups select, and which lost members are given up, then notify them."""
    for group in groups if context.recording.on else ():
        lost = {each.topic: each for each in given_up if each.group == group}
        context.recording.selected(group, context.members.selections(group), context.queues, lost)
    context.notices.group_changed(groups)


def max_retries(context: GroupContext, group: str, requested: int | None) -> int | None:
    """How often a group's message is retried: as the request says, else as the group's settings say."""
    if requested is not None and requested >= 0:
        return requested
    settings = context.groups.get(group)
    return None if settings is None else settings.retry_max_times


def free_progress(context: GroupContext, forgotten: Forgotten) -> None:
    """Free the memory of the progress of a deleted group or topic, and what it was charged with."""
    context.charges.shrink(Quota.OFFSETS, forgotten.groups)
    context.slices.begin_later(forgotten.steps)


def free_leases(context: GroupContext, forgotten: ForgottenLeases) -> Epoch:
    """Free the memory of the leases of a deleted group or topic, and what they were charged with.

    Returns the floor of the epochs, which must be saved before their rows are deleted.
    """
    context.charges.shrink(Quota.LEASES, forgotten.groups)
    if context.recording.on:  # at once: in the history, the end of a lease is before the next owner's
        context.recording.withdrawn(row for row in forgotten.steps if row is not None)
    else:
        context.slices.begin_later(forgotten.steps)
    return context.locks.floor


def relay(
    context: GroupContext,
    peer: Peer,
    request: Command,
    member: tuple[str, str],
    ext: dict[str, str],
    body: bytes,
) -> None:
    """Pass a question on to a member, named by its group and client id, and its answer back."""
    group, client_id = member
    found = context.notices.peer_of(group, client_id)
    if found is None:
        raise BrokerRefused(ResponseCode.SYSTEM_ERROR, f"the consumer <{group}> <{client_id}> is not online")

    def answered(reply: Command | None) -> None:
        if reply is None:
            remark = f"consumer <{group}> <{client_id}> did not answer in time"
            answer_code(peer, request, ResponseCode.CONSUME_MSG_TIMEOUT, remark)
        else:
            answer_code(peer, request, reply.code, reply.remark or "", reply.ext, reply.body)

    context.notices.ask(found, request.code, ext, body, answered, now=context.clock.now())


def answer_offsets(
    peer: Peer,
    request: Command,
    offsets: Sequence[int],
    ext: Mapping[str, str],
    copied: Mapping[int, bytes],
    error: StorageError | None,
) -> None:
    """Answer with the offsets of messages that are at another broker, and with those that were copied from it.

    Ends before the copies become too large for an answer.
    """
    if error is not None:
        answer_error(peer, request, error)
        return
    answered, left = list[int](), MAX_COPIED_BYTES
    for offset in offsets:
        left -= len(copied.get(offset, b""))
        if left < 0 and answered:
            break
        answered.append(offset)
    body = NextOffsets(offsets=answered, copied={each: copied[each] for each in answered if each in copied})
    answer(peer, request, dict(ext), body.encode())
