"""Batch bodies: several messages for one queue in one send.

    total size 4 | magic 4 (0) | CRC 4 (0) | flag 4 | body length 4, body | properties length 2, properties

Topic, queue and times come from the request. The rule guarded here: a batch is taken whole or not at all, so
every size must agree with every other before the first message is stored.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from lanemq.model.errors import LocalProtocolError, RemoteProtocolError
from lanemq.wire.properties import MAX_PROPERTIES_BYTES

_HEAD = Struct(">iiiii")
_SHORT = Struct(">h")
_FRAME_BYTES = _HEAD.size + _SHORT.size


class BatchItem(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties_text: str


def encode_batch(items: Iterable[tuple[int, bytes, str]]) -> bytes:
    """The body for a batch of (flag, body, properties text)."""
    parts: list[bytes] = []
    for flag, body, properties_text in items:
        properties = properties_text.encode()
        if len(properties) > MAX_PROPERTIES_BYTES:
            raise LocalProtocolError(f"properties of {len(properties)} bytes do not fit into a batch")
        size = _FRAME_BYTES + len(body) + len(properties)
        parts += (_HEAD.pack(size, 0, 0, flag, len(body)), body, _SHORT.pack(len(properties)), properties)
    if not parts:
        raise LocalProtocolError("a batch needs at least one message")
    return b"".join(parts)


def split_batch(body: bytes) -> list[BatchItem]:
    """The messages of a batch, or `RemoteProtocolError`."""
    return [BatchItem(flag, part, properties.decode()) for flag, part, properties in split_batch_raw(body)]


def split_batch_raw(body: bytes) -> list[tuple[int, bytes, bytes]]:
    """The same with the properties as they came, proven to be UTF-8: a broker stores them without a look."""
    items: list[tuple[int, bytes, bytes]] = []
    position, end = 0, len(body)
    while position + _FRAME_BYTES <= end:
        size, _, _, flag, length = _HEAD.unpack_from(body, position)
        body_at = position + _HEAD.size
        body_end = body_at + length
        next_at = position + size
        if length < 0 or next_at > end or body_end + _SHORT.size > next_at:
            raise _damaged(position, end, f"size {size}, body length {length}")
        (properties_length,) = _SHORT.unpack_from(body, body_end)
        if body_end + _SHORT.size + properties_length != next_at:
            raise _damaged(position, end, f"size {size}, properties length {properties_length}")
        properties = body[body_end + _SHORT.size : next_at]
        if not properties.isascii():
            _prove_text(properties, position, end)
        items.append((flag, body[body_at:body_end], properties))
        position = next_at
    if position != end or not items:
        raise _damaged(position, end, "the last message is cut off" if items else "it holds no message")
    return items


def _prove_text(properties: bytes, position: int, end: int) -> None:
    try:
        properties.decode()
    except UnicodeDecodeError:
        raise _damaged(position, end, "its properties are no UTF-8") from None


def _damaged(position: int, end: int, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"batch message at byte {position} of {end} makes no sense: {what}")
