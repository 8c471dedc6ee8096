"""Whether a column of the outputs holds a value of a step unchanged.

Arrow converts what it can. 1.5 in an array of integers becomes 1, 1e39 in a `float` column becomes infinity, a datetime
in a `date` column loses its time, and a field that a struct does not have is dropped. Such a value looks like data in
the table, so it is refused, however deep it is nested.

Invariant: what the column holds equals what the step returned. Two conversions are allowed: a fraction in a `float`
column is rounded to the nearest float, and a datetime without a zone is UTC.
"""

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from math import inf
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.types as pt

UNCHANGED: Final = {
    (str, "string"),
    (str, "large_string"),
    (bytes, "binary"),
    (bool, "bool"),
    (float, "double"),
    (int, "int64"),
    (int, "int32"),
    (int, "int16"),
    (int, "int8"),
}
"""Types of values that Arrow holds unchanged or refuses: integers beyond the bounds, and texts that are not UTF-8."""


def check_value(value: object, wanted: pa.DataType) -> object:
    """What a column of this type holds of the value: a copy. Raises what says why it cannot hold it unchanged."""
    held = pa.array([value], wanted)[0].as_py()
    _check(value, held, wanted)
    return held


def _check(value: Any, held: Any, wanted: pa.DataType) -> None:
    """Compares a value with what a column of the wanted type holds of it."""
    if value is None or held is None:
        _expect(value is held, value, held)
    elif pt.is_struct(wanted):
        names = [field.name for field in wanted]
        _check_all(_fields(value, names), held.values(), [field.type for field in wanted])
    elif pt.is_map(wanted):
        entries = value.items() if isinstance(value, Mapping) else value
        if len({repr(name) for name, _ in held}) < len(held):
            raise ValueError("it has a key twice")
        for entry, pair in zip(entries, held, strict=True):
            _check_all(_fields(entry, ["key", "value"]), pair, [wanted.key_type, wanted.item_type])
    elif pt.is_list(wanted):
        _expect(not isinstance(value, str | bytes | bytearray), value, held)
        if not _is_unchanged({*map(type, value)}, wanted.value_type):
            _check_all(value, held, [wanted.value_type] * len(held))
    else:
        _expect(_is_same(value.item() if isinstance(value, np.generic) else value, held, wanted), value, held)


def _is_unchanged(kinds: set[type], wanted: pa.DataType) -> bool:
    text = str(wanted)
    return all((kind, text) in UNCHANGED for kind in kinds)


def _check_all(values: Iterable[Any], held: Iterable[Any], wanted: Sequence[pa.DataType]) -> None:
    for each in zip(values, held, wanted, strict=True):
        _check(*each)


def _fields(value: Any, names: Sequence[str]) -> Sequence[Any]:
    """The fields of a struct. Arrow takes them from a dict, a list of pairs, or a tuple in their order."""
    if isinstance(value, tuple):
        return value
    named = dict(value)
    unknown = [name for name in named if name not in names]
    if unknown:
        raise ValueError(f"it has fields {unknown} that the column does not have; it has {names}")
    return [named.get(name) for name in names]


def _is_same(value: Any, held: Any, wanted: pa.DataType) -> bool:
    """Whether a single value is held as it is. Python's 1, 1.0 and True are equal; a column does not mix them."""
    if isinstance(value, bool) or isinstance(held, bool):
        return value is held
    if isinstance(held, int):
        return not isinstance(value, float) and bool(value == held)
    if isinstance(held, float):
        return _is_same_fraction(value, held, rounded=pt.is_float32(wanted))
    if isinstance(held, datetime):
        return isinstance(value, datetime) and _in_utc(value) == _in_utc(held)
    return bool(_as_bytes(value) == _as_bytes(held))


def _is_same_fraction(value: Any, held: float, *, rounded: bool) -> bool:
    if value == held or held != held:  # only NaN differs from itself, and nothing else becomes NaN
        return True
    return rounded and isinstance(value, float) and held not in {0.0, inf, -inf}


def _in_utc(time: datetime) -> datetime:
    return time.replace(tzinfo=UTC) if time.tzinfo is None else time.astimezone(UTC)


def _as_bytes(value: Any) -> Any:
    """A text as UTF-8, which Arrow takes for a text."""
    return value.encode() if isinstance(value, str) else value


def _expect(same: bool, value: object, held: object) -> None:
    if not same:
        raise ValueError(f"{value!r:.100} would become {held!r:.100}")
