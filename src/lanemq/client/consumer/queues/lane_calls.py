"""A member's requests about lanes that are set aside at the broker, as calls that take and return values."""

import itertools
from dataclasses import replace

from lanemq.background_log import ClientLog
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.message import Message, find_key
from lanemq.core.consuming.lanes_aside import NextRequest, ParkedAtBroker, ParkRequest
from lanemq.core.lane_status import LaneStatus
from lanemq.model.errors import LogReplaced
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ParkHeader, ParkNextResponse
from lanemq.wire.lane_bodies import LaneBody, NextBody, NextOffsets, ParkAnswer, ParkBody, ParkedTable
from lanemq.wire.log_marks import log_mark

log = ClientLog(__name__)


class LaneCalls:
    """Requests about parked lanes to the queue's broker or coordinator, under its lease where they change it."""

    def __init__(self, group: str, calls: ConsumerCalls) -> None:
        self._group = group
        self._calls = calls

    async def park(self, queue: MessageQueue, epoch: Epoch, request: ParkRequest[Message]) -> ParkAnswer:
        failure = request.failure
        is_coordinated = self._calls.coordination.address is not None
        body = ParkBody(
            key=request.key,
            offsets=[message.queue_offset for message in request.messages],
            failed=failure is not None,
            held=request.held,
            again=request.failed_again,
            reason=failure.reason if failure is not None else "",
            attempts=failure.attempts if failure is not None else 0,
            last=log_mark(request.messages[-1].record) if is_coordinated and request.messages else None,
        )
        reply = await self._ask(queue, epoch, RequestCode.LANE_PARK, body.encode())
        return ParkAnswer.decode(reply.body)

    async def next(self, queue: MessageQueue, epoch: Epoch, request: NextRequest) -> tuple[LaneStatus | None, bytes]:
        """The lane's status and the records of its next messages; empty if none may run."""
        body = NextBody(key=request.key, done=request.done, wanted=request.wanted).encode()
        reply = await self._ask(queue, epoch, RequestCode.LANE_PARK_NEXT, body)
        status = lane_status(ParkNextResponse.from_ext(reply.ext).lane_parked)
        if self._calls.coordination.address is None or not reply.body:
            return status, reply.body
        return await self._read(queue, epoch, request, status, NextOffsets.decode(reply.body))

    async def _read(
        self, queue: MessageQueue, epoch: Epoch, request: NextRequest, status: LaneStatus | None, wanted: NextOffsets
    ) -> tuple[LaneStatus | None, bytes]:
        """Reads the messages of a lane at their broker, unless the coordinator has copied them.

        What the broker has deleted is lost, with an error.
        """
        offsets = wanted.offsets
        at_broker = await self._calls.records(queue, [offset for offset in offsets if offset not in wanted.copied])
        records = wanted.copied | at_broker
        there = [records[offset] for offset in itertools.takewhile(records.__contains__, offsets)]
        if any(find_key(record, 0) != request.key for record in there):
            raise LogReplaced(
                f"{queue} has messages of other keys at the offsets where key {request.key!r} was parked: its broker "
                f"lost the end of the log, or the topic was created anew: lanemq group compare {self._group}"
            )
        if there or not offsets:
            return status, b"".join(there)
        log.error("key %r of %s: offset %d was deleted by its broker and is lost", request.key, queue, offsets[0])
        return await self.next(queue, epoch, replace(request, done=offsets[0]))

    async def redrive(self, queue: MessageQueue, key: str | None) -> None:
        """Redrives a lane as an operator would; raises `OffsetNotFound` if there is no such lane."""
        wanted = self._of_queue(queue)
        wanted.any_key, wanted.key = False, key
        await self._send(queue, Command(RequestCode.LANE_PARKED_REDRIVE, 0, body=wanted.encode()))

    async def parked(self, queue: MessageQueue) -> tuple[ParkedAtBroker, ...]:
        """All parked lanes of the queue."""
        wanted = self._of_queue(queue)
        lanes: list[ParkedAtBroker] = []
        while True:
            reply = await self._send(queue, Command(RequestCode.LANE_PARKED, 0, body=wanted.encode()))
            table = ParkedTable.decode(reply.body)
            for each in table.lanes:
                status = LaneStatus(each.status)
                lanes.append(ParkedAtBroker(each.key, status, each.through, each.first, each.attempts, each.overtaken))
            wanted.after = table.more
            if not table.more:
                return tuple(lanes)

    def _of_queue(self, queue: MessageQueue) -> LaneBody:
        topic, broker, queue_id = queue
        return LaneBody(group=self._group, topic=topic, broker=broker, queue_id=queue_id)

    async def _ask(self, queue: MessageQueue, epoch: Epoch, code: RequestCode, body: bytes) -> Command:
        header = ParkHeader(
            consumer_group=self._group,
            topic=queue.topic,
            queue_id=queue.queue_id,
            broker_name=queue.broker,
            lane_client=self._calls.client_id,
            lane_epoch=epoch,
        )
        return await self._send(queue, Command(code, 0, ext=header.to_ext(), body=body))

    async def _send(self, queue: MessageQueue, command: Command) -> Command:
        return await self._calls.ask_coordinator(queue, command)


def lane_status(text: str) -> LaneStatus | None:
    return LaneStatus(text) if text else None
