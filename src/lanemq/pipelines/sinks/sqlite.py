"""Batches in a SQLite file: for small tables, tests, and programs on the same machine.

Invariant: every transaction begins IMMEDIATE, so two runs never read the ledger at once. Values that SQLite has no type
for are stored as text: times as ISO 8601 in UTC, decimals exactly, maps, arrays and structs as JSON. NaN becomes NULL,
and -0.0 becomes 0.0. A file that another program replaces during a run is noticed before the next transaction.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from lanemq.clock import Clock
from lanemq.model.errors import InvalidOption, LaneError, RequestTimedOut, StateLost, StorageError
from lanemq.model.units import Seconds
from lanemq.pipelines.ports import QUEUE, SinkRun
from lanemq.pipelines.sinks.exact_sink import is_nested, json_column
from lanemq.pipelines.sinks.sql import Column, SqlSink, UniqueIndex, in_rows, names_of, quoted

BUSY_SECONDS = 1.0
"""How long SQLite itself waits for a lock, before the sink logs a warning and tries again."""

_RETRIABLE = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_AFFINITIES = (
    ("INT", "integer"), ("CHAR", "text"), ("CLOB", "text"), ("TEXT", "text"), ("BLOB", "blob"), ("REAL", "real"),
    ("FLOA", "real"), ("DOUB", "real"),
)  # fmt: skip
"""SQLite's rule for the affinity of a declared type: the first part found in its name decides."""


class SqliteSink(SqlSink):
    """Appends or merges batches into a table of a SQLite file.

    Args:
        path: The file; created if it does not exist. Not on a network drive, where SQLite's locks do not hold.
        wait: Seconds to wait for another connection's transaction. A low value fails while a backup runs.
        evolve: Whether a run with new columns may add them to the table.
    """

    def __init__(
        self, path: str | Path, table: str, *, wait: Seconds = 60.0, evolve: bool = True, clock: Clock | None = None
    ) -> None:
        super().__init__(table, wait, evolve, clock)
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None
        """Which file was opened last, under whatever name it has now."""

    def __str__(self) -> str:
        return f"table {self._table} of {self._path}"

    def applied(self, query: str, settings: Mapping[str, str]) -> int | None:
        # Connecting would create the file.
        return super().applied(query, settings) if Path(self._path).exists() else None

    def close(self) -> None:
        super().close()
        self._disconnect()
        self._file = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        try:
            connection = self._connected()
            connection.execute("BEGIN IMMEDIATE")
            try:
                yield connection
                connection.execute("COMMIT")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("ROLLBACK")
                raise
        except sqlite3.Error as error:
            raise self._lane_error(error) from error

    def _connected(self) -> sqlite3.Connection:
        """The connection. If another program has replaced the file since, a new one, whose ledger says what is lost."""
        if self._file is not None and self._file != _file_at(self._path):
            self._disconnect()
            if not Path(self._path).exists():
                raise StateLost(
                    f"{self} is gone: another program deleted or moved the file while the pipeline ran. Put it back; "
                    f"or start with --new-sink or run(..., new_sink=True), which continues with a new table"
                )
        if self._connection is None:
            # Retry passes run in another thread than batches, never at the same time.
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._file = _file_at(self._path)
        return self._connection

    def _lane_error(self, error: sqlite3.Error) -> LaneError:
        if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _RETRIABLE:
            return RequestTimedOut(f"{self._path}: {error}; another transaction has it")
        return StorageError(f"table {self._table} in {self._path}: {error}")

    def _lock_schema(self, connection: Any) -> None:
        """Nothing to do: the transaction locks the whole file."""

    def _execute(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return list(connection.execute(statement, tuple(values)).fetchall())
        except sqlite3.OperationalError as error:
            if "ON CONFLICT clause does not match" in str(error):
                raise InvalidOption(str(error)) from error
            raise

    def _columns(self, connection: Any, table: str) -> list[Column]:
        found = self._execute(connection, f"PRAGMA table_xinfo({table})")
        return [
            Column(name, kind.lower(), bool(must and default is None)) for _, name, kind, must, default, *_ in found
        ]

    def _keep_columns(self, connection: Any) -> None:
        """Nothing to do: the transaction locks the whole file."""

    def _unique_indexes(self, connection: Any) -> list[UniqueIndex]:
        indexes: list[UniqueIndex] = []
        for _, index, is_unique, *_ in self._execute(connection, f"PRAGMA index_list({self._name})"):
            if is_unique:
                columns = self._execute(connection, f"PRAGMA index_xinfo({quoted(index)})")
                loose = (
                    (name, "" if by == "BINARY" else by.lower()) for _, _, name, _, by, is_key in columns if is_key
                )
                indexes.append(UniqueIndex(index, tuple(loose)))
        return indexes

    def _column_type(self, field: pa.Field) -> str:
        return f"{_declared(field.type)}{'' if field.nullable else ' NOT NULL'}"

    def _accepts(self, column: Column, kind: pa.DataType) -> bool:
        affinity = next((means for part, means in _AFFINITIES if part in column.kind.upper()), "numeric")
        wanted = _declared(kind)
        if column.kind == "" or wanted == "BLOB":
            return affinity == "blob" or column.kind == ""
        if wanted in ("INTEGER", "REAL", "BOOLEAN"):
            return affinity in ("numeric", wanted.lower(), "integer" if wanted == "BOOLEAN" else "numeric")
        return affinity == "text" or (affinity == "numeric" and pa.types.is_temporal(kind))

    def _append(self, connection: Any, tables: Iterable[pa.Table], run: SinkRun) -> None:
        statement = f"INSERT INTO {self._name} ({names_of(run)}) VALUES ({_marks(run)})"
        for table in tables:
            connection.executemany(statement, in_rows(_plain(table)))

    def _merge(self, connection: Any, changes: pa.Table, run: SinkRun) -> int:
        statement, plain = self._upsert(run, f"VALUES ({_marks(run)})"), _plain(changes)
        done = int(connection.executemany(statement, in_rows(plain)).rowcount)
        if done < changes.num_rows and QUEUE in run.columns.names:
            given = ", ".join(f"? AS {quoted(name)}" for name in run.columns.names)
            for row in in_rows(plain):
                self._refuse_ties(connection, run, f"SELECT {given}", row)
        return done


def _file_at(path: str | Path) -> tuple[int, int] | None:
    """The identity of the file that has this name now."""
    try:
        found = Path(path).stat()
    except FileNotFoundError:
        return None
    return found.st_dev, found.st_ino


def _marks(run: SinkRun) -> str:
    return ", ".join("?" * len(run.columns.names))


def _declared(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_integer(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) else "TEXT"


def _plain(table: pa.Table) -> pa.Table:
    """The table with numbers, text and bytes only."""
    for at, field in enumerate(table.schema):
        if is_nested(field.type):
            table = table.set_column(at, field.name, json_column(table[at]))
        elif pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type):
            table = table.set_column(at, field.name, table[at].cast(pa.string()))
    return table
