"""Simulated programs that ask for less: no order, or everything for everybody."""

import asyncio

from lanemq.client.consumer.app import App
from lanemq.client.consumer.options import Sharing
from lanemq.client.message import Message
from lanemq.testing.sim.consumers import CROWD, EVERYBODY, ConsumerProgram
from lanemq.testing.sim.effects import is_as_sent
from lanemq.testing.sim.histories import SimHistory
from lanemq.testing.sim.host import Host
from lanemq.testing.sim.producers import ORDERS
from lanemq.testing.sim.world import SERVERS


class LooseProgram(ConsumerProgram):
    """An app whose handler writes nothing: there is no order that a table could show."""

    _app: App | None = None

    async def _handle(self, message: Message) -> None:
        plan, draw = self.world.plan, self.random
        fails, pause = draw.random() < plan.failing, draw.expovariate(1 / 0.004)
        await asyncio.sleep(pause)
        if not is_as_sent(message):
            self.world.problem(f"{self.name} got {message}, which nobody has sent so")
        if fails and not self.world.healed.is_set():
            raise ValueError("this message cannot be handled now")

    def ask_to_end(self) -> None:
        if self._app is not None:
            self._app.stop()


class CrowdProgram(LooseProgram):
    """Many at once, in any order; what fails is sent back to the broker."""

    group = CROWD

    async def _live(self, host: Host, history: SimHistory) -> None:
        self._app = app = App(SERVERS, group=self.group, **self.options(host, history))

        @app.concurrent(ORDERS, workers=4)
        async def on_order(message: Message) -> None:
            await self._handle(message)

        await app.run_async()


class BroadcastProgram(LooseProgram):
    """Reads all queues for itself; a new life begins anew, since nothing but its memory keeps its offsets."""

    group = EVERYBODY

    async def _live(self, host: Host, history: SimHistory) -> None:
        options = self.options(host, history) | {"client_id": self.name, "sharing": Sharing.BROADCASTING}
        self._app = app = App(SERVERS, group=self.group, **options)

        @app.ordered(ORDERS, lanes=4)
        async def on_order(message: Message) -> None:
            await self._handle(message)

        await app.run_async()
