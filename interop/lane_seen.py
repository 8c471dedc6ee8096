"""A stored message as the cases see it: the start of its body, and a digest for the rest."""

import hashlib
from typing import Any

from lanemq.client.message import Message
from lanemq.wire.compression import decompress
from lanemq.wire.properties import PropertyName
from lanemq.wire.record import RecordView

SHOWN = 200


def sha1(body: bytes) -> str:
    return hashlib.sha1(body, usedforsecurity=False).hexdigest()


def seen_message(message: Message) -> dict[str, Any]:
    """A message as a consumer got it; topic and attempts come from the message, not from the record."""
    return seen_record(message.record) | {
        "topic": message.topic,
        "id": message.message_id,
        "attempts": message.reconsume_times,
    }


def seen_record(record: RecordView) -> dict[str, Any]:
    body = decompress(record.sys_flag, record.body)
    properties = record.properties
    return {
        "topic": record.topic,
        "queue": record.queue_id,
        "offset": record.queue_offset,
        "id": properties.get(PropertyName.UNIQUE_ID),
        "keys": properties.get(PropertyName.KEYS),
        "tags": properties.get(PropertyName.TAGS),
        "attempts": record.reconsume_times,
        "body": body[:SHOWN].decode(errors="replace"),
        "size": len(body),
        "sha1": sha1(body),
        "store_ms": record.store_timestamp,
        "properties": dict(properties),
    }
