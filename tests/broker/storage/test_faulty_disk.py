"""On a failing disk, no lost send is acknowledged, every send is answered, and reads go on."""

import sqlite3
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import Gate, ManualClock, RunningBroker

from lanemq.model.errors import StorageError
from lanemq.testing.faulty_disk import FaultyDisk
from lanemq.wire.codes import RequestCode, ResponseCode

FAULTS = {
    "write error": {"failing_write": 1},
    "sync error": {"failing_sync": 1},
    "disk full": {"space": 10},
}


def broken(start: Start, fault: str) -> tuple[RunningBroker, RawClient, list[int]]:
    """A broker with two stored messages, and five sends that hit the fault."""
    disk = FaultyDisk()
    running = start(disk=disk)
    raw = running.connect()
    assert [raw.send("T", body).code for body in (b"0", b"1")] == [0, 0]
    gate = Gate(running)
    for name, value in FAULTS[fault].items():
        setattr(disk, name, value)
    waiting = [raw.post_send("T", b"lost %d" % i) for i in range(5)]
    gate.open()
    return running, raw, waiting


@pytest.mark.parametrize("fault", FAULTS)
def test_every_waiting_send_is_answered_with_an_error(start: Start, fault: str) -> None:
    _, raw, waiting = broken(start, fault)
    assert [raw.answer(opaque).code for opaque in waiting] == [ResponseCode.SERVICE_NOT_AVAILABLE] * 5


@pytest.mark.parametrize("fault", FAULTS)
def test_after_a_fault_nothing_is_stored_and_reads_go_on(start: Start, fault: str) -> None:
    """Even though the disk works again at once."""
    running, raw, waiting = broken(start, fault)
    for opaque in waiting:
        raw.answer(opaque)
    reply = raw.send("T", b"later")
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert reply.remark
    assert raw.send("New").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "New"}).code == ResponseCode.TOPIC_NOT_EXIST
    assert bodies(raw.read("T")) == [b"0", b"1"]
    assert raw.runtime()["laneReadOnly"] not in ("", "false")
    assert running.call(lambda: running.broker.read_only)
    assert raw.commit(2).code == 0, "groups may still make progress"
    assert raw.lock("c").lock_ok_mq_set


@pytest.mark.parametrize("fault", FAULTS)
def test_repeat_of_a_failed_send_is_not_a_duplicate(start: Start, fault: str) -> None:
    """Its stamp was recorded when it was staged; a "duplicate" would be a false success."""
    disk = FaultyDisk()
    raw = start(disk=disk).connect()
    assert raw.send("T", stamp="p.0.0").code == 0
    for name, value in FAULTS[fault].items():
        setattr(disk, name, value)
    assert raw.send("T", stamp="p.0.1").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert raw.send("T", stamp="p.0.1").code == ResponseCode.SERVICE_NOT_AVAILABLE


@pytest.mark.parametrize("fault", FAULTS)
def test_messages_acknowledged_before_a_fault_are_there_after_a_restart(start: Start, folder: Path, fault: str) -> None:
    running, raw, waiting = broken(start, fault)
    for opaque in waiting:
        raw.answer(opaque)
    running.stop()
    again = start().connect()
    assert bodies(again.read("T"))[:2] == [b"0", b"1"]
    assert again.send("T").code == 0


def test_after_a_full_disk_and_a_restart_a_repeated_message_is_stored(start: Start) -> None:
    """The producer table recorded it as staged, and would otherwise refuse the repeat as a duplicate."""
    disk = FaultyDisk()
    running = start(disk=disk)
    raw = running.connect()
    assert raw.send("T", b"0", stamp="p.0.0").code == 0
    disk.space = 10
    refused = raw.send("T", b"1", stamp="p.0.1")
    assert "restart the broker" in (refused.remark or "")
    disk.space = None
    running.restart()
    raw = running.connect()
    assert [raw.send("T", b"%d" % n, stamp=f"p.0.{n}").code for n in (1, 2)] == [0, 0]
    assert bodies(raw.read("T")) == [b"0", b"1", b"2"]


def test_a_swallowed_error_would_be_a_false_success(start: Start) -> None:
    """Negative control: with the sync error swallowed, the same scenario acknowledges unsafe messages."""

    class Lying(FaultyDisk):
        def fdatasync(self, fd: int) -> None:
            try:
                super().fdatasync(fd)
            except OSError:
                self.calls["swallowed"] += 1

    disk = Lying()
    raw = start(disk=disk).connect()
    disk.failing_sync = 1
    assert raw.send("T").code == 0
    assert disk.calls["swallowed"] == 1


def test_a_read_only_broker_creates_no_topic(start: Start) -> None:
    _, raw, waiting = broken(start, "sync error")
    raw.answer(waiting[0])
    assert raw.create("Fresh").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert raw.ask(RequestCode.GET_ROUTEINFO_BY_TOPIC, {"topic": "Fresh"}).code == ResponseCode.TOPIC_NOT_EXIST
    assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_no_message_is_acknowledged_for_a_topic_whose_row_cannot_be_saved(broker: RunningBroker) -> None:
    """Otherwise an acknowledged message would be unreachable after a restart."""
    raw = broker.connect()

    def refuse(name: str, settings: str) -> None:
        raise StorageError("the state database failed: disk I/O error")

    broker.broker.running.parts.state.save_topic = refuse  # type: ignore[method-assign]
    assert raw.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert raw.create("U").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "database" in raw.runtime()["laneReadOnly"]


def test_an_epoch_that_cannot_be_saved_is_not_granted(broker: RunningBroker) -> None:
    raw = broker.connect()
    raw.create("T")
    state = broker.broker.running.parts.state
    works = state.save_leases

    def refuse(rows: object) -> None:
        raise StorageError("the state database failed: disk I/O error")

    state.save_leases = refuse  # type: ignore[method-assign]
    body = b'{"clientId":"a","consumerGroup":"g","mqSet":[{"topic":"T","brokerName":"lanemq","queueId":0}]}'
    assert raw.ask(RequestCode.LOCK_BATCH_MQ, body=body).code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert raw.ask(RequestCode.LOCK_BATCH_MQ, body=body).code == ResponseCode.SERVICE_NOT_AVAILABLE, "nor by renewal"
    state.save_leases = works  # type: ignore[method-assign]
    assert raw.lock("a").lock_ok_mq_set
    assert [(row.owner, row.epoch) for row in state.leases()] == [("a", 1)]


def test_a_relaxed_broker_syncs_within_relaxed_sync(start: Start) -> None:
    """The last message of a burst has no successor that would cause a sync."""
    disk = FaultyDisk()
    running = start(disk=disk, clock=ManualClock(), durable=False, relaxed_sync=0.5)
    raw = running.connect()
    reply = raw.send("T")
    assert reply.ext["laneStored"] == "relaxed"
    before = disk.calls["fdatasync"]
    running.advance(499)
    assert disk.calls["fdatasync"] == before
    running.advance(1)
    assert disk.calls["fdatasync"] == before + 1


def test_failed_sync_of_a_relaxed_broker_stops_its_writes(start: Start) -> None:
    disk = FaultyDisk()
    running = start(disk=disk, clock=ManualClock(), durable=False, relaxed_sync=0.5)
    raw = running.connect()
    assert raw.send("T").code == 0
    disk.failing_sync = 1
    running.advance(500)
    assert raw.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_failing_answer_does_not_prevent_others(broker: RunningBroker) -> None:
    raw = broker.connect()
    commits = broker.broker.running.parts.group_commit

    def fail(_: object) -> None:
        raise sqlite3.Error("from a listener")

    outcomes: list[object] = []

    def both() -> None:
        commits.barrier(fail)
        commits.barrier(outcomes.append)

    broker.call(both)
    assert raw.send("T").code == 0
    assert outcomes == [None]
    broker.settle()
    assert commits.pending_bytes == 0
