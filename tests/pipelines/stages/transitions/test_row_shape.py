"""Rows of a step against the columns of the outputs."""

from datetime import date, datetime
from decimal import Decimal

import pyarrow as pa
import pytest
from pyspark.sql.pandas.types import to_arrow_schema

from lanemq.model.errors import InvalidOption
from lanemq.pipelines.declare.ddl import parse_columns
from lanemq.pipelines.stages.transitions.worker import RowShape


def shape(columns: str) -> RowShape:
    return RowShape(to_arrow_schema(parse_columns(columns), timezone="UTC"))


def test_values_are_in_column_order_and_missing_ones_are_null() -> None:
    rows = shape("a string, b long, c double")
    assert rows({"b": 1, "a": "x", "c": 0.5}) == ("x", 1, 0.5)
    assert rows({"b": 1}) == (None, 1, None)
    assert rows.columns([("x", 1, 0.5), (None, 1, None)]).num_rows == 2


def test_a_row_may_have_a_single_column() -> None:
    assert shape("a long")({"a": 5}) == (5,)


@pytest.mark.parametrize(
    ("columns", "row"),
    [
        ("a long", {"b": 1}),
        ("a long", {"a": 1, "b": 1}),
        ("a long", {"a": "1"}),
        ("a long", {"a": 1.5}),
        ("a long", {"a": 2**63}),
        ("a int", {"a": -(2**31) - 1}),
        ("a tinyint", {"a": 128}),
        ("a string", {"a": 5}),
        ("a boolean", {"a": "yes"}),
        ("a decimal(4,2)", {"a": Decimal("123.45")}),
        ("a date", {"a": "2024-01-01"}),
        ("a double", {"a": 2**60 + 1}),
    ],
)
def test_a_value_that_does_not_fit_is_refused_also_after_ones_that_did(columns: str, row: dict[str, object]) -> None:
    """Types that were seen are not tried again, so a good first row must not let a bad second one pass."""
    rows = shape(columns)
    good = {"long": 1, "int": 1, "tinyint": 1, "string": "x", "boolean": True, "double": 1.0}
    kind = columns.split()[1]
    for _ in range(2):
        if kind in good:
            rows({"a": good[kind]})
        with pytest.raises((TypeError, ValueError), match="output"):
            rows(row)


def test_dates_times_decimals_and_nested_values_fit() -> None:
    rows = shape("d date, t timestamp, m decimal(6,2), l array<long>, s struct<x: int, y: string>")
    row = {"d": date(2024, 1, 2), "t": datetime(2024, 1, 2), "m": Decimal("1.50"), "l": [1, 2], "s": {"x": 1, "y": "z"}}  # noqa: DTZ001
    table = rows.columns([rows(row), rows(row)])
    assert table.column("l").to_pylist() == [[1, 2], [1, 2]]
    assert table.schema.field("t").type == pa.timestamp("us", tz="UTC")


def test_columns_can_be_written_as_spark_writes_them() -> None:
    text = "id bigint NOT NULL, `full name` string, price DECIMAL(12, 2), tags array<map<string,int>>, at timestamp"
    assert parse_columns(text).simpleString() == (
        "struct<id:bigint,full name:string,price:decimal(12,2),tags:array<map<string,int>>,at:timestamp>"
    )
    assert [field.nullable for field in parse_columns("a int not null, b int")] == [False, True]


@pytest.mark.parametrize("text", ["", "a", "a text", "a array<>", "a array<int", "a map<string>", "a int,", "a int<5>"])
def test_columns_that_cannot_be_read_are_refused(text: str) -> None:
    with pytest.raises(InvalidOption):
        parse_columns(text)
