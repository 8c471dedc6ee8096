"""Checks the rows that a step returns one by one, so that a bad row fails one event and not the batch.

Arrow columns are built from many rows at once, when the state of all their events has already changed: too late to
find a value that does not fit. Combinations of value types that are known to fit are remembered.
"""

from collections.abc import Callable, Mapping
from operator import itemgetter
from typing import Any, Final

import pyarrow as pa

_SAFE: Final = {
    (str, "string"),
    (str, "large_string"),
    (bytes, "binary"),
    (bool, "bool"),
    (float, "double"),
    (float, "float"),
    (int, "int64"),
    (int, "int32"),
    (int, "int16"),
    (int, "int8"),
}
"""Types that fit, for integers within their bounds and texts that are UTF-8. All others are tried each time."""


class RowShape:
    """Checks rows against the columns of the outputs."""

    def __init__(self, schema: pa.Schema) -> None:
        self.schema = schema
        self._names = frozenset(schema.names)
        self._width = len(schema.names)
        pick = itemgetter(*schema.names)
        self._get: Callable[[Mapping[str, object]], Any] = pick if self._width > 1 else lambda row: (pick(row),)
        # Types of rows that fit, with the columns whose integers and texts still have to be checked.
        self._known: dict[tuple[type, ...], tuple[list[tuple[int, int]], list[int]]] = {}

    def __call__(self, row: Mapping[str, object]) -> tuple[Any, ...]:
        """Returns the row's values in column order. Raises an error that says what is wrong with it."""
        if len(row) != self._width:
            row = self._filled(row)
        try:
            values: tuple[Any, ...] = self._get(row)
        except KeyError:
            raise self._unknown(row) from None
        bounds, texts = self._known.get(tuple(map(type, values))) or self._try(values)
        for at, bound in bounds:
            if not -bound <= values[at] < bound:
                raise ValueError(f"output {self.schema.names[at]!r}: {values[at]} is too large for its column")
        for at in texts:
            if not values[at].isascii():
                self._check_text(at, values[at])
        return values

    def _check_text(self, at: int, text: str) -> None:
        """Refuses lone surrogates, which JSON may contain and UTF-8 may not."""
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise ValueError(f"output {self.schema.names[at]!r}: {text!r:.100} is not valid UTF-8 ({error})") from error

    def columns(self, rows: list[tuple[Any, ...]]) -> pa.Table:
        """Converts checked rows to an Arrow table."""
        columns = zip(*rows, strict=True)
        arrays = [pa.array(values, field.type) for values, field in zip(columns, self.schema, strict=True)]
        return pa.Table.from_arrays(arrays, schema=self.schema)

    def _try(self, values: tuple[Any, ...]) -> tuple[list[tuple[int, int]], list[int]]:
        """Checks a row with a new combination of types, and remembers it if types alone decide whether a row fits."""
        for field, value in zip(self.schema, values, strict=True):
            try:
                if isinstance(value, float) and pa.types.is_integer(field.type):
                    raise TypeError("Arrow would truncate it")
                pa.array([value], field.type)
            except (pa.ArrowException, TypeError, ValueError, OverflowError) as error:
                raise TypeError(f"output {field.name!r}: {value!r} is not a {field.type} ({error})") from error
        bounds = [
            (at, 1 << (field.type.bit_width - 1))
            for at, (field, value) in enumerate(zip(self.schema, values, strict=True))
            if type(value) is int and pa.types.is_signed_integer(field.type)
        ]
        checks = bounds, [at for at, value in enumerate(values) if type(value) is str]
        if all(_is_safe(type(value), field) for field, value in zip(self.schema, values, strict=True)):
            self._known[tuple(map(type, values))] = checks
        return checks

    def _filled(self, row: Mapping[str, object]) -> Mapping[str, object]:
        """The row with null for the columns that it leaves out."""
        filled = dict.fromkeys(self.schema.names) | dict(row)
        if len(filled) != self._width:
            raise self._unknown(row)
        return filled

    def _unknown(self, row: Mapping[str, object]) -> ValueError:
        extra = sorted(set(row) - self._names)
        return ValueError(f"output has columns {extra} that outputs= does not name; it names {self.schema.names}")


def _is_safe(kind: type, field: pa.Field) -> bool:
    return kind is type(None) or (kind, str(field.type)) in _SAFE
