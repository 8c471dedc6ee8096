"""Columns that only the rows have are added to the table in the commit of their batch."""

import sqlite3
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from pyspark.sql.types import DoubleType, StructField, StructType
from tests.pipelines.sinks.conftest import MERGING
from tests.pipelines.sinks.targets import CHANGES, Change, Died, IcebergTarget, Target, changes, dies_at, named

from lanemq.pipelines import read_iceberg, read_table
from lanemq.pipelines.ports import TableRows

WIDE = StructType([*CHANGES.fields, StructField("price", DoubleType())])

pytestmark = pytest.mark.parametrize("target", MERGING, indirect=True)


def wide(*rows: tuple[Change, float | None]) -> TableRows:
    prices = pa.array([price for _, price in rows], pa.float64())
    return TableRows(WIDE, changes(*(change for change, _ in rows)).rows.append_column("price", prices))


def prices(target: Any) -> dict[int, float | None] | None:
    """The prices by key; None if the table has no such column."""
    if hasattr(target, "ask"):
        table = f"{target.schema}.rows" if hasattr(target, "schema") else "rows"
        try:
            return dict(target.ask(f"SELECT id, price FROM {table}"))
        except (sqlite3.OperationalError, psycopg.errors.UndefinedColumn):
            return None
    found = read_iceberg(target.name, **target.place) if isinstance(target, IcebergTarget) else read_table(target.place)
    if "price" not in found.column_names:
        return None
    return dict(zip(found["id"].to_pylist(), found["price"].to_pylist(), strict=True))


def test_a_table_gets_columns_that_only_the_rows_have(target: Target) -> None:
    sink = target.merging()
    sink.write(changes((1, "a", 1, False)), named(1, 1))
    assert prices(target) is None
    assert sink.write(wide(((2, "b", 2, False), 2.5)), named(1, 2))
    assert prices(target) == {1: None, 2: 2.5}
    assert sink.write(wide(((1, "c", 3, False), 0.5), ((2, "old", 1, False), 9.0)), named(1, 3))
    assert prices(target) == {1: 0.5, 2: 2.5}, "an older row changes no column"
    assert sink.write(changes((1, "d", 4, False)), named(1, 4))
    assert target.changed() == {1: "d", 2: "b"}


def test_a_run_opened_without_the_column_continues_with_it(target: Target) -> None:
    target.merging().write(wide(((1, "a", 1, False), 1.5)), named(1, 1))
    assert target.merging(2).write(wide(((2, "b", 2, False), 2.5)), named(2, 2))
    assert prices(target) == {1: 1.5, 2: 2.5}


@pytest.mark.parametrize("step", range(3))
def test_a_crash_leaves_both_column_and_rows_or_neither(target: Target, step: int) -> None:
    sink = target.merging()
    dies_at(sink, step)
    rows = wide(((1, "a", 1, False), 1.5))
    try:
        sink.write(rows, named(1, 1))
    except Died:
        assert (target.changed() == {}) is (prices(target) is None)
    again = target.merging(2)
    again.write(rows, named(2, 1))
    assert again.write(rows, named(2, 1)) is False
    assert prices(target) == {1: 1.5}


def test_a_column_is_added_even_if_all_its_rows_are_stale(target: Target) -> None:
    sink = target.merging()
    sink.write(changes((1, "a", 5, False)), named(1, 1))
    sink.write(wide(((1, "old", 1, False), 1.5)), named(1, 2))
    assert sink.write(wide(((1, "new", 6, False), 2.5)), named(1, 3))
    assert prices(target) == {1: 2.5}
