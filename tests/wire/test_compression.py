"""Compressed bodies: every form RocketMQ knows, and no bombs."""

import tracemalloc
import zlib

import lz4.frame
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.model.errors import RemoteProtocolError
from lanemq.wire.compression import ZLIB_SYS_FLAG, compress_zlib, decompress, decompress_start

BODY = b"order 4711, " * 500
FORMS = {
    0x001: zlib.compress(BODY),
    0x301: zlib.compress(BODY),
    0x101: lz4.frame.compress(BODY),
    0x201: zstandard.ZstdCompressor().compress(BODY),
}


@pytest.mark.parametrize("sys_flag", FORMS)
def test_each_form_is_read(sys_flag: int) -> None:
    assert decompress(sys_flag, FORMS[sys_flag], len(BODY)) == BODY


def test_zstd_without_a_content_size_is_read() -> None:
    packer = zstandard.ZstdCompressor().compressobj()
    assert decompress(0x201, packer.compress(BODY) + packer.flush(), len(BODY)) == BODY


@pytest.mark.parametrize("sys_flag", FORMS)
def test_one_byte_over_the_limit_is_refused(sys_flag: int) -> None:
    with pytest.raises(RemoteProtocolError, match="more than"):
        decompress(sys_flag, FORMS[sys_flag], len(BODY) - 1)


@pytest.mark.parametrize("sys_flag", FORMS)
def test_cut_off_body_is_refused_not_shortened(sys_flag: int) -> None:
    for length in (0, 1, 5, len(FORMS[sys_flag]) - 5):
        with pytest.raises(RemoteProtocolError):
            decompress(sys_flag, FORMS[sys_flag][:length], len(BODY))


BOMBS = {
    0x001: zlib.compress(bytes(50_000_000), 9),
    0x101: lz4.frame.compress(bytes(50_000_000)),
    0x201: zstandard.ZstdCompressor().compress(bytes(50_000_000)),
}


@pytest.mark.parametrize(("sys_flag", "bomb"), BOMBS.items())
def test_bomb_is_refused_without_being_unpacked(sys_flag: int, bomb: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(RemoteProtocolError, match="more than 1000"):
            decompress(sys_flag, bomb, 1000)
        assert tracemalloc.get_traced_memory()[1] < 20_000_000
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("sys_flag", FORMS)
def test_the_start_of_a_body_is_read_without_its_rest(sys_flag: int) -> None:
    packed = FORMS[sys_flag]
    assert decompress_start(sys_flag, packed, 100) == BODY[:100]
    assert decompress_start(sys_flag, packed, 10 * len(BODY)) == BODY
    assert decompress_start(sys_flag & ~1, BODY, 100) == BODY[:100]
    with pytest.raises(RemoteProtocolError):
        decompress_start(sys_flag, b"not compressed", 100)


@pytest.mark.parametrize(("sys_flag", "bomb"), BOMBS.items())
def test_the_start_of_a_bomb_takes_little_memory(sys_flag: int, bomb: bytes) -> None:
    tracemalloc.start()
    try:
        assert decompress_start(sys_flag, bomb, 480) == bytes(480)
        assert tracemalloc.get_traced_memory()[1] < 1_000_000
    finally:
        tracemalloc.stop()


def test_flag_decides_not_the_bytes() -> None:
    assert decompress(0, FORMS[1], 10) == FORMS[1]
    assert decompress(0x300, FORMS[1], 10) == FORMS[1]


def test_unknown_form_is_refused() -> None:
    with pytest.raises(RemoteProtocolError, match="0x400"):
        decompress(0x401, b"x", 10)


def test_empty_body_can_be_compressed() -> None:
    assert decompress(ZLIB_SYS_FLAG, compress_zlib(b""), 10) == b""
    assert decompress(0x201, zstandard.ZstdCompressor().compress(b""), 10) == b""


@settings(max_examples=60)
@given(st.binary(max_size=300))
def test_ours_comes_back_and_random_bytes_raise_only_the_documented_error(body: bytes) -> None:
    assert decompress(ZLIB_SYS_FLAG, compress_zlib(body), 300) == body
    for sys_flag in FORMS:
        try:
            decompress(sys_flag, body, 1000)
        except RemoteProtocolError:
            continue
