"""Decoded columns equal the fields of `RecordView`, for ordinary, odd and damaged bodies."""

from collections.abc import Callable
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.wire.encoding import encode_record

from lanemq.model.errors import InvalidOption, RemoteProtocolError
from lanemq.spark.columns import (
    COLUMNS,
    DEFAULT_COLUMNS,
    ON_REQUEST,
    DecodeOptions,
    arrow_schema,
    decode,
    select_columns,
)
from lanemq.spark.options import OnDamaged
from lanemq.wire.compression import ZLIB_SYS_FLAG, compress_zlib, decompress
from lanemq.wire.properties import LANE_STAMP, PropertyName, decode_stamp
from lanemq.wire.record import RecordView, encode_offset_id, pack_host, record_starts

SCHEMA = arrow_schema(COLUMNS)
ALL = 2**62


def record(**changes: Any) -> bytes:
    fields: dict[str, Any] = {
        "topic": "orders", "body": b"hello", "properties_text": "TAGS\x01paid\x02", "queue_id": 1,
        "queue_offset": 3, "position": 4, "born_timestamp": 5, "store_timestamp": 6, "reconsume_times": 7,
        "store_host": pack_host("127.0.0.1", 10911),
    }  # fmt: skip
    return encode_record(**fields | changes)


def shifted(plain: bytes, flag: int, magic: int | None) -> bytes:
    """The record with IPv6 hosts or the topic length of version 2."""
    sys_flag = int.from_bytes(plain[36:40], "big") | flag
    born = bytes(12) + plain[48:56] if flag & 0x10 else plain[48:56]
    store = bytes(12) + plain[64:72] if flag & 0x20 else plain[64:72]
    body_end = 88 + int.from_bytes(plain[84:88], "big")
    rest = plain[72:body_end] + (b"\x00" if magic else b"") + plain[body_end:]
    middle = plain[8:36] + sys_flag.to_bytes(4, "big") + plain[40:48] + born + plain[56:64] + store + rest
    return (len(middle) + 8).to_bytes(4, "big") + (magic or 0xDAA320A7).to_bytes(4, "big") + middle


def rows(body: bytes, low: int = 0, high: int = ALL, **wanted: Any) -> list[dict[str, Any]]:
    batches = decode(body, low, high, DecodeOptions(wanted.pop("schema", SCHEMA), "broker-a", **wanted))
    found: list[dict[str, Any]] = []
    for batch in batches:
        batch.validate(full=True)
        found += batch.to_pylist(maps_as_pydicts="strict")
    return found


def reference(view: RecordView) -> dict[str, Any]:
    """The same row, read one field at a time."""
    properties = view.properties
    host, _, port = view.store_host.rpartition(":")
    stamp = decode_stamp(properties[LANE_STAMP]) if LANE_STAMP in properties else None
    return {
        "topic": view.topic,
        "broker": "broker-a",
        "queue_id": view.queue_id,
        "queue_offset": view.queue_offset,
        "key": properties.get(PropertyName.KEY),
        "tags": properties.get(PropertyName.TAGS),
        "keys": properties.get(PropertyName.KEYS),
        "value": decompress(view.sys_flag, view.body),
        "properties": properties,
        "message_id": properties.get(PropertyName.UNIQUE_ID)
        or encode_offset_id(host.strip("[]"), int(port), view.position),
        "born_timestamp": pa.scalar(view.born_timestamp * 1000, pa.timestamp("us", tz="UTC")).as_py(),
        "store_timestamp": pa.scalar(view.store_timestamp * 1000, pa.timestamp("us", tz="UTC")).as_py(),
        "reconsume_times": view.reconsume_times,
        "stamp": None if stamp is None else stamp._asdict(),
    }


def references(body: bytes) -> list[dict[str, Any]]:
    return [reference(RecordView(body, start)) for start in record_starts(body)]


names = st.sampled_from(
    ["TAGS", "KEYS", "__SHARDINGKEY", "UNIQ_KEY", "LANE_STAMP", "TAG", "TAGSS", "a", "", "ключ", "\x00"]
)
stamps = st.sampled_from(
    ["p.0.0", "p-1.12.345", "p.9223372036854775807.1", "p.9223372036854775808.1", "p.01.2", "p.1", "a b.1.2", "p.1.2.3"]
)
texts = st.one_of(
    st.lists(
        st.tuples(names, st.one_of(stamps, st.text(max_size=6), st.just("x\x01y"))).map(
            lambda entry: "\x01".join(entry)
        ),
        max_size=5,
    ).map("\x02".join),
    st.text("ab\x01\x02TAGS", max_size=20),
    st.just("UNIQ_KEY\x010A\x02TAGS\x01new\x02"),
)


@st.composite
def bodies(draw: st.DrawFn) -> bytes:
    parts = []
    for offset in range(draw(st.integers(0, 6))):
        body = draw(st.binary(max_size=8))
        packed = draw(st.booleans())
        plain = record(
            topic=draw(st.sampled_from(["orders", "t", "платежи"])),
            body=compress_zlib(body) if packed else body,
            sys_flag=ZLIB_SYS_FLAG if packed else 0,
            properties_text=draw(texts),
            queue_offset=offset,
            born_timestamp=draw(st.integers(0, 4_000_000_000_000)),
            position=draw(st.integers(0, 2**50)),
        )
        parts.append(shifted(plain, draw(st.sampled_from([0, 0, 0x10, 0x20, 0x30])), draw(MAGICS)))
    return b"".join(parts)


MAGICS = st.sampled_from([None, None, 0xDAA320AB])


@settings(max_examples=150, deadline=None)
@given(bodies())
def test_columns_equal_the_fields_of_the_record_view(body: bytes) -> None:
    assert rows(body) == references(body)


@settings(max_examples=60, deadline=None)
@given(bodies(), st.lists(st.sampled_from(COLUMNS.fieldNames()), min_size=1, max_size=4, unique=True))
def test_a_column_does_not_depend_on_the_other_selected_columns(body: bytes, names: list[str]) -> None:
    expected = [{name: row[name] for name in names} for row in references(body)]
    assert rows(body, schema=arrow_schema(select_columns(names))) == expected


@settings(max_examples=150, deadline=None)
@given(bodies(), st.integers(0, 400), st.integers(0, 255))
def test_a_damaged_body_is_refused_exactly_when_the_record_view_refuses_it(body: bytes, at: int, byte: int) -> None:
    """Otherwise a query would show messages that a consumer never gets."""
    if not body:
        return
    changed = bytearray(body)
    changed[at % len(body)] = byte
    outcome: list[Any] = []
    attempts: list[Callable[[], Any]] = [
        lambda: rows(bytes(changed), -(2**63), 2**63 - 1),
        lambda: references(bytes(changed)),
    ]
    for attempt in attempts:
        try:
            outcome.append(attempt())
        except RemoteProtocolError:
            outcome.append("refused")
        except (OverflowError, ValueError):
            return  # a time that Python cannot represent, but Arrow can
    if outcome[1] != "refused" or outcome[0] != "refused":
        assert outcome[0] == outcome[1]


def test_invalid_utf8_in_properties_is_replaced_in_its_own_row_only() -> None:
    odd = bytearray(record(properties_text="TAGS\x01ab\x02", queue_offset=1))
    odd[odd.index(b"ab\x02")] = 0xC3
    # The second record begins with a byte that would complete the character if rows were joined.
    body = record() + bytes(odd) + record(properties_text="TAGS\x01ok\x02", queue_offset=2)
    assert [row["tags"] for row in rows(body)] == ["paid", "�b", "ok"]
    assert rows(body) == references(body)


def test_only_offsets_of_the_range_are_decoded() -> None:
    body = b"".join(record(queue_offset=offset) for offset in range(10))
    assert [row["queue_offset"] for row in rows(body, 3, 7)] == [3, 4, 5, 6]


def test_tags_with_the_same_hash_are_distinguished() -> None:
    """The broker compares hash codes, and "Aa" and "BB" share one."""
    body = record(properties_text="TAGS\x01Aa\x02", queue_offset=0) + record(
        properties_text="TAGS\x01BB\x02", queue_offset=1
    )
    assert [row["tags"] for row in rows(body, tags=frozenset({"Aa"}))] == ["Aa"]


def test_no_records_give_no_batch() -> None:
    assert not list(decode(b"", 0, ALL, DecodeOptions(SCHEMA, "broker-a")))


@pytest.mark.parametrize("tags", [frozenset(), frozenset({"paid"})])
def test_bodies_that_compress_very_well_are_several_batches(tags: frozenset[str]) -> None:
    """Together they may not fit in an Arrow column, nor in memory."""
    large = compress_zlib(bytes(12 * 1024 * 1024))
    body = b"".join(
        record(queue_offset=offset, body=large, sys_flag=ZLIB_SYS_FLAG) if offset % 2 else record(queue_offset=offset)
        for offset in range(9)
    )
    batches = list(decode(body, 0, ALL, DecodeOptions(SCHEMA, "broker-a", tags)))
    assert all(batch.schema.equals(SCHEMA) and batch.nbytes < 32 * 1024 * 1024 for batch in batches)
    found = pa.Table.from_batches(batches)
    assert found["queue_offset"].to_pylist() == list(range(9))
    assert list(map(len, found["value"].to_pylist())) == [12 * 1024 * 1024 if at % 2 else 5 for at in range(9)]


def test_a_body_that_expands_without_limit_is_damaged() -> None:
    bomb = record(queue_offset=1, body=compress_zlib(bytes(64 * 1024 * 1024 + 1)), sys_flag=ZLIB_SYS_FLAG)
    body = record(queue_offset=0) + bomb + record(queue_offset=2)
    assert [row["value"] for row in rows(body, on_damaged=OnDamaged.NULL)] == [b"hello", None, b"hello"]
    with pytest.raises(RemoteProtocolError, match=r"orders.*broker-a.*1.* at 1: body .* more than 67108864 bytes"):
        rows(body)


@pytest.mark.parametrize("cut", [1, 50, 90])
def test_a_truncated_body_is_refused(cut: int) -> None:
    with pytest.raises(RemoteProtocolError):
        rows(record() + record()[:-cut])


DAMAGED = record(queue_offset=1, body=b"no zlib", sys_flag=ZLIB_SYS_FLAG)


def test_a_body_that_cannot_be_decompressed_fails_with_its_offset() -> None:
    with pytest.raises(RemoteProtocolError, match=r"orders.*broker-a.*1.* at 1: body of 7 .*onDamaged=null .*=raw"):
        rows(record(queue_offset=0) + DAMAGED)


@pytest.mark.parametrize(("damaged", "value"), [(OnDamaged.NULL, None), (OnDamaged.RAW, b"no zlib")])
def test_a_body_that_cannot_be_decompressed_affects_no_other_row(
    damaged: OnDamaged, value: bytes | None, caplog: pytest.LogCaptureFixture
) -> None:
    """One message must not fail a query at every start, and all damaged messages are one log line."""
    packed = record(queue_offset=3, body=compress_zlib(b"packed"), sys_flag=ZLIB_SYS_FLAG)
    again = record(queue_offset=2, body=b"nor this", sys_flag=ZLIB_SYS_FLAG)
    found = rows(record(queue_offset=0) + DAMAGED + again + packed, on_damaged=damaged)
    assert [row["value"] for row in found] == [b"hello", value, value and b"nor this", b"packed"]
    (line,) = caplog.messages
    assert line.startswith(f"2 damaged messages, onDamaged={damaged}; the first is ")


@pytest.mark.parametrize("field", ["body", "topic", "properties"])
@pytest.mark.parametrize("length", [-1, 100])
def test_a_part_that_would_overlap_the_next_record_is_refused(field: str, length: int) -> None:
    good = record()
    at, width = {"body": (84, 4), "topic": (88 + 5, 1), "properties": (88 + 5 + 1 + 6, 2)}[field]
    bad = good[:at] + length.to_bytes(width, "big", signed=True) + good[at + width :]
    with pytest.raises(RemoteProtocolError, match=f"byte {len(good)}"):
        rows(good + bad + good + good, schema=arrow_schema(select_columns(["tags", "value", "topic"])))


def test_a_query_that_selects_no_columns_gets_those_that_most_queries_use() -> None:
    """Every column costs time for each row; the others are read on request."""
    position = ["topic", "broker", "queue_id", "queue_offset"]
    assert DEFAULT_COLUMNS.names == [*position, "key", "tags", "value", "store_timestamp"]
    assert set(COLUMNS.names) - set(DEFAULT_COLUMNS.names) == ON_REQUEST
    assert select_columns(["*"]) == COLUMNS
    assert select_columns(["stamp"]).names == ["stamp"]
    with pytest.raises(InvalidOption, match="choose from"):
        select_columns(["*", "key"])
