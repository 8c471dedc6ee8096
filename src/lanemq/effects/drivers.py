"""How each driver begins, executes and ends a transaction; SQLAlchemy is in `sqlalchemy_drivers`.

`open_database` chooses the adapter by the object that the user gave. Nothing is imported for this: an object of a
library can only be given if the program has imported the library.
"""

import inspect
import sqlite3
import sys
from collections.abc import Callable
from functools import partial
from typing import Any

from lanemq.effects.databases import (
    SELECT_ONE,
    EffectDatabase,
    Rows,
    check_status,
    inside_transaction,
    libraries_of,
    not_a_database,
    plain_rows,
    settled,
    transaction_ended,
)
from lanemq.effects.statements import Dialect, Placeholders, Statement, named_values, written_for
from lanemq.model.errors import UsageError

POSTGRESQL_DRIVERS = frozenset({"psycopg", "psycopg2", "pg8000", "pgdb"})


async def open_database(source: Any, *, awaited: bool) -> EffectDatabase:
    """The adapter for an object that can reach a database, opened if it has to be.

    `awaited`: whether `once` was entered with `async with`, or `forget_async` was called.
    """
    adapter = _adapter(source, awaited)
    if adapter is not None:
        return adapter
    libraries = libraries_of(source)
    give_back: Callable[[Any], Any] = _close
    if "psycopg_pool" in libraries and hasattr(source, _entered_with(awaited)):
        opened, give_back = source.getconn(), source.putconn
    elif awaited and "asyncpg" in libraries and hasattr(source, "acquire"):
        opened, give_back = source.acquire(), source.release
    elif callable(source) and not isinstance(source, sqlite3.Connection):  # which can be called, to no purpose here
        opened = source()
    else:
        raise not_a_database(source)
    if awaited and inspect.isawaitable(opened):
        opened = await opened
    adapter = _adapter(opened, awaited, partial(give_back, opened))
    if adapter is None:
        raise not_a_database(opened)
    return adapter


def _close(connection: Any) -> Any:
    return connection.close()


def _adapter(connection: Any, awaited: bool, give_back: Callable[[], Any] | None = None) -> EffectDatabase | None:
    libraries = libraries_of(connection)
    if "sqlalchemy" in libraries:
        from lanemq.effects.sqlalchemy_drivers import sqlalchemy_database

        return sqlalchemy_database(connection, awaited, give_back)
    if "psycopg" in libraries and hasattr(connection, "pgconn") and hasattr(connection, _entered_with(awaited)):
        return _Psycopg(connection, give_back)
    if awaited:
        if "asyncpg" in libraries and hasattr(connection, "is_in_transaction"):
            return _Asyncpg(connection, give_back)
        return (
            _Sqlite(connection, give_back)
            if "aiosqlite" in libraries and hasattr(connection, "in_transaction")
            else None
        )
    if isinstance(connection, sqlite3.Connection):
        return _Sqlite(connection, give_back)
    if all(hasattr(connection, name) for name in ("cursor", "commit", "rollback")) and not hasattr(
        connection, "__aenter__"
    ):
        return _DbApi(connection, give_back)
    return None


def _entered_with(awaited: bool) -> str:
    return "__aenter__" if awaited else "__enter__"


class _Sqlite(EffectDatabase):
    """Python's sqlite3, and aiosqlite, which is the same on a thread.

    The transaction begins as a writer, so what it reads cannot change before it ends. A savepoint, set at the
    beginning, ends with it. So a block is noticed that commits and then writes, which begins another transaction by
    itself (`with connection:` and `executescript` commit).
    """

    dialect = Dialect.SQLITE

    async def begin(self) -> bool:
        begun: bool = self.handle.in_transaction
        if not begun:
            await settled(self.handle.execute("BEGIN IMMEDIATE"))
        # With autocommit=False (Python 3.12) there is always a transaction, and whether it has begun cannot be seen.
        elif getattr(self.handle, "autocommit", None) is not False:
            raise inside_transaction()
        await settled(self.handle.execute("SAVEPOINT lanemq_once"))
        return begun

    async def execute(self, statement: Statement) -> Rows:
        cursor = await settled(self.handle.cursor())
        cursor.row_factory = None
        try:
            await settled(cursor.execute(statement.sql, statement.values))
            rows: Rows = await settled(cursor.fetchall())
            return rows
        finally:
            await settled(cursor.close())

    async def check_open(self) -> None:
        try:
            await settled(self.handle.execute("RELEASE lanemq_once"))
        except sqlite3.OperationalError as error:
            raise transaction_ended() from error


class _Psycopg(EffectDatabase):
    """psycopg 3, blocking and awaited, with and without autocommit."""

    dialect = Dialect.POSTGRESQL

    async def begin(self) -> bool:
        if self.handle.info.transaction_status.name != "IDLE":
            raise inside_transaction()
        if self.handle.autocommit:
            await settled(self.handle.execute("BEGIN"))
        return False

    async def execute(self, statement: Statement) -> Rows:
        cursor = self.handle.cursor(row_factory=lambda _: tuple)
        try:
            await settled(cursor.execute(written_for(Placeholders.FORMAT, statement.sql), statement.values or None))
            rows: Rows = await settled(cursor.fetchall()) if cursor.description else ()
            return rows
        finally:
            await settled(cursor.close())

    async def check_open(self) -> None:
        check_status(self.handle)


class _Asyncpg(EffectDatabase):
    """asyncpg, which commits each statement outside a transaction object."""

    dialect = Dialect.POSTGRESQL
    _transaction: Any = None

    async def begin(self) -> bool:
        if self.handle.is_in_transaction():
            raise inside_transaction()
        transaction = self.handle.transaction()
        await transaction.start()
        self._transaction = transaction
        return False

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


class _DbApi(EffectDatabase):
    """Any connection after PEP 249 whose transactions begin by themselves."""

    def __init__(self, handle: Any, give_back: Callable[[], Any] | None) -> None:
        super().__init__(handle, give_back)
        known = not POSTGRESQL_DRIVERS.isdisjoint(libraries_of(handle))
        self.dialect = Dialect.POSTGRESQL if known else Dialect.OTHER
        self._style = _placeholders(handle)

    async def begin(self) -> bool:
        if getattr(self.handle, "autocommit", False) is True:
            raise UsageError(
                "the connection commits each statement (autocommit): `once` needs transactions, turn it off"
            )
        return False

    async def execute(self, statement: Statement) -> Rows:
        cursor = self.handle.cursor()
        try:
            values: Any = named_values(statement.values) if self._style is Placeholders.NAMED else statement.values
            cursor.execute(written_for(self._style, statement.sql), *([values] if values else []))
            return plain_rows(cursor.fetchall()) if cursor.description else ()
        finally:
            cursor.close()

    async def check_open(self) -> None:
        if self.dialect is Dialect.POSTGRESQL:
            await self.execute(SELECT_ONE)


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
