"""Every form in which a program can give `once` a database, behind one interface."""

import asyncio
import contextlib
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiosqlite
import asyncpg
import psycopg
import psycopg_pool
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio
from tests.effects import dbapi_driver

from lanemq.client.message import Message
from lanemq.effects import forget, forget_async, once

INSERT = "INSERT INTO effects_of_the_test (value) VALUES ('{}')"


@dataclass(frozen=True)
class Block:
    """What happens between the beginning and the end of `once`."""

    value: str
    """The effect."""
    fail: BaseException | None
    """Raised at the end."""
    swallows: str
    """A statement whose error the block ignores."""
    calls: str
    """A method of the handle that is called after the statements."""
    writes_after: str
    """An effect that is written after that call."""


class Form:
    """A database in one of its forms: applies effects, and shows which there are."""

    def __init__(self, engine: Any, write: Callable[[Any, str], Any], read: Callable[[str], list[Any]]) -> None:
        self.engine = engine
        self._write = write
        self.query = read
        """Runs a query on a connection of its own."""

    def apply(
        self,
        message: Message | Sequence[Message],
        value: str,
        fail: BaseException | None = None,
        *,
        swallows: str = "",
        calls: str = "",
        writes_after: str = "",
        **options: Any,
    ) -> None:
        """Applies an effect of the message; `Block` explains the arguments."""
        self._inside(lambda: once(message, self.engine, **options), Block(value, fail, swallows, calls, writes_after))

    def _inside(self, begin: Callable[[], Any], block: Block) -> None:
        with begin() as handle:
            self._write(handle, INSERT.format(block.value))
            if block.swallows:
                with contextlib.suppress(Exception):
                    self._write(handle, block.swallows)
            if block.calls:
                getattr(handle, block.calls)()
            if block.writes_after:
                self._write(handle, INSERT.format(block.writes_after))
            if block.fail is not None:
                raise block.fail

    def forget(self, **which: Any) -> None:
        forget(self.engine, **which)

    def execute(self, sql: str) -> None:
        """Runs a statement on the connection, or session, that is given to `once`."""
        self._write(self.engine, sql)

    def end(self, how: str) -> None:
        """Ends the transaction that `execute` has begun: `commit` or `rollback`."""
        getattr(self.engine, how)()

    def effects(self) -> list[str]:
        """What was committed."""
        return sorted(row[0] for row in self.query("SELECT value FROM effects_of_the_test"))


class AwaitedForm(Form):
    """The same for connections that are awaited; `runner` keeps the event loop that they belong to."""

    runner: asyncio.Runner

    def _inside(self, begin: Callable[[], Any], block: Block) -> None:
        self.runner.run(self._awaited(begin, block))

    async def _awaited(self, begin: Callable[[], Any], block: Block) -> None:
        async with begin() as handle:
            await self._write(handle, INSERT.format(block.value))
            if block.swallows:
                with contextlib.suppress(Exception):
                    await self._write(handle, block.swallows)
            if block.calls:
                await getattr(handle, block.calls)()
            if block.writes_after:
                await self._write(handle, INSERT.format(block.writes_after))
            if block.fail is not None:
                raise block.fail

    def forget(self, **which: Any) -> None:
        self.runner.run(forget_async(self.engine, **which))

    def execute(self, sql: str) -> None:
        self.runner.run(self._write(self.engine, sql))

    def end(self, how: str) -> None:
        of_its_own = getattr(self.engine, how, None)
        self.runner.run(self.engine.execute(how) if of_its_own is None else of_its_own())


# what blocks


def _on_connection(connection: Any, sql: str) -> Any:
    return connection.cursor().execute(sql)


def _with_text(session: Any, sql: str) -> Any:
    return session.execute(sqlalchemy.text(sql))


def _legacy_sqlite(path: Path) -> Any:
    return contextlib.closing(sqlite3.connect(path))


def _autocommit_sqlite(path: Path) -> Any:
    return contextlib.closing(sqlite3.connect(path, isolation_level=None))


def _function(path: Path) -> Any:
    return contextlib.nullcontext(lambda: sqlite3.connect(path))


def _named_rows(path: Path) -> Any:
    connection = sqlite3.connect(path)
    connection.row_factory = sqlite3.Row
    return contextlib.closing(connection)


def _unknown_driver(path: Path) -> Any:
    return contextlib.closing(dbapi_driver.Connection(str(path)))


@contextlib.contextmanager
def _engine(url: str) -> Iterator[sqlalchemy.Engine]:
    engine = sqlalchemy.create_engine(url)
    yield engine
    engine.dispose()


@contextlib.contextmanager
def _engine_that_begins(url: str) -> Iterator[sqlalchemy.Engine]:
    """SQLAlchemy's recipe for SQLite: the engine begins each transaction itself, as a reader."""
    with _engine(url) as engine:
        sqlalchemy.event.listen(engine, "begin", lambda connection: connection.exec_driver_sql("BEGIN"))
        yield engine


@contextlib.contextmanager
def _sessionmaker(url: str) -> Iterator[Any]:
    with _engine(url) as engine:
        yield orm.sessionmaker(engine)


@contextlib.contextmanager
def _session(url: str) -> Iterator[Any]:
    with _engine(url) as engine, orm.Session(engine) as session:
        yield session


@contextlib.contextmanager
def _sqlalchemy_connection(url: str) -> Iterator[Any]:
    with _engine(url) as engine, engine.connect() as connection:
        yield connection


def _psycopg(dsn: str) -> Any:
    return contextlib.closing(psycopg.connect(dsn))


def _autocommit_psycopg(dsn: str) -> Any:
    return contextlib.closing(psycopg.connect(dsn, autocommit=True))


def _serializable_psycopg(dsn: str) -> Any:
    connection = psycopg.connect(dsn)
    connection.isolation_level = psycopg.IsolationLevel.SERIALIZABLE
    return contextlib.closing(connection)


def _pool(dsn: str) -> Any:
    return psycopg_pool.ConnectionPool(dsn, min_size=1, max_size=2)


SQLITE: dict[str, tuple[Callable[[Path], Any], Callable[[Any, str], Any]]] = {
    "sqlite3": (_legacy_sqlite, _on_connection),
    "sqlite3-autocommit": (_autocommit_sqlite, _on_connection),
    "sqlite3-function": (_function, _on_connection),
    "sqlite3-rows": (_named_rows, _on_connection),
    "unknown-driver": (_unknown_driver, _on_connection),
    "engine-sqlite": (lambda path: _engine(f"sqlite:///{path}"), _with_text),
    "engine-sqlite-begins": (lambda path: _engine_that_begins(f"sqlite:///{path}"), _with_text),
    "sessionmaker-sqlite": (lambda path: _sessionmaker(f"sqlite:///{path}"), _with_text),
    "session-sqlite": (lambda path: _session(f"sqlite:///{path}"), _with_text),
    "sqlalchemy-connection": (lambda path: _sqlalchemy_connection(f"sqlite:///{path}"), _with_text),
}
POSTGRES: dict[str, tuple[Callable[[str], Any], Callable[[Any, str], Any]]] = {
    "psycopg": (_psycopg, _on_connection),
    "psycopg-autocommit": (_autocommit_psycopg, _on_connection),
    "psycopg-serializable": (_serializable_psycopg, _on_connection),
    "psycopg-pool": (_pool, _on_connection),
    "engine-postgres": (lambda dsn: _engine(url_of(dsn)), _with_text),
    "session-postgres": (lambda dsn: _session(url_of(dsn)), _with_text),
}


# what is awaited


async def _execute(connection: Any, sql: str) -> None:
    await connection.execute(sql)


async def _execute_text(session: Any, sql: str) -> None:
    await session.execute(sqlalchemy.text(sql))


@contextlib.asynccontextmanager
async def _async_engine(url: str) -> Any:
    engine = sqlalchemy_asyncio.create_async_engine(url)
    yield engine
    await engine.dispose()


@contextlib.asynccontextmanager
async def _async_session(url: str) -> Any:
    async with _async_engine(url) as engine, sqlalchemy_asyncio.AsyncSession(engine) as session:
        yield session


@contextlib.asynccontextmanager
async def _async_connection(url: str) -> Any:
    async with _async_engine(url) as engine, engine.connect() as connection:
        yield connection


@contextlib.asynccontextmanager
async def _async_sessionmaker(url: str) -> Any:
    async with _async_engine(url) as engine:
        yield sqlalchemy_asyncio.async_sessionmaker(engine)


@contextlib.asynccontextmanager
async def _asyncpg(dsn: str) -> Any:
    connection = await asyncpg.connect(**_words(dsn))
    yield connection
    await connection.close()


@contextlib.asynccontextmanager
async def _async_psycopg(dsn: str) -> Any:
    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield connection


@contextlib.asynccontextmanager
async def _async_pool(dsn: str) -> Any:
    async with psycopg_pool.AsyncConnectionPool(dsn, min_size=1, max_size=2, open=False) as pool:
        yield pool


@contextlib.asynccontextmanager
async def _async_function(dsn: str) -> Any:
    yield lambda: psycopg.AsyncConnection.connect(dsn)


ASYNC_SQLITE: dict[str, tuple[Callable[[Path], Any], Callable[[Any, str], Any]]] = {
    "aiosqlite": (lambda path: aiosqlite.connect(path), _execute),
    "async-engine-sqlite": (lambda path: _async_engine(f"sqlite+aiosqlite:///{path}"), _execute_text),
    "async-session-sqlite": (lambda path: _async_session(f"sqlite+aiosqlite:///{path}"), _execute_text),
    "async-connection-sqlite": (lambda path: _async_connection(f"sqlite+aiosqlite:///{path}"), _execute_text),
    "async-sessionmaker-sqlite": (lambda path: _async_sessionmaker(f"sqlite+aiosqlite:///{path}"), _execute_text),
}
ASYNC_POSTGRES: dict[str, tuple[Callable[[str], Any], Callable[[Any, str], Any]]] = {
    "async-psycopg": (_async_psycopg, _execute),
    "async-psycopg-pool": (_async_pool, _execute),
    "async-function": (_async_function, _execute),
    "asyncpg": (_asyncpg, _execute),
    "asyncpg-pool": (lambda dsn: asyncpg.create_pool(**_words(dsn), min_size=1, max_size=2), _execute),
    "async-engine-asyncpg": (lambda dsn: _async_engine(url_of(dsn, "asyncpg")), _execute_text),
    "async-engine-psycopg": (lambda dsn: _async_engine(url_of(dsn)), _execute_text),
}


def _words(dsn: str) -> dict[str, str]:
    found = dict(word.split("=", 1) for word in dsn.split())
    return {"host": found["host"], "database": found["dbname"], "user": found["user"]}


def url_of(dsn: str, driver: str = "psycopg") -> str:
    words = _words(dsn)
    return f"postgresql+{driver}://{words['user']}@/{words['database']}?host={words['host']}"


@contextlib.contextmanager
def sqlite_form(name: str, path: Path) -> Iterator[Form]:
    def read(sql: str) -> list[Any]:
        with contextlib.closing(sqlite3.connect(path)) as connection:
            found = connection.execute(sql).fetchall()
            connection.commit()
            return found

    read("CREATE TABLE effects_of_the_test (value TEXT)")
    with _form(name, path, read, SQLITE, ASYNC_SQLITE) as form:
        yield form


@contextlib.contextmanager
def postgres_form(name: str, dsn: str) -> Iterator[Form]:
    def read(sql: str) -> list[Any]:
        with psycopg.connect(dsn, autocommit=True) as connection:
            cursor = connection.execute(sql)
            return cursor.fetchall() if cursor.description else []

    read("DROP TABLE IF EXISTS effects_of_the_test, lanemq_effects, lanemq_effects_epochs")
    read("CREATE TABLE effects_of_the_test (value TEXT)")
    with _form(name, dsn, read, POSTGRES, ASYNC_POSTGRES) as form:
        yield form


@contextlib.contextmanager
def _form(name: str, where: Any, read: Callable[[str], list[Any]], blocking: Any, awaited: Any) -> Iterator[Form]:
    if name in blocking:
        opened, write = blocking[name]
        with opened(where) as engine:
            yield Form(engine, write, read)
        return
    opened, write = awaited[name]
    with asyncio.Runner() as runner:
        stack = contextlib.AsyncExitStack()

        async def enter() -> Any:
            return await stack.enter_async_context(opened(where))

        form = AwaitedForm(runner.run(enter()), write, read)
        form.runner = runner
        try:
            yield form
        finally:
            runner.run(stack.aclose())
