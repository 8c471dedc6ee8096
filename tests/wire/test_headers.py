"""Headers: whole or refused with the field's name."""

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lanemq.wire import admin_headers, bodies, headers, lane_fields, route_bodies
from lanemq.wire.admin_headers import QueryMessageHeader, ResetOffsetHeader
from lanemq.wire.command import Frame, decode_command
from lanemq.wire.headers import (
    Header,
    HeaderError,
    PullHeader,
    SendHeader,
    UnregisterHeader,
    UpdateOffsetHeader,
)

V1 = {
    "producerGroup": "P", "topic": "T", "defaultTopic": "TBW102", "defaultTopicQueueNums": "4",
    "queueId": "2", "sysFlag": "0", "bornTimestamp": "1700000000000", "flag": "0",
    "properties": "KEYS\x01k\x02",
    "reconsumeTimes": "0", "unitMode": "false", "maxReconsumeTimes": "16", "batch": "false", "bname": "b",
}  # fmt: skip
V2 = dict(zip("abcdefghijklmn", V1.values(), strict=True))

ALL_HEADERS = sorted(
    {
        kind
        for module in (headers, admin_headers)
        for kind in vars(module).values()
        if isinstance(kind, type) and issubclass(kind, Header) and kind is not Header
    },
    key=lambda kind: kind.__name__,
)


def test_both_send_forms_give_the_same_header() -> None:
    header = SendHeader.from_ext_v2(V2)
    assert SendHeader.from_ext_v1(V1) == header
    assert (header.topic, header.queue_id, header.born_timestamp) == ("T", 2, 1700000000000)
    assert header.to_ext_v2() == V2


def test_missing_send_field_is_named_as_the_sender_wrote_it() -> None:
    with pytest.raises(HeaderError) as caught:
        SendHeader.from_ext_v1({name: value for name, value in V1.items() if name != "queueId"})
    assert (caught.value.field, caught.value.problem) == ("queueId", "is missing")
    with pytest.raises(HeaderError) as caught:
        SendHeader.from_ext_v2({name: value for name, value in V2.items() if name != "e"})
    assert caught.value.field == "e"


def test_long_names_are_not_read_as_letters() -> None:
    """An ext field called `a` in the long form is another program's addition, not the producer group."""
    with pytest.raises(HeaderError, match="producerGroup"):
        SendHeader.from_ext_v1(V2)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("e", ""),
        ("e", "x"),
        ("e", "1.5"),
        ("e", "2147483648"),
        ("e", "-2147483649"),
        ("e", "9" * 5000),
        ("g", "9223372036854775808"),
        ("g", "-9223372036854775809"),
        ("m", "maybe"),
    ],
)
def test_field_out_of_its_java_range_is_refused(field: str, value: str) -> None:
    with pytest.raises(HeaderError) as caught:
        SendHeader.from_ext_v2(V2 | {field: value})
    assert caught.value.field == field


def test_edges_of_the_ranges_are_accepted() -> None:
    header = SendHeader.from_ext_v2(V2 | {"e": "-2147483648", "g": "9223372036854775807", "m": "True"})
    assert (header.queue_id, header.born_timestamp, header.batch) == (-(2**31), 2**63 - 1, True)


def test_node_pull_is_understood(vectors: dict[str, Any]) -> None:
    command = decode_command(Frame(0, vectors["node_pull_header"].encode(), b""))
    header = PullHeader.from_ext(command.ext)
    assert (header.consumer_group, header.queue_offset, header.sys_flag, header.commit_offset) == (
        "G",
        5,
        6,
        -1,
    )
    assert header.expression_type is None


def test_text_that_spells_null_stays_text() -> None:
    ext = {"consumerGroup": "null", "topic": "true", "queueId": "0", "queueOffset": "0", "maxMsgNums": "1"}
    header = PullHeader.from_ext(ext | {"sysFlag": "0", "subscription": "null"})
    assert (header.consumer_group, header.topic, header.subscription) == ("null", "true", "null")


def test_absent_optional_fields_are_not_sent() -> None:
    """A stock broker gets exactly the fields it knows."""
    ext = UpdateOffsetHeader(consumer_group="G", topic="T", queue_id=0, commit_offset=7).to_ext()
    assert ext == {"consumerGroup": "G", "topic": "T", "queueId": "0", "commitOffset": "7"}


def test_names_that_are_not_plain_camel_case() -> None:
    assert UnregisterHeader(client_id="c").to_ext() == {"clientID": "c"}
    reset = ResetOffsetHeader(topic="T", group="G", timestamp=-1)
    assert reset.to_ext() == {"topic": "T", "group": "G", "timestamp": "-1", "isForce": "true"}
    query = QueryMessageHeader.from_ext(
        {"topic": "T", "key": "k", "maxNum": "1", "beginTimestamp": "0", "endTimestamp": "9"}
        | {"_UNIQUE_KEY_QUERY": "true"}
    )
    assert query.by_unique_id


def test_additions_are_spelled_as_in_lane_fields() -> None:
    names = {value for name, value in vars(lane_fields).items() if name.startswith("LANE_")}
    used = {name for kind in ALL_HEADERS for name in kind.__struct_encode_fields__ if name.startswith("lane")}
    for body in (bodies.LockResponse, route_bodies.BrokerData):
        used |= {name for name in body.__struct_encode_fields__ if name.startswith("lane")}
    assert used <= names


@pytest.mark.parametrize("kind", ALL_HEADERS, ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(st.data())
def test_every_header_comes_back_as_it_was(kind: type[Header], data: st.DataObject) -> None:
    values: dict[str, object] = {}
    for info in msgspec.structs.fields(kind):
        if not info.required and data.draw(st.booleans()):
            continue
        values[info.name] = data.draw(_values(info.type))
    header = kind(**values)
    assert kind.from_ext(header.to_ext()) == header


def _values(kind: object) -> st.SearchStrategy[object]:
    text = str(kind)
    if "bool" in text:
        return st.booleans()
    if "int" in text:
        return st.integers(-(2**31), 2**31 - 1)
    return st.text(max_size=8)


@pytest.mark.parametrize("kind", ALL_HEADERS, ids=lambda kind: kind.__name__)
@settings(max_examples=15)
@given(st.data())
def test_random_fields_raise_nothing_but_header_error(kind: type[Header], data: st.DataObject) -> None:
    names = st.sampled_from(kind.__struct_encode_fields__)
    ext = data.draw(st.dictionaries(names, st.text(max_size=6), max_size=12))
    named = ""
    try:
        kind.from_ext(ext)
    except HeaderError as error:
        named = error.field
    assert named in {"", *kind.__struct_encode_fields__}
