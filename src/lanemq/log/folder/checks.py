"""Whether a data folder is whole: its database belongs to the log beside it, and no restore was interrupted.

The log does not say which offsets groups have committed and which epochs were granted. If a broker started with an
empty or an older database beside a used log, groups would go to other positions, and an epoch could be granted twice.
So the broker refuses such a folder; with `recover` it rebuilds what the second copy (`recovery_file`) has.
"""

import contextlib
import os
import sqlite3
from collections.abc import Callable
from pathlib import Path

from lanemq.log.commit_log import CommitLog
from lanemq.log.state.database import COORDINATOR, State
from lanemq.log.state.recovery_file import RecoveryFile, SavedFacts
from lanemq.model.errors import StorageError

RESTORING = "restoring"
"""The folder in a data folder to which a restore copies; it is gone when the restore is finished."""

MANIFEST = "backup.json"
"""The file of a complete backup that says what is in it. No data folder has it, nor the next one."""
PARTIAL = "backup.partial"
"""Marks a folder whose backup was not finished, so that the next one may replace it."""

FOREIGN = frozenset({"lost+found"})
"""Names in an empty folder that the file system made."""


def open_matching_state(
    path: Path, log: CommitLog, copy: RecoveryFile, open_state: Callable[[Path], State], recover: bool
) -> State:
    """Open the database; refuse one that is not that of the log beside it, unless asked to recover."""
    facts = copy.facts
    # Other kinds of state, of tests and simulations, are not in a file.
    used = (log.segments or facts is not None) and open_state is State
    lost = lost_state(path, running=copy.running) if used else None
    if lost is not None and not (recover and facts is not None):
        log.close()
        raise StorageError(
            f"{lost}, but the log beside it holds messages: restore it from a backup, together with "
            f"{path.name}-wal if there is one{_by_copy(path, facts)}. Starting without it would send groups to other "
            f"positions and could grant an epoch twice; nothing was changed"
        )
    state = open_state(path)
    try:
        if used and lost is None and facts is not None and older_state(state, facts):
            lost = f"{path} is an older copy"
            if not recover:
                raise StorageError(
                    f"{lost}: it was put back after the broker had used a newer one. Put the newer one back, or "
                    f"restore the whole data folder from one backup{_by_copy(path, facts)}. Starting with it would "
                    f"send groups back to older positions and could grant an epoch twice"
                )
        if used and not recover:
            _refuse_lost_log(path.parent, log, state)
        if lost is not None and facts is not None:
            state.recover_from(facts)
        state.copy_to(copy)
        # Closing the database removes its write-ahead log, also if this start fails later.
        copy.set_running(False)
    except StorageError:
        state.close()
        log.close()
        raise
    return state


def _refuse_lost_log(folder: Path, log: CommitLog, state: State) -> None:
    """The log is synced before a checkpoint, so a log that ends below it has lost files."""
    mark = state.checkpoint()
    if mark is not None and log.end < mark.position:
        raise StorageError(
            f"the newest files of the log in {folder} are missing or cut: it ends at byte {log.end:,}, and state.db "
            f"knows it up to byte {mark.position:,}. Put them back, or restore the whole data folder from one backup. "
            f"To continue without these messages, start once with --recover; their offsets are not given again"
        )


def _by_copy(path: Path, facts: SavedFacts | None) -> str:
    if facts is None:
        return ""
    return (
        f", or start once with --recover, which rebuilds the topics, their order and the epochs from "
        f"{path.with_name('recovery.json')}, at least a minute after the broker ended"
    )


def lost_state(path: Path, *, running: bool) -> str | None:
    """Why a database cannot be the one that belongs to a used data folder; None if it can. Changes nothing.

    SQLite would take an empty file for a new database. It keeps the newest rows in a file beside the database, which it
    removes only when the database is closed; without it, the database is as it was some time ago. `running` says that
    it was not closed.
    """
    if not path.exists():
        return f"{path} is missing"
    log = path.with_name(path.name + "-wal")
    has_log = log.exists() and log.stat().st_size > 0
    if running and not has_log:
        return f"{log}, the newest part of state.db, is missing, although the broker was not stopped"
    if has_log:
        return None
    try:
        db = sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            (version,) = db.execute("PRAGMA user_version").fetchone()
        finally:
            db.close()
    except sqlite3.Error:
        return None  # opening it reports what is wrong
    return None if version else f"{path} is empty"


def older_state(state: State, facts: SavedFacts) -> bool:
    """Whether the database is an older copy than the one that the broker used last."""
    return state.generation() < facts.generation


def refuse_backup(folder: Path) -> None:
    """Raise `StorageError` if the folder is a backup.

    A broker on it would grant epochs that the saved broker has granted since the backup, and would change the files, so
    that they could not be restored any more.
    """
    if (folder / MANIFEST).exists() or (folder / PARTIAL).exists():
        raise StorageError(
            f"{folder} is a backup: make a data folder of it with lanemq restore {folder} --data DIR, and start with "
            f"that one"
        )


def coordinator_in(folder: Path) -> str | None:
    """The id of the coordinator whose data folder this is; None if it is that of a broker, or cannot be read."""
    path = folder / "state.db"
    address = reading_address(path) if path.exists() else None
    if address is None:
        return None
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as db:
            row = db.execute("SELECT value FROM kv WHERE name = ?", (COORDINATOR,)).fetchone()
    except sqlite3.Error:
        return None
    return None if row is None else str(row[0])


def refuse_coordinator(folder: Path) -> None:
    """Raise `StorageError` if the folder is that of a coordinator: a broker would take its rows for its own."""
    if coordinator_in(folder) is not None:
        raise StorageError(f"{folder} is the data folder of a coordinator: give the broker a folder of its own")


def is_read_only(folder: Path) -> bool:
    """Whether the file system of a folder takes no changes."""
    return bool(os.statvfs(folder).f_flag & os.ST_RDONLY)


def reading_address(path: Path) -> str | None:
    """The address for SQLite with which a database can be read beside a running process, or without one.

    Read-only, so that closing the connection leaves the write-ahead log of a killed process in place. SQLite then
    creates a file beside the database, unless the address says that no process changes it. None if that would not show
    the newest rows.
    """
    address = f"{path.absolute().as_uri()}?mode=ro"
    if os.access(path.parent, os.W_OK) and not is_read_only(path.parent):
        return address
    log = path.with_name(path.name + "-wal")
    return None if log.exists() and log.stat().st_size else f"{address}&immutable=1"


def unfinished_restore(folder: Path) -> bool:
    """Whether a data folder holds only what a restore left that was killed. `state.db` is the last file that it moves.

    An empty folder `restoring` beside other files is of a restore that was killed after that.
    """
    partial = folder / RESTORING
    if (folder / "state.db").exists() or not partial.is_dir():
        return False
    others = {entry.name for entry in folder.iterdir()} - FOREIGN - {RESTORING, "lock"}
    return not others or any(partial.iterdir())
