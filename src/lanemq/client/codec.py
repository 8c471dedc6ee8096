"""Values to bytes and back.

JSON by default; bytes and text pass through. A handler's annotation decides what it is given: `bytes` the raw
body, a msgspec Struct, dataclass or TypedDict the decoded and checked value, anything else plain JSON.
"""

from typing import Any, Protocol, TypeVar

import msgspec

from lanemq.model.errors import CodecError, InvalidOption

T = TypeVar("T")


class Codec(Protocol):
    """Bring your own for Avro, Protobuf, MessagePack and the like."""

    def encode(self, value: object) -> bytes: ...

    def decode(self, body: bytes, wanted: type[T]) -> T: ...


class JsonCodec:
    """JSON by msgspec: typed decoding, no arbitrary code, dates and decimals included."""

    def encode(self, value: object) -> bytes:
        if isinstance(value, bytes):
            return value
        if isinstance(value, (bytearray, memoryview)):
            return bytes(value)
        try:
            return msgspec.json.encode(value)
        except (TypeError, ValueError, msgspec.MsgspecError) as error:
            raise CodecError(f"cannot encode {type(value).__name__} as JSON: {error}; pass bytes or a codec") from error

    def decode(self, body: bytes, wanted: type[T]) -> T:
        if wanted is bytes:
            return body  # type: ignore[return-value]
        try:
            return msgspec.json.decode(body, type=wanted)
        except (ValueError, msgspec.MsgspecError) as error:
            raise CodecError(f"the body is not JSON for {_name(wanted)}: {error}") from error


class BytesCodec:
    """Nothing is converted: bytes in, bytes out."""

    def encode(self, value: object) -> bytes:
        if not isinstance(value, (bytes, bytearray, memoryview)):
            raise CodecError(f"this producer sends bytes, not {type(value).__name__}; use codec='json' for values")
        return bytes(value)

    def decode(self, body: bytes, wanted: type[T]) -> T:
        return body  # type: ignore[return-value]


def codec_named(codec: "str | Codec") -> Codec:
    """`"json"`, `"bytes"`, or the codec itself."""
    if codec == "json":
        return JsonCodec()
    if codec == "bytes":
        return BytesCodec()
    if isinstance(codec, str) or not hasattr(codec, "encode") or not hasattr(codec, "decode"):
        raise InvalidOption(f"codec={codec!r} is unknown: use 'json', 'bytes' or an object with encode and decode")
    return codec


def _name(wanted: Any) -> str:
    return getattr(wanted, "__name__", str(wanted))
