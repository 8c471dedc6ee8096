"""A disk that is full, fails or writes less than asked."""

import errno
from pathlib import Path

import pytest
from tests.faulty_disk import FaultyDisk
from tests.log.conftest import OpenStore, crash, log_files, message, read_all, send
from tests.wire.encoding import encode_batch

from lanemq.log.commit_log import CommitLog
from lanemq.log.options import StoreOptions
from lanemq.model.errors import DiskFull, LocalProtocolError, NoDescriptors, WriteFailed
from lanemq.model.units import Millis
from lanemq.wire.batch import PlainBatch
from lanemq.wire.record import RecordView


@pytest.fixture
def disk() -> FaultyDisk:
    return FaultyDisk()


def test_a_full_disk_refuses_and_leaves_no_half_record(open_store: OpenStore, disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store(disk=disk)
    send(store, "kept")
    size = log_files(tmp_path / "data")[0].stat().st_size
    disk.space = 50
    with pytest.raises(DiskFull):
        send(store, "lost")
    assert log_files(tmp_path / "data")[0].stat().st_size == size
    assert read_all(store) == (["kept"], [])
    with pytest.raises(DiskFull):
        send(store, "also refused")


def test_a_batch_that_does_not_fit_on_the_disk_is_undone_message_by_message(
    open_store: OpenStore, disk: FaultyDisk
) -> None:
    """The stamps of its messages are forgotten one by one."""
    store = open_store(disk=disk)
    body = encode_batch([(0, b"one", "k\x01v\x02"), (0, b"two", "k\x01v\x02")])
    staged = store.appender.stage("t", 0, PlainBatch(body, 2, 5, 0, 0), store_time=1)
    assert list(staged.positions) == [0, staged.positions[1]]
    assert staged.positions[:1] == [0]
    pending = store.appender.take_pending()
    disk.space = 0
    with pytest.raises(DiskFull):
        store.appender.flush(pending)
    assert [RecordView(lost).body for lost in store.undo(pending)] == [b"one", b"two"]


def test_after_a_full_disk_the_store_goes_on_without_a_restart(open_store: OpenStore, disk: FaultyDisk) -> None:
    store = open_store(disk=disk)
    send(store, "before")
    disk.space = 10
    with pytest.raises(DiskFull, match="continue by themselves"):
        send(store, "lost")
    disk.space = None
    send(store, "after")
    assert read_all(store) == (["before", "after"], [])
    crash(store)
    assert read_all(open_store()) == (["before", "after"], [])


def test_records_staged_behind_a_full_disk_are_undone_with_it(open_store: OpenStore, disk: FaultyDisk) -> None:
    """They rely on positions that do not exist."""
    store = open_store(disk=disk)
    store.appender.stage("t", 0, [message("first")], store_time=1)
    pending = store.appender.take_pending()
    store.appender.stage("t", 0, [message("second")], store_time=1)
    disk.space = 0
    with pytest.raises(DiskFull):
        store.appender.flush(pending)
    disk.space = None
    assert [b"first" in lost or b"second" in lost for lost in store.undo(pending)] == [True, True]
    assert store.append("t", 0, [message("third")], store_time=1).first_offset == 0
    assert read_all(store) == (["third"], [])
    crash(store)
    assert read_all(open_store()) == (["third"], [])


@pytest.mark.parametrize("fails", ["create", "fsync_dir"])
def test_without_a_descriptor_for_a_new_segment_nothing_is_stored_and_the_next_attempt_succeeds(
    open_store: OpenStore, fails: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A dead disk would stay dead; a missing descriptor comes back."""
    disk = FaultyDisk()
    monkeypatch.setattr(CommitLog, "prepare_next", lambda _: None)
    store = open_store(disk=disk)
    send(store, "x" * 3000)

    def used_up(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    with monkeypatch.context() as patched:
        patched.setattr(disk, fails, used_up)
        with pytest.raises(NoDescriptors):
            send(store, "y" * 3000)
    send(store, "z" * 3000)
    crash(store)
    assert [text[0] for text in read_all(open_store())[0]] == ["x", "z"]


def test_an_index_file_is_opened_in_place_of_another_if_no_descriptor_is_left(
    open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    for queue_id in (0, 1):
        store.append("t", queue_id, [message(f"{queue_id}")], store_time=1)
    store.checkpoint()
    assert store.read("t", 0, 0, 1, 1).count == 1
    opened, works = list(store._files._open.values()), disk.open

    def scarce(path: Path) -> int:
        if set(opened) & set(store._files._open.values()):
            raise OSError(errno.EMFILE, "Too many open files")
        return works(path)

    monkeypatch.setattr(disk, "open", scarce)
    assert store.read("t", 1, 0, 1, 1).count == 1
    assert len(store._files._open) == 1


@pytest.mark.parametrize("number", [errno.EMFILE, errno.ENFILE])
def test_an_index_without_a_descriptor_is_no_lost_index(
    open_store: OpenStore, number: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither in the process nor in the system. A lost one would be rebuilt by the next start."""
    disk = FaultyDisk()
    store = open_store(disk=disk)
    store.append("t", 0, [message("0")], store_time=1)
    store.checkpoint()

    def used_up(_: Path) -> int:
        raise OSError(number, "no descriptor")

    with monkeypatch.context() as patched:
        patched.setattr(disk, "open", used_up)
        with pytest.raises(NoDescriptors, match="try again"):
            store.read("t", 0, 0, 1, 1)
    assert not store.state.rebuild_requested()
    assert store.read("t", 0, 0, 1, 1).count == 1


def test_the_next_segment_is_created_ahead(
    open_store: OpenStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    send(store, "x" * 3000)

    def used_up(*_: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    send(store, "small")  # the first segment is more than half full
    monkeypatch.setattr(disk, "create", used_up)
    send(store, "y" * 3000)
    assert len(log_files(tmp_path / "data")) == 2
    crash(store)
    assert len(read_all(open_store())[0]) == 3


def test_a_full_disk_undoes_a_new_segment_too(open_store: OpenStore, disk: FaultyDisk, tmp_path: Path) -> None:
    store = open_store(disk=disk)
    send(store, "x" * 3000)
    disk.space = 3000
    with pytest.raises(DiskFull):
        send(store, *["y" * 1500] * 3)
    assert sum(path.stat().st_size for path in log_files(tmp_path / "data")) == store.log_end
    crash(store)
    store = open_store()
    send(store, "z" * 3000)
    assert [text[0] for text in read_all(store)[0]] == ["x", "z"]
    crash(store)
    assert [text[0] for text in read_all(open_store())[0]] == ["x", "z"]


def test_a_failed_cut_after_a_full_disk_is_final(open_store: OpenStore, disk: FaultyDisk) -> None:
    store = open_store(disk=disk)
    send(store, "kept")
    disk.space, disk.truncate_fails = 10, True
    with pytest.raises(WriteFailed):
        send(store, "lost")
    assert isinstance(store.appender.failed, WriteFailed)


def test_a_failed_write_is_final(open_store: OpenStore, disk: FaultyDisk) -> None:
    store = open_store(disk=disk)
    send(store, "kept")
    disk.failing_write = 1
    with pytest.raises(WriteFailed):
        send(store, "lost")
    assert isinstance(store.appender.failed, WriteFailed)
    with pytest.raises(WriteFailed):
        store.appender.stage("t", 0, [message("refused")], store_time=1)
    assert read_all(store) == (["kept"], [])


def test_a_failed_sync_is_final_and_never_tried_again(open_store: OpenStore, disk: FaultyDisk) -> None:
    """A second fdatasync would succeed although the first one's pages are lost."""
    store = open_store(disk=disk)
    send(store, "kept")
    disk.failing_sync = 1
    with pytest.raises(WriteFailed):
        send(store, "unknown")
    asked = disk.calls["fdatasync"]
    with pytest.raises(WriteFailed):
        store.appender.sync()
    with pytest.raises(WriteFailed):
        store.appender.flush(store.appender.take_pending())
    store.close()
    assert disk.calls["fdatasync"] == asked
    assert read_all(open_store())[0][:1] == ["kept"]


def test_records_are_visible_only_after_they_are_flushed(open_store: OpenStore) -> None:
    store = open_store()
    store.appender.stage("t", 0, [message("staged")], store_time=1)
    assert store.bounds("t", 0) == (0, 0)
    pending = store.appender.take_pending()
    store.appender.flush(pending)
    assert store.bounds("t", 0) == (0, 0)
    store.appender.publish(pending)
    assert store.bounds("t", 0) == (0, 1)


def test_a_durable_flush_syncs_and_a_relaxed_one_waits(open_store: OpenStore, tmp_path: Path) -> None:
    disk = FaultyDisk()
    store = open_store(disk=disk)
    before = disk.calls["fdatasync"]
    send(store, "durable")
    assert disk.calls["fdatasync"] == before + 1

    disk = FaultyDisk()
    store = open_store(tmp_path / "relaxed", StoreOptions(durable=False, relaxed_sync_ms=500), disk)
    before = disk.calls["fdatasync"]
    for now in (0, 100, 499):
        store.appender.stage("t", 0, [message("relaxed")], store_time=1)
        store.appender.flush(store.appender.take_pending(), Millis(now))
    assert disk.calls["fdatasync"] == before
    store.appender.flush(store.appender.take_pending(), Millis(500))
    assert disk.calls["fdatasync"] == before + 1


def test_a_new_segment_is_named_on_disk_before_it_is_used(open_store: OpenStore, disk: FaultyDisk) -> None:
    """The full segment is synced before, so that no record survives a power cut that an earlier one did not."""
    store = open_store(disk=disk)
    disk.events.clear()
    send(store, "x" * 3000, "y" * 3000)
    whole = ["create", "fsync_dir", "write", "fdatasync"]
    assert disk.events == [*whole, *whole, "create"], "the last one is the next segment, ahead of its use"


@pytest.mark.parametrize("longest", [1, 7, 90])
def test_short_writes_are_continued(open_store: OpenStore, disk: FaultyDisk, longest: int) -> None:
    store = open_store(disk=disk)
    disk.max_write = longest
    send(store, "a", "b", "c")
    store.close()
    assert read_all(open_store()) == (["a", "b", "c"], [])


def test_a_message_that_fits_no_record_changes_nothing(open_store: OpenStore) -> None:
    store = open_store()
    good, bad = message("good"), message("bad", properties="x" * 40_000)
    with pytest.raises(LocalProtocolError):
        store.appender.stage("t", 0, [good, bad], store_time=1)
    assert not store.appender.take_pending()
    assert store.append("t", 0, [good], store_time=1).first_offset == 0
