"""What the sinks of versioned tables share, which are Delta and Iceberg.

A commit is made against the version of the table at which the ledger was read. If another writer commits first, the
table refuses it, and the sink reads the ledger again and tries again. After every so many batches the sink compacts the
table.
"""

import logging
from abc import abstractmethod
from collections import defaultdict
from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Final, Generic, TypeVar

from lanemq.model.errors import StorageError
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.ports import Rows, SinkRun
from lanemq.pipelines.sinks.exact_sink import ExactSink, LedgerEntry

log = logging.getLogger(__name__)

F = TypeVar("F")
P = TypeVar("P")
T = TypeVar("T")

MAX_ATTEMPTS = 50
"""Commits that may fail because other writers change the table, before the batch fails."""
SMALL_BYTES: Final = 32 << 20
"""Files below this size are compacted."""
MAX_BYTES: Final = 256 << 20
"""Bytes of files that become one."""


class VersionedTableSink(ExactSink, Generic[P]):
    """A sink whose table refuses a commit if it has changed since the ledger was read. `P` is a batch as prepared."""

    empties = True
    _stale = 0
    """Rows that the last attempt to merge left out."""

    def write(self, rows: Rows, batch: Batch) -> bool:
        run = self._run_of(batch)
        self._stale = self.last_stale = 0
        if not self._admits(self._entry(run), batch):
            return False
        new = self._commit(self._prepare(rows, batch, run), batch, run)
        self._reached = batch.number
        if new:
            self._count_stale(batch, rows.count(), self._stale)
            self._maintain()
        return new

    def purge_tombstones(self, below: int | str) -> int:
        """Remove deletions with a sequence below this one, and return how many there were.

        An older change of such a key that arrives afterwards is taken for a new row: choose a sequence so old that no
        change before it can still arrive.
        """
        return self._until_committed(lambda: self._purge(below), "purging deletions")

    @abstractmethod
    def _entry(self, run: SinkRun) -> LedgerEntry:
        """Read the ledger from the newest version; the next commit is checked against this version."""

    @abstractmethod
    def _prepare(self, rows: Rows, batch: Batch, run: SinkRun) -> P:
        """Do what is slow and independent of the table's version."""

    @abstractmethod
    def _commit(self, prepared: P, batch: Batch, run: SinkRun) -> bool:
        """Commit a prepared batch, with as many attempts as it needs; False if the table has the batch."""

    @abstractmethod
    def _purge(self, below: int | str) -> int: ...

    @abstractmethod
    def _until_committed(self, attempt: Callable[[], T], what: str) -> T:
        """`until_committed` with the table's own error for a commit that was refused."""

    @abstractmethod
    def _maintain(self) -> None:
        """Compact and vacuum when it is time. A failure is logged, and the next time tries again."""


def until_committed(attempt: Callable[[], T], conflict: type[Exception], what: str, table: str) -> T:
    """Repeat an attempt that raises `conflict` because another writer changed the table, up to MAX_ATTEMPTS times."""
    for number in range(1, MAX_ATTEMPTS + 1):
        try:
            return attempt()
        except conflict as error:
            log.info("%s: another writer changed table %s, attempt %d: %s", what, table, number, error)
            last = error
    raise StorageError(
        f"{what}: other writers change the table {table} faster than it can be written; let fewer of them write at once"
    ) from last


class EveryBatches:
    """Says after which batches the upkeep of a table is due: every `batches`, 0 for never."""

    def __init__(self, batches: int) -> None:
        self._batches = batches
        self._since = 0

    def is_due(self) -> bool:
        """Called once after every batch."""
        self._since += 1
        if not self._batches or self._since < self._batches:
            return False
        self._since = 0
        return True


def small_groups(files: Iterable[F], partition: Callable[[F], Hashable], size: Callable[[F], int]) -> Iterator[list[F]]:
    """Small files of one partition that should become one file, in the order in which they are given."""
    partitions: dict[Hashable, list[F]] = defaultdict(list)
    for file in files:
        if size(file) < SMALL_BYTES:
            partitions[partition(file)].append(file)
    for found in partitions.values():
        group: list[F] = []
        total = 0
        for file in found:
            if group and total + size(file) > MAX_BYTES:
                if len(group) > 1:
                    yield group
                group, total = [], 0
            group.append(file)
            total += size(file)
        if len(group) > 1:
            yield group
