"""Codecs turn values into bytes and back.

The default is JSON; bytes are sent as they are. The annotation of a handler's argument decides what it gets: `bytes`
the raw body; a msgspec Struct, dataclass or TypedDict the decoded and validated value; anything else plain JSON.
"""

from typing import Any, Protocol, TypeVar

import msgspec

from lanemq.model.errors import CodecError, InvalidOption

T = TypeVar("T")


class Codec(Protocol):
    """What a codec offers. Write your own for Avro, Protobuf, MessagePack and the like."""

    def encode(self, value: object) -> bytes: ...

    def decode(self, body: bytes, wanted: type[T]) -> T: ...


class JsonCodec:
    """JSON by msgspec: decodes into types, runs no arbitrary code, knows dates and decimals."""

    def encode(self, value: object) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        try:
            return msgspec.json.encode(value)
        except (TypeError, ValueError, RecursionError, msgspec.MsgspecError) as error:
            raise CodecError(f"cannot encode {type(value).__name__} as JSON: {error}; pass bytes or a codec") from error

    def decode(self, body: bytes, wanted: type[T]) -> T:
        if wanted is bytes:
            return body  # type: ignore[return-value]
        try:
            return msgspec.json.decode(body, type=wanted)
        except (ValueError, msgspec.MsgspecError) as error:
            raise CodecError(f"the body is not JSON for {_name(wanted)}: {error}") from error


class BytesCodec:
    """Converts nothing: bytes in, bytes out."""

    def encode(self, value: object) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise CodecError(f"this producer sends bytes, not {type(value).__name__}; use codec='json' for values")
        return bytes(value)

    def decode(self, body: bytes, wanted: type[T]) -> T:
        return body  # type: ignore[return-value]


def codec_named(codec: "str | Codec") -> Codec:
    """The codec for `"json"` or `"bytes"`, or the given codec itself."""
    if codec == "json":
        return JsonCodec()
    if codec == "bytes":
        return BytesCodec()
    if isinstance(codec, str) or not hasattr(codec, "encode") or not hasattr(codec, "decode"):
        raise InvalidOption(f"codec={codec!r} is unknown: use 'json', 'bytes' or an object with encode and decode")
    return codec


def _name(wanted: Any) -> str:
    return getattr(wanted, "__name__", str(wanted))
