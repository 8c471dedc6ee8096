"""The requests themselves, field by field."""

import pytest
from tests.wire.encoding import encode_batch, split_batch

from lanemq.client.producer.batches import Extras, PendingMessage, RequestBuilder, maybe_compressed, properties_text
from lanemq.model.errors import MessageTooLarge
from lanemq.model.queue import MessageQueue
from lanemq.wire.codes import RequestCode
from lanemq.wire.compression import decompress
from lanemq.wire.headers import SendHeader
from lanemq.wire.properties import find_stamp

QUEUE = MessageQueue("orders", "broker-a", 3)
BUILDER = RequestBuilder("billing", "client-1", "producer-1")


def message(body: bytes = b"x") -> PendingMessage:
    return PendingMessage(body, properties_text("k", "A" * 32), "A" * 32, "k")


def test_single_message_is_a_v2_send_with_its_stamp_among_the_properties() -> None:
    command = BUILDER.send(QUEUE, [message()], epoch=2, sequence=9, born=1700)
    assert command.code == RequestCode.SEND_MESSAGE_V2
    expected = SendHeader(
        producer_group="billing",
        topic="orders",
        default_topic="TBW102",
        default_topic_queue_nums=4,
        queue_id=3,
        sys_flag=0,
        born_timestamp=1700,
        flag=0,
        properties=properties_text("k", "A" * 32) + "LANE_STAMP\x01producer-1.2.9\x02",
        broker_name="broker-a",
        lane_client="client-1",
    )
    assert SendHeader.from_ext_v2(command.ext) == expected
    assert command.body == b"x"


def test_several_messages_are_a_batch_with_consecutive_stamps() -> None:
    command = BUILDER.send(QUEUE, [message(b"x"), message(b"y"), message(b"z")], epoch=1, sequence=5, born=1)
    assert command.code == RequestCode.SEND_BATCH_MESSAGE
    header = SendHeader.from_ext_v2(command.ext)
    assert header.batch
    assert header.properties == "", "a broker adds these to every message, and each has its own"
    items = split_batch(command.body)
    assert [item.body for item in items] == [b"x", b"y", b"z"]
    stamps = [find_stamp(item.properties_text) for item in items]
    assert [stamp and tuple(stamp) for stamp in stamps] == [("producer-1", 1, n) for n in (5, 6, 7)]


def test_batch_is_the_bytes_that_the_plain_encoder_makes() -> None:
    messages = [
        message(b""),
        message("ä".encode() * 300),
        PendingMessage(b"z", properties_text("schlüssel", "B" * 32), "B" * 32),
    ]
    command = BUILDER.send(QUEUE, messages, epoch=3, sequence=99, born=1)
    stamps = [f"LANE_STAMP\x01producer-1.3.{number}\x02" for number in (99, 100, 101)]
    items = [(0, each.body, each.properties + stamp) for each, stamp in zip(messages, stamps, strict=True)]
    assert command.body == encode_batch(items)


def test_properties_over_the_limit_are_refused_at_call_time() -> None:
    """Later they would take a place in the lane and hold up what is behind them."""
    with pytest.raises(MessageTooLarge):
        properties_text("k" * 33_000, "A" * 32)
    with pytest.raises(MessageTooLarge):
        properties_text("k", "A" * 32, Extras(properties={"big": "ä" * 17_000}))


def test_body_that_does_not_shrink_is_sent_passes_bytes() -> None:
    noise = bytes(range(256))
    assert maybe_compressed(noise) == (noise, 0)
    packed, flag = maybe_compressed(b"a" * 5000)
    assert decompress(flag, packed) == b"a" * 5000
