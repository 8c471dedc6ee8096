"""Promise 3: acknowledged is on disk."""

import threading
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
from tests.chaos.mutants import flush_before_ack
from tests.faulty_disk import FaultyDisk

from lanemq.broker.config import BrokerOptions
from lanemq.client.producer.producer import Producer
from lanemq.client.receipt import StoredAs
from lanemq.log.commit_log import CommitLog
from lanemq.log.store import Store
from lanemq.model.errors import LaneError, WriteFailed
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker


class PowerCutDisk(FaultyDisk):
    """A disk that knows what a power cut would leave: what a successful fdatasync has covered.

    Like Linux, it forgets pages whose fdatasync failed: a later success does not bring them back.
    """

    def __init__(self) -> None:
        super().__init__()
        self.safe: dict[int, bytes] = {}
        self.may_sync = threading.Event()
        self.may_sync.set()
        self.syncing = threading.Event()
        self._lost: dict[int, tuple[int, int]] = {}

    def fdatasync(self, fd: int) -> None:
        self.syncing.set()
        self.may_sync.wait(60)
        size = self.size(fd)
        try:
            super().fdatasync(fd)
        except OSError:
            self._lost[fd] = (len(self.safe.get(fd, b"")), size)
            raise
        data = self.read_at(fd, size, 0)
        begin, end = self._lost.get(fd, (0, 0))
        self.safe[fd] = data[:begin] + bytes(end - begin) + data[end:]

    def holds(self, text: str) -> bool:
        return any(text.encode() in data for data in self.safe.values())


@pytest.fixture
def disk() -> PowerCutDisk:
    return PowerCutDisk()


@pytest.fixture
def producer(disk: PowerCutDisk) -> Iterator[Callable[[], Producer]]:
    """Starts broker and producer when called, so that a test can remove a guard before."""
    ends: list[Callable[[], None]] = []

    def start() -> Producer:
        broker = EmbeddedBroker(open_store=partial(Store, disk=disk)).start()
        made = Producer(broker.address, create="orders")
        ends.extend([lambda: broker.__exit__(None, None, None), made.close])
        return made

    yield start
    disk.may_sync.set()
    for end in reversed(ends):
        end()


def test_every_receipt_comes_after_its_sync(producer: Callable[[], Producer], disk: PowerCutDisk) -> None:
    """ "Group commit with fdatasync is the default", and every receipt says so."""
    sender = producer()
    for number in range(30):
        receipt = sender.send("orders", f"message {number}.", key="k")
        assert disk.holds(f"message {number}.")
        assert receipt.stored is StoredAs.DURABLE


def test_no_receipt_while_the_disk_is_busy(producer: Callable[[], Producer], disk: PowerCutDisk) -> None:
    """ "Acknowledged is on disk.\""""
    sender = producer()
    sender.send("orders", "first", key="k")
    disk.may_sync.clear()
    disk.syncing.clear()
    future = sender.submit("orders", "second", key="k")
    assert disk.syncing.wait(30)
    assert not future.done()
    disk.may_sync.set()
    future.result(30)
    assert disk.holds("second")


def test_a_broker_that_acknowledges_before_the_flush_would_lose_it(
    producer: Callable[[], Producer], disk: PowerCutDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the receipt is there, the message is not."""
    flush_before_ack(monkeypatch.setattr)
    sender = producer()
    sender.send("orders", "first", key="k")
    disk.may_sync.clear()
    assert sender.submit("orders", "second", key="k").result(30)
    assert not disk.holds("second")


def test_a_failed_sync_stops_the_writes_and_is_never_tried_again(
    producer: Callable[[], Producer], disk: PowerCutDisk
) -> None:
    """ "A failed fdatasync stops the broker's writes; it is never retried into a false success.\""""
    sender = producer()
    sender.send("orders", "first", key="k")
    disk.failing_sync = 1
    with pytest.raises(LaneError):
        sender.send("orders", "second", key="k")
    asked = disk.calls["fdatasync"]
    with pytest.raises(LaneError):
        sender.send("orders", "third", key="k")
    assert disk.calls["fdatasync"] == asked


def test_a_sync_that_is_tried_again_succeeds_falsely(
    producer: Callable[[], Producer], disk: PowerCutDisk, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control: the second fdatasync reports success, although the message is lost."""
    real = CommitLog.sync

    def stubborn(self: CommitLog) -> None:
        try:
            real(self)
        except WriteFailed:
            real(self)

    monkeypatch.setattr(CommitLog, "sync", stubborn)
    sender = producer()
    sender.send("orders", "first", key="k")
    disk.failing_sync = 1
    assert sender.send("orders", "second", key="k")
    assert not disk.holds("second")


def test_a_relaxed_broker_says_so_in_its_receipts(tmp_path: Path) -> None:
    """ "A relaxed mode exists and every receipt … say so.\""""
    options = BrokerOptions(tmp_path, listen=Address("127.0.0.1", 0), durable=False)
    with EmbeddedBroker(options) as broker, Producer(broker.address, create="orders") as sender:
        assert sender.send("orders", 1, key="k").stored is StoredAs.RELAXED
