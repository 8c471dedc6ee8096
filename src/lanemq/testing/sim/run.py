"""One seed from beginning to end: start everything, let it be hurt, heal it, let it drain, judge it."""

import asyncio
import contextlib
import gc
import logging
import os
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from lanemq.client import identity
from lanemq.model.names import retry_topic
from lanemq.testing.sim.consumers import CROWD, HANDS, LANES, ConsumerProgram, HandlerProgram, HandProgram
from lanemq.testing.sim.effects import Table
from lanemq.testing.sim.faults import Faults
from lanemq.testing.sim.judge import Result, checked, write_down_log
from lanemq.testing.sim.loose_consumers import BroadcastProgram, CrowdProgram
from lanemq.testing.sim.operator import Operator
from lanemq.testing.sim.plan import Plan, plan_of
from lanemq.testing.sim.producers import AUDIT, ORDERS, ProducerProgram
from lanemq.testing.sim.world import ProblemLog, SeededOrigin, World

SETTLE_SECONDS = 2.0
"""Until everything has arrived that was under way when the faults ended."""

PATIENCE_SECONDS = 45.0
"""Virtual time in which something must have been sent or consumed, once nothing hinders anybody any more."""

LONGEST_SECONDS = 600.0
"""Virtual time after which a run is given up: something waits for what never comes."""


def run_seed(seed: int, listen: Callable[[str], None] | None = None) -> Result:
    """What became of a seed; the same seed always gives the same result. `listen` hears every line of the trace."""
    return run_plan(plan_of(seed), listen)


def run_plan(plan: Plan, listen: Callable[[str], None] | None = None) -> Result:
    with tempfile.TemporaryDirectory(prefix="lanemq-sim-", dir=_memory()) as name, _quiet_collector():
        folder = Path(name)
        (folder / "data").mkdir()
        world = World(plan, folder / "data", listen)
        with _own_identity(world), _listening_to_logs(world):
            Scene(world).play()
        found = [*world.problems, *checked(world, folder / "history")]
    trace = world.trace
    return Result(plan.seed, found, trace.digest(), world.loop.time(), dict(trace.seen), list(trace.last))


class Scene:
    """Everybody who takes part in a run."""

    def __init__(self, world: World) -> None:
        plan = world.plan
        self.world = world
        self.tables = {group: Table(group, world.trace) for group in (LANES, HANDS)}
        self.producers = [ProducerProgram(world, f"p{n}") for n in range(plan.producers)]
        self.consumers: list[ConsumerProgram] = [
            *(HandlerProgram(world, f"c{n}", self.tables[LANES]) for n in range(plan.members + plan.late)),
            *(HandProgram(world, f"h{n}", self.tables[HANDS]) for n in range(plan.hands)),
            *(CrowdProgram(world, f"u{n}", self.tables[LANES]) for n in range(plan.concurrent)),
            *(BroadcastProgram(world, f"b{n}", self.tables[LANES]) for n in range(plan.broadcasting)),
        ]
        self.programs: list[ProducerProgram | ConsumerProgram] = [*self.producers, *self.consumers]
        self.late = [f"c{n}" for n in range(plan.members, plan.members + plan.late)]
        world.broker.groups_of = self._groups_of
        world.histories.listeners.append(self._hear)

    def play(self) -> None:
        loop = self.world.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._limited())
        except Exception as error:  # noqa: BLE001 - whatever it is, the seed has failed and says so
            self.world.problem(f"the run ended with {error!r}")
        finally:
            self._clean_up(loop)

    async def _limited(self) -> None:
        async with asyncio.timeout(LONGEST_SECONDS):
            await self._play()

    async def _play(self) -> None:
        world = self.world
        await world.broker.start()
        self.operator = Operator(world)
        assert await self.operator.create(ORDERS, world.plan.orders_queues)
        assert await self.operator.create(AUDIT, world.plan.audit_queues)
        for program in self.programs:
            if program.name not in self.late:
                program.start()
        await Faults(world, self.producers, self.consumers, self.operator).run()
        await self._heal()
        if await self._drained():
            await self._end()

    async def _heal(self) -> None:
        """Nothing hinders anybody any more, and everybody is there."""
        world = self.world
        world.trace.note("operator", "heals everything")
        world.broker.disk.cut_after = 0
        world.broker.disk.failing.clear()
        world.network.heal_all()
        if world.broker.broker is not None and world.broker.up and world.broker.broker.read_only:
            world.broker.kill()
        await world.broker.start()
        world.healed.set()
        for program in self.programs:
            if not program.alive and not (isinstance(program, ProducerProgram) and program.done):
                program.start()

    async def _drained(self) -> bool:
        """Waits until everything is sent and consumed; if nothing moves any more before that, it is a problem."""
        world = self.world
        await asyncio.sleep(SETTLE_SECONDS)
        before, since = None, world.loop.time()
        while left := self._left() or await self._left_later():
            if left != before:
                before, since = left, world.loop.time()
            if world.loop.time() > since + PATIENCE_SECONDS:
                world.problem(f"healed, and nothing has moved for {PATIENCE_SECONDS:.0f} s: {'; '.join(left[:5])}")
                return False
            await asyncio.sleep(0.25)
            if world.plan.parking:
                for lane in await self.operator.parked():
                    await self.operator.redrive(lane)
        world.trace.note("operator", "everything is drained")
        return True

    async def _left_later(self) -> list[str]:
        """What a producer has given up may still be on its way."""
        await asyncio.sleep(SETTLE_SECONDS)
        return self._left()

    def _left(self) -> list[str]:
        sending = [f"{each.name} has sent {each.sent}" for each in self.producers if not each.done]
        broker = self.world.broker.broker
        return sending or (broker.undone if broker is not None else ["the broker is down"])

    async def _end(self) -> None:
        """Everybody leaves in order; then the log is read, and the tables are asked."""
        world = self.world
        for program in self.consumers:
            await program.leave()
        await world.broker.stop()
        store = world.broker.open_log()
        store.recover()
        write_down_log(world, store)
        store.close()
        for table in self.tables.values():
            for text in table.problems:
                world.problem(text)

    def _groups_of(self, topic: str) -> list[str]:
        plan = self.world.plan
        groups = {
            ORDERS: [LANES, *([HANDS] if plan.hands else []), *([CROWD] if plan.concurrent else [])],
            AUDIT: [LANES],
            retry_topic(CROWD): [CROWD] if plan.concurrent else [],
        }
        return groups.get(topic, [])

    def _hear(self, process: str, event: str, line: dict[str, Any]) -> None:
        broker = self.world.broker.broker
        if event == "topic_deleted" and broker is not None:
            for table in self.tables.values():
                table.forget(line["topic"], broker.log_end)

    def _clean_up(self, loop: asyncio.AbstractEventLoop) -> None:
        """Ends what a failed run has left, so that the next one does not hear of it."""
        world = self.world
        if world.broker.up:
            world.broker.kill()
        for host in world.hosts.values():
            world.loop.end(host)
        tasks = asyncio.all_tasks(loop)
        for task in tasks:
            task.cancel()
        if tasks:
            loop.run_until_complete(asyncio.wait(tasks))
        loop.run_until_complete(asyncio.sleep(0.001))
        loop.close()
        asyncio.set_event_loop(None)


def _memory() -> str | None:
    """Where files cost nothing, if the system has such a place."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def _quiet_collector() -> Iterator[None]:
    """A collection in the middle of a run would end what is unreachable at a moment that no seed decides."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        gc.collect(0)  # nothing was collected meanwhile, so all of the run's objects are young
        if was_on:
            gc.enable()


@contextlib.contextmanager
def _own_identity(world: World) -> Iterator[None]:
    before = identity.origin
    identity.origin = SeededOrigin(world.random("identity"))
    try:
        yield
    finally:
        identity.origin = before


@contextlib.contextmanager
def _listening_to_logs(world: World) -> Iterator[None]:
    """Errors become problems of the run; nothing is printed."""
    logger, handler = logging.getLogger("lanemq"), ProblemLog(world)
    before = logger.level, logger.propagate
    logger.addHandler(handler)
    logger.setLevel(logging.ERROR)
    logger.propagate = False
    try:
        yield
    finally:
        logger.removeHandler(handler)
        logger.setLevel(before[0])
        logger.propagate = before[1]
