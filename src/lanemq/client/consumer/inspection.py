"""What a running consumer reports about itself: snapshots for the user, and answers to the brokers' requests.

A broker sends its requests on the connection that the consumer opened. A request that cannot be answered gets an error
answer; nothing that a broker sends can stop the consumer.
"""

import asyncio
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from typing import Any, Protocol

from lanemq.background_log import ClientLog
from lanemq.client.codec import codec_named
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, Assignment
from lanemq.client.consumer.queues.heartbeat import PUSH, Heartbeat
from lanemq.client.consumer.turns.counting import ConsumerCounts, TopicCount
from lanemq.client.consumer.turns.handler import Stop, describe
from lanemq.client.consumer.turns.subscription import ActiveSubscription
from lanemq.client.message import Message, MessageSource, read_messages
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, LaneRun, Plain, RunPermit, Suspend
from lanemq.core.consuming.views import LaneActivity, LaneView, QueueView
from lanemq.model.errors import LaneError, ProtocolError
from lanemq.model.figures import Distribution
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.net.calling.connection import Connection
from lanemq.wire.bodies import ConsumeDirectlyResult
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command, response_to
from lanemq.wire.lane_bodies import UNKNOWN, HeldLaneBody, HeldLanesBody, LaneStateAnswer, LaneStateBody
from lanemq.wire.lane_fields import LANE_CLIENTS, LANE_HELD, LANE_STATE
from lanemq.wire.record import RecordView
from lanemq.wire.stats_bodies import (
    ConsumerRunningInfo,
    ConsumerStatusBody,
    ConsumeStatus,
    ProcessQueueInfo,
    ResetOffsetBody,
)

log = ClientLog(__name__)

MEBIBYTE = 1024 * 1024
MAX_HELD_LANES = 200
"""Held lanes in one answer. More would make the answer slow, and no person reads them."""

_RESULTS = {Plain.COMMIT: "CR_COMMIT", Plain.ROLL_BACK: "CR_ROLLBACK", Plain.FAILED: "CR_LATER"}


class Member(Protocol):
    """A running consumer, as this module sees it; `ConsumerEngine` is one."""

    options: ConsumerOptions
    client_id: str
    assignment: Assignment
    subscriptions: dict[str, ActiveSubscription]
    counts: ConsumerCounts
    heartbeat: Heartbeat

    def rebalance(self) -> None:
        """Starts a rebalance round."""
        ...

    def move(self, assigned: AssignedQueue, offset: QueueOffset) -> None:
        """Continues an assigned queue at another offset."""
        ...

    def spawn(self, work: Coroutine[Any, Any, None]) -> None:
        """Runs a coroutine that ends with the consumer."""
        ...


# snapshots


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """One assigned queue in a snapshot."""

    epoch: Epoch
    stage: str
    committed: QueueOffset | None
    lease: float | None
    """Seconds for which turns may still start unless the broker answers again; None if the queue needs no lease."""
    lanes: QueueView


@dataclass(frozen=True, slots=True)
class ConsumerSnapshot:
    """A consumer at one moment: its assigned queues, and what it has done since its start."""

    client_id: str
    group: str
    queues: dict[MessageQueue, QueueSnapshot]
    topics: dict[str, TopicCount]
    turn_times: dict[str, Distribution]
    """How long turns took, by topic."""


def take_snapshot(member: Member) -> ConsumerSnapshot:
    """A snapshot that is consistent per queue, not across queues: nothing is paused for it.

    In a signal handler that has interrupted a call of this consumer, it may have no queues.
    """
    now = member.options.clock.now()
    queues = {}
    for assigned in member.assignment:
        view = assigned.scheduler.view(assigned.queue)
        if view is not None:
            left = None if view.usable_until == NO_LEASE_NEEDED else max(0, view.usable_until - now) / 1000
            stage, known = assigned.lifecycle.stage.name, assigned.confirmed
            offset = None if known is None else known.offset
            queues[assigned.queue] = QueueSnapshot(assigned.epoch, stage, offset, left, view)
    return ConsumerSnapshot(
        member.client_id, member.options.group, queues, member.counts.total(), member.counts.turn_times()
    )


# requests of brokers


def answer_broker(member: Member, connection: Connection, request: Command) -> None:
    """Answers a request that a broker sent to the consumer."""
    if request.code == RequestCode.CONSUME_MESSAGE_DIRECTLY:
        member.spawn(_answer_directly(member, connection, request))
        return
    handler = _HANDLERS.get(request.code)
    if handler is None:
        remark = f"request {request.code} is not known to this consumer"
        _answer(connection, request, response_to(request, ResponseCode.REQUEST_CODE_NOT_SUPPORTED, remark=remark))
        return
    try:
        body = handler(member, request)
    except (LaneError, ProtocolError) as error:
        log.warning("request %d from %s refused: %s", request.code, connection.address, error)
        _answer(connection, request, response_to(request, ResponseCode.SYSTEM_ERROR, remark=str(error)))
        return
    _answer(connection, request, response_to(request, body=body))


def _members_changed(member: Member, request: Command) -> bytes:
    member.rebalance()
    return b""


def _reset(member: Member, request: Command) -> bytes:
    """Moves assigned queues after an operator reset the group."""
    for queue, offset in ResetOffsetBody.decode(request.body).offset_table.items():
        assigned = member.assignment.get(queue)
        if assigned is not None:
            member.move(assigned, QueueOffset(offset))
    return b""


def _status(member: Member, request: Command) -> bytes:
    topic = request.ext.get("topic", "")
    offsets = {
        assigned.queue: assigned.progress().offset
        for assigned in member.assignment
        if topic in ("", assigned.queue.topic)
    }
    return ConsumerStatusBody(message_queue_table=dict(offsets)).encode()


_HANDLERS: dict[int, Callable[[Member, Command], bytes]] = {
    RequestCode.NOTIFY_CONSUMER_IDS_CHANGED: _members_changed,
    RequestCode.RESET_CONSUMER_CLIENT_OFFSET: _reset,
    RequestCode.GET_CONSUMER_STATUS_FROM_CLIENT: _status,
    RequestCode.GET_CONSUMER_RUNNING_INFO: lambda member, request: _running_info(member, request).encode(),
    RequestCode.LANE_STATE: lambda member, request: lane_state(member, request.body).encode(),
    RequestCode.LANE_HELD: lambda member, request: held_lanes(member).encode(),
}


async def _answer_directly(member: Member, connection: Connection, request: Command) -> None:
    try:
        result = await consume_directly(member, request.body)
    except (LaneError, ProtocolError) as error:
        _answer(connection, request, response_to(request, ResponseCode.SYSTEM_ERROR, remark=str(error)))
        return
    _answer(connection, request, response_to(request, body=result.encode()))


def _answer(connection: Connection, request: Command, response: Command) -> None:
    if not request.is_oneway:
        connection.reply(response)


def _running_info(member: Member, request: Command) -> ConsumerRunningInfo:
    """Request 307. Its fields may ask for more: an Apache broker passes no other question on to a member."""
    info = running_info(member)
    if LANE_HELD in request.ext:
        info.properties[LANE_HELD] = held_lanes(member).encode().decode()
    clients = next((active.scheduler.clients() for active in member.subscriptions.values()), None)
    if clients is not None and LANE_HELD in request.ext:
        info.properties[LANE_CLIENTS] = clients.encode().decode()
    if LANE_STATE in request.ext:
        info.properties[LANE_STATE] = lane_state(member, request.body).encode().decode()
    return info


def running_info(member: Member) -> ConsumerRunningInfo:
    """What the consumer is doing, in RocketMQ's form (request 307), for its tools and the dashboard."""
    options = member.options
    subscriptions = [active.subscription for active in member.subscriptions.values()]
    times = member.counts.turn_times()
    return ConsumerRunningInfo(
        properties={
            "PROP_NAMESERVER_ADDR": options.servers,
            "PROP_CONSUME_TYPE": PUSH,
            "PROP_CONSUMEORDERLY": str(all(each.ordered for each in subscriptions)).lower(),
            "PROP_THREADPOOL_CORE_SIZE": str(sum(each.workers for each in subscriptions)),
        },
        subscription_set=list(member.heartbeat.described()),
        mq_table={assigned.queue: _queue_info(assigned, options.clock.now()) for assigned in member.assignment},
        status_table={
            topic: ConsumeStatus(consume_failed_msgs=count.failed, consume_rt=_mean_ms(times.get(topic)))
            for topic, count in member.counts.total().items()
        },
    )


def _mean_ms(times: Distribution | None) -> float:
    return 1000 * times.sum / times.count if times is not None and times.count else 0.0


def _queue_info(assigned: AssignedQueue, now: int) -> ProcessQueueInfo:
    view = assigned.scheduler.view(assigned.queue)
    if view is None:
        return ProcessQueueInfo(droped=True)
    return ProcessQueueInfo(
        cached_msg_count=view.cached.count,
        cached_msg_min_offset=view.committable,
        cached_msg_max_offset=view.next_offset,
        cached_msg_size_in_mib=view.cached.bytes // MEBIBYTE,
        commit_offset=view.committable,
        locked=view.usable_until != NO_LEASE_NEEDED and now < view.usable_until,
        try_unlock_times=assigned.lifecycle.late,
        last_pull_timestamp=assigned.last_pull,
    )


def lane_state(member: Member, body: bytes) -> LaneStateAnswer:
    """What a lane is doing and what it waits for (LANE_STATE); an error if the queue is not assigned to this member."""
    asked = LaneStateBody.decode(body)
    queue = MessageQueue(asked.topic, asked.broker, asked.queue_id)
    assigned = member.assignment.get(queue)
    now = member.options.clock.now()
    view = None if assigned is None else _lane_view(assigned, asked.key, now)
    if assigned is None or view is None:
        raise LaneError(f"{queue} is not assigned to {member.client_id}")
    until = assigned.usable_until
    answer = _lane_answer(view, now, UNKNOWN if until == NO_LEASE_NEEDED else max(0, until - now))
    answer.client = assigned.scheduler.client_of(queue, asked.key)
    return answer


def held_lanes(member: Member) -> HeldLanesBody:
    """The lanes that wait in this member after a failure (LANE_HELD): those that are parked in its memory, then those
    that are held, the one that is tried next first. Lanes that are parked at a broker are not among them."""
    held = [
        (until, assigned, key)
        for assigned in member.assignment
        if (view := assigned.scheduler.view(assigned.queue)) is not None
        for key, until in (*((key, -1) for key in view.parked_here), *view.held)
    ]
    held.sort(key=lambda each: each[0])
    body = HeldLanesBody(more=max(0, len(held) - MAX_HELD_LANES))
    now = member.options.clock.now()
    for _, assigned, key in held[:MAX_HELD_LANES]:
        queue, lane = assigned.queue, _lane_view(assigned, key, now)
        if lane is not None and (lane.until is not None or lane.state is LaneActivity.PARKED):
            state = _lane_answer(lane, now, UNKNOWN)
            body.lanes.append(  # otherwise its next attempt began in between
                HeldLaneBody(topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id, key=key, state=state)
            )
    return body


def _lane_view(assigned: AssignedQueue, key: str | None, now: Millis) -> LaneView | None:
    with assigned.scheduler as lanes:
        return lanes.view_lane(assigned.queue, key, now=now)


def _lane_answer(view: LaneView, now: Millis, lease: int) -> LaneStateAnswer:
    failing = view.failing
    return LaneStateAnswer(
        state=view.state.value,
        order=view.order.value,
        head=UNKNOWN if view.head is None else view.head,
        attempts=view.attempts,
        retry_in=UNKNOWN if view.until is None else max(0, view.until - now),
        running_for=UNKNOWN if view.began is None else max(0, now - view.began),
        blocked_for=UNKNOWN if failing is None else max(0, now - failing.since),
        reason="" if failing is None else failing.reason,
        waiting=view.waiting,
        committable=view.committable,
        next_offset=view.next_offset,
        lease=lease,
    )


async def consume_directly(member: Member, body: bytes) -> ConsumeDirectlyResult:
    """Calls the handler with one message for an operator (request 309) and reports the result.

    The message runs outside its lane, and its offset is not committed.
    """
    record = RecordView(body)
    queue = MessageQueue(record.topic, "", record.queue_id)
    (message,) = read_messages(MessageSource(queue, codec_named(member.options.codec), Epoch(0)), body)
    active = member.subscriptions.get(message.topic)
    if active is None:
        raise LaneError(f"no handler for topic {message.topic!r} in group {member.options.group!r}")
    subscription = active.subscription
    run = LaneRun(queue, message.key, (message,), 1, 0, RunPermit(NO_LEASE_NEEDED), NO_LEASE_NEEDED)
    began = member.options.clock.now()
    if subscription.async_handler is not None:
        stop = await subscription.async_handler((message,), run)
    elif subscription.handler is not None:
        stop = await asyncio.to_thread(subscription.handler, (message,), run)
    else:
        raise LaneError(f"topic {message.topic!r} is read by an iterator, which takes messages in order only")
    spent = member.options.clock.now() - began
    return _directly_result(stop, message, spent, ordered=subscription.ordered)


def _directly_result(stop: Stop | None, message: Message, spent: int, *, ordered: bool) -> ConsumeDirectlyResult:
    result, remark = "CR_SUCCESS", ""
    if stop is not None and stop.error is not None:
        result, remark = "CR_THROW_EXCEPTION", f"{message}: {describe(stop.error)}"
    elif stop is not None and isinstance(stop.outcome, Suspend):
        result = "CR_LATER"
    elif stop is not None:
        result = _RESULTS.get(stop.outcome, "CR_SUCCESS") if isinstance(stop.outcome, Plain) else result
    return ConsumeDirectlyResult(consume_result=result, remark=remark, order=ordered, spent_time_mills=spent)
