"""The twins for Spark's columns return the same as their references, for valid and for damaged bytes."""

from typing import Any

import pytest

pytest.importorskip("pyarrow")

import numpy as np
import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import damaged, needs_twins, outcome, references, twins
from tests.fast.test_key_twins import LOGS, log_of

from lanemq.spark import columns

pytestmark = needs_twins


def plain(result: Any) -> Any:
    if isinstance(result, tuple) and all(isinstance(each, np.ndarray) for each in result):
        return [(each.tolist(), each.dtype) for each in result]
    return result.to_pylist() if isinstance(result, pa.Array) else result


def alike(name: str, *arguments: Any) -> Any:
    expected = plain(outcome(references[name], *arguments))
    assert plain(outcome(twins[name], *arguments)) == expected
    return expected


@settings(deadline=None, max_examples=200)
@given(LOGS | damaged(LOGS) | st.binary(max_size=150), st.integers(0, 4), st.integers(0, 5))
def test_records_are_measured_alike(body: bytes, low: int, high: int) -> None:
    alike("record_spans", body, low, high)


@settings(deadline=None, max_examples=100)
@given(LOGS.filter(bool), st.sampled_from([0x10, 0x20, 0x30]), st.booleans())
def test_other_layouts_are_measured_alike(body: bytes, flags: int, second: bool) -> None:
    """IPv6 hosts shift all fields, and the second magic has a longer topic length."""
    changed = bytearray(body)
    changed[39] = flags
    if second:
        changed[7] = 0xAB
    alike("record_spans", bytes(changed), 0, 9)


@settings(deadline=None, max_examples=200)
@given(st.lists(st.text(st.sampled_from("ab\x01\x02"), max_size=9), min_size=1, max_size=5))
def test_entries_are_found_alike(texts: list[str]) -> None:
    offsets = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    alike("entry_spans", np.frombuffer("".join(texts).encode(), np.uint8), offsets)


TEXTS = st.lists(
    st.sampled_from([b"k\x01v\x02", b"k\x01", b"k\x01\x02", b"\x01v\x02", b"kk\x01v\x02", b"k\x01a\x01b\x02", b"\x02"])
    | st.sampled_from([b"k\x01\xc3\xa9\x02", b"k\x01\xff\x02", b"\xe2\x02k\x01w", b"k\x01\xe2\x82"])
    | st.binary(max_size=3),
    max_size=4,
).map(b"".join)  # fmt: skip


@settings(deadline=None, max_examples=100)
@given(st.lists(TEXTS, min_size=1, max_size=4), st.sampled_from(["k", "kk", "é", "none"]))
def test_values_of_a_property_are_found_alike(texts: list[bytes], name: str) -> None:
    """Also in texts that are not UTF-8, without a value, or with a name twice: then the last one counts."""
    ends = np.cumsum([3, *(len(text) + 3 for text in texts)]).astype(np.int64)
    body = b"xyz" + b"".join(text + b"xyz" for text in texts)
    nothing = np.zeros(len(texts), np.int64)
    spans = ends[:-1].copy(), ends[1:] - 3
    layout = columns.Layout(body, nothing, nothing, nothing, nothing, spans, spans, spans)
    records = columns._Records(layout, columns.DecodeOptions(pa.schema([]), "broker"))
    alike("property_column", records, name)
    alike("part_column", body, spans, pa.binary())
    twins["property_column"](records, name).validate(full=True)


@settings(deadline=None, max_examples=100)
@given(st.binary(min_size=8, max_size=40), st.sampled_from([pa.int32(), pa.int64(), columns.TIME]), st.data())
def test_numbers_are_read_alike(body: bytes, kind: pa.DataType, data: st.DataObject) -> None:
    """Also a time that overflows when it becomes microseconds."""
    last = len(body) - kind.bit_width // 8
    positions = data.draw(st.lists(st.integers(0, last), max_size=6))
    expected = references["number_column"](body, np.array(positions, np.int64), kind)
    found = twins["number_column"](body, np.array(positions, np.int64), kind)
    found.validate(full=True)
    assert found.equals(expected)


@pytest.mark.parametrize("kind", [pa.int32(), pa.int64(), columns.TIME], ids=str)
@pytest.mark.parametrize("at", [-1, 5, 2**62])
def test_a_number_outside_of_the_body_is_not_read(kind: pa.DataType, at: int) -> None:
    with pytest.raises(IndexError):
        twins["number_column"](b"12345678", np.array([0, at], np.int64), kind)


def test_a_part_outside_of_the_body_reads_nothing() -> None:
    spans = np.array([2], np.int64), np.array([9], np.int64)
    with pytest.raises(IndexError):
        twins["part_column"](b"abc", spans, pa.binary())


STAMPS = ["p.1.2", "p.0.0", "p.01.2", "p.1.2.", ".1.2", "p..2", "p.1", "", "a" * 65 + ".1.2", "é.1.2", "A-z_9.12345.9"]
STAMPS += ["p.1.9223372036854775807", "p.1.9223372036854775808", "p.1.99999999999999999999", "p.1.2\n", " p.1.2"]


@settings(deadline=None, max_examples=150)
@given(st.lists(st.sampled_from([*STAMPS, None]) | st.text(st.sampled_from("p.01"), max_size=8), max_size=6))
def test_stamps_are_cut_alike(texts: list[str | None]) -> None:
    alike("stamp_column", pa.array(texts, pa.string()))
    if texts:
        alike("stamp_column", pa.array(["x", *texts], pa.string())[1:])


def test_a_column_of_stamps_has_the_type_that_spark_expects() -> None:
    assert twins["stamp_column"](pa.array(["p.1.2"])).type == columns.STAMP_TYPE


def test_an_offset_outside_of_the_text_reads_nothing() -> None:
    with pytest.raises(IndexError):
        twins["entry_spans"](np.frombuffer(b"a\x01b", np.uint8), np.array([0, 9]))


@pytest.mark.parametrize("at", [84, 92, 94], ids=["body", "topic", "properties"])
@pytest.mark.parametrize("more", [1, 100])
def test_a_part_longer_than_its_record_is_refused_alike(at: int, more: int) -> None:
    whole = log_of([("T", b"body", "k\x01v\x02")])
    damaged_record = bytearray(whole)
    last = {84: 87, 92: 92, 94: 95}[at]
    damaged_record[last] += more
    refused = alike("record_spans", bytes(damaged_record) + log_of([("T", b"next", "")]), 0, 9)
    assert refused[0].__name__ == "RemoteProtocolError"
