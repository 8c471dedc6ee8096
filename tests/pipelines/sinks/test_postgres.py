"""PostgreSQL columns with limits, and texts with NUL: no value is rounded or cut, and none keeps a pipeline down."""

import logging
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import types as t
from tests.pipelines.sinks.targets import CHANGES, PostgresTarget, changes, named
from tests.postgres_server import Server

from lanemq.model.errors import InvalidOption, StorageError
from lanemq.pipelines import PostgresSink, open_sink
from lanemq.pipelines.ports import Append, Merge, SinkRun, TableRows
from lanemq.pipelines.sinks.exact_sink import arrow_schema
from lanemq.pipelines.sinks.postgres_rows import without_nul

MONEY = t.DecimalType(10, 2)
UTC, LOCAL = t.TimestampType(), t.TimestampNTZType()
TEXT = t.StringType()
AMONG = t.MapType(TEXT, TEXT)


def refused_or_taken(target: PostgresTarget, column: str, kind: t.DataType, trusted: tuple[str, ...] = ()) -> str:
    target.ask(f"DROP TABLE IF EXISTS {target.schema}.rows")
    target.ask(f"CREATE TABLE {target.schema}.rows (it {column})")
    sink = PostgresSink(target.dsn, f"{target.schema}.rows", trust_columns=trusted)
    try:
        sink.open(SinkRun(None, "q", 1, t.StructType([t.StructField("it", kind)]), Append()))  # type: ignore[arg-type]
    except InvalidOption as error:
        return str(error)
    finally:
        sink.close()
    return "taken"


def test_a_column_that_takes_only_some_values_is_refused_at_open(tmp_path: Path, postgres: Server) -> None:
    target = PostgresTarget(tmp_path, postgres.dsn)
    cases: list[tuple[str, t.DataType, bool]] = [
        ("numeric(4,1)", MONEY, False),  # 1.25 would be stored as 1.3
        ("numeric(10,1)", MONEY, False),
        ("numeric(10,3)", MONEY, False),  # one digit less before the point
        ("numeric(10,2)", MONEY, True),
        ("numeric(11,3)", MONEY, True),
        ("numeric(1000,500)", MONEY, True),
        ("numeric(20,-2)", MONEY, False),
        ("numeric", MONEY, True),
        ("numeric(10)", t.IntegerType(), True),
        ("numeric(9)", t.IntegerType(), False),
        ("numeric(18)", t.LongType(), False),
        ("numeric(19)", t.LongType(), True),
        ("numeric(20,-1)", t.LongType(), False),
        ("varchar(5)", TEXT, False),
        ("char(5)", TEXT, False),
        ("char", TEXT, False),
        ("varchar", TEXT, True),
        ("uuid", TEXT, False),
        ("json", TEXT, False),
        ("jsonb", TEXT, False),
        ("json", AMONG, True),
        ("jsonb", AMONG, True),
        ("timestamptz(3)", UTC, False),
        ("timestamptz(6)", UTC, True),
        ("timestamptz", UTC, True),
        ("timestamp(0)", LOCAL, False),
        ("timestamp", LOCAL, True),
    ]
    wrong = [
        (column, kind.simpleString(), said)
        for column, kind, fits in cases
        if ((said := refused_or_taken(target, column, kind)) == "taken") != fits
    ]
    assert wrong == []
    assert "column it is numeric(4,1) in table" in refused_or_taken(target, "numeric(4,1)", MONEY)


def test_the_sink_accepts_the_tables_that_it_creates(tmp_path: Path, postgres: Server) -> None:
    target = PostgresTarget(tmp_path, postgres.dsn)
    kinds = [MONEY, t.DecimalType(38, 38), t.LongType(), t.ByteType(), TEXT, UTC, LOCAL, AMONG, t.BinaryType()]
    schema = t.StructType([t.StructField(f"c{at}", kind) for at, kind in enumerate(kinds)])
    target.opened(schema=schema).close()
    target.opened(epoch=2, schema=schema).close()


def test_trusted_columns_accept_texts(tmp_path: Path, postgres: Server) -> None:
    """Many tables have a uuid as key, and neither Spark nor Arrow has such a type."""
    target = PostgresTarget(tmp_path, postgres.dsn)
    target.ask(f"CREATE TYPE {target.schema}.colour AS ENUM ('red', 'blue')")
    target.ask(f"CREATE DOMAIN {target.schema}.short AS text CHECK (length(VALUE) < 9)")
    target.ask(
        f"CREATE TABLE {target.schema}.rows (id uuid PRIMARY KEY, doc jsonb, code varchar(3), "
        f"colour {target.schema}.colour, short {target.schema}.short, _sequence bigint, _deleted boolean)"
    )
    texts = ("id", "doc", "code", "colour", "short")
    schema = t.StructType([*(t.StructField(name, TEXT, name != "id") for name in texts), *CHANGES.fields[-2:]])

    def rows(at: int, **values: str | None) -> TableRows:
        found = [{"id": f"{7:032x}", "_sequence": at, "_deleted": False, **values}]
        return TableRows(schema, pa.Table.from_pylist(found, schema=arrow_schema(schema, ("id",), loose=True)))

    with pytest.raises(InvalidOption, match=r"column id is uuid .* trust_columns=\['id'\]"):
        target.opened(schema=schema, how=Merge(("id",)))
    sink = PostgresSink(target.dsn, f"{target.schema}.rows", trust_columns=texts)
    target.sinks.append(sink)
    sink.open(SinkRun(None, "q", 1, schema, Merge(("id",))))  # type: ignore[arg-type]
    batches = [named(1, at, "q") for at in range(3)]
    sink.write(rows(1, doc='{"a": 1}', code="abc", colour="red", short="s"), batches[0])
    sink.write(rows(2, doc='{"a": "\\u0000"}', code=None, colour="blue", short="s"), batches[1])
    (found,) = target.ask(f"SELECT id::text, doc, code, colour::text, _sequence FROM {target.schema}.rows")
    assert found == ("00000000-0000-0000-0000-000000000007", {"a": "\ufffd"}, None, "blue", 2)
    for bad in ({"code": "abcd"}, {"colour": "green"}, {"id": "x"}, {"doc": "{"}, {"short": "far too long"}):
        (name,) = bad
        with pytest.raises(StorageError, match=rf"COPY .* column {name}.*trust_columns"):
            sink.write(rows(3, **bad), batches[2])
    twice = pa.concat_tables([rows(3).rows, rows(4, id=found[0]).rows])
    with pytest.raises(StorageError, match="second time"):
        sink.write(TableRows(schema, twice), batches[2])
    target.close()


def test_trust_does_not_allow_columns_that_round(tmp_path: Path, postgres: Server) -> None:
    target = PostgresTarget(tmp_path, postgres.dsn)
    target.ask(f"CREATE DOMAIN {target.schema}.price AS numeric(4,1)")
    cases = [(column, kind) for column in ("numeric(4,1)", "timestamptz(0)", "name", "numeric(4,1)[]", "price")
             for kind in (TEXT, MONEY)]  # fmt: skip
    for column, kind in cases:
        said = refused_or_taken(target, column.replace("price", f"{target.schema}.price"), kind, ("it",))
        assert "does not take every value" in said, (column, kind)
        assert "trust_columns" not in said


def test_a_missing_trusted_column_is_named(tmp_path: Path, postgres: Server) -> None:
    target = PostgresTarget(tmp_path, postgres.dsn)
    assert "trust_columns: " in refused_or_taken(target, "uuid", TEXT, ("it", "ti"))
    with pytest.raises(InvalidOption, match=r'write a list, such as \["id"\]'):
        PostgresSink("host=x", "t", trust_columns="id")
    made: Any = open_sink("postgres", {"dsn": "host=x", "table": "t", "trust_columns": ["id", "doc"]})
    assert made._trusted == {"id", "doc"}


def test_nul_in_a_text_is_replaced_counted_and_logged(
    tmp_path: Path, postgres: Server, caplog: pytest.LogCaptureFixture
) -> None:
    """One message must not end the pipeline at every start."""
    target = PostgresTarget(tmp_path, postgres.dsn)
    schema = t.StructType(
        [t.StructField("text", TEXT), t.StructField("map", AMONG), t.StructField("raw", t.BinaryType())]
    )
    values: list[dict[str, Any]] = [
        {"text": "a\0\0b", "map": [("k\0", "\0\0"), ("kept", "\\u0000 \\\0")], "raw": b"\0"},
        {"text": "fine \\u0000", "map": [("kept", "\\u0000")], "raw": None},
        {"text": None, "map": None, "raw": None},
    ]
    sink = target.opened(schema=schema)
    with caplog.at_level(logging.WARNING):
        sink.write(TableRows(schema, pa.Table.from_pylist(values, schema=arrow_schema(schema))), named(1, 0))
    assert target.ask(f"SELECT * FROM {target.schema}.rows") == [
        ("a\ufffd\ufffdb", {"k\ufffd": "\ufffd\ufffd", "kept": "\\u0000 \\\ufffd"}, b"\0"),
        ("fine \\u0000", {"kept": "\\u0000"}, None),
        (None, None, None),
    ]
    assert sink.last_replaced == 2
    assert "1 of column text, 1 of column map" in caplog.text
    sink.write(TableRows(schema, arrow_schema(schema).empty_table()), named(1, 1))
    assert sink.last_replaced == 0
    target.close()


def test_nul_in_a_merged_row_is_replaced(tmp_path: Path, postgres: Server) -> None:
    target = PostgresTarget(tmp_path, postgres.dsn)
    sink = target.merging()
    sink.write(changes((1, "x\0", 1, False), (2, "y", 1, False)), named(1, 0))
    assert target.changed() == {1: "x\ufffd", 2: "y"}
    sink.write(changes((1, "fine", 2, False)), named(1, 1))
    assert target.changed() == {1: "fine", 2: "y"}
    target.close()


@pytest.mark.parametrize("newer", [0, 1])
def test_keys_that_become_equal_without_nul_keep_the_newer_row(tmp_path: Path, postgres: Server, newer: int) -> None:
    """The database would refuse a batch with a key twice, at every start."""
    target = PostgresTarget(tmp_path, postgres.dsn)
    schema = t.StructType([*(f for f in CHANGES if f.name != "id"), t.StructField("id", TEXT, False)])
    rows = [{"id": key, "text": key, "_sequence": 1 + (at == newer), "_deleted": False} for at, key in
            enumerate(["k\0", "k\ufffd"])]  # fmt: skip
    sink = target.opened(schema=schema, how=Merge(("id",)))
    sink.write(
        TableRows(schema, pa.Table.from_pylist(rows, schema=arrow_schema(schema, ("id",), loose=True))), named(1, 0)
    )
    assert target.ask(f"SELECT id, _sequence FROM {target.schema}.rows") == [("k\ufffd", 2)]
    target.close()


def test_texts_without_nul_are_unchanged() -> None:
    table = pa.table({"text": ["a", None, "\\u0000"], "n": [1, 2, 3]})
    assert without_nul(table)[0] is table
    assert without_nul(table)[1] == {}


def test_nul_is_an_option_of_a_declared_sink() -> None:
    assert open_sink("postgres", {"dsn": "host=x", "table": "t", "nul": "fail"})._format.nul == "fail"  # type: ignore[attr-defined]
    with pytest.raises(InvalidOption, match="nul = 'keep'"):
        PostgresSink("host=x", "t", nul="keep")
