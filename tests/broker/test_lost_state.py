"""A data folder whose `state.db`, its write-ahead log, or the log beside them was lost."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import msgspec
import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import RunningBroker

from lanemq.log.state.recovery_file import EPOCH_STEP, RecoveryFile
from lanemq.model.errors import StorageError
from lanemq.wire.codes import RequestCode


def fill(running: RunningBroker) -> int:
    """An ordered topic with messages of one producer, and the epoch of an owner."""
    raw = running.connect()
    raw.create("Ordered", 3, order="true")
    for i in range(5):
        raw.send("Ordered", b"%d" % i, queue=1, stamp=f"p.0.{i}")
    return raw.lane_lock("a", "Ordered", queues=(1,)).lane_leases[0].epoch


def settings(raw: RawClient, topic: str) -> tuple[bool, int]:
    found = msgspec.json.decode(raw.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": topic}).body)
    return found["order"], found["writeQueueNums"]


def lose_database(data: Path) -> None:
    (data / "state.db").write_bytes(b"")
    (data / "state.db-wal").unlink(missing_ok=True)
    (data / "state.db-shm").unlink(missing_ok=True)


def lose_write_ahead_log(data: Path) -> None:
    (data / "state.db-wal").unlink()
    (data / "state.db-shm").unlink(missing_ok=True)


def contents(data: Path) -> dict[str, bytes]:
    ignored = {"lock", "state.db-shm"}
    return {str(path): path.read_bytes() for path in data.rglob("*") if path.is_file() and path.name not in ignored}


@pytest.mark.parametrize("killed", [False, True])
def test_an_empty_database_beside_a_log_is_refused_and_nothing_changes(
    start: Start, folder: Path, killed: bool
) -> None:
    running = start()
    fill(running)
    image = running.crash_image(folder / "image")
    running.stop()
    data = image if killed else folder / "data"
    lose_database(data)
    before = contents(data)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"state\.db.*restore it from a backup.*--recover"):
            start(data)
        assert contents(data) == before


def lose_log(data: Path) -> None:
    for path in (data / "log").iterdir():
        path.unlink()


def test_a_database_without_its_log_is_refused_and_nothing_changes(start: Start, folder: Path) -> None:
    running = start()
    fill(running)
    running.stop()
    lose_log(folder / "data")
    before = contents(folder / "data")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"newest files of the log .* are missing or cut.*--recover"):
            start()
        assert contents(folder / "data") == before


def test_recovery_without_the_log_gives_no_offset_twice(start: Start, folder: Path) -> None:
    running = start()
    fill(running)
    running.stop()
    lose_log(folder / "data")
    start(recover=True).stop()
    raw = start().connect()
    raw.send("Ordered", b"next", queue=1, stamp="p.0.5")
    assert raw.bounds("Ordered", 1) == (5, 6)


def test_a_database_without_its_write_ahead_log_is_refused(start: Start, folder: Path) -> None:
    running = start()
    fill(running)
    image = running.crash_image(folder / "image")
    running.stop()
    complete = shutil.copytree(image, folder / "complete")
    lose_write_ahead_log(image)
    for _ in range(2):
        with pytest.raises(StorageError, match=r"state\.db-wal, the newest part of state\.db, is missing"):
            start(image)
    assert settings(start(complete).connect(), "Ordered") == (True, 3), "with it, the broker starts"


@pytest.mark.parametrize("lose", [lose_database, lose_write_ahead_log])
def test_recovery_keeps_order_flags_and_grants_no_epoch_twice(start: Start, folder: Path, lose: object) -> None:
    running = start()
    epoch = fill(running)
    raw = running.connect()
    raw.create("Deleted", 2)
    raw.send("Deleted", b"gone")
    assert raw.ask(RequestCode.DELETE_TOPIC_IN_BROKER, {"topic": "Deleted"}).code == 0
    image = running.crash_image(folder / "image")
    running.stop()
    lose(image)  # type: ignore[operator]
    again = start(image, recover=True)
    raw = again.connect()
    assert settings(raw, "Ordered") == (True, 3)
    assert bodies(raw.read("Ordered", queue=1)) == [b"0", b"1", b"2", b"3", b"4"]
    assert raw.send("Ordered", b"4", queue=1, stamp="p.0.4").ext["laneDuplicate"] == "true"
    assert raw.ask(RequestCode.GET_TOPIC_CONFIG, {"topic": "Deleted"}).code != 0
    raw.create("Deleted", 2)
    assert raw.bounds("Deleted") == (0, 0), "the messages of a deleted topic do not come back"
    epochs = [raw.lane_lock("b", "Ordered", queues=(queue,)).lane_leases[0].epoch for queue in (1, 2)]
    assert min(epochs) > max(epoch, EPOCH_STEP - 1)
    again.restart()
    assert settings(again.connect(), "Ordered") == (True, 3)


def test_without_the_check_the_broker_would_start_as_if_new(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    running = start()
    epoch = fill(running)
    running.stop()
    lose_database(folder / "data")
    monkeypatch.setattr("lanemq.log.folder.checks.lost_state", lambda path, *, running: None)
    monkeypatch.setattr("lanemq.log.folder.checks.older_state", lambda state, facts: False)
    raw = start().connect()
    raw.create("Ordered", 8)
    assert settings(raw, "Ordered") == (False, 8)
    assert raw.lane_lock("b", "Ordered", queues=(1,)).lane_leases[0].epoch <= epoch


def put_back_older(start: Start, folder: Path, backup_while: str) -> int:
    """Puts a copy of `state.db` back after a clean stop; the newest epoch that it does not know.

    The copy was taken while the broker was stopped, or while it ran.
    """
    data, backup = folder / "data", folder / "state.db"
    running = start()
    fill(running)
    if backup_while == "stopped":
        running.stop()
        shutil.copy(data / "state.db", backup)
        running = start()
    else:
        with closing(sqlite3.connect(data / "state.db")) as source, closing(sqlite3.connect(backup)) as target:
            source.backup(target)
    raw = running.connect()
    raw.unlock("a", "Ordered", queues=(1,))
    epoch = raw.lane_lock("b", "Ordered", queues=(1,)).lane_leases[0].epoch
    raw.send("Ordered", b"5", queue=1, stamp="p.0.5")
    raw.create("Newer", 2, order="true")
    running.stop()
    shutil.copy(backup, data / "state.db")
    return epoch


@pytest.mark.parametrize("backup_while", ["stopped", "running"])
def test_an_older_database_is_refused_after_a_clean_stop(start: Start, folder: Path, backup_while: str) -> None:
    epoch = put_back_older(start, folder, backup_while)
    before = contents(folder / "data")
    for _ in range(2):
        with pytest.raises(StorageError, match=r"state\.db is an older copy.*--recover"):
            start()
        assert contents(folder / "data") == before
    raw = start(recover=True).connect()
    assert settings(raw, "Newer") == (True, 2)
    assert bodies(raw.read("Ordered", queue=1)) == [b"0", b"1", b"2", b"3", b"4", b"5"]
    assert raw.send("Ordered", b"5", queue=1, stamp="p.0.5").ext["laneDuplicate"] == "true"
    assert raw.lane_lock("c", "Ordered", queues=(1,)).lane_leases[0].epoch > epoch


def test_a_folder_that_is_restored_as_a_whole_is_accepted(start: Start, folder: Path) -> None:
    running = start()
    fill(running)
    running.stop()
    backup = shutil.copytree(folder / "data", folder / "backup")
    start().stop()
    start(backup).stop()
    start(backup).stop()


def test_a_crash_between_the_two_generations_is_no_older_database(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(RecoveryFile, "reach_generation", lambda self, generation: None)
    start().stop()
    monkeypatch.undo()
    start().stop()
    start().stop()


def test_without_its_generation_an_older_database_would_grant_an_epoch_twice(
    start: Start, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Negative control."""
    epoch = put_back_older(start, folder, "stopped")
    monkeypatch.setattr("lanemq.log.folder.checks.older_state", lambda state, facts: False)
    raw = start().connect()
    raw.unlock("a", "Ordered", queues=(1,))
    assert raw.lane_lock("c", "Ordered", queues=(1,)).lane_leases[0].epoch <= epoch


def test_epochs_stay_below_the_floor_that_is_on_disk(start: Start, folder: Path) -> None:
    running = start()
    raw = running.connect()
    raw.create("T", 1)
    copy = running.broker.running.context.store._copy
    for _ in range(3):
        epoch = raw.lane_lock("a").lane_leases[0].epoch
        raw.unlock("a", laneEpoch=str(epoch))
        saved = msgspec.json.decode((folder / "data" / "recovery.json").read_bytes())
        assert epoch <= saved["epoch_floor"] == copy.facts.epoch_floor  # type: ignore[union-attr]
    copy.reach(EPOCH_STEP)
    assert copy.facts is not None
    assert copy.facts.epoch_floor == EPOCH_STEP, "an epoch at the floor needs no write"
    copy.reach(EPOCH_STEP + 1)
    assert copy.facts.epoch_floor == 2 * EPOCH_STEP


def test_a_folder_of_an_older_version_gets_its_copy_at_the_next_start(start: Start, folder: Path) -> None:
    running = start()
    fill(running)
    running.stop()
    (folder / "data" / "recovery.json").unlink()
    start().stop()
    saved = msgspec.json.decode((folder / "data" / "recovery.json").read_bytes())
    assert saved["epoch_floor"] == EPOCH_STEP
    assert "Ordered" in saved["topics"]
