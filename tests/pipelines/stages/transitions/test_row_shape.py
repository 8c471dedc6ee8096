"""Rows of a step against the columns of the outputs."""

from datetime import UTC, date, datetime, timedelta, timezone
from decimal import Decimal
from math import inf, isnan, nan
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd
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
        ("a float", {"a": 1e39}),
        ("a float", {"a": 1e-50}),
        ("a float", {"a": True}),
    ],
)
def test_a_value_that_does_not_fit_is_refused_also_after_ones_that_did(columns: str, row: dict[str, object]) -> None:
    """Types that were seen are not tried again, so a good first row must not let a bad second one pass."""
    rows = shape(columns)
    good = {"long": 1, "int": 1, "tinyint": 1, "string": "x", "boolean": True, "double": 1.0, "float": 1.0}
    kind = columns.split()[1]
    for _ in range(2):
        if kind in good:
            rows({"a": good[kind]})
        with pytest.raises((TypeError, ValueError), match="output"):
            rows(row)


MIDNIGHT = datetime(2024, 1, 2, tzinfo=UTC)


@pytest.mark.parametrize(
    ("kind", "value", "reason"),
    [
        ("array<int>", [1.5], "1.5 would become 1"),
        ("array<int>", [1, 1.0], "1.0 would become 1"),
        ("array<int>", [True], "bool"),
        ("array<long>", np.array([1.5]), "would become 1"),
        ("array<string>", "ab", r"'ab' would become \['a', 'b'\]"),
        ("array<int>", b"ab", r"would become \[97, 98\]"),
        ("array<float>", [0.1, 1e39], "1e\\+39 would become inf"),
        ("array<date>", [MIDNIGHT], r"would become datetime.date\(2024, 1, 2\)"),
        ("map<string,int>", {"a": 1.5}, "1.5 would become 1"),
        ("map<string,int>", [("a", 1.5)], "1.5 would become 1"),
        ("map<int,string>", {1.5: "a"}, "1.5 would become 1"),
        ("struct<x:int>", {"x": 1.5}, "1.5 would become 1"),
        ("struct<x:int>", (1.5,), "1.5 would become 1"),
        ("struct<x:int>", {"x": 1, "y": 2}, r"fields \['y'\]"),
        ("struct<x:array<struct<y:date>>>", {"x": [{"y": 5}]}, "5 would become"),
        ("long", Decimal("1.5"), "would become 1"),
        ("long", np.float32(1.5), "would become 1"),
        ("long", np.True_, "would become 1"),
        ("float", True, "True would become 1.0"),
        ("date", MIDNIGHT, "would become"),
        ("date", 5, r"5 would become datetime.date\(1970, 1, 6\)"),
        ("timestamp", 5, "5 would become"),
        ("timestamp", pd.Timestamp("2024-01-02 00:00:00.000000001"), "would become"),
        ("timestamp", datetime.max.replace(tzinfo=timezone(-timedelta(hours=1))), "out of range"),
    ],
)
def test_a_value_that_its_column_would_change_is_refused(kind: str, value: object, reason: str) -> None:
    """Arrow truncates, rounds or drops these without an error, and the result would look like data."""
    with pytest.raises(TypeError, match=f"output 'a': .*{reason}"):
        shape(f"a {kind}")({"a": value})


@pytest.mark.parametrize(
    ("kind", "value", "held"),
    [
        ("date", MIDNIGHT.date(), MIDNIGHT.date()),
        ("date", date.max, date.max),
        ("timestamp", MIDNIGHT, MIDNIGHT),
        ("timestamp", MIDNIGHT.replace(tzinfo=None), MIDNIGHT),
        (
            "timestamp",
            datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin")),
            datetime(2024, 10, 27, 0, 30, tzinfo=UTC),
        ),
        ("timestamp_ntz", MIDNIGHT.replace(tzinfo=None), MIDNIGHT.replace(tzinfo=None)),
        ("timestamp", pd.Timestamp(MIDNIGHT), MIDNIGHT),
        ("decimal(6,2)", Decimal("1.5"), Decimal("1.50")),
        ("decimal(6,2)", 1, Decimal("1.00")),
        ("long", Decimal(1), 1),
        ("long", np.int64(1), 1),
        ("double", 1, 1.0),
        ("double", inf, inf),
        ("float", 0.1, 0.10000000149011612),
        ("float", 1 / 3, 0.3333333432674408),
        ("float", -inf, -inf),
        ("string", b"\xc3\xa4", "ä"),
        ("binary", "ä", b"\xc3\xa4"),
        ("binary", bytearray(b"a"), b"a"),
        ("array<long>", [1, None], [1, None]),
        ("array<long>", (1, 2), [1, 2]),
        ("array<long>", np.array([1, 2]), [1, 2]),
        ("array<timestamp>", [MIDNIGHT.replace(tzinfo=None)], [MIDNIGHT]),
        ("struct<x:int,y:string>", {"x": 1}, {"x": 1, "y": None}),
        ("struct<x:int,y:string>", (1, "z"), {"x": 1, "y": "z"}),
        ("struct<x:int,y:string>", [("x", 1), ("y", "z")], {"x": 1, "y": "z"}),
        ("map<string,array<double>>", {"a": [0.1], "b": None}, [("a", [0.1]), ("b", None)]),
        ("map<string,int>", [{"key": "a", "value": 1}], [("a", 1)]),
    ],
)
def test_a_value_that_its_column_holds_unchanged_fits(kind: str, value: object, held: object) -> None:
    rows = shape(f"a {kind}")
    assert rows.columns([rows({"a": value}), rows({"a": None})]).column("a").to_pylist() == [held, None]


def test_not_a_number_fits_floating_columns() -> None:
    assert isnan(shape("a float")({"a": nan})[0])


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


def test_a_row_stays_as_it_was_when_the_step_changes_a_list_of_its_state() -> None:
    """Rows are written at the end of a batch, and a step may return a part of its state and add to it later."""
    rows = shape("seen array<long>, parts map<string,array<int>>, raw binary, inner struct<names:array<string>>")
    seen, parts, raw, inner = [1], {"a": [1]}, bytearray(b"x"), {"names": ["n"]}
    for _ in range(2):
        row = rows({"seen": seen, "parts": parts, "raw": raw, "inner": inner})
        before = rows.columns([row])
        seen.append(2)
        parts["a"].append(2)
        raw.extend(b"y")
        inner["names"].append("m")
        assert rows.columns([row]) == before


def test_a_map_with_a_key_twice_is_refused() -> None:
    """Tables and JSON hold one of the two values."""
    rows = shape("a map<string,int>")
    assert rows({"a": {"x": 1, "y": 2}}) == ([("x", 1), ("y", 2)],)
    with pytest.raises(TypeError, match="a key twice"):
        rows({"a": [("x", 1), ("x", 2)]})
