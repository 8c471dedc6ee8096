"""SQLAlchemy: engines, sessions and connections, blocking and awaited.

An engine becomes a session. A session or connection that the user gives stays open; what is made here is closed.
"""

from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.engine.interfaces import Dialect as SqlalchemyDialect
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from lanemq.effects.databases import (
    READING,
    SELECT_ONE,
    check_status,
    inside_transaction,
    libraries_of,
    transaction_ended,
)
from lanemq.effects.statements import Dialect, Placeholders, Statement, named_values, written_for
from lanemq.effects.steps import Rows
from lanemq.model.errors import UsageError

_DIALECTS = {"sqlite": Dialect.SQLITE, "postgresql": Dialect.POSTGRESQL}


def sqlalchemy_database(given: Any) -> "_Sqlalchemy | None":
    match given:
        case Engine():
            return _Sqlalchemy(Session(given), own=True)
        case sessionmaker():
            return _Sqlalchemy(given(), own=True)
        case scoped_session():
            return _Sqlalchemy(given(), own=False)
        case Session() | Connection():
            return _Sqlalchemy(given, own=False)
    return None


def async_sqlalchemy_database(given: Any) -> "_AsyncSqlalchemy | None":
    match given:
        case AsyncEngine():
            return _AsyncSqlalchemy(AsyncSession(given), own=True)
        case async_sessionmaker():
            return _AsyncSqlalchemy(given(), own=True)
        case AsyncSession() | AsyncConnection():
            return _AsyncSqlalchemy(given, own=False)
    return None


def _kind(dialect: SqlalchemyDialect) -> Dialect:
    return _DIALECTS.get(dialect.name, Dialect.OTHER)


def _refuse_autocommit(connection: Connection | None) -> None:
    if connection is None:
        return
    level = connection.get_execution_options().get("isolation_level")
    if level == "AUTOCOMMIT" or getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise UsageError('isolation level "AUTOCOMMIT" has no transactions, and `once` needs one: choose another')


def _checked_by_status(connection: Connection) -> bool:
    """`check_open` for a connection of psycopg, without a round trip; False, unchecked, for other drivers."""
    driver = connection.connection.driver_connection
    if driver is None or "psycopg" not in libraries_of(driver):
        return False
    check_status(driver)
    return True


class _Sqlalchemy:
    def __init__(self, handle: "Session | Connection", *, own: bool) -> None:
        self.handle = handle
        self._own = own
        self._transaction: object = None
        self.dialect = _kind(handle.get_bind().dialect if isinstance(handle, Session) else handle.dialect)

    @property
    def _connection(self) -> Connection:
        return self.handle.connection() if isinstance(self.handle, Session) else self.handle

    def begin(self) -> Rows:
        if self.handle.in_transaction():
            raise inside_transaction()
        self._transaction = self.handle.begin()
        connection = self._connection
        _refuse_autocommit(connection)
        if self.dialect is not Dialect.SQLITE:
            return ()
        if getattr(connection.connection.dbapi_connection, "in_transaction", False):
            return READING
        connection.exec_driver_sql("BEGIN IMMEDIATE")
        return ()

    def execute(self, statement: Statement) -> Rows:
        prepared = text(written_for(Placeholders.NAMED, statement.sql))
        result = self._connection.execute(prepared, named_values(statement.values))
        return [tuple(row) for row in result.all()] if result.returns_rows else ()

    def check_open(self) -> None:
        if self.handle.get_transaction() is not self._transaction:
            raise transaction_ended()
        if self.dialect is Dialect.POSTGRESQL and not _checked_by_status(self._connection):
            self.execute(SELECT_ONE)

    def commit(self) -> None:
        self.handle.commit()

    def roll_back(self) -> None:
        self.handle.rollback()

    def close(self) -> None:
        if self._own:
            self.handle.close()


class _AsyncSqlalchemy:
    def __init__(self, handle: "AsyncSession | AsyncConnection", *, own: bool) -> None:
        self.handle = handle
        self._own = own
        self._transaction: object = None
        self.dialect = _kind(handle.get_bind().dialect if isinstance(handle, AsyncSession) else handle.dialect)

    async def _connection(self) -> AsyncConnection:
        return await self.handle.connection() if isinstance(self.handle, AsyncSession) else self.handle

    async def begin(self) -> Rows:
        if self.handle.in_transaction():
            raise inside_transaction()
        self._transaction = await self.handle.begin()
        connection = await self._connection()
        _refuse_autocommit(connection.sync_connection)
        if self.dialect is not Dialect.SQLITE:
            return ()
        raw = await connection.get_raw_connection()
        if getattr(raw.driver_connection, "in_transaction", False):
            return READING
        await connection.exec_driver_sql("BEGIN IMMEDIATE")
        return ()

    async def execute(self, statement: Statement) -> Rows:
        prepared = text(written_for(Placeholders.NAMED, statement.sql))
        result = await (await self._connection()).execute(prepared, named_values(statement.values))
        return [tuple(row) for row in result.all()] if result.returns_rows else ()

    async def check_open(self) -> None:
        if self.handle.get_transaction() is not self._transaction:
            raise transaction_ended()
        connection = (await self._connection()).sync_connection
        if self.dialect is Dialect.POSTGRESQL and connection is not None and not _checked_by_status(connection):
            await self.execute(SELECT_ONE)

    async def commit(self) -> None:
        await self.handle.commit()

    async def roll_back(self) -> None:
        await self.handle.rollback()

    async def close(self) -> None:
        if self._own:
            await self.handle.close()
