"""Examines a data folder without changing it, beside a running broker or without one."""

import contextlib
import os
import sqlite3
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from lanemq.log.commit_log import CommitLog, segment_start
from lanemq.log.filesystem import RealDisk
from lanemq.log.folder.checks import is_read_only, lost_state, reading_address
from lanemq.log.folder.lock import DataLock, holder
from lanemq.log.recovery import Damaged
from lanemq.log.recovery import scan as scan_log
from lanemq.log.state.database import LAST_RUN, DamageRow
from lanemq.model.errors import LogInUse


@dataclass(slots=True)
class Examined:
    """What was found."""

    holder: str | None = None
    """Process id of the broker that uses the folder; None if there is none."""
    killed: bool = False
    """Whether the last broker was not stopped."""
    layout: int | None = None
    state_problem: str | None = None
    topics: int = 0
    groups: int = 0
    """Groups with committed offsets."""
    last_store_time: int = 0
    """Of the newest record at the last checkpoint, in milliseconds since 1970."""
    last_run: int = 0
    """When a broker last ran on the folder, to about a minute, in milliseconds since 1970; 0 if that is not known."""
    damage: list[DamageRow] = field(default_factory=list)
    torn_files: int = 0
    log_bytes: int = 0
    log_problem: str | None = None
    unusable: list[Path] = field(default_factory=list)
    """Files and folders that this user cannot read and write."""
    scanned: int | None = None
    """Records read by a scan; None without one."""
    scan_problem: str | None = None
    """Why a scan that was asked for did not reach the end of the log."""


def examine(data: Path, *, scan: bool = False) -> Examined:
    """Look at a data folder. `scan` reads every record, unless a broker uses the folder."""
    examined = Examined(holder=holder(data))
    examined.killed = examined.holder is None and (data / "running").exists()
    examined.torn_files = len(list((data / "torn").glob("*.torn")))
    examined.unusable = _unusable(data)
    log, database = data / "log", data / "state.db"
    known_end = 0
    if os.access(database, os.R_OK) or not database.exists():
        if examined.holder is None and (any(_segments(log)) or (data / "recovery.json").exists()):
            examined.state_problem = lost_state(database, running=examined.killed)
        if examined.state_problem is None and database.exists():
            known_end = _read_state(database, examined)
    segments = _segments(log)  # after the state: a running broker makes them longer
    examined.log_bytes = sum(size for _, size in segments)
    end = max((start + size for start, size in segments), default=0)
    if end < known_end and os.access(log, os.R_OK | os.X_OK):
        examined.log_problem = (
            f"the newest files of the log are missing or cut: it ends at byte {end:,}, and state.db knows it up to "
            f"byte {known_end:,}"
        )
    if scan and log.is_dir():
        _scan(data, examined)
    return examined


def _unusable(data: Path) -> list[Path]:
    needed = os.R_OK if is_read_only(data) else os.R_OK | os.W_OK
    unusable = []
    with contextlib.suppress(FileNotFoundError):  # deleted by a running broker
        for path in _used_paths(data):
            if not os.access(path, needed) and path.exists():
                unusable.append(path)
    return unusable


def _used_paths(data: Path) -> Iterator[Path]:
    """Every file and folder that a broker opens."""
    for path in data.iterdir():
        if path.is_file():
            yield path
    for folder in (data / "log", data / "index", data / "keys"):
        if folder.is_dir():
            yield folder
            yield from folder.rglob("*")


def _segments(folder: Path) -> list[tuple[int, int]]:
    """Start and size of every file of the log that can be seen."""
    segments = []
    with contextlib.suppress(OSError):
        for each in folder.iterdir():
            start = segment_start(each.name)
            if start is not None:
                segments.append((start, each.stat().st_size))
    return segments


def _read_state(path: Path, examined: Examined) -> int:
    """Returns how far the database knows the log."""
    address, position = reading_address(path), 0
    if address is None:
        return 0
    try:
        with contextlib.closing(sqlite3.connect(address, uri=True)) as db:
            (examined.layout,) = db.execute("PRAGMA user_version").fetchone()
            if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                examined.state_problem = f"{path} is damaged"
                return 0
            (examined.topics,) = db.execute("SELECT count(*) FROM topics").fetchone()
            (examined.groups,) = db.execute("SELECT count(DISTINCT grp) FROM offsets").fetchone()
            row = db.execute("SELECT last_store_time, position FROM checkpoint").fetchone()
            examined.last_store_time, position = row or (0, 0)
            row = db.execute("SELECT value FROM kv WHERE name = ?", (LAST_RUN,)).fetchone()
            examined.last_run = 0 if row is None else int(row[0])
            examined.damage = [DamageRow(*row) for row in db.execute("SELECT position, length, reason FROM damage")]
    except sqlite3.Error as error:
        examined.state_problem = f"{path} cannot be read: {error}"
    return position


class _NoChanges(RealDisk):
    """Leaves everything as it is."""

    def unlink(self, path: Path) -> None:
        pass


def _scan(data: Path, examined: Examined) -> None:
    """Read the whole log. The folder is locked, so that no broker starts and changes files under the scan."""
    try:
        lock = DataLock(data, reading=True)
    except LogInUse:
        examined.scan_problem = "a broker uses the folder: stop it, or scan a restored backup"
        return
    except OSError as error:
        examined.scan_problem = f"the folder cannot be locked: {error.strerror}"
        return
    try:
        _read_all(data / "log", examined)
    except OSError as error:
        examined.scan_problem = f"the log cannot be read: {error.strerror}"
    finally:
        lock.close()


def _read_all(folder: Path, examined: Examined) -> None:
    log = CommitLog(folder, _NoChanges())
    try:
        known = {row.position for row in examined.damage}
        examined.scanned = 0
        for part in scan_log(log, log.start):
            if not isinstance(part, Damaged):
                examined.scanned += 1
            elif part.position not in known:
                examined.damage.append(DamageRow(part.position, part.length, part.reason))
    finally:
        log.close()
