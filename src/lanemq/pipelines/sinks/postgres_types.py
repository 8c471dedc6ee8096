"""Which columns of PostgreSQL take which values, whatever the values are.

The rule guarded here: a column is accepted when the pipeline starts only if no value of the rows could be rounded, cut
or refused by it. So limits count (`numeric(4,1)`, `varchar(20)`, `timestamp(0)`), and types that take some texts and
not others (`uuid`, `jsonb`) are none for text: one such value would fail its batch at every start. Somebody who knows
that all texts fit may say so, but only for types that refuse what does not, and never for those that round it.
"""

from typing import Any, Final

import pyarrow as pa

from lanemq.model.errors import InvalidOption

_NUMERIC_HEADER: Final = 4
"""What PostgreSQL adds to the limits of a numeric or a varchar."""
_MICROSECONDS: Final = 6
_DIGITS: Final = {8: 3, 16: 5, 32: 10, 64: 19}
"""That a whole number of so many bits may have."""

_REFUSING: Final = frozenset("EISU")
"""Enums, addresses, texts with a limit, and what users define: uuid, json and jsonb count as that. Domains have that of
their type. Numbers, times, shapes and arrays of them are not among these: those round. `name` cuts."""

_TYPES: tuple[tuple[Any, str, frozenset[str]], ...] = (
    (pa.types.is_boolean, "boolean", frozenset({"bool"})),
    (pa.types.is_int8, "smallint", frozenset({"int2", "int4", "int8", "numeric"})),
    (pa.types.is_int16, "smallint", frozenset({"int2", "int4", "int8", "numeric"})),
    (pa.types.is_int32, "integer", frozenset({"int4", "int8", "numeric"})),
    (pa.types.is_int64, "bigint", frozenset({"int8", "numeric"})),
    (pa.types.is_float32, "real", frozenset({"float4", "float8"})),
    (pa.types.is_float64, "double precision", frozenset({"float8"})),
    (pa.types.is_decimal, "numeric", frozenset({"numeric"})),
    (pa.types.is_binary, "bytea", frozenset({"bytea"})),
    (pa.types.is_date, "date", frozenset({"date"})),
    (pa.types.is_nested, "jsonb", frozenset({"jsonb", "json", "text"})),
    (pa.types.is_string, "text", frozenset({"text", "varchar", "bpchar", "citext"})),
)
"""Arrow's type, what a new column is declared as, and which columns may take it (names of pg_type)."""


def declared(kind: pa.DataType) -> str:
    """What a new column for such values is declared as."""
    if pa.types.is_decimal(kind):
        return f"numeric({kind.precision}, {kind.scale})"
    return _known(kind)[0]


def takes(base: str, limit: int, kind: pa.DataType) -> bool:
    """Whether a column takes every value of this type as it is. `base`: of pg_type; `limit`: its atttypmod, or -1."""
    if base not in _known(kind)[1]:
        return False
    if limit < 0:
        return True
    if base == "numeric":
        return _has_digits(limit - _NUMERIC_HEADER, kind)
    return base in ("timestamp", "timestamptz") and limit >= _MICROSECONDS


def refuses(base: str, group: str, kind: pa.DataType) -> bool:
    """Whether a text that does not fit is an error there, not another value. `group`: the typcategory of pg_type."""
    return group in _REFUSING and base != "name" and bool(pa.types.is_string(kind))


def _has_digits(limit: int, kind: pa.DataType) -> bool:
    """Before the point and behind it. The scale is a number of 11 bits with a sign."""
    precision, scale = limit >> 16 & 0xFFFF, ((limit & 0x7FF) ^ 0x400) - 0x400
    is_decimal = pa.types.is_decimal(kind)
    behind = kind.scale if is_decimal else 0
    before = kind.precision - kind.scale if is_decimal else _DIGITS[kind.bit_width]
    return bool(scale >= behind and precision - scale >= before)


def _known(kind: pa.DataType) -> tuple[str, frozenset[str]]:
    if pa.types.is_timestamp(kind):
        return ("timestamptz", frozenset({"timestamptz"})) if kind.tz else ("timestamp", frozenset({"timestamp"}))
    for fits, name, accepted in _TYPES:
        if fits(kind):
            return name, accepted
    raise InvalidOption(f"type {kind} has no column in PostgreSQL: cast it to text")
