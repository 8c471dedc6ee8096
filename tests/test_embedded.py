"""The embedded broker: it takes a clock and a disk, and leaves nothing behind."""

import threading
from functools import partial
from pathlib import Path

import pytest
from tests.broker.raw_client import RawClient
from tests.broker.running import WALL, ManualClock
from tests.faulty_disk import FaultyDisk

from lanemq import Admin, Producer
from lanemq.broker.config import BrokerOptions
from lanemq.log.store import Store
from lanemq.model.errors import LogInUse
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import ResponseCode


def options(folder: Path) -> BrokerOptions:
    return BrokerOptions(folder, listen=Address("127.0.0.1", 0))


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name.startswith("lanemq-embedded")]


def test_the_broker_uses_the_given_clock(tmp_path: Path) -> None:
    clock = ManualClock()
    clock.passed = 5_000
    with EmbeddedBroker(options(tmp_path), clock=clock) as broker, Producer(broker.address, create="t") as producer:
        receipt = producer.send("t", b"x", key="k")
        with Admin(broker.address) as admin:
            assert admin.offset_at(receipt.queue, (WALL + 5_001) / 1000) == receipt.offset + 1
            assert admin.offset_at(receipt.queue, (WALL + 5_000) / 1000) == receipt.offset


def test_the_broker_uses_the_given_disk(tmp_path: Path) -> None:
    disk = FaultyDisk()
    broker = EmbeddedBroker(options(tmp_path), open_store=partial(Store, disk=disk))
    with broker, RawClient(broker.address) as raw:  # a producer would retry until its timeout
        assert raw.send("t", b"x").code == 0
        disk.failing_write = 1
        assert raw.send("t", b"y").code == ResponseCode.SERVICE_NOT_AVAILABLE
        assert broker.call(lambda: broker.broker.read_only)


def test_a_start_that_fails_leaves_no_thread_behind(tmp_path: Path) -> None:
    others = threads()  # of brokers that other tests keep
    with EmbeddedBroker(options(tmp_path)):
        second = EmbeddedBroker(options(tmp_path))
        with pytest.raises(LogInUse):
            second.start()
        assert len(threads()) == len(others) + 1
        second.stop()
    assert threads() == others


def test_a_broker_starts_again_on_its_data_and_port(tmp_path: Path) -> None:
    broker = EmbeddedBroker(options(tmp_path)).start()
    address = broker.address
    broker.stop()
    with broker:
        assert broker.address == address
