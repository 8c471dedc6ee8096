"""What Debezium writes in place of a value: the mark of a column that an update did not touch, and precise decimals.

The rules guarded here: the mark is never taken for a value, in whatever form it comes; a decimal is decoded only where
it was declared to be Base64, because digits alone are Base64 too and would be another number.
"""

from base64 import b64decode, b64encode
from collections.abc import Sequence
from decimal import Decimal
from typing import Any, Final

import pyarrow as pa
import pyarrow.types as pt

UNAVAILABLE: Final = "__debezium_unavailable_value"
"""Stands for a large (TOAST) column of PostgreSQL that an update did not touch; the log does not have its value."""
_AS_BYTES: Final = b64encode(UNAVAILABLE.encode()).decode()
_MOST_BYTES: Final = 64
"""Of an unscaled number; decimals have at most 38 digits."""


def left_out(values: Sequence[Any], wanted: pa.DataType) -> list[int]:
    """The places of values that are only the mark of an untouched column."""
    marks = _marks(wanted)
    if not any(mark in values for mark in marks):
        return []
    return [place for place, value in enumerate(values) if value in marks]


def _marks(wanted: pa.DataType) -> tuple[Any, ...]:
    """Only text, bytes, numbers of many digits and what is made of them can be too large for their row."""
    if pt.is_binary(wanted):
        return UNAVAILABLE, _AS_BYTES
    if pt.is_nested(wanted):
        return UNAVAILABLE, [UNAVAILABLE], {UNAVAILABLE: UNAVAILABLE}
    return (UNAVAILABLE,) if pt.is_string(wanted) or pt.is_decimal(wanted) else ()


def precise(values: Sequence[Any], scale: int) -> list[Any]:
    """`decimal.handling.mode=precise`: the unscaled number in Base64. What is none stays as it is."""
    return [_exact(value, scale) if isinstance(value, str | dict) else value for value in values]


def _exact(value: Any, scale: int) -> Any:
    if isinstance(value, dict):  # a column without a scale of its own: every value says it
        return _exact(value["value"], value["scale"]) if _has_scale(value) else value
    try:
        number = b64decode(value, validate=True)
    except ValueError:
        return value
    if not 0 < len(number) <= _MOST_BYTES:
        return value
    return Decimal(f"{int.from_bytes(number, 'big', signed=True)}E{-scale}")


def _has_scale(value: dict[str, Any]) -> bool:
    return isinstance(value.get("value"), str) and type(value.get("scale")) is int and abs(value["scale"]) < 1000
