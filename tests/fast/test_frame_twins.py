"""The twins for what a broker reads return the same as their references, for valid and for damaged bytes."""

from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import damaged, needs_twins, outcome, same, twins
from tests.wire.encoding import encode_batch

from lanemq.wire.command import Frame, pack_frame

pytestmark = needs_twins

FRAMES = st.lists(st.builds(pack_frame, st.integers(0, 1), st.binary(max_size=20), st.binary(max_size=20)), max_size=4)
TEXTS = st.text(st.sampled_from("aT\x01\x02é"), max_size=12)
BATCHES = st.lists(st.tuples(st.integers(-5, 5), st.binary(max_size=12), TEXTS), min_size=1, max_size=4).map(
    encode_batch
)


@settings(deadline=None, max_examples=200)
@given(damaged(FRAMES.map(b"".join)) | st.binary(max_size=60), st.sampled_from([40, 16 * 2**20]))
def test_frames_are_cut_alike(data: bytes, limit: int) -> None:
    same("split_frames", data, limit, Frame)


def test_a_frame_has_named_fields() -> None:
    frames, position, needed = twins["split_frames"](pack_frame(1, b"head", b"body") + b"\0\0", 1000, Frame)
    assert (frames[0].serialize_type, frames[0].header, frames[0].body) == (1, b"head", b"body")
    assert (position, needed) == (16, 8)


@settings(deadline=None, max_examples=200)
@given(damaged(BATCHES) | st.binary(max_size=60), st.sampled_from([0, 1, 1000]))
def test_batches_are_cut_alike(body: bytes, most: int) -> None:
    same("batch_parts", body, most)


STAMPED = st.lists(
    st.tuples(
        st.integers(-5, 5),
        st.binary(max_size=12),
        st.sampled_from(["k\x01v", "", "k\x01é", "k\x01v\x02LANE_STAMP\x01p.1.6"]),
    ),
    min_size=1,
    max_size=4,
)


@settings(deadline=None, max_examples=200)
@given(st.data(), STAMPED, st.sampled_from([0, 5, 9, 2**59, 2**61]), st.booleans())
def test_stamps_in_a_batch_are_compared_alike(data: Any, rows: Any, sequence: int, right: bool) -> None:
    stamped = [
        (flag, body, f"{text}\x02LANE_STAMP\x01p.1.{sequence + place * (right or 2)}\x02")
        for place, (flag, body, text) in enumerate(rows)
    ]
    body, prefix = encode_batch(stamped), b"\x02LANE_STAMP\x01p.1."
    same("all_stamped", body, prefix, sequence)
    broken = data.draw(damaged(st.just(body)))  # refused before by `batch_parts`; nothing may be read past its end
    assert outcome(twins["all_stamped"], broken, prefix, sequence) in (False, True) or broken != body


PIECES = [b"TAGS\x01x", b"DELAY\x013", b"TIMER_DELAY_MS\x015", b"MYTAGS\x01y", b"DELAYED\x011", b"T", b"D", b"k\x01v"]
PIECES += [b"REPLY_TO_CLIENT\x01c", b"REPLY_TO_CLIENT", b"NO_REPLY_TO_CLIENT\x01c", b"R"]


@settings(deadline=None, max_examples=100)
@given(
    st.lists(st.binary(max_size=5), max_size=4),
    st.lists(st.lists(st.sampled_from(PIECES), max_size=4).map(b"\x02".join), max_size=4),
)
def test_messages_are_weighed_alike(bodies: list[bytes], properties: list[bytes]) -> None:
    same("weigh", bodies, properties)


STAMPS = st.sampled_from(
    [b"p.1.%d", b"p.2.%d", b"q.1.%d", b"p.1.%d0", b"p.1.0%d", b"p.%d", b"p.1.%d.1", b"p q.1.%d", b".1.%d", b"-_Z9.0.%d"]
)


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.tuples(
            st.sampled_from([b"", b"a\x01b\x02", "k\x01ü\x02".encode(), b"LANE_STAMP\x01p.1.4\x02", b"a\x01"]),
            STAMPS,
            st.sampled_from([b"\x02", b"", b"\x02x\x01y\x02"]),
        ),
        min_size=1,
        max_size=4,
    ),
    st.integers(0, 2**63 - 20),
    st.booleans(),
)
def test_stamps_are_followed_alike(texts: list[tuple[bytes, bytes, bytes]], sequence: int, alike: bool) -> None:
    chosen = [texts[0]] * len(texts) if alike else texts
    stamped = [
        before + b"LANE_STAMP\x01" + stamp % (sequence + at) + after for at, (before, stamp, after) in enumerate(chosen)
    ]
    same("following_stamps", stamped)
    same("following_stamps", [*stamped, b"short"])
    same("following_stamps", [b"no stamp", *stamped])


def test_a_text_shorter_than_its_stamp_is_not_read_past_its_beginning() -> None:
    whole = b"LANE_STAMP\x01p.1.7\x02"
    for start in range(len(whole)):
        same("following_stamps", [whole[start:]])
        same("following_stamps", [whole, whole[start:]])
