"""Two owners in their transactions at the same time, lost answers, and cleaning beside the work.

The newer owner waits for the older one, which is refused after that.
"""

import contextlib
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import psycopg
import pytest
from tests.chaos.members import until
from tests.chaos.mutants import shared_epoch
from tests.effects.forms import Form, postgres_form
from tests.effects.messages import HOUR, JumpingClock, delivered
from tests.postgres_server import Server

from lanemq.effects import AlreadyApplied, once, statements, steps, table_definition
from lanemq.errors import LeaseLost

WAITS = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock'"


@pytest.fixture
def shop(postgres: Server) -> Iterator[Form]:
    with postgres_form("psycopg", postgres.dsn) as form:
        form.apply(delivered(0, "other", epoch=1), "0")
        yield form


@pytest.fixture
def beside() -> Iterator[Callable[[Callable[[], Any]], "Future[Any]"]]:
    with ThreadPoolExecutor() as threads:
        yield threads.submit


def apply(dsn: str, offset: int, key: str, epoch: int, value: str) -> None:
    with contextlib.closing(psycopg.connect(dsn)) as connection, once(delivered(offset, key, epoch=epoch), connection):
        connection.execute(f"INSERT INTO effects_of_the_test VALUES ('{value}')")


def old_owner_applies_while_a_new_one_comes(
    shop: Form, dsn: str, beside: Callable[[Callable[[], Any]], "Future[Any]"]
) -> "Future[Any]":
    """The old owner is inside its block when the new one begins with the same message; then the old one commits."""
    with contextlib.closing(psycopg.connect(dsn)) as connection:
        with once(delivered(5, "k", epoch=1), connection):
            connection.execute("INSERT INTO effects_of_the_test VALUES ('old owner')")
            newer = beside(lambda: apply(dsn, 6, "k2", 2, "new owner"))
            until("the new owner waits or is through", lambda: shop.query(WAITS)[0][0] or newer.done())
            assert not newer.done() or newer.exception() is None
            waited = not newer.done()
        newer.result()
    assert waited, "the new owner did not wait"
    return newer


def test_a_new_owner_waits_until_the_old_one_has_committed(
    shop: Form, postgres: Server, beside: Callable[[Callable[[], Any]], "Future[Any]"]
) -> None:
    old_owner_applies_while_a_new_one_comes(shop, postgres.dsn, beside)
    with pytest.raises(AlreadyApplied):
        apply(postgres.dsn, 5, "k", 2, "new owner again")
    with pytest.raises(LeaseLost):
        apply(postgres.dsn, 6, "k", 1, "stale")
    assert shop.effects() == ["0", "new owner", "old owner"]


def test_without_the_shared_lock_an_old_owner_commits_beside_the_new_one(
    shop: Form,
    postgres: Server,
    beside: Callable[[Callable[[], Any]], "Future[Any]"],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Negative control: the epoch is read without a lock."""
    shared_epoch(monkeypatch.setattr)
    with pytest.raises(AssertionError, match="did not wait"):
        old_owner_applies_while_a_new_one_comes(shop, postgres.dsn, beside)


def test_keys_of_one_queue_do_not_wait_for_each_other(shop: Form, postgres: Server) -> None:
    with contextlib.ExitStack() as stack:
        for offset, key in enumerate(("a", "b", "c"), 1):
            connection = stack.enter_context(contextlib.closing(psycopg.connect(postgres.dsn)))
            stack.enter_context(once(delivered(offset, key, epoch=2), connection))
            connection.execute(f"INSERT INTO effects_of_the_test VALUES ('{key}')")
    assert shop.effects() == ["0", "a", "b", "c"]


def test_a_new_owner_ends_the_session_of_an_old_one_that_hangs_in_its_transaction(
    shop: Form, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(statements, "LOCK_WAIT_MS", 100)
    bystander = psycopg.connect(postgres.dsn)
    bystander.execute("SELECT 1")
    with contextlib.closing(psycopg.connect(postgres.dsn)) as frozen, contextlib.closing(bystander):

        def thaws_after_the_new_owner() -> None:
            with once(delivered(5, "k", epoch=1), frozen):
                frozen.execute("INSERT INTO effects_of_the_test VALUES ('frozen')")
                apply(postgres.dsn, 5, "k", 2, "new owner")

        with pytest.raises(psycopg.OperationalError):
            thaws_after_the_new_owner()
        assert bystander.execute("SELECT 2").fetchall() == [(2,)]
    assert shop.effects() == ["0", "new owner"]


def test_the_server_ends_the_transaction_of_a_silent_client(shop: Form, postgres: Server) -> None:
    limit = "SELECT current_setting('idle_in_transaction_session_timeout')"
    with contextlib.closing(psycopg.connect(postgres.dsn)) as connection:
        with once(delivered(5, epoch=1), connection):
            assert connection.execute(limit).fetchall() == [("1min",)]
        assert connection.execute(limit).fetchall() == [("0",)]
        connection.rollback()
        connection.execute("SET idle_in_transaction_session_timeout = '7s'")
        connection.commit()
        with once(delivered(6, epoch=1), connection):
            assert connection.execute(limit).fetchall() == [("7s",)]


def test_many_may_create_the_tables_at_once(postgres: Server) -> None:
    with postgres_form("psycopg", postgres.dsn) as form:
        gate = threading.Barrier(8)

        def first(number: int) -> None:
            gate.wait()
            apply(postgres.dsn, number, f"k{number}", 1, str(number))

        with ThreadPoolExecutor(8) as threads:
            for done in [threads.submit(first, number) for number in range(8)]:
                done.result()
        assert form.effects() == [str(number) for number in range(8)]


def test_in_sqlite_a_new_owner_waits_for_the_file(tmp_path: Path) -> None:
    def connect() -> sqlite3.Connection:
        return sqlite3.connect(tmp_path / "shop.db", timeout=0.0)

    with contextlib.closing(connect()) as old, contextlib.closing(connect()) as new:
        with (
            once(delivered(5, epoch=1), old),
            pytest.raises(sqlite3.OperationalError, match="locked"),
            once(delivered(6, "b", epoch=2), new),
        ):
            pytest.fail("two owners in one file")
        with once(delivered(6, "b", epoch=2), new):
            pass
        with pytest.raises(LeaseLost), once(delivered(6, epoch=1), old):
            pytest.fail("a stale owner")
        with pytest.raises(AlreadyApplied), once(delivered(5, epoch=2), new):
            pytest.fail("a repeat")


class LosesTheAnswer(sqlite3.Connection):
    """Commits, and then the connection is lost: its caller cannot know whether the commit arrived."""

    def commit(self) -> None:
        super().commit()
        raise sqlite3.OperationalError("the connection was lost")


def test_a_commit_whose_answer_was_lost_is_recognised_by_the_retry(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.executescript(f"CREATE TABLE effects (value TEXT); {table_definition('sqlite')}")
        with once(delivered(4), connection):
            pass

    def lost() -> None:
        connecting = contextlib.closing(sqlite3.connect(path, factory=LosesTheAnswer))
        with connecting as connection, once(delivered(5), connection):
            connection.execute("INSERT INTO effects VALUES ('5')")

    with pytest.raises(sqlite3.OperationalError, match="lost"):
        lost()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        with pytest.raises(AlreadyApplied), once(delivered(5), connection):
            pytest.fail("a repeat")
        assert connection.execute("SELECT value FROM effects").fetchall() == [("5",)]


def test_rows_are_deleted_in_portions_until_none_is_left(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = JumpingClock()
    monkeypatch.setattr(steps, "CLEAN_ROWS", 4)
    monkeypatch.setattr(statements, "CLEAN_ROWS", 4)
    with contextlib.closing(sqlite3.connect(tmp_path / "shop.db")) as connection:
        for number in range(10):
            with once(delivered(number, f"k{number}"), connection, keep=HOUR / 1000, clock=clock):
                pass
        for number in range(10, 13):
            clock.running_ms += HOUR
            with once(delivered(number, "new"), connection, clock=clock):
                pass
        clock.running_ms += HOUR
        left = []
        for number in range(13, 17):
            with once(delivered(number, "new"), connection, clock=clock):
                pass
            left.append(connection.execute("SELECT count(*) FROM lanemq_effects").fetchone()[0])
    assert left == [7, 3, 1, 1]
