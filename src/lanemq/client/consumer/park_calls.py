"""What a queue's owner asks a LaneMQ broker about its parked lanes: values in, values or errors out."""

from typing import NamedTuple

from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.message import Message
from lanemq.core.consuming.shut_lanes import KeptLane, NextWork, ParkWork
from lanemq.core.parked_lane import LaneStatus
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ParkHeader, ParkNextResponse
from lanemq.wire.lane_bodies import LaneBody, NextBody, ParkAnswer, ParkBody, ParkedTable


class Stored(NamedTuple):
    """What the broker took of a request to park."""

    settled: int
    status: LaneStatus | None
    """None: it has no such lane."""
    remark: str


class ParkCalls:
    """Asks the master of a queue's broker, under the queue's lease where something changes."""

    def __init__(self, group: str, calls: ConsumerCalls) -> None:
        self._group = group
        self._calls = calls

    async def park(self, queue: MessageQueue, epoch: Epoch, work: ParkWork[Message]) -> Stored:
        failure = work.failure
        body = ParkBody(
            key=work.key,
            offsets=[message.queue_offset for message in work.messages],
            failed=failure is not None,
            again=work.failed_again,
            reason=failure.reason if failure is not None else "",
            attempts=failure.attempts if failure is not None else 0,
        )
        reply = await self._ask(queue, epoch, RequestCode.LANE_PARK, body.encode())
        answer = ParkAnswer.decode(reply.body)
        return Stored(answer.settled, _status(answer.status), answer.remark)

    async def next(self, queue: MessageQueue, epoch: Epoch, work: NextWork) -> tuple[LaneStatus | None, bytes]:
        """How the lane stands now, and the record of its next message; empty if none may run."""
        body = NextBody(key=work.key, done=work.done).encode()
        reply = await self._ask(queue, epoch, RequestCode.LANE_PARK_NEXT, body)
        return _status(ParkNextResponse.from_ext(reply.ext).lane_parked), reply.body

    async def redrive(self, queue: MessageQueue, key: str | None) -> None:
        """As a person would ask; `OffsetNotFound` if there is no such lane."""
        wanted = LaneBody(group=self._group, topic=queue.topic, queue_id=queue.queue_id, any_key=False, key=key)
        await self._send(queue, Command(RequestCode.LANE_PARKED_REDRIVE, 0, body=wanted.encode()))

    async def kept(self, queue: MessageQueue) -> tuple[KeptLane, ...]:
        """Every parked lane of the queue, as of now."""
        wanted = LaneBody(group=self._group, topic=queue.topic, queue_id=queue.queue_id)
        lanes: list[KeptLane] = []
        while True:
            reply = await self._send(queue, Command(RequestCode.LANE_PARKED, 0, body=wanted.encode()))
            table = ParkedTable.decode(reply.body)
            for each in table.lanes:
                lanes.append(KeptLane(each.key, _status(each.status) is LaneStatus.REDRIVING, each.through))
            wanted.after = table.more
            if not table.more:
                return tuple(lanes)

    async def _ask(self, queue: MessageQueue, epoch: Epoch, code: RequestCode, body: bytes) -> Command:
        header = ParkHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            lane_client=self._calls.client_id,
            lane_epoch=epoch,
        )
        return await self._send(queue, Command(code, 0, ext=header.to_ext(), body=body))

    async def _send(self, queue: MessageQueue, command: Command) -> Command:
        return await self._calls.ask(self._calls.address(queue.topic, queue.broker), command)


def _status(text: str) -> LaneStatus | None:
    return LaneStatus(text) if text else None
