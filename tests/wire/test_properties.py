"""Property text: all clients can read ours, and we can read theirs."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.model.errors import MessageTooLarge, UsageError
from lanemq.model.stamp import Stamp
from lanemq.wire.properties import (
    LANE_STAMP,
    MAX_PROPERTIES_BYTES,
    append_properties,
    decode_properties,
    decode_stamp,
    encode_properties,
    find_property,
    find_stamp,
    remove_property,
)

PART = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=6)
JUNK = st.text("ab\x01\x02", max_size=20)


@settings(max_examples=80)
@given(st.dictionaries(PART, PART, max_size=5))
def test_properties_come_back_as_they_were(properties: dict[str, str]) -> None:
    text = encode_properties(properties)
    assert decode_properties(text) == properties
    assert decode_properties(text.removesuffix("\x02")) == properties


@pytest.mark.parametrize(
    ("text", "properties"),
    [
        ("", {}),
        ("a\x01b", {"a": "b"}),
        ("a\x01b\x02", {"a": "b"}),
        ("a\x01b\x02c\x01d", {"a": "b", "c": "d"}),
        ("a\x01\x02b\x01c", {"b": "c"}),
        ("\x01v\x02b\x01c", {"b": "c"}),
        ("nonsense\x02b\x01c\x02\x02", {"b": "c"}),
        ("a\x01b\x02a\x01c", {"a": "c"}),
        ("a\x01b\x01c", {"a": "b\x01c"}),
    ],
)
def test_bad_entries_are_dropped_and_the_last_of_a_name_counts(text: str, properties: dict[str, str]) -> None:
    assert decode_properties(text) == properties


@pytest.mark.parametrize(
    "properties", [{"a": "x\x01"}, {"a": "x\x02"}, {"a\x01": "x"}, {"\x02a": "x"}, {"": "x"}, {"a": ""}]
)
def test_what_could_not_be_read_back_is_not_written(properties: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="not allowed"):
        encode_properties({"fine": "yes"} | properties)


def test_too_many_bytes_are_refused_whatever_the_characters() -> None:
    most = MAX_PROPERTIES_BYTES - 3
    assert encode_properties({"a": "x" * most})
    with pytest.raises(MessageTooLarge):
        encode_properties({"a": "x" * (most + 1)})
    with pytest.raises(MessageTooLarge):
        encode_properties({"a": "你" * (most // 3 + 1)})


@pytest.mark.parametrize("text", ["TAGS\x01TagA", "TAGS\x01TagA\x02"])
def test_appended_properties_do_not_stick_to_the_last_value(text: str) -> None:
    """Without the separator the tag became `TagACLUSTER...` in RocketMQ once."""
    assert decode_properties(append_properties(text, {"CLUSTER": "c"})) == {"TAGS": "TagA", "CLUSTER": "c"}


def test_appending_nothing_changes_nothing() -> None:
    assert append_properties("a\x01b", {}) == "a\x01b"
    assert append_properties("", {"a": "b"}) == "a\x01b\x02"


@settings(max_examples=200)
@given(JUNK, st.sampled_from(["a", "b", "ab", "aa", ""]))
def test_finding_one_equals_decoding_all(text: str, name: str) -> None:
    assert find_property(text, name) == decode_properties(text).get(name)


@settings(max_examples=150)
@given(JUNK, st.sampled_from(["a", "b", "ab"]))
def test_removing_one_leaves_the_others(text: str, name: str) -> None:
    expected = decode_properties(text)
    expected.pop(name, None)
    assert decode_properties(remove_property(text, name)) == expected


def test_removing_what_is_not_there_keeps_the_text() -> None:
    assert remove_property("a\x01b\x02", "c") == "a\x01b\x02"


@settings(max_examples=60)
@given(
    st.from_regex(r"[A-Za-z0-9_-]{1,64}", fullmatch=True),
    st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
)
def test_stamp_comes_back_from_among_other_properties(producer: str, epoch: int, sequence: int) -> None:
    stamp = Stamp(producer, epoch, sequence)
    text = encode_properties({"KEYS": "k", LANE_STAMP: str(stamp), "TAGS": "t"})
    assert find_stamp(text) == stamp
    assert find_stamp(text.removesuffix("\x02")) == stamp


def test_stamp_text_is_producer_epoch_sequence() -> None:
    assert str(Stamp("p-1", 2, 3)) == "p-1.2.3"
    assert find_stamp("X_LANE_STAMP\x01p.1.2\x02KEYS\x01k") is None


@pytest.mark.parametrize(
    "text",
    ["", "p", "p.1", "p.1.2.3", "p.-1.2", "p.1.", ".1.2", "p q.1.2", "p.١.2", "p.01.2", "p.1.2 ", "p.1.2\n",
     "p" * 65 + ".1.2", "p.1.9223372036854775808", "p.9999999999999999999.1"],
)  # fmt: skip
def test_half_readable_stamp_is_none(text: str) -> None:
    assert decode_stamp(text) is None
