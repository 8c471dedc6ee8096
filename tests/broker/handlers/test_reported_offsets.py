"""Offsets reported by a program that is no member of the group: never beside consumers, whose place they would move."""

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient
from tests.broker.running import RunningBroker

from lanemq.model.errors import StorageError
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.command import Command
from lanemq.wire.route_bodies import SubscriptionGroupConfig


@pytest.fixture
def running(start: Start) -> RunningBroker:
    broker = start()
    raw = broker.connect()
    raw.create("T", 4)
    for _ in range(9):
        raw.send("T")
    return broker


def report(raw: RawClient, offset: int, group: str = "g", queue: int = 0) -> Command:
    return raw.commit(offset, group=group, queue=queue, laneReport="true")


def conflict(reply: Command) -> str:
    assert reply.code == ResponseCode.GROUP_CONFLICT
    return reply.remark or ""


def test_reports_show_how_far_a_program_is(running: RunningBroker) -> None:
    raw = running.connect()
    assert [report(raw, offset, queue=queue).code for offset, queue in ((5, 0), (3, 1), (2, 0))] == [0, 0, 0]
    assert (raw.committed(), raw.committed(queue=1)) == (2, 3), "it may have begun again"


@pytest.mark.parametrize("gone", [False, True], ids=["members", "members that have left"])
def test_a_report_for_a_group_of_consumers_is_refused_and_moves_nothing(running: RunningBroker, gone: bool) -> None:
    """The members would begin there, and never handle the messages before."""
    raw, member = running.connect(), running.connect()
    assert member.heartbeat("c", topics={"T": "*"}).code == 0
    if gone:
        assert member.commit(2).code == 0
        member.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"})
    assert "group g is used by consumers" in conflict(report(raw, 7))
    assert raw.committed() == (2 if gone else None)


def test_a_group_whose_members_own_queues_and_never_committed_is_one_of_consumers(running: RunningBroker) -> None:
    raw, member = running.connect(), running.connect()
    assert member.heartbeat("c", topics={"T": "*"}).code == 0
    assert member.lane_lock("c", millis=60_000).lock_ok_mq_set
    member.ask(RequestCode.UNREGISTER_CLIENT, {"clientID": "c", "consumerGroup": "g"})
    conflict(report(raw, 7))


@pytest.mark.parametrize("restarted", [False, True])
def test_a_consumer_of_a_reported_group_is_refused(running: RunningBroker, restarted: bool) -> None:
    assert report(running.connect(), 7).code == 0
    if restarted:
        running.restart()
    said = conflict(running.connect().heartbeat("c", topics={"T": "*"}))
    assert "group g: its offsets are those of a Spark query" in said
    assert "lanemq group delete g" in said
    assert report(running.connect(), 8).code == 0, "the reports go on"


def test_a_deleted_group_may_be_used_by_consumers(running: RunningBroker) -> None:
    raw = running.connect()
    assert report(raw, 7).code == 0
    deleted = {"groupName": "g", "cleanOffset": "true"}
    assert raw.ask(RequestCode.DELETE_SUBSCRIPTIONGROUP, deleted).code == 0
    assert raw.heartbeat("c", topics={"T": "*"}).code == 0


def test_other_settings_of_a_reported_group_do_not_open_it_for_consumers(running: RunningBroker) -> None:
    raw = running.connect()
    assert report(raw, 7).code == 0
    settings = SubscriptionGroupConfig(group_name="g", retry_max_times=3).encode()
    assert raw.ask(RequestCode.UPDATE_AND_CREATE_SUBSCRIPTIONGROUP, {}, settings).code == 0
    conflict(raw.heartbeat("c", topics={"T": "*"}))


def test_a_report_that_cannot_be_noted_on_disk_is_not_taken(
    running: RunningBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """After a restart, consumers would begin at its offset."""
    raw, state = running.connect(), running.broker.running.context.state

    def full(*_: object) -> None:
        raise StorageError("disk full")

    with monkeypatch.context() as patch:
        patch.setattr(type(state), "save_group", full)
        assert report(raw, 7).code not in (0, ResponseCode.GROUP_CONFLICT)
    assert raw.committed() is None
    assert raw.heartbeat("c", topics={"T": "*"}).code == 0
