"""Fakes for tests of a consumer: an in-memory broker behind the interface of `ConsumerCalls`."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from types import SimpleNamespace
from typing import Any

from msgspec.structs import replace
from tests.client.virtual_time import VirtualClock
from tests.wire.encoding import encode_record

from lanemq.client.codec import JsonCodec
from lanemq.client.consumer.calls import Granted, KeptAlive, Locked
from lanemq.client.consumer.coordination import Coordination
from lanemq.client.consumer.engine import ConsumerEngine
from lanemq.client.consumer.options import ConsumerOptions
from lanemq.client.consumer.pull_stream import Pulled, one_pull
from lanemq.client.consumer.queues.assigned_queue import AssignedQueue
from lanemq.client.consumer.queues.link import BrokerLink
from lanemq.client.consumer.turns.handler import HandlerCall, async_batch_handler
from lanemq.client.consumer.turns.scheduler import Scheduler
from lanemq.client.consumer.turns.subscription import Subscription
from lanemq.client.message import Message, MessageSource, read_messages
from lanemq.client.topic_route import BrokerRoute, TopicRoute
from lanemq.core.brokering.lock_table import LockTable
from lanemq.core.consuming.queue_lease import LeaseTimes, QueueLease
from lanemq.core.consuming.rebalance import QueueEvent
from lanemq.core.finished_ranges import NOTHING_FINISHED, FinishedRanges
from lanemq.model.errors import BrokerRefused, LaneError, LeaseLost, RequestTimedOut, TopicNotFound
from lanemq.model.log_marks import SeenLog
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.net.address import Address
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.headers import PullHeader
from lanemq.wire.lane_bodies import ParkedTable
from lanemq.wire.properties import encode_properties

HERE = Address("127.0.0.1", 1)


def queue(number: int, topic: str = "orders", broker: str = "a") -> MessageQueue:
    return MessageQueue(topic, broker, number)


def record(offset: int, *, key: str = "k", tag: str = "", body: bytes = b"{}", **properties: str) -> bytes:
    names = {"__SHARDINGKEY": key, "TAGS": tag, "UNIQ_KEY": f"ID{offset}"} | properties
    text = encode_properties({name: value for name, value in names.items() if value})
    return encode_record(
        topic="orders", body=body, properties_text=text, queue_id=0, queue_offset=offset, position=offset * 1000
    )


def message(offset: int, *, of: MessageQueue | None = None, **fields: Any) -> Message:
    source = MessageSource(of or queue(0), JsonCodec(), Epoch(1))
    return read_messages(source, record(offset, **fields))[0]


def options(**changes: Any) -> ConsumerOptions:
    return ConsumerOptions(**{"servers": "127.0.0.1:1", "group": "g", "clock": VirtualClock()} | changes)


class FakeBroker:
    """The broker that several members share. Records every request as (millisecond, member, what, about)."""

    def __init__(self, queues: list[MessageQueue], *, lane: bool = True) -> None:
        self.queues = queues
        self.lane = lane
        self.locks = LockTable(60_000)
        self.waits_for_keep_alives = True
        """False: only the lease itself counts."""
        self.offsets: dict[MessageQueue, int] = {}
        self.finished: dict[MessageQueue, FinishedRanges] = {}
        self.messages: dict[MessageQueue, list[bytes]] = {each: [] for each in queues}
        self.members: list[str] = []
        self.removed: set[str] = set()
        """Members that were silent for too long; `remove` adds them."""
        self.last_pull: PullHeader | None = None
        self.holds_pulls = True
        """False: a broker that answers "nothing new" at once."""
        self.in_parts = False
        """Answers pulls in parts, without an end."""
        self.first = 0
        """Everything before this offset was deleted."""
        self.time_names = 1
        """The offset that a search by time answers with."""
        self.noted: list[tuple[int, str, str, Any]] = []
        self.faults: list[Callable[[str, str, Any], None]] = []
        self.arrived = asyncio.Event()
        self.clock = VirtualClock()
        self.listeners: list[Callable[[], None]] = []

    def route(self) -> TopicRoute:
        brokers = {name: BrokerRoute(name, {0: HERE}, self.lane) for name in {each.broker for each in self.queues}}
        return TopicRoute("orders", tuple(self.queues), tuple(sorted(self.queues)), brokers)

    def store(self, where: MessageQueue, *records: bytes) -> None:
        self.messages[where].extend(records)
        self.arrived.set()

    def changed(self) -> None:
        """Sends NOTIFY_CONSUMER_IDS_CHANGED to all members, unless announcements are lost."""
        for listener in tuple(self.listeners):
            listener()

    def remove(self, member: str) -> None:
        """Takes a silent member from the list."""
        self.members.remove(member)
        self.removed.add(member)
        self.changed()

    def what(self, name: str, member: str | None = None) -> list[tuple[int, str, str, Any]]:
        return [each for each in self.noted if each[2] == name and member in (None, each[1])]

    def note(self, member: str, name: str, about: Any) -> None:
        self.noted.append((self.clock.now(), member, name, about))
        for fault in tuple(self.faults):
            fault(member, name, about)


class FakeCalls:
    """`ConsumerCalls` of one member."""

    def __init__(self, broker: FakeBroker, client_id: str = "me") -> None:
        self.coordination = Coordination("g")
        self.client_id = client_id
        self.broker = broker
        self.epochs = broker.lane

    async def find_coordinator(self, route: TopicRoute) -> None: ...

    def master(self, topic: str, broker: str) -> Address:
        return self.address(topic, broker)

    async def ask_coordinator(self, where: MessageQueue, command: Any) -> Any:
        return await self.ask(self.address(where.topic, where.broker), command)

    def address(self, topic: str, broker: str) -> Address:
        return HERE

    async def ask(self, address: Address, command: Any, timeout: float | None = None) -> Any:
        if command.code == RequestCode.LANE_PARKED:
            return Command(0, 0, body=ParkedTable().encode())
        raise BrokerRefused(ResponseCode.REQUEST_CODE_NOT_SUPPORTED, f"request {command.code} is not known here")

    async def members(self, topic: str, broker: str) -> list[str]:
        self.broker.note(self.client_id, "members", topic)
        return sorted(self.broker.members)

    async def group_topics(self, topic: str, broker: str) -> frozenset[str]:
        return frozenset({"orders"})

    async def keep_alive(self, topic: str, broker: str, serial: int) -> KeptAlive:
        self.broker.note(self.client_id, "keep_alive", (broker, serial))
        leases = self.broker.locks.keep_alive(self.client_id, serial, now=self.broker.clock.now())
        return KeptAlive(leases, self.client_id not in self.broker.removed)

    async def lock(
        self, broker: str, queues: Any, *, lease: Any, keep_alive_timeout: Any = None, finished: bool | None = None
    ) -> Locked:
        self.broker.note(self.client_id, "lock", (broker, tuple(queues)))
        now = self.broker.clock.now()
        grant = self.broker.locks.acquire(
            "g", queues, self.client_id, lease=lease, keep_alive_timeout=keep_alive_timeout, now=now
        )
        granted = {
            each.queue: Granted(
                Epoch(each.epoch if self.epochs else 0),
                self._offset(each.queue) if self.epochs else None,
                self.broker.finished.get(each.queue, NOTHING_FINISHED)
                if self.epochs and finished
                else NOTHING_FINISHED,
                serial=grant.serial if self.epochs and self.broker.waits_for_keep_alives else 0,
            )
            for each in grant.granted
        }
        return Locked(granted, self.client_id not in self.broker.removed)

    def _offset(self, where: MessageQueue) -> QueueOffset | None:
        known = self.broker.offsets.get(where)
        return None if known is None else QueueOffset(known)

    def close_silent(self, topic: str, broker: str, silence: Millis) -> bool:
        self.broker.noted.append((self.broker.clock.now(), self.client_id, "close_silent", (broker, silence)))
        return True

    async def unlock(self, where: MessageQueue, epoch: Epoch) -> None:
        self.broker.note(self.client_id, "unlock", where)
        self.broker.locks.release("g", [where], self.client_id, epoch=epoch or None, now=self.broker.clock.now())

    async def committed(self, where: MessageQueue) -> QueueOffset | None:
        self.broker.note(self.client_id, "committed", where)
        return self._offset(where)

    async def first_offset(self, where: MessageQueue) -> QueueOffset:
        return QueueOffset(0)

    async def last_offset(self, where: MessageQueue) -> QueueOffset:
        return QueueOffset(len(self.broker.messages[where]))

    async def offset_at(self, where: MessageQueue, timestamp_ms: int) -> QueueOffset:
        return QueueOffset(self.broker.time_names)

    async def commit(
        self,
        where: MessageQueue,
        offset: QueueOffset,
        epoch: Epoch,
        finished: FinishedRanges = NOTHING_FINISHED,
        seen: SeenLog | None = None,
    ) -> bool:
        self.broker.note(self.client_id, "commit", (where, offset))
        self.broker.offsets[where] = offset
        self.broker.finished[where] = finished
        return True

    async def pull(self, header: Any, broker: str, following: Any = one_pull) -> Pulled:
        where, more = MessageQueue(header.topic, broker, header.queue_id), False
        while True:
            if not more:
                self.broker.note(self.client_id, "pull", (where, header.queue_offset))
                self.broker.last_pull = header
            pulled = await self._pull(header, where)
            more = self.broker.in_parts and bool(header.lane_parts) and pulled.code == 0
            pulled = pulled._replace(more=more)
            offset = following(pulled, QueueOffset(header.queue_offset))
            if offset is None:
                return pulled
            header = replace(header, queue_offset=offset)

    async def _pull(self, header: Any, where: MessageQueue) -> Pulled:
        stored = self.broker.messages[where]
        held = header.suspend_timeout_millis / 1000 if self.broker.holds_pulls else 0.0
        until = asyncio.get_running_loop().time() + held
        while header.queue_offset >= len(stored) and asyncio.get_running_loop().time() < until:
            self.broker.arrived.clear()
            try:
                async with asyncio.timeout_at(until):
                    await self.broker.arrived.wait()
            except TimeoutError:
                pass
        if header.queue_offset < self.broker.first:
            first = QueueOffset(self.broker.first)
            return Pulled(21, first, first, QueueOffset(len(stored)), b"")
        end = min(len(stored), header.queue_offset + header.max_msg_nums)
        body = b"".join(stored[header.queue_offset : end])
        code = 0 if body else 19
        return Pulled(code, QueueOffset(max(end, header.queue_offset)), QueueOffset(0), QueueOffset(len(stored)), body)


class FakeHeartbeat:
    """Joins the group with the first heartbeat and notifies the other members, as a broker does."""

    version = 1

    def __init__(self, broker: FakeBroker, name: str) -> None:
        self._broker = broker
        self._name = name

    async def send_to_all(self) -> None:
        with suppress(LaneError):
            self._broker.note(self._name, "heartbeat", None)
            if self._name not in self._broker.members:
                self._broker.members.append(self._name)
                self._broker.changed()

    async def send_to(self, address: Address) -> None: ...

    async def send_again_to(self, address: Address) -> None:
        self._broker.removed.discard(self._name)
        await self.send_to_all()

    def described(self) -> list[Any]:
        return []

    async def leave(self) -> None:
        with suppress(LaneError):
            self._broker.note(self._name, "leave", None)
            self._broker.members.remove(self._name)
        self._broker.changed()

    async def run(self) -> None:
        await asyncio.Event().wait()


class FakeRoutes:
    def __init__(self, broker: FakeBroker) -> None:
        self._broker = broker

    async def get(self, topic: str) -> TopicRoute:
        if topic != "orders":
            raise TopicNotFound(17, f"no topic {topic}")
        return self._broker.route()

    def known(self, topic: str) -> TopicRoute:
        return self._broker.route()

    def unreachable(self, topic: str) -> None: ...


def committable(scheduler: Scheduler, which: MessageQueue) -> QueueOffset:
    """The first unfinished offset of a queue, also of runs that are in progress."""
    return scheduler.progress(which).offset


class FakeScheduler:
    """Records until when turns may start, by queue."""

    def __init__(self) -> None:
        self.usable_until: dict[MessageQueue, Millis] = {}

    def __enter__(self) -> "FakeScheduler":
        return self

    def __exit__(self, *_: object) -> None: ...

    def set_usable_until(self, which: MessageQueue, until: Millis) -> None:
        self.usable_until[which] = until

    def drop(self, which: MessageQueue) -> None: ...


def assigned_queue(
    which: MessageQueue, lease: QueueLease | None, times: LeaseTimes, *, lane: bool = True, scheduler: Any = None
) -> AssignedQueue:
    """An assigned queue at its start, without a subscription."""
    active: Any = SimpleNamespace(subscription=None, scheduler=scheduler or FakeScheduler())
    assigned = AssignedQueue(which, active, MessageSource(which, JsonCodec(), Epoch(1)), lease, times, is_lanemq=lane)
    for event in (QueueEvent.GRANTED, QueueEvent.LOCATED) if lease else (QueueEvent.LOCATED,):
        assigned.lifecycle.happened(event, now=Millis(0))
    return assigned


def no_answer(*_: Any) -> None:
    raise RequestTimedOut("no answer from the fake broker")


def refuse(*_: Any) -> None:
    raise LeaseLost("not yours")


class SimEngine(ConsumerEngine):
    """A whole consumer over a `FakeBroker`; handlers are coroutine functions."""

    def __init__(self, broker: FakeBroker, name: str, subscriptions: list[Subscription], **changes: Any) -> None:
        self.calls = FakeCalls(broker, name)
        link: Any = BrokerLink(_NoPool(), FakeRoutes(broker), self.calls, FakeHeartbeat(broker, name))  # type: ignore[arg-type]
        super().__init__(options(client_id=name, **changes), subscriptions, connect=lambda *_: link)
        broker.listeners.append(self.rebalance)


class _NoPool:
    def close(self) -> None: ...


def sim_subscription(handler: Callable[[Message], Any], **changes: Any) -> Subscription:
    """A subscription to "orders" whose handler is a coroutine function that takes a message."""
    call = HandlerCall("handler", True, handler)
    plan = {"topic": "orders", "workers": 4} | changes
    return Subscription(async_handler=async_batch_handler(call, batched=False), **plan)


@asynccontextmanager
async def member(
    broker: FakeBroker, name: str, handler: Callable[[Message], Any], *, plan: Any = None, **changes: Any
) -> AsyncIterator[SimEngine]:
    """A running member; stopped cleanly at the end of the block."""
    engine = SimEngine(broker, name, [sim_subscription(handler, **(plan or {}))], **changes)
    running = asyncio.create_task(engine.run())
    await engine.started.wait()
    try:
        yield engine
    finally:
        engine.stop()
        await running


async def until(condition: Callable[[], object], seconds: float = 300.0) -> None:
    """Lets virtual time pass until the condition holds."""
    async with asyncio.timeout(seconds):
        while not condition():  # noqa: ASYNC110 - virtual time passes only while a task sleeps
            await asyncio.sleep(0.01)
