"""Runs one seed of the second shape: faults, repairs, a drain, and a verdict.

    python -m lanemq.testing.sim --coordinated --seeds 300

The operator compares logs and drops what is not the same, as the coordinator's error asks for.
"""

import asyncio
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

from lanemq.client.consumer.app import App
from lanemq.client.message import Message
from lanemq.model.errors import LaneError
from lanemq.model.queue import MessageQueue
from lanemq.net.address import Address
from lanemq.net.calling.connection import open_connection
from lanemq.testing.sim.consumers import ConsumerProgram
from lanemq.testing.sim.coordinated.ledger import Ledger, LoggedMessage
from lanemq.testing.sim.coordinated.machine import COORDINATOR, COORDINATOR_ADDRESS, CoordinatorMachine
from lanemq.testing.sim.histories import SimHistory
from lanemq.testing.sim.host import Host
from lanemq.testing.sim.judge import Result
from lanemq.testing.sim.operator import Operator
from lanemq.testing.sim.plan import Plan, plan_of
from lanemq.testing.sim.producers import ORDERS, ProducerProgram
from lanemq.testing.sim.run import clean_up, errors_as_problems, own_identity, quiet_collector
from lanemq.testing.sim.world import SERVERS, World
from lanemq.testing.stock_broker import stock_rules, stores_repeats
from lanemq.wire.codes import RequestCode
from lanemq.wire.command import Command
from lanemq.wire.lane_bodies import CompareBody, CoordinateBody
from lanemq.wire.log_marks import log_mark
from lanemq.wire.record import RecordView, record_starts

GROUP = "members"
BROKER = "lanemq"
ANSWER_SECONDS = 5.0
MAX_STALL_SECONDS = 90.0
MAX_SECONDS = 600.0
FAULTS = (
    "member killed", "member frozen", "coordinator killed", "coordinator frozen", "broker killed", "log truncated",
    "answer lost", "connection cut", "member killed", "answer lost",
)  # fmt: skip


def run_seed(seed: int, listen: Callable[[str], None] | None = None) -> Result:
    """Runs a seed; the same seed always gives the same result."""
    return run_plan(coordinated_plan(seed), listen)


def coordinated_plan(seed: int) -> Plan:
    """As in the first shape, with one topic, and a broker that acknowledges what is not on its disk yet."""
    plan = plan_of(seed)
    return replace(plan, faults=FAULTS, durable=False, members=max(2, plan.members), parking=False, dead_letters=False)


def run_plan(plan: Plan, listen: Callable[[str], None] | None = None) -> Result:
    with quiet_collector(), tempfile.TemporaryDirectory(prefix="lanemq-sim-", dir="/dev/shm") as name:
        folder = Path(name)
        (folder / "data").mkdir()
        world = World(plan, folder / "data", listen)
        with own_identity(world), errors_as_problems(world), stock_rules(), stores_repeats():
            CoordinatedRun(world, folder / "coordinator").run()
    trace = world.trace
    return Result(plan.seed, world.problems, trace.digest(), world.loop.time(), dict(trace.seen), list(trace.last))


class OrdersMember(ConsumerProgram):
    """A member of the coordinated group. A failure holds its key."""

    group = GROUP
    _app: App | None = None

    async def _run(self, host: Host, history: SimHistory) -> None:
        self._app = app = App(SERVERS, group=GROUP, **self.options(host, history))

        @app.ordered(ORDERS, on_fail=self.hold, lanes=4)
        async def on_order(message: Message) -> None:
            await self.work(message, history)

        await app.run_async()

    def ask_to_end(self) -> None:
        if self._app is not None:
            self._app.stop()


class OrdersProducer(ProducerProgram):
    """Sends to one topic only."""

    def _topic(self) -> str:
        return ORDERS


class CoordinatedRun:
    """One run: its processes, its faults, and its operator."""

    def __init__(self, world: World, folder: Path) -> None:
        plan = world.plan
        self.world = world
        self.random = world.random("faults of the coordinated run")
        self.coordinator = CoordinatorMachine(world, folder)
        self.ledger = Ledger(world)
        table: Any = self.ledger
        self.producers = [OrdersProducer(world, f"p{n}") for n in range(plan.producers)]
        self.members = [OrdersMember(world, f"c{n}", table) for n in range(plan.members)]
        self.programs: list[OrdersProducer | OrdersMember] = [*self.producers, *self.members]
        self._operator_host = world.new_host("clerk")

    def run(self) -> None:
        loop = self.world.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(asyncio.wait_for(self._steps(), MAX_SECONDS))
        except Exception as error:  # noqa: BLE001 - any error is a failure of the seed
            self.world.problem(f"the run ended with {error!r}")
        finally:
            self._clean_up()

    async def _steps(self) -> None:
        world = self.world
        await world.broker.start()
        assert await Operator(world).create(ORDERS, world.plan.orders_queues)
        await self.coordinator.start()
        assert await self._ask(RequestCode.LANE_COORDINATE, CoordinateBody(group=GROUP, apply=True).encode())
        for program in self.programs:
            program.start()
        await self._faults()
        await self._repair()
        if await self._drained():
            self.ledger.judge(await self._log())

    # faults

    async def _faults(self) -> None:
        plan, end = self.world.plan, self.world.loop.time() + self.world.plan.chaos_seconds
        kinds: dict[str, Callable[[], Coroutine[Any, Any, None]]] = {
            "member killed": self._member_killed,
            "member frozen": lambda: self._frozen(self.random.choice(self.members).name),
            "coordinator killed": self._coordinator_killed,
            "coordinator frozen": lambda: self._frozen(COORDINATOR),
            "broker killed": lambda: self._broker_lost(power=False),
            "log truncated": lambda: self._broker_lost(power=True),
            "answer lost": self._answer_lost,
            "connection cut": self._connection_cut,
        }
        async with asyncio.TaskGroup() as tasks:
            while self.world.loop.time() < end:
                await asyncio.sleep(self.random.expovariate(1000 / plan.calm_ms))
                kind = self.random.choice(plan.faults)
                self.world.trace.note("fault", kind)
                self.world.trace.count(kind)
                tasks.create_task(kinds[kind]())

    async def _member_killed(self) -> None:
        member = self.random.choice(self.members)
        if member.alive:
            member.kill()
            await asyncio.sleep(self.random.uniform(0.1, 6))
            if not member.alive:
                member.start()

    async def _frozen(self, name: str) -> None:
        host = self.world.hosts[name]
        if not (host.frozen or host.dead):
            host.frozen = True
            await asyncio.sleep(self.random.choice((self.random.uniform(0.2, 3), self.random.uniform(5, 12))))
            if host.frozen:
                self.world.loop.thaw(host)

    async def _coordinator_killed(self) -> None:
        if self.coordinator.up and not self.world.hosts[COORDINATOR].frozen:
            self.coordinator.kill()
            await asyncio.sleep(self.random.uniform(0.1, 5))
            await self.coordinator.start()

    async def _broker_lost(self, *, power: bool) -> None:
        """The broker is killed. With its power it loses the end of its log, which grows again."""
        broker = self.world.broker
        if not broker.up:
            return
        if power:
            broker.lose_power()
        else:
            broker.kill()
        await asyncio.sleep(self.random.uniform(0.1, 3))
        await broker.start()

    async def _answer_lost(self) -> None:
        if ends := self.world.network.of("broker"):
            self.random.choice(ends).fuse = self.random.randint(1, 5)

    async def _connection_cut(self) -> None:
        if ends := self.world.network.of(self.random.choice([COORDINATOR, "broker"])):
            self.world.network.cut(self.random.choice(ends), "by the run")

    async def _repair(self) -> None:
        world = self.world
        world.trace.note("operator", "repairs everything")
        world.network.heal_all()
        await world.broker.start()
        await self.coordinator.start()
        world.healed.set()
        for program in self.programs:
            if not program.alive and not (isinstance(program, ProducerProgram) and program.done):
                program.start()

    # the end

    async def _drained(self) -> bool:
        before, since = None, self.world.loop.time()
        while left := self._left():
            if left != before:
                before, since = left, self.world.loop.time()
            if self.world.loop.time() > since + MAX_STALL_SECONDS:
                self.world.problem(f"no progress for {MAX_STALL_SECONDS:.0f} s after the faults: {'; '.join(left[:5])}")
                return False
            await asyncio.sleep(0.5)
            await self._ask(RequestCode.LANE_COMPARE, CompareBody(group=GROUP, apply=True).encode())
        return True

    def _left(self) -> list[str]:
        sending = [f"{each.name} has sent {each.sent}" for each in self.producers if not each.done]
        broker, coordinator = self.world.broker.broker, self.coordinator.coordinator
        if sending or broker is None or coordinator is None or not coordinator.leads:
            return sending or ["a server is down"]
        progress, store = coordinator.running.context.progress, broker.running.context.store
        left = [f"{lane.name} has {len(lane.offsets)}" for each in progress.parked() for lane in each.lanes.values()]
        for number in range(self.world.plan.orders_queues):
            end, done = store.bounds(ORDERS, number)[1], progress.at(GROUP, MessageQueue(ORDERS, BROKER, number)).offset
            if end != (done or 0):
                left.append(f"the group is at {done} of {end} in queue {number}")
        return left

    async def _log(self) -> dict[MessageQueue, list[LoggedMessage]]:
        """Ends everything, and reads the log."""
        for member in self.members:
            await member.leave()
        self.coordinator.kill()
        await self.world.broker.stop()
        store, log = self.world.broker.open_log(), dict[MessageQueue, list[LoggedMessage]]()
        store.recover()
        for number in range(self.world.plan.orders_queues):
            messages, (offset, end) = list[LoggedMessage](), store.bounds(ORDERS, number)
            while offset < end:
                result = store.read(ORDERS, number, offset, 1000, 1 << 22)
                for view in (RecordView(result.data, at) for at in record_starts(result.data)):
                    messages.append(LoggedMessage(view.properties["__SHARDINGKEY"], log_mark(view)))
                offset = result.next_offset
            log[MessageQueue(ORDERS, BROKER, number)] = messages
        store.close()
        return log

    async def _ask(self, code: RequestCode, body: bytes) -> bool:
        """A request to the coordinator; whether it succeeded."""
        succeeded: bool = await self._operator_host.run(_answered(COORDINATOR_ADDRESS, Command(code, 0, body=body)))
        return succeeded

    def _clean_up(self) -> None:
        self.coordinator.kill()
        clean_up(self.world)


async def _answered(address: Address, command: Command) -> bool:
    try:
        connection = await open_connection(address)
        try:
            return (await connection.request(command, ANSWER_SECONDS)).code == 0
        finally:
            connection.close()
    except LaneError:
        return False
