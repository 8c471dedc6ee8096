"""A virtual loop with a network and two processes, without a broker."""

import asyncio
from collections.abc import Callable, Coroutine
from random import Random
from typing import Any

from lanemq.testing.sim.host import Host, MachineClock
from lanemq.testing.sim.loop import VirtualLoop
from lanemq.testing.sim.network import End, Network
from lanemq.testing.sim.trace import Trace

ADDRESS = ("10.0.0.1", 9876)


class Received(asyncio.Protocol):
    """Keeps what arrived, and how the connection ended."""

    def __init__(self) -> None:
        self.data = b""
        self.ends: list[Exception | None] = []

    def data_received(self, data: bytes) -> None:
        self.data += data

    def connection_lost(self, error: Exception | None) -> None:
        self.ends.append(error)


class TwoProcesses:
    """`near` connects and `far` listens; the protocols of both are kept."""

    def __init__(self, seed: int = 1) -> None:
        self.errors: list[Any] = []
        self.loop = VirtualLoop(lambda host, context: self.errors.append(context))
        self.network = Network(self.loop, Random(seed), Trace(self.loop.time, "nowhere"))
        self.near = self.host("near")
        self.far = self.host("far")
        self.accepted: list[Received] = []
        self.network.listen(self.far, ADDRESS, self._accept)

    def host(self, name: str) -> Host:
        return Host(name, MachineClock(self.loop, 1.0, 5), self.loop)

    def _accept(self, end: End) -> Received:
        self.accepted.append(Received())
        return self.accepted[-1]

    async def connect(self) -> tuple[End, Received]:
        end, protocol = await self.near.run(self.loop.create_connection(Received, *ADDRESS))
        return end, protocol

    def run(self, main: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Runs `main`; fails if an error is unhandled."""
        try:
            self.loop.run_until_complete(main())
        finally:
            self.loop.close()
        assert self.errors == []
