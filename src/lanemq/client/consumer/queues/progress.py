"""Reads where a queue starts, and tells its broker how far the handlers have come and which lanes are set aside.

The rules are in `core/consuming`: `LaneQueue.progress` is what may be committed, and `lanes_aside` says what must be
asked of the broker, or told to it, about lanes. This module sends the requests and hands their answers back.

- **Offsets.** Every second, each queue whose progress the broker has not confirmed is reported: its committable offset,
  and the finished ranges above it to brokers that store them (those that grant epochs). A broker without epochs gets an
  offset only while the queue's lease is valid here. In broadcasting each member keeps its own (`local_offsets`).
- **Lanes.** One loop for all queues. It is woken when a lane is parked or set aside, when a message of such a lane
  arrives, when its backoff ends and when its messages are done. It also looks every second, for requests that are to be
  repeated. A broker that cannot park (Apache RocketMQ) is never asked; there a parked lane stays in memory, and a log
  line says so.

While a queue moves to another offset (`AssignedQueue.moving_to`), nothing from before the move is reported.
"""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterable
from typing import Any, TypeAlias

from lanemq.background_log import ClientLog
from lanemq.client.consumer.calls import ConsumerCalls, Granted
from lanemq.client.consumer.options import ConsumerOptions, StartFrom
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue, Assignment, QueueReport, StartPosition
from lanemq.client.consumer.queues.lane_calls import LaneCalls, lane_status
from lanemq.client.consumer.queues.local_offsets import LocalOffsets, local_offsets
from lanemq.client.consumer.queues.read_log import FormerRead, LogComparison, ReadLog
from lanemq.client.consumer.turns.history import group_in_history
from lanemq.client.message import Message, read_messages
from lanemq.core.consuming.lane_queue import MemberProgress
from lanemq.core.consuming.lanes_aside import LaneAnswer, LaneRequest, LanesAside, NextRequest, ParkRequest
from lanemq.core.consuming.runs import Order
from lanemq.core.lane_status import LaneStatus
from lanemq.history import Place
from lanemq.model.errors import LaneError, LeaseLost, LogReplaced, OffsetNotFound, ProtocolError
from lanemq.model.names import RETRY_PREFIX
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, QueueOffset, to_millis
from lanemq.net.rate_limited_log import RateLimitedLog

log = ClientLog(__name__)

REPORT_AGAIN_MS = 5_000
"""Interval at which queues without a lease are reported although nothing changed, as RocketMQ's clients do.

A late commit of a former owner may have moved the offset back; without a lease the broker cannot refuse it."""
LOOK_EVERY_MS = 1_000
MAX_UNDER_WAY = 32
"""Requests about lanes under way at once; ten thousand lanes may fail in the same second."""
FLUSH_SECONDS = 3.0
"""How long a queue that leaves waits for its lanes; the next owner repeats what is not stored by then."""
STAYS_HERE = "its broker stores no parked lanes: they stay in memory, hold the commit, and a new owner tries them again"
NO_EPOCH = Epoch(0)
"""Of a queue without a lease, or of a broker without epochs."""

SentRequest: TypeAlias = tuple[LanesAside[Message], LaneRequest[Message]]


class QueueReporter:
    """The progress of one consumer in its queues, as its brokers know it."""

    def __init__(
        self,
        options: ConsumerOptions,
        calls: ConsumerCalls,
        assignment: Assignment,
        is_leased: Callable[[AssignedQueue], bool],
    ) -> None:
        """`is_leased`: whether a queue is this member's at this moment; if not, its lease is renewed soon."""
        self._options = options
        self._clock = options.clock
        self._calls = calls
        self._lane_calls = LaneCalls(options.group, calls)
        self._comparison = LogComparison(options.group, calls)
        self._assignment = assignment
        self._is_leased = is_leased
        self._local = local_offsets(options) if options.broadcasting else None
        self._loop = asyncio.get_running_loop()
        self._woken = asyncio.Event()
        self._room = asyncio.Semaphore(MAX_UNDER_WAY)
        self._rate_limited = RateLimitedLog(log, options.clock)

    # when a queue is assigned

    async def start_of(self, queue: MessageQueue, granted: Granted | None, order: Order) -> StartPosition:
        """The group's progress, or the start that the options name, and the lanes at the broker.

        Called under the lease: before it, the former owner could still commit, and messages that it finished would run
        again. The owner must know the queue's lanes before it runs anything.

        Raises if the broker cannot answer: a guess would skip messages or repeat all of them.
        """
        if granted is None:
            return StartPosition(MemberProgress(await self._start_offset(queue, NO_EPOCH)), ReadLog())
        offset = granted.offset
        if offset is None:
            offset = await self._start_offset(queue, granted.epoch)
        elif granted.moved is not None:  # nothing here is from before the reset: it is obeyed by starting there
            await self._calls.commit(queue, offset, granted.epoch)
        start = StartPosition(MemberProgress(offset, granted.finished), await self._read_log(queue, granted))
        if not granted.parked:
            return start
        if order is not Order.KEY:
            text = f"{queue} has parked lanes; without order by key their newer messages run"
            self._rate_limited.warn(str(queue), text)
            return start
        return start._replace(parked=await self._lane_calls.parked(queue), parked_serial=granted.parked)

    async def _read_log(self, queue: MessageQueue, granted: Granted) -> ReadLog:
        """What former owners have read, compared with the log, in a coordinated group; raises `LogReplaced`."""
        if self._calls.coordination.address is None or not granted.epoch:
            return ReadLog()
        return ReadLog(await self._comparison.former(queue))

    async def is_same_log(self, assigned: AssignedQueue) -> bool:
        """Whether the log of a queue is the one that was read; if not, the queue is given up.

        It is compared once at each master and after each lost connection.
        """
        log, master = assigned.read_log, self._calls.master(assigned.queue.topic, assigned.queue.broker)
        if log.is_other:
            return False
        if not log.is_compared or log.master == master:
            return True
        if log.read is not None and (other := await self._comparison.other(assigned.queue, log.read)) is not None:
            why = f"its broker has lost messages, among them offset {other.read.offset}"
            self._assignment.take_again(assigned, why)
            return False
        log.master = master
        return True

    async def _start_offset(self, queue: MessageQueue, epoch: Epoch) -> QueueOffset:
        if self._local is not None:
            known = self._local.load().get(queue)
        else:
            known = await self._calls.committed(queue)
        if known is not None and known >= 0:
            return known
        if queue.topic.startswith(RETRY_PREFIX) or self._options.start is StartFrom.FIRST:
            # A retry topic is never skipped: its messages were already delivered once.
            start = await self._calls.first_offset(queue)
            if epoch and self._calls.coordination.address is not None:
                await self._calls.commit(queue, start, epoch)  # without an offset, it keeps nothing of the queue's log
            return start
        return await self._begin_later(queue, epoch)

    async def _begin_later(self, queue: MessageQueue, epoch: Epoch) -> QueueOffset:
        """Commits where a new group starts, if that is not the queue's first message, before anything is read.

        Without it, the next owner or the next start of this member would find no offset as long as no message was
        finished. It would begin at the end again, and skip what was sent in between.
        """
        if isinstance(self._options.start, StartFrom):
            start, where = await self._calls.last_offset(queue), "at the end"
        else:
            time = to_millis(self._options.start.timestamp())
            start, where = await self._calls.offset_at(queue, time), "at the time it named"
        self._record_reset(queue, start, f"the group is new in this queue and begins {where}", epoch)
        if self._local is not None:
            self._local.save({queue: start})
        else:
            await self._calls.commit(queue, start, epoch)
        return start

    # offsets, while it is assigned

    def loops(self) -> tuple[Coroutine[Any, Any, None], ...]:
        """What runs until the consumer ends."""
        return self._report_offsets(), self._report_lanes()

    async def _report_offsets(self) -> None:
        """Reports offsets; what could not be reported is reported next time."""
        reported = self._clock.now()
        while True:
            await asyncio.sleep(self._options.commit_every)
            if self._local is None and self._clock.now() - reported >= REPORT_AGAIN_MS:
                reported = self._clock.now()
                for assigned in self._assignment:
                    if not assigned.epoch:
                        assigned.confirmed = None
            try:
                await self.commit_all()
            except LaneError as error:
                self._rate_limited.failed("offsets", "offsets could not be saved, trying again", error)

    async def commit_all(self) -> None:
        """Reports all queues that moved; a failure of one does not stop the others."""
        moved = [(each, report) for each in self._assignment if (report := each.unconfirmed()) is not None]
        if self._local is not None:
            self._save(self._local, moved)
        else:
            await asyncio.gather(*(self._try_commit(assigned, report) for assigned, report in moved))

    def report_again(self, broker: str) -> None:
        """Reports all offsets of a broker again after a lost connection.

        The broker may have crashed and lost its last commits; a queue without new messages would never be reported.
        An Apache broker may even have come back with an empty store.
        """
        for assigned in self._assignment:
            if broker in (assigned.queue.broker, assigned.coordinator):
                assigned.report_again()

    def _save(self, local: LocalOffsets, moved: Iterable[tuple[AssignedQueue, QueueReport]]) -> None:
        reports = dict(moved)
        if reports:
            local.save({assigned.queue: report.progress.offset for assigned, report in reports.items()})
        for assigned, report in reports.items():
            assigned.reported(report)

    async def _try_commit(self, assigned: AssignedQueue, report: QueueReport) -> None:
        try:
            await self._commit(assigned, report)
        except LeaseLost:
            pass  # `_commit` has dropped the queue
        except LaneError as error:
            text = f"offset of {assigned} could not be committed, trying again"
            self._rate_limited.failed(str(assigned), text, error)

    async def _commit(self, assigned: AssignedQueue, report: QueueReport) -> None:
        progress = report.progress
        if assigned.check_end and not await self._is_in_queue(assigned, progress.offset):
            return
        self._check_leased(assigned)
        epoch, history = assigned.epoch, self._options.history
        asked = history.now() if history.on else 0
        place = self._place(assigned.queue, progress.offset)
        try:
            taken = await self._calls.commit(assigned.queue, progress.offset, epoch, progress.finished, report.seen)
        except LeaseLost as error:
            if history.on:
                history.commit_refused(place, str(error), epoch=epoch, asked=asked)
            self._assignment.lose(assigned, f"the broker refused its offset: {error}")
            raise
        if history.on and taken:
            history.committed(place, epoch=epoch, asked=asked)
        assigned.reported(report)

    def _check_leased(self, assigned: AssignedQueue) -> None:
        """Raises if the queue may belong to another member by now, where the broker would not notice.

        A broker with epochs refuses the commit of a former owner. An Apache broker takes any commit: one of a member
        that was frozen would move the group back, to before what the new owner has finished.
        """
        if assigned.lease is not None and not assigned.epoch and not self._is_leased(assigned):
            raise LaneError(f"the lease of {assigned} must be renewed first: another member may own the queue")

    async def _is_in_queue(self, assigned: AssignedQueue, offset: QueueOffset) -> bool:
        """Whether the queue still reaches to the offset that is to be committed, at a broker that was away.

        One that comes back with an empty store accepts any offset, and the group would skip new messages up to it.
        """
        end = await self._calls.last_offset(assigned.queue)
        assigned.check_end = offset > end
        if assigned.check_end:
            self._rate_limited.warn(
                str(assigned),
                f"{assigned} ends at offset {end} now, before offset {offset}, up to which this group had read: "
                f"the broker has lost messages. The offset is not committed",
            )
        return not assigned.check_end

    # when it moves to another offset, and when it leaves

    async def move(self, assigned: AssignedQueue, offset: QueueOffset) -> None:
        """Continues at another offset, after a reset or because the broker has no such offset as was asked for.

        Running handlers end first: two turns of a key must never overlap. Nothing runs again before the broker has the
        new offset.
        """
        scheduler, queue = assigned.scheduler, assigned.queue
        assigned.moving_to = offset
        with scheduler as lanes:
            next_offset = lanes[queue].next_offset
            lanes.drain(queue, now=self._clock.now())
        log.warning("%s continues at offset %d instead of %s", queue, offset, next_offset)
        while not await scheduler.drained(queue, to_millis(self._options.hand_over_timeout)):
            log.warning("%s waits for its running handler before it moves to offset %d", queue, offset)
        await self._report_done(assigned, offset)
        if assigned.released:
            return
        await self._commit_move(assigned, offset, "the broker or a person named another offset")
        parked = await self._lane_calls.parked(queue) if assigned.keeps_parked else ()
        if not assigned.released:
            read_log = ReadLog(FormerRead() if assigned.read_log.is_compared else None)
            assigned.start_at(StartPosition(MemberProgress(offset), read_log, parked, assigned.parked_serial))
            assigned.moving_to, assigned.moved_at = None, self._clock.now()

    async def hand_over(self, assigned: AssignedQueue) -> None:
        """Reports everything about a queue that is given up, and waits until the broker has it, or raises."""
        if assigned.moving_to is not None:
            # Its handlers have ended; it leaves from the new position.
            await self._commit_move(assigned, assigned.moving_to, "it is given up on the way to another offset")
            return
        await self._flush_lanes(assigned)
        if assigned.released:
            return
        report = assigned.report()
        if self._local is not None:
            self._save(self._local, [(assigned, report)])
        elif report.progress != assigned.confirmed or assigned.leaves_messages(report.progress.offset):
            await self._commit(assigned, report)

    async def _commit_move(self, assigned: AssignedQueue, offset: QueueOffset, reason: str) -> None:
        self._record_reset(assigned.queue, offset, reason, assigned.epoch)
        if self._local is not None:
            self._local.save({assigned.queue: offset})
        else:
            self._check_leased(assigned)
            await self._calls.commit(assigned.queue, offset, assigned.epoch)

    async def _flush_lanes(self, assigned: AssignedQueue) -> None:
        """Sends all requests about lanes, so that the next owner repeats nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                while True:
                    if asked := self._lane_requests(assigned):
                        await asyncio.gather(*(self._send(assigned, *each) for each in asked))
                    elif assigned.lane_tasks:
                        await asyncio.wait(set(assigned.lane_tasks))
                    else:
                        return

    async def _report_done(self, assigned: AssignedQueue, below: QueueOffset) -> None:
        """Reports what is done of the lanes at the broker, so that the member does not get it again after a reset.

        Only `below` the offset to which the group was reset: what comes after it is to run again.

        Gives up after `FLUSH_SECONDS`, or if the broker does not answer: then those messages run again.
        """
        if assigned.released or not assigned.keeps_parked:
            return
        with assigned.scheduler as lanes:
            reports = lanes[assigned.queue].aside.last_reports(below)
        with contextlib.suppress(TimeoutError, LaneError):
            async with asyncio.timeout(FLUSH_SECONDS):
                for report in reports:
                    await self._lane_calls.next(assigned.queue, assigned.epoch, report)

    # lanes that are set aside

    def wake(self) -> None:
        """Makes the loop look for requests about lanes; may be called from any thread."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the lanes are left to the next owner
            self._loop.call_soon_threadsafe(self._woken.set)

    def renewed(self, assigned: AssignedQueue, serial: int) -> None:
        """Takes the version of the parked lanes from a renewal; a new one means that an operator changed them."""
        if serial != assigned.parked_serial and assigned.keeps_parked:
            assigned.changed_serial = serial
            self._woken.set()

    async def _report_lanes(self) -> None:
        """Sends requests about lanes; repeats those that fail."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._woken.clear()
                for assigned in self._assignment:
                    for work in self._lane_work(assigned):
                        task = tasks.create_task(work)
                        assigned.lane_tasks.add(task)
                        task.add_done_callback(assigned.lane_tasks.discard)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_MS / 1000):
                        await self._woken.wait()

    def _lane_work(self, assigned: AssignedQueue) -> list[Coroutine[Any, Any, None]]:
        work = [self._send(assigned, *asked) for asked in self._lane_requests(assigned)]
        serial, assigned.changed_serial = assigned.changed_serial, None
        return work if serial is None else [self._reconcile(assigned, serial), *work]

    def _lane_requests(self, assigned: AssignedQueue) -> list[SentRequest]:
        """The requests to send now. An answer belongs to the lanes that asked, not to those after a reset."""
        if assigned.released or assigned.moving_to is not None:
            return []
        with assigned.scheduler as lanes:
            aside = lanes[assigned.queue].aside
            news, requests = aside.news, aside.requests(now=self._clock.now())
        if news and not assigned.keeps_parked and assigned.subscription.lanes.parks_at_broker:
            self._rate_limited.warn(str(assigned), f"{assigned}: {STAYS_HERE}")
        return [(aside, request) for request in requests]

    async def _reconcile(self, assigned: AssignedQueue, serial: int) -> None:
        """Reads the broker's lanes after an operator changed them."""
        if assigned.released:
            return
        with assigned.scheduler as lanes:
            aside = lanes[assigned.queue].aside
            known = aside.at_broker()
        try:
            at_broker = {lane.key: lane for lane in await self._lane_calls.parked(assigned.queue)}
        except (LaneError, ProtocolError) as error:  # the next renewal asks again
            self._rate_limited.failed(str(assigned), f"parked lanes of {assigned} cannot be read, trying again", error)
            return
        with assigned.scheduler as lanes:
            if assigned.queue not in lanes or lanes[assigned.queue].aside is not aside:
                return  # lost, or moved to another offset: then the next renewal asks again
            aside.reconcile(at_broker, known)
        assigned.parked_serial = serial
        self._woken.set()

    async def _send(self, assigned: AssignedQueue, aside: LanesAside[Message], request: LaneRequest[Message]) -> None:
        answer: LaneAnswer[Message] | None = None
        try:
            async with self._room:
                answer = await self._ask(assigned, request)
        except (LaneError, ProtocolError) as error:
            text = f"parked key {request.key!r} of {assigned}: trying again"
            self._rate_limited.failed(str(assigned), text, error)
        except Exception:
            log.exception("parked key %r of %s: the broker's answer makes no sense", request.key, assigned)
        finally:  # also if a hand-over waits no longer: the queue may stay here
            with assigned.scheduler:
                aside.answered(request, answer, now=self._clock.now())
            self._woken.set()

    async def _ask(self, assigned: AssignedQueue, request: LaneRequest[Message]) -> LaneAnswer[Message]:
        queue, epoch = assigned.queue, assigned.epoch
        if isinstance(request, ParkRequest):
            reply = await self._lane_calls.park(queue, epoch, request)
            answer: LaneAnswer[Message] = LaneAnswer(lane_status(reply.status), reply.settled)
            if not assigned.released:
                self._tell_parked(assigned, request, answer, reply.remark)
            return answer
        if isinstance(request, NextRequest):
            status, records = await self._next(assigned, request)
            source = assigned.source.of_overtaken_lane() if request.overtaken else assigned.source
            messages = read_messages(source, records)
            if messages and self._options.history.on and not assigned.released:
                first = self._place(queue, messages[0].queue_offset)
                self._options.history.redriven(first, request.key or "", messages[-1].queue_offset)
            if status is None:
                log.info("key %r of %s is no longer parked", request.key, assigned)
            return LaneAnswer(status, messages=messages)
        try:
            await self._lane_calls.redrive(queue, request.key)
        except OffsetNotFound:
            return LaneAnswer(None)
        return LaneAnswer(LaneStatus.REDRIVING)

    async def _next(self, assigned: AssignedQueue, request: NextRequest) -> tuple[LaneStatus | None, bytes]:
        """The lane's status and its next messages, if the log that they were read from is the one they were parked in.

        Their offsets may have other messages of the same key by now, which would run before their turn.
        """
        status, records = await self._lane_calls.next(assigned.queue, assigned.epoch, request)
        if records and not await self.is_same_log(assigned):
            raise LogReplaced(f"{assigned} has other messages now, also where key {request.key!r} was parked")
        return status, records

    def _tell_parked(
        self, assigned: AssignedQueue, request: ParkRequest[Message], answer: LaneAnswer[Message], remark: str
    ) -> None:
        """Writes into log and history which messages of a lane the broker has."""
        key, settled, status = request.key, answer.settled, answer.status
        if self._options.history.on:
            again = [request.failed_again] if request.failed_again >= 0 and status is LaneStatus.PARKED else []
            for offset in (*again, *(message.queue_offset for message in request.messages[:settled])):
                self._options.history.parked(self._place(assigned.queue, offset), key or "")
        if settled < len(request.messages) and status is None and request.failure is None:
            pass  # the lane was emptied in between: its newer messages run
        elif settled < len(request.messages):
            text = f"key {key!r} of {assigned} stays in memory, holds the commit: {remark}"
            self._rate_limited.warn(str(assigned), text)
        elif status is LaneStatus.PARKED and request.failure is not None:
            see = f"lanemq parked list --group {self._options.group}"
            log.warning("key %r of %s is parked at the broker, see `%s`", key, assigned, see)
        elif request.held and request.failed_again < 0:
            log.warning("key %r of %s has many messages: the broker keeps them until it succeeds", key, assigned)

    # history

    def record_found(self, queue: MessageQueue, offset: QueueOffset, asked: int) -> None:
        """Writes the offset that an Apache broker gave into the history: it may have forgotten newer commits."""
        if self._options.history.on:
            self._options.history.recovered(self._place(queue, offset), clean=False, alive=asked)

    def record_filter(self, assigned: AssignedQueue, offset: QueueOffset) -> None:
        """Writes into the history which tags the queue is read with, unless all are read."""
        queue, history, tags = assigned.queue, self._options.history, assigned.subscription.filter.tags
        if history.on and tags:
            group = group_in_history(self._options, self._calls.client_id)
            history.filtered(Place(group, queue.topic, queue.queue_id, offset, queue.broker), tags)

    def _record_reset(self, queue: MessageQueue, offset: QueueOffset, reason: str, epoch: Epoch) -> None:
        history = self._options.history
        if history.on:
            group = group_in_history(self._options, self._calls.client_id)
            history.reset(Place(group, queue.topic, queue.queue_id, offset, queue.broker), reason, epoch=epoch)

    def _place(self, queue: MessageQueue, offset: int) -> Place:
        return Place(self._options.group, queue.topic, queue.queue_id, offset, queue.broker)
