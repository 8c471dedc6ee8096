"""A single send that is read by comparison equals the send decoded in full, compiled and pure."""

import json

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.fast.both import damaged, needs_twins, outcome, references, twins
from tests.fast.test_send_twins import BUILDER

from lanemq.client.producer.batches import PendingMessage, properties_text
from lanemq.model.queue import MessageQueue
from lanemq.wire.command import FrameDecoder, decode_command, encode_command, pack_frame
from lanemq.wire.headers import SendHeader
from lanemq.wire.properties import find_property, stamp_in
from lanemq.wire.single_sends import NO_STAMP, SendForm, SingleSend, form_of, read_alike


def sent(number: int, key: str = "key", queue: int = 0, born: int = 5, extra: str = "", epoch: int = 1) -> bytes:
    """A single send as LaneMQ's producer writes it."""
    message = PendingMessage(b"body %d" % number, properties_text(key, f"{number:032X}") + extra, "")
    command = BUILDER.send(MessageQueue("T", "b", queue), (message,), epoch=epoch, sequence=number, born=born)
    command.opaque = number
    return encode_command(command)


def stock(opaque: int, properties: str, **fields: str) -> bytes:
    """A single send as RocketMQ's Java client writes it."""
    ext = {"a": "g", "b": "T", "c": "TBW102", "d": "4", "e": "0", "f": "0", "g": "17", "h": "0", "i": properties}
    head = {"code": 310, "extFields": ext | {"j": "0", "k": "false", "m": "false"} | fields, "flag": 0}
    head |= {"language": "JAVA", "opaque": opaque, "serializeTypeCurrentRPC": "JSON", "version": 473}
    return pack_frame(0, json.dumps(head, separators=(",", ":")).encode(), b"stock")


def form(data: bytes) -> SendForm:
    found = form_of(data)
    assert found is not None
    return found


def check(data: bytes, found: SingleSend) -> None:
    """What was read by comparison is what decoding in full gives."""
    opaque, queue_id, born, properties, body, sequence, tagged = found
    (frame,) = FrameDecoder().feed(data)
    command = decode_command(frame)
    header = SendHeader.from_ext_v1(command.ext) if command.code == 10 else SendHeader.from_ext_v2(command.ext)
    assert (opaque, body) == (command.opaque, command.body)
    assert (queue_id, born, properties) == (header.queue_id, header.born_timestamp, header.properties.encode())
    stamp = stamp_in(properties)
    assert sequence == (NO_STAMP if stamp is None else stamp.sequence)
    assert tagged or find_property(header.properties, "TAGS") is None
    for name in ("DELAY", "TIMER_DELAY_SEC", "TIMER_DELAY_MS", "TIMER_DELIVER_MS", "REPLY_TO_CLIENT"):
        assert find_property(header.properties, name) is None


@settings(deadline=None, max_examples=150)
@given(
    st.integers(0, 2**31 - 1),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\x01\x02"), min_size=1, max_size=8),
    st.integers(0, 2**31 - 1),
    st.integers(0, 10**18 - 1),
)
@example(2**31 - 1, 'q"\\/\n\x7f\x00', 0, 0)
def test_a_send_of_a_known_form_is_read_as_it_was_written(number: int, key: str, queue: int, born: int) -> None:
    data = sent(number, key, queue, born)
    found = read_alike(data, form(sent(1)).shape)
    if key.isascii():
        assert found is not None
    if found is not None:
        check(data, found)


ENTRIES = st.sampled_from(
    """;k=v;TAGS=a;XTAGS=a;DELAY=3;DELAY;TIMER_DELAY_SEC=1;TIMER_;n=TIMER_;REPLY_TO_CLIENT=c;LANE_STAMP=p.1.2;LANE_STAMP
    ;LANE_STAMP=p.1.02;LANE_STAMP=p.2.3;LANE_STAMP=producer.1.7;a=b=TAGS=c;LANE_STAMP=p.1.3=;LANE_STAMP=p.1.x""".replace(
        "=", "\x01"
    )
    .replace("\n    ", "")
    .split(";")
)
TEXTS = st.lists(ENTRIES, max_size=5).map("\x02".join)
STAMPED = "a\x01b\x02LANE_STAMP\x01p.1.0\x02"
FORMS = st.sampled_from([sent(1), stock(1, ""), stock(1, STAMPED), stock(2, "k\x01v", e="1")])


@needs_twins
@settings(deadline=None, max_examples=300)
@given(FORMS, TEXTS, st.sampled_from(["0", "1", "01", "-1", "2147483648", "9" * 19, ""]), st.integers(0, 2**31 + 1))
def test_both_read_the_same_sends_and_none_that_asks_for_more(
    first: bytes, text: str, number: str, opaque: int
) -> None:
    shape, plain = form(first).shape, stock(opaque, text)
    for data in (plain, stock(opaque, text, e=number), stock(opaque, text, g=number), sent(3, extra=text)):
        found = references["read_alike"](data, shape)
        assert twins["read_alike"](data, shape) == found
        if found is not None:
            check(data, found)


@needs_twins
@settings(deadline=None, max_examples=300)
@given(st.sampled_from([sent(1), stock(1, "a\x01b")]), st.data())
def test_damaged_sends_are_read_alike(whole: bytes, data: st.DataObject) -> None:
    bad = data.draw(damaged(st.just(whole)))
    shape = form(whole).shape
    assert outcome(twins["read_alike"], bad, shape) == outcome(references["read_alike"], bad, shape)
    found = form_of(bad)
    if found is not None and (read := read_alike(bad, found.shape)) is not None:
        check(bad, read)


def test_the_long_names_of_older_clients_are_known() -> None:
    names = {"a": "producerGroup", "b": "topic", "c": "defaultTopic", "d": "defaultTopicQueueNums", "e": "queueId"}
    names |= {"f": "sysFlag", "g": "bornTimestamp", "h": "flag", "i": "properties", "j": "reconsumeTimes"}
    (frame,) = FrameDecoder().feed(stock(5, "TAGS\x01a\x02"))
    head = json.loads(frame.header)
    head["code"] = 10
    head["extFields"] = {names[name]: value for name, value in head["extFields"].items() if name in names}
    data = pack_frame(0, json.dumps(head, separators=(",", ":")).encode(), b"old")
    found = read_alike(data, form(data).shape)
    assert found == (5, 0, 17, b"TAGS\x01a\x02", b"old", NO_STAMP, True)


@pytest.mark.parametrize(
    "change",
    [
        ('"flag":0', '"flag":2'),
        ('"k":"false"', '"k":"false","m":"true"'),
        ('"code":310', '"code":320'),
        ('"e":"0"', '"e":0'),
        ('"e":"0"', '"e":"0","e":"1"'),
        ('"opaque":1', '"opaque":1,"opaque":2'),
        ('"extFields"', '"opaque":5,"extFields"'),
        ('"e":"0"', '"e": "0"'),
        ('"e":"0",', ""),
        ('"version":473', '"version":473,"code":11'),
    ],
)
def test_a_send_of_an_unusual_form_is_left_to_others(change: tuple[str, str]) -> None:
    (frame,) = FrameDecoder().feed(sent(1))
    text = frame.header.decode()
    changed = text.replace(*change)
    assert changed != text
    assert form_of(pack_frame(0, changed.encode(), b"b")) is None


def test_a_value_in_the_wrong_place_is_not_taken_for_the_real_one() -> None:
    """A name counts in the ext fields only, and not inside a text."""
    (frame,) = FrameDecoder().feed(stock(1, 'x","e":"7'))
    inside = pack_frame(0, frame.header.replace(b'"flag":0', b'"flag":0,"e":"9"'), b"b")
    for data in (stock(1, 'x","e":"7'), inside):
        found = read_alike(data, form(data).shape)
        assert found is not None
        check(data, found)
