"""Only a leader writes, and none of its transactions may be missing: tried on a real PostgreSQL."""

import threading
import time
from collections.abc import Callable, Iterator

import psycopg
import pytest
from tests import postgres_server

from lanemq.clock import SystemClock
from lanemq.coordinator import postgres_rows
from lanemq.coordinator.postgres_rows import PostgresRows
from lanemq.coordinator.store import NotLeading
from lanemq.core.brokering.cluster.leadership import TERM_MS, TermRow, claim
from lanemq.log.state.group_rows import Sync
from lanemq.model.errors import StorageError, UsageError

Open = Callable[[], PostgresRows]


@pytest.fixture
def url(postgres: postgres_server.Server) -> str:
    with psycopg.connect(postgres.dsn, autocommit=True) as db:
        db.execute("DROP SCHEMA IF EXISTS lanemq CASCADE")
    return postgres.dsn


@pytest.fixture
def connected(url: str) -> Iterator[Open]:
    """Connections of several coordinators."""
    opened: list[PostgresRows] = []

    def connect() -> PostgresRows:
        opened.append(PostgresRows(url, SystemClock()))
        opened[-1].connect()
        return opened[-1]

    yield connect
    for each in opened:
        each.close()


def lead(rows: PostgresRows, leader: str) -> bool:
    sight = rows.look()
    return rows.claim(sight, claim(sight.row, leader, f"{leader}:9873"))


def test_nothing_is_written_without_a_term(connected: Open) -> None:
    rows = connected()
    with pytest.raises(NotLeading, match="does not lead"):
        rows.put("name", "value")
    assert rows.get("name") is None


def test_a_leader_that_was_replaced_writes_nothing(connected: Open) -> None:
    first, second = connected(), connected()
    assert lead(first, "one")
    first.put("name", "first")
    assert lead(second, "two")
    with pytest.raises(NotLeading, match="another coordinator leads"):
        first.put("name", "late")
    assert second.get("name") == "first"
    assert first.term is not None
    assert first.term.ended
    second.put("name", "second")


def test_only_the_row_that_was_seen_is_replaced(connected: Open) -> None:
    leader, contender = connected(), connected()
    lead(leader, "one")
    sight = contender.look()
    leader.renew()
    assert not contender.claim(sight, claim(sight.row, "two", ""))
    assert not contender.claim(contender.look()._replace(run="another"), claim(leader.look().row, "two", ""))
    leader.renew()


def test_of_two_that_contend_one_leads(connected: Open) -> None:
    one, two = connected(), connected()
    seen = one.look()
    assert two.look() == seen
    claims = [one.claim(seen, claim(seen.row, "one", "")), two.claim(seen, claim(seen.row, "two", ""))]
    assert claims == [True, False]


def test_a_leader_whose_store_lost_a_commit_writes_nothing(connected: Open, url: str) -> None:
    rows = connected()
    lead(rows, "one")
    rows.put("name", "kept")
    rows.put("name", "lost")
    with psycopg.connect(url, autocommit=True) as db:  # as a replica without the last commit
        db.execute("UPDATE lanemq.leader SET serial = serial - 1; UPDATE lanemq.kv SET value = 'kept'")
    with pytest.raises(NotLeading, match="lost commits"):
        rows.put("name", "next")


def test_a_dump_that_is_restored_is_another_run_of_the_server(connected: Open, url: str) -> None:
    """It may be older than what a leader has confirmed since, although the server was not restarted."""
    before, restored = connected().look(), "SELECT * FROM lanemq.leader"
    with psycopg.connect(url, autocommit=True) as db:
        rows = db.execute(restored).fetchall()
        db.execute("DROP SCHEMA lanemq CASCADE")
        after = connected()
        db.execute("DELETE FROM lanemq.leader")
        db.cursor().executemany("INSERT INTO lanemq.leader VALUES (%s, %s, %s, %s, %s)", rows)
    assert after.look().row == before.row
    assert after.look().run != before.run


def test_the_same_term_of_another_leader_is_another_one(connected: Open, url: str) -> None:
    """A lost commit can issue the same term twice."""
    rows = connected()
    lead(rows, "one")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE lanemq.leader SET leader = 'two'")
    with pytest.raises(NotLeading):
        rows.renew()


def test_without_the_id_it_would_write(connected: Open, url: str) -> None:
    """The control."""
    rows = connected()
    lead(rows, "one")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE lanemq.leader SET leader = 'two'")
        db.execute(
            "CREATE OR REPLACE FUNCTION lanemq.advance(wanted_term bigint, wanted_leader text, wanted_serial bigint)"
            " RETURNS void LANGUAGE plpgsql AS $$ BEGIN UPDATE lanemq.leader SET serial = serial + 1"
            " WHERE term = wanted_term AND serial = wanted_serial; END $$"
        )
    rows.renew()


def test_a_term_that_ran_out_writes_nothing(connected: Open) -> None:
    rows = connected()
    sight = rows.look()
    rows.claim(sight, claim(sight.row, "one", ""))
    assert rows.term is not None
    assert not rows.term.check(now=rows._clock.now() + TERM_MS)
    with pytest.raises(NotLeading, match="confirmed nothing"):
        rows.renew()


def test_who_hands_over_leaves_a_row_without_a_leader(connected: Open) -> None:
    rows = connected()
    lead(rows, "one")
    rows.put("name", "value")
    rows.hand_over()
    assert connected().look().row == TermRow(1, "", 2, "one:9873")
    with pytest.raises(NotLeading, match="handed over"):
        rows.renew()


def test_a_commit_whose_outcome_is_not_known_ends_the_term(connected: Open, url: str) -> None:
    rows = connected()
    lead(rows, "one")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name LIKE 'lanemq%'")
    with pytest.raises(NotLeading):
        rows.put("name", "value")
    with pytest.raises(NotLeading):
        rows.put("name", "value")
    rows.connect()
    with pytest.raises(NotLeading):
        rows.put("name", "value")


def test_a_refused_change_leaves_the_term_and_the_row_as_they_were(connected: Open) -> None:
    rows = connected()
    lead(rows, "one")
    before = rows.look()
    with pytest.raises(StorageError, match="refused a change"), rows.transaction(Sync.FULL) as db:
        db.execute("INSERT INTO kv (name, value) VALUES (?, ?)", ("name", None))
    assert rows.look() == before
    rows.put("name", "value")


def test_commits_wait_for_the_disk_whatever_the_role_says(connected: Open, url: str) -> None:
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("ALTER ROLE CURRENT_USER SET synchronous_commit = off")
    try:
        rows = connected()
        assert rows.rows("SHOW synchronous_commit") == [("on",)]
        rows.rows("SELECT set_config('synchronous_commit', 'off', false)")  # as another session of a pooler
        lead(rows, "one")
        assert rows.rows("SHOW synchronous_commit") == [("on",)]
    finally:
        with psycopg.connect(url, autocommit=True) as db:
            db.execute("ALTER ROLE CURRENT_USER RESET synchronous_commit")


def test_a_commit_that_its_standby_did_not_confirm_is_not_known(
    connected: Open, url: str, postgres: postgres_server.Server
) -> None:
    """The wait for the standby is cancelled; PostgreSQL answers with success and a warning."""
    rows = connected()
    lead(rows, "one")
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("ALTER SYSTEM SET synchronous_standby_names = 'nobody'")
        db.execute("SELECT pg_reload_conf()")
        try:
            _until(lambda: db.execute("SHOW synchronous_standby_names").fetchone() == ("nobody",))
            failures: list[Exception] = []
            writing = threading.Thread(target=lambda: failures.append(_error(lambda: rows.put("name", "value"))))
            writing.start()
            waits = "SELECT pg_cancel_backend(pid) FROM pg_stat_activity WHERE wait_event = 'SyncRep'"
            _until(lambda: db.execute(waits).fetchall())
            writing.join(10)
        finally:
            db.execute("ALTER SYSTEM RESET synchronous_standby_names")
            db.execute("SELECT pg_reload_conf()")
            _until(lambda: db.execute("SHOW synchronous_standby_names").fetchone() == ("",))
    assert isinstance(failures[0], NotLeading)
    assert "not confirmed by the standby" in str(failures[0])


def test_a_frozen_leader_does_not_block_its_successor(connected: Open) -> None:
    """It is frozen while it gathers a transaction: nothing of it is at the server yet."""
    leader, successor = connected(), connected()
    lead(leader, "one")
    began = time.monotonic()
    with pytest.raises(NotLeading), leader.transaction(Sync.FULL) as frozen:  # noqa: PT012 - it fails at the end
        frozen.execute("INSERT INTO kv (name, value) VALUES (?, ?)", ("name", "late"))
        assert lead(successor, "two")
    assert time.monotonic() - began < 1
    assert successor.get("name") is None


def test_a_silent_server_is_cut_off(connected: Open) -> None:
    rows = connected()
    lead(rows, "one")
    timer = threading.Timer(0.3, rows.cut)
    timer.start()
    began = time.monotonic()
    with pytest.raises(NotLeading):
        rows.rows("SELECT pg_sleep(30)")
    assert time.monotonic() - began < 10


def test_tables_of_another_version_are_refused_and_stay(connected: Open, url: str) -> None:
    connected()
    with psycopg.connect(url, autocommit=True) as db:
        db.execute("UPDATE lanemq.layout SET version = 99")
    with pytest.raises(UsageError, match="has tables of layout 99"):
        connected()


def test_several_make_the_tables_at_the_same_time(url: str) -> None:
    several = [PostgresRows(url, SystemClock()) for _ in range(4)]
    failures: list[Exception | None] = []
    threads = [threading.Thread(target=lambda each=each: failures.append(_error(each.connect))) for each in several]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == [None] * 4
    assert {each.look().row for each in several} == {TermRow()}
    for each in several:
        each.close()


def test_errors_do_not_show_the_password() -> None:
    rows = PostgresRows("postgresql://lanemq:secret@127.0.0.1:1/groups", SystemClock())
    assert rows.shown == "PostgreSQL 127.0.0.1 database groups"
    with pytest.raises(StorageError, match="cannot be used") as caught:
        rows.connect()
    assert "secret" not in str(caught.value)


def test_a_server_that_does_not_name_itself_still_serves(connected: Open, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(postgres_rows, "_HOME", "no_such_function()")
    rows = connected()
    assert rows.home() == ""
    assert lead(rows, "one")


def _error(job: Callable[[], object]) -> Exception | None:
    try:
        job()
    except StorageError as error:
        return error
    return None


def _until(condition: Callable[[], object]) -> None:
    end = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)
