"""What a column's numbers and texts mean: the unit of a time, the scale of a decimal.

Debezium's events may embed their schema (`schemas.enable=true`). It names the type of each column, such as
`io.debezium.time.MicroTimestamp`, and then counts before the options `time_unit` and `decimals`, which are for all
other messages. Only columns have a meaning, not the fields of nested ones.

Invariants: every message is read as its own schema says, also if the schema changes within a batch; a value of which
the schema says another meaning than the column can hold is a misfit, never another value.
"""

from base64 import b64decode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any, Final

import msgspec
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.types as pt

from lanemq.pipelines.stages.cdc.values import Misfits, convert

MAX_SCHEMAS: Final = 1_000
"""Different schemas that are remembered. A table has one, and another after each change of its columns."""
_SECONDS_OF_DAY: Final = 86_400
_MAX_SCALE: Final = 1_000
_MAX_BYTES: Final = 64
"""Bytes of an unscaled number; decimals have at most 38 digits."""


@dataclass(frozen=True, slots=True)
class Meaning:
    """How the values of a column are to be read."""

    unit: str = "ms"
    """The unit of numbers: s, ms, us or ns since 1970, or d for days."""
    scale: int | None = None
    """The scale of decimals in Base64; None: decimals are texts or numbers."""
    is_known: bool = False
    """Whether the message says so. Otherwise it is what the options say about columns of this type."""
    is_iso_date: bool = False
    """Whether texts are dates that end with a Z."""


TEXT: Final = Meaning(is_known=True)
_NAMES: Final[Mapping[str, Meaning]] = {
    "io.debezium.time.Date": Meaning("d", is_known=True),
    "io.debezium.time.IsoDate": Meaning(is_known=True, is_iso_date=True),
    "io.debezium.time.Time": Meaning("ms", is_known=True),
    "io.debezium.time.MicroTime": Meaning("us", is_known=True),
    "io.debezium.time.NanoTime": Meaning("ns", is_known=True),
    "io.debezium.time.Timestamp": Meaning("ms", is_known=True),
    "io.debezium.time.MicroTimestamp": Meaning("us", is_known=True),
    "io.debezium.time.NanoTimestamp": Meaning("ns", is_known=True),
    "io.debezium.data.VariableScaleDecimal": Meaning(scale=0, is_known=True),
    "org.apache.kafka.connect.data.Date": Meaning("d", is_known=True),
    "org.apache.kafka.connect.data.Time": Meaning("ms", is_known=True),
    "org.apache.kafka.connect.data.Timestamp": Meaning("ms", is_known=True),
}
_TIME_TYPES: Final[Mapping[str, str]] = {
    "io.debezium.time.Date": "date",
    "io.debezium.time.IsoDate": "date",
    "io.debezium.time.Timestamp": "timestamp",
    "io.debezium.time.MicroTimestamp": "timestamp",
    "io.debezium.time.NanoTimestamp": "timestamp",
    "io.debezium.time.IsoTimestamp": "timestamp",
    "io.debezium.time.ZonedTimestamp": "timestamp",
    "org.apache.kafka.connect.data.Date": "date",
    "org.apache.kafka.connect.data.Timestamp": "timestamp",
}
_PLAIN_TYPES: Final[Mapping[str, str]] = {
    "boolean": "boolean",
    **dict.fromkeys(("int8", "int16", "int32", "int64"), "long"),
    **dict.fromkeys(("float", "float32", "double", "float64"), "double"),
    **dict.fromkeys(("string", "array", "map", "struct"), "string"),
    "bytes": "binary",
}
"""Types of Kafka Connect. Whole numbers are wide, because the source may widen its column later."""
_MAX_DIGITS: Final = 38
_DECIMAL: Final = "org.apache.kafka.connect.data.Decimal"


class _Field(msgspec.Struct):
    """A field of a schema, or the schema itself, as Kafka Connect writes it."""

    field: str | None = None
    type: Any = None
    name: Any = None
    parameters: Any = None
    fields: "list[_Field] | None" = None


_schema: Final = msgspec.json.Decoder(_Field | None)

Columns = Mapping[str, Meaning]
"""The meanings of columns by name, as far as one schema says them."""
_NOTHING: Final[Columns] = {}


def parse_schema(text: bytes) -> Columns:
    """The meanings that a schema names. A schema of any other form names none."""
    found = {name: _meaning(field) for name, field in _fields(text).items()}
    return {name: meaning for name, meaning in found.items() if meaning is not None}


def column_types(text: bytes) -> Mapping[str, str]:
    """The columns' types as Spark writes them. Columns whose type the schema leaves open are missing."""
    found = {name: _type(field) for name, field in _fields(text).items()}
    return {name: kind for name, kind in found.items() if kind is not None}


def _fields(text: bytes) -> Mapping[str, _Field]:
    """The columns of a row by name."""
    try:
        schema = _schema.decode(text) if text else None
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return {}
    if schema is None:
        return {}
    rows = [each for each in schema.fields or () if each.field in ("after", "before") and each.fields]
    columns = rows[-1].fields if rows else schema.fields
    return {each.field: each for each in columns or () if each.field is not None}


def _meaning(field: _Field) -> Meaning | None:
    if field.name == _DECIMAL:
        return _decimal(field.parameters)
    if isinstance(field.name, str) and field.name in _NAMES:
        return _NAMES[field.name]
    return TEXT if field.type == "string" else None


def _type(field: _Field) -> str | None:
    if field.name == _DECIMAL:
        return _decimal_type(field.parameters)
    if isinstance(field.name, str) and field.name in _TIME_TYPES:
        return _TIME_TYPES[field.name]
    return _PLAIN_TYPES.get(field.type) if isinstance(field.type, str) else None


def _decimal_type(parameters: Any) -> str | None:
    """Debezium names the precision; without it, the column takes as many digits as there can be."""
    meaning = _decimal(parameters)
    if meaning is None or meaning.scale is None:
        return None
    try:
        precision = int(parameters.get("connect.decimal.precision", _MAX_DIGITS))
    except ValueError:
        return None
    fits = 0 <= meaning.scale <= precision and 0 < precision <= _MAX_DIGITS
    return f"decimal({precision},{meaning.scale})" if fits else "string"


def _decimal(parameters: Any) -> Meaning | None:
    try:
        scale = int(parameters["scale"])
    except (TypeError, KeyError, ValueError):
        return None
    return Meaning(scale=scale, is_known=True) if abs(scale) < _MAX_SCALE else None


class SchemaCache:
    """The meanings of schemas that were parsed before; nearly all messages of a table embed the same one."""

    def __init__(self) -> None:
        self._known: dict[bytes, Columns] = {}

    def columns(self, texts: Sequence[bytes]) -> list[Columns]:
        """The meanings that each of these schemas names."""
        found: list[Columns] = []
        last, meanings = b"", _NOTHING
        for text in texts:
            if text != last:
                last, meanings = text, self._parsed(text)
            found.append(meanings)
        return found

    def _parsed(self, text: bytes) -> Columns:
        if text not in self._known:
            if len(self._known) >= MAX_SCHEMAS:
                self._known.clear()
            self._known[text] = parse_schema(text)
        return self._known[text]


def convert_as(
    values: Sequence[Any], wanted: pa.DataType, default: Meaning, meanings: Sequence[Meaning | None] | None
) -> tuple[pa.Array, Misfits]:
    """Converts values to a column, each with its own meaning, or the default one. None: the default for all.

    Returns the column, and the indices of values that do not fit.
    """
    if meanings is None:
        return _convert(values, wanted, default)
    found = [meaning or default for meaning in meanings]
    distinct = dict.fromkeys(found)
    if len(distinct) <= 1:
        return _convert(values, wanted, found[0] if found else default)
    columns, order, misfits = [], [], Misfits()
    for meaning in distinct:
        mine = [index for index, each in enumerate(found) if each == meaning]
        column, wrong = _convert([values[index] for index in mine], wanted, meaning)
        columns.append(column)
        order += mine
        misfits += [mine[index] for index in wrong]
    return pa.concat_arrays(columns).take(pc.sort_indices(pa.array(order))), sorted(misfits)


def _convert(values: Sequence[Any], wanted: pa.DataType, meaning: Meaning) -> tuple[pa.Array, Misfits]:
    if meaning.scale is not None and not pt.is_binary(wanted) and not pt.is_nested(wanted):
        values = precise(values, meaning.scale)
    if meaning.is_iso_date and pt.is_date(wanted):
        values = [value.removesuffix("Z") if isinstance(value, str) else value for value in values]
    if meaning.is_known and pt.is_date(wanted) and meaning.unit != "d":
        return _dates(values, wanted, meaning.unit)
    if meaning.unit == "d" and pt.is_timestamp(wanted):
        return convert([_seconds(value) for value in values], wanted, "s")
    return convert(values, wanted, "ms" if meaning.unit == "d" else meaning.unit)


def _seconds(day: Any) -> Any:
    return day * _SECONDS_OF_DAY if type(day) is int else day


def _dates(values: Sequence[Any], wanted: pa.DataType, unit: str) -> tuple[pa.Array, Misfits]:
    """Dates from texts, or from times that are midnight; any other time is a misfit, because a part would be lost."""
    is_number = [type(value) is int for value in values]
    days, misfits = convert(
        [None if number else value for value, number in zip(values, is_number, strict=True)], wanted
    )
    if not any(is_number):
        return days, misfits
    numbers = [value if number else None for value, number in zip(values, is_number, strict=True)]
    times, wrong = convert(numbers, pa.timestamp("us", "UTC"), unit)
    whole = times.cast(wanted, safe=False)
    lost = pc.not_equal(whole.cast(pa.timestamp("us")).cast(pa.int64()), times.cast(pa.int64()))
    wrong += pc.indices_nonzero(pc.fill_null(lost, False)).to_pylist()
    exact = pc.if_else(pc.fill_null(lost, True), pa.scalar(None, wanted), whole)
    return pc.coalesce(days, exact), sorted([*misfits, *wrong])


def precise(values: Sequence[Any], scale: int) -> list[Any]:
    """Decodes decimals of `decimal.handling.mode=precise`: unscaled numbers in Base64. Other values are unchanged."""
    return [_exact(value, scale) if isinstance(value, str | dict) else value for value in values]


def _exact(value: Any, scale: int) -> Any:
    if isinstance(value, dict):  # a column without a fixed scale: every value has its own
        return _exact(value["value"], value["scale"]) if _has_scale(value) else value
    try:
        number = b64decode(value, validate=True)
    except ValueError:
        return value
    if not 0 < len(number) <= _MAX_BYTES:
        return value
    return Decimal(f"{int.from_bytes(number, 'big', signed=True)}E{-scale}")


def _has_scale(value: dict[str, Any]) -> bool:
    return isinstance(value.get("value"), str) and type(value.get("scale")) is int and abs(value["scale"]) < _MAX_SCALE
