"""Bodies to values: what `decode=` may be. Whatever it raises makes the message poison, and never the query fail.

An empty body is not JSON, but it is no mistake either: Kafka's tombstones and their like arrive so. Where JSON is
expected it is the value None; a message without any body (null) is poison for everybody.
"""

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


def empty_decoder(decode: object) -> Callable[[bytes | None], Any]:
    """The same for bodies that are empty, or not there."""
    if decode == "json" or isinstance(decode, type):
        return tombstone
    decoded = decoder(decode)
    return lambda body: decoded(_there(body))


def tombstone(body: bytes | None) -> None:
    _there(body)


def _there(body: bytes | None) -> bytes:
    if body is None:
        raise ValueError("there is no body, or it could not be unpacked")
    return body


def _text(body: bytes) -> str:
    return body.decode()


def _same(body: bytes) -> bytes:
    return body
