"""The same offsets, other messages: a topic that was created anew, as a log that was truncated and grew again."""

from typing import Any

import pytest
from tests.broker.raw_client import BROKER, RawClient
from tests.coordinator.conftest import GROUP, TOPIC, RunningCoordinator, owned
from tests.coordinator.test_coordinator import commit, member, until

from lanemq import Message, Producer
from lanemq.client.admin.admin import Admin
from lanemq.client.admin.coordinated import CoordinatedAdmin
from lanemq.client.admin.parked import ParkedAdmin
from lanemq.client.consumer.queues import read_log
from lanemq.coordinator.cluster import ClusterLink
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.lane_bodies import LaneBody

COUNT = 10


def send(address: str, first: int = 0, count: int = COUNT) -> None:
    with Producer(address) as producer:
        for number in range(first, first + count):
            producer.send(TOPIC, {"n": number}, key="k")


def numbers(seen: list[Message]) -> list[int]:
    return [message.value()["n"] for message in seen]


def consume(address: str, count: int = COUNT) -> None:
    seen: list[Message] = []
    app = member(address, seen)
    app.start()
    until(lambda: len(seen) == count)
    app.stop()


def replace_log(address: str, count: int = COUNT) -> None:
    with Admin(address) as admin:
        admin.delete_topic(TOPIC)
        admin.create_topic(TOPIC, 2, ordered=True)
    send(address, 100, count)


def others(address: str, *, apply: bool = False) -> list[tuple[int, int]]:
    with CoordinatedAdmin(address) as admin:
        return [(each.offset, each.same_below) for each in admin.compare(GROUP, apply=apply).others]


def test_a_queue_with_other_messages_stops_until_its_progress_is_dropped(
    cluster: EmbeddedBroker,
    moved: RunningCoordinator,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("lanemq.client.consumer.queues.rebalance.STOPPED_MS", 500)
    send(cluster.address)
    consume(cluster.address)
    replace_log(cluster.address, COUNT + 5)
    seen: list[Message] = []
    app = member(cluster.address, seen)
    app.start()
    until(lambda: "has another message at offset 9" in caplog.text)
    assert f"lanemq group compare {GROUP}" in caplog.text
    assert not seen
    assert others(cluster.address) == [(COUNT, 0)]
    assert others(cluster.address, apply=True) == [(COUNT, 0)]
    until(lambda: len(seen) == COUNT + 5)
    assert numbers(seen) == [*range(100, 100 + COUNT + 5)]
    until(lambda: not others(cluster.address))
    app.stop()


def test_without_the_comparison_new_messages_are_skipped(
    cluster: EmbeddedBroker, moved: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control."""
    monkeypatch.setattr(read_log, "differs", lambda *_: None)
    send(cluster.address)
    consume(cluster.address)
    replace_log(cluster.address, COUNT + 5)
    seen: list[Message] = []
    app = member(cluster.address, seen)
    app.start()
    until(lambda: len(seen) == 5)
    app.stop()
    assert numbers(seen) == [*range(100 + COUNT, 100 + COUNT + 5)]


def test_the_same_log_is_taken_without_a_word(
    cluster: EmbeddedBroker, moved: RunningCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster.address)
    consume(cluster.address)
    send(cluster.address, COUNT)
    consume(cluster.address)
    assert not others(cluster.address)
    assert "another message" not in caplog.text


def test_a_member_at_work_notices_it_when_its_offset_is_refused(
    cluster: EmbeddedBroker, moved: RunningCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    send(cluster.address)
    seen: list[Message] = []
    app = member(cluster.address, seen)
    app.start()
    until(lambda: len(seen) == COUNT)
    with Admin(cluster.address) as admin:
        queue = seen[0].queue
        until(lambda: admin.committed(GROUP, queue) == COUNT)
    replace_log(cluster.address, 3)
    until(lambda: "has no message at offset 9" in caplog.text)
    app.stop()
    assert len(seen) == COUNT


def test_parked_messages_of_the_former_log_are_dropped_with_a_line(
    cluster: EmbeddedBroker, moved: RunningCoordinator, caplog: pytest.LogCaptureFixture
) -> None:
    with Producer(cluster.address) as producer:
        producer.send(TOPIC, {"fail": True}, key="bad")
    app = member(cluster.address, [])
    app.start()
    with ParkedAdmin(cluster.address) as parked:
        until(lambda: parked.lanes(GROUP))
        app.stop()
        replace_log(cluster.address, 3)
        with CoordinatedAdmin(cluster.address) as admin:
            assert [each.parked for each in admin.compare(GROUP).others] == [1]
            admin.compare(GROUP, apply=True)
        assert not parked.lanes(GROUP)
    assert "are dropped, from offset 0 on: they are lost" in caplog.text


def test_messages_that_retention_deletes_during_a_comparison_are_not_other_ones(
    cluster: EmbeddedBroker, moved: RunningCoordinator, monkeypatch: pytest.MonkeyPatch
) -> None:
    send(cluster.address)
    consume(cluster.address)
    first, deleted = ClusterLink.first_offset, list[int]()

    async def first_offset(self: ClusterLink, *args: Any) -> int:
        return COUNT if deleted else await first(self, *args)

    async def message(*_: object) -> bytes:
        deleted.append(1)
        return b""

    monkeypatch.setattr(ClusterLink, "first_offset", first_offset)
    monkeypatch.setattr(ClusterLink, "message", message)
    assert others(cluster.address) == []


def test_an_owner_whose_queue_was_set_back_after_the_grant_takes_it_again(
    cluster: EmbeddedBroker, at_coordinator: RawClient
) -> None:
    """It got its progress with the grant, and the marks that would show another log may be gone."""
    epoch = owned(at_coordinator, "one")
    commit(at_coordinator, 2, "one", epoch)
    asked = LaneBody(group=GROUP, topic=TOPIC, broker=BROKER, queue_id=0).encode()
    assert at_coordinator.ask(RequestCode.LANE_SEEN, body=asked).code == ResponseCode.SUCCESS
    with Admin(cluster.address) as admin:
        admin.reset_offsets(GROUP, TOPIC, to="first")
    refused = at_coordinator.ask(RequestCode.LANE_SEEN, body=asked)
    assert "was granted: take it again" in (refused.remark or "")
    at_coordinator.unlock("one", TOPIC, group=GROUP)
    (lease,) = at_coordinator.lane_lock("one", TOPIC, group=GROUP, laneResets="true").lane_leases
    assert lease.moved
    commit(at_coordinator, 0, "one", lease.epoch)
    assert at_coordinator.ask(RequestCode.LANE_SEEN, body=asked).code == ResponseCode.SUCCESS
