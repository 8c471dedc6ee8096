"""The shipped broker on a simulated machine: only its sockets, disk threads and disk are replaced.

The machine outlives the broker. A killed broker loses its memory; a power cut also loses what was not synced.
"""

import asyncio
import queue
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any, TypeVar

from lanemq.broker.app import Broker, Threads
from lanemq.broker.config import BrokerOptions
from lanemq.broker.connections import Connections
from lanemq.broker.context import BrokerContext
from lanemq.broker.recording import Recording
from lanemq.broker.storage.disk_thread import DiskThread, RowTransactions, outcome_of
from lanemq.core.finished_ranges import FinishedRanges
from lanemq.log.options import StoreOptions
from lanemq.log.state.space_reserve import SpaceReserve
from lanemq.log.store import Store
from lanemq.model.errors import StorageError
from lanemq.model.queue import MessageQueue
from lanemq.net.address import Address
from lanemq.net.serving.descriptors import DescriptorReserve
from lanemq.net.serving.peer import Dispatcher, Peer
from lanemq.net.serving.server import Listener, Server
from lanemq.testing.sim.disk import SimDisk, SimState, StateImage
from lanemq.testing.sim.histories import Histories
from lanemq.testing.sim.host import Host
from lanemq.testing.sim.network import End, Network

G = TypeVar("G")

MAX_STARTS = 20
"""Attempts to start the broker; faults of the disk are over long before."""


class SimDiskThread(DiskThread):
    """Runs jobs one after the other on the loop, each with a delay before it runs and before its result."""

    def __init__(self, host: Host, delay: Callable[[], float]) -> None:
        self._loop = asyncio.get_running_loop()
        self.in_progress = 0
        self._host = host
        self._delay = delay
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._busy_until = 0.0

    def submit(
        self, job: Callable[[], G], done: Callable[[G | None, StorageError | None], None], *, urgent: bool = False
    ) -> None:
        def run() -> None:
            result, error = outcome_of(job)
            self._busy_until = max(self._busy_until, self._loop.time() + self._delay() / 4)
            self._loop.call_at(self._busy_until, finished, result, error, context=self._host.context)

        def finished(result: G | None, error: StorageError | None) -> None:
            self.in_progress -= 1
            if not self._host.dead:
                done(result, error)

        self.in_progress += 1
        self._jobs.put(run)
        self._busy_until = max(self._busy_until, self._loop.time()) + self._delay()
        self._loop.call_at(self._busy_until, self._next, context=self._host.context)

    def submit_rows(
        self, rows: RowTransactions, job: Callable[[], G], done: Callable[[G | None, StorageError | None], None]
    ) -> None:
        self.submit(job, done)

    def stop(self) -> None:
        while not self._jobs.empty():
            self._next()

    def _next(self) -> None:
        job = None if self._jobs.empty() or self._host.dead else self._jobs.get()
        if job is not None:
            job()


class SimListener(Listener):
    """An address on the simulated network."""

    def __init__(self, address: Address) -> None:
        self.address = address

    def close(self) -> None:
        pass


class SimServer(Server):
    """Listens on the simulated network."""

    def __init__(
        self,
        dispatcher: Dispatcher,
        host: Host,
        network: Network,
        **more: Any,
    ) -> None:
        # Virtual time stands still while requests are handled, so no slice ends early.
        super().__init__(dispatcher, nanoseconds=lambda: 0, **more)
        self._host = host
        self._network = network

    def accept_from(self, listener: Listener) -> None:
        self._network.listen(self._host, listener.address, self._accepted)

    def _accepted(self, _: End) -> Peer:
        return Peer(self)

    def leave_listener(self) -> None:
        self._network.stop_listening(self._host)

    def stop_accepting(self) -> None:
        self._network.stop_listening(self._host)
        super().stop_accepting()


class SimStore(Store):
    """The shipped log, which can be left as a killed process leaves it."""

    def let_go(self) -> None:
        """Closes files and lock without writing, as the operating system does."""
        if not self._lock.closed:
            self._files.close()
            self._log.close()
            self.state.close()
            self._lock.close()


class SimBroker(Broker):
    """One run of a broker."""

    def __init__(self, options: BrokerOptions, host: Host, machine: "BrokerMachine") -> None:
        super().__init__(options, host.clock, machine.open_store)
        self._host = host
        self._machine = machine

    def _new_threads(self, on_full: Callable[[], bool]) -> Threads:
        log, rows = (SimDiskThread(self._host, self._machine.disk_delay) for _ in range(2))
        return Threads(log, rows, search=log)

    def _new_space_reserve(self) -> SpaceReserve:
        return SpaceReserve(self.options.data, possible=False)

    def _new_listener(self) -> Listener:
        return SimListener(self.options.listen)

    def _new_reserve(self, store: Store) -> DescriptorReserve:
        wanted = self.options.max_connections
        return DescriptorReserve(wanted=wanted, files=lambda: store.open_files, limit=lambda: 2**31)

    def _new_server(self, context: BrokerContext, connections: Connections) -> Server:
        more = {"reads": context.group_commit, "outbox": context.outbox}
        return SimServer(connections, self._host, self._machine.network, **more)

    def _open_history(self) -> Recording:
        alive = self._machine.histories.last_of("broker")
        return Recording(self._machine.histories.open(self._host, "broker", "broker"), self.options.name, alive)

    @property
    def undone(self) -> list[str]:
        """What groups have not finished, in words; empty if everything is drained."""
        context = self.running.context
        left = []
        for topic, queue_id in context.store.queues():
            end = context.store.bounds(topic, queue_id)[1]
            for group in self._machine.groups_of(topic):
                done = context.progress.at(group, MessageQueue(topic, self.options.name, queue_id)).offset or 0
                if done < end:
                    left.append(f"{group} is at {done} of {end} in {topic}/{queue_id}")
        lanes = [lane for progress in context.progress.parked() for lane in progress.lanes.values()]
        return left + [f"{lane.name} has {len(lane.offsets)} parked" for lane in lanes]

    @property
    def log_end(self) -> int:
        """The position of the next record."""
        return self.running.context.store.appender.staged

    def knows_as_finished(self, group: str, topic: str, queue_id: int, epoch: int, offset: int) -> bool:
        """Whether an owner reported this message, which is above the committed offset, as finished.

        False for a stale epoch, because its owner cannot know what others reported.
        """
        queue = MessageQueue(topic, self.options.name, queue_id)
        newest = self.running.context.locks.latest(group, queue)
        if newest is None or newest.epoch != epoch:
            return False
        progress = self.running.context.progress.at(group, queue)
        return offset in FinishedRanges.decode(progress.finished, progress.offset or 0)


class BrokerMachine:
    """The machine of the broker: its disk, and one run of the broker after the other."""

    def __init__(
        self,
        options: BrokerOptions,
        network: Network,
        histories: Histories,
        random: Random,
        new_host: Callable[[], Host],
    ) -> None:
        self.options = options
        self.network = network
        self.histories = histories
        self.trace = histories.trace
        self.slow = 1.0
        """Factor by which the disk is slower than usual."""
        self.groups_of: Callable[[str], list[str]] = lambda topic: []
        self.disk = SimDisk(random, self.trace)
        self.disk.on_power_cut = self._on_power_cut
        self.host = new_host()
        self.broker: SimBroker | None = None
        self._image = StateImage(random)
        self._random = random
        self._new_host = new_host
        self._store: SimStore | None = None

    @property
    def up(self) -> bool:
        return self.broker is not None and not self.host.dead

    def open_log(self) -> Store:
        """The log, to be read without a broker."""
        return self.open_store(self.options.data, StoreOptions(segment_bytes=self.options.segment_bytes))

    def open_store(self, folder: Path, options: StoreOptions) -> Store:
        self._store = SimStore(folder, options, self.disk, lambda path: SimState(path, self._image, self.disk))
        return self._store

    def disk_delay(self) -> float:
        return self.slow * (0.0002 + 0.004 * self._random.random() ** 3)

    async def start(self) -> None:
        """Starts a broker on what is on disk. A start that fails because of disk or power is repeated."""
        for _ in range(MAX_STARTS):
            if self.up:
                return
            self.host = self._new_host()
            self.broker = SimBroker(self.options, self.host, self)
            starting = self.host.run(self.broker.start())
            await asyncio.wait([starting])
            if self.host.dead:
                continue
            error = starting.exception()
            if error is None:
                return
            self.network.host_ended(self.host)
            self.broker = None
            self.trace.count("start that failed")
            if not isinstance(error, StorageError):
                raise error
            await asyncio.sleep(0.2)
        raise StorageError(f"the broker did not start in {MAX_STARTS} attempts")

    async def stop(self) -> None:
        """A clean stop, unless the power is cut during it."""
        assert self.broker is not None
        stopping = self.host.run(self.broker.stop())
        await asyncio.wait([stopping])
        if not self.host.dead:
            error = stopping.exception()
            if error is not None and not isinstance(error, StorageError):
                raise error
            self.network.host_ended(self.host)
        self.broker = None

    def kill(self, *, silently: bool = False) -> None:
        """Kills the process; what it had written stays."""
        if self.host.dead:
            return
        self.network.host_ended(self.host, silently=silently)
        if self._store is not None:
            self._store.let_go()
        self.broker = self._store = None

    def lose_power(self) -> None:
        self.kill(silently=self._random.random() < 0.3)
        bytes_lost, commits_lost = self.disk.lose_power(), self._image.lose_power()
        self.trace.note("disk", f"lost {bytes_lost} bytes and {commits_lost} commits that were not synced")
        self.trace.count("power cut")
        self.trace.count("power cut that lost unsynced bytes", bytes_lost > 0)
        self.trace.count("power cut that lost commits", commits_lost > 0)

    def _on_power_cut(self) -> None:
        """The power is cut during a change: the process does nothing more, and `lose_power` follows."""
        self.host.dead = True
        host = self.host
        asyncio.get_running_loop().call_soon(self._after_power_cut, host)

    def _after_power_cut(self, host: Host) -> None:
        if host is self.host:
            host.dead = False
            self.lose_power()
