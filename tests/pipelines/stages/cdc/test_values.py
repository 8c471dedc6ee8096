"""JSON values as typed columns."""

from datetime import UTC, date, datetime
from decimal import Decimal
from math import inf, isnan
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.pipelines.stages.cdc.values import convert

NOON = datetime(2024, 1, 31, 12, 0, tzinfo=UTC)
MOMENT = pa.timestamp("us", "UTC")


@pytest.mark.parametrize(
    ("value", "wanted", "found"),
    [
        (7, pa.int64(), 7),
        ("7", pa.int64(), 7),
        (7.0, pa.int32(), 7),
        (-0.0, pa.int32(), 0),
        (1, pa.bool_(), True),
        ("0", pa.bool_(), False),
        ("true", pa.bool_(), True),
        (3, pa.float64(), 3.0),
        ("1.5", pa.float64(), 1.5),
        (2**60, pa.float64(), 2.0**60),
        (10**23, pa.float64(), 1e23),
        ("1152921504606846976", pa.float64(), 2.0**60),
        ("Infinity", pa.float64(), inf),
        (0.1, pa.float32(), 0.10000000149011612),
        (0.10000000149011612, pa.float32(), 0.10000000149011612),
        ("0.1", pa.float32(), 0.10000000149011612),
        (Decimal("3.4028235e38"), pa.float32(), 3.4028234663852886e38),
        (16777216, pa.float32(), 16777216.0),
        (10**11, pa.float32(), 99999997952.0),
        ("-Infinity", pa.float32(), -inf),
        (7, pa.string(), "7"),
        (True, pa.string(), "true"),
        ({"a": [1]}, pa.string(), '{"a":[1]}'),
        (Decimal("12.10"), pa.decimal128(10, 2), Decimal("12.10")),
        ("12.1", pa.decimal128(10, 2), Decimal("12.10")),
        (12, pa.decimal128(10, 2), Decimal("12.00")),
        ("1.2e1", pa.decimal128(10, 2), Decimal("12.00")),
        ("12." + "0" * 1000, pa.decimal128(10, 2), Decimal("12.00")),
        (Decimal("12." + "0" * 1000), pa.decimal128(10, 2), Decimal("12.00")),
        (Decimal("0e-999999999"), pa.decimal128(10, 2), Decimal("0.00")),
        ("[12345678901234567.01]", pa.list_(pa.decimal128(20, 2)), [Decimal("12345678901234567.01")]),
        ("[0.5]", pa.list_(pa.float64()), [0.5]),
        (Decimal("0.5"), pa.float64(), 0.5),
        ("aGk=", pa.binary(), b"hi"),
        ("2024-01-31", pa.date32(), date(2024, 1, 31)),
        (19753, pa.date32(), date(2024, 1, 31)),
        ("2024-01-31 12:00:00", MOMENT, NOON),
        ("2024-01-31T12:00:00.000000000Z", MOMENT, NOON),
        ("2024-01-31T14:00:00+02:00", MOMENT, NOON),
        ("2024-01-31T14:00:00.000000000+02:00", MOMENT, NOON),
        (1706702400000, MOMENT, NOON),
        ("9999-12-31", pa.date32(), date.max),
        (2_932_896, pa.date32(), date.max),
        ("9999-12-31", MOMENT, datetime(9999, 12, 31, tzinfo=UTC)),
        ("9999-12-31T23:59:59.999999Z", MOMENT, datetime.max.replace(tzinfo=UTC)),
        (253_402_300_799_999, MOMENT, datetime(9999, 12, 31, 23, 59, 59, 999_000, UTC)),
        ("0001-01-01", pa.date32(), date.min),
        (-62_135_596_800_000, MOMENT, datetime.min.replace(tzinfo=UTC)),
        ([1, "2"], pa.list_(pa.int64()), [1, 2]),
        ("[1]", pa.list_(pa.int64()), [1]),
        ({"x": "1", "y": 2}, pa.struct([("x", pa.int32()), ("z", pa.string())]), {"x": 1, "z": None}),
        ({"x": 1}, pa.map_(pa.string(), pa.int64()), [("x", 1)]),
        ({"1": 1, "2": 1}, pa.map_(pa.int32(), pa.int64()), [(1, 1), (2, 1)]),
        ("9999-12-31T23:59:59.9999990", MOMENT, datetime.max.replace(tzinfo=UTC)),
        ("0001-01-01 00:00:00.0000000+00:00", MOMENT, datetime.min.replace(tzinfo=UTC)),
    ],
)
def test_a_value_that_fits_is_kept_exactly(value: Any, wanted: pa.DataType, found: Any) -> None:
    column, misfits = convert([value, None], wanted)
    assert (column.type, column.to_pylist(), misfits) == (wanted, [found, None], [])


@pytest.mark.parametrize(
    ("value", "wanted"),
    [
        ("seven", pa.int64()),
        (7.5, pa.int64()),
        (300, pa.int8()),
        (2**63, pa.int64()),
        (2, pa.bool_()),
        ("maybe", pa.bool_()),
        (True, pa.int64()),
        (False, pa.int8()),
        (True, pa.float64()),
        (1.0, pa.bool_()),
        ("0x10", pa.int64()),
        (2.0**53, pa.int64()),
        (2**53 + 1, pa.float64()),
        (10**400, pa.float64()),
        ("9007199254740993", pa.float64()),
        ("1e400", pa.float64()),
        (16777217, pa.float32()),
        (1e39, pa.float32()),
        (0.123456789, pa.float32()),
        (Decimal("16777217"), pa.float32()),
        ("16777217", pa.float32()),
        ("-1e39", pa.float32()),
        (Decimal("1.234"), pa.decimal128(10, 2)),
        (Decimal("1e400"), pa.float64()),
        (Decimal("1e-999999999"), pa.decimal128(10, 2)),
        (Decimal("1e-999999999"), pa.int64()),
        (Decimal("1e999999999"), pa.decimal128(10, 2)),
        ("1e-999999999", pa.decimal128(10, 2)),
        ("1e-99999999999999999999999", pa.decimal128(10, 2)),
        ("1e999999999", pa.decimal128(10, 2)),
        ("0." + "0" * 1000 + "1", pa.decimal128(10, 2)),
        ("e" * 50, pa.decimal128(10, 2)),
        ("[1e-999999999]", pa.list_(pa.decimal128(10, 2))),
        (Decimal("-1e999999999"), pa.float32()),
        (Decimal("1.5"), pa.int64()),
        (Decimal("1e400"), pa.int64()),
        ("[" * 100_000, pa.list_(pa.int64())),
        ("123456789.00", pa.decimal128(5, 2)),
        ("not base64!", pa.binary()),
        (7, pa.binary()),
        ("yesterday", MOMENT),
        ("2024-01-31T12:00:00.0000000000", MOMENT),
        ({"1": 1, "01": 2}, pa.map_(pa.int32(), pa.int64())),
        ("2024-01-31T12:00:00.123456789", MOMENT),
        ("2024-01-31T12:00:00.123456789Z", MOMENT),
        ("2024-01-31T12:00:00.123456789", pa.timestamp("us")),
        (1.5, MOMENT),
        ("31.01.2024", pa.date32()),
        (-62_135_596_800_001, MOMENT),
        (253_402_300_800_000, MOMENT),
        ("9999-12-31T23:59:59-01:00", MOMENT),
        (2_932_897, pa.date32()),
        (-719_163, pa.date32()),
        (10**7, pa.date32()),
        ([1], pa.int64()),
        ([1, "x"], pa.list_(pa.int64())),
        ([1.5], pa.list_(pa.int64())),
        ({"x": 1}, pa.list_(pa.int64())),
        ("{", pa.struct([("x", pa.int32())])),
    ],
)
def test_a_value_that_does_not_fit_is_null_and_reported(value: Any, wanted: pa.DataType) -> None:
    """A rounded, truncated or guessed value would look like data."""
    column, misfits = convert([None, value], wanted)
    assert (column.to_pylist(), misfits) == ([None, None], [1])


@given(st.floats(width=32, allow_nan=False))
def test_every_float_survives_as_its_shortest_text_and_as_a_double(value: float) -> None:
    shortest = float(str(np.float32(value)))
    column, misfits = convert([shortest, value, str(np.float32(value))], pa.float32())
    assert (column.to_pylist(), misfits) == ([value] * 3, [])


@given(st.decimals(-(10**20), 10**20, allow_nan=False).map(lambda number: float(f"{number:.6g}")))
def test_every_number_of_six_digits_fits_a_float(value: float) -> None:
    """Databases write the values of float columns with six digits or more."""
    assert convert([value], pa.float32())[1] == []


def test_parts_of_a_microsecond_are_not_cut_off() -> None:
    column, misfits = convert([1706702400_000_000_999, 1706702400_000_001_000], MOMENT, "ns")
    assert (column.to_pylist(), misfits) == ([None, NOON.replace(microsecond=1)], [0])


def test_not_a_number_is_a_float() -> None:
    column, misfits = convert(["NaN", 0.1], pa.float32())
    assert (isnan(column[0].as_py()), misfits) == (True, [])


def test_no_values_give_an_empty_column() -> None:
    for wanted in (pa.int64(), pa.string(), MOMENT, pa.binary(), pa.list_(pa.int64()), pa.bool_()):
        assert convert([], wanted)[0].type == wanted


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**65), 2**65),
    st.integers(0, 2),
    st.floats(allow_nan=False, allow_infinity=False),
    st.sampled_from(["1", "x", "true", "2024-01-31", "2024-01-31T12:00:00Z", "aGk=", "[1]", ""]),
    st.decimals(allow_nan=False, allow_infinity=False, places=3),
    st.lists(st.integers(0, 3), max_size=2),
    st.just({"x": 1}),
)
TYPES = st.sampled_from(
    [
        pa.int64(), pa.int8(), pa.float64(), pa.float32(), pa.bool_(), pa.string(), pa.decimal128(10, 2), pa.date32(),
        MOMENT, pa.timestamp("us"), pa.binary(), pa.list_(pa.int64()), pa.struct([("x", pa.int64())]),
    ]
)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(values=st.lists(VALUES, max_size=12), wanted=TYPES)
def test_a_value_is_converted_the_same_whatever_its_neighbours(values: list[Any], wanted: pa.DataType) -> None:
    together, misfits = convert(values, wanted)
    alone = [convert([value], wanted) for value in values]
    assert together.to_pylist() == [column[0].as_py() for column, _ in alone]
    assert misfits == [index for index, (_, wrong) in enumerate(alone) if wrong]
