"""Brokers for the tests of this folder."""

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from tests.broker.raw_client import RawClient
from tests.broker.running import BrokerProcess, RunningBroker

Start = Callable[..., RunningBroker]
StartProcess = Callable[..., BrokerProcess]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A new folder, in memory if possible: these tests sync often and prove nothing about devices."""
    shared = Path("/dev/shm")
    made = Path(tempfile.mkdtemp(prefix="lanemq-test-", dir=shared if os.access(shared, os.W_OK) else None))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def start(folder: Path) -> Iterator[Start]:
    """Starts brokers on `folder/data` by default; stops them all at the end."""
    started: list[RunningBroker] = []

    def start_one(data: Path | None = None, **options: object) -> RunningBroker:
        started.append(RunningBroker(data or folder / "data", **options))  # type: ignore[arg-type]
        return started[-1]

    yield start_one
    for running in started:
        running.stop()


@pytest.fixture
def start_process(folder: Path) -> Iterator[StartProcess]:
    started: list[BrokerProcess] = []

    def start_one(**options: int) -> BrokerProcess:
        started.append(BrokerProcess(folder / "data", **options))
        return started[-1]

    yield start_one
    for process in started:
        process.kill()


@pytest.fixture
def broker(start: Start) -> RunningBroker:
    return start()


@pytest.fixture
def raw(broker: RunningBroker) -> RawClient:
    return broker.connect()
