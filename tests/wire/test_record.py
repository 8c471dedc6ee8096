"""Records: the layout other clients read, and the checksum that covers every byte."""

from typing import Any
from zlib import crc32

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.encoding import check_record, encode_record

from lanemq.model.errors import LocalProtocolError, RemoteProtocolError
from lanemq.wire.record import (
    RecordView,
    body_crc,
    build_tail,
    is_marked_synced,
    mark_synced,
    pack_host,
    record_starts,
    seal_record,
    seal_records,
    unpack_host,
)

HOST = pack_host("127.0.0.1", 10911)
FIELDS = [
    "size", "queue_id", "flag", "queue_offset", "position", "sys_flag", "born_timestamp", "born_host",
    "store_timestamp", "store_host", "reconsume_times", "body", "topic", "properties_text", "properties",
]  # fmt: skip


def hello(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "T1", "body": b"hello", "properties_text": "TAGS\x01TagA\x02", "queue_id": 1, "flag": 2,
        "queue_offset": 3, "position": 4, "born_timestamp": 5, "born_host": HOST, "store_timestamp": 6,
        "store_host": HOST, "reconsume_times": 7,
    }  # fmt: skip
    return encode_record(**fields | changes)


def shifted(record: bytes, sys_flag: int, magic: int | None = None) -> bytes:
    """The same record with the IPv6 hosts and the topic length that the arguments ask for."""
    born = bytes(12) + record[48:56] if sys_flag & 0x10 else record[48:56]
    store = bytes(12) + record[64:72] if sys_flag & 0x20 else record[64:72]
    body_end = 88 + int.from_bytes(record[84:88], "big")
    rest = record[72:body_end] + (b"\x00" if magic else b"") + record[body_end:]
    middle = record[8:36] + sys_flag.to_bytes(4, "big") + record[40:48] + born + record[56:64] + store + rest
    return (len(middle) + 8).to_bytes(4, "big") + (magic or 0xDAA320A7).to_bytes(4, "big") + middle


def test_layout_is_the_recorded_one_except_for_the_checksum(vectors: dict[str, Any]) -> None:
    recorded = bytes.fromhex(vectors["record_hex"])
    record = hello()
    assert len(record) == len(recorded)
    assert record[:76] == recorded[:76]
    assert record[84:] == recorded[84:]


def test_checksum_stands_where_transactions_would_keep_their_offset() -> None:
    record = hello()
    assert int.from_bytes(record[76:84], "big") == crc32(record[84:], crc32(record[:76]))


def test_body_crc_is_javas(vectors: dict[str, Any]) -> None:
    for text, expected in vectors["body_crc"].items():
        assert body_crc(text.encode()) == expected
        assert int.from_bytes(hello(body=text.encode())[8:12], "big") == expected


def test_view_reads_every_field() -> None:
    view = RecordView(b"...." + hello() + b"....", 4)
    assert [getattr(view, name) for name in FIELDS] == [
        len(hello()), 1, 2, 3, 4, 0, 5, "127.0.0.1:10911", 6, "127.0.0.1:10911",
        7, b"hello", "T1", "TAGS\x01TagA\x02", {"TAGS": "TagA"},
    ]  # fmt: skip
    assert view.properties is view.properties
    assert view.to_bytes() == hello()


@settings(max_examples=60)
@given(
    st.binary(max_size=200),
    st.text("abcXYZ_-%|09", min_size=1, max_size=127),
    st.text(st.characters(exclude_categories=["Cs"]), max_size=60),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
)
def test_any_record_comes_back_and_passes_its_check(
    body: bytes, topic: str, properties_text: str, queue_offset: int, position: int
) -> None:
    record = encode_record(
        topic=topic,
        body=body,
        properties_text=properties_text,
        queue_id=3,
        queue_offset=queue_offset,
        position=position,
    )
    view = RecordView(record)
    assert (view.topic, view.body, view.properties_text) == (topic, body, properties_text)
    assert (view.queue_offset, view.position) == (queue_offset, position)
    assert check_record(b"x" + record + b"y", 1, len(record))
    assert record_starts(record) == [0]


def marked() -> bytes:
    record = bytearray(hello())
    mark_synced(record)
    return bytes(record)


def test_a_mark_can_be_read_and_changes_nothing_else() -> None:
    assert (is_marked_synced(hello(), 0), is_marked_synced(marked(), 0)) == (False, True)
    assert check_record(marked(), 0, len(marked()))
    assert marked()[:76] + marked()[84:] == hello()[:76] + hello()[84:]


@pytest.mark.parametrize("record", [hello(), marked()], ids=["plain", "marked"])
def test_no_bit_can_change_unnoticed(record: bytes) -> None:
    for index in range(len(record)):
        for bit in range(8):
            damaged = bytearray(record)
            damaged[index] ^= 1 << bit
            assert not check_record(damaged, 0, len(record)), f"byte {index}, bit {bit}"


def test_check_refuses_what_does_not_fit() -> None:
    record = hello()
    assert check_record(record, 0, len(record))
    assert not check_record(record, 0, len(record) - 1)
    assert not check_record(record[:-1], 0, len(record))
    assert not check_record(record[:50], 0, len(record))
    assert not check_record(record, -1, len(record))
    assert not check_record(bytes(200), 0, 200)
    assert not check_record(record, 0, 0)


@pytest.mark.parametrize("head", [bytes.fromhex("00000008 daa320a7"), bytes.fromhex("00000000 daa320a7")])
def test_check_refuses_what_is_too_short_for_a_checksum(head: bytes) -> None:
    assert not check_record(head, 0, int.from_bytes(head[:4], "big"))


def test_check_refuses_a_sound_checksum_over_another_layout() -> None:
    for at, value in ((0, len(hello()) + 1), (4, 0xDAA320AB)):
        changed = bytearray(hello())
        changed[at : at + 4] = value.to_bytes(4, "big")
        changed[76:84] = crc32(changed[84:], crc32(changed[:76])).to_bytes(8, "big")
        assert not check_record(changed, 0, len(changed))


def test_early_tail_and_late_seal_give_the_same_bytes() -> None:
    tail = build_tail(b"hello", b"T1", b"TAGS\x01TagA\x02")
    assert seal_record(tail, body_crc(b"hello"), 1, 2, 3, 4, 0, 5, HOST, 6, HOST, 7) == hello()


def test_ipv6_bits_are_never_written() -> None:
    """They would announce a layout that we do not write."""
    assert RecordView(hello(sys_flag=0x31)).sys_flag == 0x1


@pytest.mark.parametrize("sys_flag", [0, 0x10, 0x20, 0x30])
@pytest.mark.parametrize("magic", [None, 0xDAA320AB])
def test_foreign_layouts_are_read(sys_flag: int, magic: int | None) -> None:
    record = shifted(hello(), sys_flag, magic)
    view = RecordView(record + hello())
    assert (view.body, view.topic, view.properties) == (b"hello", "T1", {"TAGS": "TagA"})
    assert (view.born_timestamp, view.store_timestamp, view.reconsume_times) == (5, 6, 7)
    assert view.born_host.startswith("[::") == bool(sys_flag & 0x10)
    assert view.store_host.startswith("[::") == bool(sys_flag & 0x20)
    assert view.born_host.endswith(":10911")
    assert view.store_host.endswith(":10911")
    assert record_starts(record + hello()) == [0, len(record)]


def test_starts_of_many_records() -> None:
    records = [hello(body=bytes(size)) for size in range(5)]
    starts = record_starts(b"".join(records))
    assert [RecordView(b"".join(records), start).size for start in starts] == [len(r) for r in records]
    assert record_starts(b"") == []


@pytest.mark.parametrize(
    "buffer",
    [
        hello()[:-1],
        hello() + b"x",
        hello() + hello()[:50],
        (90).to_bytes(4, "big") + hello()[4:],
        bytes(4) + hello()[4:],
        b"\xff" * 4 + hello()[4:],
        hello()[:4] + bytes(4) + hello()[8:],
        hello() + bytes(91),
    ],
)
def test_damaged_pull_body_is_refused(buffer: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        record_starts(buffer)


@pytest.mark.parametrize(
    ("at", "size", "value"),
    [
        (84, 4, 6),  # body one longer: topic length is read from the wrong byte
        (84, 4, 2**31 - 1),
        (84, 4, 2**32 - 1),
        (84, 4, 20),
        (84, 4, 108 - 88),
        (84, 4, 108 - 89),
        (36, 4, 0x30),
        (93, 1, 127),
        (93, 1, 255),
        (96, 2, 32767),
        (96, 2, 0xFFFF),
        (0, 4, 2**31 - 1),
        (0, 4, 90),
    ],
)
def test_lengths_inside_a_record_cannot_point_outside(at: int, size: int, value: int) -> None:
    damaged = hello()[:at] + value.to_bytes(size, "big") + hello()[at + size :]
    for behind in (b"", hello()):
        with pytest.raises(RemoteProtocolError):
            _ = RecordView(damaged + behind).properties_text


def test_properties_that_are_no_utf8_do_not_block_the_queue() -> None:
    record = hello().replace(b"TagA", b"Ta\xff\xfe")
    assert RecordView(record).properties == {"TAGS": "Ta��"}


@settings(max_examples=150)
@given(st.binary(max_size=120), st.integers(0, 120), st.binary(max_size=8))
def test_random_bytes_raise_nothing_but_the_documented_error(junk: bytes, at: int, patch: bytes) -> None:
    patched = hello()[:at] + patch + hello()[at + len(patch) :]
    for buffer in (junk, patched):
        check_record(buffer, 0, len(buffer))
        for name in FIELDS:
            try:
                getattr(RecordView(buffer), name)
                record_starts(buffer)
            except RemoteProtocolError:
                continue


@pytest.mark.parametrize(("topic", "properties"), [(b"t" * 128, b""), (b"t", b"p" * 32768)])
def test_what_a_signed_length_cannot_hold_is_not_written(topic: bytes, properties: bytes) -> None:
    with pytest.raises(LocalProtocolError):
        build_tail(b"", topic, properties)
    with pytest.raises(LocalProtocolError):
        seal_records([(b"", properties, 0, 0, 0, 0, 0)], topic, 0, 0, 0, HOST, 0, HOST)


NUMBER = st.integers(0, 2**31 - 1)
PARTS = st.tuples(st.binary(max_size=40), st.text(max_size=20).map(str.encode), NUMBER, NUMBER, NUMBER, NUMBER, NUMBER)


@settings(max_examples=60)
@given(st.lists(PARTS, max_size=5), NUMBER, NUMBER)
def test_records_sealed_together_are_those_sealed_one_by_one(
    items: list[tuple[bytes, bytes, int, int, int, int, int]], offset: int, position: int
) -> None:
    """The quick way of the broker against the plain one, IPv6 flags of the sender included."""
    expected = []
    for number, (body, properties, _, flag, sys_flag, born, reconsumed) in enumerate(items):
        expected.append(
            encode_record(
                topic="T1",
                body=body,
                properties_text=properties.decode(),
                queue_id=3,
                queue_offset=offset + number,
                position=position + sum(map(len, expected)),
                flag=flag,
                sys_flag=sys_flag,
                born_timestamp=born,
                born_host=HOST,
                store_timestamp=6,
                store_host=HOST,
                reconsume_times=reconsumed,
            )
        )
    assert seal_records(items, b"T1", 3, offset, position, HOST, 6, HOST) == expected


def test_ipv6_peer_is_written_as_a_placeholder_and_a_mapped_one_as_itself() -> None:
    assert unpack_host(pack_host("::ffff:10.1.2.3", 5)) == "10.1.2.3:5"
    assert unpack_host(pack_host("fe80::1%eth0", 5)) == "0.0.0.0:5"
    assert unpack_host(pack_host("localhost", 5)) == "0.0.0.0:5"
