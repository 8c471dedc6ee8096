"""What `once` refuses before it begins, and that it gives back what it has opened, blocking and awaited."""

import asyncio
import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import aiosqlite
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy.ext.asyncio import create_async_engine
from tests.effects import dbapi_driver
from tests.effects.forms import url_of
from tests.effects.messages import delivered
from tests.postgres_server import Server

from lanemq.effects import AlreadyApplied, once
from lanemq.errors import InvalidOption, UsageError


def test_a_block_is_entered_once(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        block = once(delivered(5), connection)
        with block, pytest.raises(UsageError, match="entered already"):
            block.__enter__()
        with pytest.raises(AlreadyApplied), block:
            pytest.fail("the first entry was committed")


def test_an_awaited_block_is_entered_once(tmp_path: Path) -> None:
    async def enter_twice() -> None:
        async with aiosqlite.connect(tmp_path / "shop.db") as connection:
            block = once(delivered(5), connection)
            async with block:
                with pytest.raises(UsageError, match="entered already"):
                    await block.__aenter__()
            with pytest.raises(AlreadyApplied):
                await block.__aenter__()

    asyncio.run(enter_twice())


def test_a_connection_that_blocks_is_refused_by_async_with(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.db")

    async def enter(given: Any) -> None:
        async with once(delivered(5), given):
            pytest.fail("not awaited")

    engine = sqlalchemy.create_engine("sqlite://")
    with contextlib.closing(connect()) as connection:
        for given in (connection, connect, engine, dbapi_driver.Connection(str(tmp_path / "shop.db")), "shop.db"):
            with pytest.raises(InvalidOption, match="`with` for the others"):
                asyncio.run(enter(given))
    engine.dispose()


def test_connections_that_are_awaited_are_refused_by_with(tmp_path: Path) -> None:
    engine: Any = create_async_engine(f"sqlite+aiosqlite:///{tmp_path}/shop.db")
    for given in (engine, aiosqlite.connect(tmp_path / "shop.db"), lambda: aiosqlite.connect(tmp_path / "shop.db")):
        with pytest.raises(InvalidOption, match="async with"), once(delivered(1), given):
            pytest.fail("not awaited")


@pytest.mark.slow
def test_psycopg_is_refused_by_the_wrong_kind_of_with(postgres: Server) -> None:
    async def enter(given: Any) -> None:
        async with once(delivered(5), given):
            pytest.fail("not awaited")

    async def awaited_ones() -> None:
        given: Any
        async with (
            await psycopg.AsyncConnection.connect(postgres.dsn) as connection,
            psycopg_pool.AsyncConnectionPool(postgres.dsn, min_size=1, open=False) as pool,
        ):
            for given in (connection, pool):
                with pytest.raises(InvalidOption, match="async with"), once(delivered(5), given):
                    pytest.fail("not awaited")

    asyncio.run(awaited_ones())
    with psycopg.connect(postgres.dsn) as connection, psycopg_pool.ConnectionPool(postgres.dsn, min_size=1) as pool:
        for given in (connection, pool):
            with pytest.raises(InvalidOption, match="`with` for the others"):
                asyncio.run(enter(given))


def test_a_driver_that_commits_each_statement_is_refused(tmp_path: Path) -> None:
    class Autocommitting(dbapi_driver.Connection):
        autocommit = True

    given = Autocommitting(str(tmp_path / "shop.db"))
    with contextlib.closing(given), pytest.raises(UsageError, match="autocommit"), once(delivered(5), given):
        pytest.fail("no transaction")


@pytest.mark.slow
def test_autocommit_of_an_engine_is_refused(postgres: Server) -> None:
    engine = sqlalchemy.create_engine(url_of(postgres.dsn), isolation_level="AUTOCOMMIT")
    with pytest.raises(UsageError, match="AUTOCOMMIT"), once(delivered(5), engine):
        pytest.fail("no transaction")
    engine.dispose()


@pytest.mark.slow
@pytest.mark.parametrize("driver", ["psycopg", "asyncpg"])
def test_autocommit_of_an_awaited_engine_is_refused(postgres: Server, driver: str) -> None:
    async def enter() -> None:
        engine = create_async_engine(url_of(postgres.dsn, driver), isolation_level="AUTOCOMMIT")
        with pytest.raises(UsageError, match="AUTOCOMMIT"):
            async with once(delivered(5), engine):
                pytest.fail("no transaction")
        await engine.dispose()

    asyncio.run(enter())


def test_the_connection_that_a_function_opened_is_closed_however_the_block_ends(tmp_path: Path) -> None:
    opened: list[sqlite3.Connection] = []

    def connect() -> sqlite3.Connection:
        opened.append(sqlite3.connect(tmp_path / "shop.db"))
        return opened[-1]

    with once(delivered(5), connect):
        pass
    with pytest.raises(AlreadyApplied), once(delivered(5), connect):
        pytest.fail("a repeat")
    with pytest.raises(ZeroDivisionError), once(delivered(6), connect):
        raise ZeroDivisionError
    assert len(opened) == 3
    for connection in opened:
        with pytest.raises(sqlite3.ProgrammingError, match="closed"):
            connection.execute("SELECT 1")


def test_the_connection_that_an_awaited_function_opened_is_closed_however_the_block_ends(tmp_path: Path) -> None:
    opened: list[aiosqlite.Connection] = []

    async def connect() -> aiosqlite.Connection:
        opened.append(await aiosqlite.connect(tmp_path / "shop.db"))
        return opened[-1]

    async def all_endings() -> None:
        async with once(delivered(5), connect):
            pass
        with pytest.raises(AlreadyApplied):
            async with once(delivered(5), connect):
                pytest.fail("a repeat")
        with pytest.raises(ZeroDivisionError):
            async with once(delivered(6), connect):
                raise ZeroDivisionError
        assert len(opened) == 3
        for connection in opened:
            with pytest.raises(ValueError, match="no active connection"):
                await connection.execute("SELECT 1")

    asyncio.run(all_endings())


@pytest.mark.slow
def test_a_pool_gets_its_connection_back_when_entering_fails(postgres: Server) -> None:
    with psycopg_pool.ConnectionPool(postgres.dsn, min_size=1, max_size=1, timeout=5) as pool:
        for _ in range(2):
            with pytest.raises(InvalidOption, match="letters"), once(delivered(5), pool, table="no table"):
                pytest.fail("no such table")
        with pool.connection() as connection:
            assert connection.execute("SELECT 1").fetchall() == [(1,)]
