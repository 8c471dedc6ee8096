"""Examines a data folder without changing it, beside a running broker or without one."""

import contextlib
import sqlite3
from dataclasses import dataclass, field
from pathlib import Path

from lanemq.log.commit_log import CommitLog, segment_start
from lanemq.log.data_lock import DataLock, holder
from lanemq.log.filesystem import RealDisk
from lanemq.log.recovery import Damaged
from lanemq.log.recovery import scan as scan_log
from lanemq.log.state import DamageRow, lost_state
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
    damage: list[DamageRow] = field(default_factory=list)
    torn_files: int = 0
    log_bytes: int = 0
    scanned: int | None = None
    """Records read by a scan; None without one."""


def examine(data: Path, *, scan: bool = False) -> Examined:
    """Look at a data folder. `scan` reads every record, unless a broker uses the folder."""
    found = Examined(holder=holder(data))
    found.killed = found.holder is None and (data / "running").exists()
    found.torn_files = len(list((data / "torn").glob("*.torn")))
    log = data / "log"
    if log.is_dir():
        found.log_bytes = sum(each.stat().st_size for each in log.iterdir() if segment_start(each.name) is not None)
    if found.holder is None and (found.log_bytes or (data / "recovery.json").exists()):
        found.state_problem = lost_state(data / "state.db", running=found.killed)
    if found.state_problem is None and (data / "state.db").exists():
        _read_state(data / "state.db", found)
    if scan and log.is_dir():
        _scan(data, found)
    return found


def _read_state(path: Path, found: Examined) -> None:
    """Read-only, so that closing the connection leaves the write-ahead log of a killed broker in place."""
    try:
        with contextlib.closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            (found.layout,) = db.execute("PRAGMA user_version").fetchone()
            if db.execute("PRAGMA quick_check(1)").fetchone()[0] != "ok":
                found.state_problem = f"{path} is damaged"
                return
            (found.topics,) = db.execute("SELECT count(*) FROM topics").fetchone()
            (found.groups,) = db.execute("SELECT count(DISTINCT grp) FROM offsets").fetchone()
            row = db.execute("SELECT last_store_time FROM checkpoint").fetchone()
            found.last_store_time = row[0] if row else 0
            found.damage = [DamageRow(*row) for row in db.execute("SELECT position, length, reason FROM damage")]
    except sqlite3.Error as error:
        found.state_problem = f"{path} cannot be read: {error}"


class _NoChanges(RealDisk):
    """Leaves everything as it is."""

    def unlink(self, path: Path) -> None:
        pass


def _scan(data: Path, found: Examined) -> None:
    """Read the whole log. The folder is locked, so that no broker starts and changes files under the scan."""
    try:
        lock = DataLock(data, reading=True)
    except (OSError, LogInUse):
        return
    try:
        with contextlib.suppress(OSError):
            _read_all(data / "log", found)
    finally:
        lock.close()


def _read_all(folder: Path, found: Examined) -> None:
    log = CommitLog(folder, _NoChanges())
    try:
        known = {row.position for row in found.damage}
        found.scanned = 0
        for part in scan_log(log, log.start):
            if not isinstance(part, Damaged):
                found.scanned += 1
            elif part.position not in known:
                found.damage.append(DamageRow(part.position, part.length, part.reason))
    finally:
        log.close()
