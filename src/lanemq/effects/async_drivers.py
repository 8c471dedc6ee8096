"""Connections that are awaited: `drivers`, for event loops."""

import inspect
import sqlite3
from collections.abc import Callable
from typing import Any

from lanemq.effects.databases import (
    READING,
    RELEASE_SAVEPOINT,
    SELECT_ONE,
    SET_SAVEPOINT,
    AsyncEffectDatabase,
    check_status,
    inside_transaction,
    libraries_of,
    not_a_database,
    plain_rows,
    transaction_ended,
)
from lanemq.effects.statements import Dialect, Placeholders, Statement, written_for
from lanemq.effects.steps import Rows


async def async_database_for(given: Any) -> AsyncEffectDatabase:
    """The adapter for an object that can reach a database, opened if it has to be."""
    found = _adapter(given)
    if found is not None:
        return found
    libraries = libraries_of(given)
    if "psycopg_pool" in libraries and hasattr(given, "getconn"):
        return _Borrowed(await given.getconn(), given.putconn)
    if "asyncpg" in libraries and hasattr(given, "acquire"):
        return _Borrowed(await given.acquire(), given.release)
    if callable(given):
        opened = given()
        if inspect.isawaitable(opened):
            opened = await opened
        if _adapter(opened) is not None:
            return _Borrowed(opened, _close)
        raise not_a_database(opened)
    raise not_a_database(given)


def _adapter(given: Any) -> AsyncEffectDatabase | None:
    libraries = libraries_of(given)
    if "sqlalchemy" in libraries:
        from lanemq.effects.sqlalchemy_drivers import async_sqlalchemy_database

        return async_sqlalchemy_database(given)
    if "psycopg" in libraries and hasattr(given, "pgconn") and hasattr(given, "__aenter__"):
        return _AsyncPsycopg(given)
    if "asyncpg" in libraries and hasattr(given, "is_in_transaction"):
        return _Asyncpg(given)
    if "aiosqlite" in libraries and hasattr(given, "in_transaction"):
        return _Aiosqlite(given)
    return None


async def _close(connection: Any) -> None:
    await connection.close()


class _Borrowed:
    """A connection that a pool lends, or that a function has opened, for one call."""

    def __init__(self, connection: Any, give_back: Callable[[Any], Any]) -> None:
        found = _adapter(connection)
        assert found is not None
        self._connection = connection
        self._give_back = give_back
        self.dialect = found.dialect
        self.handle = found.handle
        self.begin = found.begin
        self.execute = found.execute
        self.check_open = found.check_open
        self.commit = found.commit
        self.roll_back = found.roll_back

    async def close(self) -> None:
        await self._give_back(self._connection)


class _AsyncPsycopg:
    """psycopg 3, with and without autocommit."""

    dialect = Dialect.POSTGRESQL

    def __init__(self, connection: Any) -> None:
        self.handle = connection

    async def begin(self) -> Rows:
        if self.handle.info.transaction_status.name != "IDLE":
            raise inside_transaction()
        if self.handle.autocommit:
            await self.handle.execute("BEGIN")
        return ()

    async def execute(self, statement: Statement) -> Rows:
        async with self.handle.cursor(row_factory=lambda _: tuple) as cursor:
            await cursor.execute(written_for(Placeholders.FORMAT, statement.sql), statement.values or None)
            rows: Rows = await cursor.fetchall() if cursor.description else ()
            return rows

    async def check_open(self) -> None:
        check_status(self.handle)

    async def commit(self) -> None:
        await self.handle.commit()

    async def roll_back(self) -> None:
        await self.handle.rollback()

    async def close(self) -> None: ...


class _Asyncpg:
    """asyncpg, which commits each statement outside a transaction object."""

    dialect = Dialect.POSTGRESQL

    def __init__(self, connection: Any) -> None:
        self.handle = connection
        self._transaction: Any = None

    async def begin(self) -> Rows:
        if self.handle.is_in_transaction():
            raise inside_transaction()
        transaction = self.handle.transaction()
        await transaction.start()
        self._transaction = transaction
        return ()

    async def execute(self, statement: Statement) -> Rows:
        return plain_rows(await self.handle.fetch(written_for(Placeholders.DOLLAR, statement.sql), *statement.values))

    async def check_open(self) -> None:
        if not self.handle.is_in_transaction():
            raise transaction_ended()
        await self.execute(SELECT_ONE)

    async def commit(self) -> None:
        transaction, self._transaction = self._transaction, None
        await transaction.commit()

    async def roll_back(self) -> None:
        transaction, self._transaction = self._transaction, None
        if transaction is not None and not self.handle.is_closed():
            await transaction.rollback()

    async def close(self) -> None: ...


class _Aiosqlite:
    """aiosqlite: Python's sqlite3 on a thread."""

    dialect = Dialect.SQLITE

    def __init__(self, connection: Any) -> None:
        self.handle = connection

    async def begin(self) -> Rows:
        if not self.handle.in_transaction:
            await self.handle.execute("BEGIN IMMEDIATE")
            await self.handle.execute(SET_SAVEPOINT)
            return ()
        if getattr(self.handle, "autocommit", None) is not False:
            raise inside_transaction()
        await self.handle.execute(SET_SAVEPOINT)
        return READING

    async def execute(self, statement: Statement) -> Rows:
        async with self.handle.execute(statement.sql, statement.values) as cursor:
            return plain_rows(await cursor.fetchall())

    async def check_open(self) -> None:
        try:
            await self.handle.execute(RELEASE_SAVEPOINT)
        except sqlite3.OperationalError as error:
            raise transaction_ended() from error

    async def commit(self) -> None:
        await self.handle.commit()

    async def roll_back(self) -> None:
        await self.handle.rollback()

    async def close(self) -> None: ...
