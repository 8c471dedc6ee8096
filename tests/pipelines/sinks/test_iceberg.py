"""What the Iceberg sink does beyond the contract of all sinks: columns, partitions, other writers, upkeep."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog import load_catalog
from pyiceberg.types import StringType as IcebergText
from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    DateType,
    DecimalType,
    DoubleType,
    IntegerType,
    LongType,
    MapType,
    ShortType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)
from tests.pipelines.sinks.targets import CHANGES, EVENTS, KEYED, QUERY, IcebergTarget, changes, named

from lanemq.clock import SystemClock
from lanemq.model.errors import InvalidOption, SinkFenced, StateLost, StorageError
from lanemq.model.units import Millis
from lanemq.pipelines import IcebergSink, open_sink, read_iceberg
from lanemq.pipelines.ports import DELETED, SEQUENCE, Append, SinkRun, TableRows
from lanemq.pipelines.sinks import iceberg_maintenance
from lanemq.pipelines.sinks.iceberg_table import OWN_PROPERTIES, IcebergTable
from lanemq.spark.versions import to_arrow_schema

NAME = "shop.rows"
PAIRS = StructField("pairs", MapType(StringType(), ArrayType(StructType([StructField("a", LongType())]))))


class Later(SystemClock):
    """A minute ahead, so that every snapshot is old."""

    def wall(self) -> Millis:
        return Millis(super().wall() + 60_000)


@pytest.fixture
def target(tmp_path: Path) -> Iterator[IcebergTarget]:
    made = IcebergTarget(tmp_path)
    yield made
    made.close()


@pytest.fixture
def catalog(tmp_path: Path) -> Iterator[Any]:
    """The catalog as another program sees it."""
    folder = tmp_path / "warehouse"
    folder.mkdir(exist_ok=True)
    made = load_catalog("lanemq", type="sql", uri=f"sqlite:///{folder}/catalog.db", warehouse=str(folder))
    yield made
    made.close()


def table_rows(schema: StructType, *rows: dict[str, Any]) -> TableRows:
    return TableRows(schema, pa.Table.from_pylist(list(rows), to_arrow_schema(schema)))


def opened(folder: Path, schema: StructType = EVENTS, how: Any = None, epoch: int = 1, **options: Any) -> IcebergSink:
    sink = IcebergSink(NAME, warehouse=folder / "warehouse", **options)
    sink.open(SinkRun(None, "q", epoch, schema, how or Append()))  # type: ignore[arg-type]
    return sink


def test_a_run_that_was_replaced_gets_through_if_pyiceberg_may_repeat_its_commit(
    target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The control of `test_a_run_replaced_during_its_write_is_refused`."""
    monkeypatch.setattr(IcebergTable, "_allow_no_repetition", lambda self: None)
    old = target.opened(epoch=1)
    successors: list[Any] = []
    old.reached = lambda step: successors or successors.append(target.opened(epoch=2))
    assert old.write(target.batch_rows(a=[1]), named(1, 0)), "although run 2 has the table"


def test_every_type_of_spark_comes_back_as_it_was(tmp_path: Path) -> None:
    schema = StructType(
        [
            StructField("short", ShortType()),
            StructField("int", IntegerType()),
            StructField("double", DoubleType()),
            StructField("flag", BooleanType()),
            StructField("bytes", BinaryType()),
            StructField("day", DateType()),
            StructField("at", TimestampType()),
            StructField("price", DecimalType(12, 2)),
            StructField("pair", StructType([StructField("a", LongType()), StructField("b", ArrayType(StringType()))])),
            StructField("map", MapType(StringType(), IntegerType())),
        ]
    )
    row = {
        "short": 1, "int": 2, "double": 0.5, "flag": True, "bytes": b"\x00\xff", "day": date(2026, 1, 2),
        "at": datetime(2026, 1, 2, 3, 4, 5, 678, UTC), "price": Decimal("12.30"), "pair": {"a": 1, "b": None},
        "map": [("k", 1)],
    }  # fmt: skip
    sink = opened(tmp_path, schema)
    sink.write(table_rows(schema, row, dict.fromkeys(row)), named(1, 0, "q"))
    sink.close()
    assert read_iceberg(NAME, warehouse=tmp_path / "warehouse").to_pylist() == [row, dict.fromkeys(row)]
    opened(tmp_path, schema, epoch=2).close()


def test_a_later_run_adds_columns_and_older_rows_are_null_there(tmp_path: Path) -> None:
    opened(tmp_path).write(table_rows(EVENTS, {"shard": "a", "n": 1, "text": "x"}), named(1, 0, "q"))
    wider = StructType([StructField("price", DecimalType(8, 2)), *EVENTS.fields])
    with pytest.raises(InvalidOption, match=r"column price is not in the table shop\.rows"):
        opened(tmp_path, wider, epoch=2, evolve=False)
    sink = opened(tmp_path, wider, epoch=2)
    sink.write(table_rows(wider, {"price": Decimal("1.50"), "shard": "a", "n": 2, "text": "y"}), named(2, 1, "q"))
    rows = read_iceberg(NAME, warehouse=tmp_path / "warehouse").to_pylist()
    assert {row["n"]: row["price"] for row in rows} == {1: None, 2: Decimal("1.50")}
    sink.close()


@pytest.mark.parametrize(
    ("schema", "how", "error"),
    [
        (StructType([StructField("n", StringType())]), Append(), "column n is int64 in .* would become string"),
        (StructType([StructField("N", LongType())]), Append(), "differs from n of the table shop.rows only in case"),
        (StructType([*EVENTS, PAIRS]), Append(), r"column pairs .* null list or map of structs .* to_json\(pairs\)"),
        (CHANGES, KEYED, "holds plain rows and this pipeline merges by key"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit_are_refused_at_the_start(
    tmp_path: Path, schema: StructType, how: Any, error: str
) -> None:
    opened(tmp_path).close()
    with pytest.raises(InvalidOption, match=error):
        opened(tmp_path, schema, how, epoch=2)


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"table": "rows", "warehouse": "w"}, "write it with its namespace"),
        ({"table": NAME}, "needs one of them"),
        ({"table": NAME, "warehouse": "w", "catalog": {"type": "rest"}}, "needs one of them"),
        ({"table": NAME, "warehouse": "s3://bucket/w"}, "catalog of a warehouse is a local file"),
        ({"table": NAME, "warehouse": "w", "maintain_every": -1}, "maintain_every"),
    ],
)
def test_wrong_options_are_refused_before_anything_is_made(options: dict[str, Any], error: str) -> None:
    with pytest.raises(InvalidOption, match=error):
        open_sink("iceberg", options)


def test_a_missing_package_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "lanemq.pipelines.sinks.iceberg_table", None)
    monkeypatch.delattr("lanemq.pipelines.sinks.iceberg_table")
    with pytest.raises(InvalidOption, match=r"needs pyiceberg: install what the extra `iceberg` has"):
        opened(tmp_path)


def test_a_catalog_that_cannot_be_reached_is_named() -> None:
    sink = IcebergSink(NAME, catalog={"type": "sql", "uri": "sqlite:////nowhere/at/all.db"})
    with pytest.raises(StorageError, match="catalog lanemq"):
        sink.applied("q", {})


def test_rows_are_divided_by_the_day_of_a_time_and_merged_rows_change_their_partition(
    tmp_path: Path, catalog: Any
) -> None:
    schema = StructType([*CHANGES.fields, StructField("at", TimestampType())])

    def row(key: int, text: str, sequence: int, day: int) -> dict[str, Any]:
        at = datetime(2026, 5, day, 12, tzinfo=UTC)
        return {"id": key, "text": text, SEQUENCE: sequence, DELETED: False, "at": at}

    sink = opened(tmp_path, schema, KEYED, partition_by=["day(at)"])
    sink.write(table_rows(schema, row(1, "a", 1, 1), row(2, "b", 1, 1), row(3, "c", 1, 2)), named(1, 0, "q"))
    sink.write(table_rows(schema, row(2, "moved", 2, 9), row(3, "old", 0, 9)), named(1, 1, "q"))
    days = {
        row["partition"]["at_day"]: row["record_count"]
        for row in catalog.load_table(NAME).inspect.partitions().to_pylist()
    }
    assert days == {date(2026, 5, 1): 1, date(2026, 5, 2): 1, date(2026, 5, 9): 1}
    rows = read_iceberg(NAME, warehouse=tmp_path / "warehouse").to_pylist()
    assert {found["id"]: found["text"] for found in rows} == {1: "a", 2: "moved", 3: "c"}
    sink.close()
    opened(tmp_path, schema, KEYED, epoch=2).close()
    for wrong, error in ((["id"], "is partitioned by"), (["bucket(4)"], "is partitioned by")):
        with pytest.raises(InvalidOption, match=error):
            opened(tmp_path, schema, KEYED, epoch=3, partition_by=wrong)


@pytest.mark.parametrize(
    ("partition_by", "error"),
    [("nothing", "no column nothing"), ("day(text)", r"day\(text\) cannot be used"), ("week(n)", r"week\(n\) cannot")],
)
def test_partitions_that_a_table_cannot_have_are_refused(tmp_path: Path, partition_by: str, error: str) -> None:
    with pytest.raises(InvalidOption, match=error):
        opened(tmp_path, partition_by=[partition_by])


def test_a_table_that_was_rolled_back_says_which_batches_it_still_has(target: IcebergTarget, catalog: Any) -> None:
    sink = target.opened()
    for number in range(3):
        sink.write(target.batch_rows(a=[number]), named(1, number))
    table = catalog.load_table(NAME)
    second = table.current_snapshot().parent_snapshot_id
    table.manage_snapshots().rollback_to_snapshot(second).commit()
    assert target.numbers() == [0, 1]
    assert sink.applied(QUERY, {}) == 1, "otherwise its rows would be missing for ever"
    assert target.opened(epoch=2).applied(QUERY, {}) == 1


def test_a_table_that_is_rolled_back_during_a_run_is_refused(target: IcebergTarget, catalog: Any) -> None:
    """The next batch would make it look complete."""
    sink = target.opened()
    for number in range(2):
        sink.write(target.batch_rows(a=[number]), named(1, number))
    table = catalog.load_table(NAME)
    table.manage_snapshots().rollback_to_snapshot(table.current_snapshot().parent_snapshot_id).commit()
    for _ in range(2):
        with pytest.raises(StateLost, match="has lost batches that this run has written"):
            sink.write(target.batch_rows(a=[2]), named(1, 2))
    assert target.numbers() == [0]


@pytest.mark.parametrize("change", ["rename", "delete", "other"])
def test_columns_that_another_program_changes_during_a_run_are_refused(
    target: IcebergTarget, catalog: Any, change: str
) -> None:
    """Otherwise the values of the column would be lost."""
    sink = target.opened()
    sink.write(target.batch_rows(a=[1]), named(1, 0))
    with catalog.load_table(NAME).update_schema() as update:
        update.rename_column("n", "m") if change == "rename" else update.delete_column("n")
    if change == "other":
        with catalog.load_table(NAME).update_schema() as update:
            update.add_column("n", IcebergText())
    with pytest.raises(InvalidOption, match="n is large_string" if change == "other" else "n was removed"):
        sink.write(target.batch_rows(a=[2]), named(1, 1))
    assert catalog.load_table(NAME).scan().to_arrow().num_rows == 1


def test_a_column_that_another_program_adds_during_a_run_is_null(target: IcebergTarget, catalog: Any) -> None:
    sink = target.opened()
    with catalog.load_table(NAME).update_schema() as update:
        update.add_column("extra", IcebergText())
    for number in range(2):
        assert sink.write(target.batch_rows(a=[number]), named(1, number))
    assert catalog.load_table(NAME).scan().to_arrow()["extra"].to_pylist() == [None, None]


def test_the_ledger_outlives_snapshots_that_other_programs_expire(target: IcebergTarget, catalog: Any) -> None:
    sink = target.opened()
    sink.write(target.batch_rows(a=[1]), named(1, 7))
    other = catalog.load_table(NAME)
    other.append(pa.table({"shard": ["other"], "n": pa.array([9], pa.int64()), "text": ["x"]}))
    other.maintenance.expire_snapshots().older_than(datetime.now(UTC) + timedelta(days=1)).commit()
    assert len(catalog.load_table(NAME).snapshots()) == 1
    assert sink.applied(QUERY, {}) == 7
    assert not sink.write(target.batch_rows(a=[1]), named(1, 7))
    target.opened(epoch=2)
    with pytest.raises(SinkFenced):
        sink.write(target.batch_rows(a=[2]), named(1, 8))
    assert target.numbers() == [1, 9]


def test_upkeep_replaces_small_files_and_deletes_what_no_snapshot_needs(tmp_path: Path, catalog: Any) -> None:
    sink = opened(tmp_path, CHANGES, KEYED, maintain_every=4, keep_files=0, clock=Later())
    for number in range(4):
        sink.write(
            changes((number, f"row {number}", 1, False), (0, "newest", number + 2, False))
            if number
            else changes((0, "first", 1, False)),
            named(1, number, "q"),
        )
    table = catalog.load_table(NAME)
    assert len(list(table.scan().plan_files())) == 1
    assert len(table.snapshots()) == 1
    assert len(list((tmp_path / "warehouse").rglob("*.parquet"))) == 1
    rows = read_iceberg(NAME, warehouse=tmp_path / "warehouse").to_pylist()
    assert {row["id"]: row["text"] for row in rows} == {0: "newest", 1: "row 1", 2: "row 2", 3: "row 3"}
    assert sink.applied("q", {}) == 3
    sink.close()


WRITER = """
import os, signal, sys
from pathlib import Path
from tests.pipelines.sinks.targets import IcebergTarget, named
target, number, step = IcebergTarget(Path(sys.argv[1])), int(sys.argv[2]), sys.argv[3]
sink = target.opened(epoch=number + 1)
sink.reached = lambda name: os.kill(os.getpid(), signal.SIGKILL) if name == step else None
sink.write(target.batch_rows(a=[2 * number], b=[2 * number + 1]), named(number + 1, number))
"""


@pytest.mark.extended
def test_a_process_killed_at_any_step_leaves_each_batch_in_the_table_once(target: IcebergTarget) -> None:
    """Batch n is first written by a process that is killed at a step, then by another one."""
    steps = ("files placed", "staged", "metadata written", "committed")
    for number, step in enumerate(steps):
        command = [sys.executable, "-c", WRITER, str(target.folder), str(number), step]
        assert subprocess.run(command, check=False, cwd=Path(__file__).parents[3]).returncode == -signal.SIGKILL
        found = target.numbers()
        assert found == list(range(2 * number + (2 if step == "committed" else 0)))
        again = target.opened(epoch=number + 1)
        rows = target.batch_rows(a=[2 * number], b=[2 * number + 1])
        assert again.write(rows, named(number + 1, number)) is (step != "committed")
    assert target.numbers() == list(range(2 * len(steps)))


def test_a_table_keeps_a_limited_number_of_metadata_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(OWN_PROPERTIES, "write.metadata.previous-versions-max", "3")
    sink = opened(tmp_path)
    for number in range(6):
        sink.write(table_rows(EVENTS), named(1, number, "q"))
    assert len(list((tmp_path / "warehouse").rglob("*.metadata.json"))) == 4
    sink.close()


def test_compactions_of_two_pipelines_that_overlap_leave_each_row_once(
    target: IcebergTarget, monkeypatch: pytest.MonkeyPatch
) -> None:
    target.make = lambda: IcebergSink(NAME, warehouse=target.folder / "warehouse", maintain_every=2)  # type: ignore
    one, other = target.opened(query="one"), target.opened(query="other")
    groups = iceberg_maintenance.small_groups

    def raced(*arguments: Any) -> list[Any]:
        """What one pipeline has found to compact when the other compacts the same files."""
        found = list(groups(*arguments))
        monkeypatch.setattr(iceberg_maintenance, "small_groups", groups)
        other.write(target.batch_rows(b=[9]), named(1, 1, "other"))
        return found

    one.write(target.batch_rows(a=[1]), named(1, 0, "one"))
    other.write(target.batch_rows(b=[8]), named(1, 0, "other"))
    monkeypatch.setattr(iceberg_maintenance, "small_groups", raced)
    one.write(target.batch_rows(a=[2]), named(1, 1, "one"))
    assert iceberg_maintenance.small_groups is groups
    assert target.numbers() == [1, 2, 8, 9]


def test_a_batch_that_is_committed_during_a_compaction_is_not_lost(
    target: IcebergTarget, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    target.make = lambda: IcebergSink(NAME, warehouse=target.folder / "warehouse", maintain_every=2)  # type: ignore
    one, other = target.opened(query="one"), target.opened(query="other")
    compact = iceberg_maintenance.compact

    def compacted(table: IcebergTable) -> int:
        other.write(target.batch_rows(b=[9]), named(1, 0, "other"))
        return compact(table)

    monkeypatch.setattr(iceberg_maintenance, "compact", compacted)
    one.write(target.batch_rows(a=[1]), named(1, 0, "one"))
    one.write(target.batch_rows(a=[2]), named(1, 1, "one"))
    assert "was not compacted" in caplog.text
    assert target.numbers() == [1, 2, 9]
