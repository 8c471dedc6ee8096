"""A stored message as clients get it."""

import hashlib

from lanemq.client.message import Message
from lanemq.core.fronting.hand_outs import HandOut
from lanemq.model.units import Millis
from lanemq.wire.grpc.messages import (
    Digest,
    DigestType,
    Duration,
    Encoding,
    Instant,
    MessageType,
    Resource,
    SystemProperties,
    WireMessage,
)
from lanemq.wire.properties import PropertyName

EPOCH, DELIVERY = "LANE_EPOCH", "LANE_DELIVERY"
"""Properties of each delivery: the epoch of the queue's owner, and a number that grows with each hand-out of a front. A
sink that keeps the highest of both refuses a client that was replaced."""

_OURS = "LANE_"
_SYSTEM = frozenset(value for name, value in vars(PropertyName).items() if name.isupper())


def wire_message(message: Message, hand_out: HandOut[Message], at: int, invisible: Millis) -> WireMessage:
    """The message at place `at` of a hand-out."""
    record, key, body = message.record, message.key, message.body
    properties = {
        name: text for name, text in message.properties.items() if name not in _SYSTEM and not name.startswith(_OURS)
    }
    properties[EPOCH], properties[DELIVERY] = str(int(message.epoch)), str(hand_out.number)
    system = SystemProperties(
        tag=message.tag,
        keys=message.keys,
        message_id=message.message_id,
        body_digest=Digest(DigestType.MD5, hashlib.md5(body, usedforsecurity=False).hexdigest().upper()),
        body_encoding=Encoding.IDENTITY,
        message_type=MessageType.NORMAL if key is None else MessageType.FIFO,
        born_timestamp=Instant.of_ms(record.born_timestamp),
        born_host=record.born_host,
        store_timestamp=Instant.of_ms(record.store_timestamp),
        store_host=record.store_host,
        receipt_handle=hand_out.handles[at],
        queue_id=message.queue.queue_id,
        queue_offset=message.queue_offset,
        invisible_duration=Duration.of_ms(invisible),
        delivery_attempt=record.reconsume_times + (hand_out.run.attempt if at == 0 else 1),
        message_group=key,
    )
    return WireMessage(Resource(name=message.topic), properties, system, body)
