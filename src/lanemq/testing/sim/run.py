"""Runs one seed: starts everything, causes faults, repairs them, waits until all is consumed, and judges the run."""

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
from lanemq.testing.sim.consumers import (
    CONCURRENT,
    LANES,
    POLLING,
    BroadcastProgram,
    ConcurrentProgram,
    ConsumerProgram,
    HandlerProgram,
    PollingProgram,
)
from lanemq.testing.sim.effects import SimTable
from lanemq.testing.sim.faults import Faults
from lanemq.testing.sim.judge import Result, checked, record_log
from lanemq.testing.sim.operator import Operator
from lanemq.testing.sim.plan import Plan, plan_of
from lanemq.testing.sim.producers import AUDIT, ORDERS, ProducerProgram
from lanemq.testing.sim.world import ProblemLog, SeededOrigin, World

SETTLE_SECONDS = 2.0
"""Time for what was in flight when the faults ended to arrive."""

MAX_STALL_SECONDS = 45.0
"""Virtual time without progress after the faults, after which the run has failed."""

MAX_SECONDS = 600.0
"""Virtual time after which a run is given up."""


def run_seed(seed: int, listen: Callable[[str], None] | None = None) -> Result:
    """Runs a seed; the same seed always gives the same result. `listen` is called with every line of the trace."""
    return run_plan(plan_of(seed), listen)


def run_plan(plan: Plan, listen: Callable[[str], None] | None = None) -> Result:
    """As `run_seed`, for a given plan."""
    with quiet_collector():
        return _run_in_memory(plan, listen)


def _run_in_memory(plan: Plan, listen: Callable[[str], None] | None) -> Result:
    with tempfile.TemporaryDirectory(prefix="lanemq-sim-", dir=_memory()) as name:
        folder = Path(name)
        (folder / "data").mkdir()
        world = World(plan, folder / "data", listen)
        with own_identity(world), errors_as_problems(world):
            Simulation(world).run()
        problems = [*world.problems, *checked(world, folder / "history")]
    trace = world.trace
    return Result(plan.seed, problems, trace.digest(), world.loop.time(), dict(trace.seen), list(trace.last))


class Simulation:
    """One run: its producers, consumers, tables and operator."""

    def __init__(self, world: World) -> None:
        plan = world.plan
        self.world = world
        self.tables = {group: SimTable(group, world.trace) for group in (LANES, POLLING)}
        self.producers = [ProducerProgram(world, f"p{n}") for n in range(plan.producers)]
        self.consumers: list[ConsumerProgram] = [
            *(HandlerProgram(world, f"c{n}", self.tables[LANES]) for n in range(plan.members + plan.late)),
            *(PollingProgram(world, f"h{n}", self.tables[POLLING]) for n in range(plan.polling)),
            *(ConcurrentProgram(world, f"u{n}", self.tables[LANES]) for n in range(plan.concurrent)),
            *(BroadcastProgram(world, f"b{n}", self.tables[LANES]) for n in range(plan.broadcasting)),
        ]
        self.programs: list[ProducerProgram | ConsumerProgram] = [*self.producers, *self.consumers]
        self.late = [f"c{n}" for n in range(plan.members, plan.members + plan.late)]
        world.broker.groups_of = self._groups_of
        world.histories.listeners.append(self._forget_deleted)

    def run(self) -> None:
        loop = self.world.loop
        asyncio.set_event_loop(loop)
        try:
            loop.run_until_complete(self._limited())
        except Exception as error:  # noqa: BLE001 - any error is a failure of the seed
            self.world.problem(f"the run ended with {error!r}")
        finally:
            clean_up(self.world)

    async def _limited(self) -> None:
        async with asyncio.timeout(MAX_SECONDS):
            await self._steps()

    async def _steps(self) -> None:
        world = self.world
        await world.broker.start()
        self.operator = Operator(world)
        assert await self.operator.create(ORDERS, world.plan.orders_queues)
        assert await self.operator.create(AUDIT, world.plan.audit_queues)
        for program in self.programs:
            if program.name not in self.late:
                program.start()
        await Faults(world, self.producers, self.consumers, self.operator).run()
        await self._repair()
        if await self._drained():
            await self._end()

    async def _repair(self) -> None:
        """Ends all faults and starts every process that is not running."""
        world = self.world
        world.trace.note("operator", "repairs everything")
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
        """Waits until everything is sent and consumed. It is a problem if there is no progress before that."""
        world = self.world
        await asyncio.sleep(SETTLE_SECONDS)
        before, since = None, world.loop.time()
        while left := self._left() or await self._left_later():
            if left != before:
                before, since = left, world.loop.time()
            if world.loop.time() > since + MAX_STALL_SECONDS:
                world.problem(f"no progress for {MAX_STALL_SECONDS:.0f} s after the faults: {'; '.join(left[:5])}")
                return False
            await asyncio.sleep(0.25)
            if world.plan.parking:
                for lane in await self.operator.parked():
                    await self.operator.redrive(lane)
        world.trace.note("operator", "everything is drained")
        return True

    async def _left_later(self) -> list[str]:
        """What is left a little later: a message that a producer gave up may still be in flight."""
        await asyncio.sleep(SETTLE_SECONDS)
        return self._left()

    def _left(self) -> list[str]:
        sending = [f"{each.name} has sent {each.sent}" for each in self.producers if not each.done]
        broker = self.world.broker.broker
        return sending or (broker.undone if broker is not None else ["the broker is down"])

    async def _end(self) -> None:
        """Stops everything cleanly, records the log, and collects the problems of the tables."""
        world = self.world
        for program in self.consumers:
            await program.leave()
        await world.broker.stop()
        store = world.broker.open_log()
        store.recover()
        record_log(world, store)
        store.close()
        for table in self.tables.values():
            for text in table.problems:
                world.problem(text)

    def _groups_of(self, topic: str) -> list[str]:
        plan = self.world.plan
        groups = {
            ORDERS: [LANES, *([POLLING] if plan.polling else []), *([CONCURRENT] if plan.concurrent else [])],
            AUDIT: [LANES],
            retry_topic(CONCURRENT): [CONCURRENT] if plan.concurrent else [],
        }
        return groups.get(topic, [])

    def _forget_deleted(self, process: str, event: str, line: dict[str, Any]) -> None:
        broker = self.world.broker.broker
        if event == "topic_deleted" and broker is not None:
            for table in self.tables.values():
                table.forget(line["topic"], broker.log_end)


def clean_up(world: World) -> None:
    """Ends what a failed run has left, so that it does not disturb the next one."""
    loop = world.loop
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
    """A folder in memory, if the system has one."""
    return "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


@contextlib.contextmanager
def quiet_collector() -> Iterator[None]:
    """Turns garbage collection off: it would end unreachable objects at a time that does not follow from the seed.

    Afterwards the objects of the run are collected, and only those: walking all others would take as long as the run.
    """
    was_on = gc.isenabled()
    gc.disable()
    gc.freeze()
    try:
        yield
    finally:
        gc.collect()
        gc.unfreeze()
        if was_on:
            gc.enable()


@contextlib.contextmanager
def own_identity(world: World) -> Iterator[None]:
    before = identity.origin
    identity.origin = SeededOrigin(world.random("identity"))
    try:
        yield
    finally:
        identity.origin = before


@contextlib.contextmanager
def errors_as_problems(world: World) -> Iterator[None]:
    """Turns logged errors into problems of the run; nothing is printed."""
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
