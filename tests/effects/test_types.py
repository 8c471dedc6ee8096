"""What type checkers know of `once`, what it refuses, and how statements and names are written."""

import contextlib
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy.exc import DBAPIError
from tests.effects.messages import delivered
from tests.test_shape import ROOT

from lanemq.effects import once, table_definition
from lanemq.effects.statements import (
    Dialect,
    Placeholders,
    lane_name,
    scope_of,
    tables_for,
    written_for,
)
from lanemq.effects.steps import sql_state
from lanemq.errors import InvalidOption, UsageError
from lanemq.model.queue import MessageQueue

TYPED = """
import sqlite3
from collections.abc import Sequence
from typing import Any, assert_type

import aiosqlite
import psycopg
import psycopg_pool
import sqlalchemy
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, AsyncSession, async_sessionmaker
from sqlalchemy.orm import Session, sessionmaker

from lanemq import Message
from lanemq.effects import once


def opened() -> sqlite3.Connection:
    return sqlite3.connect("shop.db")


async def opened_async() -> "psycopg.AsyncConnection[Any]":
    return await psycopg.AsyncConnection.connect("dbname=shop")


def blocking(
    message: Message,
    batch: Sequence[Message],
    sqlite: sqlite3.Connection,
    postgres: "psycopg.Connection[Any]",
    pool: "psycopg_pool.ConnectionPool[psycopg.Connection[Any]]",
    engine: sqlalchemy.Engine,
    maker: sessionmaker[Session],
    session: Session,
    connection: sqlalchemy.Connection,
) -> None:
    with once(message, sqlite) as a:
        assert_type(a, sqlite3.Connection)
    with once(batch, postgres, table="app.effects", keep=3600) as b:
        assert_type(b, "psycopg.Connection[Any]")
    with once(message, pool) as c:
        assert_type(c, "psycopg.Connection[Any]")
    with once(message, engine) as d:
        assert_type(d, Session)
    with once(message, maker) as e:
        assert_type(e, Session)
    with once(message, session) as f:
        assert_type(f, Session)
    with once(message, connection) as g:
        assert_type(g, sqlalchemy.Connection)
    with once(message, opened) as h:
        assert_type(h, sqlite3.Connection)


async def awaited(
    message: Message,
    sqlite: aiosqlite.Connection,
    postgres: "psycopg.AsyncConnection[Any]",
    pool: "psycopg_pool.AsyncConnectionPool[psycopg.AsyncConnection[Any]]",
    engine: AsyncEngine,
    maker: async_sessionmaker[AsyncSession],
    session: AsyncSession,
    connection: AsyncConnection,
) -> None:
    async with once(message, sqlite) as a:
        assert_type(a, aiosqlite.Connection)
    async with once(message, postgres) as b:
        assert_type(b, "psycopg.AsyncConnection[Any]")
    async with once(message, pool) as c:
        assert_type(c, "psycopg.AsyncConnection[Any]")
    async with once(message, engine) as d:
        assert_type(d, AsyncSession)
    async with once(message, maker) as e:
        assert_type(e, AsyncSession)
    async with once(message, session) as f:
        assert_type(f, AsyncSession)
    async with once(message, connection) as g:
        assert_type(g, AsyncConnection)
    async with once(message, opened_async) as h:
        assert_type(h, "psycopg.AsyncConnection[Any]")
"""


def mypy(code: str, folder: Path) -> str:
    (folder / "typed.py").write_text(code, "utf-8")
    words = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", "--config-file", ROOT / "pyproject.toml"]
    words += ["--cache-dir", ROOT / "var" / "mypy_documents", "typed.py"]
    return subprocess.run(words, cwd=folder, capture_output=True, text=True, check=False).stdout


@pytest.mark.slow
def test_mypy_knows_what_the_block_gets(tmp_path: Path) -> None:
    assert mypy(TYPED, tmp_path) == ""
    wrong = TYPED.replace("with once(message, engine) as d", "with once(message, engine, keeps=1) as d", 1)
    assert "keeps" in mypy(wrong, tmp_path)


@pytest.mark.parametrize("given", ["shop.db", 42, None, object()])
def test_what_is_no_database_is_refused_with_what_would_be(given: Any) -> None:
    with pytest.raises(InvalidOption, match="pass a SQLAlchemy engine"), once(delivered(1), given):
        pytest.fail("no database")


def test_messages_that_no_consumer_delivered_and_batches_of_several_queues_are_refused() -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    with pytest.raises(UsageError, match="not delivered by a consumer"):
        once(delivered(1, group=""), engine)
    with pytest.raises(UsageError, match="several queues"):
        once([delivered(1), delivered(2, queue=MessageQueue("payments", "lanemq", 4))], engine)
    with pytest.raises(UsageError, match="empty"):
        once([], engine)
    with pytest.raises(InvalidOption, match="keep"):
        once(delivered(1), engine, keep=-1)
    with pytest.raises(InvalidOption, match="letters"), once(delivered(1), engine, table="effects; DROP TABLE x"):
        pytest.fail("no such table")
    engine.dispose()


def test_lanes_have_short_names_that_compare_alike_in_every_collation() -> None:
    keys = ["order-42", "Order-42", "ORDER-42", "order-42 ", "ä", "a\0b", "#x", "x" * 200, "", "\udcff"]
    names = [lane_name(key) for key in keys]
    assert names[0] == "order-42"
    assert lane_name(None) == ""
    assert len({*names, ""}) == len(keys) + 1
    assert all(name.isascii() and name == name.lower() and len(name) <= 80 for name in names)


def test_scopes_are_told_apart_by_each_of_their_parts() -> None:
    queue = MessageQueue("t", "b", 1)
    others = [queue, queue._replace(topic="t2"), queue._replace(broker="b2"), queue._replace(queue_id=2)]
    numbers = {scope_of(group, each).number for group in ("g", "g2") for each in others}
    assert len(numbers) == 8
    assert all(-(2**63) <= number < 2**63 for number in numbers)


@pytest.mark.parametrize(
    ("style", "written"),
    [
        (Placeholders.QMARK, "SELECT ? LIKE 'x%' AND ?"),
        (Placeholders.FORMAT, "SELECT %s LIKE 'x%%' AND %s"),
        (Placeholders.NUMERIC, "SELECT :1 LIKE 'x%' AND :2"),
        (Placeholders.NAMED, "SELECT :p1 LIKE 'x%' AND :p2"),
        (Placeholders.DOLLAR, "SELECT $1 LIKE 'x%' AND $2"),
    ],
)
def test_values_are_marked_in_the_style_of_the_driver(style: Placeholders, written: str) -> None:
    assert written_for(style, "SELECT ? LIKE 'x%' AND ?") == written
    assert written_for(style, "SELECT 'x%'") == "SELECT 'x%'"


def test_the_state_of_an_error_is_found_whatever_driver_raised_it() -> None:
    class Named(Exception):
        sqlstate = "55P03"

    class Coded(Exception):
        pgcode = "55P03"

    asyncpg = Exception("adapted by SQLAlchemy")
    asyncpg.__cause__ = Named()
    errors = [Named(), Coded(), Exception({"S": "ERROR", "C": "55P03"})]
    wrapped = [DBAPIError("SELECT 1", {}, each) for each in (*errors, asyncpg)]
    assert [sql_state(each) for each in (*errors, *wrapped)] == ["55P03"] * 7
    assert sql_state(ValueError("no state")) is None


def test_the_definition_of_the_tables_can_be_run_before(tmp_path: Path) -> None:
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        connection.executescript(table_definition("sqlite"))
        connection.executescript(table_definition("sqlite"))
        before = connection.execute("SELECT sql FROM sqlite_master").fetchall()
        with once(delivered(1), connection):
            pass
        assert connection.execute("SELECT sql FROM sqlite_master").fetchall() == before
    with pytest.raises(InvalidOption, match="postgresql"):
        table_definition("oracle")
    assert "app.effects_epochs" in table_definition("postgresql", table="app.effects")
    assert tables_for(Dialect.OTHER, "effects").definition()[0].count("INDEX") == 1
