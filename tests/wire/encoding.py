"""Encoders and decoders that only tests need: single records, whole batches."""

from collections.abc import Iterable
from typing import NamedTuple

from lanemq.model.errors import LocalProtocolError
from lanemq.wire.batch import BATCH_FRAME_BYTES, BATCH_HEAD, BATCH_LENGTH, split_batch_raw
from lanemq.wire.properties import MAX_PROPERTIES_BYTES
from lanemq.wire.record import (
    MAGIC_V1,
    MIN_RECORD_BYTES,
    NO_HOST,
    OUR_FLAGS,
    PROOF,
    Buffer,
    body_crc,
    build_tail,
    checksum_of,
    proves,
    seal_record,
)


def encode_record(
    *,
    topic: str,
    body: bytes,
    properties_text: str = "",
    queue_id: int,
    queue_offset: int,
    position: int,
    flag: int = 0,
    sys_flag: int = 0,
    born_timestamp: int = 0,
    born_host: bytes = NO_HOST,
    store_timestamp: int = 0,
    store_host: bytes = NO_HOST,
    reconsume_times: int = 0,
) -> bytes:
    """One complete record; the log uses `build_tail` and `seal_record`."""
    return seal_record(
        build_tail(body, topic.encode(), properties_text.encode()),
        body_crc(body),
        queue_id,
        flag,
        queue_offset,
        position,
        sys_flag & OUR_FLAGS,
        born_timestamp,
        born_host,
        store_timestamp,
        store_host,
        reconsume_times,
    )


def check_record(buffer: Buffer, start: int, size: int) -> bool:
    """Whether the `size` bytes at `start` are one undamaged record written by LaneMQ."""
    end = start + size
    if size < MIN_RECORD_BYTES or start < 0 or end > len(buffer):
        return False
    its_size, magic, _queue, _offset, _position, stored = PROOF.unpack_from(buffer, start)
    return bool((its_size, magic) == (size, MAGIC_V1) and proves(stored, checksum_of(memoryview(buffer), start, end)))


class BatchItem(NamedTuple):
    """One message of a batch."""

    flag: int
    body: bytes
    properties_text: str


def encode_batch(items: Iterable[tuple[int, bytes, str]]) -> bytes:
    """Encodes a batch of (flag, body, properties text)."""
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


def split_batch(body: bytes) -> list[BatchItem]:
    """Decodes the messages of a batch; raises `RemoteProtocolError`."""
    columns = split_batch_raw(body)
    return [BatchItem(flag, part, text.decode()) for flag, part, text in zip(*columns, strict=True)]
