"""One message given to a handler by a person's order (request 309), outside of every lane."""

import asyncio

from lanemq.client.codec import codec_named
from lanemq.client.consumer.attempts import Stop
from lanemq.client.consumer.member import Member
from lanemq.client.message import Message, Source, read_messages
from lanemq.core.consuming.runs import NO_LEASE_NEEDED, Gate, LaneRun, Plain, Suspend
from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.wire.bodies import ConsumeDirectlyResult
from lanemq.wire.record import RecordView

_RESULTS = {Plain.COMMIT: "CR_COMMIT", Plain.ROLL_BACK: "CR_ROLLBACK", Plain.FAILED: "CR_LATER"}


async def consume_directly(member: Member, body: bytes) -> ConsumeDirectlyResult:
    """Calls the handler of the message's topic and says how it went; offsets and lanes are left alone."""
    record = RecordView(body)
    queue = MessageQueue(record.topic, "", record.queue_id)
    (message,) = read_messages(Source(queue, codec_named(member.options.codec), Epoch(0)), body)
    station = member.stations.get(message.topic)
    if station is None:
        raise LaneError(f"no handler for topic {message.topic!r} in group {member.options.group!r}")
    run = LaneRun(queue, message.key, (message,), 1, 0, Gate(NO_LEASE_NEEDED), NO_LEASE_NEEDED)
    began = member.options.clock.now()
    if station.plan.async_handler is not None:
        stop = await station.plan.async_handler((message,), run)
    elif station.plan.handler is not None:
        stop = await asyncio.to_thread(station.plan.handler, (message,), run)
    else:
        raise LaneError(f"topic {message.topic!r} is read by an iterator, which takes messages in order only")
    spent = member.options.clock.now() - began
    return _result(stop, message, spent, ordered=station.plan.ordered)


def _result(stop: Stop | None, message: Message, spent: int, *, ordered: bool) -> ConsumeDirectlyResult:
    result, remark = "CR_SUCCESS", ""
    if stop is not None and stop.error is not None:
        result, remark = "CR_THROW_EXCEPTION", f"{message}: {stop.error!r}"
    elif stop is not None and isinstance(stop.outcome, Suspend):
        result = "CR_LATER"
    elif stop is not None:
        result = _RESULTS.get(stop.outcome, "CR_SUCCESS") if isinstance(stop.outcome, Plain) else result
    return ConsumeDirectlyResult(consume_result=result, remark=remark, order=ordered, spent_time_mills=spent)
