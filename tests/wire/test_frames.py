"""Frames survive any way of being cut up, and nothing else gets through."""

from struct import pack

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.model.errors import LocalProtocolError, RemoteProtocolError
from lanemq.wire.command import MAX_HEADER_BYTES, BodyBuffer, Frame, FrameDecoder, pack_frame, split_frames

ONE = pack_frame(0, b'{"code":1}', b"body")
TWO = pack_frame(1, b"x" * 30, b"")


def test_layout_is_length_type_header_length_header_body() -> None:
    data = pack_frame(0, b'{"code":1}', b"body")
    assert data == bytes.fromhex("00000012 00 00000a") + b'{"code":1}' + b"body"


def test_whole_frames_come_out_as_they_went_in() -> None:
    assert FrameDecoder().feed(ONE + TWO) == [Frame(0, b'{"code":1}', b"body"), Frame(1, b"x" * 30, b"")]


def test_byte_by_byte_gives_the_same_frames_each_with_its_last_byte() -> None:
    decoder, delivered = FrameDecoder(), []
    for index in range(len(ONE + TWO)):
        frames = decoder.feed((ONE + TWO)[index : index + 1])
        delivered += [(index + 1, frame) for frame in frames]
    assert [at for at, _ in delivered] == [len(ONE), len(ONE + TWO)]
    assert [frame for _, frame in delivered] == FrameDecoder().feed(ONE + TWO)
    assert decoder.pending == 0


def test_tail_is_kept_for_the_next_feed() -> None:
    decoder = FrameDecoder()
    assert len(decoder.feed(ONE + TWO[:11])) == 1
    assert decoder.pending == 11
    assert decoder.feed(TWO[11:] + ONE) == [Frame(1, b"x" * 30, b""), Frame(0, b'{"code":1}', b"body")]


def test_unfinished_frame_is_not_looked_at_again_before_its_last_byte(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Joining and reading a large frame anew with every piece would cost its size squared."""
    looks: list[int] = []

    def counted(data: bytes, limit: int, kind: type[Frame]) -> tuple[list[Frame], int, int]:
        looks.append(len(data))
        return split_frames(data, limit, kind)

    monkeypatch.setattr("lanemq.wire.command.split_frames", counted)
    large, decoder = pack_frame(0, b"h", bytes(5000)), FrameDecoder()
    frames = [frame for at in range(0, len(large), 100) for frame in decoder.feed(large[at : at + 100])]
    assert frames == [Frame(0, b"h", bytes(5000))]
    assert looks == [100, len(large)]


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.sampled_from([0, 1]), st.binary(max_size=40), st.binary(max_size=60)), max_size=6),
    st.lists(st.integers(1, 30), min_size=1, max_size=8),
)
def test_any_cutting_gives_the_same_frames(parts: list[tuple[int, bytes, bytes]], cuts: list[int]) -> None:
    stream = b"".join(pack_frame(*part) for part in parts)
    decoder, frames, at, turn = FrameDecoder(), [], 0, 0
    while at < len(stream):
        step = cuts[turn % len(cuts)]
        frames += decoder.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
    assert frames == [Frame(*part) for part in parts]
    assert decoder.pending == 0


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (pack(">I", 3), "no room"),
        (pack(">I", 0) + bytes(4), "no room"),
        (pack(">I", 1000), "over the limit of 1000"),
        (pack(">II", 997, 0), "over the limit of 1000"),
        (pack(">II", 10, 7), "does not fit"),
        (pack(">II", 10, 2 << 24 | 4), "serialize type 2"),
        (pack(">II", 10, 255 << 24), "serialize type 255"),
        (b"GET / HTTP/1.1\r\n", "HTTP request"),
    ],
)
def test_input_that_is_not_a_frame_is_refused_from_its_first_bytes(data: bytes, problem: str) -> None:
    """Waiting for the announced rest would let a peer park megabytes."""
    with pytest.raises(RemoteProtocolError, match=problem):
        FrameDecoder(limit=1000).feed(data)


def test_largest_frame_passes_and_one_byte_more_does_not() -> None:
    assert len(FrameDecoder(limit=100).feed(pack_frame(0, b"", bytes(92)))) == 1
    with pytest.raises(RemoteProtocolError):
        FrameDecoder(limit=100).feed(pack_frame(0, b"", bytes(93)))


def test_oversized_header_is_refused_on_both_sides() -> None:
    with pytest.raises(RemoteProtocolError, match=f"header of {MAX_HEADER_BYTES + 1} bytes"):
        FrameDecoder().feed(pack(">II", MAX_HEADER_BYTES + 100, MAX_HEADER_BYTES + 1))
    with pytest.raises(LocalProtocolError):
        pack_frame(0, bytes(MAX_HEADER_BYTES + 1), b"")
    assert FrameDecoder().feed(pack_frame(0, bytes(MAX_HEADER_BYTES), b""))


@settings(max_examples=200)
@given(st.lists(st.binary(max_size=40), max_size=5))
def test_random_bytes_raise_nothing_but_the_documented_error(pieces: list[bytes]) -> None:
    decoder = FrameDecoder(limit=4096)
    for piece in pieces:
        try:
            decoder.feed(piece)
        except RemoteProtocolError:
            return
        assert decoder.pending <= 4096


def test_crumbs_of_a_frame_are_held_together() -> None:
    """Each as an object of its own would take twenty times its size: a slow sender could fill the memory."""
    large, decoder = pack_frame(0, b"h", bytes(20_000)), FrameDecoder()
    for at in range(0, 16_000, 2):
        assert decoder.feed(large[at : at + 2]) == []
    assert decoder.pending == 16_000
    assert len(decoder._rest) == 1


def test_large_pieces_are_kept_as_they_came() -> None:
    """A frame of many reads is copied once when it is whole, not with every piece."""
    large, decoder = pack_frame(0, b"h", bytes(30_000)), FrameDecoder()
    pieces = [large[at : at + 10_000] for at in range(0, 20_000, 10_000)]
    for piece in pieces:
        assert decoder.feed(piece) == []
    assert all(kept is piece for kept, piece in zip(decoder._rest[1:], pieces[1:], strict=True))
    assert decoder.feed(large[20_000:]) == [Frame(0, b"h", bytes(30_000))]
    assert decoder.pending == 0


def test_memory_of_a_large_frame_is_reserved_when_a_sixteenth_of_it_has_arrived() -> None:
    """Reserving it with the first bytes would let a peer that sends eight of them take megabytes."""
    large, decoder = pack_frame(0, b"h", bytes(160_000)), FrameDecoder()
    assert decoder.feed(large[:8_000]) == []
    assert (decoder.body, decoder.pending) == (None, 8_000)
    assert decoder.feed(large[8_000:11_000]) == []
    assert decoder.body is not None
    assert decoder.pending == len(large), "what is reserved counts"


def test_memory_of_a_large_frame_of_a_chosen_server_is_reserved_with_its_header() -> None:
    large, decoder = pack_frame(0, b"head", bytes(160_000)), FrameDecoder(trusted=True)
    assert decoder.feed(large[:11]) == []
    assert decoder.body is None, "the header is not whole"
    assert decoder.feed(large[11:13]) == []
    assert decoder.body is not None
    assert decoder.feed(large[13:]) == [Frame(0, b"head", bytes(160_000))]


@pytest.mark.parametrize("trusted", [False, True])
def test_a_body_of_one_byte_below_a_large_header_is_read(trusted: bool) -> None:
    large, decoder = pack_frame(0, bytes(40_000), b"b"), FrameDecoder(trusted=trusted)
    assert decoder.feed(large[:-1]) == []
    assert decoder.feed(large[-1:] + ONE) == [Frame(0, bytes(40_000), b"b"), *FrameDecoder().feed(ONE)]


def test_a_large_frame_is_whole_only_with_its_last_byte() -> None:
    large, decoder = pack_frame(1, b"head", bytes(range(256)) * 256), FrameDecoder()
    assert decoder.feed(large[:50_000]) == []
    assert decoder.feed(large[50_000:-1]) == []
    assert decoder.feed(large[-1:] + ONE) == [Frame(1, b"head", bytes(range(256)) * 256), *FrameDecoder().feed(ONE)]
    assert decoder.pending == 0


@settings(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(0, 70_000), st.integers(0, 20_000)), min_size=1, max_size=4),
    st.lists(st.tuples(st.booleans(), st.integers(1, 50_000)), min_size=1, max_size=8),
)
def test_bytes_written_to_the_body_directly_give_the_same_frames(
    sizes: list[tuple[int, int]], reads: list[tuple[bool, int]]
) -> None:
    """As a socket does it: while a body is open it writes there, now and then it has bytes at hand instead."""
    parts = [
        Frame(0, b"h" * header, bytes((at + i) % 251 for i in range(2)) * (size // 2))
        for at, (size, header) in enumerate(sizes)
    ]
    stream = b"".join(pack_frame(*part) for part in parts)
    decoder, frames, at, turn = FrameDecoder(), [], 0, 0
    while at < len(stream):
        directly, step = reads[turn % len(reads)]
        if directly and decoder.body is not None:
            space = decoder.body.space()
            step = min(step, len(space))
            space[:step] = stream[at : at + step]
            frames += decoder.body_filled(step)
        else:
            frames += decoder.feed(stream[at : at + step])
        at, turn = at + step, turn + 1
    assert frames == parts
    assert all(type(frame.body) is bytes for frame in frames)
    assert decoder.pending == 0


def test_a_body_takes_no_more_than_its_size_and_is_not_given_out_before() -> None:
    body = BodyBuffer(10)
    body.filled(4)
    with pytest.raises(ValueError, match="7 bytes were written where 6 fit"):
        body.filled(7)
    with pytest.raises(ValueError, match="6 bytes of the body are missing"):
        body.take()
    assert body.put(b"ab12345678", 2) == 8
    assert body.left == 0
    assert body.take()[4:] == b"123456"
