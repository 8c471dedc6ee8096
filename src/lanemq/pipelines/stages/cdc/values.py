"""Values out of JSON as Arrow columns of the declared types.

The rules guarded here: a value that the type cannot hold exactly becomes null and is reported, whatever stands beside
it; the result does not depend on the neighbours of a value. Whole columns are converted at once; only when that fails
is the column cut in halves until the misfits are alone.

Dates may be days since 1970, timestamps a number since 1970 in the unit asked for. Text without a zone is UTC. Binary
columns are Base64. A text column takes numbers, objects and lists as their JSON.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import date
from decimal import Context, Decimal, Inexact, InvalidOperation
from math import inf
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

Misfits = list[int]
_FAILURES = (pa.ArrowException, ValueError, TypeError, ArithmeticError, RecursionError, msgspec.MsgspecError)
_JSON = msgspec.json.Encoder(decimal_format="number")
_EXACTLY = msgspec.json.Decoder(float_hook=Decimal)
_WHOLE = pa.decimal128(38, 0)
_EXACT = Context(prec=38, traps=[Inexact, InvalidOperation])
_LONG_DECIMAL = "[eE]|.{40}"


def convert(values: Sequence[Any], wanted: pa.DataType, unit: str = "ms") -> tuple[pa.Array, Misfits]:
    """The values as a column, and the places of those that do not fit."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.nulls(len(values), wanted), []
    if len(kinds) > 1 and not (kinds == {int, float} and pt.is_floating(wanted)):
        return _mixed(values, wanted, unit)
    way = _WAYS.get(float if len(kinds) > 1 else kinds.pop(), _nothing)
    misfits: Misfits = []
    pieces = _halving(values, lambda some: _in_calendar(way(some, wanted, unit)), wanted, 0, misfits)
    return (pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)), misfits


def _halving(
    values: Sequence[Any], way: Callable[[Sequence[Any]], pa.Array], wanted: pa.DataType, start: int, misfits: Misfits
) -> list[pa.Array]:
    try:
        return [way(values)]
    except _FAILURES:
        if len(values) == 1:
            misfits += [start] if values[0] is not None else []
            return [pa.nulls(1, wanted)]
    half = len(values) // 2
    return [
        *_halving(values[:half], way, wanted, start, misfits),
        *_halving(values[half:], way, wanted, start + half, misfits),
    ]


def _in_calendar(column: pa.Array) -> pa.Array:
    """Moments outside the years 1 to 9999 are milliseconds taken for seconds or the like; Spark cannot hold them."""
    if pt.is_timestamp(column.type) or pt.is_date(column.type):
        first, last = (pa.scalar(day).cast(column.type) for day in (date(1, 1, 1), date(9999, 12, 31)))
        found = pc.min_max(column)
        if (
            found["min"].is_valid
            and not (pc.greater_equal(found["min"], first) and pc.less(found["max"], last)).as_py()
        ):
            raise ValueError("outside the calendar")
    return column


def _mixed(values: Sequence[Any], wanted: pa.DataType, unit: str) -> tuple[pa.Array, Misfits]:
    """Values of several kinds: one column per kind, put together again."""
    places: dict[type, list[int]] = {}
    for place, value in enumerate(values):
        places.setdefault(type(value), []).append(place)
    columns, order, misfits = [], [], Misfits()
    for mine in places.values():
        column, wrong = convert([values[place] for place in mine], wanted, unit)
        columns.append(column)
        order += mine
        misfits += [mine[place] for place in wrong]
    back = pc.sort_indices(pa.array(order))
    return pa.concat_arrays(columns).take(back), sorted(misfits)


def _from_text(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    column = pa.array(values, pa.string())
    if pt.is_string(wanted):
        return column
    if pt.is_binary(wanted):
        return pa.array([None if value is None else b64decode(value, validate=True) for value in values], wanted)
    if pt.is_timestamp(wanted):
        return _moments(column, wanted)
    if pt.is_nested(wanted):
        return _whole([None if value is None else _EXACTLY.decode(value) for value in values], wanted, unit)
    if pt.is_decimal(wanted) and pc.any(pc.match_substring_regex(column, _LONG_DECIMAL)).as_py():
        column = pa.array([_plain_digits(value, wanted) for value in values], pa.string())
    return column.cast(wanted)


def _plain_digits(value: str | None, wanted: pa.DataType) -> str | None:
    """A text with an exponent or very many digits, written out; Arrow's own way is not safe with them."""
    if value is None or not re.search(_LONG_DECIMAL, value):
        return value
    return format(_scaled([Decimal(value)], wanted)[0], "f")


def _scaled(values: Sequence[Decimal | None], wanted: pa.DataType) -> list[Decimal | None]:
    """With the column's own scale, or `ArithmeticError`. Arrow takes a wild exponent for an address."""
    scale = Decimal(1).scaleb(-wanted.scale)
    return [None if value is None else value.quantize(scale, context=_EXACT) for value in values]


def _moments(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Text with a zone, or without one; more digits than microseconds are cut off."""
    for form in (pa.timestamp("us"), pa.timestamp("us", "UTC"), pa.timestamp("ns"), pa.timestamp("ns", "UTC")):
        try:
            moments = column.cast(form)
        except pa.ArrowInvalid:
            continue
        return moments.cast(pa.timestamp("us", "UTC"), safe=False).cast(wanted)
    raise ValueError("no moments, or some with a zone and some without")


def _from_integers(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    if pt.is_string(wanted):
        return pa.array([None if value is None else str(value) for value in values], wanted)
    if pt.is_decimal(wanted):
        return pa.array([None if value is None else Decimal(value) for value in values], wanted)
    if pt.is_floating(wanted):
        return pa.array(values, pa.float64()).cast(wanted, safe=False)
    numbers = pa.array(values, pa.int64())
    if pt.is_timestamp(wanted):
        return numbers.cast(pa.timestamp(unit)).cast(pa.timestamp("us", "UTC"), safe=unit != "ns").cast(wanted)
    if pt.is_date(wanted):
        return numbers.cast(pa.int32()).cast(wanted)
    if pt.is_boolean(wanted) and not pc.all(pc.is_in(numbers, pa.array([0, 1, None], pa.int64()))).as_py():
        raise ValueError("neither 0 nor 1")
    return numbers.cast(wanted)


def _from_floats(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    if pt.is_floating(wanted):
        return pa.array(values, pa.float64()).cast(wanted, safe=False)
    if pt.is_integer(wanted):
        return pa.array(values, pa.float64()).cast(wanted)  # never straight to integers: that cuts off silently
    if pt.is_string(wanted) or pt.is_decimal(wanted):
        return _from_decimals([None if value is None else Decimal(repr(value)) for value in values], wanted, unit)
    raise TypeError(f"fractions do not fit {wanted}")


def _from_decimals(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    if pt.is_decimal(wanted):
        return pa.array(_scaled(values, wanted), wanted)
    if pt.is_string(wanted):
        return pa.array([None if value is None else str(value) for value in values], wanted)
    if pt.is_integer(wanted):
        return pa.array(_scaled(values, _WHOLE), _WHOLE).cast(wanted)
    floats = [None if value is None else float(value) for value in values]
    if inf in floats or -inf in floats:
        raise ValueError("larger than the largest double")
    return _from_floats(floats, wanted, unit)


def _from_truths(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    truths = pa.array(values, pa.bool_())
    if pt.is_boolean(wanted) or pt.is_integer(wanted) or pt.is_string(wanted):
        return truths.cast(wanted)
    raise TypeError(f"true and false do not fit {wanted}")


def _whole(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    """Lists and objects, converted part by part; one part that does not fit makes the whole a misfit."""
    if pt.is_string(wanted):
        return pa.array([None if value is None else _JSON.encode(value).decode() for value in values], wanted)
    missing = pa.array([value is None for value in values], pa.bool_())
    if pt.is_struct(wanted) and all(isinstance(value, dict | None) for value in values):
        parts = [_strict([(value or {}).get(field.name) for value in values], field.type, unit) for field in wanted]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=missing)
    if pt.is_list(wanted) and all(isinstance(value, list | None) for value in values):
        inner = _strict([each for value in values for each in value or ()], wanted.value_type, unit)
        return pa.ListArray.from_arrays(_ends(values), inner, type=wanted, mask=missing)
    if pt.is_map(wanted) and all(isinstance(value, dict | None) for value in values):
        names = _strict([name for value in values for name in value or ()], wanted.key_type, unit)
        items = _strict([item for value in values for item in (value or {}).values()], wanted.item_type, unit)
        return pa.MapArray.from_arrays(_ends(values), names, items, type=wanted, mask=missing)
    raise TypeError(f"a list or an object does not fit {wanted}")


def _strict(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    column, misfits = convert(values, wanted, unit)
    if misfits:
        raise ValueError(f"{len(misfits)} parts do not fit {wanted}")
    return column


def _ends(values: Sequence[Any]) -> pa.Array:
    ends, end = [0], 0
    for value in values:
        end += len(value or ())
        ends.append(end)
    return pa.array(ends, pa.int32())


def _nothing(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    raise TypeError(f"{type(values[0]).__name__} does not fit {wanted}")


_WAYS: dict[type, Callable[[Sequence[Any], pa.DataType, str], pa.Array]] = {
    str: _from_text,
    int: _from_integers,
    float: _from_floats,
    Decimal: _from_decimals,
    bool: _from_truths,
    dict: _whole,
    list: _whole,
}
