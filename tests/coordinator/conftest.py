"""A coordinator in this process, beside a broker that looks like Apache's."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.broker.raw_client import RawClient

from lanemq.broker.config import BrokerOptions
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.coordinated import CoordinatedAdmin
from lanemq.coordinator.app import Coordinator
from lanemq.coordinator.config import CoordinatorOptions
from lanemq.net.address import Address, parse_addresses
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.testing.stock_broker import stock_broker

TOPIC, GROUP = "orders", "billing"


def until(condition: Callable[[], object], seconds: float = 15.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "not in time"
        time.sleep(0.02)


def owned(client: RawClient, name: str, seconds: float = 10.0) -> int:
    """Locks queue 0 as a member; its epoch."""
    client.heartbeat(name, GROUP, {TOPIC: "*"}, laneExpiryMillis="5000")
    end = time.monotonic() + seconds
    while True:
        leases = client.lane_lock(name, TOPIC, group=GROUP).lane_leases
        if leases or time.monotonic() > end:
            return leases[0].epoch if leases else 0
        time.sleep(0.05)


class RunningCoordinator:
    """A coordinator on a loop in a thread of its own. `kill` ends it without a clean stop."""

    def __init__(self, cluster: str, data: Path | None, port: int = 0, **more: Any) -> None:
        """`more` are options of the coordinator."""
        replace = more.pop("replace", False)
        self.options = CoordinatorOptions(parse_addresses(cluster), data, listen=Address("127.0.0.1", port), **more)
        self._replace = replace
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self.loop.run_forever, daemon=True)
        self._thread.start()
        self.coordinator = self._on_loop(self._start)

    async def _start(self) -> Coordinator:
        coordinator = Coordinator(self.options, replace=self._replace)
        await coordinator.start()
        return coordinator

    def _on_loop(self, work: Callable[[], Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work(), self.loop).result(20)

    @property
    def address(self) -> Address:
        return self.coordinator.address

    def stop(self) -> None:
        if not self.loop.is_closed():
            self._on_loop(self.coordinator.stop)
            self.loop.call_soon_threadsafe(self.loop.stop)
            self._thread.join()
            self.loop.close()


@pytest.fixture
def options() -> BrokerOptions | None:
    """Those of the broker; None: the defaults."""
    return None


@pytest.fixture
def cluster(options: BrokerOptions | None) -> Iterator[EmbeddedBroker]:
    with stock_broker(options) as broker:
        with Admin(broker.address) as admin:
            admin.create_topic(TOPIC, 2, ordered=True)
        yield broker


Start = Callable[..., RunningCoordinator]


@pytest.fixture
def start(cluster: EmbeddedBroker, tmp_path: Path) -> Iterator[Start]:
    """Starts coordinators of the cluster, each in a folder of this name."""
    started: list[RunningCoordinator] = []

    def begin(folder: str = "coordinator", **more: Any) -> RunningCoordinator:
        started.append(RunningCoordinator(cluster.address, tmp_path / folder, **more))
        return started[-1]

    yield begin
    for each in started:
        each.stop()


@pytest.fixture
def coordinator(start: Start) -> RunningCoordinator:
    return start()


@pytest.fixture
def moved(cluster: EmbeddedBroker, coordinator: RunningCoordinator) -> RunningCoordinator:
    """A coordinator that has the group."""
    with CoordinatedAdmin(cluster.address) as admin:
        assert admin.move(GROUP, apply=True).moved
    return coordinator


@pytest.fixture
def at_broker(cluster: EmbeddedBroker) -> Iterator[RawClient]:
    with RawClient(cluster.address) as client:
        yield client


@pytest.fixture
def at_coordinator(moved: RunningCoordinator) -> Iterator[RawClient]:
    with RawClient(str(moved.address)) as client:
        yield client
