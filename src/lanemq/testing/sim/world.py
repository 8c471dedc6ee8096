"""The simulated world of one run: loop, network, machines with their clocks, and what was recorded in it."""

import asyncio
import logging
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from lanemq.broker.config import BrokerOptions
from lanemq.client import identity
from lanemq.net.address import Address
from lanemq.testing.sim.broker import BrokerMachine
from lanemq.testing.sim.histories import Histories, RunWatch
from lanemq.testing.sim.host import HERE, Host, MachineClock
from lanemq.testing.sim.loop import VirtualLoop
from lanemq.testing.sim.network import Network
from lanemq.testing.sim.plan import Plan
from lanemq.testing.sim.trace import Trace

ADDRESS = Address("10.0.0.1", 9876)
SERVERS = str(ADDRESS)


class World:
    """Created for every run; everything random in it comes from the plan's seed."""

    def __init__(self, plan: Plan, folder: Path, listen: Callable[[str], None] | None = None) -> None:
        self.plan = plan
        self.problems: list[str] = []
        """Unhandled errors, errors logged with a traceback, and broken rules."""
        self.loop = VirtualLoop(self._unhandled)
        self.trace = Trace(self.loop.time, str(folder), listen)
        self.network = Network(self.loop, self.random("network"), self.trace)
        self.network.latency = plan.latency
        self.histories = Histories(self.loop.time, self.trace)
        self.histories.listeners.append(RunWatch(self.problem, self._is_finished).check)
        self.hosts: dict[str, Host] = {}
        """The newest run of each process."""
        self.healed = asyncio.Event()
        """Set when all faults are over."""
        self._clocks: dict[str, MachineClock] = {}
        self.broker = BrokerMachine(
            self._broker_options(folder),
            self.network,
            self.histories,
            self.random("disk"),
            lambda: self.new_host("broker"),
        )

    def random(self, what: str) -> Random:
        """A random stream of its own for each part, so that they do not shift each other."""
        return Random(f"{what} {self.plan.seed}")

    def new_host(self, name: str) -> Host:
        """A new run of a process, on the same machine as before."""
        clock = self._clocks.get(name)
        if clock is None:
            draw = self.random(f"clock of {name}")
            rate = 1 + draw.uniform(-self.plan.apart, self.plan.apart)
            clock = self._clocks[name] = MachineClock(self.loop, rate, draw.randrange(1, 10_000_000))
        host = self.hosts[name] = Host(name, clock, self.loop)
        return host

    def clock_of(self, name: str) -> MachineClock:
        return self._clocks[name]

    def problem(self, text: str) -> None:
        self.trace.note("problem", text)
        self.problems.append(text)

    def _is_finished(self, group: str, topic: str, queue: int, epoch: int, offset: int) -> bool:
        broker = self.broker.broker
        return broker is not None and self.broker.up and broker.knows_as_finished(group, topic, queue, epoch, offset)

    def _unhandled(self, host: Host | None, context: dict[str, Any]) -> None:
        error = context.get("exception")
        if host is None or not host.dead:
            self.problem(f"unhandled in {host}: {context.get('message')}: {error!r}")

    def _broker_options(self, folder: Path) -> BrokerOptions:
        return BrokerOptions(
            folder,
            listen=ADDRESS,
            durable=self.plan.durable,
            auto_create_topics=False,
            segment_bytes=self.plan.segment_bytes,
        )


class SeededOrigin(identity.Origin):
    """Ids that are as different as real ones, and the same in every run of a seed."""

    def __init__(self, random: Random) -> None:
        self._random = random

    def address(self) -> str:
        return "10.0.1.1"

    def process(self) -> int:
        host = HERE.get()
        return sum(map(ord, host.name)) if host is not None else 1

    def random(self, count: int) -> bytes:
        return self._random.randbytes(count)


class ProblemLog(logging.Handler):
    """Turns logged errors with a traceback into problems: they should not happen."""

    def __init__(self, world: World) -> None:
        super().__init__(logging.ERROR)
        self._world = world

    def emit(self, record: logging.LogRecord) -> None:
        host = HERE.get()
        if record.exc_info and not (host is not None and host.dead):
            self._world.problem(f"logged in {host}: {record.getMessage()}: {record.exc_info[1]!r}")
