"""Compressed bodies.

A few bytes from the network never become gigabytes in memory: every algorithm stops a little above the limit, and a
larger body is refused. Brokers store bodies as they receive them; only consumers decompress.

LZ4 and Zstandard are imported with the first body that needs them: LaneMQ itself compresses with zlib.
"""

import zlib
from collections.abc import Callable
from typing import Final

from lanemq.model.errors import RemoteProtocolError
from lanemq.wire.record import (
    COMPRESSED,
    COMPRESSION_LZ4,
    COMPRESSION_MASK,
    COMPRESSION_ZLIB,
    COMPRESSION_ZSTD,
)

ZLIB_SYS_FLAG: Final = COMPRESSED | COMPRESSION_ZLIB
MAX_BODY_BYTES: Final = 64 * 1024 * 1024
"""A compressed body that expands to more than this is refused as an attack."""
_ZSTD_WINDOW: Final = 8 * 1024 * 1024
_ZSTD_STEP: Final = 256
"""A block of 4 bytes can hold 128 KiB, so one step yields at most 8 MiB."""


def compress_zlib(body: bytes, level: int = 5) -> bytes:
    """The only form that all clients read; send it with `ZLIB_SYS_FLAG`."""
    return zlib.compress(body, level)


def decompress(sys_flag: int, body: bytes, limit: int = MAX_BODY_BYTES) -> bytes:
    """The uncompressed body; `body` itself if the flag says that it is not compressed."""
    if not sys_flag & COMPRESSED:
        return body
    plain = _read(_decompress, sys_flag, body, limit + 1)
    if len(plain) > limit:
        raise RemoteProtocolError(f"body of {len(body)} compressed bytes holds more than {limit} bytes")
    return plain


def decompress_start(sys_flag: int, body: bytes, most: int) -> bytes:
    """The first `most` bytes of the uncompressed body, for a reader that needs no more. The rest is not expanded.

    Damage behind these bytes is not noticed.
    """
    if not sys_flag & COMPRESSED:
        return body[:most]
    return _read(_decompress_start, sys_flag, body, most)


def _read(how: Callable[[int, bytes, int], bytes], sys_flag: int, body: bytes, limit: int) -> bytes:
    try:
        return how(sys_flag & COMPRESSION_MASK, body, limit)
    except (zlib.error, RuntimeError, EOFError) as error:
        raise RemoteProtocolError(f"body of {len(body)} compressed bytes cannot be read: {error}") from None


def _decompress_start(kind: int, body: bytes, most: int) -> bytes:
    return _start_of_zstd(body, most) if kind == COMPRESSION_ZSTD else _decompress(kind, body, most)


def _decompress(kind: int, body: bytes, limit: int) -> bytes:
    if kind in (0, COMPRESSION_ZLIB):
        return _inflate(body, limit)
    if kind == COMPRESSION_LZ4:
        from lz4.frame import LZ4FrameDecompressor

        reader = LZ4FrameDecompressor()
        plain = bytes(reader.decompress(body, max_length=limit))
        if not reader.eof and len(plain) < limit:
            raise EOFError("it is cut off")
        return plain
    if kind == COMPRESSION_ZSTD:
        return _unpack_zstd(body, limit)
    raise RemoteProtocolError(f"compression type {kind:#x} is unknown: zlib, LZ4 and Zstandard can be read")


def _inflate(body: bytes, limit: int) -> bytes:
    inflater = zlib.decompressobj()
    plain = inflater.decompress(body, limit)
    if not inflater.eof and len(plain) < limit:
        raise EOFError("it is cut off")
    return plain


def _unpack_zstd(body: bytes, limit: int) -> bytes:
    """Decompresses in small steps, because the library has no output limit together with an end-of-data check."""
    from zstandard import ZstdDecompressor, ZstdError

    reader = ZstdDecompressor(max_window_size=_ZSTD_WINDOW).decompressobj()
    parts: list[bytes] = []
    size = 0
    for start in range(0, len(body), _ZSTD_STEP):
        try:
            part = reader.decompress(body[start : start + _ZSTD_STEP])
        except ZstdError as error:
            raise EOFError(str(error)) from error
        parts.append(part)
        size += len(part)
        if reader.eof or size >= limit:
            return b"".join(parts)
    raise EOFError("it is cut off")


def _start_of_zstd(body: bytes, most: int) -> bytes:
    """A step of `_unpack_zstd` may yield megabytes; this stops at the last byte that is wanted."""
    from zstandard import ZstdDecompressor, ZstdError

    with ZstdDecompressor(max_window_size=_ZSTD_WINDOW).stream_reader(body) as reader:
        try:
            return reader.read(most)
        except ZstdError as error:
            raise EOFError(str(error)) from error
