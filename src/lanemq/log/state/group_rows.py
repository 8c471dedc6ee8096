"""What is kept of groups, as rows of a database: settings, leases, tag filters, and single values by name.

The statements are those that SQLite and PostgreSQL share; a database adds how they run. Rows are plain tuples; their
meaning is decided elsewhere. A transaction only writes: what it depends on was decided before, in memory.
"""

import enum
from abc import ABC, abstractmethod
from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from functools import cache
from typing import Any, NamedTuple, Protocol

EPOCH_FLOOR = "epoch-floor"


class Sync(enum.Enum):
    """How safe a transaction is: SQLite's `synchronous` setting. PostgreSQL's transactions are all safe."""

    NORMAL = "NORMAL"
    FULL = "FULL"


class LeaseRow(NamedTuple):
    """A lease. `owner` is empty after a release; the row stays, because epochs only grow."""

    group: str
    topic: str
    broker: str
    queue_id: int
    owner: str
    epoch: int
    lease_ms: int
    stock: bool


class Statements(Protocol):
    """A transaction."""

    def execute(self, statement: str, values: Sequence[Any] = (), /) -> Any: ...

    def executemany(self, statement: str, rows: Iterable[Sequence[Any]], /) -> Any: ...


@cache
def upsert(table: str, columns: str, keys: str, condition: str = "") -> str:
    """A statement that inserts a row, or replaces the one with the same keys. Names are separated by `, `."""
    names = columns.split(", ")
    others = ", ".join(f"{name} = excluded.{name}" for name in names if name not in keys.split(", "))
    places = ", ".join("?" * len(names))
    return f"INSERT INTO {table} ({columns}) VALUES ({places}) ON CONFLICT ({keys}) DO UPDATE SET {others}{condition}"


_QUEUE = "grp, topic, broker, queue_id"
_LEASE = f"{_QUEUE}, owner, epoch, lease_ms, stock"
SAVE_GROUP = upsert("groups", "name, settings", "name")
SAVE_LEASE = upsert("leases", _LEASE, _QUEUE, " WHERE excluded.epoch >= leases.epoch")
SAVE_FILTER = upsert("filters", "grp, topic, tags", "grp, topic")
SAVE_VALUE = upsert("kv", "name, value", "name")


class GroupRows(ABC):
    """The rows of all groups. Calls may come from any thread."""

    @abstractmethod
    def rows(self, query: str, values: Sequence[object] = ()) -> list[Any]:
        """The rows that a query finds."""

    @abstractmethod
    def transaction(self, sync: Sync) -> AbstractContextManager[Statements]:
        """All changes of a block, or none."""

    @abstractmethod
    def together(self) -> AbstractContextManager[None]:
        """Make all transactions of this block one."""

    @abstractmethod
    def close(self) -> None: ...

    def _write(self, statement: str, rows: Iterable[Sequence[object]], sync: Sync) -> None:
        with self.transaction(sync) as db:
            db.executemany(statement, rows)

    # Groups: a name, and settings as text.

    def groups(self) -> dict[str, str]:
        return dict(self.rows("SELECT name, settings FROM groups"))

    def save_group(self, name: str, settings: str) -> None:
        self._write(SAVE_GROUP, [(name, settings)], Sync.FULL)

    def delete_group(self, name: str) -> None:
        """Delete a group's settings."""
        self._write("DELETE FROM groups WHERE name = ?", [(name,)], Sync.FULL)

    # Lease epochs.

    def leases(self) -> list[LeaseRow]:
        return [LeaseRow._make((*row[:7], bool(row[7]))) for row in self.rows(f"SELECT {_LEASE} FROM leases")]

    def save_leases(self, rows: Iterable[LeaseRow]) -> None:
        """Insert or update leases; an older epoch never replaces a newer one."""
        self._write(SAVE_LEASE, rows, Sync.FULL)

    def forget_leases(self, topic: str, floor: int) -> None:
        """Delete a topic's leases, and raise the epoch floor to the highest of their epochs."""
        self._forget_leases("DELETE FROM leases WHERE topic = ?", topic, floor)

    def forget_group_leases(self, group: str, floor: int) -> None:
        """Delete a group's leases, and raise the epoch floor to the highest of their epochs."""
        self._forget_leases("DELETE FROM leases WHERE grp = ?", group, floor)

    def _forget_leases(self, deletion: str, name: str, floor: int) -> None:
        """Both changes in one transaction: with the leases gone and the old floor, an epoch could be used twice."""
        with self.transaction(Sync.FULL) as db:
            db.execute(SAVE_VALUE, (EPOCH_FLOOR, str(floor)))
            db.execute(deletion, (name,))

    def end_leases(self, floor: int) -> None:
        """End all leases. Who owned a queue is not known any more, and the next epochs are above the floor."""
        with self.transaction(Sync.FULL) as db:
            db.execute("UPDATE leases SET owner = ''")
            db.execute("UPDATE leases SET epoch = ? WHERE epoch < ?", (floor, floor))
            db.execute(SAVE_VALUE, (EPOCH_FLOOR, str(floor)))

    def epoch_floor(self) -> int:
        """The highest epoch of any deleted lease."""
        return int(self.get(EPOCH_FLOOR) or 0)

    # The widest tag filters of groups.

    def filters(self) -> list[tuple[str, str, str]]:
        """Group, topic and tags as text."""
        return self.rows("SELECT grp, topic, tags FROM filters")

    def save_filters(self, rows: Iterable[tuple[str, str, str | None]]) -> None:
        """Replace the tags of groups and topics; None deletes a row."""
        with self.transaction(Sync.FULL) as db:
            for group, topic, tags in rows:
                if tags is None:
                    db.execute("DELETE FROM filters WHERE grp = ? AND topic = ?", (group, topic))
                else:
                    db.execute(SAVE_FILTER, (group, topic, tags))

    # Other values, by name.

    def get(self, name: str) -> str | None:
        rows = self.rows("SELECT value FROM kv WHERE name = ?", (name,))
        return str(rows[0][0]) if rows else None

    def put(self, name: str, value: str) -> None:
        self._write(SAVE_VALUE, [(name, value)], Sync.FULL)
