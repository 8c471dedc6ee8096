"""From messages of one source queue to requests for target queues. Pure.

Invariant: a target queue gets the messages of a source queue in offset order, without those that it contains.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from lanemq.client.copies import OriginalPlace, origin_of
from lanemq.client.message import Message
from lanemq.client.producer.batches import MESSAGE_OVERHEAD, PendingMessage
from lanemq.mirror.arrivals import Arrivals
from lanemq.mirror.origin import copied_properties
from lanemq.mirror.queue_mapping import QueueMapping
from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import LANE_ORIGIN, MAX_PROPERTIES_BYTES
from lanemq.wire.record import COMPRESSED, COMPRESSION_MASK

MAX_MESSAGES = 1000
MAX_BYTES = 1024 * 1024
STAMP_BYTES = 128
"""Room that the properties leave for the stamp."""


class Copy(NamedTuple):
    """A message on its way to the target, and its offset at the source."""

    message: PendingMessage
    offset: int
    born_ms: int


def copies_by_queue(
    messages: Iterable[Message], mapping: QueueMapping, arrivals: Mapping[MessageQueue, Arrivals], mirror: str
) -> dict[MessageQueue, list[Copy]]:
    """What each target queue lacks of these messages, in order. Copies that came from the target are left out."""
    needed: dict[MessageQueue, list[Copy]] = {}
    for message in messages:
        text, source, offset = message.properties_text, message.queue, message.queue_offset
        target = mapping.queue_for(source, message.key)
        if offset < arrivals[target].reached(source).next or _came_from_there(text, source.topic, mirror):
            continue
        place = OriginalPlace(source, message.record.position, message.record.store_timestamp)
        needed.setdefault(target, []).append(_copy(message, copied_properties(text, mirror, offset, place)))
    return needed


def requests(copies: Iterable[Copy]) -> Iterator[list[Copy]]:
    """The copies for one target queue as requests. A compressed body travels alone: the request says so for all."""
    request: list[Copy] = []
    size = 0
    for copy in copies:
        grown = size + copy.message.size
        if request and (copy.message.alone or grown > MAX_BYTES or len(request) == MAX_MESSAGES):
            yield request
            request, grown = [], copy.message.size
        request.append(copy)
        size = grown
        if copy.message.alone:
            yield request
            request, size = [], 0
    if request:
        yield request


def add_watermarks(request: list[Copy], source: MessageQueue, arrivals: Arrivals) -> bool:
    """Adds watermarks to the last message of a request, if they fit into its properties."""
    last = request[-1]
    text = arrivals.text_with_watermarks(last.message.properties, source, last.offset, len(request))
    if len(text.encode()) > MAX_PROPERTIES_BYTES - STAMP_BYTES:
        return False
    last.message.properties = text
    return True


def _copy(message: Message, properties: str) -> Copy:
    record, body = message.record, message.stored_body
    flag = record.sys_flag & (COMPRESSED | COMPRESSION_MASK) if record.sys_flag & COMPRESSED else 0
    size = len(body) + len(properties) + MESSAGE_OVERHEAD
    pending = PendingMessage(body, properties, "", message.key, flag, flag != 0, size=size)
    return Copy(pending, message.queue_offset, record.born_timestamp)


def _came_from_there(text: str, topic: str, mirror: str) -> bool:
    if LANE_ORIGIN not in text:
        return False
    origin = origin_of(text, topic)
    return origin is not None and origin.mirror == mirror
