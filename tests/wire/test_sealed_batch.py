"""Records of a batch that is sealed in one piece are those of its messages, sealed one by one."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import outcome, references, twins
from tests.wire.encoding import encode_batch

from lanemq.wire.batch import PlainBatch
from lanemq.wire.record import pack_host

HOST, ELSEWHERE = pack_host("10.0.0.1", 7), pack_host("10.0.0.2", 8)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(0, 2**62)
BATCHES = st.lists(
    st.tuples(INTS, st.binary(max_size=120), st.text(st.sampled_from("ab\x01\x02"), max_size=60)),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=100)
@given(BATCHES, st.binary(max_size=128), INTS, LONGS, LONGS, INTS, st.sampled_from([5, 2**63]))
def test_a_batch_in_one_piece_gives_the_records_of_its_messages(
    rows: list[tuple[int, bytes, str]], topic: bytes, queue_id: int, offset: int, at: int, sys_flag: int, born: int
) -> None:
    batch, place = PlainBatch(encode_batch(rows), len(rows), born, sys_flag, 3), (topic, queue_id, offset, at, HOST, 9)
    expected = outcome(lambda: b"".join(references["seal_records"](batch.records(), *place, ELSEWHERE)))
    for kind in (references, twins or references):
        assert outcome(kind["seal_batch"], batch, *place, ELSEWHERE) == expected


@pytest.mark.skipif(not twins, reason="nothing is compiled here, or LANEMQ_PURE is set")
@pytest.mark.parametrize(
    "body", [b"", b"\0" * 30, encode_batch([(0, b"a", "b")])[:-1], encode_batch([(0, b"a", "b")]) * 2]
)
def test_the_twin_writes_nothing_of_a_batch_whose_sizes_disagree(body: bytes) -> None:
    batch = PlainBatch(body, 1, 5, 0, 3)
    place = b"T", 0, 0, 0, HOST, 9, ELSEWHERE
    assert outcome(twins["seal_batch"], batch, *place) == outcome(references["seal_batch"], batch, *place)
