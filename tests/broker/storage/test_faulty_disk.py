"""On a failing disk, no lost send is acknowledged, every send is answered, and reads continue."""

import shutil
import sqlite3
import time
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.handlers.test_parking import Owner, fill
from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import Gate, ManualClock, RunningBroker
from tests.faulty_disk import FaultyDisk

from lanemq.core.brokering.dedup import ProducerTable
from lanemq.log.store import Store
from lanemq.model.errors import DiskFull, StorageError
from lanemq.wire.codes import RequestCode, ResponseCode

FAULTS = {
    "write error": {"failing_write": 1},
    "sync error": {"failing_sync": 1},
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


def test_a_full_disk_pauses_sends_and_they_go_on_by_themselves(start: Start) -> None:
    """Nothing that was refused is stored, a repeat is fresh, and what was sent behind it is refused with it."""
    disk = FaultyDisk()
    running = start(disk=disk)
    raw = running.connect()
    assert raw.send("T", b"0", stamp="p.0.0").code == 0
    disk.space = 10
    gate = Gate(running)
    waiting = [raw.post_send("T", b"%d" % n, stamp=f"p.0.{n}") for n in (1, 2)]
    gate.open()
    refused = [raw.answer(each) for each in waiting]
    assert [each.code for each in refused] == [ResponseCode.SYSTEM_BUSY] * 2
    assert "free some" in (refused[0].remark or "")
    assert raw.send("T", b"1", stamp="p.0.1").code == ResponseCode.SYSTEM_BUSY
    assert bodies(raw.read("T")) == [b"0"]
    assert raw.commit(1).code == 0
    assert raw.lock("c").lock_ok_mq_set
    disk.space = None
    while raw.send("T", b"1", stamp="p.0.1").code == ResponseCode.SYSTEM_BUSY:
        time.sleep(0.05)
    assert raw.send("T", b"1", stamp="p.0.1").ext["laneDuplicate"] == "true"
    assert raw.send("T", b"2", stamp="p.0.2").code == 0
    assert bodies(raw.read("T")) == [b"0", b"1", b"2"]
    running.restart()
    raw = running.connect()
    assert raw.send("T", b"2", stamp="p.0.2").ext["laneDuplicate"] == "true"
    assert bodies(raw.read("T")) == [b"0", b"1", b"2"]


def test_without_undoing_stamps_a_repeat_would_be_a_false_success(
    start: Start, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(ProducerTable, "undo", lambda *_: None)
    disk = FaultyDisk()
    raw = start(disk=disk).connect()
    assert raw.send("T", b"0", stamp="p.0.0").code == 0
    disk.space = 10
    assert raw.send("T", b"1", stamp="p.0.1").code == ResponseCode.SYSTEM_BUSY
    disk.space = None
    while (reply := raw.send("T", b"1", stamp="p.0.1")).code == ResponseCode.SYSTEM_BUSY:
        time.sleep(0.05)
    assert reply.ext["laneDuplicate"] == "true"
    assert bodies(raw.read("T")) == [b"0"]


def test_a_topic_whose_row_meets_a_full_disk_has_no_message_before_its_row(start: Start, folder: Path) -> None:
    running = start()
    raw = running.connect()
    state = running.broker.running.context.state
    works = state.save_topic

    def full(name: str, settings: str) -> None:
        raise DiskFull("no space left for state.db")

    state.save_topic = full  # type: ignore[method-assign]
    assert raw.send("T", b"lost").code == ResponseCode.SYSTEM_BUSY
    assert "T" not in state.topics()
    state.save_topic = works  # type: ignore[method-assign]
    while raw.send("T", b"kept").code == ResponseCode.SYSTEM_BUSY:
        time.sleep(0.05)
    assert "T" in state.topics()
    assert bodies(raw.read("T")) == [b"kept"]


class NearlyFull(FaultyDisk):
    """Has as much free space as a test says."""

    free = 10**12

    def free_space(self, path: Path) -> tuple[int, int]:
        return self.free, 10**12


def test_below_the_watermark_sends_are_refused_and_topics_can_be_deleted(start: Start) -> None:
    disk, mark = NearlyFull(), 100 * 2**20
    running = start(disk=disk, clock=ManualClock(), min_free_bytes=mark)
    raw = running.connect()
    for topic in ("T", "U"):
        assert raw.send(topic, b"0").code == 0
    disk.free = mark - 1
    running.advance(50)
    reply = raw.send("T", b"1")
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "99 MiB left" in (reply.remark or "")
    assert raw.create("V").code == ResponseCode.SYSTEM_BUSY
    assert bodies(raw.read("T")) == [b"0"]
    assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "U"}).code == 0
    assert raw.runtime()["laneRefused_low_space"] == "2"
    disk.free = mark + 1
    running.advance(2_000)
    assert raw.send("T").code == ResponseCode.SYSTEM_BUSY, "only a little above the watermark"
    disk.free = 2 * mark
    running.advance(2_000)
    assert raw.send("T", b"1").code == 0


def test_retention_frees_space_while_sends_are_refused(start: Start, folder: Path) -> None:
    """By age and by size: old files go, and sends continue by themselves."""
    disk, mark = NearlyFull(), 100 * 2**20
    limits = {"segment_bytes": 64 * 1024, "retention_bytes": 256 * 1024, "retention": 3600.0}
    running = start(disk=disk, clock=ManualClock(), min_free_bytes=mark, **limits)
    raw = running.connect()
    for _ in range(10):
        assert raw.send("T", bytes(60_000)).code == 0
    disk.free = mark - 1
    running.advance(50)
    assert raw.send("T").code == ResponseCode.SYSTEM_BUSY
    by_size = log_size(folder)
    assert by_size <= 5 * 64 * 1024, "it looks at once when the disk is nearly full"
    running.advance(3_600_000)
    running.advance(10_000)
    assert log_size(folder) < by_size
    disk.free = 2 * mark
    running.advance(2_000)
    assert raw.send("T").code == 0


def test_a_topic_deleted_on_a_full_disk_frees_its_log_files_and_stays_deleted(start: Start, folder: Path) -> None:
    running = start(clock=ManualClock(), segment_bytes=64 * 1024)
    raw = running.connect()
    for topic in ("Gone", "Kept"):
        for _ in range(5):
            assert raw.send(topic, bytes(60_000)).code == 0
    running.advance(6_000)  # a checkpoint
    state = running.broker.running.context.state
    works, before = state.drop_topic, log_size(folder)

    def full(name: str, position: int) -> None:
        if log_size(folder) == before:
            raise DiskFull("no space left for state.db")
        works(name, position)

    state.drop_topic = full  # type: ignore[method-assign]
    reply = raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"})
    assert reply.code == ResponseCode.SYSTEM_BUSY
    assert "topic Gone is deleted, but not on disk yet: no space left for state.db" in (reply.remark or "")
    assert "Gone" in state.topics()
    running.advance(2_000)
    assert log_size(folder) <= before - 4 * 60_000
    running.advance(2_000)
    assert "Gone" not in state.topics()
    assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Gone"}).code == ResponseCode.TOPIC_NOT_EXIST
    running.restart()
    assert len(running.connect().read("Kept")) == 5


def test_a_topic_created_again_is_not_deleted_by_the_repeated_deletion_of_its_predecessor(start: Start) -> None:
    running = start(clock=ManualClock(), min_free_bytes=0)  # without a reserve
    raw = running.connect()
    assert raw.send("T", b"old").code == 0
    state = running.broker.running.context.state
    works = state.drop_topic
    full = [True, True]

    def sometimes_full(name: str, position: int) -> None:
        if full:
            full.pop()
            raise DiskFull("no space left for state.db")
        works(name, position)

    state.drop_topic = sometimes_full  # type: ignore[method-assign]
    for _ in range(2):
        assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "T"}).code == ResponseCode.SYSTEM_BUSY
    running.call(running.broker.running.context.group_commit.resume)
    assert raw.send("T", b"new").code == 0
    running.advance(5_000)
    assert "T" in state.topics()
    running.restart()
    assert bodies(running.connect().read("T")) == [b"new"]


def log_size(folder: Path) -> int:
    return sum(path.stat().st_size for path in (folder / "data" / "log").iterdir())


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

    broker.broker.running.context.state.save_topic = refuse  # type: ignore[method-assign]
    assert raw.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert raw.create("U").code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "database" in raw.runtime()["laneReadOnly"]


def test_an_epoch_that_cannot_be_saved_is_not_granted(broker: RunningBroker) -> None:
    raw = broker.connect()
    raw.create("T")
    state = broker.broker.running.context.state
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


def test_a_relaxed_broker_syncs_within_half_a_second(start: Start) -> None:
    """The last message of a burst has no successor that would cause a sync."""
    disk = FaultyDisk()
    running = start(disk=disk, clock=ManualClock(), durable=False)
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
    running = start(disk=disk, clock=ManualClock(), durable=False)
    raw = running.connect()
    assert raw.send("T").code == 0
    disk.failing_sync = 1
    running.advance(500)
    assert raw.send("T").code == ResponseCode.SERVICE_NOT_AVAILABLE


def test_a_failing_answer_does_not_prevent_others(broker: RunningBroker) -> None:
    raw = broker.connect()
    commits = broker.broker.running.context.group_commit

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


def lose(kind: str, data: Path) -> None:
    """What people do by mistake to the folder of a running broker. Its files stay open, so no write fails."""
    if kind == "log file deleted":
        max((data / "log").iterdir()).unlink()
    elif kind in {"state.db", "state.db-wal"}:
        (data / kind).unlink()
    elif kind == "another state.db":
        shutil.copy(data / "state.db", data / "copy")
        (data / "copy").rename(data / "state.db")
    else:
        data.rename(data.with_name("gone"))
        if kind == "another folder":
            data.mkdir()


@pytest.mark.parametrize(
    "kind", ["renamed", "another folder", "log file deleted", "state.db", "state.db-wal", "another state.db"]
)
def test_no_message_is_acknowledged_once_the_folder_is_gone(start: Start, kind: str) -> None:
    running = start()
    data = running.options.data
    raw = running.connect()
    raw.create("T", 1)
    raw.send("T", b"kept", queue=0)
    lose(kind, data)
    running.call(running.broker.running.housekeeping.tick)
    reply = raw.send("T", b"lost", queue=0)
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "so messages would be lost" in (reply.remark or "")
    assert bodies(raw.read("T")) == [b"kept"], "what is open can still be read"
    if kind in {"renamed", "another folder"}:
        shutil.rmtree(data, ignore_errors=True)
        data.with_name("gone").rename(data)  # so that the broker can be stopped
    elif kind != "log file deleted":
        with pytest.raises(StorageError, match="nothing can be saved"):
            running.stop()


def test_a_lane_is_not_parked_in_a_database_that_was_deleted(start: Start) -> None:
    """Also in the moment before the broker looks again: the answer would promise that the lane is on disk."""
    running = start()
    fill(running.connect(), 1)
    owner = Owner(running)
    assert owner.ask_park(0).code == 0
    lose("state.db", running.options.data)
    reply = owner.ask_park(0, key="other")
    assert reply.code == ResponseCode.SERVICE_NOT_AVAILABLE
    assert "state.db was deleted while the broker runs" in (reply.remark or "")
    with pytest.raises(StorageError, match="nothing can be saved"):
        running.stop()


def test_without_that_look_messages_are_acknowledged_and_lost(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """Negative control of the test before."""
    monkeypatch.setattr(Store, "lost", lambda _: None)
    with pytest.raises(AssertionError, match="SERVICE_NOT_AVAILABLE"):
        test_no_message_is_acknowledged_once_the_folder_is_gone(start, "log file deleted")


def test_the_file_of_the_lock_alone_may_be_deleted(broker: RunningBroker) -> None:
    (broker.options.data / "lock").unlink()
    assert broker.broker.running.context.store.lost() is None


def test_a_step_that_fails_at_every_tick_is_logged_once_a_minute(
    start: Start, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A disk that cannot be asked filled the log with 20 tracebacks a second."""
    running = start(clock=ManualClock())

    def fail() -> None:
        raise OSError(5, "Input/output error")

    # Not of the class: another broker of this process, which other tests share, would log the same.
    monkeypatch.setattr(running.broker.running.context.store, "space", fail)
    for _ in range(10):
        running.call(running.broker.running.housekeeping.tick)
    failures = [record for record in caplog.records if record.message == "housekeeping failed"]
    assert len(failures) == 1
    running.advance(60_000)
    assert len([record for record in caplog.records if record.message == "housekeeping failed"]) == 2
