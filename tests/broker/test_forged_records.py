"""A record that a client makes and hides in a body is never taken for one that the broker stored."""

import logging
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.broker.conftest import Start
from tests.broker.raw_client import RawClient, bodies, records
from tests.broker.running import RunningBroker

from lanemq.log import appender
from lanemq.log.record_bytes import MAGIC_BYTES
from lanemq.wire.codes import RequestCode, ResponseCode
from lanemq.wire.record import HEAD_BYTES, body_crc, build_tail, decode_offset_id, seal_record

BODY_AT = HEAD_BYTES + 4


def forged(position: int, topic: str = "Other", tail: bytes | None = None) -> bytes:
    """A complete record of another topic, which would be intact at a position of the log."""
    body = b"forged"
    tail = build_tail(body, topic.encode(), b"") if tail is None else tail
    return seal_record(tail, body_crc(body), 0, 0, 0, position, 0, 1, bytes(8), 1, bytes(8), 0)


def next_position(raw: RawClient) -> int:
    """Where the next message will be stored, as any client can find out."""
    last = raw.send("Mine", b"last")
    return (
        decode_offset_id(last.ext["msgId"]).position + records(raw.pull("Mine", int(last.ext["queueOffset"])))[0].size
    )


def send_single(raw: RawClient, body: bytes) -> int:
    return raw.send("Mine", body).code


def send_batch(raw: RawClient, body: bytes) -> int:
    return raw.send_batch("Mine", [(body, {}), (b"second", {})]).code


def send_stamped_batch(raw: RawClient, body: bytes) -> int:
    return raw.send_batch("Mine", [(body, {"LANE_STAMP": "p.1.0"}), (b"second", {"LANE_STAMP": "p.1.1"})]).code


def restarted_after_damage(broker: RunningBroker, start: Start, folder: Path, position: int) -> RawClient:
    """A client of a broker that starts on the folder as a crash leaves it, with a broken size at a position."""
    crashed = broker.crash_image(folder / "crashed")
    log = next((crashed / "log").glob("*.log"))
    data = bytearray(log.read_bytes())
    data[position] ^= 0x40
    log.write_bytes(data)
    return start(crashed).connect()


@pytest.fixture
def unchecked(monkeypatch: pytest.MonkeyPatch) -> None:
    """A broker that stores any body."""
    monkeypatch.setattr(appender, "hides_record", lambda records, position: False)


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("send", [send_single, send_batch, send_stamped_batch])
def test_a_body_cannot_bring_a_record_into_another_topic(
    start: Start, folder: Path, send: Callable[[RawClient, bytes], int], durable: bool
) -> None:
    broker = start(durable=durable)
    raw = broker.connect()
    raw.create("Other", 1)
    raw.create("Mine", 1)
    position = next_position(raw)
    assert send(raw, forged(position + BODY_AT)) == ResponseCode.SYSTEM_BUSY
    assert raw.send("Mine", b"x" * 300).code == 0
    assert raw.send("Mine", b"behind").code == 0
    after = restarted_after_damage(broker, start, folder, position)
    assert bodies(after.read("Other")) == []
    assert bodies(after.read("Mine"))[:1] == [b"last"]


def test_a_body_that_is_stored_unseen_enters_another_topic_after_damage(
    unchecked: None, broker: RunningBroker, start: Start, folder: Path
) -> None:
    """Negative control: without the check, a search for the next record finds the one in the body."""
    raw = broker.connect()
    raw.create("Other", 1)
    raw.create("Mine", 1)
    position = next_position(raw)
    assert send_single(raw, forged(position + BODY_AT)) == 0
    assert raw.send("Mine", b"behind").code == 0
    after = restarted_after_damage(broker, start, folder, position)
    assert bodies(after.read("Other")) == [b"forged"]


def test_a_message_id_of_a_place_inside_a_body_shows_nothing(unchecked: None, raw: RawClient) -> None:
    """Even if the body was stored."""
    raw.create("Other", 1)
    raw.create("Mine", 1)
    raw.send("Other", b"real")
    inside = next_position(raw) + BODY_AT
    send_single(raw, forged(inside))
    reply = raw.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(inside)})
    assert (reply.code, reply.body) == (ResponseCode.SYSTEM_ERROR, b"")
    assert "no queue has a record there" in (reply.remark or "")
    back = {"group": "g", "offset": str(inside), "delayLevel": "1", "originMsgId": "", "originTopic": "Other"}
    assert raw.ask(RequestCode.CONSUMER_SEND_MSG_BACK, back).code == ResponseCode.SYSTEM_ERROR


@pytest.mark.parametrize(
    "tail",
    [
        pytest.param(b"\xff\xff\xff\xff" + bytes(60), id="negative body"),
        pytest.param(b"\x00\x00\xff\xff" + bytes(60), id="body too long"),
        pytest.param(bytes(4) + b"\xff" + bytes(60), id="topic too long"),
        pytest.param(bytes(4) + b"\x01T\xff\xff" + bytes(60), id="negative properties"),
        pytest.param(bytes(4) + b"\x01\xff\x00\x00", id="topic not UTF-8"),
    ],
)
def test_a_record_whose_lengths_make_no_sense_is_damage(
    unchecked: None, raw: RawClient, tail: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    raw.create("Mine", 1)
    inside = next_position(raw) + BODY_AT
    send_single(raw, forged(inside, tail=tail))
    reply = raw.ask(RequestCode.VIEW_MESSAGE_BY_ID, {"offset": str(inside)})
    assert reply.code == ResponseCode.SYSTEM_ERROR
    assert f"record at log position {inside} is damaged" in (reply.remark or "")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_copy_of_a_record_is_stored_at_any_other_place(raw: RawClient) -> None:
    """Tools send stored records as bodies; only the bytes at their own position are refused."""
    raw.create("Mine", 1)
    body = forged(next_position(raw) + BODY_AT)
    assert send_single(raw, body) == ResponseCode.SYSTEM_BUSY
    raw.send("Mine", b"another")
    assert send_single(raw, body) == 0
    assert bodies(raw.read("Mine"))[-1] == body


@pytest.mark.parametrize("durable", [True, False])
@pytest.mark.parametrize("after", [0, 6, 12, 15])
def test_a_message_that_no_position_can_take_is_refused_for_good(start: Start, durable: bool, after: int) -> None:
    """The next record could complete what follows the magic. As busy, a client would try again until its timeout."""
    raw = start(durable=durable).connect()
    raw.create("Mine", 1)
    body = bytes(4) + MAGIC_BYTES + bytes(after)
    for _ in range(2):
        assert raw.send("Mine", b"another").code == 0
        reply = raw.send("Mine", body)
        assert reply.code == ResponseCode.MESSAGE_ILLEGAL
        assert "add 28 bytes to the end of the body" in (reply.remark or "")
    assert raw.send("Mine", body + bytes(28)).code == 0
    assert raw.send("Mine", body, properties={"UNIQ_KEY": "0" * 32}).code == 0
