"""Backups: complete, in order, usable only as a whole, and harmless to the broker whose folder is copied."""

import contextlib
import errno
import os
import sqlite3
import stat
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.broker.conftest import folder, start, start_process  # noqa: F401 - fixtures
from tests.broker.raw_client import RawClient, bodies
from tests.broker.running import BrokerProcess, RunningBroker
from tests.chaos.members import until
from tests.log.conftest import read_all, send

from lanemq.cli.server.doctor import damage_finding
from lanemq.log.folder import backup
from lanemq.log.folder.backup import EPOCH_MARGIN, back_up, read_manifest, restore, verify
from lanemq.log.folder.examination import examine
from lanemq.log.state.database import VERSION, State
from lanemq.log.state.progress_rows import ProgressRows
from lanemq.log.store import Store
from lanemq.model.errors import DiskFull, LogInUse, StorageError

SMALL = {"segment_bytes": 64 * 1024}


class Killed(BaseException):
    """Ends the program at a step, as a kill would."""


def copy(data: Path, target: Path, step: backup.Step = lambda _: None) -> backup.BackupManifest:
    return back_up(data, target, made_at=1_000_000, version="test", step=step)


def revive(target: Path, data: Path, **options: object) -> RunningBroker:
    restore(target, data, now=1_000_000)
    return RunningBroker(data, **options)


def sent(raw: RawClient, topic: str, first: int, count: int) -> list[bytes]:
    made = [b"%d" % number + bytes(2_000) for number in range(first, first + count)]
    assert all(raw.send(topic, body, queue=0).code == 0 for body in made)
    return made


def test_a_backup_under_load_has_everything_acknowledged_before_it_in_order(start, folder: Path) -> None:  # noqa: F811
    running = start(**SMALL)
    raw = running.connect()
    raw.create("T", 1)
    acknowledged = sent(raw, "T", 0, 100)
    raw.commit(40)
    until("the offset is saved", lambda: running.tick() or ProgressRows(running.broker.running.context.state).offsets())
    stop, more = threading.Event(), running.connect()

    def load() -> None:
        number = 100
        while not stop.is_set():
            sent(more, "T", number, 1)
            number += 1

    thread = threading.Thread(target=load)
    thread.start()
    try:
        for number in range(3):
            copy(running.options.data, folder / f"backup{number}")
            verify(folder / f"backup{number}")
    finally:
        stop.set()
        thread.join()
    stored = bodies(raw.read("T"))
    for number in range(3):
        revived = revive(folder / f"backup{number}", folder / f"data{number}", **SMALL)
        try:
            asking = revived.connect()
            found = bodies(asking.read("T"))
            assert found[:100] == acknowledged
            assert found == stored[: len(found)]
            assert asking.committed() == 40
            assert sent(asking, "T", 0, 1)
        finally:
            revived.stop()


def test_a_topic_made_or_deleted_during_the_backup_is_as_it_was_at_its_end(start, folder: Path) -> None:  # noqa: F811
    """And the control: without recovery.json, its records are in the log of a topic that does not exist."""
    running = start()
    raw = running.connect()
    raw.create("old", 1)
    sent(raw, "old", 0, 3)

    def change(step: str) -> None:
        if step == "sizes":
            raw.create("new", 3)
            sent(raw, "new", 0, 2)
            raw.ask(215, {"topic": "old"})
            raw.create("old", 1)
            sent(raw, "old", 10, 1)

    copy(running.options.data, folder / "backup", change)
    revived = revive(folder / "backup", folder / "restored")
    try:
        asking = revived.connect()
        assert len(bodies(asking.read("new"))) == 2
        assert [body[:2] for body in bodies(asking.read("old"))] == [b"10"]
    finally:
        revived.stop()
    control = RecoveryFileThatIsMissing()
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(backup, "RecoveryFile", control)
        raw.create("newer", 1)

        def change_again(step: str) -> None:
            if step == "sizes":
                raw.create("newest", 1)

        copy(running.options.data, folder / "without", change_again)
    state = State(folder / "without" / "state.db")
    assert "newest" not in state.topics()
    state.close()


class RecoveryFileThatIsMissing:
    facts = None

    def __call__(self, _: Path) -> "RecoveryFileThatIsMissing":
        return self


def steps_of(act) -> list[str]:  # type: ignore[no-untyped-def]
    seen: list[str] = []
    act(seen.append)
    return seen


def test_a_backup_that_is_killed_at_any_step_is_refused_and_can_be_repeated(start, folder: Path) -> None:  # noqa: F811
    running = start(**SMALL)
    raw = running.connect()
    sent(raw, "T", 0, 70)
    data = running.options.data
    steps = steps_of(lambda seen: copy(data, folder / "whole", seen))
    assert len(steps) >= 6
    for number in range(len(steps)):
        left = [number]

        def die(_: str, left: list[int] = left) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1

        with pytest.raises(Killed):
            copy(data, folder / "killed", die)
        with pytest.raises(StorageError, match="was not finished"):
            read_manifest(folder / "killed")
    copy(data, folder / "killed")
    assert verify(folder / "killed").log_end == verify(folder / "whole").log_end
    assert sent(raw, "T", 70, 1), "the broker continues"


def test_a_restore_that_is_killed_at_any_step_leaves_no_data_folder(start, folder: Path) -> None:  # noqa: F811
    running = start(**SMALL)
    sent(running.connect(), "T", 0, 70)
    copy(running.options.data, folder / "backup")
    steps = steps_of(lambda seen: restore(folder / "backup", folder / "whole", now=1_000_000, step=seen))
    for number in range(len(steps)):
        left = [number]

        def die(_: str, left: list[int] = left) -> None:
            if left[0] == 0:
                raise Killed
            left[0] -= 1

        with pytest.raises(Killed):
            restore(folder / "backup", folder / "killed", now=1_000_000, step=die)
        assert not (folder / "killed").exists()
    revived = revive(folder / "backup", folder / "killed", **SMALL)
    assert len(bodies(revived.connect().read("T"))) == 70
    revived.stop()


def test_epochs_of_a_restored_folder_begin_above_those_granted_since_the_backup(start, folder: Path) -> None:  # noqa: F811
    running = start()
    raw = running.connect()
    raw.create("T", 4)
    (before,) = raw.lane_lock("a").lane_leases
    copy(running.options.data, folder / "backup")
    restore(folder / "backup", folder / "restored", now=1_000_000 + 60_000)
    revived = RunningBroker(folder / "restored")
    (lease,) = revived.connect().lane_lock("b").lane_leases
    revived.stop()
    assert lease.epoch > before.epoch + EPOCH_MARGIN + 60 * 1_000


@pytest.mark.parametrize("name", ["log", "state.db"])
def test_a_damaged_backup_is_not_restored(start, folder: Path, name: str) -> None:  # noqa: F811
    running = start()
    sent(running.connect(), "T", 0, 5)
    copy(running.options.data, folder / "backup")
    found = folder / "backup" / name
    path = next(found.iterdir()) if found.is_dir() else found
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    with pytest.raises(StorageError, match="is damaged"):
        verify(folder / "backup")
    with pytest.raises(StorageError, match="is damaged"):
        restore(folder / "backup", folder / "restored", now=0)
    assert not (folder / "restored").exists()


def test_folders_that_hold_something_else_are_not_overwritten(start, folder: Path) -> None:  # noqa: F811
    running = start()
    sent(running.connect(), "T", 0, 1)
    (folder / "mine").mkdir()
    (folder / "mine" / "file").touch()
    with pytest.raises(StorageError, match="is not empty"):
        copy(running.options.data, folder / "mine")
    copy(running.options.data, folder / "backup")
    with pytest.raises(StorageError, match="is not empty"):
        copy(running.options.data, folder / "backup")
    with pytest.raises(StorageError, match="is not empty"):
        restore(folder / "backup", folder / "mine", now=0)
    with pytest.raises(StorageError, match=r"has no state\.db"):
        copy(folder / "mine", folder / "another")


@pytest.mark.parametrize("where", ["source", "source/backup", "source/log/backup"])
def test_a_backup_is_not_written_into_the_folder_that_it_saves(folder: Path, where: str) -> None:  # noqa: F811
    backup = small_backup(folder)
    before = sorted((folder / "source").rglob("*"))
    with pytest.raises(StorageError, match=r"in the data folder .* itself"):
        copy(folder / "source", folder / where)
    assert sorted((folder / "source").rglob("*")) == before
    with pytest.raises(StorageError, match=r"in the backup .* itself"):
        restore(backup, backup / "data", now=0)
    assert not (backup / "data").exists()


def small_backup(folder: Path) -> Path:  # noqa: F811
    """Of a folder with a topic and no broker."""
    store = Store(folder / "source")
    store.recover()
    send(store, "kept")
    store.close()
    copy(folder / "source", folder / "backup")
    return folder / "backup"


def test_a_broker_does_not_start_on_a_backup(folder: Path) -> None:  # noqa: F811
    """It would grant epochs twice, and change what is to be restored. The control: without its manifest it starts."""
    backup = small_backup(folder)
    with pytest.raises(StorageError, match=r"is a backup: make a data folder of it with lanemq restore"):
        Store(backup)
    assert verify(backup).files
    restore(backup, folder / "restored", now=0)
    assert kept(folder / "restored") == ["kept"]
    (backup / "backup.json").rename(backup / "backup.partial")
    with pytest.raises(StorageError, match="is a backup"):
        Store(backup)
    (backup / "backup.partial").unlink()
    Store(backup).close()


def kept(data: Path) -> list[str]:
    store = Store(data)
    store.recover()
    try:
        return read_all(store)[0]
    finally:
        store.close()


@pytest.mark.parametrize("where", [".", "link", "folder"])
def test_an_empty_folder_that_exists_is_filled_and_never_renamed_away(
    folder: Path,  # noqa: F811
    where: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It may be the root of a file system, or the current folder."""
    made = small_backup(folder)
    data = folder / "folder"
    data.mkdir()
    (data / "lost+found").mkdir()
    (folder / "link").symlink_to(data)
    monkeypatch.chdir(data if where == "." else folder)
    before = data.stat().st_ino
    steps = steps_of(lambda seen: restore(made, Path(where), now=1_000_000, step=seen))
    assert data.stat().st_ino == before
    assert not (data / "restoring").exists()
    assert kept(data) == ["kept"]
    for number in range(len(steps)):
        target = folder / f"killed{number}"
        target.mkdir()
        with pytest.raises(Killed):
            restore(made, target, now=1_000_000, step=dying_at(number))
        with pytest.raises(StorageError, match="not restored completely: run lanemq restore again"):
            Store(target)
        restore(made, target, now=1_000_000)
        assert kept(target) == ["kept"]


def dying_at(number: int) -> backup.Step:
    left = [number]

    def die(_: str) -> None:
        if left[0] == 0:
            raise Killed
        left[0] -= 1

    return die


def test_an_empty_rest_of_a_finished_restore_makes_no_log_replaceable(folder: Path) -> None:  # noqa: F811
    """A restore that is killed at its very end leaves an empty folder behind. A broker that runs on is not affected."""
    made, data = small_backup(folder), folder / "data"
    data.mkdir()
    restore(made, data, now=1_000_000)
    (data / "restoring").mkdir()
    assert kept(data) == ["kept"]
    (data / "state.db").unlink()
    with pytest.raises(StorageError, match="is not empty"):
        restore(made, data, now=1_000_000)
    assert any((data / "log").iterdir())


@pytest.mark.parametrize(("layout", "writer"), [(VERSION + 1, "a newer version"), (0, "an older version")])
def test_a_backup_of_an_unknown_layout_is_refused_before_anything_is_copied(
    tmp_path: Path, layout: int, writer: str
) -> None:
    (tmp_path / "backup").mkdir()
    manifest = backup.BackupManifest(1, "9.9", layout, 0, 0, [])
    (tmp_path / "backup" / "backup.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(StorageError, match=rf"written by {writer}.*LaneMQ 9.9.*Restore it with that version"):
        restore(tmp_path / "backup", tmp_path / "data", now=1)
    assert not (tmp_path / "data").exists()


def linked(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def piped(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


def foldered(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize("name", ["backup.json", "state.db", "log/00000000000000000000.log"])
@pytest.mark.parametrize("change", [linked, piped, foldered])
def test_anything_but_regular_files_is_refused(folder: Path, name: str, change: Callable[[Path], None]) -> None:  # noqa: F811
    """A link may lead to any file of the machine, and reading a pipe never ends."""
    made = small_backup(folder)
    change(made / name)
    for act in (verify, lambda path: restore(path, folder / "data", now=0)):
        with pytest.raises(StorageError, match=rf"{name} is a link or no regular file, and a backup has only regular"):
            act(made)
    assert not (folder / "data").exists()


def test_a_link_in_place_of_the_folder_of_the_log_is_refused(folder: Path) -> None:  # noqa: F811
    made = small_backup(folder)
    linked(made / "log")
    with pytest.raises(StorageError, match=r"is a link or no regular file"):
        restore(made, folder / "data", now=0)


@pytest.mark.parametrize("made_at", [-1, -(2**63), 2**63 - 1, 253_402_300_800_000])
def test_a_time_that_is_none_is_refused(folder: Path, made_at: int) -> None:  # noqa: F811
    made = small_backup(folder)
    manifest = msgspec.structs.replace(read_manifest(made), made_at=made_at)
    (made / "backup.json").write_bytes(msgspec.json.encode(manifest))
    with pytest.raises(StorageError, match=rf"made at {made_at} ms since 1970, which is no time; use another backup"):
        restore(made, folder / "data", now=1_000_000)


@pytest.mark.parametrize("name", ["../evil", "/tmp/evil", "log/../../evil", "log/notes.txt", "log", ""])
def test_a_manifest_that_names_other_files_is_refused(
    folder: Path,  # noqa: F811
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """And the control: without the check, the file is written outside of the target."""
    made = small_backup(folder)
    (made / "evil").write_bytes(b"evil")
    manifest = read_manifest(made)
    fd = os.open(made / "evil", os.O_RDONLY)
    manifest.files.append(backup._entry(fd, name))
    os.close(fd)
    (made / "backup.json").write_bytes(msgspec.json.encode(manifest))
    for act in (verify, lambda path: restore(path, folder / "data", now=0)):
        with pytest.raises(StorageError, match=r"is no file of a backup; use another backup"):
            act(made)
    if name == "../evil":
        (folder / "evil").write_bytes(b"evil")  # where the backup "has" it
        monkeypatch.setattr(backup, "_is_of_a_backup", lambda _: True)
        (folder / "sub").mkdir()
        restore(made, folder / "sub" / "data", now=0)
        assert (folder / "sub" / "evil").read_bytes() == b"evil"


def test_a_restore_that_fails_leaves_alone_what_others_put_into_its_target(folder: Path) -> None:  # noqa: F811
    """An operator may have started a broker there during the restore."""
    made, data = small_backup(folder), folder / "data"

    def somebody_else(step: str) -> None:
        if step == "rename":
            data.mkdir()
            (data / "state.db").write_bytes(b"of a broker")

    with pytest.raises(StorageError, match="was not restored"):
        restore(made, data, now=0, step=somebody_else)
    assert (data / "state.db").read_bytes() == b"of a broker"
    assert not (folder / "data.restoring").exists()


@pytest.mark.parametrize("target", ["new", "empty"])
@pytest.mark.parametrize("locks", [True, False])
def test_of_two_restores_to_one_folder_the_second_is_refused(
    folder: Path,  # noqa: F811
    target: str,
    locks: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Without the lock, the second one takes the files of the first for those of a restore that was killed."""
    made, data = small_backup(folder), folder / target
    (folder / "empty").mkdir()
    if not locks:
        monkeypatch.setattr(backup, "locked_folder", lambda _: contextlib.nullcontext())
    refused = []

    def second(step: str) -> None:
        if step == "finish" and not refused:
            refused.append(step)
            with pytest.raises(LogInUse, match="used by a broker, or by another backup or restore"):
                restore(made, data, now=0)

    if locks:
        restore(made, data, now=0, step=second)
        assert kept(data) == ["kept"]
    else:
        with pytest.raises((StorageError, pytest.fail.Exception)):
            restore(made, data, now=0, step=second)


@pytest.mark.parametrize("target", ["new", "empty"])
def test_a_full_disk_is_named_and_nothing_is_left_behind(
    folder: Path,  # noqa: F811
    target: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = small_backup(folder)
    (folder / "empty").mkdir()
    before = sorted(folder.rglob("*"))

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(backup, "_write_all", full)
        for act in (
            lambda: restore(made, folder / target, now=0),
            lambda: copy(folder / "source", folder / target),
        ):
            with pytest.raises(DiskFull, match=r"no space left on the disk; free some.*Nothing was left behind"):
                act()
            assert sorted(folder.rglob("*")) == before
        patched.setattr(backup, "_write_all", lambda *_: (_ for _ in ()).throw(PermissionError(13, "No", "file")))
        with pytest.raises(StorageError, match=r"No \(file\); check the owner"):
            restore(made, folder / target, now=0)
    restore(made, folder / target, now=0)


def test_a_folder_that_cannot_be_written_can_be_backed_up(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: F811
    small_backup(folder)
    opening = os.open

    def read_only(path: object, flags: int, *more: int) -> int:
        if flags & (os.O_CREAT | os.O_RDWR | os.O_WRONLY) and "source" in str(path):
            raise OSError(errno.EROFS, "Read-only file system", str(path))
        return opening(path, flags, *more)  # type: ignore[call-overload, no-any-return]

    monkeypatch.setattr(os, "open", read_only)
    copy(folder / "source", folder / "of a read-only folder")
    verify(folder / "of a read-only folder")


def test_only_the_owner_and_his_group_can_read_backups_and_restored_folders(start, folder: Path) -> None:  # noqa: F811
    running = start()
    sent(running.connect(), "T", 0, 1)
    copy(running.options.data, folder / "backup")
    small_backup(folder / "stopped")
    restore(folder / "backup", folder / "restored", now=0)
    for made in (folder / "backup", folder / "restored", folder / "stopped" / "backup"):
        modes = {each: stat.S_IMODE(each.stat().st_mode) for each in (made, *made.rglob("*"))}
        assert {mode & 0o007 for mode in modes.values()} == {0}, modes


class KillingReader:
    """A connection whose broker is killed after the copy and before it is closed."""

    def __init__(self, db: sqlite3.Connection, kill: Callable[[], None]) -> None:
        self._db = db
        self._kill = kill

    def backup(self, target: sqlite3.Connection, **more: Any) -> None:
        self._db.backup(target, **more)
        self._kill()

    def close(self) -> None:
        self._db.close()


def kill_during_copy(process: BrokerProcess, data: Path, target: Path, mode: str) -> None:
    connect = sqlite3.connect
    with pytest.MonkeyPatch.context() as patched:

        def connecting(path: Any, **more: Any) -> Any:
            if more.get("uri"):
                return KillingReader(connect(str(path).replace("mode=ro", mode), uri=True), process.kill)
            return connect(path, **more)

        patched.setattr(sqlite3, "connect", connecting)
        copy(data, target)


@pytest.mark.slow
def test_a_broker_killed_while_its_folder_is_copied_starts_again(start_process, folder: Path) -> None:  # noqa: F811
    process = start_process()
    raw = RawClient(process.address)
    sent(raw, "T", 0, 5)
    kill_during_copy(process, folder / "data", folder / "backup", "mode=ro")
    raw.close()
    assert examine(folder / "data").state_problem is None, "its write-ahead log is still there"
    again = start_process()
    asking = RawClient(again.address)
    assert len(bodies(asking.read("T"))) == 5
    asking.close()
    again.kill()
    copy(folder / "data", folder / "of a killed broker")
    for target in ("backup", "of a killed broker"):
        revived = revive(folder / target, folder / f"{target} restored")
        assert len(bodies(revived.connect().read("T"))) == 5
        revived.stop()


def test_a_reader_that_may_write_would_take_the_write_ahead_log_away(start_process, folder: Path) -> None:  # noqa: F811
    """Negative control: SQLite removes the log when its last user closes the database."""
    process = start_process()
    raw = RawClient(process.address)
    sent(raw, "T", 0, 1)
    kill_during_copy(process, folder / "data", folder / "backup", "mode=rw")
    raw.close()
    assert "the newest part of state.db, is missing" in (examine(folder / "data").state_problem or "")


@pytest.mark.slow
def test_a_database_that_changes_all_the_time_is_copied(tmp_path: Path) -> None:
    """In several steps SQLite would begin again after each commit of the broker, and never end."""
    source, stop = tmp_path / "state.db", threading.Event()
    writing = sqlite3.connect(source, check_same_thread=False)
    writing.execute("PRAGMA journal_mode=WAL")
    writing.execute("PRAGMA synchronous=OFF")  # commits as often as possible
    writing.execute("CREATE TABLE kept (body BLOB)")
    writing.execute("CREATE TABLE offsets (value INTEGER)")
    writing.executemany("INSERT INTO kept VALUES (?)", [(bytes(1 << 20),)] * 16)
    writing.commit()

    def commit() -> None:
        while not stop.is_set():
            writing.execute("INSERT INTO offsets VALUES (1)")
            writing.commit()

    committing = threading.Thread(target=commit)
    committing.start()
    copying = threading.Thread(target=backup._copy_open_database, args=(source, tmp_path / "copy"), daemon=True)
    copying.start()
    copying.join(20)
    stop.set()
    committing.join()
    writing.close()
    assert not copying.is_alive()
    with contextlib.closing(sqlite3.connect(tmp_path / "copy")) as copy:
        assert copy.execute("SELECT count(*) FROM kept").fetchone() == (16,)


def test_a_scan_beside_a_running_broker_is_not_called_a_success(start: Callable[..., RunningBroker]) -> None:  # noqa: F811
    running = start()
    found = examine(running.broker.options.data, scan=True)
    assert found.scanned is None
    assert "a broker uses the folder" in str(found.scan_problem)
    assert damage_finding(found).result == "warning"
