"""What a copy carries: its origin, and now and then watermarks. Pure.

Invariant: what is read back from a target queue says exactly which messages of each source queue it contains.
"""

from collections.abc import Mapping
from hashlib import blake2b
from typing import NamedTuple

import msgspec

from lanemq.client.copies import OriginalPlace, original_place, place_text
from lanemq.model.names import check_group
from lanemq.model.queue import MessageQueue
from lanemq.wire.properties import (
    ENTRY_END,
    LANE_ORIGIN,
    LANE_PASSED,
    LANE_PLACE,
    LANE_STAMP,
    LANE_WATERMARKS,
    NAME_END,
    PropertyName,
    decode_properties,
    find_property,
)

_NOT_COPIED = frozenset(
    {
        LANE_STAMP, LANE_ORIGIN, LANE_PLACE, LANE_WATERMARKS, LANE_PASSED,
        PropertyName.DELAY, PropertyName.TIMER_DELAY_SECONDS, PropertyName.TIMER_DELAY_MILLIS,
        PropertyName.TIMER_DELIVER_MILLIS, "TIMER_OUT_MS", "TIMER_ENQUEUE_MS", "TIMER_DEQUEUE_MS", "TIMER_ROLL_TIMES",
        PropertyName.REAL_TOPIC, PropertyName.REAL_QUEUE, PropertyName.TRANSACTION, PropertyName.PRODUCER_GROUP,
        PropertyName.REGION, PropertyName.TRACE_ON, PropertyName.CLUSTER, "INNER_NUM", "INNER_BASE", "POP_CK",
        "__CRC32#",
    }
)  # fmt: skip
"""Properties that say how a broker handled the original. Its delay is over; its stamp counts in another queue."""
_SYSTEM = _NOT_COPIED | {value for name, value in vars(PropertyName).items() if name.isupper()}


class Reached(NamedTuple):
    """How far one source queue is contained in one target queue."""

    next: int
    """The first offset of the source queue that the target queue does not contain, if it belongs there."""
    epoch: int
    sequence: int
    """Epoch and sequence number of the next copy's stamp."""


class Watermarks(msgspec.Struct, array_like=True):
    """How far every source queue is contained in one target queue, and how many queues both sides had then."""

    mirror: str
    source_queues: int
    target_queues: int
    reached: dict[str, dict[int, tuple[int, int, int]]]
    """By broker name and queue id."""


def mirror_name(source: str, target: str) -> str:
    """The name of a mirror between these servers, whichever is the source.

    Both directions have the same name, so that a mirror back recognises and skips what came from there.
    """
    servers = sorted({";".join(sorted(side.split(";"))) for side in (source, target)})
    return blake2b("|".join(servers).encode(), digest_size=4).hexdigest()


def source_group(mirror: str) -> str:
    """The group whose offsets at the source show what is copied."""
    return check_group(f"mirror-{mirror}")


def target_group(mirror: str) -> str:
    """The group whose offsets at the target say where its newest watermarks are; also the producer group there."""
    return check_group(f"mirrored-{mirror}")


def copied_properties(text: str, mirror: str, offset: int, place: OriginalPlace) -> str:
    """The properties of a message's copy. `place` is where the message is, and kept if it is a copy itself."""
    source = place.queue
    entries = [entry for entry in text.split(ENTRY_END) if entry and entry.partition(NAME_END)[0] not in _NOT_COPIED]
    entries.append(f"{LANE_ORIGIN}\x01{mirror}:{source.queue_id}:{offset}:{source.broker}")
    first = original_place(text, source.topic) or place
    entries.append(f"{LANE_PLACE}\x01{place_text(first)}\x02")
    return ENTRY_END.join(entries)


def user_properties(text: str) -> dict[str, str]:
    """The properties that a program gave a message."""
    return {name: value for name, value in decode_properties(text).items() if name not in _SYSTEM}


def with_watermarks(text: str, marks: Watermarks) -> str:
    """The properties of the last message of a request."""
    return f"{text}{LANE_WATERMARKS}\x01{msgspec.json.encode(marks).decode()}\x02"


def watermarks_of(text: str, mirror: str) -> Watermarks | None:
    """The watermarks of this mirror among a message's properties."""
    value = find_property(text, LANE_WATERMARKS)
    if value is None:
        return None
    marks = msgspec.json.decode(value, type=Watermarks)
    return marks if marks.mirror == mirror else None


def table_of(reached: Mapping[MessageQueue, Reached]) -> dict[str, dict[int, tuple[int, int, int]]]:
    """The positions of source queues in the form of `Watermarks`."""
    table: dict[str, dict[int, tuple[int, int, int]]] = {}
    for queue, at in reached.items():
        table.setdefault(queue.broker, {})[queue.queue_id] = (at.next, at.epoch, at.sequence)
    return table
