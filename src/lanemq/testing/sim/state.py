"""The broker's small state in memory, with the same power cord as the disk.

SQLite keeps every commit when its process dies. When the power goes, it keeps what was committed with `Sync.FULL`
and everything before that, and of the later commits any beginning. So a copy is taken at every commit.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from random import Random

from lanemq.log.state import State, Sync
from lanemq.testing.sim.disk import SimDisk


class StateImage:
    """What the device holds of the database; it outlives the processes that use it."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._synced: bytes | None = None
        self._later: list[bytes] = []

    @property
    def newest(self) -> bytes | None:
        return self._later[-1] if self._later else self._synced

    def committed(self, content: bytes, sync: Sync) -> None:
        if sync is Sync.FULL:
            self._synced = content
            self._later.clear()
        else:
            self._later.append(content)

    def lose_power(self) -> int:
        """Some of the newest commits are gone; says how many."""
        kept = self._random.randint(0, len(self._later))
        lost = len(self._later) - kept
        if kept:
            self._synced = self._later[kept - 1]
        self._later.clear()
        return lost


class SimState(State):
    """The shipped tables and statements over a database in memory."""

    def __init__(self, path: Path, image: StateImage, disk: SimDisk) -> None:
        self._image = image
        self._disk = disk
        path.touch()  # the log looks whether there is one
        super().__init__(Path(":memory:"))

    def _prepare(self) -> None:
        if self._image.newest is not None:
            self._db.deserialize(self._image.newest)
        super()._prepare()

    @contextmanager
    def transaction(self, sync: Sync) -> Iterator[sqlite3.Connection]:
        with super().transaction(sync) as db:
            yield db
            try:
                self._disk.change("commit")
            except OSError as error:
                raise sqlite3.OperationalError(f"disk I/O error: {error}") from error
        self._image.committed(self._db.serialize(), sync)
