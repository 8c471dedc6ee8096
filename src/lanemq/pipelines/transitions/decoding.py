"""Bodies to values: what `decode=` may be. Whatever it raises makes the message poison, and never the query fail."""

from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec

from lanemq.model.errors import InvalidOption

Decode: TypeAlias = Callable[[bytes], Any]


def decoder(decode: object) -> Decode:
    """`"json"`, `"text"`, `"bytes"`, a type for JSON (msgspec Struct, dataclass, TypedDict), or a function."""
    match decode:
        case "json":
            return msgspec.json.Decoder().decode
        case "text":
            return _text
        case "bytes":
            return _same
        case type():
            return msgspec.json.Decoder(decode).decode
        case _ if callable(decode):
            return decode
        case _:
            raise InvalidOption(f"decode={decode!r} is unknown: use 'json', 'text', 'bytes', a type or a function")


def _text(body: bytes) -> str:
    return body.decode()


def _same(body: bytes) -> bytes:
    return body
