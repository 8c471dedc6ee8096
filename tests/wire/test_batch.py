"""Batches are taken whole or not at all."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.encoding import BatchItem, encode_batch, split_batch

from lanemq.model.errors import LocalProtocolError, RemoteProtocolError

ONE = encode_batch([(1, b"hello", "a\x01b\x02")])


def test_layout_is_size_magic_crc_flag_body_properties() -> None:
    expected = pack(">iiiii", 31, 0, 0, 1, 5) + b"hello" + pack(">h", 4) + b"a\x01b\x02"
    assert encode_batch([(1, b"hello", "a\x01b\x02")]) == expected


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(
            st.integers(-(2**31), 2**31 - 1),
            st.binary(max_size=20),
            st.text(st.characters(exclude_categories=["Cs"]), max_size=8),
        ),
        min_size=1,
        max_size=5,
    )
)
def test_batches_come_back_in_order(items: list[tuple[int, bytes, str]]) -> None:
    assert split_batch(encode_batch(items)) == [BatchItem(*item) for item in items]


def test_every_cut_batch_is_refused() -> None:
    two = ONE + encode_batch([(0, b"", "")])
    for length in range(len(two)):
        if length != len(ONE):
            with pytest.raises(RemoteProtocolError):
                split_batch(two[:length])


@pytest.mark.parametrize(
    ("at", "value"),
    [(0, 30), (0, 32), (0, 0), (0, -1), (0, 2**31 - 1), (16, 4), (16, 6), (16, -1), (16, 2**31 - 1)],
)
def test_sizes_that_disagree_are_refused(at: int, value: int) -> None:
    damaged = ONE[:at] + pack(">i", value) + ONE[at + 4 :]
    with pytest.raises(RemoteProtocolError):
        split_batch(damaged + ONE)


@pytest.mark.parametrize("length", [3, 5, -1, 32767])
def test_properties_length_must_end_at_the_message(length: int) -> None:
    with pytest.raises(RemoteProtocolError):
        split_batch(ONE[:25] + pack(">h", length) + ONE[27:] + ONE)


def test_negative_body_length_cannot_borrow_another_field() -> None:
    """-5 would take the end of the flag for the properties length, and every other size agrees."""
    with pytest.raises(RemoteProtocolError):
        split_batch(pack(">iiiii", 272, 0, 0, 0, -5) + bytes(252))


def test_properties_must_be_text() -> None:
    with pytest.raises(RemoteProtocolError, match="UTF-8"):
        split_batch(ONE.replace(b"a\x01b", b"\xff\x01b"))


def test_empty_or_oversized_batch_is_not_written() -> None:
    with pytest.raises(LocalProtocolError):
        encode_batch([])
    with pytest.raises(LocalProtocolError):
        encode_batch([(0, b"", "x" * 32768)])


@settings(max_examples=150)
@given(st.binary(max_size=60))
def test_random_bytes_raise_nothing_but_the_documented_error(body: bytes) -> None:
    try:
        items = split_batch(body)
    except RemoteProtocolError:
        return
    assert sum(22 + len(item.body) + len(item.properties_text.encode()) for item in items) == len(body)
