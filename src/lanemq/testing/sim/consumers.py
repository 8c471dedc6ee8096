"""Simulated consumer programs: ordered handlers, polling, unordered handlers, and broadcasting."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from dataclasses import replace
from random import Random
from typing import Any

from lanemq.client.consumer.app import App
from lanemq.client.consumer.async_consumer import AsyncConsumer
from lanemq.client.consumer.options import Sharing
from lanemq.client.message import Message
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import RETRY_FOREVER, DeadLetter, HoldKey, HoldQueue
from lanemq.model.errors import LaneError
from lanemq.testing.sim.effects import SimTable, is_as_sent
from lanemq.testing.sim.histories import SimHistory
from lanemq.testing.sim.host import Host
from lanemq.testing.sim.producers import AUDIT, ORDERS
from lanemq.testing.sim.world import SERVERS, World

LANES, POLLING, CONCURRENT, BROADCASTING = "lanes", "polling", "concurrent", "broadcasting"
_BACKOFF = Backoff(0.05, 2.0, 1)
_ENDLESS = HoldKey(RETRY_FOREVER, _BACKOFF)


class ConsumerProgram(ABC):
    """One consumer process over all its runs; each run is a new member of the group."""

    group: str

    def __init__(self, world: World, name: str, table: SimTable) -> None:
        self.name = name
        self.world = world
        self.table = table
        self.random: Random = world.random(f"consumer {name}")
        self._runs = 0
        self._task: asyncio.Task[Any] | None = None

    @property
    def is_new(self) -> bool:
        """Whether it has never run."""
        return self._runs == 0

    @property
    def alive(self) -> bool:
        return self.name in self.world.hosts and not self.host.dead

    @property
    def host(self) -> Host:
        return self.world.hosts[self.name]

    def start(self) -> None:
        self._runs += 1
        host = self.world.new_host(self.name)
        history = self.world.histories.open(host, f"{self.name}.{self._runs}", "consumer")
        self._task = host.run(self._run(host, history))

    def kill(self) -> None:
        """Kills the process; sometimes its machine too, so that no connection is reset."""
        self.world.network.host_ended(self.host, silently=self.random.random() < 0.3)

    async def leave(self) -> None:
        """Stops the process cleanly."""
        host, task = self.host, self._task
        host.call(self.ask_to_end)
        assert task is not None
        await asyncio.wait([task])
        if not host.dead:
            self.world.network.host_ended(host)

    @property
    def hold(self) -> HoldKey:
        """Endless retries; the plan says how many messages of a held lane wait in the member."""
        return replace(_ENDLESS, keep=1) if self.world.plan.set_aside else _ENDLESS

    def options(self, host: Host, history: SimHistory) -> dict[str, Any]:
        return {
            "clock": host.clock,
            "history": history,
            "client_id": history.process,
        }

    async def work(self, message: Message, history: SimHistory) -> None:
        """The user's code: takes a while, writes, and sometimes fails."""
        plan, draw = self.world.plan, self.random
        pause = draw.uniform(1.0, 9.0) if draw.random() < plan.slow else draw.expovariate(1 / 0.004)
        fails = draw.random() < plan.failing and not (plan.parking and self.world.healed.is_set())
        late = draw.random() < 0.5
        if fails and not late:
            raise ValueError("this message cannot be handled now")
        await asyncio.sleep(pause)
        if not history.host.dead:
            self.table.write(message, history)
        if fails:
            raise ValueError("this message was handled, and then something went wrong")

    @abstractmethod
    def ask_to_end(self) -> None:
        """Asks for a clean stop."""

    @abstractmethod
    async def _run(self, host: Host, history: SimHistory) -> None:
        """One run of the process, until it is asked to end or killed."""


class HandlerProgram(ConsumerProgram):
    """An app with two handlers: a failure in `orders` holds its key, in `audit` its queue."""

    group = LANES
    _app: App | None = None

    async def _run(self, host: Host, history: SimHistory) -> None:
        gives_up = self.world.plan.dead_letters or self.world.plan.parking
        hold = replace(self.hold, retries=2) if gives_up else self.hold
        policy = DeadLetter(skip=True, hold=hold) if self.world.plan.dead_letters else hold
        self._app = app = App(SERVERS, group=self.group, **self.options(host, history))

        @app.ordered(ORDERS, on_fail=policy, lanes=4)
        async def on_order(message: Message) -> None:
            await self.work(message, history)

        @app.ordered(AUDIT, on_fail=HoldQueue(suspend=0.2), lanes=2)
        async def on_audit(message: Message) -> None:
            await self.work(message, history)

        await app.run_async()

    def ask_to_end(self) -> None:
        if self._app is not None:
            self._app.stop()


class PollingProgram(ConsumerProgram):
    """Polls messages with three tasks, and reports each as done or to be retried."""

    group = POLLING
    _ending = False

    async def _run(self, host: Host, history: SimHistory) -> None:
        self._ending = False
        options = self.options(host, history)
        consumer = AsyncConsumer(SERVERS, group=self.group, topics=ORDERS, on_fail=self.hold, **options)
        async with consumer, asyncio.TaskGroup() as pollers:
            for _ in range(3):
                pollers.create_task(self._poll(consumer, history))

    async def _poll(self, consumer: AsyncConsumer, history: SimHistory) -> None:
        while not self._ending:
            message = await consumer.poll(0.5)
            if message is None:
                continue
            try:
                await self.work(message, history)
            except ValueError:
                with contextlib.suppress(LaneError):
                    await consumer.retry(message)
            else:
                await consumer.done(message)

    def ask_to_end(self) -> None:
        self._ending = True


class UnorderedProgram(ConsumerProgram):
    """An app whose handler writes nothing, because a table could show no order."""

    _app: App | None = None

    async def _handle(self, message: Message) -> None:
        plan, draw = self.world.plan, self.random
        fails, pause = draw.random() < plan.failing, draw.expovariate(1 / 0.004)
        await asyncio.sleep(pause)
        if not is_as_sent(message):
            self.world.problem(f"{self.name} got {message}, which was never sent like this")
        if fails and not self.world.healed.is_set():
            raise ValueError("this message cannot be handled now")

    def ask_to_end(self) -> None:
        if self._app is not None:
            self._app.stop()


class ConcurrentProgram(UnorderedProgram):
    """Handles many messages at once, in any order. Failed ones are sent back to the broker."""

    group = CONCURRENT

    async def _run(self, host: Host, history: SimHistory) -> None:
        self._app = app = App(SERVERS, group=self.group, **self.options(host, history))

        @app.concurrent(ORDERS, workers=4)
        async def on_order(message: Message) -> None:
            await self._handle(message)

        await app.run_async()


class BroadcastProgram(UnorderedProgram):
    """Reads all queues; a new run starts over, because offsets are only in memory."""

    group = BROADCASTING

    async def _run(self, host: Host, history: SimHistory) -> None:
        options = self.options(host, history) | {"client_id": self.name, "sharing": Sharing.BROADCASTING}
        self._app = app = App(SERVERS, group=self.group, **options)

        @app.ordered(ORDERS, lanes=4)
        async def on_order(message: Message) -> None:
            await self._handle(message)

        await app.run_async()
