"""Simulated programs that consume: with handlers, and message by message; slow, failing, frozen, killed."""

import asyncio
import contextlib
from abc import ABC, abstractmethod
from random import Random
from typing import Any

from lanemq.client.consumer.app import App
from lanemq.client.consumer.async_consumer import AsyncConsumer
from lanemq.client.message import Message
from lanemq.core.backoff import Backoff
from lanemq.core.consuming.retry_policy import RETRY_FOREVER, DeadLetter, HoldKey, HoldQueue
from lanemq.model.errors import LaneError
from lanemq.testing.sim.effects import Table
from lanemq.testing.sim.histories import SimHistory
from lanemq.testing.sim.host import Host
from lanemq.testing.sim.producers import AUDIT, ORDERS
from lanemq.testing.sim.world import SERVERS, World

LANES, HANDS, CROWD, EVERYBODY = "lanes", "hands", "crowd", "everybody"
_BACKOFF = Backoff(0.05, 2.0, 1)


class ConsumerProgram(ABC):
    """One consuming process over all its lives; each life is a new member of the group."""

    group: str

    def __init__(self, world: World, name: str, table: Table) -> None:
        self.name = name
        self.world = world
        self.table = table
        self.random: Random = world.random(f"consumer {name}")
        self._lives = 0
        self._life: asyncio.Task[Any] | None = None

    @property
    def is_new(self) -> bool:
        """It has never run."""
        return self._lives == 0

    @property
    def alive(self) -> bool:
        return self.name in self.world.hosts and not self.host.dead

    @property
    def host(self) -> Host:
        return self.world.hosts[self.name]

    def start(self) -> None:
        self._lives += 1
        host = self.world.new_host(self.name)
        history = self.world.histories.open(host, f"{self.name}.{self._lives}", "consumer")
        self._life = host.run(self._live(host, history))

    def kill(self) -> None:
        """Ends without a goodbye; now and then its machine goes with it, and nobody hears of that."""
        self.world.network.host_ended(self.host, silently=self.random.random() < 0.3)

    async def leave(self) -> None:
        """Ends as a program should: everything handed over."""
        host, life = self.host, self._life
        host.call(self.ask_to_end)
        assert life is not None
        await asyncio.wait([life])
        if not host.dead:
            self.world.network.host_ended(host)

    def options(self, host: Host, history: SimHistory) -> dict[str, Any]:
        return {
            "clock": host.clock,
            "history": history,
            "client_id": history.process,
            "heartbeat_every": 3,
            "rebalance_every": 4,
            "pull_suspend": 5,
            "request_timeout": 1.5,
            "stop_timeout": 12,
        }

    async def work(self, message: Message, history: SimHistory) -> None:
        """What the user's code does with a message: takes a while, writes, and fails now and then."""
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
        """A graceful stop: what has begun is finished and handed over."""

    @abstractmethod
    async def _live(self, host: Host, history: SimHistory) -> None:
        """One life of the process, until it is asked to end or killed."""


class HandlerProgram(ConsumerProgram):
    """An app with two handlers: `orders` holds keys, `audit` holds whole queues."""

    group = LANES
    _app: App | None = None

    async def _live(self, host: Host, history: SimHistory) -> None:
        gives_up = self.world.plan.dead_letters or self.world.plan.parking
        hold = HoldKey(2 if gives_up else RETRY_FOREVER, _BACKOFF)
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


class HandProgram(ConsumerProgram):
    """Takes messages one by one, several at a time, and says what became of each."""

    group = HANDS
    _ending = False

    async def _live(self, host: Host, history: SimHistory) -> None:
        self._ending = False
        options = self.options(host, history)
        consumer = AsyncConsumer(
            SERVERS, group=self.group, topics=ORDERS, on_fail=HoldKey(RETRY_FOREVER, _BACKOFF), **options
        )
        async with consumer, asyncio.TaskGroup() as takers:
            for _ in range(3):
                takers.create_task(self._take(consumer, history))

    async def _take(self, consumer: AsyncConsumer, history: SimHistory) -> None:
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
