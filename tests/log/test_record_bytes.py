"""The log's fast record reader agrees with the full one."""

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.encoding import check_record, encode_record

from lanemq.log.record_bytes import facts_of, hides_record, size_at
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


BODY_AT = 88


def hiding(body: bytes, properties_text: str = "", **more: int) -> bytes:
    return encode_record(topic="t", body=body, properties_text=properties_text, queue_id=1, queue_offset=2, **more)


@settings(max_examples=60)
@given(position=st.integers(0, 2**40), before=st.binary(max_size=30), after=st.binary(max_size=30))
def test_a_record_at_its_own_position_inside_a_body_is_found(position: int, before: bytes, after: bytes) -> None:
    inside = position + BODY_AT + len(before)
    forged = encode_record(topic="other", body=b"forged", queue_id=0, queue_offset=0, position=inside)
    record = hiding(before + forged + after, position=position)
    assert size_at(record, BODY_AT + len(before), inside) == len(forged)
    assert hides_record(record, position)
    elsewhere = hiding(before + forged + after, position=position + 1)
    assert not hides_record(elsewhere, position + 1)


def test_a_record_may_also_begin_in_the_head_of_another() -> None:
    """The flag, the born time and the body are the client's: they are the magic, the position and the rest."""
    record = hiding(bytes(60), position=1000, flag=0xDAA320A7 - 2**32, born_timestamp=1012)
    assert hides_record(record, 1000)


def test_the_end_of_a_record_may_not_begin_another_one() -> None:
    """The next record could complete it. With usual properties behind the body, its position is known to be wrong."""
    assert hides_record(hiding(bytes(4) + bytes.fromhex("daa320a7"), position=5), 5)
    assert not hides_record(hiding(bytes(4) + bytes.fromhex("daa320a7"), "UNIQ_KEY\x01" + "A" * 32, position=5), 5)
