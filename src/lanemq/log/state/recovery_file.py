"""A second copy of topics with their order flags, deleted topics, and the epoch floor, for a lost `state.db`.

`state.db` holds these too. If it is lost, or its write-ahead log is, the broker refuses to start, and `--recover`
rebuilds them from this copy: a topic keeps its order and its queues, and no epoch is granted twice.

The file is small and replaced as a whole, synced before the change that it contains takes effect. Epochs change often,
so the floor is above every epoch ever granted and is raised in steps.

Both files have a generation, which every start and every clean stop raises, first in `state.db` and then here. If that
of `state.db` is lower, it is an older copy that was put back: epochs would be granted twice.

A second file, `running`, exists while `state.db` is open: if a broker was killed, there must be a write-ahead log. It
is a file of its own because it can be removed when the disk is full.
"""

import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from lanemq.log.filesystem import NO_DESCRIPTORS, NO_SPACE
from lanemq.model.errors import DiskFull, NoDescriptors, StorageError, WriteFailed

EPOCH_STEP = 1_000
"""How far the floor is above the last epoch at most. Small: the file is written often. Large: epochs skip more."""


class SavedFacts(msgspec.Struct, forbid_unknown_fields=True):
    """The content of the file. `topics` is by name, with settings as text; `dropped` is topic → log position."""

    epoch_floor: int = 0
    topics: dict[str, str] = {}
    dropped: dict[str, int] = {}
    generation: int = 0
    """The generation of `state.db`, which grows with every start and every clean stop."""


class RecoveryFile:
    """`recovery.json` of one data folder. Calls may come from any thread."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "recovery.json"
        self._running = folder / "running"
        self._lock = threading.Lock()
        self._gathering = False
        self._gathered_topics: dict[str, str] | None = None
        self._facts = SavedFacts()
        self._exists = self._path.exists()
        if self._exists:
            try:
                self._facts = msgspec.json.decode(self._path.read_bytes(), type=SavedFacts)
            except msgspec.ValidationError as error:
                raise StorageError(
                    f"{self._path} was written by a newer version of LaneMQ ({error}): start that version again; "
                    f"nothing was changed"
                ) from error
            except (OSError, msgspec.MsgspecError) as error:
                raise StorageError(
                    f"{self._path} cannot be read ({error}): restore it from a backup, or, if state.db beside it is "
                    f"intact, move it away; it is written again from state.db"
                ) from error

    @property
    def facts(self) -> SavedFacts | None:
        """What was saved; None if there is no file, as in a new folder."""
        return self._facts if self._exists else None

    def begin(self, topics: dict[str, str], dropped: dict[str, int], epoch: int) -> None:
        """Write the file for the first time."""
        with self._lock:
            self._replace(SavedFacts(_floor_above(epoch), dict(topics), dict(dropped)))

    @property
    def running(self) -> bool:
        """Whether the database is open, or was when the broker was killed."""
        return self._running.exists()

    def set_running(self, running: bool) -> None:
        """Called after the first write to the database, and before it is closed."""
        try:
            if running:
                self._running.touch(mode=0o640)
            else:
                self._running.unlink(missing_ok=True)
            self._sync_folder()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(f"no space left for {self._running}: free some, then start again") from error
            raise WriteFailed(f"{self._running} cannot be changed: {error}; check the disk, then restart") from error

    def save_topic(self, name: str, settings: str) -> None:
        with self._lock:
            topics = self._new_topics()
            topics[name] = settings
            self._replace(msgspec.structs.replace(self._facts, topics=topics))

    def delete_topic(self, name: str) -> None:
        with self._lock:
            topics = self._new_topics()
            topics.pop(name, None)
            self._replace(msgspec.structs.replace(self._facts, topics=topics))

    def _new_topics(self) -> dict[str, str]:
        """The topics, to be changed. Copied once for all changes of a block: there may be thousands of topics."""
        if not self._gathering:
            return dict(self._facts.topics)
        if self._gathered_topics is None:
            self._gathered_topics = dict(self._facts.topics)
        return self._gathered_topics

    def drop_topic(self, name: str, position: int) -> None:
        with self._lock:
            self._replace(msgspec.structs.replace(self._facts, dropped={**self._facts.dropped, name: position}))

    def reach(self, epoch: int) -> None:
        """Raise the floor before an epoch is granted; usually it is above already."""
        if epoch > self._facts.epoch_floor:
            with self._lock:
                self._replace(msgspec.structs.replace(self._facts, epoch_floor=_floor_above(epoch)))

    def reach_generation(self, generation: int) -> None:
        """Raise the generation; `state.db` has it already."""
        with self._lock:
            self._replace(msgspec.structs.replace(self._facts, generation=generation))

    @contextmanager
    def together(self) -> Iterator[None]:
        """Write the changes of this block at once, at its end. If the block fails, none of them."""
        before = self._facts
        self._gathering, self._gathered_topics = True, None
        try:
            yield
        except BaseException:
            self._facts = before
            raise
        finally:
            self._gathering = False
        if self._facts is not before:
            facts, self._facts = self._facts, before
            with self._lock:
                self._replace(facts)

    def _replace(self, facts: SavedFacts) -> None:
        if self._gathering:
            self._facts = facts
            return
        new = self._path.with_suffix(".new")
        try:
            fd = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o640)
            with os.fdopen(fd, "wb") as file:
                file.write(msgspec.json.encode(facts))
                file.flush()
                os.fsync(file.fileno())
            new.replace(self._path)
            self._sync_folder()
        except OSError as error:
            if error.errno in NO_SPACE:
                raise DiskFull(f"no space left for {self._path}: free some, and writing continues") from error
            if error.errno in NO_DESCRIPTORS:
                raise NoDescriptors(f"no descriptor for {self._path}: {error}; try again") from error
            raise WriteFailed(f"writing {self._path} failed: {error}; check the disk, then restart") from error
        self._facts, self._exists = facts, True

    def _sync_folder(self) -> None:
        folder = os.open(self._path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def _floor_above(epoch: int) -> int:
    return (epoch // EPOCH_STEP + 1) * EPOCH_STEP
