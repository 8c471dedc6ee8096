"""Sets lanes aside at the broker and fetches them again: the requests that `core/consuming/lanes_at_broker` asks for.

One loop for all queues. It is woken when a lane is parked or set aside, when a message of such a lane arrives, when its
backoff ends and when its messages are done. It also looks every second, for requests that are to be repeated.

A message counts as finished only after the broker has confirmed it. A broker that cannot park (Apache RocketMQ) is
never asked; there a parked lane stays in memory, and a log line says so.
"""

import asyncio
import contextlib
import itertools
from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from lanemq.background_log import ClientLog
from lanemq.client.consumer.calls import ConsumerCalls
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, Assignment
from lanemq.client.message import Message, read_messages
from lanemq.core.consuming.lanes_at_broker import (
    LaneRequest,
    LanesAtBroker,
    NextRequest,
    ParkedAtBroker,
    ParkRequest,
    RedriveRequest,
)
from lanemq.core.lane_status import LaneStatus
from lanemq.history import Place
from lanemq.model.errors import LaneError, OffsetNotFound, ProtocolError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.headers import ParkHeader, ParkNextResponse
from lanemq.wire.lane_bodies import LaneBody, NextBody, NextOffsets, ParkAnswer, ParkBody, ParkedTable

log = ClientLog(__name__)

R = TypeVar("R")

LOOK_EVERY_MS = 1_000
NO_ANSWER_PAUSE = Millis(1_000)
"""Pause after a request that failed: the broker is away, or the lease was lost, which its renewal will show."""
FULL_PAUSE = Millis(30_000)
"""Pause after the broker did not take everything; its limits may be raised, or lanes discarded, in the meantime."""
MAX_UNDER_WAY = 32
"""Requests under way at once; ten thousand lanes may fail in the same second."""
FLUSH_SECONDS = 3.0
"""How long a queue that leaves waits for its parked lanes; the next owner repeats what is not stored by then."""
STAYS_HERE = "its broker stores no parked lanes: they stay in memory, hold the commit, and a new owner tries them again"


class LaneParker:
    """The parked lanes of one consumer."""

    def __init__(self, options: ConsumerOptions, calls: ConsumerCalls, assignment: Assignment) -> None:
        self._options = options
        self._clock = options.clock
        self._calls = ParkCalls(options.group, calls)
        self._assignment = assignment
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._room = asyncio.Semaphore(MAX_UNDER_WAY)
        self._under_way: dict[MessageQueue, set[asyncio.Task[None]]] = {}
        # Queues whose parked lanes an operator changed, with the new version.
        self._changed: dict[MessageQueue, int] = {}
        self._rate_limited = RateLimitedLog(log, options.clock)

    def wake(self) -> None:
        """Makes the loop look for requests; may be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the lanes are left to the next owner
            self._loop.call_soon_threadsafe(self._woken.set)

    async def run(self) -> None:
        """Sends requests until cancelled; repeats those that fail."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._woken.clear()
                for assigned in self._assignment:
                    self._begin(assigned, tasks)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_MS / 1000):
                        await self._woken.wait()

    async def parked_at_broker(self, queue: MessageQueue) -> tuple[ParkedAtBroker, ...]:
        """The queue's parked lanes, which its owner must know before it runs anything."""
        return await self._calls.parked(queue)

    def renewed(self, assigned: AssignedQueue, serial: int) -> None:
        """Takes the version of the parked lanes from a renewal; a new one means that an operator changed them."""
        if serial != assigned.parked_serial and assigned.keeps_parked:
            self._changed[assigned.queue] = serial
            self._woken.set()

    async def flush(self, assigned: AssignedQueue) -> None:
        """Sends all requests of a queue that leaves, so that the next owner repeats nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                while not assigned.released:
                    requests = self._requests(assigned)
                    if requests:
                        await asyncio.gather(*(self._send(assigned, each) for each in requests))
                    elif under_way := self._under_way.get(assigned.queue):
                        await asyncio.wait(set(under_way))
                    else:
                        return

    async def report_done(self, assigned: AssignedQueue, below: int) -> None:
        """Reports what is done of the lanes at the broker, so that the member does not get it again after a reset.

        Only `below` the offset to which the group was reset: what comes after it is to run again.

        Gives up after `FLUSH_SECONDS`, or if the broker does not answer: then those messages run again.
        """
        if not assigned.keeps_parked:
            return
        reports = _lanes(assigned, lambda lanes: lanes.last_reports(below)) or []
        with contextlib.suppress(TimeoutError, LaneError):
            async with asyncio.timeout(FLUSH_SECONDS):
                for report in reports:
                    await self._calls.next(assigned.queue, assigned.epoch, report)

    def _begin(self, assigned: AssignedQueue, tasks: asyncio.TaskGroup) -> None:
        serial = self._changed.pop(assigned.queue, None)
        if serial is not None:
            self._follow(assigned, tasks.create_task(self._reconcile(assigned, serial)))
        for request in self._requests(assigned):
            self._follow(assigned, tasks.create_task(self._send(assigned, request)))

    def _follow(self, assigned: AssignedQueue, task: asyncio.Task[None]) -> None:
        under_way = self._under_way.setdefault(assigned.queue, set())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    async def _reconcile(self, assigned: AssignedQueue, serial: int) -> None:
        """Reads the broker's parked lanes after an operator changed them."""
        known = _lanes(assigned, lambda lanes: lanes.at_broker()) or {}
        try:
            at_broker = {lane.key: lane for lane in await self._calls.parked(assigned.queue)}
        except (LaneError, ProtocolError) as error:  # the next renewal asks again
            self._rate_limited.failed(str(assigned), f"parked lanes of {assigned} cannot be read, trying again", error)
            return
        if not assigned.released:
            assigned.parked_serial = serial
            _lanes(assigned, lambda lanes: lanes.reconcile(at_broker, known))
            self._woken.set()

    def _requests(self, assigned: AssignedQueue) -> list[LaneRequest[Message]]:
        if assigned.released or assigned.moving is not None:
            return []
        now = self._clock.now()
        if not assigned.keeps_parked:
            if _lanes(assigned, _take_news):
                self._rate_limited.warn(str(assigned), f"{assigned}: {STAYS_HERE}")
            return []
        return _lanes(assigned, lambda lanes: lanes.requests(now=now)) or []

    async def _send(self, assigned: AssignedQueue, request: LaneRequest[Message]) -> None:
        try:
            async with self._room:
                match request:
                    case ParkRequest():
                        await self._park(assigned, request)
                    case NextRequest():
                        await self._next(assigned, request)
                    case RedriveRequest():
                        await self._redrive(assigned, request)
        except (LaneError, ProtocolError) as error:
            self._failed(assigned, request, error)
        except Exception as error:
            log.exception("parked key %r of %s: the broker's answer makes no sense", request.key, assigned)
            self._failed(assigned, request, error)
        self._woken.set()

    async def _park(self, assigned: AssignedQueue, request: ParkRequest[Message]) -> None:
        answer = await self._calls.park(assigned.queue, assigned.epoch, request)
        if assigned.released:
            return
        status = _status(answer.status)
        self._record(assigned, request, answer.settled, status)
        if answer.settled < len(request.messages) and status is None and request.failure is None:
            pass  # the lane was emptied in between: its newer messages run
        elif answer.settled < len(request.messages):
            self._rate_limited.warn(
                str(assigned),
                f"key {request.key!r} of {assigned} stays in memory, holds the commit: {answer.remark}",
            )
        elif status is LaneStatus.PARKED and request.failure is not None:
            see = f"lanemq parked list --group {self._options.group}"
            log.warning("key %r of %s is parked at the broker, see `%s`", request.key, assigned, see)
        elif request.held and request.failed_again < 0:
            log.warning(
                "key %r of %s has many messages: the broker keeps them until it succeeds", request.key, assigned
            )
        now = self._clock.now()
        _lanes(
            assigned,
            lambda lanes: lanes.parked(request, answer.settled, status, now=now, pause=FULL_PAUSE),
        )

    async def _next(self, assigned: AssignedQueue, request: NextRequest) -> None:
        status, records = await self._calls.next(assigned.queue, assigned.epoch, request)
        if assigned.released:
            return
        source = assigned.source if request.may_repeat else assigned.source.of_parked_lane()
        messages = read_messages(source, records)
        if messages and self._options.history.on:
            first = self._place(assigned.queue, messages[0].queue_offset)
            self._options.history.redriven(first, request.key or "", messages[-1].queue_offset)
        if status is None:
            log.info("key %r of %s is no longer parked", request.key, assigned)
        _lanes(assigned, lambda lanes: lanes.next_given(request, messages, status))

    async def _redrive(self, assigned: AssignedQueue, request: RedriveRequest) -> None:
        try:
            await self._calls.redrive(assigned.queue, request.key)
        except OffsetNotFound:
            _lanes(assigned, lambda lanes: lanes.next_given(request, (), None))
        else:
            _lanes(assigned, lambda lanes: lanes.redrive_accepted(request))

    def _failed(self, assigned: AssignedQueue, request: LaneRequest[Message], error: Exception) -> None:
        self._rate_limited.failed(str(assigned), f"parked key {request.key!r} of {assigned}: trying again", error)
        now = self._clock.now()
        _lanes(assigned, lambda lanes: lanes.unanswered(request, now=now, pause=NO_ANSWER_PAUSE))

    def _record(
        self, assigned: AssignedQueue, request: ParkRequest[Message], settled: int, status: LaneStatus | None
    ) -> None:
        if self._options.history.on:
            again = [request.failed_again] if request.failed_again >= 0 and status is LaneStatus.PARKED else []
            for offset in (*again, *(message.queue_offset for message in request.messages[:settled])):
                self._options.history.parked(self._place(assigned.queue, offset), request.key or "")

    def _place(self, queue: MessageQueue, offset: int) -> Place:
        return Place(self._options.group, queue.topic, queue.queue_id, offset, queue.broker)


def _lanes(assigned: AssignedQueue, act: Callable[[LanesAtBroker[Message]], R]) -> R | None:
    """Asks or changes the lanes of a queue, under the scheduler's lock; None if the queue has left."""
    return assigned.scheduler.with_parked_lanes(assigned.queue, act)


def _take_news(lanes: LanesAtBroker[Message]) -> bool:
    news, lanes.news = lanes.news, False
    return news


class ParkCalls:
    """Requests about parked lanes to the master of a queue's broker, under the queue's lease where they change it."""

    def __init__(self, group: str, calls: ConsumerCalls) -> None:
        self._group = group
        self._calls = calls

    async def park(self, queue: MessageQueue, epoch: Epoch, request: ParkRequest[Message]) -> ParkAnswer:
        failure = request.failure
        body = ParkBody(
            key=request.key,
            offsets=[message.queue_offset for message in request.messages],
            failed=failure is not None,
            held=request.held,
            again=request.failed_again,
            reason=failure.reason if failure is not None else "",
            attempts=failure.attempts if failure is not None else 0,
        )
        reply = await self._ask(queue, epoch, RequestCode.LANE_PARK, body.encode())
        return ParkAnswer.decode(reply.body)

    async def next(self, queue: MessageQueue, epoch: Epoch, request: NextRequest) -> tuple[LaneStatus | None, bytes]:
        """The lane's status and the records of its next messages; empty if none may run."""
        body = NextBody(key=request.key, done=request.done, wanted=request.wanted).encode()
        reply = await self._ask(queue, epoch, RequestCode.LANE_PARK_NEXT, body)
        status = _status(ParkNextResponse.from_ext(reply.ext).lane_parked)
        if self._calls.coordination.address is None or not reply.body:
            return status, reply.body
        return await self._read(queue, epoch, request, status, NextOffsets.decode(reply.body).offsets)

    async def _read(
        self, queue: MessageQueue, epoch: Epoch, request: NextRequest, status: LaneStatus | None, offsets: list[int]
    ) -> tuple[LaneStatus | None, bytes]:
        """Reads the messages of a lane at their broker. What the broker has deleted is lost, with an error."""
        found = await asyncio.gather(*(self._calls.record(queue, QueueOffset(offset)) for offset in offsets))
        there = list(itertools.takewhile(bool, found))
        if there or not offsets:
            return status, b"".join(there)
        log.error("key %r of %s: offset %d was deleted by its broker and is lost", request.key, queue, offsets[0])
        return await self.next(queue, epoch, replace(request, done=offsets[0]))

    async def redrive(self, queue: MessageQueue, key: str | None) -> None:
        """Redrives a lane as an operator would; raises `OffsetNotFound` if there is no such lane."""
        wanted = self._named(queue)
        wanted.any_key, wanted.key = False, key
        await self._send(queue, Command(RequestCode.LANE_PARKED_REDRIVE, 0, body=wanted.encode()))

    async def parked(self, queue: MessageQueue) -> tuple[ParkedAtBroker, ...]:
        """All parked lanes of the queue."""
        wanted = self._named(queue)
        lanes: list[ParkedAtBroker] = []
        while True:
            reply = await self._send(queue, Command(RequestCode.LANE_PARKED, 0, body=wanted.encode()))
            table = ParkedTable.decode(reply.body)
            for each in table.lanes:
                status = LaneStatus(each.status)
                lanes.append(ParkedAtBroker(each.key, status, each.through, each.first, each.attempts))
            wanted.after = table.more
            if not table.more:
                return tuple(lanes)

    def _named(self, queue: MessageQueue) -> LaneBody:
        return LaneBody(group=self._group, topic=queue.topic, broker=queue.broker, queue_id=queue.queue_id)

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


def _status(text: str) -> LaneStatus | None:
    return LaneStatus(text) if text else None
