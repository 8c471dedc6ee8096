"""Protocol Buffers for dataclasses whose fields say their number and type.

    @dataclass(slots=True)
    class Status:
        code: Annotated[int, INT(1)] = 0
        message: Annotated[str, TEXT(2)] = ""

`encode(status)` and `decode(Status, data)` are all there is. Fields that are not in the table are skipped, and a field
that equals its default is not written. A field whose presence matters has the default None.

A peer may send anything: whatever is no message raises `RemoteProtocolError`.
"""

import struct
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields, is_dataclass
from typing import Annotated, Any, NamedTuple, TypeAlias, TypeVar, get_args, get_origin, get_type_hints

from lanemq.model.errors import RemoteProtocolError

T = TypeVar("T")

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Wire types of Protocol Buffers."""

MAX_DEPTH = 16
"""The deepest message of the protocol has 5 levels; a peer must not make us recurse without end."""

_FLOAT = struct.Struct("<f")


@dataclass(frozen=True, slots=True)
class FieldKind:
    """The number of a field, and how its value is written."""

    number: int
    wire_type: int
    text: bool = False
    flag: bool = False
    repeated: bool = False
    message: type | None = None
    mapping: bool = False


def INT(number: int) -> FieldKind:  # noqa: N802 - named as the types are in the protocol
    """A whole number or an enumeration."""
    return FieldKind(number, VARINT)


def INTS(number: int) -> FieldKind:  # noqa: N802
    """Several of them, written one by one, which every reader of packed ones accepts."""
    return FieldKind(number, VARINT, repeated=True)


def FLAG(number: int) -> FieldKind:  # noqa: N802
    return FieldKind(number, VARINT, flag=True)


def REAL(number: int) -> FieldKind:  # noqa: N802
    return FieldKind(number, FIXED32)


def DATA(number: int) -> FieldKind:  # noqa: N802
    return FieldKind(number, BYTES)


def TEXT(number: int) -> FieldKind:  # noqa: N802
    return FieldKind(number, BYTES, text=True)


def TEXTS(number: int) -> FieldKind:  # noqa: N802
    return FieldKind(number, BYTES, text=True, repeated=True)


def ONE(number: int, message: type) -> FieldKind:  # noqa: N802
    return FieldKind(number, BYTES, message=message)


def MANY(number: int, message: type) -> FieldKind:  # noqa: N802
    return FieldKind(number, BYTES, message=message, repeated=True)


def MAPPING(number: int) -> FieldKind:  # noqa: N802
    """Texts by texts."""
    return FieldKind(number, BYTES, mapping=True)


def encode(message: Any) -> bytes:
    """The bytes of a message."""
    out = bytearray()
    for name, kind, default, head in _table(type(message)).written:
        value = getattr(message, name)
        if value is None or value == default:
            continue
        if kind.repeated:
            for each in value:
                _write(out, kind, head, each)
        elif kind.mapping:
            for key, text in value.items():
                entry = encode(_Entry(key, text))
                out += head + _varint(len(entry)) + entry
        else:
            _write(out, kind, head, value)
    return bytes(out)


def decode(message: type[T], data: bytes, depth: int = 0) -> T:
    """The message in these bytes; raises `RemoteProtocolError` if there is none."""
    if depth > MAX_DEPTH:
        raise RemoteProtocolError(f"a {message.__name__} is nested too deeply")
    table, values, at, end = _table(message).read, dict[str, Any](), 0, len(data)
    try:
        while at < end:
            tag, at = _read_varint(data, at)
            value, at = _READERS[tag & 7](data, at)
            known = table.get(tag)
            if known is not None:
                _take(values, *known, value, depth)
    except (IndexError, KeyError, UnicodeDecodeError, struct.error) as error:
        raise RemoteProtocolError(f"these {end} bytes are no {message.__name__}: {error!r}") from None
    return message(**values)


@dataclass(slots=True)
class _Entry:
    """An entry of a mapping."""

    key: Annotated[str, TEXT(1)] = ""
    value: Annotated[str, TEXT(2)] = ""


_Written: TypeAlias = tuple[str, FieldKind, object, bytes]


class _Table(NamedTuple):
    """The fields of a message, for writing in the order of the class, and for reading by tag."""

    written: list[_Written]
    read: dict[int, tuple[str, FieldKind]]


_TABLES: dict[type, _Table] = {}


def _table(message: type) -> _Table:
    known = _TABLES.get(message)
    if known is None:
        known = _TABLES[message] = _make_table(message)
    return known


def _make_table(message: type) -> _Table:
    assert is_dataclass(message)
    hints = get_type_hints(message, include_extras=True)
    written: list[_Written] = []
    read: dict[int, tuple[str, FieldKind]] = {}
    for each in fields(message):
        kind = _kind_of(hints[each.name])
        tag = kind.number << 3 | kind.wire_type
        default = each.default if each.default is not MISSING else None
        written.append((each.name, kind, default, _varint(tag)))
        read[tag] = each.name, kind
    return _Table(written, read)


def _kind_of(hint: Any) -> FieldKind:
    assert get_origin(hint) is Annotated, f"{hint} has no field number"
    kind = get_args(hint)[1]
    assert isinstance(kind, FieldKind)
    return kind


def _write(out: bytearray, kind: FieldKind, head: bytes, value: Any) -> None:
    out += head
    if kind.wire_type == VARINT:
        out += _varint(int(value))
    elif kind.wire_type == FIXED32:
        out += _FLOAT.pack(value)
    else:
        data = encode(value) if kind.message is not None else value.encode() if kind.text else value
        out += _varint(len(data))
        out += data


def _take(values: dict[str, Any], name: str, kind: FieldKind, raw: Any, depth: int) -> None:
    """Adds one field that was read; the last of several wins, except where there may be many."""
    if kind.mapping:
        entry = decode(_Entry, raw, depth + 1)
        values.setdefault(name, {})[entry.key] = entry.value
        return
    if kind.message is not None:
        value: Any = decode(kind.message, raw, depth + 1)
    elif kind.text:
        value = raw.decode()
    else:
        value = bool(raw) if kind.flag else raw
    if kind.repeated:
        values[name] = (*values.get(name, ()), value)
    else:
        values[name] = value


def _varint(value: int) -> bytes:
    """A number of up to 64 bits; a negative one in two's complement."""
    if 0 <= value < 128:
        return bytes((value,))
    value &= (1 << 64) - 1
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def _read_varint(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        at += 1
        value |= (byte & 127) << shift
        if byte < 128:
            return value, at
        shift += 7
        if shift > 63:
            raise IndexError("a number of more than 64 bits")


def _read_number(data: bytes, at: int) -> tuple[int, int]:
    value, at = _read_varint(data, at)
    value &= (1 << 64) - 1
    return value - (1 << 64) if value >> 63 else value, at


def _read_bytes(data: bytes, at: int) -> tuple[bytes, int]:
    length, at = _read_varint(data, at)
    if at + length > len(data):
        raise IndexError("it ends too early")
    return data[at : at + length], at + length


def _read_float(data: bytes, at: int) -> tuple[float, int]:
    return _FLOAT.unpack_from(data, at)[0], at + 4


def _read_fixed64(data: bytes, at: int) -> tuple[bytes, int]:
    if at + 8 > len(data):
        raise IndexError("it ends too early")
    return data[at : at + 8], at + 8


_READERS: dict[int, Callable[[bytes, int], tuple[Any, int]]] = {
    VARINT: _read_number,
    FIXED64: _read_fixed64,
    BYTES: _read_bytes,
    FIXED32: _read_float,
}
