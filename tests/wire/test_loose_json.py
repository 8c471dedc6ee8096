"""fastjson's dialect, and the limits of patience with it."""

import contextlib
import json
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.wire import loose_json
from lanemq.wire.bodies import ConsumerIdList, HeartbeatData, LockRequest, decode_json
from lanemq.wire.loose_json import BodyError, Limits, loads_loose


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{0:"a",-1:"b"}', {"0": "a", "-1": "b"}),
        ('{{"q":0}:7}', {'{"q":0}': 7}),
        ('{{"q": 0 , "t" : "x,}"} : {"m" : 7}}', {'{"q":0,"t":"x,}"}': {"m": 7}}),
        ('{"a":{1:true,2:false,3:null,4:-1.5e2}}', {"a": {"1": True, "2": False, "3": None, "4": -150.0}}),
        (' [ {0:[ ]} , { } ] ', [{"0": []}, {}]),
        ('{0:"\\u4f60\\n\\"\\\\"}', {"0": '你\n"\\'}),
        ('{"a":1}', {"a": 1}),
    ],
)  # fmt: skip
def test_fastjson_is_read(text: str, value: object) -> None:
    assert loads_loose(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    ["{0}", "{0:}", "{0:1", "{0:1,}x", "{0:1}{", '{0:"a}', '{0:"\\q"}', "{0:1 2:3}", "{:1}", "{0:tru}", "",
     "[1,,2]", "{0:[1;2]}"],
)  # fmt: skip
def test_what_fastjson_never_writes_is_refused(text: str) -> None:
    with pytest.raises(BodyError):
        loads_loose(text.encode())


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=80)
@given(VALUES)
def test_both_parsers_agree_on_strict_json(value: object) -> None:
    text = json.dumps(value)
    strict = loads_loose(text.encode())
    assert strict == value
    assert loads_loose(f"{{0:{text}}}".encode()) == {"0": value}


@pytest.mark.parametrize("opener", ["[", "{0:", "{", '{"a":['])
def test_depth_is_bounded(opener: str) -> None:
    with pytest.raises(BodyError):
        loads_loose((opener * 100_000).encode())


def test_size_is_bounded_where_reading_is_slow() -> None:
    limits = Limits(loose=60, slow=20)
    assert loads_loose(b'{0:"' + b"x" * 30 + b'"}', limits) == {"0": "x" * 30}
    with pytest.raises(BodyError, match="at most 20"):
        loads_loose(b'{{"q":0}:"' + b"x" * 30 + b'"}', limits)
    with pytest.raises(BodyError, match="up to 60"):
        loads_loose(b'{0:"' + b"x" * 60 + b'"}', limits)


@pytest.mark.parametrize("text", ['{"a":",0:"}', '{0:"{1:2}",-1:{2:",3:\\""}}', "{ 0 : 1 , 1 : [ {2:3} ] }"])
def test_both_ways_to_read_integer_keys_agree(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where strings look like keys."""
    fast = loads_loose(text.encode())
    monkeypatch.setattr(loose_json, "_with_quoted_keys", lambda text: text)
    assert loads_loose(text.encode()) == fast


@pytest.mark.parametrize(
    "body",
    [
        b"{0:[" + b"1 ," * 10_000 + b"1]}",
        b"{" + b"0:0," * 8_000 + b"0:0}",
        b"{" * 30_000,
        b'{0:"' + b"\\\\" * 16_000,
        b'{"a":[' + b'{"$ref":"$.a"},' * 2_000 + b"0]}",
        b'{"clientID":"c","consumerDataSet":[' + b"{}," * 10_000 + b"null]}",
        b'{"clientID":null,"consumerDataSet":[' + b"0," * 15_000 + b"0]}",
        b"{{" + b'"a":[' * 60 + b"0" + b"]" * 60 + b"}:1}",
    ],
    ids=lambda body: body[:20],
)
def test_no_body_that_a_server_accepts_takes_long_to_read(body: bytes) -> None:
    """Processor time of the best of three; about twenty times as much as an idle core needs."""
    for _ in range(3):
        begin = time.thread_time()
        with contextlib.suppress(BodyError):
            HeartbeatData.of_request(bytes(bytearray(body)))
        if time.thread_time() - begin < 0.15:
            return
    pytest.fail("three times, it took 0.15 s or longer")


def test_the_body_of_a_request_is_decoded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    data = bytes(bytearray(b'{"clientID":"c"}'))
    assert HeartbeatData.of_request(data) is HeartbeatData.of_request(data)
    assert HeartbeatData.of_request(bytes(bytearray(data))) is not HeartbeatData.of_request(data)
    assert LockRequest.of_request(data) == LockRequest()


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a":{"x":1},"b":{"$ref":"$.a"}}', {"a": {"x": 1}, "b": {"x": 1}}),
        ('[{"x":1},{"$ref":"$[0]"}]', [{"x": 1}, {"x": 1}]),
        ('{"a":[{"x":[5]}],"b":{"$ref":"$.a[0].x"}}', {"a": [{"x": [5]}], "b": [5]}),
        ('{0:{"x":1},1:{"$ref":"$.0"}}', {"0": {"x": 1}, "1": {"x": 1}}),
        ('{"a":[1],"b":{"$ref":"$.a"},"c":{"$ref":"$.b"}}', {"a": [1], "b": [1], "c": [1]}),
    ],
)  # fmt: skip
def test_references_to_what_came_before_are_followed(text: str, value: object) -> None:
    assert loads_loose(text.encode()) == value


@pytest.mark.parametrize(
    "text",
    [
        '{"a":{"$ref":"$"}}',
        '{"a":{"b":{"$ref":"$.a"}}}',
        '{"a":{"b":{"$ref":"$.c"}},"c":{"$ref":"$.a"}}',
        '{"a":{"$ref":".."}}',
        '{"a":{"$ref":"$.nowhere"}}',
        '{"a":[],"b":{"$ref":"$.a[7]"}}',
        '{"a":{"$ref":"$.a[x"}}',
    ],
)
def test_no_value_comes_to_contain_itself(text: str) -> None:
    """References that lead nowhere, upwards or ahead stay; printing a cycle would raise."""
    assert '"$ref"' in json.dumps(loads_loose(text.encode()))


def test_references_cannot_multiply_a_body() -> None:
    """Each line doubles the one before: 60 lines would stand for 2**60 values."""
    lines = ['"a0":[1,1]'] + [f'"a{n}":[{{"$ref":"$.a{n - 1}"}},{{"$ref":"$.a{n - 1}"}}]' for n in range(1, 60)]
    with pytest.raises(BodyError, match="stand for more"):
        loads_loose(("{" + ",".join(lines) + "}").encode())


def test_deep_nesting_with_references_is_refused_as_well() -> None:
    with pytest.raises(BodyError):
        loads_loose(b'{"$ref":' + b"[" * 300 + b"]" * 300 + b"}")
    with pytest.raises(BodyError):
        decode_json(ConsumerIdList, b"[" * 900 + b"]" * 900)
