"""Backups of a data folder, also while a broker or a coordinator uses it, and their restoring. The latter has no log.

    back_up   state.db as of now ─▶ sizes of the log files ─▶ recovery.json ─▶ copies ─▶ manifest
    restore   verified copies beside the data folder ─▶ rename; in an existing folder: inside of it ─▶ state.db last

Invariant: the log of a backup is never older than its state. So a backup is like the folder of a broker that was killed
at that moment, and starts in the same way: everything acknowledged before the backup began is in it, in order. Topics
that were created or deleted while it was taken come from `recovery.json`, which is read last.

A backup without its manifest is incomplete and is refused. A restored folder appears with one rename. An empty folder
that exists stays, because it may be the root of a file system; a broker refuses it until everything is in place. Epochs
of a restored folder begin far above those of the backup: the broker that was backed up has granted more since, and
their owners may still be running.

A backup or restore that fails removes what it wrote, and nothing else: it locks the folder that it writes to before it
checks that the folder is empty, so that no broker and no other restore writes to it.
"""

import contextlib
import errno
import os
import shutil
import sqlite3
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from zlib import crc32

import msgspec

from lanemq.log.commit_log import segment_start
from lanemq.log.filesystem import NO_SPACE
from lanemq.log.folder.checks import (
    FOREIGN,
    MANIFEST,
    PARTIAL,
    RESTORING,
    coordinator_in,
    lost_state,
    unfinished_restore,
)
from lanemq.log.folder.lock import DataLock, locked_folder
from lanemq.log.state.database import VERSION, State, layout_problem
from lanemq.log.state.group_rows import Sync
from lanemq.log.state.progress_rows import PROGRESS_TABLES
from lanemq.log.state.recovery_file import RecoveryFile, SavedFacts
from lanemq.model.errors import DiskFull, LogInUse, StorageError

STATE = "state.db"
LOG = "log"

EPOCHS_PER_SECOND = 1_000
"""How many epochs a broker may have granted per second since the backup."""
EPOCH_MARGIN = 1_000_000
"""Epochs skipped in any case, for a clock that was set back."""

LATEST = 7_258_118_400_000
"""The year 2200. A backup from a later time has a damaged manifest; much later ones cannot be written as a date."""

_CHUNK = 1024 * 1024

Step = Callable[[str], None]
"""Called before each step with the name of what is copied next."""


class CopiedFile(msgspec.Struct, forbid_unknown_fields=True):
    name: str
    size: int
    crc: int


class BackupManifest(msgspec.Struct, forbid_unknown_fields=True):
    """What a complete backup contains."""

    made_at: int
    """Milliseconds since 1970."""
    lanemq: str
    """Version of the program that made it."""
    layout: int
    """Layout of `state.db`; a program that does not know it cannot restore the backup."""
    log_start: int
    log_end: int
    files: list[CopiedFile]

    @property
    def bytes(self) -> int:
        return sum(file.size for file in self.files)


def _no_step(_: str) -> None:
    return None


def back_up(data: Path, target: Path, *, made_at: int, version: str, step: Step = _no_step) -> BackupManifest:
    """Copy a data folder to an empty folder. `made_at` is the wall time in milliseconds."""
    if not _exists(data / STATE):
        raise StorageError(f"{data} is not the data folder of a broker or a coordinator: it has no {STATE}")
    if target.resolve().is_relative_to(data.resolve()):
        raise StorageError(
            f"{target} is in the data folder {data} itself, and would be lost with it: choose a folder outside, better "
            f"on another disk"
        )
    if _exists(target) and not _is_empty(target) and not (target.is_dir() and _exists(target / PARTIAL)):
        raise StorageError(f"{target} is not empty: give a new folder for each backup")
    with _written_alone(target, "backed up", f"{data} to {target}", stays=_exists(target)):
        if not _is_empty(target) and not _exists(target / PARTIAL):
            raise StorageError(f"{target} is not empty: give a new folder for each backup")
        with _cleared_if_failed(target):
            _prepare(target)
            return _fill(data, target, made_at=made_at, version=version, step=step)


def _fill(data: Path, target: Path, *, made_at: int, version: str, step: Step) -> BackupManifest:
    with contextlib.ExitStack() as kept:
        step(STATE)
        _copy_state(data, target / STATE, kept)
        _check_layout(target / STATE, data / STATE)
        step("sizes")
        segments = _open_segments(data / LOG, kept) if _has_log(data) else []
        facts = RecoveryFile(data).facts
        files = []
        (target / LOG).mkdir(mode=0o750)
        for name, fd, size in segments:
            step(name)
            files.append(_copy_from(fd, size, target, f"{LOG}/{name}"))
    step("finish")
    _finish_state(target / STATE, facts)
    fd = os.open(target / STATE, os.O_RDONLY | os.O_CLOEXEC)
    try:
        files.append(_entry(fd, STATE))
        os.fsync(fd)
    finally:
        os.close(fd)
    first, last = (segments[0], segments[-1]) if segments else (None, None)
    manifest = BackupManifest(
        made_at,
        version,
        VERSION,
        0 if first is None else segment_start(first[0]) or 0,
        0 if last is None else (segment_start(last[0]) or 0) + last[2],
        files,
    )
    _sync_folder(target / LOG)
    step(MANIFEST)
    _write(target / MANIFEST, msgspec.json.encode(manifest))
    (target / PARTIAL).unlink()
    _sync_folder(target)
    return manifest


def _has_log(data: Path) -> bool:
    """Whether a folder must have a log: that of a coordinator has none."""
    return _exists(data / LOG) or coordinator_in(data) is None


def read_manifest(backup: Path) -> BackupManifest:
    """The manifest of a complete backup; raises `StorageError` for anything else."""
    path = backup / MANIFEST
    if not _exists(path):
        why = "the backup was not finished" if _exists(backup / PARTIAL) else f"it has no {MANIFEST}"
        raise StorageError(f"{backup} cannot be restored: {why}; use another backup")
    fd = _open(path)
    try:
        manifest = msgspec.json.decode(b"".join(_chunks(fd)), type=BackupManifest)
    except (OSError, msgspec.MsgspecError) as error:
        raise StorageError(f"{path} cannot be read ({error}); use another backup") from error
    finally:
        os.close(fd)
    if not 0 <= manifest.made_at <= LATEST:
        raise StorageError(f"{path} was made at {manifest.made_at} ms since 1970, which is no time; use another backup")
    problem = layout_problem(manifest.layout)
    if problem is not None:
        raise StorageError(
            f"{backup} {problem} (LaneMQ {manifest.lanemq}). Restore it with that version; nothing was changed"
        )
    for file in manifest.files:
        if not _is_of_a_backup(file.name):
            raise StorageError(f"{path} names {file.name!r}, which is no file of a backup; use another backup")
    return manifest


def _is_of_a_backup(name: str) -> bool:
    """Whether `back_up` may have copied a file of this name. Any other one could lie outside of the target."""
    folder, _, segment = name.partition("/")
    return name == STATE or (folder == LOG and segment_start(segment) is not None)


def restore(backup: Path, data: Path, *, now: int, step: Step = _no_step) -> BackupManifest:
    """Copy a backup to a data folder that does not exist yet, or is empty. `now` is the wall time in milliseconds."""
    manifest = read_manifest(backup)
    target = data.resolve()  # also of "." and of links, which have no name to put a folder beside
    if target.is_relative_to(backup.resolve()):
        raise StorageError(f"{data} is in the backup {backup} itself, which must not change: choose a folder outside")
    inside = _exists(target)
    written = target if inside else _beside(target)
    if inside and not _is_empty(target) and not unfinished_restore(target):
        raise StorageError(f"{data} is not empty: restore to a new folder, or move this one away")
    with _written_alone(written, "restored", f"{backup} to {data}", stays=inside):
        if inside and not _is_empty(target) and not unfinished_restore(target):
            raise StorageError(
                f"{data} is not empty any more: a broker was started there, or another restore has ended"
            )
        with _cleared_if_failed(written):
            _clear(written)  # of a restore that was killed
            partial = target / RESTORING if inside else written
            partial.mkdir(mode=0o750, exist_ok=True)
            (partial / LOG).mkdir(mode=0o750)
            for file in manifest.files:
                step(file.name)
                _copy_verified(backup, partial, file)
            step("finish")
            _raise_epochs(partial, max(0, now - manifest.made_at))
            _sync_folder(partial / LOG)
            _sync_folder(partial)
            step("rename")
            if inside:
                _move_out(partial, target)
            else:
                partial.rename(target)  # fails if another program has put files there
        _sync_folder(target.parent)
    return manifest


def _beside(target: Path) -> Path:
    return target.with_name(target.name + ".restoring")


def _move_out(partial: Path, target: Path) -> None:
    """Move everything, the database last: without it, no broker starts."""
    for entry in sorted(partial.iterdir(), key=lambda entry: entry.name == STATE):
        if entry.name == STATE:
            _sync_folder(target)
        entry.rename(target / entry.name)
    partial.rmdir()
    _sync_folder(target)


def verify(backup: Path) -> BackupManifest:
    """Check every byte of a backup against its manifest; raises `StorageError` if it cannot be restored."""
    manifest = read_manifest(backup)
    for file in manifest.files:
        fd = _open(backup / file.name)
        try:
            entry = _entry(fd, file.name)
        finally:
            os.close(fd)
        if entry != file:
            raise _damaged(backup, file)
    return manifest


# the state database


def _copy_state(data: Path, target: Path, kept: contextlib.ExitStack) -> None:
    """Copy the database as of one moment. Without a running broker, no broker may start until the copy is complete."""
    try:
        lock = DataLock(data, reading=True)
    except LogInUse:
        _copy_open_database(data / STATE, target)
        return
    kept.callback(lock.close)
    lost = lost_state(data / STATE, running=(data / "running").exists())
    if lost is not None:
        raise StorageError(f"{lost}: the folder cannot be backed up; see lanemq doctor")
    for suffix in ("", "-wal"):  # opened in place, SQLite would remove its write-ahead log
        if (data / (STATE + suffix)).exists():
            copy = target.with_name(target.name + suffix)
            with _new_file(copy):
                shutil.copyfile(data / (STATE + suffix), copy)


def _copy_open_database(source: Path, target: Path) -> None:
    """Read-only, so that closing this connection leaves the write-ahead log in place if the broker is killed."""
    with _new_file(target):  # made by SQLite, every user of the machine could read it
        pass
    reading = sqlite3.connect(f"{source.absolute().as_uri()}?mode=ro", uri=True)
    try:
        writing = sqlite3.connect(target)
        try:
            # In one step: between steps, a commit of the broker would make SQLite begin again. It delays no writer.
            reading.backup(writing)
        finally:
            writing.close()
    except sqlite3.Error as error:
        raise StorageError(f"{source} cannot be copied: {error}; try again") from error
    finally:
        reading.close()


def _check_layout(copied: Path, source: Path) -> None:
    """Refuse a database that this program does not know: finishing the copy would misread it."""
    try:
        with contextlib.closing(sqlite3.connect(copied)) as db:
            (layout,) = db.execute("PRAGMA user_version").fetchone()
    except sqlite3.Error:
        return  # finishing the copy reports what is wrong
    problem = layout_problem(layout)
    if problem is not None:
        raise StorageError(f"{source} {problem}. Back it up with that version; nothing was left behind")


def _finish_state(path: Path, facts: SavedFacts | None) -> None:
    """Enter the topics as of the end of the copy; the next start reads the log and rebuilds the indexes."""
    state = State(path)
    try:
        before = state.dropped_topics()
        facts = facts or SavedFacts(state.epoch_floor(), state.topics(), before)
        epoch = max([facts.epoch_floor, *(row.epoch for row in state.leases())])
        for topic in [topic for topic, position in facts.dropped.items() if before.get(topic) != position]:
            _forget_topic(state, topic)  # deleted, perhaps made anew: what was known belongs to the old one
        state.recover_from(msgspec.structs.replace(facts, epoch_floor=epoch))
    finally:
        state.close()


def _forget_topic(state: State, topic: str) -> None:
    with state.transaction(Sync.FULL) as db:
        for table in ("leases", "producers", "queues", *PROGRESS_TABLES):
            db.execute(f"DELETE FROM {table} WHERE topic = ?", (topic,))


def _raise_epochs(folder: Path, age_ms: int) -> None:
    state = State(folder / STATE)
    try:
        epoch = state.epoch_floor() + EPOCH_MARGIN + age_ms * EPOCHS_PER_SECOND // 1000
        facts = SavedFacts(epoch, state.topics(), state.dropped_topics())
        state.recover_from(facts)
        RecoveryFile(folder).begin(facts.topics, facts.dropped, epoch)
    finally:
        state.close()


# files


def _prepare(target: Path) -> None:
    """An empty folder with the mark of an unfinished backup."""
    (target / MANIFEST).unlink(missing_ok=True)
    _clear(target, but=PARTIAL)
    _write(target / PARTIAL, b"")


@contextlib.contextmanager
def _written_alone(folder: Path, done: str, what: str, *, stays: bool) -> Iterator[None]:
    """Make and lock the folder, and say what happened if the block fails. A folder that is empty afterwards is removed
    unless it `stays`."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o750)
        with locked_folder(folder):
            try:
                yield
            finally:
                if not stays:
                    with contextlib.suppress(OSError):  # it holds something, or has been renamed
                        folder.rmdir()
    except OSError as error:
        if error.errno in NO_SPACE:
            raise DiskFull(
                f"{what} was not {done}: no space left on the disk; free some, or choose a folder on another disk. "
                f"Nothing was left behind"
            ) from error
        raise StorageError(
            f"{what} was not {done}: {error.strerror} ({error.filename}); check the owner and the permissions of both "
            f"folders. Nothing was left behind"
        ) from error


@contextlib.contextmanager
def _cleared_if_failed(folder: Path) -> Iterator[None]:
    """Remove what was written to a locked folder, which was empty before, if the block fails."""
    try:
        yield
    except (OSError, StorageError):
        with contextlib.suppress(OSError):
            _clear(folder)
        raise


def _is_empty(folder: Path) -> bool:
    try:
        return folder.is_dir() and not {entry.name for entry in folder.iterdir()} - FOREIGN
    except OSError:
        return False


def _clear(folder: Path, but: str = "") -> None:
    for entry in folder.iterdir():
        if entry.name in FOREIGN or entry.name == but:
            continue
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        else:
            entry.unlink()


def _exists(path: Path) -> bool:
    """As `Path.exists`, but a folder that may not be opened is reported, not raised."""
    try:
        return path.exists()
    except OSError as error:
        raise StorageError(f"{path} cannot be read: {error.strerror}; check its owner and permissions") from error


def _open_segments(folder: Path, kept: contextlib.ExitStack) -> list[tuple[str, int, int]]:
    """Name, descriptor and size of every segment. Retention may delete a file that is open; its bytes stay readable."""
    names = sorted(entry.name for entry in folder.iterdir() if segment_start(entry.name) is not None)
    opened: list[tuple[str, int]] = []
    for name in names:
        try:
            fd = os.open(folder / name, os.O_RDONLY | os.O_CLOEXEC)
        except FileNotFoundError:
            opened.clear()  # retention deletes the oldest ones first
            continue
        kept.callback(os.close, fd)
        opened.append((name, fd))
    return [(name, fd, os.fstat(fd).st_size) for name, fd in opened]


def _copy_from(fd: int, size: int, target: Path, name: str) -> CopiedFile:
    crc, done = 0, 0
    with _new_file(target / name) as writing:
        while done < size:
            data = os.pread(fd, min(_CHUNK, size - done), done)
            if not data:
                break  # the broker has cut an end that it could not write
            _write_all(writing, data)
            crc, done = crc32(data, crc), done + len(data)
    return CopiedFile(name, done, crc)


def _copy_verified(backup: Path, target: Path, file: CopiedFile) -> None:
    fd = _open(backup / file.name)
    try:
        copied = _copy_from(fd, os.fstat(fd).st_size, target, file.name)
    finally:
        os.close(fd)
    if copied != file:
        raise _damaged(backup, file)


def _damaged(backup: Path, file: CopiedFile) -> StorageError:
    return StorageError(f"{backup / file.name} is not what was backed up: it is damaged; use another backup")


def _open(path: Path) -> int:
    """Open a file of a backup, which may come from elsewhere: a link could lead to any file, and a pipe never ends."""
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise _not_plain(path) from error
        raise StorageError(f"{path} cannot be read: {error.strerror}; use another backup") from error
    if not stat.S_ISREG(os.fstat(fd).st_mode) or (path.parent.name == LOG and path.parent.is_symlink()):
        os.close(fd)
        raise _not_plain(path)
    return fd


def _not_plain(path: Path) -> StorageError:
    return StorageError(
        f"{path} is a link or no regular file, and a backup has only regular files and folders; use another backup"
    )


def _chunks(fd: int) -> Iterator[bytes]:
    done = 0
    while data := os.pread(fd, _CHUNK, done):
        done += len(data)
        yield data


def _entry(fd: int, name: str) -> CopiedFile:
    crc, done = 0, 0
    for data in _chunks(fd):
        crc, done = crc32(data, crc), done + len(data)
    return CopiedFile(name, done, crc)


@contextlib.contextmanager
def _new_file(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
    try:
        yield fd
        os.fsync(fd)
    finally:
        os.close(fd)


def _write_all(fd: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(fd, rest) :]


def _write(path: Path, data: bytes) -> None:
    """Replace a file as a whole."""
    new = path.with_name(path.name + ".new")
    with _new_file(new) as fd:
        _write_all(fd, data)
    new.replace(path)
    _sync_folder(path.parent)


def _sync_folder(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
