"""Brings parked lanes to the broker and back: a shell around `core/consuming/shut_lanes`.

One loop for all queues. It is called when a lane is parked, when a message of a parked lane arrives and when a
redriven message is done; besides it looks every second, for lanes that wait for another attempt to be stored.

A message is reported finished only after the broker said that it keeps it. A broker without parking (Apache
RocketMQ, or an older LaneMQ) is asked once, or never: there a lane stays here, as its log line says.
"""

import asyncio
import contextlib
import logging

from lanemq.client.consumer.assigned_queue import Holding, Holdings
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.park_calls import ParkCalls, Stored
from lanemq.client.message import Message
from lanemq.core.consuming.shut_lanes import KeptLane, NextWork, ParkWork, RedriveWork, ShutLanes, Work
from lanemq.core.parked_lane import LaneStatus
from lanemq.history import Place
from lanemq.model.errors import BrokerRefused, LaneError, OffsetNotFound, ProtocolError
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Millis
from lanemq.net.rate_limited_log import RateLimitedLog
from lanemq.wire.codes import ResponseCode

log = logging.getLogger(__name__)

LOOK_EVERY_MS = 1_000
NO_ANSWER_PAUSE = Millis(1_000)
"""After a question that failed: the broker is away, or the lease was lost, which the lock keeper will find out."""
FULL_PAUSE = Millis(30_000)
"""After the broker would not take everything; in between its limits may have been raised, or lanes discarded."""
AT_ONCE = 32
"""Questions under way; ten thousand lanes may fail in the same second."""
FLUSH_SECONDS = 3.0
"""Longest wait of a leaving queue for its parked lanes; what is not told then, the next owner repeats."""
STAYS_HERE = (
    "its broker keeps no parked lanes: they stay in memory, hold the commit, and are tried again by a new owner"
)


class Parker:
    """One per consumer."""

    def __init__(self, options: ConsumerOptions, calls: ParkCalls, holdings: Holdings) -> None:
        self._options = options
        self._clock = options.clock
        self._calls = calls
        self._holdings = holdings
        self._loop = asyncio.get_running_loop()
        self._called = asyncio.Event()
        self._room = asyncio.Semaphore(AT_ONCE)
        self._under_way: dict[MessageQueue, set[asyncio.Task[None]]] = {}
        # Queues whose parked lanes people changed, with the serial number that says so.
        self._changed: dict[MessageQueue, int] = {}
        self._rate_limited = RateLimitedLog(log, options.clock)

    def call(self) -> None:
        """From any thread: there is something to do."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: the lanes are the next owner's
            self._loop.call_soon_threadsafe(self._called.set)

    async def run(self) -> None:
        """Never ends; what fails is tried again."""
        async with asyncio.TaskGroup() as tasks:
            while True:
                self._called.clear()
                for holding in self._holdings:
                    self._begin(holding, tasks)
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(LOOK_EVERY_MS / 1000):
                        await self._called.wait()

    async def flush(self, holding: Holding) -> None:
        """Before a queue leaves: what can be told is told, so that the next owner repeats nothing."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(FLUSH_SECONDS):
                while not holding.released:
                    work = self._work(holding)
                    if work:
                        await asyncio.gather(*(self._do(holding, each) for each in work))
                    elif under_way := self._under_way.get(holding.queue):
                        await asyncio.wait(set(under_way))
                    else:
                        return

    async def kept(self, queue: MessageQueue, *, asked: bool) -> tuple[KeptLane, ...]:
        """What an owner of the queue must know before it runs anything; not `asked`: there is nothing to know."""
        try:
            return await self._calls.kept(queue) if asked else ()
        except BrokerRefused as error:
            if _not_supported(error):
                return ()
            raise

    def look(self, holding: Holding, serial: int) -> None:
        """The broker's answer to a renewal: another serial number means that people changed parked lanes."""
        if serial != holding.parked_serial and holding.keeps_parked:
            self._changed[holding.queue] = serial
            self._called.set()

    async def _look(self, holding: Holding, serial: int) -> None:
        scheduler, queue = holding.station.scheduler, holding.queue
        known = scheduler.shut(queue, lambda shut: shut.kept()) or frozenset()
        try:
            lanes = {lane.key: lane.redriving for lane in await self._calls.kept(queue)}
        except (LaneError, ProtocolError) as error:  # the next renewal asks again
            self._rate_limited.warn(str(holding), f"parked lanes of {holding} cannot be read, trying again: {error}")
            return
        if not holding.released:
            holding.parked_serial = serial
            scheduler.shut(queue, lambda shut: shut.reconcile(lanes, known))
            self._called.set()

    def _begin(self, holding: Holding, tasks: asyncio.TaskGroup) -> None:
        serial = self._changed.pop(holding.queue, None)
        if serial is not None:
            self._follow(holding, tasks.create_task(self._look(holding, serial)))
        for work in self._work(holding):
            self._follow(holding, tasks.create_task(self._do(holding, work)))

    def _follow(self, holding: Holding, task: asyncio.Task[None]) -> None:
        under_way = self._under_way.setdefault(holding.queue, set())
        under_way.add(task)
        task.add_done_callback(under_way.discard)

    def _work(self, holding: Holding) -> list[Work[Message]]:
        if holding.released or holding.moving is not None:
            return []
        now = self._clock.now()
        if not holding.keeps_parked:
            if holding.station.scheduler.shut(holding.queue, _take_news):
                self._rate_limited.warn(str(holding), f"{holding}: {STAYS_HERE}")
            return []
        return holding.station.scheduler.shut(holding.queue, lambda shut: shut.work(now=now)) or []

    async def _do(self, holding: Holding, work: Work[Message]) -> None:
        try:
            async with self._room:
                await self._ask(holding, work)
        except (LaneError, ProtocolError) as error:
            self._not_done(holding, work, error)
        except Exception as error:
            log.exception("parked key %r of %s: the broker's answer makes no sense", work.key, holding)
            self._not_done(holding, work, error)
        self._called.set()

    async def _ask(self, holding: Holding, work: Work[Message]) -> None:
        match work:
            case ParkWork():
                await self._park(holding, work)
            case NextWork():
                await self._next(holding, work)
            case RedriveWork():
                await self._redrive(holding, work)

    async def _park(self, holding: Holding, work: ParkWork[Message]) -> None:
        answer = await self._calls.park(holding.queue, holding.epoch, work)
        if holding.released:
            return
        self._record(holding, work, answer)
        if answer.settled < len(work.messages) and answer.status is None and work.failure is None:
            pass  # the lane was emptied meanwhile: its newer messages run
        elif answer.settled < len(work.messages):
            self._rate_limited.warn(
                str(holding), f"key {work.key!r} of {holding} stays in memory and holds the commit: {answer.remark}"
            )
        elif work.failure is not None:
            log.warning("key %r of %s is parked at the broker, see `lanemq parked`", work.key, holding)
        now = self._clock.now()
        holding.station.scheduler.shut(
            holding.queue,
            lambda shut: shut.stored(work, answer.settled, answer.status, now=now, pause=FULL_PAUSE),
        )

    async def _next(self, holding: Holding, work: NextWork) -> None:
        status, record = await self._calls.next(holding.queue, holding.epoch, work)
        if holding.released:
            return
        message = Message(holding.source, record, 0) if record else None
        if message is not None and self._options.history.on:
            self._options.history.redriven(self._place(holding.queue, message.queue_offset), work.key or "")
        if status is None:
            log.info("key %r of %s is an ordinary one again", work.key, holding)
        holding.station.scheduler.shut(holding.queue, lambda shut: shut.given(work, message, status))

    async def _redrive(self, holding: Holding, work: RedriveWork) -> None:
        try:
            await self._calls.redrive(holding.queue, work.key)
        except OffsetNotFound:
            holding.station.scheduler.shut(holding.queue, lambda shut: shut.given(work, None, None))
        else:
            holding.station.scheduler.shut(holding.queue, lambda shut: shut.told(work))

    def _not_done(self, holding: Holding, work: Work[Message], error: Exception) -> None:
        if _not_supported(error):
            holding.keeps_parked = False
            log.warning("%s: %s", holding, STAYS_HERE)
        else:
            self._rate_limited.warn(str(holding), f"parked key {work.key!r} of {holding}: trying again, {error}")
        now = self._clock.now()
        holding.station.scheduler.shut(holding.queue, lambda shut: shut.failed(work, now=now, pause=NO_ANSWER_PAUSE))

    def _record(self, holding: Holding, work: ParkWork[Message], answer: Stored) -> None:
        if self._options.history.on:
            again = [work.failed_again] if work.failed_again >= 0 and answer.status is LaneStatus.PARKED else []
            for offset in (*again, *(message.queue_offset for message in work.messages[: answer.settled])):
                self._options.history.parked(self._place(holding.queue, offset), work.key or "")

    def _place(self, queue: MessageQueue, offset: int) -> Place:
        return Place(self._options.group, queue.topic, queue.queue_id, offset)


def _not_supported(error: Exception) -> bool:
    return isinstance(error, BrokerRefused) and error.code == ResponseCode.REQUEST_CODE_NOT_SUPPORTED


def _take_news(shut: ShutLanes[Message]) -> bool:
    news, shut.news = shut.news, False
    return news
