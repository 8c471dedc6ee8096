"""`LastState(evolve=True)`: new fields become columns, once, in the commit of their batch."""

import json
import sqlite3
from collections.abc import Callable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from deltalake import DeltaTable
from tests.pipelines.stages.cdc.replica_fixture import Frame, messages
from tests.pipelines.stages.cdc.test_meanings import CONNECT, DAY, DEBEZIUM, MOMENT, SECOND, base64, event, field

from lanemq.model.errors import InvalidOption, UsageError
from lanemq.pipelines import DeltaSink, LastState, Pipeline, SqliteSink, Topic, TopicSink, load
from lanemq.pipelines.batches import Batch
from lanemq.pipelines.checkpoint.run_log import RunLog
from lanemq.pipelines.checkpoint.units import Units
from lanemq.pipelines.ports import Results, SinkRun
from lanemq.pipelines.stages.cdc import evolving, reading
from lanemq.pipelines.stages.cdc.evolving import can_be_column

SCHEMA = "id bigint, name string"


class EvolvingTable:
    """A stage and a table, through several runs."""

    def __init__(self, folder: Path, make: Callable[[], Any], **options: Any) -> None:
        self.folder, self.make = folder, make
        self.options: dict[str, Any] = {"schema": SCHEMA, "keys": ["id"], "evolve": True} | options
        self.number, self.epoch = 0, 0
        self.state = self.before = ""
        self.restart()

    def restart(self, **options: Any) -> None:
        self.options |= options
        self.epoch += 1
        self.stage, self.sink = LastState(**self.options), self.make()
        self.stage.open(None, self.folder / "stage")  # type: ignore[arg-type]
        self.stage.continue_from(self.state)
        self.sink.open(SinkRun(None, "q", self.epoch, self.stage.schema, self.stage.how))

    def process(self, *rows: Any, queue: int = 0) -> Results:
        """Runs a batch of rows; each is a message with its own key."""
        self.number, self.before = self.number + 1, self.state
        return self.repeat(message_table(rows, self.number * 100, queue))

    def repeat(self, *partitions: pa.Table, settle: bool = True, write: bool = True) -> Results:
        batch = Batch("q", self.number, self.epoch)
        self.stage.continue_from(self.before)
        results = self.stage.process(Frame(*partitions), batch)  # type: ignore[arg-type]
        if settle:
            self.state = results.state or self.before
            self.stage.continue_from(self.state)
        if write:
            self.fresh = self.sink.write(results.outputs, batch)
        return results


def message_table(rows: Any, first: int, queue: int = 0) -> pa.Table:
    return messages([(None, row) for row in rows], first=first, queue=queue)


class Sqlite(EvolvingTable):
    def __init__(self, folder: Path, **options: Any) -> None:
        self.file = folder / "table.db"
        super().__init__(folder, lambda: SqliteSink(self.file, "people"), **options)

    def ask(self, statement: str) -> list[Any]:
        database = sqlite3.connect(self.file, isolation_level=None)
        try:
            return database.execute(statement).fetchall()
        finally:
            database.close()

    def rows(self) -> list[dict[str, Any]]:
        names = list(self.columns())
        return [
            dict(zip(names, row, strict=True))
            for row in self.ask(f"SELECT {', '.join(names)} FROM people WHERE NOT _deleted ORDER BY id")
        ]

    def columns(self) -> dict[str, str]:
        found = {name: kind for _, name, kind, *_ in self.ask("PRAGMA table_info(people)")}
        return {name: kind for name, kind in found.items() if name not in ("_sequence", "_deleted", "_queue")}


class Delta(EvolvingTable):
    def __init__(self, folder: Path, **options: Any) -> None:
        self.path = folder / "table"
        super().__init__(folder, lambda: DeltaSink(self.path), **options)

    def rows(self) -> list[dict[str, Any]]:
        found = pa.table(DeltaTable(self.path).to_pyarrow_table()).sort_by("id").drop_columns(["_sequence", "_queue"])
        return [
            {name: value for name, value in row.items() if name != "_deleted"}
            for row in found.to_pylist()
            if not row["_deleted"]
        ]

    def columns(self) -> dict[str, str]:
        found = {field.name: str(field.type.type) for field in DeltaTable(self.path).schema().fields}
        return {name: kind for name, kind in found.items() if name not in ("_sequence", "_deleted", "_queue")}


@pytest.fixture(params=[Sqlite, Delta])
def table(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    made: EvolvingTable = request.param(tmp_path)
    yield made
    made.sink.close()


@pytest.fixture
def sqlite(tmp_path: Path) -> Any:
    made = Sqlite(tmp_path)
    yield made
    made.sink.close()


def test_a_new_field_becomes_a_column_of_the_type_of_its_first_value(table: Any) -> None:
    table.process({"id": 1, "name": "a"})
    new = {"age": 7, "score": 0.5, "city": "Ulm", "ok": True, "tags": ["x"], "nothing": None}
    counts = table.process({"id": 2, "name": "b", **new}, {"id": 3, "name": "c"}).counts
    assert (counts["new_columns"], counts["misfits"]) == (5, 0)
    first, second, third = table.rows()
    assert second == {"id": 2, "name": "b", "age": 7, "score": 0.5, "city": "Ulm", "ok": True, "tags": '["x"]'}
    assert first == {"id": 1, "name": "a", **dict.fromkeys(["age", "score", "city", "ok", "tags"])}
    assert third["age"] is None
    assert "new_columns" not in table.process({"id": 3, "name": "c", "age": 9}).counts
    assert [row["age"] for row in table.rows()] == [None, 7, 9]


def test_the_schema_of_a_message_says_the_types_of_new_columns(tmp_path: Path) -> None:
    """Without it, the same values give numbers and texts."""
    fields = [
        field("price", "bytes", CONNECT + "Decimal", scale="2", **{"connect.decimal.precision": "10"}),
        field("paid_at", "int64", DEBEZIUM + "MicroTimestamp"),
        field("born", "int32", DEBEZIUM + "Date"),
        field("seen_at", "string", DEBEZIUM + "ZonedTimestamp"),
        field("photo", "bytes"),
        field("rate", "double"),
        field("size", "int16"),
    ]
    row = {
        "id": 1, "name": "a", "price": base64(1050), "paid_at": SECOND * 10**6, "born": DAY,
        "seen_at": "2023-11-15T00:00:00Z", "photo": "/wA=", "rate": 10, "size": 3,
    }  # fmt: skip
    with_schema = Delta(tmp_path, format="debezium")
    with_schema.process(event(row | {"price": None}, *fields), event(row, *fields))
    kinds = {
        "price": "decimal(10,2)", "paid_at": "timestamp", "born": "date", "seen_at": "timestamp", "photo": "binary",
        "rate": "double", "size": "long",
    }  # fmt: skip
    assert {name: kind for name, kind in with_schema.columns().items() if name in kinds} == kinds
    assert with_schema.rows()[-1] == row | {
        "price": Decimal("10.50"), "paid_at": MOMENT, "born": date(2023, 11, 15), "seen_at": MOMENT,
        "photo": b"\xff\x00", "rate": 10.0,
    }  # fmt: skip
    with_schema.restart()
    with_schema.process(event(row | {"price": base64(2)}, *fields))
    assert with_schema.rows()[-1]["price"] == Decimal("0.02"), "the type is known after a restart"
    with_schema.sink.close()

    without = Delta(tmp_path / "without", format="debezium")
    without.process(event(row, *fields)["payload"])
    assert {name: kind for name, kind in without.columns().items() if name in kinds} == {
        **dict.fromkeys(("paid_at", "born", "rate", "size"), "long"),
        **dict.fromkeys(("price", "seen_at", "photo"), "string"),
    }
    without.sink.close()


def test_a_column_is_known_after_a_restart_and_keeps_its_type(table: Any) -> None:
    table.process({"id": 1, "name": "a", "age": 7})
    columns = table.columns()
    table.restart()
    counts = table.process({"id": 2, "name": "b", "age": "old"}).counts
    assert ("new_columns" in counts, counts["misfits"]) == (False, 1)
    assert table.columns() == columns
    assert [row["age"] for row in table.rows()] == [7, None]


def test_a_conflict_of_types_is_null_counted_and_logged_once(table: Any, caplog: pytest.LogCaptureFixture) -> None:
    table.process({"id": 1, "name": "a", "age": 7})
    caplog.clear()
    for at in range(3):
        assert table.process({"id": 2 + at, "name": "b", "age": {"years": at}}).counts["misfits"] == 1
    assert [record.getMessage() for record in caplog.records if "do not fit" in record.getMessage()] == [
        "q batch 0 retry pass 2 (epoch 1): values of the field age do not fit its column, which has the type of "
        "the first one: they are null and counted as misfits"
    ]
    assert [row["age"] for row in table.rows()] == [7, None, None, None]


def test_a_conflict_of_types_is_not_poison_even_if_misfits_are(tmp_path: Path) -> None:
    table = Sqlite(tmp_path, misfits="dead_letter")
    table.process({"id": 1, "name": "a", "age": 7})
    results = table.process({"id": 2, "name": "b", "age": "old"})
    assert results.dead_letters is None
    assert [row["age"] for row in table.rows()] == [7, None]
    table.sink.close()


@pytest.mark.parametrize("settled", [True, False])
def test_a_repeated_batch_adds_no_column_again(table: Any, settled: bool) -> None:
    """After a crash before or after the state was written, or after the table had the batch."""
    table.number += 1
    batch = message_table([{"id": 1, "name": "a", "age": 7}], 0)
    first = table.repeat(batch, settle=settled, write=False)
    table.restart()
    again = table.repeat(batch)
    assert again.outputs.table().equals(first.outputs.table())
    rows, columns = table.rows(), table.columns()
    table.restart()
    table.repeat(batch)
    assert table.fresh is False
    assert (table.rows(), table.columns()) == (rows, columns)
    assert rows == [{"id": 1, "name": "a", "age": 7}]


def test_two_writers_that_add_the_same_column_are_safe(table: Any) -> None:
    """For example two pipelines into one table; the second finds the column when its batch comes."""
    other = EvolvingTable(table.folder / "other", table.make)
    other.sink.close()
    other.sink = table.make()
    other.sink.open(SinkRun(None, "q2", 1, other.stage.schema, other.stage.how))
    table.process({"id": 1, "name": "a", "age": 7})
    batch = Batch("q2", 1, 1)
    results = other.stage.process(Frame(message_table([{"id": 2, "name": "b", "age": 8}], 900)), batch)  # type: ignore[arg-type]
    assert other.sink.write(results.outputs, batch)
    other.sink.close()
    assert [row["age"] for row in table.rows()] == [7, 8]


def test_an_existing_column_of_another_type_does_not_end_the_query(
    sqlite: Sqlite, caplog: pytest.LogCaptureFixture
) -> None:
    """A text column takes every value as text; a value that no column takes is left out, with a warning."""
    sqlite.ask("ALTER TABLE people ADD COLUMN note TEXT")
    sqlite.ask("ALTER TABLE people ADD COLUMN picture BLOB")
    for at in range(2):
        sqlite.process({"id": at, "name": "a", "note": 7, "picture": 1, "age": 3})
    assert [(row["note"], row["picture"], row["age"]) for row in sqlite.rows()] == [("7", None, 3)] * 2
    assert caplog.text.count("has a column picture that does not take int64") == 1


def test_an_existing_delta_column_of_another_type_does_not_end_the_query(tmp_path: Path) -> None:
    before = Delta(tmp_path, schema=f"{SCHEMA}, note string, day date", evolve=False)
    before.process({"id": 1, "name": "a", "note": "n"})
    before.sink.close()
    table = Delta(tmp_path)
    table.number, table.epoch = before.number, before.epoch
    table.restart()
    table.process({"id": 2, "name": "b", "note": 7, "day": 1})
    assert [(row["note"], row["day"]) for row in table.rows()] == [("n", None), ("7", None)]
    table.sink.close()


@pytest.mark.parametrize("value", [b'"\xff"', b"1e999999", b"[" * 100_000 + b"]" * 100_000, b'"\\ud800"'])
def test_an_unreadable_new_field_does_not_end_the_query(sqlite: Sqlite, value: bytes) -> None:
    """The field was not declared, so the declaration cannot be corrected, and the query would end at every start."""
    good = [{"id": 1, "name": "a"}, {"id": 3, "name": "c", "age": 7}]
    sqlite.process(good[0], b'{"id":2,"name":"b","note":' + value + b"}", good[1])
    assert list(sqlite.columns()) == ["id", "name", "age"]
    assert [row for row in sqlite.rows() if row["id"] != 2] == [good[0] | {"age": None}, good[1]]
    sqlite.process({"id": 4, "name": "d", "note": "x"}, b'{"id":5,"name":"e","note":' + value + b"}")
    assert {"id": 4, "name": "d", "age": None, "note": "x"} in sqlite.rows()


@pytest.mark.parametrize("left_out", ["dead_letter", "keep"])
def test_a_field_with_a_reserved_name_becomes_no_column(table: Any, left_out: str) -> None:
    """`_kept` tells a sink which columns to keep: a field of that name would leave old values in the table."""
    table.options["left_out"] = left_out
    table.sink.close()
    table.restart()
    table.process({"id": 1, "name": "old", "_kept": "no JSON"})
    table.process({"id": 1, "name": "new", "_kept": '["name"]', "_KEPT": 1, "_Deleted": True})
    assert [row["name"] for row in table.rows()] == ["new"]
    assert set(table.columns()) == {"id", "name"} | ({"_kept"} if left_out == "keep" else set())


def test_rows_that_lack_a_new_field_keep_its_column(table: Any) -> None:
    table.options["left_out"] = "keep"
    table.sink.close()
    table.restart()
    table.process({"id": 1, "name": "a"}, {"id": 2, "name": "a"})
    table.process({"id": 1, "age": 7}, {"id": 2, "name": "b"})
    table.process({"id": 1, "name": "c"})
    found = sorted((row["id"], row["name"], row["age"]) for row in table.rows())
    assert found == [(1, "c", 7), (2, "b", None)]


def test_rows_with_kept_columns_are_refused_by_a_sink_opened_without_them(table: Any) -> None:
    """A batch decided with `keep` and finished without it would write nulls, or keep old values."""
    table.process({"id": 1, "name": "old"})
    decided = LastState(**table.options, left_out="keep")
    decided.open(None, table.folder / "other")  # type: ignore[arg-type]
    table.number += 1
    batch = Batch("q", table.number, table.epoch)
    results = decided.process(Frame(message_table([{"id": 1, "name": "new", "age": 7}], 500)), batch)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="decided with left_out='keep'"):
        table.sink.write(results.outputs, batch)
    assert table.rows() == [{"id": 1, "name": "old"}]


def test_a_checkpoint_with_a_reserved_name_as_column_continues(table: Any) -> None:
    (table.folder / "stage").mkdir(exist_ok=True)
    (table.folder / "stage" / "columns.json").write_text('{"columns": {"_kept": "string", "age": "long"}}')
    table.restart()
    table.process({"id": 1, "name": "old", "_kept": "no JSON", "age": 7})
    assert table.rows() == [{"id": 1, "name": "old", "age": 7}]


@pytest.mark.parametrize("parted", [False, True])
@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([10, 10.5], "double"),
        ([10.5, 10], "double"),
        ([10, "x", 1e2], "double"),
        ([10, None, 11], "bigint"),
        (["x", 10, 10.5], "string"),
        ([True, 10, 10.5], "boolean"),
    ],
)
def test_a_whole_number_in_a_batch_with_fractions_gives_a_double_column(
    sqlite: Sqlite, monkeypatch: pytest.MonkeyPatch, values: list[Any], kind: str, parted: bool
) -> None:
    """JSON writes a price of 10.00 as 10. The column must not depend on how the batch is divided."""
    rows = [{"id": at, "name": "a", "price": value} for at, value in enumerate(values)]
    parts = [message_table([row], at) for at, row in enumerate(rows)] if parted else [message_table(rows, 0)]
    sqlite.number = 1
    for order in (parts, parts[::-1]):
        found = sqlite.repeat(*order, settle=False, write=False).outputs.schema
        assert found["price"].dataType.simpleString() == kind
    monkeypatch.setattr(reading, "CHUNK_BYTES", 1)
    for order in (parts[::-1], parts):
        found = sqlite.repeat(pa.concat_tables(order), settle=False, write=False).outputs.schema
        assert found["price"].dataType.simpleString() == kind


def test_a_column_of_whole_numbers_keeps_its_type_in_later_batches(table: Any) -> None:
    table.process({"id": 1, "name": "a", "price": 10})
    assert table.process({"id": 2, "name": "b", "price": 10.5}).counts["misfits"] == 1
    assert [row["price"] for row in table.rows()] == [10, None]


def test_names_that_a_database_could_not_hold_become_no_columns(sqlite: Sqlite) -> None:
    sqlite.process({"id": 1, "name": "a"})
    odd = ["Name", "_SEQUENCE", "ctid", "a b", "1st", "x" * 64, 'q"uote', "semi;colon"]
    counts = sqlite.process({"id": 2, "name": "b", "größe": 1, "Class": 2, **dict.fromkeys(odd, 1)}).counts
    assert set(sqlite.columns()) == {"id", "name", "größe", "Class"}
    assert counts["new_fields"] == len(odd)
    assert not can_be_column("")
    assert not any(can_be_column(name, {"name", "_sequence"}) for name in odd)


def test_names_that_differ_in_case_only_are_one_column(sqlite: Sqlite) -> None:
    sqlite.process({"id": 1, "name": "a", "City": "Ulm", "city": "Bonn"})
    assert sqlite.rows() == [{"id": 1, "name": "a", "City": "Ulm"}]


def test_the_number_of_added_columns_is_limited(sqlite: Sqlite, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evolving, "MAX_COLUMNS", 3)
    for at in range(5):
        sqlite.process({"id": at, "name": "a", f"k{at}": 1})
    assert list(sqlite.columns()) == ["id", "name", "k0", "k1", "k2"]


def test_the_type_does_not_depend_on_how_messages_are_divided_into_tasks(sqlite: Sqlite) -> None:
    """The first value by queue and offset decides: a repeated batch may be divided differently."""
    one, two = (
        message_table([{"id": 1, "name": "a", "age": "x"}], 5, 1),
        message_table([{"id": 2, "name": "b", "age": 7}], 9, 0),
    )
    sqlite.number = 1
    for order in ((one, two), (two, one)):
        found = sqlite.repeat(*order, settle=False, write=False).outputs.schema
        assert found["age"].dataType.simpleString() == "bigint"


@pytest.mark.parametrize(
    ("form", "event"),
    [
        ("debezium", lambda row: {"op": "c", "after": row, "source": {"db": "s", "table": "people"}}),
        ("debezium", lambda row: {"payload": {"op": "u", "after": row, "source": {"db": "s", "table": "people"}}}),
        ("canal", lambda row: {"type": "INSERT", "database": "s", "table": "people", "data": [{"id": 9}, row]}),
        ("maxwell", lambda row: {"type": "insert", "database": "s", "table": "people", "data": row}),
    ],
)
def test_every_format_evolves_by_the_rows_of_its_own_table(tmp_path: Path, form: Any, event: Any) -> None:
    table = Sqlite(tmp_path, format=form, table="s.people")
    other = json.loads(json.dumps(event({"id": 5, "name": "x", "foreign": 1})).replace("people", "orders"))
    table.process(event({"id": 1, "name": "a", "age": 7}), other, b"{broken", None)
    assert list(table.columns()) == ["id", "name", "age"]
    assert {"id": 1, "name": "a", "age": 7} in table.rows()
    table.sink.close()


def test_deletions_have_null_in_new_columns(table: Any) -> None:
    table.options["deleted"] = "gone"
    table.restart()
    table.process({"id": 1, "name": "a", "age": 7}, {"id": 2, "name": "b", "age": 8})
    table.process({"id": 1, "gone": True})
    assert table.rows() == [{"id": 2, "name": "b", "age": 8}]


def test_an_added_column_may_be_declared_later(table: Any) -> None:
    table.process({"id": 1, "name": "a", "age": 7})
    table.restart(schema=f"{SCHEMA}, age bigint")
    table.process({"id": 2, "name": "b", "age": 8, "city": "Ulm"})
    assert [(row["age"], row["city"]) for row in table.rows()] == [(7, None), (8, "Ulm")]


def test_evolution_can_be_switched_off(table: Any) -> None:
    table.process({"id": 1, "name": "a", "age": 7})
    table.restart(evolve=False)
    table.process({"id": 2, "name": "b", "age": 8})
    assert [row["age"] for row in table.rows()] == [7, None]


def test_without_evolve_new_fields_are_only_logged_and_counted(tmp_path: Path) -> None:
    table = Sqlite(tmp_path, evolve=False)
    table.process({"id": 1, "name": "a"})
    assert table.process({"id": 2, "name": "b", "age": 8}).counts["new_fields"] == 1
    assert list(table.columns()) == ["id", "name"]
    table.sink.close()


def test_the_sequence_field_becomes_no_column(tmp_path: Path) -> None:
    table = Sqlite(tmp_path, sequence=["version"])
    table.process({"id": 1, "name": "a", "version": 5, "age": 7})
    table.restart()
    table.process({"id": 1, "name": "b", "version": 6, "age": 8})
    assert table.rows() == [{"id": 1, "name": "b", "age": 8}]
    table.sink.close()


def test_a_decision_with_new_columns_is_completed_by_a_run_that_does_not_know_them(tmp_path: Path) -> None:
    """After a crash behind the decision. If it were refused, the pipeline could never start again."""
    table = Sqlite(tmp_path)
    table.number = 1
    results = table.repeat(message_table([{"id": 1, "name": "a", "age": 7}], 0), settle=False, write=False)
    batch = Batch("q", 1, 1)
    log = RunLog(tmp_path / "log", lambda runs: 1)
    Units(log, tmp_path / "decided", grows=True).record(batch, results, {}, decide=True, whole=False)
    table.restart()
    units = Units(log, tmp_path / "decided", grows=True)
    units.open(lambda unit: False)
    found = units.decided(batch, table.stage.schema, {})
    table.state = found.state
    table.stage.continue_from(found.state)
    table.sink.write(found.outputs, Batch("q", 1, 2))
    assert table.rows() == [{"id": 1, "name": "a", "age": 7}]
    table.process({"id": 2, "name": "b", "age": "x"})
    assert [row["age"] for row in table.rows()] == [7, None]
    table.sink.close()


@pytest.mark.parametrize(
    "sink",
    [lambda f: TopicSink("127.0.0.1:1", "t", key="id"), lambda f: SqliteSink(f / "x", "t", evolve=False)],
    ids=["no table", "not allowed"],
)
def test_a_sink_that_cannot_add_columns_is_refused_when_declared(tmp_path: Path, sink: Any) -> None:
    stage, source = LastState(SCHEMA, ["id"], evolve=True), Topic("127.0.0.1:1", "people")
    with pytest.raises(InvalidOption, match="stage: evolve needs a sink that adds columns"):
        Pipeline("people", source, stage, sink(tmp_path), tmp_path)
    Pipeline("people", source, stage, SqliteSink(tmp_path / "x", "t"), tmp_path)


def test_evolve_can_be_set_in_a_toml_file(tmp_path: Path) -> None:
    file = tmp_path / "people.toml"
    file.write_text(
        f'[pipeline]\nname = "people"\ncheckpoint = "{tmp_path}/c"\n[source]\nservers = "127.0.0.1:1"\ntopic = "p"\n'
        f'[stage]\nkind = "last_state"\nschema = "{SCHEMA}"\nkeys = ["id"]\nevolve = true\n'
        f'[sink]\nkind = "delta"\npath = "{tmp_path}/t"\n'
    )
    assert load(file).stage.evolves  # type: ignore[attr-defined]
    file.write_text(file.read_text().replace("evolve = true", 'evolve = "yes"'))
    with pytest.raises(InvalidOption, match="evolve: 'yes' is not true or false"):
        load(file)
