"""Parked messages survive the broker's retention as copies, within a bound; what came too late is named."""

from pathlib import Path

import pytest
from tests.broker.raw_client import RawClient
from tests.coordinator.conftest import GROUP, TOPIC, RunningCoordinator, Start
from tests.coordinator.test_coordinator import member, until

from lanemq import Message, Producer
from lanemq.broker.config import BrokerOptions
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.net.address import Address
from lanemq.testing.embedded import EmbeddedBroker

FILE_BYTES = 64 * 1024


@pytest.fixture
def options(tmp_path: Path) -> BrokerOptions:
    """A broker that deletes its log soon."""
    listen = Address("127.0.0.1", 0)
    return BrokerOptions(tmp_path / "broker", listen=listen, segment_bytes=FILE_BYTES, retention_bytes=FILE_BYTES)


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.coordinator.watch.PARKED_EVERY_MS", 100)


def copy_all(monkeypatch: pytest.MonkeyPatch, wanted: bool) -> None:
    """As at a broker whose disk is nearly full; without it, nothing here is old enough."""
    monkeypatch.setattr("lanemq.core.brokering.cluster.retention.FULL_RATIO", -1.0 if wanted else 2.0)


def park(cluster: EmbeddedBroker, count: int = 3) -> int:
    """Parks a lane of so many messages; its queue."""
    with Producer(cluster.address) as producer:
        receipts = [producer.send(TOPIC, {"fail": True}, key="bad") for _ in range(count)]
    app = member(cluster.address, [])
    app.start()
    with ParkedAdmin(cluster.address) as parked:
        until(lambda: [lane.messages for lane in parked.lanes(GROUP)] == [count])
    app.stop()
    return receipts[0].queue.queue_id


def delete_log(cluster: EmbeddedBroker, client: RawClient, queue: int) -> None:
    """Sends until the broker has deleted the parked messages."""
    with Producer(cluster.address) as producer:
        while client.bounds(TOPIC, queue)[0] < 3:
            producer.send(TOPIC, "x" * 8_000, key="bad")


def redriven(cluster: EmbeddedBroker) -> list[int]:
    """The parked messages that a new member handles."""
    seen: list[Message] = []
    app = member(cluster.address, seen)
    app.handle.healed = True  # type: ignore[attr-defined]
    app.start()
    with ParkedAdmin(cluster.address) as parked:
        for lane in parked.lanes(GROUP):
            parked.redrive(lane)
        until(lambda: not parked.lanes(GROUP))
    app.stop()
    return [message.queue_offset for message in seen if message.value() == {"fail": True}]


def test_parked_messages_are_copied_before_their_broker_deletes_them(
    cluster: EmbeddedBroker, moved: RunningCoordinator, at_broker: RawClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_all(monkeypatch, True)
    queue = park(cluster)
    until(lambda: moved.coordinator.running.watch.parked_copies.bytes)
    delete_log(cluster, at_broker, queue)
    with ParkedAdmin(cluster.address) as parked:
        assert [each.value() for each in parked.messages(parked.lanes(GROUP)[0])][:3] == 3 * [{"fail": True}]
    assert redriven(cluster) == [0, 1, 2]


def test_a_clock_that_is_behind_that_of_the_broker_is_named_and_copies_come_in_time(
    cluster: EmbeddedBroker,
    moved: RunningCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """With the coordinator's own clock, two days behind, nothing would be old enough."""
    copy_all(monkeypatch, True)
    clock = moved.coordinator.running.context.clock
    wall = clock.wall
    monkeypatch.setattr(clock, "wall", lambda: wall() - 2 * 24 * 3_600_000)
    park(cluster, 3)
    until(lambda: "the clock here is 2880 min behind that of broker lanemq: set both by NTP" in caplog.text)
    until(lambda: moved.coordinator.running.watch.parked_copies.bytes)


def test_copies_are_known_after_a_restart(
    cluster: EmbeddedBroker,
    moved: RunningCoordinator,
    at_broker: RawClient,
    start: Start,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    copy_all(monkeypatch, True)
    queue = park(cluster)
    until(lambda: moved.coordinator.running.watch.parked_copies.bytes)
    moved.stop()
    delete_log(cluster, at_broker, queue)
    start(port=moved.address.port)
    assert redriven(cluster) == [0, 1, 2]


def test_without_the_copies_they_are_lost_and_named(
    cluster: EmbeddedBroker,
    moved: RunningCoordinator,
    at_broker: RawClient,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The control."""
    copy_all(monkeypatch, False)
    queue = park(cluster)
    delete_log(cluster, at_broker, queue)
    with ParkedAdmin(cluster.address) as parked:
        until(lambda: "deleted by the broker: offsets 0 to 2" in parked.lanes(GROUP)[0].reason)
    assert redriven(cluster) == []
    assert "offset 0 was deleted by its broker and is lost" in caplog.text


def test_a_full_store_is_said(
    cluster: EmbeddedBroker,
    moved: RunningCoordinator,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    copy_all(monkeypatch, True)
    monkeypatch.setattr("lanemq.coordinator.retention.MAX_COPIED_BYTES", 100)
    park(cluster)
    until(lambda: "and no more are made" in caplog.text)
    assert moved.coordinator.running.watch.parked_copies.is_full


def test_one_long_lane_is_not_copied_far_beyond_the_bound(
    cluster: EmbeddedBroker, moved: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    copy_all(monkeypatch, True)
    monkeypatch.setattr("lanemq.coordinator.retention.MAX_COPIED_BYTES", 100)
    monkeypatch.setattr("lanemq.coordinator.retention.PULLS_AT_ONCE", 1)
    copies, one_read = moved.coordinator.running.watch.parked_copies, 32
    monkeypatch.setattr("lanemq.coordinator.watch.PARKED_EVERY_MS", 1_000_000)
    park(cluster, 100)
    monkeypatch.setattr("lanemq.coordinator.watch.PARKED_EVERY_MS", 100)
    until(lambda: copies.is_full)
    (lane,) = next(iter(moved.coordinator.running.context.progress.parked())).lanes.values()
    assert lane.copied < one_read
