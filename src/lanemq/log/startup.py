"""The start: what must be read before the store can be used.

After a clean stop: nothing. Otherwise the log from the last checkpoint on; and all of it when index files are
missing, since indexes are caches and may be deleted at any time. A torn end is moved to a side file and cut.
"""

from pathlib import Path
from typing import NamedTuple

from lanemq.log.commit_log import CommitLog
from lanemq.log.filesystem import Disk, write_fully
from lanemq.log.index_files import IndexFiles
from lanemq.log.queue_table import QueueTable
from lanemq.log.rebuild import OnRecord, Rebuilder, Rebuilt
from lanemq.log.state import Checkpoint, DamageRow, State
from lanemq.model.errors import StorageError

_REBUILD = "rebuild indexes"
_COPY_BYTES = 4 * 1024 * 1024


class RecoveryReport(NamedTuple):
    """What the start found. `scanned` counts records; `torn_file` holds the bytes that were cut off the end."""

    clean: bool
    rebuilt_indexes: bool
    scanned: int
    torn_bytes: int
    torn_file: Path | None
    damage: list[DamageRow]
    last_store_time: int


class Startup:
    """Runs once, before anything else touches the log."""

    def __init__(
        self, folder: Path, disk: Disk, log: CommitLog, queues: QueueTable, files: IndexFiles, state: State
    ) -> None:
        self._folder = folder
        self._disk = disk
        self._log = log
        self._queues = queues
        self._files = files
        self._state = state

    def ask_rebuild(self) -> None:
        """The next start rebuilds every index from the log."""
        self._state.put(_REBUILD, "1")

    def run(self, on_record: OnRecord | None) -> RecoveryReport:
        mark = self._state.checkpoint() or Checkpoint(0, 0, clean=False)
        self._queues.load(self._state.queues())
        whole = self._state.get(_REBUILD) != "1" and all(map(self._files.complete, self._queues))
        if mark.clean and whole and mark.position == self._log.end:
            return RecoveryReport(True, False, 0, 0, None, [], mark.last_store_time)
        self._log.settle()
        if self._log.end < mark.position:
            self._log.begin_at(mark.position)
        result = self._scan(mark, whole, on_record)
        torn, torn_file = self._cut_torn_end(result.torn_at)
        if not whole:
            self._state.put(_REBUILD, "0")
        newest = max(mark.last_store_time, result.last_store_time)
        return RecoveryReport(False, not whole, result.records, torn, torn_file, result.damage, newest)

    def _scan(self, mark: Checkpoint, whole: bool, on_record: OnRecord | None) -> Rebuilt:
        rebuilder = Rebuilder(self._log, self._queues, self._state.dropped_topics(), mark.position)
        if whole:
            return rebuilder.run(max(mark.position, self._log.start), on_record)
        rows = self._state.queues()
        self._queues.clear()
        result = rebuilder.run(self._log.start, on_record)
        rebuilder.keep_known_ends(rows)
        return result

    def _cut_torn_end(self, position: int | None) -> tuple[int, Path | None]:
        if position is None or position >= self._log.end:
            return 0, None
        torn = self._log.end - position
        path = self._save_torn(position)
        self._log.cut(position)
        self._log.settle()
        return torn, path

    def _save_torn(self, position: int) -> Path:
        """Copies the bytes that will be cut: somebody may want to know what a crash left behind."""
        folder = self._folder / "torn"
        self._disk.make_dir(folder)
        path = folder / f"{position:020d}.torn"
        self._disk.unlink(path)
        try:
            fd = self._disk.create(path)
            try:
                self._copy(fd, position)
                self._disk.fdatasync(fd)
            finally:
                self._disk.close(fd)
            self._disk.fsync_dir(folder)
        except OSError as error:
            raise StorageError(f"cannot keep the torn end of the log in {path}: {error}; free some space") from error
        return path

    def _copy(self, fd: int, position: int) -> None:
        written = 0
        while position < self._log.end:
            data = self._log.read(position, _COPY_BYTES)
            if not data:
                return
            write_fully(self._disk, fd, data, written)
            written += len(data)
            position += len(data)
