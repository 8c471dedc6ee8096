"""Small state that survives a restart: one SQLite file, one transaction per call.

Rows are plain tuples; their meaning is decided elsewhere. A database that cannot be read stops the start with an error:
starting with empty tables would silently send every group back to a default position.

`Sync.FULL` is for what must never be lost (topics, lease epochs). A power cut may take the last transactions of the
rest, which is then repeated or rebuilt. Calls may come from any thread.
"""

import os
import sqlite3
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

from lanemq.log.filesystem import NO_SPACE
from lanemq.log.state.group_rows import EPOCH_FLOOR, GroupRows, LeaseRow, Sync
from lanemq.log.state.recovery_file import RecoveryFile, SavedFacts
from lanemq.model.errors import DiskFull, NoDescriptors, StorageError

GENERATION = "generation"
LAST_RUN = "last run"
COORDINATOR = "coordinator"
"""The id of a coordinator, in its database only."""
_AGES = "ages of log files"
_REBUILD = "rebuild indexes"

VERSION = 8
"""The layout of the tables. Every change needs a new number, so that no broker misreads the file of another version."""

SCHEMA = (
    "CREATE TABLE topics (name TEXT PRIMARY KEY, settings TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE groups (name TEXT PRIMARY KEY, settings TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE offsets (grp TEXT, topic TEXT, broker TEXT, queue_id INTEGER, value INTEGER NOT NULL,"
    " reset_pending INTEGER NOT NULL, gaps TEXT NOT NULL, marks TEXT NOT NULL,"
    " PRIMARY KEY (grp, topic, broker, queue_id)) WITHOUT ROWID",
    "CREATE TABLE seen_stamps (grp TEXT, topic TEXT, broker TEXT, queue_id INTEGER, producer TEXT,"
    " epoch INTEGER NOT NULL, sequence INTEGER NOT NULL, value INTEGER NOT NULL,"
    " PRIMARY KEY (grp, topic, broker, queue_id, producer)) WITHOUT ROWID",
    "CREATE TABLE leases (grp TEXT, topic TEXT, broker TEXT, queue_id INTEGER, owner TEXT NOT NULL,"
    " epoch INTEGER NOT NULL, lease_ms INTEGER NOT NULL, stock INTEGER NOT NULL,"
    " PRIMARY KEY (grp, topic, broker, queue_id)) WITHOUT ROWID",
    "CREATE TABLE filters (grp TEXT, topic TEXT, tags TEXT NOT NULL, PRIMARY KEY (grp, topic)) WITHOUT ROWID",
    "CREATE TABLE producers (topic TEXT, queue_id INTEGER, producer TEXT, state TEXT NOT NULL,"
    " PRIMARY KEY (topic, queue_id, producer)) WITHOUT ROWID",
    "CREATE TABLE queues (number INTEGER PRIMARY KEY, topic TEXT NOT NULL, queue_id INTEGER NOT NULL,"
    " first INTEGER NOT NULL, end INTEGER NOT NULL, UNIQUE (topic, queue_id))",
    "CREATE TABLE damage (position INTEGER PRIMARY KEY, length INTEGER NOT NULL, reason TEXT NOT NULL)",
    "CREATE TABLE dropped (topic TEXT PRIMARY KEY, position INTEGER NOT NULL) WITHOUT ROWID",
    "CREATE TABLE checkpoint (id INTEGER PRIMARY KEY CHECK (id = 0), position INTEGER NOT NULL,"
    " last_store_time INTEGER NOT NULL, clean INTEGER NOT NULL)",
    "CREATE TABLE kv (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID",
    "CREATE TABLE parked_lanes (grp TEXT, topic TEXT, broker TEXT, queue_id INTEGER, key TEXT, reason TEXT NOT NULL,"
    " attempts INTEGER NOT NULL, since INTEGER NOT NULL, status TEXT NOT NULL, through INTEGER NOT NULL,"
    " first INTEGER NOT NULL, overtaken INTEGER NOT NULL, PRIMARY KEY (grp, topic, broker, queue_id, key))"
    " WITHOUT ROWID",
    "CREATE TABLE parked_chunks (grp TEXT, topic TEXT, broker TEXT, queue_id INTEGER, key TEXT, start INTEGER,"
    " offsets BLOB NOT NULL, PRIMARY KEY (grp, topic, broker, queue_id, key, start))",
    "CREATE TABLE parked_messages (grp TEXT, topic TEXT, broker TEXT, queue_id INTEGER, key TEXT, value INTEGER,"
    " record BLOB NOT NULL, PRIMARY KEY (grp, topic, broker, queue_id, key, value))",
)


class ProducerRow(NamedTuple):
    """A producer's stamps in one queue; `state` is text of the producer table."""

    topic: str
    queue_id: int
    producer: str
    state: str


class QueueRow(NamedTuple):
    """The number of a queue's index and the offsets that it covers: from `first` to before `end`."""

    number: int
    topic: str
    queue_id: int
    first: int
    end: int


class DamageRow(NamedTuple):
    """A range of the log that cannot be read as records."""

    position: int
    length: int
    reason: str


class LogCheckpoint(NamedTuple):
    """A log position below which indexes and producer rows are complete; recovery starts there."""

    position: int
    last_store_time: int
    clean: bool


class State(GroupRows):
    """The database of one data folder."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._copy: RecoveryFile | None = None
        self._lock = threading.RLock()
        self._together = False
        self._db = _connect(path)
        # Its files, and which ones they were when they were first seen: SQLite makes the second one with the first row.
        self._files = {path: _identity(path), path.with_name(f"{path.name}-wal"): None}
        try:
            self._prepare()
        except StorageError:
            self._db.close()
            raise
        except sqlite3.Error as error:
            self._db.close()
            raise _not_opened(path, error) from error

    def lost(self) -> str | None:
        """Which file was deleted or replaced, so that a restart would not find what is written; None if none was."""
        for path, known in self._files.items():
            now = _identity(path)
            if known is None:
                self._files[path] = now
            elif now != known:
                return f"{path} was {'deleted' if now is None else 'replaced by another file'}"
        return None

    def close(self) -> None:
        self._db.close()

    def copy_to(self, copy: RecoveryFile) -> None:
        """From now on, also keep topics and the epoch floor in this file; called once, before any change."""
        if copy.facts is None:
            epoch = max([self.epoch_floor(), *(row.epoch for row in self.leases())])
            copy.begin(self.topics(), self.dropped_topics(), epoch)
        self._copy = copy

    def recover_from(self, facts: SavedFacts) -> None:
        """Enter what was lost with the database or with its write-ahead log.

        No lease survives: who owns a queue is not known any more. Epochs continue above every one ever granted.
        """
        with self.transaction(Sync.FULL) as db:
            db.execute("DELETE FROM topics")
            db.executemany("REPLACE INTO topics VALUES (?, ?)", facts.topics.items())
            db.executemany("REPLACE INTO dropped VALUES (?, ?)", facts.dropped.items())
            db.execute("REPLACE INTO kv VALUES (?, ?)", (EPOCH_FLOOR, str(facts.epoch_floor)))
            db.execute("UPDATE leases SET owner = '', epoch = max(epoch, ?)", (facts.epoch_floor,))
            db.execute("UPDATE checkpoint SET clean = 0")
            db.execute("REPLACE INTO kv VALUES (?, '1')", (_REBUILD,))

    # Topics: a name, and settings as text.

    def topics(self) -> dict[str, str]:
        return dict(self.rows("SELECT name, settings FROM topics"))

    def save_topic(self, name: str, settings: str) -> None:
        if self._copy is not None:
            self._copy.save_topic(name, settings)
        self._write("REPLACE INTO topics VALUES (?, ?)", [(name, settings)], Sync.FULL)

    def delete_topic(self, name: str) -> None:
        self._write("DELETE FROM topics WHERE name = ?", [(name,)], Sync.FULL)
        if self._copy is not None:
            self._copy.delete_topic(name)

    # Lease epochs: the second copy is never behind.

    def save_leases(self, rows: Iterable[LeaseRow]) -> None:
        rows = list(rows)
        if self._copy is not None:
            self._copy.reach(max((row.epoch for row in rows), default=0))
        super().save_leases(rows)

    def forget_leases(self, topic: str, floor: int) -> None:
        if self._copy is not None:
            self._copy.reach(floor)
        super().forget_leases(topic, floor)

    def forget_group_leases(self, group: str, floor: int) -> None:
        if self._copy is not None:
            self._copy.reach(floor)
        super().forget_group_leases(group, floor)

    def generation(self) -> int:
        """How often this database was opened and cleanly closed; an older copy has a lower number."""
        return int(self.get(GENERATION) or 0)

    def new_generation(self) -> None:
        """Make every copy of the database that was taken before an older one."""
        facts = None if self._copy is None else self._copy.facts
        generation = 1 + max(self.generation(), 0 if facts is None else facts.generation)
        self.put(GENERATION, str(generation))
        if self._copy is not None:
            self._copy.reach_generation(generation)

    # Producers, as of the checkpoint.

    def producers(self) -> list[ProducerRow]:
        return [ProducerRow(*row) for row in self.rows("SELECT topic, queue_id, producer, state FROM producers")]

    # What the log needs.

    def queues(self) -> list[QueueRow]:
        return [QueueRow(*row) for row in self.rows("SELECT number, topic, queue_id, first, end FROM queues")]

    def damage(self) -> list[DamageRow]:
        return [DamageRow(*r) for r in self.rows("SELECT position, length, reason FROM damage ORDER BY 1")]

    def dropped_topics(self) -> dict[str, int]:
        """Topic → log position; records of that topic below the position belong to a deleted topic."""
        return dict(self.rows("SELECT topic, position FROM dropped"))

    def cut_dropped(self, end: int) -> None:
        """Lower the positions of dropped topics to the end of the log.

        Their last records never reached the disk, and new ones will be written at those positions.
        """
        self._write("UPDATE dropped SET position = ?1 WHERE position > ?1", [(end,)], Sync.FULL)

    def checkpoint(self) -> LogCheckpoint | None:
        """The last checkpoint; None in a new folder."""
        rows = self.rows("SELECT position, last_store_time, clean FROM checkpoint")
        return LogCheckpoint(rows[0][0], rows[0][1], bool(rows[0][2])) if rows else None

    def save_checkpoint(
        self,
        mark: LogCheckpoint,
        queues: Iterable[QueueRow],
        producers: Iterable[ProducerRow] = (),
        gone_producers: Iterable[tuple[str, int, str]] = (),
        damage: Iterable[DamageRow] = (),
    ) -> None:
        """Save a position and all rows that belong to it in one transaction."""
        with self.transaction(Sync.FULL if mark.clean else Sync.NORMAL) as db:
            db.executemany("REPLACE INTO queues VALUES (?, ?, ?, ?, ?)", queues)
            db.executemany("REPLACE INTO producers VALUES (?, ?, ?, ?)", producers)
            db.executemany("DELETE FROM producers WHERE topic = ? AND queue_id = ? AND producer = ?", gone_producers)
            db.executemany("REPLACE INTO damage VALUES (?, ?, ?)", damage)
            db.execute("REPLACE INTO checkpoint VALUES (0, ?, ?, ?)", mark)

    def mark_running(self) -> None:
        """Remove the mark of a clean stop; only `save_checkpoint` at a clean stop sets it again."""
        self._write("UPDATE checkpoint SET clean = ?", [(0,)], Sync.FULL)

    def drop_topic(self, topic: str, position: int) -> None:
        if self._copy is not None:
            self._copy.drop_topic(topic, position)
        with self.transaction(Sync.FULL) as db:
            db.execute("REPLACE INTO dropped VALUES (?, ?)", (topic, position))
            db.execute("DELETE FROM queues WHERE topic = ?", (topic,))
            db.execute("DELETE FROM producers WHERE topic = ?", (topic,))

    # Other values.

    def save_ages(self, ages: Mapping[int, int], wall: int) -> None:
        """Save the ages of the log's segments in milliseconds, by their start, and when that was."""
        text = ",".join(f"{start}:{age}" for start, age in ages.items())
        self._write("REPLACE INTO kv VALUES (?, ?)", [(_AGES, text), (LAST_RUN, str(wall))], Sync.FULL)

    def ages(self) -> dict[int, int]:
        """What `save_ages` saved; empty if it never did."""
        pairs = (each.split(":") for each in (self.get(_AGES) or "").split(",") if each)
        return {int(start): int(age) for start, age in pairs}

    def last_run(self) -> int:
        """When a broker last said that it runs, in milliseconds since 1970; 0 if it never did."""
        return int(self.get(LAST_RUN) or 0)

    def request_rebuild(self, *, wanted: bool = True) -> None:
        """Make the next start rebuild every index from the log."""
        self.put(_REBUILD, "1" if wanted else "0")

    def rebuild_requested(self) -> bool:
        return self.get(_REBUILD) == "1"

    def _prepare(self) -> None:
        self._db.execute("PRAGMA busy_timeout = 5000")
        # First: a database that this version does not know stays as it is.
        (version,) = self._db.execute("PRAGMA user_version").fetchone()
        problem = layout_problem(version) if version else None
        if problem is not None:
            raise StorageError(f"{self._path} {problem}. Start that version again; nothing was changed")
        self._db.execute("PRAGMA journal_mode = WAL")
        answer = self._db.execute("PRAGMA quick_check(1)").fetchone()[0]
        if answer != "ok":
            raise _damaged(self._path, f"SQLite reports: {answer}")
        if version == 0:
            with self.transaction(Sync.FULL) as db:
                for statement in SCHEMA:
                    db.execute(statement)
                db.execute(f"PRAGMA user_version = {VERSION}")

    def rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        with self._lock:
            try:
                return self._db.execute(query, values).fetchall()
            except sqlite3.Error as error:
                raise self._failed(error) from error

    @contextmanager
    def transaction(self, sync: Sync) -> Iterator[sqlite3.Connection]:
        with self._lock:
            if self._together:
                yield self._db
                return
            if (lost := self.lost()) is not None:
                raise StorageError(
                    f"{lost} while the broker runs: nothing can be saved. Restore a backup, then restart"
                )
            try:
                self._db.execute(f"PRAGMA synchronous = {sync.value}")
                self._db.execute("BEGIN IMMEDIATE")
                try:
                    yield self._db
                    self._db.execute("COMMIT")
                except BaseException:
                    if self._db.in_transaction:  # SQLite may have ended it already
                        self._db.execute("ROLLBACK")
                    raise
            except sqlite3.Error as error:
                raise self._failed(error) from error

    @contextmanager
    def together(self) -> Iterator[None]:
        """Make all changes of this block one transaction, and one write of the recovery file before it."""
        with self.transaction(Sync.FULL), self._copy.together() if self._copy is not None else nullcontext():
            self._together = True
            try:
                yield
            finally:
                self._together = False

    def _failed(self, error: sqlite3.Error) -> StorageError:
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if code == sqlite3.SQLITE_FULL:
            return DiskFull(f"no space left for {self._path}: free some, and writing continues")
        if code == sqlite3.SQLITE_CANTOPEN:
            return NoDescriptors(f"no descriptor for {self._path}: {error}; try again")
        return StorageError(f"the state database {self._path} failed: {error}; check the disk, then restart")


def _identity(path: Path) -> tuple[int, int] | None:
    """Which file is at the path; None if none is."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _connect(path: Path) -> sqlite3.Connection:
    """Open or create the database; other users of the machine cannot read a new one, nor the files beside it."""
    try:
        if path != Path(":memory:"):
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640))
        return sqlite3.connect(path, check_same_thread=False, isolation_level=None)
    except sqlite3.Error as error:
        raise _not_opened(path, error) from error
    except OSError as error:
        if error.errno in NO_SPACE:
            raise _no_space(path) from error
        raise StorageError(
            f"{path} cannot be opened: {error.strerror}; check its owner and permissions. Nothing was changed"
        ) from error


def _not_opened(path: Path, error: sqlite3.Error) -> StorageError:
    """The true cause of a failed start, with advice that loses nothing."""
    match getattr(error, "sqlite_errorcode", 0) & 0xFF:
        case sqlite3.SQLITE_FULL:
            return _no_space(path)
        case sqlite3.SQLITE_IOERR if _is_full(path):
            return _no_space(path)
        case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM | sqlite3.SQLITE_AUTH:
            return StorageError(
                f"{path} cannot be opened for writing ({error}): check the owner and the permissions of the folder and "
                f"of the files beside it. Nothing was changed"
            )
        case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
            return StorageError(
                f"{path} is used by another program ({error}): end it, then start again. Nothing was changed"
            )
        case _:
            return _damaged(path, str(error))


def _no_space(path: Path) -> DiskFull:
    return DiskFull(
        f"no space left on the disk of {path}: free some, then start again. Nothing is damaged, and nothing was changed"
    )


def _is_full(path: Path) -> bool:
    volume = os.statvfs(path.parent)
    return volume.f_bavail * volume.f_frsize < 1024 * 1024


def _damaged(path: Path, problem: str) -> StorageError:
    return StorageError(
        f"the state database {path} cannot be read ({problem}): copy the data folder, then restore it from a backup, "
        f"or move {path.name} away and start once with --recover. The messages in the log are not affected"
    )


def layout_problem(layout: int) -> str | None:
    """Why this program cannot read a layout, as the end of a sentence about the file; None if it can."""
    if layout == VERSION:
        return None
    writer = "a newer version" if layout > VERSION else "an older version, or by another program"
    return f"has layout {layout}, and this version of LaneMQ knows only layout {VERSION}: it was written by {writer}"
