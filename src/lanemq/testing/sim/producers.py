"""Simulated producer programs, which send one by one, pipelined and in batches."""

import asyncio
import contextlib
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from lanemq.client.producer.async_producer import AsyncProducer
from lanemq.client.producer.engine import SENDING
from lanemq.client.receipt import Receipt
from lanemq.model.errors import LaneError
from lanemq.model.units import Millis
from lanemq.testing.sim.effects import sum_of
from lanemq.testing.sim.host import Host
from lanemq.testing.sim.world import SERVERS, World

ORDERS, AUDIT = "orders", "audit"

Outgoing = tuple[str, dict[str, object]]
"""Key and value."""


class SimProducer(AsyncProducer):
    """Ends with its simulated process, not with the program that simulates it."""

    def __init__(self, *arguments: Any, window: int, answer_ms: int, **settings: Any) -> None:
        """Limits that differ between simulations, so that batches wait for each other, or are sent again soon."""
        self._sending = replace(SENDING, window=window, answer_timeout=Millis(answer_ms))
        super().__init__(*arguments, **settings)

    def end_with_program(self, seconds: float) -> None:
        """Reports nothing: a killed process does not either."""


class ProducerProgram:
    """One producer process over all its runs; a new run continues the numbers under a new identity."""

    def __init__(self, world: World, name: str) -> None:
        self.name = name
        self.done = False
        self._world = world
        self._random = world.random(f"producer {name}")
        self.sent = 0
        self._runs = 0
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        self._runs += 1
        host = self._world.new_host(self.name)
        self._task = host.run(self._run(host, f"{self.name}.{self._runs}"))

    def kill(self) -> None:
        """Kills the process."""
        self._world.network.host_ended(self.host, silently=self._random.random() < 0.2)

    @property
    def alive(self) -> bool:
        return self.name in self._world.hosts and not self.host.dead

    @property
    def host(self) -> Host:
        return self._world.hosts[self.name]

    async def _run(self, host: Host, process: str) -> None:
        plan, history = self._world.plan, self._world.histories.open(host, process, "producer")
        seconds = self._random.choice((2.0, 10.0, 30.0))
        producer = SimProducer(
            SERVERS,
            clock=host.clock,
            history=history,
            window=plan.window,
            answer_ms=plan.answer_ms,
            delivery_timeout=seconds,
            timeout=seconds,
        )
        async with producer:
            while self.sent < plan.messages or not self._world.healed.is_set():
                if self.sent >= plan.messages:
                    await self._world.healed.wait()
                await asyncio.sleep(self._random.expovariate(plan.messages / plan.chaos_seconds * 2))
                await self._send(producer, process)
            await self._send(producer, process)
        self.done = not host.dead

    async def _send(self, producer: AsyncProducer, process: str) -> None:
        """Sends a few messages in one of three ways; after a failure the program resumes."""
        topic = self._topic()
        count = self._random.choice((1, 1, 2, 5, 12))
        messages = [self._message(process) for _ in range(count)]
        send = self._random.choice((self._one_by_one, self._pipelined, self._many))
        try:
            receipts = await send(producer, topic, messages)
        except LaneError as error:
            self._world.trace.note(process, f"could not send: {type(error).__name__}")
            self._world.trace.count("send that failed")
            with contextlib.suppress(LaneError):
                await producer.resume(topic)
            return
        self._world.trace.count("repeat dropped by its stamp", sum(receipt.repeat for receipt in receipts))

    def _topic(self) -> str:
        return ORDERS if self._random.random() < 0.7 else AUDIT

    def _message(self, process: str) -> Outgoing:
        self.sent += 1
        key = f"k{self._random.randrange(self._world.plan.keys)}"
        return key, {"from": process, "n": self.sent, "sum": sum_of(key, process, self.sent)}

    async def _one_by_one(self, producer: AsyncProducer, topic: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        return [await producer.send(topic, value, key=key) for key, value in messages]

    async def _pipelined(self, producer: AsyncProducer, topic: str, messages: Sequence[Outgoing]) -> list[Receipt]:
        futures = [await producer.submit(topic, value, key=key) for key, value in messages]
        ended = await asyncio.gather(*futures, return_exceptions=True)
        for each in ended:
            if isinstance(each, BaseException):
                raise each
        return [each for each in ended if isinstance(each, Receipt)]

    async def _many(self, producer: AsyncProducer, topic: str, messages: Sequence[Outgoing]) -> Sequence[Receipt]:
        return await producer.send_many(topic, messages)
