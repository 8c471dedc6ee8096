"""Connections that block: how each driver begins, executes and ends a transaction.

`database_for` chooses the adapter by the object that the user gave. Nothing is imported for this: an object of a
library can only be given if the program has imported the library.
"""

import contextlib
import sqlite3
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from lanemq.effects.databases import (
    READING,
    RELEASE_SAVEPOINT,
    SELECT_ONE,
    SET_SAVEPOINT,
    EffectDatabase,
    check_status,
    inside_transaction,
    libraries_of,
    not_a_database,
    plain_rows,
    transaction_ended,
)
from lanemq.effects.statements import Dialect, Placeholders, Statement, named_values, written_for
from lanemq.effects.steps import Rows
from lanemq.model.errors import UsageError

POSTGRESQL_DRIVERS = frozenset({"psycopg", "psycopg2", "pg8000", "pgdb"})


def database_for(given: Any) -> EffectDatabase:
    """The adapter for an object that can reach a database, opened if it has to be."""
    found = _adapter(given)
    if found is not None:
        return found
    if hasattr(given, "connection") and "psycopg_pool" in libraries_of(given):
        return _Borrowed(given.connection())
    if callable(given):
        opened = given()
        found = _adapter(opened)
        if found is not None:
            return _Borrowed(contextlib.closing(opened))
        raise not_a_database(opened)
    raise not_a_database(given)


def _adapter(given: Any) -> EffectDatabase | None:
    if isinstance(given, sqlite3.Connection):
        return _Sqlite(given)
    libraries = libraries_of(given)
    if "sqlalchemy" in libraries:
        from lanemq.effects.sqlalchemy_drivers import sqlalchemy_database

        return sqlalchemy_database(given)
    if "psycopg" in libraries and hasattr(given, "pgconn") and hasattr(given, "__enter__"):
        return _Psycopg(given)
    if all(hasattr(given, name) for name in ("cursor", "commit", "rollback")) and not hasattr(given, "__aenter__"):
        return _DbApi(given)
    return None


class _Borrowed:
    """A connection that a pool lends, or that a function has opened, for one call."""

    def __init__(self, lending: AbstractContextManager[Any]) -> None:
        self._lending = lending
        connection = lending.__enter__()
        try:
            found = _adapter(connection)
            if found is None:
                raise not_a_database(connection)
        except BaseException:
            lending.__exit__(*sys.exc_info())
            raise
        self._database = found
        self.dialect = found.dialect
        self.handle = found.handle
        self.begin: Callable[[], Rows] = found.begin
        self.execute: Callable[[Statement], Rows] = found.execute
        self.check_open: Callable[[], None] = found.check_open
        self.commit: Callable[[], None] = found.commit
        self.roll_back: Callable[[], None] = found.roll_back

    def close(self) -> None:
        self._lending.__exit__(None, None, None)


class _Sqlite:
    """Python's sqlite3. The transaction begins as a writer, so what it reads cannot change before it ends."""

    dialect = Dialect.SQLITE

    def __init__(self, connection: sqlite3.Connection) -> None:
        self.handle = connection

    def begin(self) -> Rows:
        if not self.handle.in_transaction:
            self.handle.execute("BEGIN IMMEDIATE")
            self.handle.execute(SET_SAVEPOINT)
            return ()
        # With autocommit=False (Python 3.12) there is always a transaction, and whether it has begun cannot be seen.
        if getattr(self.handle, "autocommit", None) is not False:
            raise inside_transaction()
        self.handle.execute(SET_SAVEPOINT)
        return READING

    def execute(self, statement: Statement) -> Rows:
        cursor = self.handle.cursor()
        cursor.row_factory = None
        try:
            return cursor.execute(statement.sql, statement.values).fetchall()
        finally:
            cursor.close()

    def check_open(self) -> None:
        try:
            self.handle.execute(RELEASE_SAVEPOINT)
        except sqlite3.OperationalError as error:
            raise transaction_ended() from error

    def commit(self) -> None:
        self.handle.commit()

    def roll_back(self) -> None:
        self.handle.rollback()

    def close(self) -> None: ...


class _DbApi:
    """Any connection after PEP 249 whose transactions begin by themselves."""

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        known = not POSTGRESQL_DRIVERS.isdisjoint(libraries_of(connection))
        self.dialect = Dialect.POSTGRESQL if known else Dialect.OTHER
        self._style = _placeholders(connection)

    def begin(self) -> Rows:
        if getattr(self.handle, "autocommit", False) is True:
            raise UsageError(
                "the connection commits each statement (autocommit): `once` needs transactions, turn it off"
            )
        return ()

    def execute(self, statement: Statement) -> Rows:
        cursor = self.handle.cursor()
        try:
            values: Any = named_values(statement.values) if self._style is Placeholders.NAMED else statement.values
            cursor.execute(written_for(self._style, statement.sql), *([values] if values else []))
            return plain_rows(cursor.fetchall()) if cursor.description else ()
        finally:
            cursor.close()

    def check_open(self) -> None:
        if self.dialect is Dialect.POSTGRESQL:
            self.execute(SELECT_ONE)

    def commit(self) -> None:
        self.handle.commit()

    def roll_back(self) -> None:
        self.handle.rollback()

    def close(self) -> None: ...


def _placeholders(connection: Any) -> Placeholders:
    """The paramstyle of a driver; its module has it, as PEP 249 asks for, and often only its outer package."""
    for kind in type(connection).__mro__:
        module = kind.__module__
        while module:
            style = getattr(sys.modules.get(module), "paramstyle", None)
            if style:
                return Placeholders.FORMAT if style == "pyformat" else Placeholders(style)
            module = module.rpartition(".")[0]
    return Placeholders.FORMAT


class _Psycopg(_DbApi):
    """psycopg 3, with and without autocommit."""

    def begin(self) -> Rows:
        if self.handle.info.transaction_status.name != "IDLE":
            raise inside_transaction()
        if self.handle.autocommit:
            self.handle.execute("BEGIN")
        return ()

    def execute(self, statement: Statement) -> Rows:
        cursor = self.handle.cursor(row_factory=lambda _: tuple)
        with cursor:
            cursor.execute(written_for(Placeholders.FORMAT, statement.sql), statement.values or None)
            return cursor.fetchall() if cursor.description else ()

    def check_open(self) -> None:
        check_status(self.handle)
