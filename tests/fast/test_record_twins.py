"""The twins for stored records return the same as their references, for valid and for damaged bytes."""

from collections.abc import Callable
from itertools import accumulate
from struct import pack
from typing import Any
from zlib import crc32

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import damaged, needs_twins, outcome, references, same, twins

from lanemq.log.queue_index import pack_entry
from lanemq.wire.record import pack_host

pytestmark = needs_twins

HOST = pack_host("127.0.0.1", 10911)
INTS = st.integers(-(2**31), 2**31 - 1)
LONGS = st.integers(0, 2**62)
ITEMS = st.tuples(st.binary(max_size=60), st.binary(max_size=40), INTS, INTS, INTS, LONGS, INTS)


def sealed(items: list[Any], queue_id: int = 1, offset: int = 5, position: int = 1000) -> list[bytes]:
    records: list[bytes] = references["seal_records"](items, b"topic", queue_id, offset, position, HOST, 7, HOST)
    return records


BODIES = st.lists(ITEMS, max_size=5).map(lambda items: b"".join(sealed(items)))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=300), st.integers(0, 2**32 - 1))
def test_the_checksum_is_zlibs(data: bytes, before: int) -> None:
    from lanemq._fast import records

    assert records.crc(data, before) == crc32(data, before)


def test_the_checksum_of_every_length_is_zlibs() -> None:
    """Long texts are folded 64 bytes a step, then 16, and the rest goes by table."""
    from lanemq._fast import records

    data = bytes(number * 7 % 251 for number in range(1100))
    for size in range(1090):
        start = size % 10
        assert records.crc(data[start : start + size], size) == crc32(data[start : start + size], size)


@settings(deadline=None, max_examples=60)
@given(st.lists(ITEMS, max_size=5), st.binary(max_size=130), INTS, LONGS, LONGS, LONGS)
def test_records_are_sealed_alike(
    items: list[Any], topic: bytes, queue_id: int, offset: int, position: int, time: int
) -> None:
    same("seal_records", items, topic, queue_id, offset, position, HOST, time, HOST)


def test_parts_that_do_not_fit_into_a_record_are_refused_alike() -> None:
    plain = (b"body", b"", 0, 0, 0, 0, 0)
    for bad in (
        (b"body", b"p" * 32768, 0, 0, 0, 0, 0),
        (b"body", b"", 0, 2**31, 0, 0, 0),
        (b"body", b"", 0, 0, 0, 2**63, 0),
        (b"body", b"", 0, 0, 0, 0, -(2**31) - 1),
        (b"body", b"", 0, "flag", 0, 0, 0),
        ("body", b"", 0, 0, 0, 0, 0),
        (bytearray(b"body"), b"", 0, 0, 0, 0, 0),
        (b"body",),
    ):
        same("seal_records", [plain, bad], b"T", 0, 0, 0, HOST, 0, HOST)
    for topic, host in ((b"t" * 128, HOST), (b"t", b"short")):
        same("seal_records", [plain], topic, 0, 0, 0, host, 0, HOST)


@settings(deadline=None, max_examples=200)
@given(damaged(BODIES) | st.binary(max_size=200))
def test_starts_are_found_alike(body: bytes) -> None:
    same("record_starts", body)


def test_buffers_other_than_bytes_are_accepted() -> None:
    body = b"".join(sealed([(b"a", b"", 0, 0, 0, 0, 0)] * 3))
    assert same("record_starts", memoryview(body).tobytes()) == twins["record_starts"](memoryview(body))


@settings(deadline=None, max_examples=60)
@given(st.lists(ITEMS, min_size=1, max_size=5), LONGS, LONGS, st.booleans())
def test_entries_are_packed_alike(items: list[Any], offset: int, position: int, tagged: bool) -> None:
    records, codes = sealed(items, 0, offset, position), [item[2] for item in items] if tagged else None
    packed = same("entries_of", b"".join(records), offset, position, codes)
    places = accumulate(map(len, records[:-1]), initial=position)
    facts = zip(places, map(len, records), codes or [0] * len(items), strict=True)
    assert packed == b"".join(pack_entry(offset + at, *fact) for at, fact in enumerate(facts))


def test_entries_that_do_not_fit_are_refused_alike() -> None:
    records = b"".join(sealed([(b"a", b"", 0, 0, 0, 0, 0)] * 2))
    for codes in ([0], [0, 2**31], [0, "tag"]):
        same("entries_of", records, 0, 0, codes)
    same("entries_of", records[:-1], 0, 0, None)


@settings(deadline=None, max_examples=200)
@given(st.lists(ITEMS, min_size=1, max_size=4), st.data())
def test_records_are_proven_alike(items: list[Any], data: st.DataObject) -> None:
    records = sealed(items)
    entries, at = [], 1000
    for record in records:
        entries.append((at, len(record), 0, 0))
        at += len(record)
    whole = data.draw(st.just(b"".join(records)) | damaged(st.just(b"".join(records))))
    offsets = list(range(5, 5 + len(items)))
    bad = same("verify", whole, 1, entries, offsets)
    assert bad == [] or whole != b"".join(records)
    assert same("verify", whole, 2, entries, offsets) == list(range(len(items)))


@settings(deadline=None, max_examples=60)
@given(st.binary(max_size=200), st.lists(st.tuples(st.integers(-50, 250), INTS, INTS, INTS), min_size=1, max_size=4))
def test_entries_with_any_position_read_nothing_outside_of_the_buffer(data: bytes, entries: list[Any]) -> None:
    same("verify", data, 0, entries, list(range(len(entries))))


ENTRIES = st.tuples(st.integers(-5, 400) | st.integers(2**62 - 3, 2**63 - 1), st.integers(-2, 120) | INTS, INTS, INTS)


@settings(deadline=None, max_examples=200)
@given(st.lists(ENTRIES, max_size=5), st.integers(0, 400), st.booleans())
def test_places_in_the_log_are_planned_alike(entries: list[Any], most: int, cut: bool) -> None:
    raw = b"".join(pack(">qiii", *entry) for entry in entries)
    same("adjacent_runs", raw[:-1] if cut else raw, most)


@settings(deadline=None, max_examples=200)
@given(st.lists(ITEMS, min_size=1, max_size=4), st.integers(-1, 3), st.integers(0, 4), st.integers(0, 2), st.data())
def test_adjacent_records_are_proven_alike(
    items: list[Any], first: int, count: int, queue_id: int, data: st.DataObject
) -> None:
    records = sealed(items)
    starts = list(accumulate(map(len, records), initial=1000))
    raw = b"".join(pack(">qiii", at, len(record), 0, 0) for at, record in zip(starts, records, strict=False))
    here = b"".join(records[max(first, 0) : max(first, 0) + count])
    given = data.draw(st.just(here) | damaged(st.just(here)))
    intact = same("is_intact", given, queue_id, 5, raw, max(first, 0), count)
    if 0 < count <= len(items) - max(first, 0):
        assert intact == (given == here and queue_id == 1)
        assert not same("is_intact", given, 1, 6, raw, max(first, 0), count)


def test_any_changed_byte_is_detected() -> None:
    (record,) = sealed([(b"body", b"properties", 0, 0, 0, 0, 0)])
    entry = [(1000, len(record), 0, 0)]
    for at in range(len(record)):
        changed = bytes([*record[:at], record[at] ^ 1, *record[at + 1 :]])
        assert outcome(twins["verify"], changed, 1, entry, [5]) == [0]


def test_a_size_too_small_for_a_record_is_refused_alike() -> None:
    (record,) = sealed([(b"body", b"", 0, 0, 0, 0, 0)])
    small = (50).to_bytes(4, "big") + record[4:50]
    assert same("record_starts", small + record)[0].__name__ == "RemoteProtocolError"


def test_a_record_that_ends_past_its_bytes_is_refused() -> None:
    """Its last byte is the zero that follows any bytes object in memory: only the length reveals it."""
    (record,) = sealed([(b"body", b"\0", 0, 0, 0, 0, 0)])
    assert same("verify", record, 1, [(1000, len(record), 0, 0)], [5]) == []
    assert same("verify", record[:-1], 1, [(1000, len(record), 0, 0)], [5]) == [0]


FIELDS = (
    *("size", "queue_id", "flag", "queue_offset", "position", "sys_flag", "born_timestamp", "born_host"),
    *("store_timestamp", "store_host", "reconsume_times", "body", "topic", "properties_text", "properties"),
)


def fields_of(view: Callable[..., Any], buffer: Any, start: int) -> list[Any]:
    """Each field of a record, or the error that reading it raises; every field of a view that nothing was read of."""
    read = [outcome(getattr, view(buffer, start), field) for field in FIELDS]
    return [*read, outcome(lambda: view(buffer, start).to_bytes())]


@settings(deadline=None, max_examples=100)
@given(damaged(BODIES), st.integers(-3, 200), st.sampled_from([bytes, bytearray, memoryview]))
def test_the_fields_of_a_record_are_read_alike(body: bytes, start: int, kind: Callable[[bytes], Any]) -> None:
    assert fields_of(twins["RecordView"], kind(body), start) == fields_of(references["RecordView"], kind(body), start)


def test_a_record_with_addresses_of_version_6_or_magic_2_is_read_alike() -> None:
    record = bytearray(sealed([(b"body", b"KEYS\x01k\x02", 0, 0, 0, 0, 0)])[0])
    for at, byte in ((39, 0x10), (39, 0x20), (39, 0x30), (7, 0xAB)):
        other = bytearray(record + bytes(40))
        other[at] = byte
        for start in (0, 1):
            whole = bytes(other)
            assert fields_of(twins["RecordView"], whole, start) == fields_of(references["RecordView"], whole, start)


TEXTS = st.lists(
    st.sampled_from(
        ["TAGS\x01a", "TAGS\x01", "TAGS\x01ä", "XTAGS\x01b", "KEYS\x01TAGS\x01c", "TAGS\x01long tag", "k\x01v"]
    ),
    max_size=3,
).map(lambda entries: "\x02".join(entries).encode())
STORED = st.lists(
    st.tuples(st.sampled_from([b"topic", b"topics", b"\xc3\xa4"]), st.integers(-1, 2), st.binary(max_size=40), TEXTS),
    max_size=12,
)


@settings(deadline=None, max_examples=150)
@given(STORED, st.integers(0, 40), st.integers(0, 3), st.booleans(), st.data())
def test_whole_windows_are_indexed_alike(
    stored: list[tuple[bytes, int, bytes, bytes]], gap_at: int, dropped: int, damage: bool, data: st.DataObject
) -> None:
    position, parts, offsets, positions = 1000, [], {}, []
    for number, (topic, queue_id, body, text) in enumerate(stored):
        offset = offsets.get((topic, queue_id), 7) + (number == gap_at)
        offsets[topic, queue_id] = offset + 1
        items = [(body, text, 0, 0, 0, 5, 0)]
        (record,) = references["seal_records"](items, topic, queue_id, offset, position, HOST, 100 + number, HOST)
        parts.append(record)
        positions.append(position)
        position += len(record)
    buffer = b"".join(parts)
    if damage and buffer:
        buffer = data.draw(damaged(st.just(buffer)))
    until = {b"topic": positions[dropped]} if dropped and len(positions) > dropped else {}
    found = same("index_runs", buffer, 1000, until)
    if not damage and gap_at >= len(stored):
        assert found[1] == len(stored)
        assert found[3] == len(buffer)


MAGIC, POSITION = bytes.fromhex("daa320a7"), pack(">q", 1000 + 88 + 30)
HIDING = st.lists(
    st.sampled_from([b"\xda", b"\xda\xa3", MAGIC, MAGIC + bytes(20) + POSITION, POSITION, b"x", bytes(20), bytes(30)]),
    max_size=8,
).map(b"".join)


@settings(deadline=None, max_examples=300)
@given(st.lists(st.tuples(HIDING, HIDING), max_size=3), st.integers(1000 - 40, 1000 + 40))
def test_records_in_bodies_are_found_alike(stored: list[tuple[bytes, bytes]], position: int) -> None:
    items = [(body, text, 0, 0, 0, 5, 0) for body, text in stored]
    same("hides_record", b"".join(sealed(items, position=position)), position)


def test_a_magic_at_any_place_is_found_alike() -> None:
    """The twin looks at some bytes in place after each first byte of a magic."""
    for before in range(40):
        at = 1000 + 88 + before
        for lead in (b"x", b"\xda"):
            item = (lead * before + bytes(4) + MAGIC + bytes(20) + pack(">q", at), b"", 0, 0, 0, 5, 0)
            assert same("hides_record", b"".join(sealed([item])), 1000) is True
            assert same("hides_record", b"".join(sealed([item])), 1001) is False


STAMPS = st.tuples(st.sampled_from(["p", "q"]), st.integers(0, 1), st.integers(0, 3))
TEXTS = st.one_of(
    STAMPS.map(lambda stamp: "KEYS\x01k\x02LANE_STAMP\x01{}.{}.{}\x02".format(*stamp)),
    STAMPS.map(lambda stamp: "LANE_STAMP\x01{}.{}.{}\x02KEYS\x01k".format(*stamp)),
    st.sampled_from(["", "KEYS\x01k\x02", "LANE_STAMP\x01nonsense\x02", "XLANE_STAMP\x01p.0.1\x02"]),
)


def stamped(texts: list[tuple[str, int, bytes]]) -> bytes:
    """Records of two queues and two topics, each queue with consecutive offsets."""
    records, ends, position = [], {}, 0
    for time, (text, queue_id, topic) in enumerate(texts):
        offset = ends[topic, queue_id] = ends.get((topic, queue_id), -1) + 1
        item = (b"body", text.encode(), 0, 0, 0, 0, 0)
        records += references["seal_records"]([item], topic, queue_id, offset, position, HOST, time % 3, HOST)
        position += len(records[-1])
    return b"".join(records)


RECORDS = st.lists(st.tuples(TEXTS, st.integers(0, 1), st.sampled_from([b"t", b"u"])), max_size=12).map(stamped)


@settings(deadline=None, max_examples=60)
@given(RECORDS)
def test_runs_of_stamps_are_found_alike(data: bytes) -> None:
    same("stamp_runs", data, 0, len(data))


@settings(deadline=None, max_examples=60)
@given(damaged(RECORDS))
def test_runs_of_stamps_in_damaged_records_are_found_alike(data: bytes) -> None:
    same("stamp_runs", data, 0, len(data))


def test_consecutive_stamps_of_a_queue_are_one_run() -> None:
    texts = [(f"KEYS\x01k\x02LANE_STAMP\x01p.7.{n}\x02", n % 2, b"t") for n in (0, 1)]
    texts += [(f"KEYS\x01k\x02LANE_STAMP\x01p.7.{n}\x02", 0, b"t") for n in (1, 2, 3)]
    data = stamped(texts)
    runs = same("stamp_runs", data, 0, len(data))
    assert [(run.queue_id, run.first.sequence, run.length, run.offset) for run in runs] == [(0, 0, 4, 0), (1, 1, 1, 0)]
