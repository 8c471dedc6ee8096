"""Single sends read and answered together equal sends read and answered one by one, compiled and pure."""

import json
from collections import deque
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.fast.both import damaged, needs_twins, outcome, references, same, twins

from lanemq.client.producer.batches import PendingMessage, RequestBuilder, properties_text
from lanemq.model.queue import MessageQueue
from lanemq.wire.command import Frame, FrameDecoder, decode_command, encode_command, encode_response
from lanemq.wire.headers import SendHeader
from lanemq.wire.record import encode_offset_id, offset_id_prefix
from lanemq.wire.sends import Sends, encode_send_answers, read_sends

BUILDER = RequestBuilder("group", "client", "producer")


def sent(number: int, key: str = "key", queue: int = 0, born: int = 5) -> Frame:
    """A single send as LaneMQ's producer writes it."""
    message = PendingMessage(b"body %d" % number, properties_text(key, f"{number:032X}"), "")
    command = BUILDER.send(MessageQueue("T", "b", queue), (message,), epoch=1, sequence=number, born=born)
    command.opaque = number
    (frame,) = FrameDecoder().feed(encode_command(command))
    return frame


def ordinary(frame: Frame) -> tuple[int, SendHeader, bytes]:
    command = decode_command(frame)
    return command.opaque, SendHeader.from_ext_v2(command.ext), command.body


def members(sends: Sends | None) -> list[tuple[int, str, int, bytes]]:
    if sends is None:
        return []
    return [
        (opaque, text.decode(), born, body)
        for opaque, text, born, body in zip(sends.opaques, sends.properties, sends.born, sends.bodies, strict=True)
    ]


def test_sends_read_together_equal_those_read_one_by_one() -> None:
    frames = [sent(number, key=f'key-{number} "\\\n/ü', born=number) for number in range(20)]
    sends = read_sends(deque(frames), 17)
    assert sends is not None
    for frame, (opaque, text, born, body) in zip(frames[:17], members(sends), strict=True):
        its_opaque, header, its_body = ordinary(frame)
        assert (opaque, text, born, body) == (its_opaque, header.properties, header.born_timestamp, its_body)
        assert (sends.header.topic, sends.header.queue_id) == (header.topic, header.queue_id)


@pytest.mark.parametrize(
    "other",
    [
        sent(9, queue=1),
        Frame(1, sent(9).header, b"binary"),
        Frame(0, sent(9).header.replace(b'"code":310', b'"code":320'), b"another request"),
        Frame(0, sent(9).header.replace(b'"flag":0', b'"flag":2'), b"oneway"),
        Frame(0, sent(9).header.replace(b'"k":"false"', b'"k":"false","m":"true"'), b"a batch"),
        Frame(0, sent(9).header[:-1], b"cut off"),
    ],
    ids=["another queue", "binary", "another code", "oneway", "batch", "no JSON"],
)
def test_a_different_send_ends_the_run(other: Frame) -> None:
    sends = read_sends([sent(1), sent(2), other, sent(3)], 9)
    assert [opaque for opaque, *_ in members(sends)] == [1, 2]
    if other.header != sent(9, queue=1).header:
        assert read_sends([other, sent(1)], 9) is None


def test_header_values_may_be_json_numbers() -> None:
    """Node clients write numbers."""
    header = json.loads(sent(7).header)
    header["extFields"] |= {"e": 0, "g": 5, "h": 0, "k": False}
    sends = read_sends([Frame(0, json.dumps(header).encode(), b"b")] * 3, 9)
    assert [opaque for opaque, *_ in members(sends)] == [7, 7, 7]


@needs_twins
@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.tuples(st.integers(0, 2**31 - 1), st.text(min_size=1, max_size=6), st.booleans()), min_size=1, max_size=5
    )
)
def test_runs_are_read_alike(sends: list[tuple[int, str, bool]]) -> None:
    """The twin may end early at text that is not ASCII; what it reads next completes the same sends."""
    frames = []
    for number, key, other in sends:
        if "\x01" not in key and "\x02" not in key and key.isprintable():
            frames.append(sent(number, key=key, queue=int(other)))
    expected = members(references["read_sends"](frames, 9))
    found: list[Any] = []
    while len(found) < len(expected) and (more := members(twins["read_sends"](frames[len(found) :], 9))):
        found += more
    assert found[: len(expected)] == expected


@needs_twins
@settings(deadline=None, max_examples=300)
@given(st.data())
def test_damaged_headers_are_read_alike(data: st.DataObject) -> None:
    plain = [sent(1), sent(2, key="other"), sent(3)]
    bad = data.draw(damaged(st.just(plain[1].header)) | st.binary(max_size=40))
    where = data.draw(st.integers(0, 2))
    frames = [*plain[:where], Frame(0, bad, b"b"), *plain[where + 1 :]]
    expected = members(outcome(references["read_sends"], frames, 9))
    found = members(outcome(twins["read_sends"], frames, 9))
    assert found == expected[: len(found)]
    assert len(found) >= min(len(expected), where)


HEADER_ORDERS = [
    {"opaque": 5, "code": 310, "flag": 0, "version": 473, "language": "GO"},
    {"code": 310, "flag": 0, "language": "JAVA", "opaque": 5, "serializeTypeCurrentRPC": "JSON", "version": 1},
]


@needs_twins
@pytest.mark.parametrize("order", HEADER_ORDERS)
@pytest.mark.parametrize("ext_first", [True, False])
def test_members_may_come_in_any_order(order: dict[str, Any], ext_first: bool) -> None:
    def frame(opaque: int, text: str, born: int) -> Frame:
        ext = {"extFields": {"i": text, **json.loads(sent(1).header)["extFields"], "g": str(born)}}
        ext["extFields"]["i"] = text
        header = ext | order if ext_first else order | ext
        return Frame(0, json.dumps(header | {"opaque": opaque}, separators=(",", ":")).encode(), b"b")

    frames = [frame(1, "a\x01b\x02", 1), frame(2, 'c"\x01\\d\x02', 12345), frame(3, "", 0)]
    assert members(twins["read_sends"](frames, 9)) == members(references["read_sends"](frames, 9))
    assert len(members(twins["read_sends"](frames, 9))) == 3


def test_replies_written_together_equal_replies_one_by_one() -> None:
    opaques, positions = [3, 2**31 - 1, 0], [0, 291, 2**40]
    joined = b"".join(
        encode_response(
            opaque,
            0,
            {
                "msgId": encode_offset_id("127.0.0.1", 10911, position),
                "queueId": "4",
                "queueOffset": str(offset),
                "MSG_REGION": "DefaultRegion",
                "TRACE_ON": "true",
                "laneStored": "durable",
            },
        )
        for offset, (opaque, position) in enumerate(zip(opaques, positions, strict=True), 99)
    )
    prefix = offset_id_prefix("127.0.0.1", 10911)
    assert encode_send_answers(opaques, prefix, positions, 4, 99, "durable") == joined


@needs_twins
@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.tuples(st.integers(-(2**31), 2**31 - 1), st.integers(0, 2**63 - 1)), max_size=5),
    st.integers(0, 2**31 - 1),
    st.integers(0, 2**62),
    st.sampled_from(["durable", "relaxed", 'odd"']),
)
def test_runs_are_answered_alike(pairs: list[tuple[int, int]], queue: int, offset: int, stored: str) -> None:
    opaques, positions = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
    same("encode_send_answers", opaques, "7F00000100002A9F", positions, queue, offset, stored)


@needs_twins
@pytest.mark.parametrize(
    ("before", "after"),
    [
        (b'"opaque":2', b'"opaque":2147483648'),
        (b'"opaque":2', b'"opaque":02'),
        (b'"opaque":2', b'"opaque":-2'),
        (b'"g":"5"', b'"g":"05"'),
        (b'"g":"5"', b'"g":""'),
        (b'"g":"5"', b'"g":"9223372036854775808"'),
        (b'"i":"', b'"i":"\\u00e9'),
        (b'"i":"', b'"i":"\\ud800'),
        (b'"i":"', b'"i":"\\x'),
        (b'"i":"', b'"i":"\\u00'),
        (b'"i":"', b'"i":"\n'),
        (b'"i":"', b'"i":"\xc3\xa9'),
        (b'"i":"', b'"i":"\xff'),
    ],
)
def test_values_in_unusual_json_are_read_alike(before: bytes, after: bytes) -> None:
    odd = Frame(0, sent(2).header.replace(before, after), b"odd")
    assert odd.header != sent(2).header
    frames = [sent(1), odd, sent(3)]
    expected = members(references["read_sends"](frames, 9))
    found = members(twins["read_sends"](frames, 9))
    assert found == expected[: len(found)]
    assert members(twins["read_sends"](frames[1:], 9)) == members(references["read_sends"](frames[1:], 9))
