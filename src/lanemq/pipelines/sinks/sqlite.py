"""Batches in a SQLite file: for small tables, tests, and programs on the same machine.

The rule guarded here: every transaction begins IMMEDIATE, so two runs never judge the ledger at once. Values SQLite
has no type for are stored as text: times as ISO 8601 in UTC, decimals exactly, maps, arrays and structs as JSON. It
has no NaN: those become NULL.
"""

import sqlite3
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow as pa

from lanemq.clock import Clock
from lanemq.model.errors import InvalidOption, LaneError, RequestTimedOut, StorageError
from lanemq.model.units import Millis
from lanemq.pipelines.sinks.columns import is_nested, json_column
from lanemq.pipelines.sinks.ledger import Terms
from lanemq.pipelines.sinks.sql import Column, SqlSink, in_rows, names_of
from lanemq.spark.options import WAIT

BUSY_SECONDS = 1.0
"""How long SQLite itself waits for a lock; then it is a line in the log, and tried again."""

_PASSING = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED})
_AFFINITIES = (
    ("INT", "integer"), ("CHAR", "text"), ("CLOB", "text"), ("TEXT", "text"), ("BLOB", "blob"), ("REAL", "real"),
    ("FLOA", "real"), ("DOUB", "real"),
)  # fmt: skip
"""SQLite's rule for what a declared type makes of a value: the first part found in it decides."""


class SqliteSink(SqlSink):
    """Appends or merges batches into a table of a SQLite file.

    Args:
        path: The file; created if it is not there. Not on a network drive, whose locks SQLite cannot trust.
        wait: Milliseconds to wait for somebody else's transaction. Short fails where a backup takes long.
        evolve: Whether a run with new columns may add them to the table.
    """

    def __init__(
        self, path: str | Path, table: str, *, wait: Millis = WAIT, evolve: bool = True, clock: Clock | None = None
    ) -> None:
        super().__init__(table, wait, evolve, clock)
        self._path = path
        self._connection: sqlite3.Connection | None = None

    def __str__(self) -> str:
        return f"table {self._table} of {self._path}"

    def applied_before_open(self, query: str) -> int | None:
        """To connect would make the file."""
        return super().applied_before_open(query) if Path(self._path).exists() else None

    def close(self) -> None:
        super().close()
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
            raise self._in_our_words(error) from error

    def _connected(self) -> sqlite3.Connection:
        if self._connection is None:
            # A runner's passes come from another thread than its batches, never at the same time.
            self._connection = sqlite3.connect(
                self._path, timeout=BUSY_SECONDS, isolation_level=None, check_same_thread=False
            )
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
        return self._connection

    def _in_our_words(self, error: sqlite3.Error) -> LaneError:
        if (getattr(error, "sqlite_errorcode", 0) & 0xFF) in _PASSING:
            return RequestTimedOut(f"{self._path}: {error}; another transaction has it")
        return StorageError(f"table {self._table} in {self._path}: {error}")

    def _settle(self, connection: Any) -> None:
        """The transaction has the whole file."""

    def _ask(self, connection: Any, statement: str, values: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        try:
            return list(connection.execute(statement, tuple(values)).fetchall())
        except sqlite3.OperationalError as error:
            if "ON CONFLICT clause does not match" in str(error):
                raise InvalidOption(str(error)) from error
            raise

    def _columns(self, connection: Any, table: str) -> list[Column]:
        found = self._ask(connection, f"PRAGMA table_xinfo({table})")
        return [
            Column(name, kind.lower(), bool(must and default is None)) for _, name, kind, must, default, *_ in found
        ]

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

    def _append(self, connection: Any, tables: Iterable[pa.Table], terms: Terms) -> None:
        statement = f"INSERT INTO {self._name} ({names_of(terms)}) VALUES ({_marks(terms)})"
        for table in tables:
            connection.executemany(statement, in_rows(_plain(table)))

    def _merge(self, connection: Any, changes: pa.Table, terms: Terms) -> int:
        statement = self._upsert(terms, f"VALUES ({_marks(terms)})")
        return int(connection.executemany(statement, in_rows(_plain(changes))).rowcount)


def _marks(terms: Terms) -> str:
    return ", ".join("?" * len(terms.schema.names))


def _declared(kind: pa.DataType) -> str:
    if pa.types.is_boolean(kind):
        return "BOOLEAN"
    if pa.types.is_integer(kind):
        return "INTEGER"
    if pa.types.is_floating(kind):
        return "REAL"
    return "BLOB" if pa.types.is_binary(kind) else "TEXT"


def _plain(table: pa.Table) -> pa.Table:
    """Numbers, text and bytes only."""
    for at, field in enumerate(table.schema):
        if is_nested(field.type):
            table = table.set_column(at, field.name, json_column(table[at]))
        elif pa.types.is_temporal(field.type) or pa.types.is_decimal(field.type):
            table = table.set_column(at, field.name, table[at].cast(pa.string()))
    return table
