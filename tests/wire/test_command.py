"""Commands: both header forms, careless writers, and unreadable headers."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.model.errors import LocalProtocolError
from lanemq.wire.binary_header import encode_binary_header
from lanemq.wire.command import (
    BINARY,
    JSON,
    BadHeader,
    Command,
    Frame,
    FrameDecoder,
    decode_command,
    encode_command,
    encode_response,
    response_to,
)

INT32 = st.integers(-(2**31), 2**31 - 1)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def read(data: bytes) -> Command:
    (frame,) = FrameDecoder().feed(data)
    return decode_command(frame)


def json_header(**members: object) -> Frame:
    return Frame(JSON, json.dumps(members).encode(), b"")


@settings(max_examples=80)
@given(INT32, INT32, st.integers(0, 3), st.dictionaries(TEXT, TEXT, max_size=5), st.binary(), st.none() | TEXT)
def test_json_commands_come_back_as_they_were(
    code: int, opaque: int, flag: int, ext: dict[str, str], body: bytes, remark: str | None
) -> None:
    command = Command(code, opaque, flag, ext, body, remark)
    assert read(encode_command(command)) == command


@settings(max_examples=80)
@given(
    st.integers(-(2**15), 2**15 - 1),
    INT32,
    st.integers(0, 3),
    st.dictionaries(TEXT.filter(bool), TEXT.filter(bool), max_size=5),
    st.none() | TEXT.filter(bool),
)
def test_binary_commands_come_back_as_they_were(
    code: int, opaque: int, flag: int, ext: dict[str, str], remark: str | None
) -> None:
    command = Command(code, opaque, flag, ext, b"b", remark, serialize_type=BINARY)
    assert read(encode_command(command)) == command


def test_java_header_is_read(vectors: dict[str, Any]) -> None:
    command = decode_command(Frame(JSON, vectors["java_request_header"].encode(), b"B"))
    assert command == Command(34, 7, 0, {"k": "v"}, b"B", "r", "JAVA", 479)


def test_json_header_is_written_as_java_writes_it(vectors: dict[str, Any]) -> None:
    data = encode_command(Command(34, 7, 0, {"k": "v"}, b"", "r", "JAVA", 479))
    assert data[8:].decode() == vectors["java_request_header"]


def test_binary_header_matches_the_layout(vectors: dict[str, Any]) -> None:
    """code 34, JAVA, version 1, opaque 7, flag 2, remark "r!", ext a=valu."""
    header = bytes.fromhex(vectors["binary_header_hex"])
    command = decode_command(Frame(BINARY, header, b""))
    assert command == Command(34, 7, 2, {"a": "valu"}, b"", "r!", "JAVA", 1, BINARY)
    assert encode_command(command)[8:] == header


def test_node_numbers_and_booleans_become_text(vectors: dict[str, Any]) -> None:
    command = decode_command(Frame(JSON, vectors["node_pull_header"].encode(), b""))
    assert command.ext["queueId"] == "0"
    assert command.ext["commitOffset"] == "-1"
    assert command.ext["subVersion"] == "1700000000000"
    assert command.ext["unitMode"] == "false"
    assert (command.code, command.opaque, command.language, command.version) == (11, 12, "NODE_JS", 121)


def test_nulls_are_absent_and_nested_values_are_text() -> None:
    frame = json_header(code=1, opaque=2, extFields={"n": None, "t": True, "l": [1, "a"], "o": {"x": 1}})
    assert decode_command(frame).ext == {"t": "true", "l": '[1,"a"]', "o": '{"x":1}'}


def test_numbers_given_as_text_are_numbers() -> None:
    command = decode_command(json_header(code="34", opaque="-7", flag="1", version="121"))
    assert (command.code, command.opaque, command.flag, command.version) == (34, -7, 1, 121)
    assert command.is_response


@pytest.mark.parametrize("members", [{}, {"extFields": None}, {"extFields": {}}])
def test_absent_ext_fields_are_an_empty_dict(members: dict[str, object]) -> None:
    assert decode_command(json_header(code=1, opaque=1, **members)).ext == {}


@pytest.mark.parametrize(
    ("header", "opaque"),
    [
        (b"", None),
        (b"nonsense", None),
        (b"[]", None),
        (b"[" * 100_000, None),
        (b'{"code":1,"opaque":5,"x":' + b"[" * 100_000, None),
        (b'{"code":1,"remark":"\xff","opaque":5}', None),
        (b'{"code":1}', None),
        (b'{"code":1,"opaque":null}', None),
        (b'{"code":1,"opaque":"x"}', None),
        (b'{"code":1,"opaque":2147483648}', None),
        (b'{"code":1,"opaque":' + b"9" * 5000 + b"}", None),
        (b'{"code":1,"opaque":5,"flag":[]}', None),
        (b'{"opaque":5}', 5),
        (b'{"code":"x","opaque":5}', 5),
        (b'{"code":1,"opaque":5,"extFields":[]}', 5),
        (b'{"code":1,"opaque":5,"extFields":"x"}', 5),
        (b'{"code":1,"opaque":5,"flag":1,"extFields":[]}', None),
    ],
)
def test_unreadable_header_says_whether_it_can_be_answered(header: bytes, opaque: int | None) -> None:
    """Only a request with a known opaque may be answered; a broken answer must not be answered."""
    with pytest.raises(BadHeader) as caught:
        decode_command(Frame(JSON, header, b""))
    assert caught.value.opaque == opaque


def test_too_many_ext_fields_are_refused_on_both_sides() -> None:
    many = {str(number): "v" for number in range(129)}
    with pytest.raises(BadHeader, match="129 ext fields") as caught:
        decode_command(json_header(code=1, opaque=5, extFields=many))
    assert caught.value.opaque == 5
    with pytest.raises(LocalProtocolError):
        encode_command(Command(1, 5, ext=many))
    crowded = encode_binary_header(1, "JAVA", 1, 5, 0, None, many)
    with pytest.raises(BadHeader, match="129 ext fields") as caught:
        decode_command(Frame(BINARY, crowded, b""))
    assert caught.value.opaque == 5
    many.popitem()
    assert len(decode_command(json_header(code=1, opaque=5, extFields=many)).ext) == 128
    binary = encode_command(Command(1, 5, ext=many, serialize_type=BINARY))
    assert len(read(binary).ext) == 128


def test_truncated_binary_header_is_refused_at_every_length(vectors: dict[str, Any]) -> None:
    header = bytes.fromhex(vectors["binary_header_hex"])
    whole_parts = {13, 19}
    for length in range(len(header)):
        if length in whole_parts:
            continue
        with pytest.raises(BadHeader) as caught:
            decode_command(Frame(BINARY, header[:length], b""))
        assert caught.value.opaque == (7 if length > 13 else None)


def test_broken_binary_answer_is_not_answered(vectors: dict[str, Any]) -> None:
    header = bytearray.fromhex(vectors["binary_header_hex"])
    header[12] = 1
    with pytest.raises(BadHeader) as caught:
        decode_command(Frame(BINARY, bytes(header[:-1]), b""))
    assert caught.value.opaque is None


def test_code_too_large_for_a_binary_header_is_not_sent_mangled() -> None:
    """Java writes 200050 as 3442; the peer would do something else entirely."""
    with pytest.raises(LocalProtocolError, match="200050"):
        encode_command(Command(200050, 1, serialize_type=BINARY))


def test_unknown_language_becomes_other_in_binary() -> None:
    assert read(encode_command(Command(1, 1, language="KLINGON", serialize_type=BINARY))).language == "OTHER"


@settings(max_examples=60)
@given(INT32, st.integers(0, 5000), st.none() | st.dictionaries(TEXT, TEXT, max_size=4), st.none() | TEXT)
def test_fast_response_equals_the_plain_one(
    opaque: int, code: int, ext: dict[str, str] | None, remark: str | None
) -> None:
    plain = Command(code, opaque, 1, ext or {}, b"body", remark)
    assert encode_response(opaque, code, ext, b"body", remark) == encode_command(plain)


def test_response_always_has_an_ext_object() -> None:
    """Java producers throw NullPointerException without it."""
    assert b'"extFields":{}' in encode_response(1)
    assert b'"extFields":{}' in encode_command(Command(0, 1, 1))


def test_response_copies_opaque_and_header_form() -> None:
    request = Command(34, 99, serialize_type=BINARY)
    response = response_to(request, 1, {"a": "b"}, b"x", "why")
    assert response == Command(1, 99, 1, {"a": "b"}, b"x", "why", serialize_type=BINARY)
    assert response.is_response
    assert not response.is_oneway
    assert Command(1, 1, 2).is_oneway


@pytest.mark.parametrize("serialize_type", [JSON, BINARY])
def test_text_that_is_not_unicode_is_not_sent(serialize_type: int) -> None:
    with pytest.raises(LocalProtocolError):
        encode_command(Command(1, 1, remark="\ud800", serialize_type=serialize_type))
    with pytest.raises(LocalProtocolError):
        encode_response(1, ext={"a": "\ud800"})


@settings(max_examples=200)
@given(st.sampled_from([JSON, BINARY]), st.binary(max_size=80))
def test_random_headers_raise_nothing_but_the_documented_error(serialize_type: int, header: bytes) -> None:
    with suppress(BadHeader):
        decode_command(Frame(serialize_type, header, b""))


JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT, inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150)
@given(st.dictionaries(st.sampled_from(["code", "opaque", "flag", "version", "extFields"]), JSON_VALUES))
def test_any_json_members_give_a_command_of_text_or_the_error(members: dict[str, object]) -> None:
    try:
        command = decode_command(json_header(**members))
    except BadHeader:
        return
    assert all(isinstance(value, str) for value in command.ext.values())
    assert read(encode_command(command)).ext == command.ext
