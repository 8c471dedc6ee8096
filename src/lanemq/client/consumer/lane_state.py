"""Answering LANE_STATE: what a lane of this member is doing, and what it waits for."""

from lanemq.client.consumer.lane_trouble import LaneStatus
from lanemq.client.consumer.member import Member
from lanemq.core.consuming.runs import NO_LEASE_NEEDED
from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue
from lanemq.wire.lane_bodies import UNKNOWN, LaneStateAnswer, LaneStateBody


def lane_state(member: Member, body: bytes) -> LaneStateAnswer:
    """A snapshot of this moment; an error if the queue is not held here."""
    asked = LaneStateBody.decode(body)
    queue = MessageQueue(asked.topic, asked.broker, asked.queue_id)
    holding = member.holdings.get(queue)
    look = None if holding is None else holding.station.scheduler.look(queue, asked.key)
    if holding is None or look is None:
        raise LaneError(f"{member.client_id} does not hold {queue}")
    until = holding.usable_until
    return _answer(look, UNKNOWN if until == NO_LEASE_NEEDED else max(0, until - look.now))


def _answer(look: LaneStatus, lease: int) -> LaneStateAnswer:
    view, now, trouble = look.view, look.now, look.trouble
    return LaneStateAnswer(
        state=view.state.value,
        order=view.order.value,
        head=UNKNOWN if view.head is None else view.head,
        attempts=view.attempts,
        retry_in=UNKNOWN if view.until is None else max(0, view.until - now),
        running_for=UNKNOWN if look.began is None else max(0, now - look.began),
        blocked_for=UNKNOWN if trouble is None else max(0, now - trouble.since),
        reason="" if trouble is None else trouble.reason,
        waiting=view.waiting,
        committable=view.committable,
        next_offset=view.next_offset,
        lease=lease,
    )
