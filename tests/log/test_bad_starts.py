"""A start that fails says the true cause, gives advice that loses nothing, and changes nothing."""

import errno
import os
import sqlite3
import stat
from pathlib import Path

import pytest
from tests.log.conftest import OpenStore, read_all, send

from lanemq.log.filesystem import RealDisk
from lanemq.log.folder.backup import back_up
from lanemq.log.state import database
from lanemq.log.state.database import VERSION, State
from lanemq.log.store import Store
from lanemq.model.errors import DiskFull, StorageError


def contents(folder: Path) -> dict[str, bytes]:
    left_out = ("lock", "state.db-shm", "state.db-wal")
    return {each.name: each.read_bytes() for each in folder.rglob("*") if each.is_file() and each.name not in left_out}


@pytest.fixture
def used(open_store: OpenStore, tmp_path: Path) -> Path:
    store = open_store()
    send(store, "kept")
    store.close()
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("layout", "writer"), [(VERSION + 1, "a newer version"), (1, "an older version"), (-1, "an older version")]
)
def test_an_unknown_layout_is_named_and_left_alone(used: Path, open_store: OpenStore, layout: int, writer: str) -> None:
    """Also by a backup, whose copy this program would misread."""
    with sqlite3.connect(used / "state.db") as db:
        db.execute("PRAGMA journal_mode = DELETE")
        db.execute(f"PRAGMA user_version = {layout}")
    db.close()
    before = contents(used)
    expected = rf"data/state.db has layout {layout}, .*knows only layout {VERSION}: it was written by {writer}"
    with pytest.raises(StorageError, match=rf"{expected}.*Start that version again; nothing was changed") as caught:
        open_store()
    assert "move" not in str(caught.value)
    target = used.with_name("backup")
    with pytest.raises(StorageError, match=rf"{expected}.*Back it up with that version"):
        back_up(used, target, made_at=0, version="test")
    assert contents(used) == before
    assert not target.exists()


def test_a_newer_recovery_file_is_named(used: Path, open_store: OpenStore) -> None:
    path = used / "recovery.json"
    path.write_text(path.read_text().replace("{", '{"invented_later":1,', 1))
    with pytest.raises(StorageError, match="written by a newer version"):
        open_store()


def test_a_full_disk_is_not_a_damaged_database(
    used: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> None:
        error = sqlite3.OperationalError("database or disk is full")
        error.sqlite_errorcode = sqlite3.SQLITE_FULL
        raise error

    with monkeypatch.context() as patched:
        patched.setattr(State, "_prepare", full)
        with pytest.raises(DiskFull, match=r"no space left.*free some, then start again. Nothing is damaged"):
            open_store()
    assert read_all(open_store()) == (["kept"], [])


def test_a_database_without_permission_is_not_a_damaged_one(
    used: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object, **__: object) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    with monkeypatch.context() as patched:
        patched.setattr(database.os, "open", refused)
        with pytest.raises(StorageError, match="check its owner and permissions"):
            State(used / "state.db")
    assert read_all(open_store()) == (["kept"], [])


def test_other_users_of_the_machine_cannot_read_the_data(
    tmp_path: Path, open_store: OpenStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = os.umask(0)
    try:
        store = open_store(tmp_path / "new")
        send(store, "secret")
        store.query("t", "k", 1, 0, 1)
        store.checkpoint()
        modes = {each: stat.S_IMODE(each.stat().st_mode) for each in (tmp_path / "new").rglob("*")}
        modes[tmp_path / "new"] = stat.S_IMODE((tmp_path / "new").stat().st_mode)
        store.close()
    finally:
        os.umask(before)
    assert {each.name: oct(mode) for each, mode in modes.items() if mode & 0o027} == {}
    assert (tmp_path / "new" / "state.db") in modes


def test_an_interrupted_start_lets_go_of_the_folder(tmp_path: Path) -> None:
    class Interrupted(RealDisk):
        def names(self, path: Path) -> list[str]:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        Store(tmp_path, disk=Interrupted())
    Store(tmp_path).close()
