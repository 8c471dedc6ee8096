"""JSON values as Arrow columns of the declared types.

Whole columns are converted at once; only if that fails is the column halved until the misfits are alone.

Dates may be days since 1970, timestamps a number since 1970 in the given unit. Text without a zone is UTC. Binary
columns are Base64. A text column takes numbers, objects and lists as their JSON. True and false are no numbers, but 1
and 0 are booleans, because MySQL has no others.

A fraction is read as the nearest double, as every reader of JSON does. A number fits a floating column if the column
holds it exactly, or if it is the shortest text of what the column holds: 0.1 fits a float, 16777217 does not.

Invariant: a value that its type cannot hold exactly, in this sense, becomes null and is reported. The result of a value
does not depend on its neighbours.
"""

import re
from base64 import b64decode
from collections.abc import Callable, Sequence
from datetime import date, datetime
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
_LONG_INTEGER = "^[+-]?[0-9]{16,}$"
_MORE_ZEROS = r"(\.[0-9]{6})0{1,3}([^0-9]|$)"
"""Digits that say nothing after microseconds. Times in nanoseconds would end in 2262."""
_EXACT_DOUBLES = 2.0**53
"""From here on, several integers are the same double."""


def convert(values: Sequence[Any], wanted: pa.DataType, unit: str = "ms") -> tuple[pa.Array, Misfits]:
    """Converts values to a column. Returns it, and the indices of values that do not fit."""
    kinds = set(map(type, values)) - {type(None)}
    if not kinds:
        return pa.nulls(len(values), wanted), []
    if len(kinds) > 1 and not (kinds == {int, float} and pt.is_floating(wanted)):
        return _mixed(values, wanted, unit)
    conversion = _CONVERSIONS.get(float if len(kinds) > 1 else kinds.pop(), _refuse)
    misfits: Misfits = []
    pieces = _halving(values, lambda some: _in_calendar(conversion(some, wanted, unit)), wanted, 0, misfits)
    return (pieces[0] if len(pieces) == 1 else pa.concat_arrays(pieces)), misfits


def _halving(
    values: Sequence[Any],
    conversion: Callable[[Sequence[Any]], pa.Array],
    wanted: pa.DataType,
    start: int,
    misfits: Misfits,
) -> list[pa.Array]:
    try:
        return [conversion(values)]
    except _FAILURES:
        if len(values) == 1:
            misfits += [start] if values[0] is not None else []
            return [pa.nulls(1, wanted)]
    half = len(values) // 2
    return [
        *_halving(values[:half], conversion, wanted, start, misfits),
        *_halving(values[half:], conversion, wanted, start + half, misfits),
    ]


def _in_calendar(column: pa.Array) -> pa.Array:
    """Refuses times outside the years 1 to 9999, which Spark cannot hold and which come from a wrong unit."""
    if pt.is_timestamp(column.type) or pt.is_date(column.type):
        calendar = date if pt.is_date(column.type) else datetime
        first, last = (pa.scalar(end).cast(column.type) for end in (calendar.min, calendar.max))
        found = pc.min_max(column)
        if pc.or_(pc.less(found["min"], first), pc.greater(found["max"], last)).as_py():
            raise ValueError("outside the calendar")
    return column


def _mixed(values: Sequence[Any], wanted: pa.DataType, unit: str) -> tuple[pa.Array, Misfits]:
    """Converts values of several types: one column per type, then merged in order."""
    indices: dict[type, list[int]] = {}
    for index, value in enumerate(values):
        indices.setdefault(type(value), []).append(index)
    columns, order, misfits = [], [], Misfits()
    for mine in indices.values():
        column, wrong = convert([values[index] for index in mine], wanted, unit)
        columns.append(column)
        order += mine
        misfits += [mine[index] for index in wrong]
    back = pc.sort_indices(pa.array(order))
    return pa.concat_arrays(columns).take(back), sorted(misfits)


def _from_text(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    column = pa.array(values, pa.string())
    if pt.is_string(wanted):
        return column
    if pt.is_binary(wanted):
        return pa.array([None if value is None else b64decode(value, validate=True) for value in values], wanted)
    if pt.is_timestamp(wanted):
        return _timestamps(column, wanted)
    if pt.is_nested(wanted):
        return _from_nested([None if value is None else _EXACTLY.decode(value) for value in values], wanted, unit)
    if pt.is_floating(wanted):
        return _floats_from_text(column, wanted)
    if pt.is_integer(wanted) and _any_match(column, "[xX]"):
        raise ValueError("hexadecimal digits, which Arrow would read")
    if pt.is_decimal(wanted) and _any_match(column, _LONG_DECIMAL):
        column = pa.array([_plain_digits(value, wanted) for value in values], pa.string())
    return column.cast(wanted)


def _any_match(column: pa.Array, pattern: str) -> bool:
    return bool(pc.any(pc.match_substring_regex(column, pattern)).as_py())


def _floats_from_text(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    doubles = column.cast(pa.float64())
    endless = pc.is_inf(doubles)
    if pc.any(endless).as_py() and _any_match(column.filter(endless), "[0-9]"):
        raise ValueError("larger than the largest double")
    if _any_match(column, _LONG_INTEGER):
        whole = pc.match_substring_regex(column, _LONG_INTEGER)
        _doubles([int(text) for text in column.filter(whole).to_pylist()])
    return _narrowed(doubles, wanted)


def _doubles(values: Sequence[Any]) -> pa.Array:
    """Numbers as doubles. Arrow refuses every integer from 2**53 on, although some of them are doubles."""
    try:
        return pa.array(values, pa.float64())
    except pa.ArrowInvalid:
        return pa.array([_double(value) if type(value) is int else value for value in values], pa.float64())


def _double(value: int) -> float:
    nearest = float(value)
    if int(nearest) != value and Decimal(repr(nearest)) != value:
        raise ValueError("no double is this integer")
    return nearest


def _narrowed(doubles: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Doubles as the column's type, which may have fewer bits; `ValueError` if one of them becomes another number."""
    if doubles.type == wanted:
        return doubles
    floats = doubles.cast(wanted, safe=False)
    exact = pc.equal(floats.cast(pa.float64()), doubles)
    if not pc.all(exact).as_py():
        written = floats.cast(pa.string()).cast(pa.float64())
        same = pc.or_(pc.or_(exact, pc.equal(written, doubles)), pc.is_nan(doubles))
        if not pc.all(same).as_py():
            raise ValueError(f"not a number that {wanted} can hold")
    return floats


def _plain_digits(value: str | None, wanted: pa.DataType) -> str | None:
    """Writes out a decimal with an exponent or very many digits, which Arrow does not cast safely."""
    if value is None or not re.search(_LONG_DECIMAL, value):
        return value
    return format(_scaled([Decimal(value)], wanted)[0], "f")


def _scaled(values: Sequence[Decimal | None], wanted: pa.DataType) -> list[Decimal | None]:
    """The values with the column's scale, or `ArithmeticError`. A huge exponent would crash Arrow."""
    scale = Decimal(1).scaleb(-wanted.scale)
    return [None if value is None else value.quantize(scale, context=_EXACT) for value in values]


def _timestamps(column: pa.Array, wanted: pa.DataType) -> pa.Array:
    """Parses text with or without a zone. A part of a microsecond is an error, because columns cannot hold it."""
    column = pc.replace_substring_regex(column, _MORE_ZEROS, r"\1\2")
    for form in (pa.timestamp("us"), pa.timestamp("us", "UTC")):
        try:
            times = column.cast(form)
        except pa.ArrowInvalid:
            continue
        return times.cast(pa.timestamp("us", "UTC")).cast(wanted)
    raise ValueError("not timestamps, or some with a zone and some without")


def _from_integers(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    if pt.is_string(wanted):
        return pa.array([None if value is None else str(value) for value in values], wanted)
    if pt.is_decimal(wanted):
        return pa.array([None if value is None else Decimal(value) for value in values], wanted)
    if pt.is_floating(wanted):
        return _narrowed(_doubles(values), wanted)
    numbers = pa.array(values, pa.int64())
    if pt.is_timestamp(wanted):
        return numbers.cast(pa.timestamp(unit)).cast(pa.timestamp("us", "UTC")).cast(wanted)
    if pt.is_date(wanted):
        return numbers.cast(pa.int32()).cast(wanted)
    if pt.is_boolean(wanted) and not pc.all(pc.is_in(numbers, pa.array([0, 1, None], pa.int64()))).as_py():
        raise ValueError("neither 0 nor 1")
    return numbers.cast(wanted)


def _from_floats(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    if pt.is_floating(wanted):
        return _narrowed(_doubles(values), wanted)
    if pt.is_integer(wanted):
        doubles = pa.array(values, pa.float64())
        if pc.any(pc.greater_equal(pc.abs(doubles), _EXACT_DOUBLES)).as_py():
            raise ValueError("the double may stand for another integer than the text had")
        return doubles.cast(wanted)  # never directly to integers: that truncates silently
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


def _from_booleans(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    truths = pa.array(values, pa.bool_())
    if pt.is_boolean(wanted) or pt.is_string(wanted):
        return truths.cast(wanted)
    raise TypeError(f"true and false do not fit {wanted}")


def _from_nested(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    """Converts lists and objects part by part; a part that does not fit makes the whole value a misfit."""
    if pt.is_string(wanted):
        return pa.array([None if value is None else _JSON.encode(value).decode() for value in values], wanted)
    missing = pa.array([value is None for value in values], pa.bool_())
    if pt.is_struct(wanted) and all(isinstance(value, dict | None) for value in values):
        parts = [_strict([(value or {}).get(field.name) for value in values], field.type, unit) for field in wanted]
        return pa.StructArray.from_arrays(parts, fields=list(wanted), mask=missing)
    if pt.is_list(wanted) and all(isinstance(value, list | None) for value in values):
        inner = _strict([each for value in values for each in value or ()], wanted.value_type, unit)
        return pa.ListArray.from_arrays(_list_offsets(values), inner, type=wanted, mask=missing)
    if pt.is_map(wanted) and all(isinstance(value, dict | None) for value in values):
        names = _strict([name for value in values for name in value or ()], wanted.key_type, unit)
        _refuse_equal_names(values, names)
        items = _strict([item for value in values for item in (value or {}).values()], wanted.item_type, unit)
        return pa.MapArray.from_arrays(_list_offsets(values), names, items, type=wanted, mask=missing)
    raise TypeError(f"a list or an object does not fit {wanted}")


def _refuse_equal_names(values: Sequence[Any], names: pa.Array) -> None:
    """Raises if two names of an object are one key of a map, as "1" and "01" are for integers."""
    if pt.is_string(names.type):
        return
    found = iter(names.to_pylist())
    for value in values:
        keys = [next(found) for _ in value or ()]
        if len(set(keys)) < len(keys):
            raise ValueError("two names are the same key")


def _strict(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    column, misfits = convert(values, wanted, unit)
    if misfits:
        raise ValueError(f"{len(misfits)} parts do not fit {wanted}")
    return column


def _list_offsets(values: Sequence[Any]) -> pa.Array:
    ends, end = [0], 0
    for value in values:
        end += len(value or ())
        ends.append(end)
    return pa.array(ends, pa.int32())


def _refuse(values: Sequence[Any], wanted: pa.DataType, unit: str) -> pa.Array:
    raise TypeError(f"{type(values[0]).__name__} does not fit {wanted}")


_CONVERSIONS: dict[type, Callable[[Sequence[Any], pa.DataType, str], pa.Array]] = {
    str: _from_text,
    int: _from_integers,
    float: _from_floats,
    Decimal: _from_decimals,
    bool: _from_booleans,
    dict: _from_nested,
    list: _from_nested,
}
