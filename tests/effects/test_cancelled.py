"""`once` with a connection that it opens, under a time-out of the program (`asyncio.timeout`) that strikes anywhere."""

import asyncio
from pathlib import Path

import aiosqlite
import pytest
from tests.effects.messages import delivered

from lanemq.effects import once


@pytest.mark.parametrize("statement", ["BEGIN", "INSERT", "RELEASE", "ROLLBACK"])
@pytest.mark.parametrize("fails", [False, True], ids=["block succeeds", "block fails"])
def test_a_cancelled_block_gives_its_connection_back(tmp_path: Path, statement: str, fails: bool) -> None:
    """With a pool, each one that is not given back is missing for ever, and it holds the row of its key."""
    asyncio.run(_cancelled_at(statement, tmp_path / "shop.db", fails=fails))


async def _cancelled_at(statement: str, path: Path, *, fails: bool) -> None:
    opened: list[aiosqlite.Connection] = []
    cancelled = False

    async def connect() -> aiosqlite.Connection:
        connection = await aiosqlite.connect(path)
        loop = asyncio.get_running_loop()
        await connection.set_trace_callback(lambda sql: loop.call_soon_threadsafe(cancel, sql))
        opened.append(connection)
        return connection

    def cancel(sql: str) -> None:
        nonlocal cancelled
        if not cancelled and sql.startswith(statement):
            cancelled = True
            handler.cancel()

    async def apply() -> None:
        async with once(delivered(5), connect) as connection:
            await connection.execute("CREATE TABLE IF NOT EXISTS effects (value TEXT)")
            if fails:
                raise ZeroDivisionError

    async with once(delivered(4), lambda: aiosqlite.connect(path)):
        pass  # creates the tables
    handler = asyncio.create_task(apply())
    await asyncio.wait([handler])
    assert len(opened) == 1
    try:
        with pytest.raises(ValueError, match="no active connection"):
            await opened[0].execute("SELECT 1")
    finally:
        await opened[0].close()
    async with once(delivered(6), connect) as connection:
        await connection.execute("CREATE TABLE IF NOT EXISTS effects (value TEXT)")
