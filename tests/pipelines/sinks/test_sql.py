"""The database sinks: types, existing tables, and databases that are down or busy."""

import sqlite3
import sys
from contextlib import closing
from datetime import UTC, date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from tests.pipelines.sinks.targets import (
    CHANGES,
    EVENTS,
    KEYED,
    QUERY,
    Died,
    PostgresTarget,
    SqliteTarget,
    Target,
    changes,
    dies_at,
    named,
)  # fmt: skip
from tests.postgres_server import Server

from lanemq.model.errors import InvalidOption, RequestTimedOut, SinkFenced, StateLost, StorageError, TransportError
from lanemq.pipelines import PostgresSink, SqliteSink
from lanemq.pipelines.ports import Append, Merge, SinkRun, TableRows
from lanemq.pipelines.sinks import postgres, sqlite
from lanemq.pipelines.sinks.exact_sink import arrow_schema

both = pytest.mark.parametrize("target", ["sqlite", "postgres"], indirect=True)

EVERYTHING = t.StructType(
    [
        t.StructField("yes", t.BooleanType()),
        t.StructField("small", t.ShortType()),
        t.StructField("n", t.IntegerType()),
        t.StructField("big", t.LongType()),
        t.StructField("f", t.DoubleType()),
        t.StructField("money", t.DecimalType(10, 2)),
        t.StructField("text", t.StringType()),
        t.StructField("bytes", t.BinaryType()),
        t.StructField("day", t.DateType()),
        t.StructField("at", t.TimestampType()),
        t.StructField("tags", t.ArrayType(t.StringType())),
        t.StructField("properties", t.MapType(t.StringType(), t.LongType())),
        t.StructField("inner", t.StructType().add("at", t.TimestampType()).add("x", t.DoubleType())),
    ]
)
MOMENT = datetime(2024, 2, 29, 23, 59, 59, 123456, UTC)
FULL: dict[str, Any] = {
    "yes": True, "small": -5, "n": 2**31 - 1, "big": -(2**63), "f": 0.1, "money": Decimal("-12.30"),
    "text": 'quote " comma , line \n backslash \\N é 😀', "bytes": b"\x00\xff\\",
    "day": date(2024, 2, 29), "at": MOMENT, "tags": ["a", None, ""], "properties": [("k", 1)],
    "inner": {"at": MOMENT, "x": 1.5},
}  # fmt: skip
EMPTY: dict[str, Any] = {**dict.fromkeys(FULL), "text": "", "tags": [], "bytes": b""}


def of_everything(*rows: dict[str, Any]) -> TableRows:
    table = pa.Table.from_pylist(list(rows), schema=arrow_schema(EVERYTHING))
    # As a fold or a filter may leave it: empty chunks before, between and after.
    return TableRows(EVERYTHING, pa.concat_tables([table[:0], table[:1], table[:0], table[1:], table[:0]]))


@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_postgres_keeps_every_type(target: PostgresTarget) -> None:
    target.opened(schema=EVERYTHING).write(of_everything(FULL, EMPTY, dict.fromkeys(FULL)), named(1, 0))
    full, empty, nothing = target.ask(f"SELECT * FROM {target.schema}.rows")
    said = "2024-02-29T23:59:59.123456Z"
    assert full == (*tuple(FULL.values())[:10], ["a", None, ""], {"k": 1}, {"at": said, "x": 1.5})
    assert empty == (None,) * 6 + ("", b"", None, None, [], None, None)
    assert nothing == (None,) * 13


@pytest.mark.parametrize("target", ["sqlite"], indirect=True)
def test_sqlite_keeps_every_type_or_writes_it_as_text(target: SqliteTarget) -> None:
    target.opened(schema=EVERYTHING).write(of_everything(FULL, EMPTY, dict.fromkeys(FULL)), named(1, 0))
    full, empty, nothing = target.ask("SELECT * FROM rows")
    assert full == (
        1, -5, 2**31 - 1, -(2**63), 0.1, "-12.30", FULL["text"], b"\x00\xff\\", "2024-02-29",
        "2024-02-29 23:59:59.123456Z", '["a",null,""]', '{"k":1}', '{"at":"2024-02-29T23:59:59.123456Z","x":1.5}',
    )  # fmt: skip
    assert empty == (None,) * 6 + ("", b"", None, None, "[]", None, None)
    assert nothing == (None,) * 13
    assert target.ask("SELECT julianday(at) > 0 FROM rows LIMIT 1") == [(1,)]


@both
def test_text_sequences_compare_byte_by_byte(target: Target) -> None:
    """A language's collation would put "a" before "B"."""
    schema = t.StructType([*(f for f in CHANGES if f.name != "_sequence"), t.StructField("_sequence", t.StringType())])
    if isinstance(target, PostgresTarget):
        target.ask(
            f"CREATE TABLE {target.schema}.rows (id bigint PRIMARY KEY, text text, _deleted boolean, "
            f'_sequence text COLLATE "und-x-icu")'
        )
    sink = target.opened(schema=schema, how=KEYED)
    for number, sequence in enumerate(["B", "a", "C"]):
        row = {"id": 1, "text": sequence, "_sequence": sequence, "_deleted": False}
        sink.write(TableRows(schema, pa.Table.from_pylist([row], schema=arrow_schema(schema))), named(1, number))
    assert target.changed() == {1: "a"}


@both
def test_an_existing_table_is_used_and_gets_columns(target: Any) -> None:
    name = "rows" if isinstance(target, SqliteTarget) else f"{target.schema}.rows"
    target.ask(f"CREATE TABLE {name} (n BIGINT, note TEXT DEFAULT 'mine', shard VARCHAR)")
    target.opened().write(target.batch_rows(a=[1]), named(1, 0))
    assert target.ask(f"SELECT n, note, shard, text FROM {name}") == [(1, "mine", "a", "event 1")]


@pytest.mark.parametrize(
    ("columns", "schema", "how", "said"),
    [
        ("n TEXT, shard TEXT, text TEXT", EVENTS, Append(), "column n is text"),
        ("n BIGINT, shard BIGINT, text TEXT", EVENTS, Append(), "column shard is"),
        ("n BIGINT, shard TEXT, text TEXT, must BIGINT NOT NULL", EVENTS, Append(), "must .* needs a value"),
        ("n BIGINT, shard TEXT, text TEXT, _sequence BIGINT, _deleted BOOLEAN", EVENTS, Append(), "merged by key"),
        ("id BIGINT NOT NULL, text TEXT, _sequence BIGINT, _deleted BOOLEAN", CHANGES, KEYED, "is it unique"),
        ("id BIGINT PRIMARY KEY, text TEXT, _sequence BIGINT", CHANGES, KEYED, "column _deleted is not in"),
    ],
)
@both
def test_a_table_that_does_not_fit_is_refused_at_open(
    target: Any, columns: str, schema: t.StructType, how: Append | Merge, said: str
) -> None:
    name = "rows" if isinstance(target, SqliteTarget) else f"{target.schema}.rows"
    target.ask(f"CREATE TABLE {name} ({columns})")
    with pytest.raises(InvalidOption, match=said):
        target.opened(schema=schema, how=how)


BY_NAME = t.StructType([t.StructField("id", t.StringType(), False), *CHANGES.fields[1:]])
LOOSE = "CREATE COLLATION {schema}.loose (provider = icu, locale = 'und-u-ks-level2', deterministic = false)"


def named_rows(*keys: str) -> TableRows:
    rows = [{"id": key, "text": key, "_sequence": 1, "_deleted": False} for key in keys]
    return TableRows(BY_NAME, pa.Table.from_pylist(rows, schema=arrow_schema(BY_NAME)))


@pytest.mark.parametrize("index", [False, True], ids=["column", "index"])
@both
def test_a_key_that_compares_loosely_is_refused_at_open(target: Any, index: bool) -> None:
    """Two rows would become one: "a" and "A"."""
    name, collation = "rows", "NOCASE"
    if isinstance(target, PostgresTarget):
        name, collation = f"{target.schema}.rows", f"{target.schema}.loose"
        target.ask(LOOSE.format(schema=target.schema))
    id_column = "id TEXT NOT NULL" if index else f"id TEXT COLLATE {collation} PRIMARY KEY"
    target.ask(f"CREATE TABLE {name} ({id_column}, text TEXT, _sequence BIGINT, _deleted BOOLEAN)")
    if index:
        target.ask(f"CREATE UNIQUE INDEX by_id ON {name} (id COLLATE {collation})")
    with pytest.raises(InvalidOption, match=r"id of table .*rows compares texts loosely \(collation .*loose|nocase"):
        target.opened(schema=BY_NAME, how=KEYED)


@both
def test_a_key_that_compares_exactly_is_accepted(target: Any) -> None:
    name = "rows" if isinstance(target, SqliteTarget) else f"{target.schema}.rows"
    target.ask(f"CREATE TABLE {name} (id TEXT, text TEXT, _sequence BIGINT, _deleted BOOLEAN)")
    target.ask(f"CREATE UNIQUE INDEX by_id ON {name} (id)")
    target.opened(schema=BY_NAME, how=KEYED).write(named_rows("a", "A"), named(1, 0))
    assert target.changed() == {"a": "a", "A": "A"}


ALTERED = [
    ("n REAL, shard TEXT, text TEXT", "column n is real in table"),
    ("n BIGINT, shard TEXT, text TEXT, must BIGINT NOT NULL", "column must .* needs a value"),
    ("n BIGINT, shard TEXT", "column text was removed from table .*rows while the pipeline ran"),
    (None, "table .*rows is gone"),
]


@pytest.mark.parametrize(("columns", "said"), ALTERED, ids=["type", "required", "removed", "dropped"])
@pytest.mark.parametrize("staged", [False, True], ids=["by the driver", "by tasks"])
@both
def test_a_table_that_another_program_changes_during_a_run_is_refused(
    target: Any, columns: str | None, said: str, staged: bool
) -> None:
    """Otherwise a number that the column cannot hold would be rounded, without a word."""
    name = "rows" if isinstance(target, SqliteTarget) else f"{target.schema}.rows"
    sink = target.opened()
    assert sink.write(target.batch_rows(a=[1]), named(1, 0))
    target.ask(f"DROP TABLE {name}")
    if columns is not None:
        target.ask(f"CREATE TABLE {name} ({columns})")
    rows = target.batch_rows(a=[2**24 + 1])
    with pytest.raises((InvalidOption, StateLost), match=said):
        sink._commit(named(1, 1), sink._opened(), 0, lambda _: 0) if staged else sink.write(rows, named(1, 1))
    assert columns is None or target.ask(f"SELECT * FROM {name}") == []


REINDEXED = [
    ("CREATE UNIQUE INDEX other ON {name} (id COLLATE {loose})", r"id of table .*rows compares texts loosely"),
    (None, r"cannot be merged by id; is it unique\?"),
]


@pytest.mark.parametrize(("index", "said"), REINDEXED, ids=["loose", "none"])
@both
def test_a_unique_index_that_another_program_changes_during_a_run_is_refused(
    target: Any, index: str | None, said: str
) -> None:
    """A loose one would make one row of "a" and "A", without a word."""
    name, loose = "rows", "NOCASE"
    if isinstance(target, PostgresTarget):
        name, loose = f"{target.schema}.rows", f"{target.schema}.loose"
        target.ask(LOOSE.format(schema=target.schema))
    target.ask(f"CREATE TABLE {name} (id TEXT, text TEXT, _sequence BIGINT, _deleted BOOLEAN)")
    target.ask(f"CREATE UNIQUE INDEX by_id ON {name} (id)")
    sink = target.opened(schema=BY_NAME, how=KEYED)
    assert sink.write(named_rows("a"), named(1, 0))
    target.ask(f"DROP INDEX {name.replace('rows', 'by_id')}")
    if index is not None:
        target.ask(index.format(name=name, loose=loose))
    for _ in range(2):
        with pytest.raises(InvalidOption, match=said):
            sink.write(named_rows("A"), named(1, 1))
    assert target.changed() == {"a": "a"}


@both
def test_a_column_that_another_program_adds_during_a_run_changes_nothing(target: Any) -> None:
    name = "rows" if isinstance(target, SqliteTarget) else f"{target.schema}.rows"
    sink = target.opened()
    target.ask(f"ALTER TABLE {name} ADD COLUMN note TEXT")
    assert sink.write(target.batch_rows(a=[1, 2]), named(1, 0))
    assert target.ask(f"SELECT n, note FROM {name} ORDER BY n") == [(1, None), (2, None)]


@both
def test_columns_are_not_added_without_evolve(target: Any) -> None:
    target.opened()
    strict = target.make()
    target.sinks.append(strict)
    strict._evolve = False
    wider = t.StructType([*EVENTS, t.StructField("extra", t.LongType())])
    with pytest.raises(InvalidOption, match="column extra is not in table"):
        strict.open(SinkRun(None, "q", 1, wider, Append()))


@both
def test_sink_and_dead_letters_have_separate_ledger_entries(target: Any) -> None:
    """They share the checkpoint, and often the database."""
    main = target.opened()
    main.write(target.batch_rows(a=[1]), named(1, 5))
    if isinstance(target, SqliteTarget):
        other: Any = SqliteSink(target.folder / "rows.db", "dead")
    else:
        other = PostgresSink(target.dsn, f"{target.schema}.dead")
    target.sinks.append(other)
    other.open(SinkRun(None, "3f1c-query", 1, EVENTS, Append()))
    assert other.applied(QUERY, {}) is None


def test_a_busy_sqlite_file_is_waited_for_until_wait_is_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqlite, "BUSY_SECONDS", 0.01)
    target = SqliteTarget(tmp_path)
    sink = target.opened()
    sink.close()
    holder = sqlite3.connect(tmp_path / "rows.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 3:
            holder.execute("ROLLBACK")

    sink = target.make()
    target.sinks.append(sink)
    sink._retrying._pause = pause
    sink.open(SinkRun(None, "3f1c-query", 1, EVENTS, Append()))  # type: ignore[arg-type]
    assert len(pauses) == 3
    holder.execute("BEGIN IMMEDIATE")
    impatient = SqliteSink(tmp_path / "rows.db", "rows", wait=0)
    with pytest.raises(RequestTimedOut, match="another transaction has it"):
        impatient.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]
    impatient.close()
    holder.close()
    target.close()


def test_a_file_that_is_not_a_database_is_named_in_the_error(tmp_path: Path) -> None:
    (tmp_path / "rows.db").write_bytes(b"this is text, not a database file" * 50)
    sink = SqliteSink(tmp_path / "rows.db", "rows")
    with pytest.raises(StorageError, match=r"rows\.db"):
        sink.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]
    sink.close()


@pytest.mark.parametrize("step", ["ledger locked", "rows in", "recorded"])
@pytest.mark.parametrize("target", ["postgres"], indirect=True)
def test_a_connection_lost_within_a_transaction_is_reopened(target: PostgresTarget, step: str) -> None:
    sink = target.opened()
    ended: list[str] = []

    def end(name: str) -> None:
        if name == step and not ended:
            ended.append(name)
            target.ask(f"SELECT pg_terminate_backend({sink._connection.info.backend_pid}, 5000)")

    sink.reached = end
    assert sink.write(target.batch_rows(a=[1, 2]), named(1, 0))
    assert (ended, target.numbers(), sink.applied(QUERY, {})) == ([step], [1, 2], 0)


def test_a_server_that_restarts_is_waited_for(tmp_path: Path, postgres: Server) -> None:
    target = PostgresTarget(tmp_path, postgres.dsn)
    sink = target.opened()
    sink.write(target.batch_rows(a=[1]), named(1, 0))
    postgres.stop()
    sink._retrying._pause = lambda seconds: postgres.start()
    assert sink.write(target.batch_rows(a=[2]), named(1, 1))
    assert target.numbers() == [1, 2]
    target.close()


def test_a_missing_server_is_waited_for_but_a_refusal_is_not(tmp_path: Path, postgres: Server) -> None:
    nowhere = PostgresSink(f"host={tmp_path} user=lanemq dbname=postgres", "rows", wait=0)
    with pytest.raises(TransportError):
        nowhere.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]
    refused = PostgresSink(postgres.dsn.replace("dbname=postgres", "dbname=missing"), "rows")
    with pytest.raises(InvalidOption, match="does not exist"):
        refused.open(SinkRun(None, "q", 1, EVENTS, Append()))  # type: ignore[arg-type]


@pytest.mark.parametrize("at", ["ledger locked", "rows in", "recorded"])
def test_a_run_that_hangs_in_its_transaction_is_ended_by_its_successor_and_refused(
    tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch, at: str
) -> None:
    monkeypatch.setattr("lanemq.pipelines.sinks.postgres_session.LOCK_MS", 50)
    target = PostgresTarget(tmp_path, postgres.dsn)
    old = target.opened(epoch=1)
    successors: list[Any] = []

    def hang(step: str) -> None:
        if step == at and not successors:
            successors.append(target.opened(epoch=2))

    old.reached = hang
    with pytest.raises(SinkFenced):
        old.write(target.batch_rows(a=[1]), named(1, 0))
    assert successors[0].applied(QUERY, {}) is None
    assert successors[0].write(target.batch_rows(a=[1]), named(2, 0))
    assert target.numbers() == [1]
    target.close()


def test_an_older_run_that_opens_late_ends_no_session(
    tmp_path: Path, postgres: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("lanemq.pipelines.sinks.postgres_session.LOCK_MS", 50)
    target = PostgresTarget(tmp_path, postgres.dsn)
    new = target.opened(epoch=2)
    refused: list[bool] = []

    def come_late(step: str) -> None:
        if step == "rows in":
            with pytest.raises(SinkFenced):
                target.opened(epoch=1)
            refused.append(True)

    new.reached = come_late
    assert new.write(target.batch_rows(a=[1]), named(2, 0))
    assert refused == [True]
    target.close()


def test_a_row_that_postgres_cannot_store_changes_nothing(tmp_path: Path, postgres: Server) -> None:
    target = PostgresTarget(tmp_path, postgres.dsn)
    sink = PostgresSink(target.dsn, f"{target.schema}.rows", nul="fail")
    target.sinks.append(sink)
    sink.open(SinkRun(None, QUERY, 1, CHANGES, KEYED))  # type: ignore[arg-type]
    with pytest.raises(StorageError, match=r"NUL, which PostgreSQL cannot store \(1 of column text\)"):
        sink.write(changes((1, "nul \0", 1, False)), named(1, 0))
    assert sink.write(changes((1, "fine", 1, False)), named(1, 0))
    assert target.changed() == {1: "fine"}
    target.close()


def test_a_crash_leaves_no_lock(tmp_path: Path, postgres: Server) -> None:
    target = PostgresTarget(tmp_path, postgres.dsn)
    dying = target.opened()
    dies_at(dying, 2)
    with pytest.raises(Died):
        dying.write(target.batch_rows(a=[1]), named(1, 0))
    assert target.opened(epoch=2).applied(QUERY, {}) is None
    target.close()


def test_without_psycopg_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(InvalidOption, match="install what the extra `postgres` has: pip install 'psycopg"):
        PostgresSink("host=nowhere", "rows")


@pytest.mark.parametrize("name", ["", "a.", ".b", "what?"])
def test_invalid_table_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidOption, match="write a name"):
        SqliteSink("rows.db", name)


def test_types_without_a_postgres_type_are_refused() -> None:
    with pytest.raises(InvalidOption, match="cast it to text"):
        postgres.column_type(pa.duration("us"))


def test_a_database_that_is_restored_during_a_run_is_refused(tmp_path: Path) -> None:
    """As a server does that comes back from an older backup within `wait`: the next batch would hide the loss."""
    target = SqliteTarget(tmp_path)
    sink = target.opened()
    for number in range(2):
        assert sink.write(target.batch_rows(a=[number]), named(1, number))
    with closing(sqlite3.connect(tmp_path / "rows.db")) as other, other:
        other.execute("DELETE FROM rows WHERE n = 1")
        other.execute("UPDATE lanemq_ledger SET batch = 0 WHERE batch = 1")
    for _ in range(2):
        with pytest.raises(StateLost, match="has lost batches that this run has written"):
            sink.write(target.batch_rows(a=[2]), named(1, 2))
    assert target.numbers() == [0]
    target.close()
