"""Batch bodies: several messages for one queue in one send.

    total size 4 | magic 4 (0) | CRC 4 (0) | flag 4 | body length 4, body | properties length 2, properties

Topic, queue and times come from the request. The rule guarded here: a batch is taken whole or not at all, so
every size must agree with every other before the first message is stored.
"""

from collections.abc import Iterable
from struct import Struct
from typing import NamedTuple

from lanemq._fast import compiled
from lanemq.model.errors import LocalProtocolError, RemoteProtocolError
from lanemq.wire.properties import MAX_PROPERTIES_BYTES

BATCH_HEAD = Struct(">iiiii")
"""Total size, magic, CRC, flag, body length."""
BATCH_LENGTH = Struct(">h")
"""Of the properties."""
_HEAD_BYTES, _SHORT_BYTES = BATCH_HEAD.size, BATCH_LENGTH.size
BATCH_FRAME_BYTES = _HEAD_BYTES + _SHORT_BYTES


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
        size = BATCH_FRAME_BYTES + len(body) + len(properties)
        parts += (BATCH_HEAD.pack(size, 0, 0, flag, len(body)), body, BATCH_LENGTH.pack(len(properties)), properties)
    if not parts:
        raise LocalProtocolError("a batch needs at least one message")
    return b"".join(parts)


class BatchColumns(NamedTuple):
    """The messages of a batch, part by part; the properties as they came, proven to be UTF-8."""

    flags: list[int]
    bodies: list[bytes]
    properties: list[bytes]


def split_batch(body: bytes) -> list[BatchItem]:
    """The messages of a batch, or `RemoteProtocolError`."""
    columns = split_batch_raw(body)
    return [BatchItem(flag, part, text.decode()) for flag, part, text in zip(*columns, strict=True)]


def split_batch_raw(body: bytes) -> BatchColumns:
    """The same without decoding: a broker stores the properties without a look."""
    return BatchColumns(*batch_parts(body))


@compiled
def batch_parts(body: bytes) -> tuple[list[int], list[bytes], list[bytes]]:
    """Flags, bodies and properties of a batch."""
    flags: list[int] = []
    bodies: list[bytes] = []
    texts: list[bytes] = []
    head, short = BATCH_HEAD.unpack_from, BATCH_LENGTH.unpack_from
    position, end = 0, len(body)
    while position + BATCH_FRAME_BYTES <= end:
        size, _, _, flag, length = head(body, position)
        next_at = position + size
        body_at = position + _HEAD_BYTES
        text_at = body_at + length + _SHORT_BYTES
        if length < 0 or next_at > end or text_at > next_at:
            raise _damaged(position, end, f"size {size}, body length {length}")
        (text_length,) = short(body, text_at - _SHORT_BYTES)
        if text_at + text_length != next_at:
            raise _damaged(position, end, f"size {size}, properties length {text_length}")
        text = body[text_at:next_at]
        if not text.isascii():
            _prove_text(text, position, end)
        flags.append(flag)
        bodies.append(body[body_at : text_at - _SHORT_BYTES])
        texts.append(text)
        position = next_at
    if position != end or not flags:
        raise _damaged(position, end, "the last message is cut off" if flags else "it holds no message")
    return flags, bodies, texts


DELAYED, TAGGED = 1, 2
"""Bits of `weigh`: properties that somebody has to look at."""


@compiled
def weigh(bodies: list[bytes], properties: list[bytes]) -> tuple[int, int, int, int]:
    """Bytes of all, of the largest body and of the longest properties; and which names are among the properties.

    `DELAYED` if one begins an entry that could ask for a delay, `TAGGED` if one begins a tag: hardly any message of
    a producer has them, so all are asked at once.
    """
    every = b"\x02" + b"\x02".join(properties)
    found = DELAYED if b"\x02DELAY\x01" in every or b"\x02TIMER_" in every else 0
    if b"\x02TAGS\x01" in every:
        found |= TAGGED
    sizes, lengths = list(map(len, bodies)), list(map(len, properties))
    return sum(sizes) + sum(lengths), max(sizes, default=0), max(lengths, default=0), found


def _prove_text(properties: bytes, position: int, end: int) -> None:
    try:
        properties.decode()
    except UnicodeDecodeError:
        raise _damaged(position, end, "its properties are no UTF-8") from None


def _damaged(position: int, end: int, what: str) -> RemoteProtocolError:
    return RemoteProtocolError(f"batch message at byte {position} of {end} makes no sense: {what}")
