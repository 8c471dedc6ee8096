"""The log's fast record reader agrees with the full one."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.encoding import check_record, encode_record

from lanemq.log.record_bytes import facts_of, size_at
from lanemq.model.java_hash import tag_code
from lanemq.wire.properties import tag_code_of
from lanemq.wire.record import RecordView

TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
NUMBER = st.integers(0, 2**31 - 1)


@settings(max_examples=60)
@given(
    topic=st.text("abc_%", min_size=1, max_size=127),
    body=st.binary(max_size=60),
    properties_text=TEXT,
    queue_id=NUMBER,
    queue_offset=NUMBER,
    position=NUMBER,
    store_timestamp=NUMBER,
    before=st.binary(max_size=20),
)
def test_the_fast_reader_agrees_with_the_full_one(before: bytes, **fields: object) -> None:
    record = encode_record(**fields)  # type: ignore[arg-type]
    buffer, start = before + record, len(before)
    view, facts = RecordView(buffer, start), facts_of(buffer, start)
    assert (facts.size, facts.topic, facts.queue_id, facts.queue_offset, facts.store_time, facts.properties) == (
        view.size,
        view.topic,
        view.queue_id,
        view.queue_offset,
        view.store_timestamp,
        view.properties_text,
    )
    assert size_at(buffer, start, view.position) == len(record)


@settings(max_examples=60)
@given(body=st.binary(max_size=40), data=st.data())
def test_a_record_with_a_flipped_bit_is_refused_by_both_readers(body: bytes, data: st.DataObject) -> None:
    record = bytearray(encode_record(topic="t", body=body, queue_id=1, queue_offset=2, position=3))
    bit = data.draw(st.integers(0, 8 * len(record) - 1))
    record[bit // 8] ^= 1 << bit % 8
    assert size_at(bytes(record), 0, 3) <= 0
    assert not check_record(bytes(record), 0, len(record))


def test_a_record_cut_short_asks_for_the_bytes_it_needs() -> None:
    record = encode_record(topic="t", body=b"x" * 50, queue_id=1, queue_offset=2, position=3)
    assert size_at(record[:90], 0, 3) == -len(record)
    assert size_at(record[:40], 0, 3) == -91


def test_a_messages_tag_is_stored_as_the_code_a_filter_asks_for() -> None:
    assert tag_code_of("TAGS\x01TagA\x02") == tag_code("TagA") != 0
    assert tag_code_of("KEYS\x01TagA\x02") == 0
