"""The brokers have the offsets of coordinated groups soon, and what others set there is not overwritten."""

import pytest
from tests.broker.raw_client import RawClient
from tests.coordinator.conftest import GROUP, TOPIC, RunningCoordinator, Start
from tests.coordinator.test_coordinator import commit, offset_of, owned, until

from lanemq.client.admin.admin import Admin
from lanemq.client.admin.coordinated import CoordinatedAdmin
from lanemq.client.admin.views import AtOffset
from lanemq.testing.embedded import EmbeddedBroker
from lanemq.wire.codes import RequestCode


@pytest.fixture(autouse=True)
def copies_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lanemq.coordinator.watch.COPIES_EVERY_MS", 100)


@pytest.fixture
def owner(at_coordinator: RawClient, at_broker: RawClient) -> int:
    for _ in range(20):
        at_broker.send(TOPIC)
    return owned(at_coordinator, "one")


def at(at_broker: RawClient, offset: int) -> None:
    until(lambda: at_broker.committed(TOPIC, group=GROUP) == offset)


def test_offsets_are_copied(at_coordinator: RawClient, at_broker: RawClient, owner: int) -> None:
    for offset in (5, 8):
        commit(at_coordinator, offset, "one", owner)
        at(at_broker, offset)


def test_what_somebody_else_sets_is_noticed_and_not_overwritten(
    at_coordinator: RawClient, at_broker: RawClient, owner: int, caplog: pytest.LogCaptureFixture
) -> None:
    commit(at_coordinator, 8, "one", owner)
    at(at_broker, 8)
    at_broker.commit(15, TOPIC, group=GROUP)
    until(lambda: f"lanemq group reset {GROUP} --topic {TOPIC} --queue 0 --to 15" in caplog.text)
    commit(at_coordinator, 9, "one", owner)
    with pytest.raises(AssertionError, match="not in time"):
        until(lambda: at_broker.committed(TOPIC, group=GROUP) != 15, 1.5)
    assert offset_of(at_coordinator) == 9


def test_a_reset_to_an_offset_that_was_copied_before_is_noticed_too(
    at_coordinator: RawClient, at_broker: RawClient, owner: int, caplog: pytest.LogCaptureFixture
) -> None:
    for offset in (5, 8, 9):  # the copy of the last one follows a look at the one before
        commit(at_coordinator, offset, "one", owner)
        at(at_broker, offset)
    ext = {"topic": TOPIC, "group": GROUP, "queueId": "0", "offset": "5", "timestamp": "0", "isForce": "true"}
    assert at_broker.ask(RequestCode.INVOKE_BROKER_TO_RESET_OFFSET, ext).code == 0
    until(lambda: f"lanemq group reset {GROUP} --topic {TOPIC} --queue 0 --to 5" in caplog.text)
    commit(at_coordinator, 10, "one", owner)
    with pytest.raises(AssertionError, match="not in time"):
        until(lambda: at_broker.committed(TOPIC, group=GROUP) != 5, 1.0)


def test_a_reset_of_the_group_decides_it(
    cluster: EmbeddedBroker, at_coordinator: RawClient, at_broker: RawClient, owner: int
) -> None:
    commit(at_coordinator, 8, "one", owner)
    at(at_broker, 8)
    at_broker.commit(15, TOPIC, group=GROUP)
    at_coordinator.unlock("one", TOPIC, group=GROUP)
    with Admin(cluster.address) as admin:
        admin.reset_offsets(GROUP, TOPIC, to=AtOffset(17))
    at(at_broker, 17)


def test_it_is_noticed_after_a_restart_too(
    at_coordinator: RawClient,
    at_broker: RawClient,
    owner: int,
    moved: RunningCoordinator,
    start: Start,
    caplog: pytest.LogCaptureFixture,
) -> None:
    commit(at_coordinator, 8, "one", owner)
    at(at_broker, 8)
    moved.stop()
    at_broker.commit(15, TOPIC, group=GROUP)
    start()
    until(lambda: "--to 15" in caplog.text)
    assert at_broker.committed(TOPIC, group=GROUP) == 15


def test_a_coordinator_whose_folder_is_lost_continues_from_the_copies(
    cluster: EmbeddedBroker,
    at_coordinator: RawClient,
    at_broker: RawClient,
    owner: int,
    moved: RunningCoordinator,
    start: Start,
) -> None:
    commit(at_coordinator, 8, "one", owner)
    at(at_broker, 8)
    moved.stop()
    start("new", replace=True)
    with CoordinatedAdmin(cluster.address) as admin:
        found = admin.move(GROUP, apply=True)
    assert found.moved
    assert [each.offset for each in found.queues if each.queue_id == 0] == [8]
