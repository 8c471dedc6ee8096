"""JSON values as typed columns."""

from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

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
        (True, pa.int8(), 1),
        (1, pa.bool_(), True),
        ("0", pa.bool_(), False),
        ("true", pa.bool_(), True),
        (3, pa.float64(), 3.0),
        ("1.5", pa.float64(), 1.5),
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
        (1706702400000, MOMENT, NOON),
        ([1, "2"], pa.list_(pa.int64()), [1, 2]),
        ("[1]", pa.list_(pa.int64()), [1]),
        ({"x": "1", "y": 2}, pa.struct([("x", pa.int32()), ("z", pa.string())]), {"x": 1, "z": None}),
        ({"x": 1}, pa.map_(pa.string(), pa.int64()), [("x", 1)]),
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
        (2**53 + 1, pa.float64()),
        (True, pa.float64()),
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
        (1.5, MOMENT),
        ("31.01.2024", pa.date32()),
        (-62_135_596_800_001, MOMENT),
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
