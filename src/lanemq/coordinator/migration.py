"""Moves the state of a stopped coordinator from its folder to a PostgreSQL database, where several can share it.

Who they are is written last. Before that the folder is marked as moved, so at no moment can both be started. A move
that was interrupted is repeated, and begins anew.
"""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from lanemq.client import identity as identities
from lanemq.clock import Clock
from lanemq.coordinator.loading import LED_IN, known_identity
from lanemq.coordinator.postgres_rows import PostgresRows
from lanemq.coordinator.store import MOVED_TO, TERM, FolderStore
from lanemq.core.brokering.cluster.leadership import claim
from lanemq.log.folder.checks import coordinator_in
from lanemq.log.state.database import COORDINATOR
from lanemq.log.state.group_rows import GroupRows, Sync
from lanemq.model.errors import StorageError, UsageError

ROWS_AT_ONCE = 500
"""Of one transaction, which must take less than a term. A copied message has up to 4 MB, so these go one by one."""
_QUEUE = "grp, topic, broker, queue_id"
_TABLES = {
    "groups": ("name", "settings"),
    "offsets": (_QUEUE, "value, reset_pending, gaps, marks"),
    "seen_stamps": (f"{_QUEUE}, producer", "epoch, sequence, value"),
    "leases": (_QUEUE, "owner, epoch, lease_ms, stock"),
    "filters": ("grp, topic", "tags"),
    "kv": ("name", "value"),
    "parked_lanes": (f"{_QUEUE}, key", "reason, attempts, since, status, through, first, overtaken"),
    "parked_chunks": (f"{_QUEUE}, key, start", "offsets"),
    "parked_messages": (f"{_QUEUE}, key, value", "record"),
}
"""By table, its keys and its other columns."""
_BOOLEAN = frozenset({"reset_pending", "stock", "overtaken"})
_STAYS = frozenset({COORDINATOR, TERM, MOVED_TO, LED_IN})
"""Values by name that are not copied with the others."""


class MigrationPlan(NamedTuple):
    """What a move copies."""

    source: str
    target: str
    name: str
    """The id of the coordinator."""
    cluster: str
    rows: dict[str, int]
    """By table."""


def plan_migration(data: Path, url: str, clock: Clock) -> MigrationPlan:
    """What a move would copy; raises if it is not possible. Changes nothing but makes the tables in a new database."""
    source, target = _opened(data, url, clock)
    try:
        return _plan(source, target)
    finally:
        source.close()
        target.close()


def migrate(data: Path, url: str, clock: Clock) -> MigrationPlan:
    """Move the state; the coordinator must not run."""
    source, target = _opened(data, url, clock)
    try:
        plan, rows = _plan(source, target), source.group_rows
        sight = target.look()
        row = claim(sight.row, identities.origin.random(8).hex(), "", known=source.look().row.term)
        if not target.claim(sight, row):
            raise StorageError(f"{target.shown} was changed by somebody else meanwhile; nothing was moved")
        _copy(rows, target)
        rows.put(MOVED_TO, target.shown)
        with target.together():
            target.put(LED_IN, sight.run)
            target.put(COORDINATOR, plan.name)
        target.hand_over()
        return plan
    finally:
        source.close()
        target.close()


def _opened(data: Path, url: str, clock: Clock) -> tuple[FolderStore, PostgresRows]:
    if coordinator_in(data) is None:
        raise UsageError(f"{data} is not the data folder of a coordinator")
    source, target = FolderStore(data, clock, moved=True), PostgresRows(url, clock)
    source.connect()
    try:
        target.connect()
    except BaseException:
        source.close()
        raise
    return source, target


def _plan(source: FolderStore, target: PostgresRows) -> MigrationPlan:
    identity, there = known_identity(source.group_rows), known_identity(target)
    if identity is None:
        raise StorageError(f"{source.shown} does not say which cluster it is for: restore it from a backup")
    if there is not None:
        raise UsageError(f"{target.shown} has the state of coordinator {there.name} already: give another database")
    moved = source.group_rows.get(MOVED_TO)
    if moved is not None and moved != target.shown:
        raise UsageError(f"{source.shown} is being moved to {moved}: give that database")
    counts = {name: int(source.group_rows.rows(f"SELECT count(*) FROM {name}")[0][0]) for name in _TABLES}
    return MigrationPlan(source.shown, target.shown, identity.name, identity.cluster, counts)


def _copy(rows: GroupRows, target: PostgresRows) -> None:
    for table, (keys, others) in _TABLES.items():
        columns = f"{keys}, {others}".split(", ")
        statement = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({', '.join('?' * len(columns))})"
        with target.transaction(Sync.FULL) as db:
            db.execute(f"DELETE FROM {table}")  # of a move that was interrupted
        for part in _context(rows, table):
            with target.transaction(Sync.FULL) as db:
                db.executemany(statement, [_converted(columns, row) for row in part])


def _context(rows: GroupRows, table: str) -> Iterator[Sequence[Any]]:
    """The rows of a table, some at a time."""
    keys, others = _TABLES[table]
    count, size, last = keys.count(",") + 1, (1 if table == "parked_messages" else ROWS_AT_ONCE), ()
    while True:
        after = f"WHERE ({keys}) > ({', '.join('?' * count)})" if last else ""
        part = rows.rows(f"SELECT {keys}, {others} FROM {table} {after} ORDER BY {keys} LIMIT {size}", last)
        if not part:
            return
        last = tuple(part[-1][:count])
        yield [row for row in part if table != "kv" or row[0] not in _STAYS]


def _converted(columns: Sequence[str], row: Sequence[Any]) -> list[Any]:
    """SQLite has 0 and 1 for truth values."""
    return [bool(value) if name in _BOOLEAN else value for name, value in zip(columns, row, strict=True)]
