"""Types that decode only the JSON fields that are needed; the rest is skipped unread.

Invariant: decoding a message never fails because of a column's type. Misfits are found later, column by column.
"""

import keyword
from collections.abc import Callable, Collection, Iterable, Mapping
from decimal import Decimal
from functools import partial
from operator import attrgetter
from typing import Any, Final, Generic, TypeVar

import msgspec
import pyarrow as pa
from pyspark.sql.types import ArrayType, DataType, DecimalType, MapType, StructType

from lanemq.pipelines.stages.cdc.table import ReplicaTable

Document = Any
"""An instance of a type made here; its attributes are known only at run time."""
T = TypeVar("T")

UNREADABLE: Final = (msgspec.DecodeError, UnicodeDecodeError, RecursionError, ArithmeticError)
"""Errors of decoding one message: not JSON, not UTF-8, nested too deeply, an exponent that is too large."""
ABSENT: Final = msgspec.UNSET
"""The value of a column for which the message has no field, where that is not the same as null."""
_NOWHERE: Final = "\ufffe"
"""Not a character, so no field name that a database writes begins with it."""
Fields = Mapping[str, Any]
"""Types by field name; a mapping in place of a type is an object with its own fields."""


def object_type(fields: Fields) -> type[Document]:
    """A type with these fields. A missing field is null; of a missing object, all fields are."""
    names = {_attribute(name): name for name in fields}
    return msgspec.defstruct("Document", [_field(*each) for each in fields.items()], rename=names, gc=False)


def path_getter(path: str) -> Callable[[Document], Any]:
    """A function that reads the value at a dotted path."""
    return attrgetter(".".join(map(_attribute, path.split("."))))


def with_paths(fields: Fields, paths: Iterable[str]) -> dict[str, Any]:
    """The fields, and those at dotted paths."""
    more: dict[str, Any] = dict(fields)
    for path in paths:
        name, _, rest = path.partition(".")
        if rest:
            inner = more.get(name, {})
            more[name] = with_paths(inner if isinstance(inner, Mapping) else {}, [rest])
        else:
            more.setdefault(name, Any)
    return more


def _field(name: str, kind: Any) -> tuple[str, Any, Any]:
    if isinstance(kind, Mapping):
        inner = object_type(kind)
        return _attribute(name), inner, msgspec.field(default_factory=inner)
    return _attribute(name), kind, None


def _attribute(name: str) -> str:
    """The attribute for a field; Python changes or refuses some names."""
    return f"field_{name}" if name.startswith("__") or keyword.iskeyword(name) else name


class RowTypes:
    """The document types of a table's rows: one with all columns, and one of which only the key is read."""

    def __init__(self, table: ReplicaTable, also: Fields | None = None) -> None:
        self._attributes = {name: f"column_{index}" for index, name in enumerate(table.columns)}
        more = {name: kind for name, kind in (also or {}).items() if name not in self._attributes}
        self._keys = [self._attributes[name] for name in table.keys]
        self.key: Callable[[Document], Any] = attrgetter(*self._keys)
        """Reads the key to compare: a value, or a tuple if it has several columns."""
        self.no_key = None if len(self._keys) == 1 else (None,) * len(self._keys)
        others = [name for name in table.columns if name not in table.keys]
        self.full = self._type({}, more, absent=others if table.keeps else ())
        self.only_key = self._type({name: f"{_NOWHERE}{name}" for name in others}, {})

    def _type(self, hidden: Mapping[str, str], more: Fields, absent: Collection[str] = ()) -> type[Document]:
        """A row type. A hidden column is read under a name that does not occur, so it stays null.

        Without a field in the message, a column is null; one in `absent` is `ABSENT`, to distinguish it from null.
        """
        fields: list[Any] = [
            (attribute, Any, ABSENT if name in absent else None) for name, attribute in self._attributes.items()
        ]
        fields += [_field(name, kind) for name, kind in more.items()]
        names = {attribute: hidden.get(name, name) for name, attribute in self._attributes.items()}
        names |= {_attribute(name): name for name in more}
        return msgspec.defstruct("Row", fields, rename=names, gc=False)

    def getter(self, path: str) -> Callable[[Document], Any]:
        """A function that reads a column, a value inside one, or a path given as `also`."""
        column, _, rest = path.partition(".")
        if path in self._attributes or not rest or column not in self._attributes:
            return attrgetter(self._attributes[path]) if path in self._attributes else path_getter(path)
        return partial(_dig, attrgetter(self._attributes[column]), rest.split("."))

    def has_key(self, row: Document) -> bool:
        """Whether every column of the key has a value."""
        return all(getattr(row, name) is not None for name in self._keys)

    def clear(self, row: Document, column: str) -> None:
        """Sets a column to null."""
        setattr(row, self._attributes[column], None)

    def former(self, old: Document, row: Document) -> Document:
        """The key before an update: that of `row`, with the parts that `old` has in their place."""
        pairs = [(getattr(old, name), getattr(row, name)) for name in self._keys]
        return self.key_only(now if was is None else was for was, now in pairs)

    def key_only(self, values: Iterable[Any]) -> Document:
        """A row that has only a key."""
        return self.only_key(**dict(zip(self._keys, values, strict=True)))


def _dig(column: Callable[[Document], Any], path: list[str], row: Document) -> Any:
    found = column(row)
    for name in path:
        found = found.get(name) if isinstance(found, dict) else None
    return found


def decoder(kind: Any, types: Iterable[DataType]) -> msgspec.json.Decoder[Any]:
    """A decoder that keeps all digits of fractions if a column is decimal or contains decimals."""
    exact = any(map(_has_decimals, types))
    return msgspec.json.Decoder(kind, float_hook=Decimal) if exact else msgspec.json.Decoder(kind)


def _has_decimals(kind: DataType) -> bool:
    if isinstance(kind, StructType):
        return any(_has_decimals(field.dataType) for field in kind.fields)
    if isinstance(kind, MapType):
        return _has_decimals(kind.keyType) or _has_decimals(kind.valueType)
    return isinstance(kind, DecimalType) or (isinstance(kind, ArrayType) and _has_decimals(kind.elementType))


def listed(column: pa.ChunkedArray) -> list[Any]:
    """The column as a list. Four times as fast as `to_pylist`, because it makes no scalar object per value."""
    return column.combine_chunks().to_numpy(zero_copy_only=False).tolist()  # type: ignore[no-any-return]


class Decoded(Generic[T]):
    """Decoded messages in their order, None where there is no value; `broken` has the reason of each unreadable one."""

    def __init__(self, values: list[bytes | None], decode: msgspec.json.Decoder[T]) -> None:
        self.broken: dict[int, str] = {}
        read = decode.decode
        try:
            self.documents: list[T | None] = [read(value) if value else None for value in values]
        except UNREADABLE:
            self.documents = [self._one(index, value, read) for index, value in enumerate(values)]

    def _one(self, index: int, value: bytes | None, read: Any) -> T | None:
        try:
            return read(value) if value else None
        except UNREADABLE as problem:
            self.broken[index] = f"not readable: {problem}"
            return None
