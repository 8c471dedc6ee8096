"""SQLAlchemy: engines, sessions and connections, blocking and awaited.

An engine becomes a session. A session or connection that the user gives stays open; what is made here is closed.
"""

from collections.abc import Callable
from typing import Any

from sqlalchemy import Connection, Engine, text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, scoped_session, sessionmaker

from lanemq.effects.databases import (
    SELECT_ONE,
    EffectDatabase,
    Rows,
    check_status,
    inside_transaction,
    libraries_of,
    plain_rows,
    settled,
    transaction_ended,
)
from lanemq.effects.statements import Dialect, Placeholders, Statement, named_values, written_for
from lanemq.model.errors import UsageError

_DIALECTS = {"sqlite": Dialect.SQLITE, "postgresql": Dialect.POSTGRESQL}


def sqlalchemy_database(connection: Any, awaited: bool, give_back: Callable[[], Any] | None) -> EffectDatabase | None:
    handle = connection
    match connection:
        case Engine() | AsyncEngine():
            handle = AsyncSession(connection) if isinstance(connection, AsyncEngine) else Session(connection)
            give_back = handle.close
        case sessionmaker() | async_sessionmaker():
            handle = connection()
            give_back = handle.close
        case scoped_session():
            handle = connection()
    kinds = (AsyncSession, AsyncConnection) if awaited else (Session, Connection)
    return _Sqlalchemy(handle, give_back) if isinstance(handle, kinds) else None


class _Sqlalchemy(EffectDatabase):
    def __init__(self, handle: Any, give_back: Callable[[], Any] | None) -> None:
        super().__init__(handle, give_back)
        self._is_session = isinstance(handle, Session | AsyncSession)
        self._transaction: object = None
        bound = handle.get_bind() if self._is_session else handle
        self.dialect = _DIALECTS.get(bound.dialect.name, Dialect.OTHER)

    async def _connection(self) -> Any:
        return await settled(self.handle.connection()) if self._is_session else self.handle

    async def begin(self) -> bool:
        if self.handle.in_transaction():
            raise inside_transaction()
        self._transaction = await settled(self.handle.begin())
        connection = await self._connection()
        _refuse_autocommit(_blocking(connection))
        if self.dialect is not Dialect.SQLITE:
            return False
        begun: bool = getattr(_driver(connection), "in_transaction", False)
        if not begun:
            await settled(connection.exec_driver_sql("BEGIN IMMEDIATE"))
        return begun

    async def execute(self, statement: Statement) -> Rows:
        connection = await self._connection()
        prepared = text(written_for(Placeholders.NAMED, statement.sql))
        result = await settled(connection.execute(prepared, named_values(statement.values)))
        return plain_rows(result.all()) if result.returns_rows else ()

    async def check_open(self) -> None:
        if self.handle.get_transaction() is not self._transaction:
            raise transaction_ended()
        if self.dialect is not Dialect.POSTGRESQL:
            return
        driver = _driver(await self._connection())
        if "psycopg" in libraries_of(driver):
            check_status(driver)  # without a round trip
        else:
            await self.execute(SELECT_ONE)


def _blocking(connection: Any) -> Connection:
    """The connection itself, or the one inside a connection that is awaited."""
    blocking: Connection = getattr(connection, "sync_connection", connection)
    return blocking


def _driver(connection: Any) -> Any:
    return _blocking(connection).connection.driver_connection


def _refuse_autocommit(connection: Connection) -> None:
    level = connection.get_execution_options().get("isolation_level")
    if level == "AUTOCOMMIT" or getattr(connection.connection.dbapi_connection, "autocommit", False) is True:
        raise UsageError('isolation level "AUTOCOMMIT" has no transactions, and `once` needs one: choose another')
