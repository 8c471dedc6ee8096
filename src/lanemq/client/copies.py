"""What a copy that a mirror made says about its original. Pure.

Invariant: only what a mirror wrote is believed. A program that sends a message on with its properties, or redrives a
dead letter, makes another message: its producer stamp is not that of a mirror.
"""

import re
from hashlib import blake2b
from typing import Final, NamedTuple

from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import LANE_ORIGIN, LANE_PLACE, find_property, find_stamp

_ORIGIN: Final = re.compile(r"([^:]+):([0-9]{1,9}):([0-9]{1,18}):(.+)")
_PLACE: Final = re.compile(r"([0-9]{1,9}):([0-9]{1,18}):([0-9]{1,18}):([^:]+):(.+)")


class CopyOrigin(NamedTuple):
    """Where a copy was read."""

    mirror: str
    queue: MessageQueue
    offset: int


class OriginalPlace(NamedTuple):
    """Where the message is that a producer sent, and that was copied once or several times since."""

    queue: MessageQueue
    position: int
    """In the log of its broker."""
    stored_ms: int


def producer_id(mirror: str, source: MessageQueue) -> str:
    """The producer in the stamps of all copies of one source queue, the same in every run."""
    name = f"{mirror}|{source.broker}|{source.queue_id}"
    return "m" + blake2b(name.encode(), digest_size=8).hexdigest()


def origin_of(text: str, topic: str) -> CopyOrigin | None:
    """The origin among a message's properties; None if it is not a copy."""
    match = _ORIGIN.fullmatch(find_property(text, LANE_ORIGIN) or "")
    if match is None:
        return None
    mirror, queue_id, offset, broker = match.groups()
    return CopyOrigin(mirror, MessageQueue(topic, broker, int(queue_id)), int(offset))


def original_place(text: str, topic: str) -> OriginalPlace | None:
    """The place of a copy's original, by its properties; None if a mirror did not make it."""
    if LANE_PLACE not in text:
        return None
    match, origin, stamp = (
        _PLACE.fullmatch(find_property(text, LANE_PLACE) or ""),
        origin_of(text, topic),
        find_stamp(text),
    )
    if match is None or origin is None or stamp is None or stamp.producer != producer_id(origin.mirror, origin.queue):
        return None
    queue_id, position, stored_ms, sent_to, broker = match.groups()
    if sent_to != topic:
        return None
    return OriginalPlace(MessageQueue(topic, broker, int(queue_id)), int(position), int(stored_ms))


def place_text(place: OriginalPlace) -> str:
    """The value of the property `LANE_PLACE`."""
    queue = place.queue
    return f"{queue.queue_id}:{place.position}:{place.stored_ms}:{queue.topic}:{queue.broker}"
