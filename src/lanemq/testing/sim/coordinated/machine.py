"""The shipped coordinator on a simulated machine: only its sockets and its disk thread are replaced."""

import asyncio
from pathlib import Path

from lanemq.broker.connections import Connections
from lanemq.broker.context import GroupContext
from lanemq.broker.storage.disk_thread import DiskThread
from lanemq.coordinator.app import Coordinator
from lanemq.coordinator.config import CoordinatorOptions
from lanemq.coordinator.store import FolderStore
from lanemq.model.errors import LaneError
from lanemq.net.address import Address
from lanemq.net.serving.server import Listener, Server
from lanemq.testing.sim.broker import SimDiskThread, SimListener, SimServer
from lanemq.testing.sim.host import Host
from lanemq.testing.sim.world import ADDRESS, World

COORDINATOR = "coordinator"
COORDINATOR_ADDRESS = Address("10.0.0.2", 9870)
START_AGAIN_SECONDS = 0.5


class SimCoordinator(Coordinator):
    """One run of a coordinator."""

    def __init__(self, options: CoordinatorOptions, host: Host, world: World) -> None:
        super().__init__(options, host.clock)
        self._host = host
        self._world = world
        self._folder: FolderStore | None = None

    def let_go(self) -> None:
        """Closes the files without writing, as the operating system does."""
        if self._folder is not None:
            self._folder.close()

    def _new_store(self) -> FolderStore:
        assert self.options.data is not None, "the plan names a folder"
        self._folder = FolderStore(self.options.data, self._host.clock)
        return self._folder

    def _new_thread(self) -> DiskThread:
        return SimDiskThread(self._host, self._world.broker.disk_delay)

    def _new_listener(self) -> Listener:
        return SimListener(self.options.listen)

    def _new_server(self, connections: Connections, context: GroupContext) -> Server:
        return SimServer(
            connections, self._host, self._world.network, refusals=context.counters.refusals, may_answer=context.leads
        )


class CoordinatorMachine:
    """The machine of the coordinator, and one run of it after the other."""

    def __init__(self, world: World, folder: Path) -> None:
        self._world = world
        self._options = CoordinatorOptions((ADDRESS,), folder, listen=COORDINATOR_ADDRESS)
        self.coordinator: SimCoordinator | None = None
        self.host: Host | None = None

    @property
    def up(self) -> bool:
        return self.coordinator is not None and self.host is not None and not self.host.dead

    async def start(self) -> None:
        """Starts it, again and again until its cluster answers."""
        while not self.up:
            self.host = host = self._world.new_host(COORDINATOR)
            started = SimCoordinator(self._options, host, self._world)
            starting = host.run(started.start())
            await asyncio.wait([starting])
            error = starting.exception()
            if error is None:
                self.coordinator = started
                return
            self._world.network.host_ended(host)
            started.let_go()
            if not isinstance(error, LaneError):
                raise error
            await asyncio.sleep(START_AGAIN_SECONDS)

    def kill(self) -> None:
        if self.coordinator is not None and self.host is not None and not self.host.dead:
            self._world.network.host_ended(self.host)
            self.coordinator.let_go()
        self.coordinator = None
