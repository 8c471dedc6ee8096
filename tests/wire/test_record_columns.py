"""Records made column by column are those made one by one."""

from itertools import accumulate, repeat

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import outcome, references, twins
from tests.wire.encoding import encode_batch

from lanemq.log.queue_index import pack_entries
from lanemq.model.errors import LocalProtocolError
from lanemq.wire.batch import PlainBatch, RecordColumns, seal_columns
from lanemq.wire.record import pack_host, seal_records

HOST, ELSEWHERE = pack_host("10.0.0.1", 7), pack_host("10.0.0.2", 8)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(0, 2**62)
ROWS = st.lists(
    st.tuples(st.binary(max_size=120), st.binary(max_size=60), INTS, INTS, st.integers(5, 6)), min_size=1, max_size=6
)
VARIANTS = [references["seal_columns"], *([twins["seal_columns"]] if twins else [])]


def columns_of(rows: list[tuple[bytes, bytes, int, int, int]], sys_flag: int = 0, times: int = 0) -> RecordColumns:
    bodies, properties, tags, flags, born = map(list, zip(*rows, strict=True))
    return RecordColumns(bodies, properties, tags, flags, born, sys_flag, times)  # type: ignore[arg-type]


@settings(deadline=None, max_examples=100)
@given(ROWS, st.binary(max_size=127), INTS, LONGS, LONGS, INTS)
def test_columns_give_the_records_that_their_messages_give_one_by_one(
    rows: list[tuple[bytes, bytes, int, int, int]], topic: bytes, queue_id: int, offset: int, at: int, sys_flag: int
) -> None:
    """Births that differ included: sends of a run have each their own."""
    items = [(*row[:4], sys_flag, row[4], 3) for row in rows]
    expected = seal_records(items, topic, queue_id, offset, at, HOST, 9, ELSEWHERE)
    for seal in VARIANTS:
        assert seal(columns_of(rows, sys_flag, 3), topic, queue_id, offset, at, HOST, 9, ELSEWHERE) == expected


BATCHES = st.lists(
    st.tuples(INTS, st.binary(max_size=120), st.text(st.sampled_from("ab\x01\x02"), max_size=60)),
    min_size=1,
    max_size=6,
)


@settings(deadline=None, max_examples=100)
@given(BATCHES, st.binary(max_size=128), INTS, LONGS, LONGS, INTS, st.sampled_from([5, 2**63]))
def test_a_batch_in_one_piece_gives_the_records_of_its_columns(
    rows: list[tuple[int, bytes, str]], topic: bytes, queue_id: int, offset: int, at: int, sys_flag: int, born: int
) -> None:
    batch, place = PlainBatch(encode_batch(rows), len(rows), born, sys_flag, 3), (topic, queue_id, offset, at, HOST, 9)
    expected = outcome(lambda: b"".join(references["seal_columns"](batch.columns(), *place, ELSEWHERE)))
    for kind in (references, twins or references):
        assert outcome(kind["seal_batch"], batch, *place, ELSEWHERE) == expected
    if isinstance(expected, bytes):
        packed = [kind["entries_of"](expected, offset, at) for kind in (references, twins or references)]
        sizes = list(map(len, seal_columns(batch.columns(), *place, ELSEWHERE)))
        positions = list(accumulate(sizes[:-1], initial=at))
        assert packed == [pack_entries(offset, positions, sizes, [0] * len(rows))] * 2


@pytest.mark.skipif(not twins, reason="nothing is compiled here, or LANEMQ_PURE is set")
@pytest.mark.parametrize(
    "body", [b"", b"\0" * 30, encode_batch([(0, b"a", "b")])[:-1], encode_batch([(0, b"a", "b")]) * 2]
)
def test_the_twin_writes_nothing_of_a_batch_whose_sizes_disagree(body: bytes) -> None:
    batch = PlainBatch(body, 1, 5, 0, 3)
    place = b"T", 0, 0, 0, HOST, 9, ELSEWHERE
    assert outcome(twins["seal_batch"], batch, *place) == outcome(references["seal_batch"], batch, *place)


@pytest.mark.parametrize(("topic", "properties"), [(b"t" * 128, b""), (b"t", b"p" * 32768)])
def test_what_does_not_fit_into_a_record_is_refused(topic: bytes, properties: bytes) -> None:
    rows = [(b"", b"", 0, 0, 0), (b"", properties, 0, 0, 0)]
    for seal in VARIANTS:
        with pytest.raises(LocalProtocolError, match="do not fit into a record"):
            seal(columns_of(rows), topic, 0, 0, 0, HOST, 0, HOST)


def test_the_first_messages_can_be_left_out() -> None:
    rows = [(b"%d" % n, b"p%d" % n, n, n + 10, n + 20) for n in range(4)]
    left = columns_of(rows, 1, 2).behind(3)
    assert left == RecordColumns([b"3"], [b"p3"], [3], [13], [23], 1, 2)
    assert len(left) == 1


def test_twins_leave_odd_columns_to_the_reference() -> None:
    good = columns_of([(b"a", b"b", 0, 0, 0), (b"c", b"d", 0, 0, 0)])
    wide = RecordColumns(good.bodies, good.properties, good.tag_codes, [0, 2**31], good.born, 0, 0)
    late = RecordColumns(good.bodies, good.properties, good.tag_codes, good.flags, [0, 2**63], 0, 0)
    for odd in (wide, late):
        errors = []
        for seal in VARIANTS:
            with pytest.raises(Exception) as caught:  # noqa: PT011 - whatever struct says, both say it
                seal(odd, b"T", 0, 0, 0, HOST, 0, HOST)
            errors.append((caught.type, str(caught.value)))
        assert errors == list(repeat(errors[0], len(errors)))


def test_the_broker_uses_the_chosen_variant() -> None:
    assert seal_columns is VARIANTS[-1]
