"""Fronts and clients that misbehave, on virtual time: `python -m tests.grpc_front.simulation --seeds 500`.

Real: everything of a front above its members (`service`, `handing`, `clients`, the rules in `core/fronting`, the wire
codec), and the lanes of a member (`LaneScheduler`). Simulated: the broker with its leases and progress, the network,
and the clients. Each kind of client does in a batch what RocketMQ's client of that language does.

While there are faults, clients are killed and frozen, fronts are killed, frozen, stopped and cut off from the broker,
answers are lost, and queues move. Then some healthy clients come, and everything must be processed. `Judge` says what
must hold.
"""

import argparse
import asyncio
import contextlib
import random
import sys
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, ClassVar, TypeVar

from lanemq.core.consuming.retry_policy import HoldKey
from lanemq.core.consuming.runs import DONE, STOPPED, LaneOptions, LaneRun, Outcome, Why
from lanemq.core.consuming.scheduler import LaneScheduler
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.grpc_front import consumers as consumers_module
from lanemq.grpc_front.access import Access
from lanemq.grpc_front.delivery import DELIVERY, EPOCH
from lanemq.grpc_front.options import FrontOptions
from lanemq.grpc_front.port import CallHead, Parts
from lanemq.grpc_front.service import FrontService
from lanemq.model.queue import MessageQueue
from lanemq.model.units import Epoch, Millis, QueueOffset
from lanemq.testing.sim.host import HERE, Host, MachineClock
from lanemq.testing.sim.loop import VirtualLoop
from lanemq.wire.grpc import messages as m
from lanemq.wire.grpc.codec import decode, encode
from lanemq.wire.grpc.messages import Code

T = TypeVar("T")
NO_EPOCH = Epoch(0)
RECORD = SimpleNamespace(
    born_timestamp=0, born_host="192.0.2.1:1", store_timestamp=0, store_host="192.0.2.1:2", reconsume_times=0
)
GROUP, TOPIC = "g", "orders"
QUEUES = tuple(MessageQueue(TOPIC, "broker", number) for number in range(3))
KEYS, MESSAGES = 9, 180
LEASE_MS, KEEP_ALIVE_MS, EVERY = 1_000, 800, 0.2
FAULT_SECONDS, END_SECONDS = 60.0, 400.0
LONGEST_HANDLER = 90.0
PING_SECONDS = 5.0
"""How long a frozen client keeps its connection."""


@dataclass(eq=False)
class Stored:
    """A message as the front gets it from its member."""

    key: str
    number: int
    queue: MessageQueue
    queue_offset: int
    epoch: Epoch = NO_EPOCH
    size: int = 10
    tag: str | None = None
    keys: tuple[str, ...] = ()
    topic: str = TOPIC
    record: Any = field(default_factory=lambda: RECORD)
    properties: dict[str, str] = field(default_factory=dict)

    @property
    def body(self) -> bytes:
        return f"{self.key}:{self.number}".encode()

    @property
    def message_id(self) -> str:
        return f"ID-{self.key}-{self.number}"


@dataclass
class Kept:
    """What the broker keeps of a queue."""

    log: list[Stored] = field(default_factory=list)
    owner: "SimMember | None" = None
    lease_end: float = 0.0
    epoch: int = 0
    offset: int = 0
    finished: FinishedRanges = field(default_factory=FinishedRanges)


class Judge:
    """What must hold, whatever clients do.

    1. A message is handed out when all earlier ones of its key are done; a push consumer gets one of a key at a time.
    2. A decision counts only at the front that owns the queue, and before its lease may end at the broker.
    3. What was done and reported is never handed out again.
    4. Epoch and delivery number of a key's messages grow with each hand-out.
    5. Nothing stays with a client that is gone, nor longer than its time; in the end, everything is done.
    6. An acknowledgement that is answered OK has made its message count as done.
    """

    def __init__(self, cluster: "Cluster") -> None:
        self.problems: list[str] = []
        self.seen: defaultdict[str, int] = defaultdict(int)
        self._cluster = cluster
        self._done: defaultdict[str, set[int]] = defaultdict(set)
        self._last: dict[str, tuple[int, int]] = {}
        self._reported: set[tuple[str, int]] = set()
        self._acknowledged: list[tuple[str, str, str]] = []
        self._done_by: set[tuple[str, str, str]] = set()
        """Messages by body, epoch and delivery number."""
        self._longer: set[tuple[str, str, str]] = set()
        """Those that were handed out with others of their key: they come again with a first one that is not done."""

    def problem(self, text: str) -> None:
        self.problems.append(f"{self._cluster.seconds():8.2f} s  {text}")

    def handed_out(self, member: "SimMember", run: LaneRun[Stored], renewed: bool, number: int) -> None:
        first, key = run.messages[0], run.messages[0].key
        self.seen["hand-outs"] += 1
        missing = set(range(first.number)) - self._done[key]
        if missing:
            self.problem(f"{first.body!r} was handed out before {sorted(missing)}")
        if renewed and len(run.messages) > 1:
            self.problem(f"{len(run.messages)} messages of {key} with one push consumer")
        for message in run.messages:
            self.seen["repeats"] += message.number in self._done[key]
            if len(run.messages) > 1:
                self._longer.add((message.body.decode(), f"{message.epoch}", f"{number}"))
            if (key, message.number) in self._reported:
                self.problem(f"{message.body!r} was handed out again after its report")
        pair = int(run.messages[0].epoch), number
        if pair <= self._last.get(key, (0, 0)):
            self.problem(f"{first.body!r} has {pair} after {self._last[key]}")
        self._last[key] = pair
        self._owned(member, run, "handed out")

    def _owned(self, member: "SimMember", run: LaneRun[Stored], what: str) -> None:
        kept = self._cluster.kept[run.queue]
        if kept.owner is not member or self._cluster.seconds() >= kept.lease_end:
            self.problem(f"{run.messages[0].body!r} was {what} without a lease")

    def finished(self, member: "SimMember", run: LaneRun[Stored], done: int) -> None:
        self._owned(member, run, "finished")
        for message in run.messages[:done]:
            self._done[message.key].add(message.number)
            self._done_by.add((message.body.decode(), f"{message.epoch}", f"{member.numbers[id(run)]}"))

    def reported(self, queue: MessageQueue) -> None:
        kept = self._cluster.kept[queue]
        for message in kept.log:
            if message.queue_offset < kept.offset or message.queue_offset in _offsets(kept.finished):
                self._reported.add((message.key, message.number))

    def acknowledged(self, message: m.WireMessage) -> None:
        """It was answered OK."""
        properties = message.user_properties
        self.seen["acknowledged"] += 1
        self._acknowledged.append((message.body.decode(), properties[EPOCH], properties[DELIVERY]))

    def ended(self) -> None:
        total = sum(len(kept.log) for kept in self._cluster.kept.values())
        if len(self._reported) < total:
            everything = {(each.key, each.number) for kept in self._cluster.kept.values() for each in kept.log}
            left = sorted(everything - self._reported)
            self.problem(f"{len(left)} of {total} messages are not done: {left[:10]}")
        for each in self._acknowledged:
            body = each[0]
            if each not in self._longer and each not in self._done_by:
                self.problem(f"{body} was acknowledged with a handle that did not count")


def _offsets(ranges: FinishedRanges) -> set[int]:
    bounds = ranges.bounds
    return {offset for start, end in zip(bounds[::2], bounds[1::2], strict=True) for offset in range(start, end)}


class Cluster:
    """The broker: logs, leases, progress."""

    def __init__(self, loop: VirtualLoop) -> None:
        self._loop = loop
        self.kept = {queue: Kept() for queue in QUEUES}
        self.judge = Judge(self)
        self.members: list[SimMember] = []

    def seconds(self) -> float:
        return self._loop.time()

    def store(self, key: str, number: int) -> None:
        queue = QUEUES[int(key[1:]) % len(QUEUES)]
        log = self.kept[queue].log
        log.append(Stored(key, number, queue, len(log)))

    def share(self) -> int:
        return -(-len(QUEUES) // max(1, sum(not each.leaving for each in self.members)))

    def owned_by(self, member: "SimMember") -> int:
        return sum(kept.owner is member and self.seconds() < kept.lease_end for kept in self.kept.values())

    def free(self, queue: MessageQueue) -> bool:
        kept = self.kept[queue]
        return kept.owner is None or self.seconds() >= kept.lease_end


class SimMember:
    """The lanes of a member, and what its engine does: leases, pulls, reports. The front sees `LaneMember`."""

    def __init__(self, front: "SimFront", cluster: Cluster, on_work: Callable[[], None]) -> None:
        self._front, self._cluster, self._on_work = front, cluster, on_work
        self.lanes: LaneScheduler[Any] = LaneScheduler(LaneOptions(policy=HoldKey(retries=-1), run_limit=1))
        self.numbers: dict[int, int] = {}
        """The delivery number of each run, by its identity."""
        self.runs: list[LaneRun[Stored]] = []
        self.leaving = False
        cluster.members.append(self)
        self._task = front.host.run(self._run())

    # what the front calls

    def take(self, topic: str, most: int) -> Any:
        run = self.lanes.next_run(now=self._front.clock.now(), most=most)
        return run if isinstance(run, LaneRun) else run.until

    def begun(self, run: Any, client: str) -> None:
        hand_out = next(each for each in self._front.service.handing.hand_outs if each.run is run)
        self.numbers[id(run)] = hand_out.number
        self.runs.append(run)
        self._cluster.judge.handed_out(self, run, hand_out.renewed, hand_out.number)

    def progressed(self, run: Any, done: int) -> None:
        self._cluster.judge.finished(self, run, done)
        run.done = done
        self.lanes.note_progress(run)

    def finish(self, run: Any, outcome: Outcome, done: int = 0, error: Exception | None = None) -> Why:
        count = len(run.messages) if outcome is DONE else done
        finished = self.lanes.finish(run, outcome, done=done, now=self._front.clock.now())
        if count > run.done and finished.why is not Why.QUEUE_GONE:
            self._cluster.judge.finished(self, run, count)
        self._on_work()
        return finished.why

    def put_back(self, run: Any) -> None:
        self.finish(run, STOPPED)

    def now_has(self, clients: object) -> None:
        pass

    # what an engine does

    async def _run(self) -> None:
        rng = self._front.rng
        while True:
            asked = self._front.clock.now()
            await asyncio.sleep(rng.uniform(0.001, 0.02))
            if not self._front.cut_off:
                for queue in QUEUES:
                    self._look_at(queue, asked)
                self._on_work()
                if self.leaving and not any(kept.owner is self for kept in self._cluster.kept.values()):
                    self._cluster.members.remove(self)
                    return
            await asyncio.sleep(EVERY)

    def _look_at(self, queue: MessageQueue, asked: Millis) -> None:
        """One keep-alive: the broker's side and the answer, at the same moment."""
        cluster, kept, lanes = self._cluster, self._cluster.kept[queue], self.lanes
        if kept.owner is self and cluster.seconds() < kept.lease_end:
            kept.lease_end = cluster.seconds() + LEASE_MS / 1000
            lanes.set_usable_until(queue, Millis(asked + KEEP_ALIVE_MS))
            self._pull(queue)
            self._report(queue)
            if self.leaving or cluster.owned_by(self) > cluster.share():
                self._hand_over(queue)
            elif lanes[queue].withdrawn:
                lanes.reopen(queue)
            return
        if queue in lanes:
            lanes.drop(queue)
        if not self.leaving and cluster.free(queue) and cluster.owned_by(self) < cluster.share():
            kept.owner, kept.epoch = self, kept.epoch + 1
            kept.lease_end = cluster.seconds() + LEASE_MS / 1000
            lanes.add(
                queue, QueueOffset(kept.offset), usable_until=Millis(asked + KEEP_ALIVE_MS), finished=kept.finished
            )
            self._pull(queue)

    def _pull(self, queue: MessageQueue) -> None:
        kept, start = self._cluster.kept[queue], self.lanes[queue].next_offset
        new = [Stored(each.key, each.number, queue, each.queue_offset, Epoch(kept.epoch)) for each in kept.log[start:]]
        if new:
            self.lanes.put(queue, new, QueueOffset(len(kept.log)), pulled_from=start)

    def _report(self, queue: MessageQueue) -> None:
        kept, progress = self._cluster.kept[queue], self.lanes[queue].progress()
        kept.offset, kept.finished = int(progress.offset), progress.finished
        self._cluster.judge.reported(queue)

    def _hand_over(self, queue: MessageQueue) -> None:
        self.lanes.drain(queue, now=self._front.clock.now())
        if self.lanes.is_drained(queue):
            self._report(queue)
            self.lanes.drop(queue)
            self._cluster.kept[queue].owner = None


class SimGroup:
    """In place of `FrontGroup`: its member is there at once."""

    front: "SimFront"

    def __init__(self, name: str, options: object, clock: object, on_work: Callable[[Any], None]) -> None:
        self.name, self.failure, self._on_work = name, "", on_work
        self.front = SimFront.by_host[HERE.get()]
        self.member: SimMember | None = None
        self.wanted: Any = None

    def want(self, wanted: Any) -> None:
        if wanted is not None and self.member is None and not self.front.stopping:
            self.member = SimMember(self.front, self.front.cluster, self.look)
        elif wanted is None and self.member is not None:
            self.member.leaving, self.member = True, None
        self.wanted = wanted

    @property
    def idle(self) -> bool:
        return self.wanted is None

    def check(self) -> None:
        pass

    def look(self) -> None:
        asyncio.get_running_loop().call_soon(self._on_work, self)

    async def close(self) -> None:
        member, self.wanted = self.member, None
        if member is not None:
            member.leaving = True
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(5):
                    while any(kept.owner is member for kept in self.front.cluster.kept.values()):  # noqa: ASYNC110 - virtual time
                        await asyncio.sleep(0.05)
            for queue in QUEUES:
                if queue in member.lanes:
                    member.lanes.drop(queue)
        self.member = None


class SimRoutes:
    async def ordered(self, topics: Any) -> bool:
        return True


class SimFront:
    """One start of a front."""

    by_host: ClassVar[dict[Host | None, "SimFront"]] = {}
    _boots = iter(range(1, 1 << 60))

    def __init__(self, cluster: Cluster, loop: VirtualLoop, rng: random.Random) -> None:
        self.cluster, self.loop, self.rng = cluster, loop, rng
        self.clock = MachineClock(loop, 1.0, rng.randrange(1 << 30))
        self.host = Host("front", self.clock, loop)
        self.cut_off = self.stopping = False
        self.thawed = -10.0
        """When its last freeze ended."""
        options = FrontOptions(servers="localhost:1", longest_handler=LONGEST_HANDLER)
        routes: Any = SimRoutes()
        sender: Any = SimpleNamespace()
        self.service = self.host.context.run(
            FrontService, options, Access(None), routes, sender, f"boot{next(self._boots)}", self.clock
        )
        self.by_host[self.host] = self
        self.host.run(self.service.consumers.run())

    def thaw(self) -> None:
        self.loop.thaw(self.host)
        self.thawed = self.cluster.seconds()

    def kill(self) -> None:
        self.loop.end(self.host)
        for member in [each for each in self.cluster.members if each._front is self]:
            self.cluster.members.remove(member)

    async def stop(self) -> None:
        self.stopping = True
        await self.service.consumers.drain()
        self.kill()


class LostError(Exception):
    """The call has no answer."""


class SimClient:
    """One client: a process, its connection to a front, and what its language does."""

    def __init__(self, world: "World", number: int, kind: "Kind", *, healthy: bool) -> None:
        self.world, self.kind, self.healthy = world, kind, healthy
        self.rng = random.Random(f"{world.seed}-{number}")
        self.id = f"{kind.name}-{number}"
        self.host = Host(self.id, MachineClock(world.loop, 1.0, 0), world.loop)
        self.front = self.rng.choice(world.fronts)
        self.connection = 0
        self._calls: dict[asyncio.Task[Any], Parts] = {}
        self.old: list[m.WireMessage] = []

    def start(self) -> None:
        self.host.run(self.telemetry())
        self.host.run(self.heartbeats())
        for _ in range(1 if self.kind.simple else 2):
            self.host.run(self.receive_for_ever())

    # the network

    def head(self, method: str, seconds: float) -> CallHead:
        metadata = {"x-mq-client-id": self.id, "x-mq-language": self.kind.language}
        return CallHead(method, metadata, f"{self.id}:{self.connection}", seconds)

    def alive_front(self) -> SimFront:
        if self.front.host.dead:
            self.connection += 1
            self.front = self.rng.choice(self.world.fronts)
        return self.front

    async def call(self, method: str, request: object, answer: type[T], seconds: float = 3.0) -> T:
        front = self.alive_front()
        await asyncio.sleep(self.rng.uniform(0.0005, 0.01))
        work = front.host.run(front.service.answer(self.head(method, seconds), encode(request)))
        done = await self.within(work, seconds)
        if self.world.unlucky(self, 0.03):
            self.world.cluster.judge.seen["answers lost"] += 1
            raise LostError
        return decode(answer, done)

    async def within(self, work: "asyncio.Task[Any]", seconds: float) -> Any:
        waiter = asyncio.get_running_loop().create_future()
        work.add_done_callback(lambda _: waiter.done() or waiter.set_result(None))
        try:
            async with asyncio.timeout(seconds):
                await waiter
        except TimeoutError:
            work.cancel()
            raise LostError from None
        if work.cancelled():
            raise LostError
        return work.result()

    async def stream(self, request: m.ReceiveMessageRequest, seconds: float) -> list[m.ReceiveMessageResponse]:
        front = self.alive_front()
        await asyncio.sleep(self.rng.uniform(0.0005, 0.01))
        head = self.head("ReceiveMessage", seconds)
        parts = front.host.context.run(front.service.stream, head, encode(request))
        lost, silent = self.world.unlucky(self, 0.05), self.rng.random() < 0.5  # silent: the front has written it all
        answers: list[m.ReceiveMessageResponse] = []

        async def write() -> None:
            complete = False
            try:
                async for part in parts:
                    await asyncio.sleep(0)
                    answers.append(decode(m.ReceiveMessageResponse, part))
                complete = not lost or silent
            finally:
                parts.ended(complete=complete)

        work = front.host.run(write())
        self._calls[work] = parts
        try:
            await self.within(work, seconds)
        finally:
            self._calls.pop(work, None)
        if lost:
            self.world.cluster.judge.seen["answers lost"] += 1
            if not self.world.frozen(front):
                if silent:
                    self.connection_lost()
                    self.connection += 1
                self.world.loop.create_task(self._must_return(front, request.attempt_id or ""))
            raise LostError
        return answers

    async def _must_return(self, front: SimFront, attempt: str) -> None:
        """Clients that do not repeat a call do not have what its answer brought."""
        await asyncio.sleep(1.3)
        held = front.service.handing.hand_outs.of_client(self.id)
        if not self.kind.repeats_attempts and any(each.attempt_id == attempt for each in held):
            self.world.judge_gone(front, f"a lost answer's messages stay with {self.id}")

    def connection_lost(self) -> None:
        """As the front notices it: every open call ends."""
        for work in list(self._calls):
            work.cancel()

    def has_call(self) -> bool:
        return bool(self._calls)

    # life

    async def heartbeats(self) -> None:
        while True:
            await asyncio.sleep(10)
            with contextlib.suppress(LostError):
                await self.call("Heartbeat", m.HeartbeatRequest(m.Resource(name=GROUP)), m.StatusResponse)

    async def telemetry(self) -> None:
        """Java and Node open it again, Python and Go do not."""
        while True:
            front = self.alive_front()
            ends = asyncio.get_running_loop().create_future()
            parts = front.host.context.run(front.service.converse, self.head("Telemetry", 1e9), self._settings(ends))

            async def write(parts: Parts = parts) -> None:
                try:
                    async for _ in parts:
                        pass
                finally:
                    parts.ended(complete=False)

            work = front.host.run(write())
            self._calls[work] = parts
            with contextlib.suppress(LostError):
                await self.within(work, 1e9)
            self._calls.pop(work, None)
            if not self.kind.reopens:
                return
            await asyncio.sleep(1)

    async def _settings(self, ends: "asyncio.Future[None]") -> AsyncIterator[bytes]:
        entry = m.SubscriptionEntry(m.Resource(name=TOPIC), m.FilterExpression(1, "*"))
        subscription = m.Subscribing(m.Resource(name=GROUP), [entry])
        yield encode(m.TelemetryCommand(settings=m.Settings(m.ClientType.PUSH_CONSUMER, subscription=subscription)))
        await ends

    async def receive_for_ever(self) -> None:
        attempt = self._attempt()
        while True:
            kind = self.kind
            request = m.ReceiveMessageRequest(
                m.Resource(name=GROUP), m.QueueAt(m.Resource(name=TOPIC)), m.FilterExpression(1, "*"), kind.batch,
                auto_renew=not kind.simple, long_polling_timeout=m.Duration.of_ms(3000),
                invisible_duration=m.Duration.of_ms(4000) if kind.simple else None, attempt_id=attempt,
            )  # fmt: skip
            try:
                if self.world.unlucky(self, 0.02) and kind.repeats_attempts:
                    self.host.run(self.duplicate(request))
                answers = await self.stream(request, 4.0)
            except LostError:
                attempt = attempt if kind.repeats_attempts else self._attempt()
                await asyncio.sleep(0.05)
                continue
            attempt = self._attempt()
            batch = [each.message for each in answers if each.message is not None]
            if batch:
                processing = kind.process(self, batch)
                if kind.simple:
                    await processing
                else:
                    self.host.run(processing)
            elif answers and answers[0].status is not None and answers[0].status.code != Code.MESSAGE_NOT_FOUND:
                await asyncio.sleep(1)

    async def duplicate(self, request: m.ReceiveMessageRequest) -> None:
        """The same call twice at the same time: nobody reads the answer to the second one."""
        with contextlib.suppress(LostError):
            await self.stream(request, 4.0)

    def _attempt(self) -> str:
        return f"{self.id}-{self.rng.random()}"

    # handlers

    async def handle(self, message: m.WireMessage) -> bool:
        """Whether it succeeded."""
        system = message.system
        assert system is not None
        self.old = [*self.old[-5:], message]
        seconds = (
            self.rng.choice([0.001, 0.01, 0.05, 0.3]) if self.healthy else self.rng.choice([0.001, 0.05, 1.0, 6.0])
        )
        await asyncio.sleep(seconds)
        return self.healthy or self.rng.random() > 0.1

    async def acknowledge(self, message: m.WireMessage) -> int | None:
        """The status, None if the answer was lost."""
        system = message.system
        assert system is not None
        entries = [m.AckMessageEntry(system.message_id, system.receipt_handle or "")]
        request = m.AckMessageRequest(m.Resource(name=GROUP), m.Resource(name=TOPIC), entries)
        try:
            answer = await self.call("AckMessage", request, m.AckMessageResponse)
        except LostError:
            return None
        assert answer.status is not None
        if answer.status.code == Code.OK:
            self.world.cluster.judge.acknowledged(message)
        return answer.status.code

    async def until_acknowledged(self, message: m.WireMessage) -> None:
        """Most clients repeat it every second, until the handle is refused."""
        while await self.acknowledge(message) not in (Code.OK, Code.INVALID_RECEIPT_HANDLE):  # noqa: ASYNC110
            await asyncio.sleep(1)

    async def until_forwarded(self, message: m.WireMessage) -> None:
        system = message.system
        assert system is not None
        request = m.ForwardRequest(m.Resource(name=GROUP), m.Resource(name=TOPIC), system.receipt_handle or "", "")
        while True:
            with contextlib.suppress(LostError):
                answer = await self.call("ForwardMessageToDeadLetterQueue", request, m.StatusResponse)
                if answer.status is not None and answer.status.code == Code.OK:
                    return
            await asyncio.sleep(1)

    async def change(self, message: m.WireMessage, milliseconds: int) -> str | None:
        system = message.system
        assert system is not None
        request = m.ChangeInvisibleRequest(
            m.Resource(name=GROUP), m.Resource(name=TOPIC), system.receipt_handle or "",
            m.Duration.of_ms(milliseconds), system.message_id,
        )  # fmt: skip
        with contextlib.suppress(LostError):
            answer = await self.call("ChangeInvisibleDuration", request, m.ChangeInvisibleResponse)
            if answer.status is not None and answer.status.code == Code.OK:
                return answer.receipt_handle
        return None


# what each language does in a batch (section 2.2 of the notes on the gRPC clients)


async def one_after_the_other(client: SimClient, batch: list[m.WireMessage]) -> None:
    """Java and Node: the next message when the last one is acknowledged, or forwarded."""
    for message in batch:
        done = await client.handle(message)
        await (client.until_acknowledged(message) if done else client.until_forwarded(message))


async def by_key(client: SimClient, batch: list[m.WireMessage]) -> None:
    """Python: keys beside each other."""
    lanes: defaultdict[str, list[m.WireMessage]] = defaultdict(list)
    for message in batch:
        assert message.system is not None
        lanes[message.system.message_group or ""].append(message)
    await asyncio.gather(*(one_after_the_other(client, lane) for lane in lanes.values()))


async def overtaking(client: SimClient, batch: list[m.WireMessage]) -> None:
    """Go and C#: the next message before the decision about a failed one has arrived."""
    for message in batch:
        done = await client.handle(message)
        decision = client.until_acknowledged(message) if done else client.until_forwarded(message)
        client.host.run(decision)


async def nacking(client: SimClient, batch: list[m.WireMessage]) -> None:
    """C++: a failed message is made visible later; with more than one it would repeat it for ever."""
    if len(batch) > 1:
        client.world.cluster.judge.problem("a C++ client got more than one message")
    for message in batch:
        if await client.handle(message):
            await client.until_acknowledged(message)
        else:
            await client.change(message, 500)


async def losing_acknowledgements(client: SimClient, batch: list[m.WireMessage]) -> None:
    """Rust with its accelerator: an acknowledgement that fails is dropped, and the message stays with the client."""
    for message in batch:
        if await client.handle(message):
            await client.acknowledge(message)
        else:
            await client.until_forwarded(message)


async def careless(client: SimClient, batch: list[m.WireMessage]) -> None:
    """A simple consumer: in any order, too late, twice, not at all, with old handles, and with more time asked for."""
    rng = client.rng
    for message in rng.sample(batch, len(batch)) if not client.healthy else batch:
        system = message.system
        assert system is not None
        if not client.healthy and rng.random() < 0.3:
            handle = await client.change(message, rng.choice([1000, 8000]))
            if handle is not None and rng.random() < 0.8:
                system.receipt_handle = handle
        done = await client.handle(message)
        if not client.healthy and (not done or rng.random() < 0.1):
            continue
        await client.acknowledge(message)
        if not client.healthy and client.old and rng.random() < 0.3:
            await client.acknowledge(rng.choice(client.old))


@dataclass(frozen=True)
class Kind:
    name: str
    language: str
    process: Callable[[SimClient, list[m.WireMessage]], Any]
    repeats_attempts: bool
    reopens: bool = False
    batch: int = 32
    simple: bool = False


KINDS = (
    Kind("java", "JAVA", one_after_the_other, repeats_attempts=True, reopens=True),
    Kind("node", "HTTP", one_after_the_other, repeats_attempts=True, reopens=True),
    Kind("python", "PYTHON", by_key, repeats_attempts=True),
    Kind("go", "GO", overtaking, repeats_attempts=False),
    Kind("csharp", "DOT_NET", overtaking, repeats_attempts=True),
    Kind("cpp", "CPP", nacking, repeats_attempts=True),
    Kind("rust", "RUST", losing_acknowledgements, repeats_attempts=False),
    Kind("simple", "JAVA", careless, repeats_attempts=False, batch=3, simple=True),
)


class World:
    """One seed."""

    def __init__(self, seed: int) -> None:
        self.seed, self.rng = seed, random.Random(seed)
        self.loop = VirtualLoop(self._error)
        self.cluster = Cluster(self.loop)
        self.fronts = [SimFront(self.cluster, self.loop, self.rng) for _ in range(2)]
        self.clients: list[SimClient] = []
        self.faults = True
        self._numbers = iter(range(1, 1 << 30))

    def _error(self, host: Host | None, context: dict[str, Any]) -> None:
        if host is None or not host.dead:
            self.cluster.judge.problem(f"error in {host}: {context.get('exception')!r} {context.get('message')}")

    def unlucky(self, client: SimClient, chance: float) -> bool:
        return self.faults and not client.healthy and client.rng.random() < chance

    def add(self, kind: Kind, *, healthy: bool = False) -> SimClient:
        client = SimClient(self, next(self._numbers), kind, healthy=healthy)
        self.clients.append(client)
        client.start()
        return client

    async def play(self) -> None:
        rng = self.rng
        for kind in rng.sample(KINDS, 4):
            self.add(kind)
        sending = asyncio.create_task(self._send())
        while self.cluster.seconds() < FAULT_SECONDS:
            await asyncio.sleep(rng.uniform(0.2, 3))
            await self._fault(rng.choice(FAULTS))
        self.faults = False
        await sending
        for client in self.clients:
            client.healthy = True
            if client.host.frozen:
                self.loop.thaw(client.host)
        for front in self.fronts:
            front.cut_off = False
        for kind in (KINDS[0], KINDS[2], KINDS[7]):
            self.add(kind, healthy=True)
        until = self.cluster.seconds() + END_SECONDS
        while self.cluster.seconds() < until and not self._all_reported():  # noqa: ASYNC110
            await asyncio.sleep(1)
        self.cluster.judge.ended()

    def _all_reported(self) -> bool:
        return all(kept.offset == len(kept.log) for kept in self.cluster.kept.values())

    async def _send(self) -> None:
        for number in range(MESSAGES):
            self.cluster.store(f"k{number % KEYS}", number // KEYS)
            await asyncio.sleep(self.rng.uniform(0, 2 * FAULT_SECONDS * 0.8 / MESSAGES))

    async def _fault(self, what: str) -> None:
        rng, seen = self.rng, self.cluster.judge.seen
        alive = [client for client in self.clients if not client.host.dead and not client.host.frozen]
        client, front = rng.choice(alive) if alive else None, rng.choice(self.fronts)
        seen[what] += 1
        if what == "kill client" and client is not None:
            self.loop.create_task(self._killed(client))
            self.add(rng.choice(KINDS))
        elif what == "freeze client" and client is not None:
            self.loop.create_task(self._frozen(client, rng.uniform(0.1, 12)))
        elif what == "end client" and client is not None:
            await self._ends(client)
            self.add(rng.choice(KINDS))
        elif what == "lose connection" and client is not None:
            client.connection_lost()
        elif what == "cut front off" and not front.cut_off:
            front.cut_off = True
            self.loop.call_later(rng.uniform(0.1, 3), setattr, front, "cut_off", False)
        elif what == "freeze front" and not front.host.frozen:
            front.host.frozen = True
            self.loop.call_later(rng.uniform(0.05, 3), front.thaw)
        elif what in ("kill front", "stop front"):
            self.fronts[self.fronts.index(front)] = SimFront(self.cluster, self.loop, rng)
            if what == "kill front":
                self.loop.thaw(front.host)
                front.kill()
            else:
                front.host.run(front.stop())

    async def _killed(self, client: SimClient) -> None:
        had_call = client.has_call() and not client.front.host.frozen
        front = client.front
        self.loop.end(client.host)
        client.connection_lost()
        await asyncio.sleep(1.2 if had_call else 31.5)
        self._nothing_with(client, front)

    async def _frozen(self, client: SimClient, seconds: float) -> None:
        client.host.frozen = True
        await asyncio.sleep(min(seconds, PING_SECONDS))
        if seconds > PING_SECONDS:
            client.connection_lost()
            await asyncio.sleep(seconds - PING_SECONDS)
        self.loop.thaw(client.host)

    async def _ends(self, client: SimClient) -> None:
        front = client.front
        self.loop.end(client.host)
        head = client.head("NotifyClientTermination", 3)
        request = encode(m.TerminationRequest(m.Resource(name=GROUP)))
        if not front.host.dead:
            await client.within(front.host.run(front.service.answer(head, request)), 30)
            self._nothing_with(client, front)
        client.connection_lost()

    def frozen(self, front: SimFront) -> bool:
        return front.host.dead or front.host.frozen or front.stopping

    def judge_gone(self, front: SimFront, text: str) -> None:
        if not self.frozen(front) and front.thawed + 2 < self.cluster.seconds():
            self.cluster.judge.problem(text)

    def _nothing_with(self, client: SimClient, front: SimFront) -> None:
        if self.frozen(front):
            return
        held = front.service.handing.hand_outs.of_client(client.id)
        if held:
            self.cluster.judge.problem(f"{client.id} is gone and has {len(held)} runs")


FAULTS = (
    "kill client", "freeze client", "end client", "lose connection", "cut front off", "freeze front", "kill front",
    "stop front",
)  # fmt: skip


@contextlib.contextmanager
def simulated_groups() -> Iterator[None]:
    """Fronts have `SimGroup`s inside."""
    real: Any = consumers_module.FrontGroup
    consumers_module.FrontGroup = SimGroup  # type: ignore[misc, assignment]
    try:
        yield
    finally:
        consumers_module.FrontGroup = real  # type: ignore[misc]


def played(seed: int) -> Judge:
    """Plays a seed; the judge knows what was wrong."""
    world: World | None = None
    with simulated_groups():
        loop_error: Exception | None = None
        try:
            world = World(seed)
            asyncio.set_event_loop(world.loop)
            world.loop.run_until_complete(world.play())
        except RuntimeError as error:
            loop_error = error
        finally:
            asyncio.set_event_loop(None)
    assert world is not None
    if loop_error is not None:
        world.cluster.judge.problem(repr(loop_error))
    for task in asyncio.all_tasks(world.loop):
        task.cancel()
    world.loop.close()
    return world.cluster.judge


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--seeds", type=int, default=100)
    parser.add_argument("--start", type=int, default=0)
    options = parser.parse_args()
    failed, seen = [], defaultdict[str, int](int)
    for seed in range(options.start, options.start + options.seeds):
        judge = played(seed)
        for what, count in judge.seen.items():
            seen[what] += count
        if judge.problems:
            failed.append(seed)
            print(f"seed {seed} failed:", *judge.problems[:5], sep="\n  ", flush=True)
    print(f"{options.seeds} seeds, {len(failed)} failed: {failed}")
    print(", ".join(f"{count} {what}" for what, count in sorted(seen.items())))
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
